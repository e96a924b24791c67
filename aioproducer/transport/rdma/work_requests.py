"""Compiled. Work requests for a queue pair, and their completions.

Each request needs both, so they hold plain numbers, from which the verbs layer makes what the card needs.

No Python form: ``Write`` holds its pieces in C arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

MAX_PIECES: Final = 32
"""Room of a ``Write``; a queue pair may accept fewer pieces."""

Piece: TypeAlias = tuple[int, int, int]
"""``struct ibv_sge``, bytes of registered memory: address, length, local key."""


class Write:
    """``struct ibv_send_wr`` of an RDMA WRITE with immediate: writes the pieces, in order, to the peer's memory.

    The same object may be refilled for each request: it is not read after it was posted.

    work_request_id
        The id of its completion.
    remote_address, remote_key
        The destination in the peer's memory.
    immediate
        32 bits for the peer.
    signaled
        Whether it completes also if it succeeds.
    count
        Number of pieces; a message without any has no bytes.
    """

    def __init__(
        self,
        work_request_id: int = 0,
        pieces: Iterable[Piece] = (),
        remote_address: int = 0,
        remote_key: int = 0,
        immediate: int = 0,
        signaled: bool = False,
    ) -> None:
        self.work_request_id = work_request_id
        self.remote_address = remote_address
        self.remote_key = remote_key
        self.immediate = immediate
        self.signaled = signaled
        self.count = 0
        if not cython.compiled:
            self._addresses = [0] * MAX_PIECES
            self._lengths = [0] * MAX_PIECES
            self._local_keys = [0] * MAX_PIECES
        for piece in pieces:
            self.add(*piece)

    def clear(self) -> None:
        """Remove all pieces."""
        self.count = 0

    def add(self, address: int, length: int, local_key: int) -> None:
        """Append a piece; at most ``MAX_PIECES``."""
        count = self.count
        assert count < MAX_PIECES
        self._addresses[count] = address
        self._lengths[count] = length
        self._local_keys[count] = local_key
        self.count = count + 1

    @property
    def pieces(self) -> list[Piece]:
        """The pieces, in order."""
        return [(self._addresses[at], self._lengths[at], self._local_keys[at]) for at in range(self.count)]


class Completion:
    """``struct ibv_wc``: the outcome of a work request.

    work_request_id
        The id that was posted.
    status
        0, or the reason of a failure (``CompletionStatus``, or another value of ``enum ibv_wc_status``).
    received
        Whether it belongs to a receive, which the peer's write with immediate has consumed.
    length
        Bytes that the peer wrote, for a receive that succeeded.
    immediate
        The peer's 32 bits in this machine's byte order, for a receive that succeeded.
    """

    __slots__ = ("immediate", "length", "received", "status", "work_request_id")

    def __init__(self, work_request_id: int, status: int, received: bool, length: int, immediate: int) -> None:
        self.work_request_id = work_request_id
        self.status = status
        self.received = received
        self.length = length
        self.immediate = immediate

    def __repr__(self) -> str:
        kind = "received" if self.received else "sent"
        return (
            f"<{kind} {self.work_request_id}: status {self.status}, {self.length} bytes, immediate {self.immediate:#x}>"
        )
