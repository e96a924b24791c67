"""What is posted to a queue pair, and what comes of it.

There is one of each with every request: they are of numbers, from which those who speak to the card make what they
need.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import cython
else:
    from aioproducer._common.uncompiled import cython

MOST_PIECES: Final = 32
"""That a ``Write`` has room for; a queue pair may take fewer."""

Piece: TypeAlias = tuple[int, int, int]
"""``struct ibv_sge``, bytes of registered memory: address, length, local key."""


class Write:
    """``struct ibv_send_wr`` of an RDMA WRITE with immediate: the pieces, one after the other, to the peer's memory.

    Whoever posts many fills the same one anew for each: nobody looks at it after it was posted.

    work_request_id
        What its completion has.
    remote_address, remote_key
        Where to in the peer's memory.
    immediate
        32 bits for the peer.
    signaled
        Whether it has a completion when all went well.
    count
        How many pieces there are; without any it is a message without bytes.
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
            self._addresses = [0] * MOST_PIECES
            self._lengths = [0] * MOST_PIECES
            self._local_keys = [0] * MOST_PIECES
        for piece in pieces:
            self.add(*piece)

    def clear(self) -> None:
        """Have no pieces."""
        self.count = 0

    def add(self, address: int, length: int, local_key: int) -> None:
        """Put a piece behind the others; at most ``MOST_PIECES``."""
        count = self.count
        assert count < MOST_PIECES
        self._addresses[count] = address
        self._lengths[count] = length
        self._local_keys[count] = local_key
        self.count = count + 1

    @property
    def pieces(self) -> list[Piece]:
        """The pieces."""
        return [(self._addresses[at], self._lengths[at], self._local_keys[at]) for at in range(self.count)]


class Completion:
    """``struct ibv_wc``: what became of a work request.

    work_request_id
        As it was posted.
    status
        0, or why it failed (``CompletionStatus``, or another value of ``enum ibv_wc_status``).
    received
        Whether it is of a receive that the peer's write with immediate has consumed.
    length
        How many bytes the peer wrote, of a receive that succeeded.
    immediate
        The peer's 32 bits, of a receive that succeeded, in this machine's order.
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
