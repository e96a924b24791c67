"""Whole producers against a faulty cluster: every guarantee holds for every seed.

``AIOPRODUCER_SEEDS=1000-2000`` plays other seeds, and as many as wanted; a failure names its seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from aioproducer import Producer
from aioproducer.errors import BufferExhaustedError, KafkaError
from aioproducer.protocol import ApiKey
from tests.simulation import Fault, World, run
from tests.simulation.cluster import UNKNOWN_TOPIC_OR_PARTITION

SECONDS_OF_TROUBLE = 3.0


def seeds() -> range:
    first, _, last = os.environ.get("AIOPRODUCER_SEEDS", "0-23").partition("-")
    return range(int(first), int(last or first) + 1)


@dataclass
class Sent:
    """A record that was accepted."""

    producer: int
    number: int
    value: bytes
    delivery: asyncio.Future[Any]
    sent_at: float
    ended_at: float | None = None


@dataclass
class Story:
    """What one seed is about."""

    config: dict[str, Any]
    topics: dict[str, int]
    producers: int
    sent: list[Sent] = field(default_factory=list)

    @property
    def idempotent(self) -> bool:
        return bool(self.config["enable_idempotence"])

    @property
    def longest(self) -> float:
        """Seconds within which every record has its outcome."""
        return float(self.config["max_block_ms"] + self.config["delivery_timeout_ms"]) / 1000 + 0.1


def story_of(random: Random) -> Story:
    acks = random.choice(["all", "all", "all", "1", "0"])
    request_timeout_ms = random.choice([300, 1000, 3000])
    linger_ms = random.choice([0, 0, 5, 50])
    return Story(
        config={
            "acks": acks,
            "enable_idempotence": acks == "all" and random.random() < 0.75,
            "max_in_flight_requests_per_connection": random.choice([1, 2, 5, 5]),
            "compression_type": random.choice(["none", "none", "gzip", "lz4", "zstd"]),
            "linger_ms": linger_ms,
            "batch_size": random.choice([0, 200, 1000, 16384]),
            "buffer_memory": random.choice([4096, 65536, 1 << 20]),
            "request_timeout_ms": request_timeout_ms,
            "delivery_timeout_ms": linger_ms + request_timeout_ms + random.choice([0, 1000, 8000]),
            "max_block_ms": random.choice([200, 2000, 20_000]),
            "retries": random.choice([1, 2, 2**31 - 1, 2**31 - 1]),
            "connections_max_idle_ms": random.choice([100, 540_000]),
            "reconnect_backoff_ms": random.choice([0, 50]),
            "socket_connection_setup_timeout_ms": 500,
            "metadata_max_age_ms": random.choice([500, 300_000]),
        },
        topics={f"topic{index}": random.randint(1, 5) for index in range(random.randint(1, 3))},
        producers=random.choice([1, 1, 2]),
    )


def random_fault(random: Random) -> Fault:
    api = random.choice([ApiKey.PRODUCE] * 6 + [ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID, None])
    fault = Fault(api=api, times=random.choice([1, 1, 2, 10]))
    match random.randrange(10):
        case 0 | 9:
            fault.error = random.choice([7, 19, 20, 2, 56, 6] if api == ApiKey.PRODUCE else [7, 14])
            # Codes returned after the append, and codes that may be.
            fault.appended = fault.error in (7, 20) or (fault.error in (6, 56) and random.random() < 0.5)
            if fault.appended:
                # Some batches are to fail by it.
                fault.times = 30
            if api not in (ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID):
                fault.error, fault.delay = 0, 0.3
        case 1:
            fault.delay = random.uniform(0, 1.5)
        case 2:
            fault.answer_delay = random.uniform(0, 1.5)
        case 3:
            fault.disconnect = random.choice(["before", "after", "half"])
        case 4:
            fault.answer = random.choice(["silence", "wrong id", "garbage", "oversized"])
        case 5:
            fault.throttle_time_ms = random.choice([10, 500])
        case 6 if api == ApiKey.PRODUCE:
            fault.answer = "omit"
        case 7:
            # Looked at long after the client has lost its patience.
            fault.delay, fault.times = random.uniform(1, 5), 1
        case _:
            fault.delay, fault.disconnect = random.uniform(0, 0.5), "after"
    return fault


async def trouble(world: World, random: Random) -> None:
    """Let things go wrong for a while, then put everything in order."""
    cluster = world.cluster
    ends = world.loop.time() + SECONDS_OF_TROUBLE
    while world.loop.time() < ends:
        await asyncio.sleep(random.expovariate(8))
        node_id = random.choice(list(cluster.nodes))
        match random.randrange(9):
            case 0 | 1 | 2:
                cluster.faults.append(random_fault(random))
            case 3 | 4:
                name = random.choice(list(cluster.topics))
                partition = random.randrange(len(cluster.topics[name].partitions))
                cluster.move_leader(name, partition, node_id)
            case 5:
                world.disconnect(node_id)
            case 6:
                if cluster.nodes[node_id].up:
                    world.stop_node(node_id)
                else:
                    world.start_node(node_id)
            case 7:
                world.hanging ^= {cluster.nodes[node_id].host}
            case 8:
                # Brokers do not know a topic for a while, which was not deleted all the same.
                name = random.choice(list(cluster.topics))
                if cluster.topic_errors.pop(name, 0) == 0:
                    cluster.topic_errors[name] = UNKNOWN_TOPIC_OR_PARTITION
    cluster.faults.clear()
    cluster.topic_errors.clear()
    world.hanging.clear()
    for node_id, node in cluster.nodes.items():
        if not node.up:
            world.start_node(node_id)


async def send_records(world: World, index: int, producer: Producer, story: Story, random: Random) -> None:
    ends = world.loop.time() + SECONDS_OF_TROUBLE + 1
    delivery: asyncio.Future[Any] | None = None
    while world.loop.time() < ends:
        name = random.choice(list(story.topics))
        for _ in range(random.choice([1, 1, 3, 30])):
            number = len(story.sent)
            value = b"%d-" % number + b"x" * random.choice([1, 20, 300])
            partition = random.choice([None, random.randrange(story.topics[name])])
            try:
                delivery = producer.send(
                    name, value, random.choice([None, b"key%d" % (number % 5)]), partition=partition
                )
            except BufferExhaustedError:
                break
            sent = Sent(index, number, value, delivery, world.loop.time())
            delivery.add_done_callback(lambda _, sent=sent: setattr(sent, "ended_at", world.loop.time()))
            story.sent.append(sent)
        match random.randrange(12):
            case 0 if delivery is not None:
                await asyncio.wait([delivery])
            case 1 if delivery is not None:
                delivery.cancel()
            case 2:
                await producer.flush()
            case 3:
                await producer.drain()
            case _:
                await asyncio.sleep(random.expovariate(10))


async def play(world: World) -> Story:
    random = world.random
    story = story_of(random)
    world.latency = lambda: random.expovariate(200)
    world.receive_window = random.choice([None, None, 50, 1000])
    for name, partitions in story.topics.items():
        world.cluster.create_topic(name, partitions)
    bootstrap = ",".join(f"{node.host}:9092" for node in world.cluster.nodes.values())
    world.cluster.hints = random.random() < 0.7
    producers = [world.producer(bootstrap_servers=bootstrap, **story.config) for _ in range(story.producers)]
    for producer in producers:
        await producer.start()
    troubled = asyncio.ensure_future(trouble(world, random))
    await asyncio.gather(
        *(
            send_records(world, index, producer, story, random)
            for index, producer in enumerate(producers)
            for _ in range(random.randint(1, 3))
        )
    )
    await troubled
    for producer in producers:
        began = world.loop.time()
        await producer.close()
        assert world.loop.time() - began <= story.longest + 2, "close took too long"
        assert producer._parts is not None
        pool = producer._parts.accumulator.pool
        assert pool.available_memory == pool.total_memory, "memory is missing"
    # Requests in progress at a broker may still be written.
    await asyncio.sleep(10)
    return story


def check(story: Story, world: World) -> None:
    logs = {
        (name, index): partition.values
        for name, topic in world.cluster.topics.items()
        for index, partition in enumerate(topic.partitions)
    }
    written = Counter(value for log in logs.values() for value in log)
    accepted = {sent.value: sent for sent in story.sent}
    assert set(written) <= set(accepted), "something else is in a log"
    for sent in story.sent:
        assert sent.delivery.done(), f"{sent.value!r} has no outcome"
        assert sent.ended_at is not None
        assert sent.ended_at - sent.sent_at <= story.longest, f"{sent.value!r} ended late"
        if story.idempotent:
            assert written[sent.value] <= 1, f"{sent.value!r} was written {written[sent.value]} times"
        if sent.delivery.cancelled():
            continue
        error = sent.delivery.exception()
        if error is not None:
            assert isinstance(error, KafkaError)
            if not error.may_have_been_written:
                assert not written[sent.value], f"{sent.value!r} is in a log, and failed as if it were not: {error!r}"
            continue
        metadata = sent.delivery.result()
        log = logs[metadata.topic, metadata.partition]
        if story.config["acks"] != "0":
            assert sent.value in log, f"{sent.value!r} was acked and is lost"
        if metadata.offset is not None:
            assert log[metadata.offset] == sent.value, f"offset {metadata.offset} of {sent.value!r} is wrong"
    if story.config["acks"] == "0":
        # Without responses a request to a new leader may overtake an earlier one.
        return
    for where, log in logs.items():
        # Without idempotence retried records may be stored twice, and failed ones at any time.
        certain = [value for value in dict.fromkeys(log) if story.idempotent or _acked(accepted[value])]
        for producer in range(story.producers):
            numbers = [accepted[value].number for value in certain if accepted[value].producer == producer]
            assert numbers == sorted(numbers), f"{where} is out of order: {_disorder(numbers)}"


def _acked(sent: Sent) -> bool:
    return not sent.delivery.cancelled() and sent.delivery.exception() is None


def _disorder(numbers: list[int]) -> list[tuple[int, int]]:
    return [pair for pair in itertools.pairwise(numbers) if pair[0] > pair[1]]


def play_seed(seed: int) -> tuple[Story, World]:
    shape = Random(seed)
    return run(
        play,
        seed=seed,
        nodes=shape.randint(1, 4),
        topic_ids=shape.random() < 0.7,
        send_buffer_bytes=shape.choice([0, 0, 1000]),
    )


@pytest.mark.parametrize("seed", seeds())
def test_every_guarantee_holds_for_a_seed(seed: int) -> None:
    story, world = play_seed(seed)
    check(story, world)


def test_a_wrong_claim_about_a_failed_record_in_a_log_is_detected() -> None:
    """This tests the check of every seed: it accepts a correct claim and detects a wrong one."""
    answers: Counter[bool] = Counter()
    for seed in range(100):
        story, world = play_seed(seed)
        logs = [partition.values for topic in world.cluster.topics.values() for partition in topic.partitions]
        failed = [sent for sent in story.sent if not sent.delivery.cancelled() and sent.delivery.exception()]
        answers.update(sent.delivery.exception().may_have_been_written for sent in failed)  # type: ignore[union-attr]
        written = [sent for sent in failed if any(sent.value in log for log in logs)]
        if written and len(answers) == 2:
            break
    else:
        raise AssertionError(f"no record failed and is in a log: {answers}")
    check(story, world)
    error = written[0].delivery.exception()
    assert isinstance(error, KafkaError)
    wrong: asyncio.Future[Any] = world.loop.create_future()
    wrong.set_exception(error.of_record(may_have_been_written=False))
    written[0].delivery = wrong
    with pytest.raises(AssertionError, match="is in a log, and failed as if it were not"):
        check(story, world)


def fingerprint(seed: int) -> str:
    _, world = play_seed(seed)
    lines = [*map(str, world.journal), *map(str, world.attempts), str(world.loop.turns)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_a_seed_replays_exactly() -> None:
    """This holds in this process, and in one with another hash order of sets."""
    root = Path(__file__).parent.parent.parent
    script = "from tests.simulation.test_seeds import fingerprint; print(fingerprint(7))"
    other = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert other.stdout.strip() == fingerprint(7)
