"""The states of a connection over a queue pair: the table of transitions, and the connections that make them."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from aioproducer.transport.rdma import channel
from aioproducer.transport.rdma.channel_state import NEXT_STATE, ChannelEvent, ChannelState, next_state
from tests.transport.numbered import numbered

PAIRS = list(itertools.product(ChannelState, ChannelEvent))
LEGAL = {
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


@pytest.mark.parametrize(("state", "event"), [pair for pair in PAIRS if pair in LEGAL], ids=str)
def test_a_legal_event_leads_to_the_listed_state(state, event):
    following = next_state(int(state), event)
    assert following == LEGAL[state, event]
    # The compiled channel compares plain integers.
    assert type(following) is int


@pytest.mark.parametrize(("state", "event"), [pair for pair in PAIRS if pair not in LEGAL], ids=str)
def test_an_illegal_event_raises(state, event):
    with pytest.raises(RuntimeError) as caught:
        next_state(int(state), event)
    assert str(caught.value) == f"event {event.value!r} is not possible in state {state.name}"


def test_every_state_is_reachable_and_leads_to_lost():
    following = {
        state: {after for (before, _), after in NEXT_STATE.items() if before == state} for state in ChannelState
    }

    def reached_from(state):
        reached = {state}
        while more := {after for before in reached for after in following[before]} - reached:
            reached |= more
        return reached

    assert reached_from(ChannelState.OPEN) == set(ChannelState)
    assert all(ChannelState.LOST in reached_from(state) for state in ChannelState)


def test_a_connection_only_moves_down_the_list_of_states():
    assert all(before < after for (before, _), after in NEXT_STATE.items())


class Transitions:
    """The transitions of connections: pairs of state and event, in their order."""

    def __init__(self):
        self.seen = []
        self._changed = asyncio.Event()

    def next_state(self, state, event):
        self.seen.append((ChannelState(state), event))
        self._changed.set()
        return next_state(state, event)

    async def until(self, transport, state):
        """Wait until ``transport`` is in ``state``."""
        async with asyncio.timeout(20):
            while transport._state != state:
                self._changed.clear()
                await self._changed.wait()

    def take(self):
        seen = set(self.seen)
        self.seen.clear()
        return seen


@pytest.fixture
def transitions(monkeypatch):
    recorded = Transitions()
    monkeypatch.setattr(channel, "next_state", recorded.next_state)
    return recorded


OPENED_AND_ENDED = {
    (ChannelState.OPEN, ChannelEvent.ENDED),
    (ChannelState.CLOSING, ChannelEvent.CARD_RELEASED),
    (ChannelState.RELEASED, ChannelEvent.LOSS_REPORTED),
}


async def test_a_closed_connection_ends_after_its_goodbye_was_acknowledged(rdma_server, transitions):
    await rdma_server.listen()
    client, server = await rdma_server.connect()
    client.write(b"last words")
    client.close()
    await client.until_lost()
    await server.until_lost()
    assert transitions.take() == {
        (ChannelState.OPEN, ChannelEvent.CLOSE_CALLED),
        (ChannelState.FLUSHING, ChannelEvent.GOODBYE_POSTED),
        (ChannelState.LINGERING, ChannelEvent.GOODBYE_COMPLETED),
        (ChannelState.ACKNOWLEDGED, ChannelEvent.ENDED),
        # The other side's, which received the goodbye.
        *OPENED_AND_ENDED,
    }
    assert client.transport._state == server.transport._state == ChannelState.LOST


async def test_a_failed_connection_is_stopped_until_reading_is_resumed(rdma_server, transitions, turns):
    await rdma_server.listen()
    client, server = await rdma_server.connect()
    client.transport.pause_reading()
    server.write(b"came before the reset")
    await turns(5)
    server.abort()
    await server.until_lost()
    await transitions.until(client.transport, ChannelState.STOPPED)
    await turns(20)
    assert client.lost == []
    client.transport.resume_reading()
    assert isinstance(await client.until_lost(), ConnectionError)
    assert client.received == b"came before the reset"
    assert transitions.take() - OPENED_AND_ENDED == {
        (ChannelState.OPEN, ChannelEvent.SENDING_FAILED),
        (ChannelState.FAILED, ChannelEvent.QUEUE_PAIR_DESTROYED),
        (ChannelState.STOPPED, ChannelEvent.ENDED),
    }


async def test_a_failed_connection_may_be_aborted_before_its_queue_pair_is_destroyed(rdma_server, transitions):
    await rdma_server.listen()
    client, server = await rdma_server.connect()
    client.transport.pause_reading()
    record = transitions.next_state

    def abort_once_failed(state, event):
        if event is ChannelEvent.SENDING_FAILED:
            # Before the thread can report that the queue pair is destroyed.
            asyncio.get_running_loop().call_soon(client.abort)
        return record(state, event)

    channel.next_state = abort_once_failed
    server.abort()
    await client.until_lost()
    await server.until_lost()
    assert transitions.take() - OPENED_AND_ENDED == {
        (ChannelState.OPEN, ChannelEvent.SENDING_FAILED),
        (ChannelState.FAILED, ChannelEvent.ENDED),
    }


async def test_a_connection_may_be_aborted_while_it_flushes(rdma_server, transitions):
    await rdma_server.listen(ring_bytes=4096)
    client, server = await rdma_server.connect()
    server.transport.pause_reading()
    client.write(numbered(100_000))
    client.close()
    client.abort()
    await client.until_lost()
    server.transport.resume_reading()
    await server.until_lost()
    assert {
        (ChannelState.OPEN, ChannelEvent.CLOSE_CALLED),
        (ChannelState.FLUSHING, ChannelEvent.ENDED),
    } <= transitions.take()


async def test_a_connection_may_be_aborted_before_its_goodbye_is_acknowledged(rdma_server, transitions):
    await rdma_server.listen()
    client, server = await rdma_server.connect()
    rdma_server.fabric.hold()
    client.close()
    await transitions.until(client.transport, ChannelState.LINGERING)
    client.abort()
    await client.until_lost()
    rdma_server.fabric.release()
    await server.until_lost()
    assert {
        (ChannelState.FLUSHING, ChannelEvent.GOODBYE_POSTED),
        (ChannelState.LINGERING, ChannelEvent.ENDED),
    } <= transitions.take()
