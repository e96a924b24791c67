"""The states of a connection over a queue pair, and the events that move it from one state to the next.

A connection starts in OPEN: until both sides are ready, ``connecting`` owns its parts. The usual end is the column on
the left::

    OPEN ---------------------+
     |  close() called        |  sending failed
    FLUSHING                FAILED
     |  goodbye posted        |  queue pair destroyed
    LINGERING               STOPPED
     |  goodbye completed     |
    ACKNOWLEDGED              |
     |                        |
     +---- ended -------------+
     |
    CLOSING      from each of the states above, at any time
     |  card released
    RELEASED
     |  loss reported
    LOST

The peer's direction has states of its own (``PeerState``). The TCP connection beside the queue pair may end in any
state; ``LOST`` needs its end as well as ``RELEASED``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum


class ChannelState(IntEnum):
    """The life of a connection. It only ever moves down this list, so states may be compared by their order."""

    OPEN = 0
    FLUSHING = 1
    """``close`` was called; data written before it is still being sent."""
    LINGERING = 2
    """All data and the goodbye are posted; the goodbye has not completed yet."""
    ACKNOWLEDGED = 3
    """The goodbye has completed, so the peer's card has all data. The peer has yet to end its side."""
    FAILED = 4
    """Nothing can be sent any more, and the queue pair is being destroyed. Data that had arrived is still delivered."""
    STOPPED = 5
    """FAILED, and the queue pair is destroyed: the card no longer reads any buffer."""
    CLOSING = 6
    """The connection has ended; the thread releases what it has of the card."""
    RELEASED = 7
    """The card's part is released. Once the TCP connection has ended too, the loss is reported."""
    LOST = 8
    """``connection_lost`` was called."""


class PeerState(IntEnum):
    """How far the peer has ended its direction. It only ever moves down this list."""

    SENDING = 0
    GOODBYE_RECEIVED = 1
    """The peer writes no more data. Data that it wrote before may still have to be delivered."""
    GOODBYE_DELIVERED = 2
    """All data of the peer was delivered, or dropped because this side is closing."""


class ChannelEvent(Enum):
    """What moves a connection on."""

    CLOSE_CALLED = "close() called"
    GOODBYE_POSTED = "goodbye posted"
    GOODBYE_COMPLETED = "goodbye completed"
    SENDING_FAILED = "sending failed"
    QUEUE_PAIR_DESTROYED = "queue pair destroyed"
    ENDED = "ended"
    CARD_RELEASED = "card released"
    LOSS_REPORTED = "loss reported"


NEXT_STATE: Mapping[tuple[int, ChannelEvent], ChannelState] = {
    (ChannelState.OPEN, ChannelEvent.CLOSE_CALLED): ChannelState.FLUSHING,
    (ChannelState.FLUSHING, ChannelEvent.GOODBYE_POSTED): ChannelState.LINGERING,
    (ChannelState.LINGERING, ChannelEvent.GOODBYE_COMPLETED): ChannelState.ACKNOWLEDGED,
    (ChannelState.OPEN, ChannelEvent.SENDING_FAILED): ChannelState.FAILED,
    (ChannelState.FAILED, ChannelEvent.QUEUE_PAIR_DESTROYED): ChannelState.STOPPED,
    (ChannelState.OPEN, ChannelEvent.ENDED): ChannelState.CLOSING,
    (ChannelState.FLUSHING, ChannelEvent.ENDED): ChannelState.CLOSING,
    (ChannelState.LINGERING, ChannelEvent.ENDED): ChannelState.CLOSING,
    (ChannelState.ACKNOWLEDGED, ChannelEvent.ENDED): ChannelState.CLOSING,
    (ChannelState.FAILED, ChannelEvent.ENDED): ChannelState.CLOSING,
    (ChannelState.STOPPED, ChannelEvent.ENDED): ChannelState.CLOSING,
    (ChannelState.CLOSING, ChannelEvent.CARD_RELEASED): ChannelState.RELEASED,
    (ChannelState.RELEASED, ChannelEvent.LOSS_REPORTED): ChannelState.LOST,
}
"""Which event is possible in which state, and the state that follows. An event that is not listed is a bug."""


def next_state(state: int, event: ChannelEvent) -> int:
    """Return the state that follows ``state`` after ``event``.

    Raises:
        RuntimeError: ``event`` is not possible in ``state``.
    """
    following = NEXT_STATE.get((state, event))
    if following is None:
        raise RuntimeError(f"event {event.value!r} is not possible in state {ChannelState(state).name}")
    return following.value
