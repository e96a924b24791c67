"""The verbs that are used, as a seam between the RDMA transport and what speaks to the card.

A *verbs layer* makes ``Device`` objects: the one on pyverbs (``aioproducer.transport.rdma.pyverbs_layer``), or the
double of ``aioproducer.testing.verbs``, which a test holds to the real one. Names are those of libibverbs.

Calls that may block, all but those of ``QueuePair`` that say otherwise, are made in the executor's thread, never on the
event loop. What is made must be closed, in the order queue pair, memory region, device; closing twice is closing once.
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
    """There is no RDMA here: the text names what is missing (pyverbs, a device, a port that is up, locked memory)."""


class CompletionStatus(IntEnum):
    """``enum ibv_wc_status``, as far as it is told apart here."""

    SUCCESS = 0
    LOCAL_LENGTH_ERROR = 1
    LOCAL_OPERATION_ERROR = 2
    LOCAL_PROTECTION_ERROR = 4
    WORK_REQUEST_FLUSHED = 5
    REMOTE_ACCESS_ERROR = 10
    TRANSPORT_RETRY_EXCEEDED = 12
    RECEIVER_NOT_READY_RETRY_EXCEEDED = 13


class QueuePairFacts(NamedTuple):
    """What the peer has to know to connect its queue pair to this one.

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
    """Memory that the card may read and, where asked for, the peer write."""

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
        """Through RTR to RTS: the peer may write from now on, and is asked again for half a second if it may not yet.

        Raises:
            VerbsError: a transition failed.
        """

    def post_receives(self, work_request_ids: Sequence[int]) -> None:
        """Receives without memory, each for one write with immediate of the peer. Does not block; any thread.

        May be called before ``connect``. What is posted to a queue pair in error may come back flushed or never.

        Raises:
            VerbsError: the receive queue is full, or the queue pair is closed.
        """

    def post_write(self, write: Write) -> None:
        """``IBV_WR_RDMA_WRITE_WITH_IMM``, of at most ``max_pieces`` pieces; ``write`` may be filled anew afterwards.

        Unless ``signaled`` it has a completion only when it fails. At the peer it is solicited
        (``IBV_SEND_SOLICITED``). Does not block; any thread.

        Raises:
            VerbsError: the send queue is full, or the queue pair is not connected or closed. To one that is in error
                it is posted, and comes back flushed.
        """

    @property
    def max_pieces(self) -> int: ...

    @property
    def completion_fd(self) -> int:
        """Readable when completions have come since ``request_notification``; non-blocking."""

    def request_notification(self, solicited_only: bool = False) -> None:
        """``ibv_req_notify_cq``; what came before it makes no event: poll once more after it. Does not block.

        The next completion makes an event, and then none until this is called again; with ``solicited_only`` the next
        of a receive, be it flushed. Of a write that failed there may be an event or none: the receives that are flushed
        with it make one. Who has asked for any completion, and asks again before it came, will have the event at any.
        """

    def clear_events(self) -> None:
        """Take and acknowledge the channel's events. Does not block."""

    def poll(self, most: int) -> list[Completion]:
        """At most so many completions, oldest first. Does not block."""

    def next_completions(self, most: int, solicited_only: bool) -> list[Completion]:
        """``clear_events``, ``request_notification`` and ``poll`` at once, in this order. Does not block.

        What comes behind those that are returned makes an event, if there were fewer than ``most``.
        """

    def to_error(self) -> None:
        """``IBV_QPS_ERR``: what was posted is flushed."""

    def close(self) -> None:
        """Destroy the queue pair, then its completion queue and channel."""


class Device(Protocol):
    """An opened device and its protection domain."""

    @property
    def name(self) -> str: ...

    def register(
        self, memory: mmap.mmap, *, remote_write: bool, offset: int = 0, length: int | None = None
    ) -> MemoryRegion:
        """Register ``memory``, or a part of it that begins with a page.

        Raises:
            VerbsError: it was refused; where the limit of locked memory is why, the text says so.
        """

    def create_queue_pair(self, *, send_depth: int, receive_depth: int) -> QueuePair:
        """With room for so many sends and receives under way."""

    def close(self) -> None: ...


class Verbs(Protocol):
    """A verbs layer."""

    def open(self, device: str | None, gid: str | None) -> Device:
        """Open a device by name, and choose a port and GID by the GID's text; ``None`` takes the first that works.

        Raises:
            RdmaUnavailableError: there is none.
        """
