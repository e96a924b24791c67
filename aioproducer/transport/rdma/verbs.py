"""The verbs in use: the interface between the RDMA transport and a verbs layer.

A *verbs layer* makes ``Device`` objects. There is one on pyverbs (``aioproducer.transport.rdma.pyverbs_layer``), and
the double of ``aioproducer.testing.verbs``, which a test compares with the real one. Names are those of libibverbs.

Calls that may block run in the executor's thread, never on the event loop. Only those of ``QueuePair`` that are
documented otherwise do not block. Objects must be closed in the order queue pair, memory region, device; closing twice
has no further effect.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from aioproducer.transport.rdma.work_requests import Completion, Write


class VerbsError(OSError):
    """A verb failed. ``errno`` is what the call returned; the text says which call, and what to do if it is known."""


class RdmaUnavailableError(OSError):
    """RDMA is not available: the text names what is missing (pyverbs, a device, an active port, locked memory)."""


class CompletionStatus(IntEnum):
    """The values of ``enum ibv_wc_status`` that are handled here."""

    SUCCESS = 0
    LOCAL_LENGTH_ERROR = 1
    LOCAL_OPERATION_ERROR = 2
    LOCAL_PROTECTION_ERROR = 4
    WORK_REQUEST_FLUSHED = 5
    REMOTE_ACCESS_ERROR = 10
    TRANSPORT_RETRY_EXCEEDED = 12
    RECEIVER_NOT_READY_RETRY_EXCEEDED = 13


class QueuePairFacts(NamedTuple):
    """The data that the peer needs to connect its queue pair to this one.

    number
        ``qp_num``, 24 bits.
    gid
        The port's address, 16 bytes.
    packet_number
        The first packet sequence number that this side sends (``sq_psn``), 24 bits.
    mtu
        ``active_mtu`` of the port in bytes: 256, 512, 1024, 2048 or 4096; both use the smaller.
    """

    number: int
    gid: bytes
    packet_number: int
    mtu: int


class MemoryRegion(Protocol):
    """Memory that the card may read and, if requested, the peer may write."""

    @property
    def address(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def local_key(self) -> int: ...
    @property
    def remote_key(self) -> int: ...

    def close(self) -> None:
        """Deregister. The memory itself must live until then."""


class QueuePair(Protocol):
    """A reliable connection (``IBV_QPT_RC``) with a completion queue and a completion channel of its own."""

    @property
    def facts(self) -> QueuePairFacts: ...

    def connect(self, peer: QueuePairFacts) -> None:
        """Go through RTR to RTS. The peer may write from now on; earlier writes are retried for half a second.

        Raises:
            VerbsError: a transition failed.
        """

    def post_receives(self, work_request_ids: Sequence[int]) -> None:
        """Post receives without memory, each for one write with immediate. Does not block; any thread.

        May be called before ``connect``. Receives posted to a queue pair in error may complete as flushed, or never.

        Raises:
            VerbsError: the receive queue is full, or the queue pair is closed.
        """

    def post_write(self, write: Write) -> None:
        """Post ``IBV_WR_RDMA_WRITE_WITH_IMM`` of at most ``max_pieces`` pieces; ``write`` may be reused afterwards.

        Unless ``signaled``, it completes only if it fails. It is solicited (``IBV_SEND_SOLICITED``). Does not block;
        any thread.

        Raises:
            VerbsError: the send queue is full, or the queue pair is not connected or closed. On a queue pair in error
                the write is posted, and completes as flushed.
        """

    @property
    def max_pieces(self) -> int: ...

    @property
    def completion_fd(self) -> int:
        """Readable if completions have arrived since ``request_notification``; non-blocking."""

    def request_notification(self, solicited_only: bool = False) -> None:
        """``ibv_req_notify_cq``; earlier completions cause no event, so poll once after it. Does not block.

        The next completion causes an event, then none does until this is called again. With ``solicited_only`` only a
        receive causes one, even a flushed one. A failed write may or may not cause an event: the receives that are
        flushed with it do. After a request for any completion, another request before its event changes nothing: any
        completion still causes the event.
        """

    def clear_events(self) -> None:
        """Take and acknowledge the channel's events. Does not block."""

    def poll(self, most: int) -> list[Completion]:
        """Return at most ``most`` completions, oldest first. Does not block."""

    def next_completions(self, most: int, solicited_only: bool) -> list[Completion]:
        """Combine ``clear_events``, ``request_notification`` and ``poll``, in this order. Does not block.

        If there are fewer than ``most``, later completions cause an event.
        """

    def to_error(self) -> None:
        """Enter ``IBV_QPS_ERR``: everything posted is flushed."""

    def close(self) -> None:
        """Destroy the queue pair, then its completion queue and channel."""


class Device(Protocol):
    """An opened device and its protection domain."""

    @property
    def name(self) -> str: ...

    def register(
        self, memory: mmap.mmap, *, remote_write: bool, offset: int = 0, length: int | None = None
    ) -> MemoryRegion:
        """Register ``memory``, or a part of it that starts at a page boundary.

        Raises:
            VerbsError: the call failed; if the limit of locked memory is the reason, the text says so.
        """

    def create_queue_pair(self, *, send_depth: int, receive_depth: int) -> QueuePair:
        """Create a queue pair with room for that many outstanding sends and receives."""

    def close(self) -> None: ...


class Verbs(Protocol):
    """A verbs layer."""

    def open(self, device: str | None, gid: str | None) -> Device:
        """Open a device by name, and choose a port and GID by the GID's text; ``None`` takes the first that works.

        Raises:
            RdmaUnavailableError: there is none.
        """
