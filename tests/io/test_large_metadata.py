"""Metadata of thousands of partitions is applied in steps, with other callbacks in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from aioproducer.errors import ProducerClosedError, ProtocolError
from aioproducer.io import cluster as cluster_module
from aioproducer.io.sender import FAILURES_REPORTED_PER_PASS
from aioproducer.protocol import ApiKey
from aioproducer.protocol.parts import ResponseInParts
from tests.io.recording import Recording
from tests.simulation import run

TOPICS = [f"topic-{number}" for number in range(40)]


@pytest.fixture(autouse=True)
def _a_slice_is_one_step(monkeypatch):
    """A clock with which every step uses its whole slice."""
    monkeypatch.setattr(cluster_module, "MAX_SLICE_SECONDS", 0.0)


class Ticker:
    """A hook that does something in each iteration of the loop in which a metadata response is being applied."""

    def __init__(self, tick):
        self._tick = tick
        self.producer = None
        self.turns = 0

    def on_response_read(self, node, api_key, version, correlation_id, size, latency_ms):
        if api_key == ApiKey.METADATA and self.producer is not None:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self):
        if self.producer._sender.cluster._apply_steps is not None:
            self.turns += 1
            self._tick()
            asyncio.get_running_loop().call_soon(self._turn)


@asynccontextmanager
async def ticking(world, tick):
    for name in TOPICS:
        world.cluster.create_topic(name, 8)
    ticker = Ticker(tick)
    async with world.producer(hooks=[ticker]) as producer:
        await producer.wait_ready(1)
        ticker.producer = producer
        yield producer, ticker


def test_other_callbacks_run_while_a_response_is_applied():
    async def scenario(world):
        async with ticking(world, lambda: None) as (producer, ticker):
            deliveries = [producer.send(name, b"x", partition=7) for name in TOPICS]
            assert {(await delivery).partition for delivery in deliveries} == {7}
            assert ticker.turns >= 40 * 8 / (16 + 7)

    run(scenario)


def test_topics_become_known_one_step_after_another():
    async def scenario(world):
        known = []

        def tick():
            metadata = producer._parts.metadata
            known.append(sum(metadata.topic(name) is not None for name in TOPICS))

        async with ticking(world, tick) as (producer, _):
            for name in TOPICS:
                producer.send(name, b"x")
            await producer.flush()
            assert known == sorted(known)
            assert len(set(known)) > 10

    run(scenario)


def test_the_partitions_of_a_topic_get_their_leaders_over_several_passes():
    """The 20,000 partitions of a topic once took twenty milliseconds of one pass."""

    async def scenario(world):
        led = []

        def tick():
            topic = producer._accumulator.topics.get("big")
            led.append(0 if topic is None else len(topic.leaders) - topic.leaders.count(None))

        count = 5 * cluster_module.PARTITIONS_PER_CLOCK_CHECK - 1
        world.cluster.create_topic("big", count)
        async with ticking(world, tick) as (producer, _):
            deliveries = [producer.send("big", b"x", partition=partition) for partition in range(count)]
            assert [metadata.partition for metadata in await asyncio.gather(*deliveries)] == list(range(count))
            assert max(after - before for before, after in pairwise(led)) == cluster_module.PARTITIONS_PER_CLOCK_CHECK

    run(scenario)


def test_changes_of_an_abandoned_response_still_reach_the_accumulator():
    """The accumulator once missed a topic that metadata knew, and its records waited until they expired."""

    async def scenario(world):
        world.cluster.create_topic("big", 5 * cluster_module.PARTITIONS_PER_CLOCK_CHECK)
        begun = asyncio.Event()

        def tick():
            if "big" in producer._accumulator.topics and None in producer._accumulator.topics["big"].leaders:
                begun.set()

        async with ticking(world, tick) as (producer, _):
            delivery = producer.send("big", b"x")
            await begun.wait()
            cluster = producer._sender.cluster
            cluster.apply(producer._parts.metadata.rebootstrap(world.loop.time()), world.loop.time())
            # The next response arrives before another step of this one.
            cluster._apply_steps, unfinished = iter(()), cluster._apply_steps
            await asyncio.sleep(0)
            cluster._apply_steps = unfinished
            assert (await delivery).topic == "big"

    run(scenario)


def test_closing_while_a_response_is_applied_leaves_no_state():
    async def scenario(world):
        closing = []
        async with ticking(world, lambda: closing.append(asyncio.ensure_future(producer.close(0)))) as (producer, _):
            deliveries = [producer.send(name, b"x") for name in TOPICS]
            failures = await asyncio.gather(*deliveries, return_exceptions=True)
            await asyncio.gather(*closing)
            assert producer._sender.cluster._apply_steps is None
            assert any(isinstance(failure, ProducerClosedError) for failure in failures)

    run(scenario)


def test_a_response_malformed_after_its_start_ends_the_connection_and_is_requested_again(caplog, monkeypatch):
    async def scenario(world):
        world.cluster.create_topic("clicks", 40)
        hooks = Recording()
        async with world.producer(hooks=[hooks]) as producer:
            await producer.wait_ready(1)
            read_elements = ResponseInParts.elements

            def cut_off(parts):
                monkeypatch.setattr(ResponseInParts, "elements", read_elements)
                yield None
                raise ProtocolError("cut off")

            monkeypatch.setattr(ResponseInParts, "elements", cut_off)
            await producer.send("clicks", b"x")
        assert sum(error is not None for _, error in hooks.of("on_disconnect")) == 1
        # One of the responses had no news.
        assert [topics for _, topics in hooks.of("on_metadata_updated")] == [[], ["clicks"]]

    run(scenario)
    assert "sent a malformed response to METADATA version 13: cut off" in caplog.text


def test_applying_a_response_visits_only_its_topics():
    """Each response once visited every topic with waiting records: 100,000 topics, 500 times an update."""

    async def scenario(world):
        world.cluster.create_topic("clicks")
        backoff = {"retry_backoff_ms": 20_000, "retry_backoff_max_ms": 20_000}
        async with world.producer(max_block_ms=30_000, **backoff) as producer:
            waiting = [producer.send(f"missing-{number}", b"v") for number in range(1000)]
            await asyncio.sleep(5)
            before = world.loop.turns
            await producer.send("clicks", b"v")
            assert not any(delivery.done() for delivery in waiting)
            return world.loop.turns - before

    turns, _ = run(scenario)
    assert turns < 100


@pytest.mark.parametrize("closed", [False, True])
def test_records_for_many_unknown_topics_fail_over_many_passes(closed):
    """All were once failed in one pass, which took seconds for 100,000 topics."""
    reports = Counter()

    async def scenario(world):
        world._note_failure = lambda *failure: reports.update([world.loop.turns])
        async with world.producer(max_block_ms=5000) as producer:
            waiting = [producer.send(f"missing-{number}", b"v") for number in range(2000)]
            if closed:
                await producer.close(1)
            else:
                await asyncio.sleep(7)
            assert all(delivery.done() for delivery in waiting)
            assert closed or reports.total() == 2000

    run(scenario)
    assert reports.total() == 2000
    # While the producer closes, passes of the sender run in between.
    assert max(reports.values()) <= FAILURES_REPORTED_PER_PASS * (2 if closed else 1)


def test_failures_left_when_the_producer_closes_are_reported_over_many_passes():
    reports = Counter()

    async def scenario(world):
        world._note_failure = lambda *failure: reports.update([world.loop.turns])
        async with world.producer(max_block_ms=5000) as producer:
            waiting = [producer.send(f"missing-{number}", b"v") for number in range(500)]
            await asyncio.gather(*waiting, return_exceptions=True)
            assert reports.total() < 500

    run(scenario)
    assert reports.total() == 500
    assert max(reports.values()) <= 2 * FAILURES_REPORTED_PER_PASS
