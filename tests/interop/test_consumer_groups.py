"""Consumer groups on Apache Kafka: together with Java, confluent-kafka and aiokafka, and with members that die."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from random import Random

import aiokafka
import confluent_kafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from aioproducer import Consumer, Producer
from aioproducer.admin import Admin
from aioproducer.errors import GroupIdNotFoundError
from tests.kafka import jars
from tests.kafka.cluster import KafkaCluster

PARTITIONS = 8
# Killed members are replaced after this time.
SESSION_MS = 6000
# Where no member is killed, and each record counts once: a member that the machine stalls must not lose its partitions.
LONG_SESSION_MS = 45_000
TIMEOUT = 120.0


def _member(servers: str, group_id: str, **options: object) -> Consumer:
    settings = {
        "bootstrap.servers": servers,
        "group.id": group_id,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": 500,
        "auto.commit.interval.ms": 500,
        "max.poll.interval.ms": 30_000,
        "metadata.max.age.ms": 1000,
    }
    return Consumer.from_config({**settings, **options})


class Application:
    """Processes the records of a member of ours one by one; ``seen`` is called with the value of each."""

    def __init__(self, consumer: Consumer, topic: str, seen: Callable[[int], object]) -> None:
        self.consumer = consumer
        self._topic = topic
        self._seen = seen
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        await self.consumer.start()
        self.consumer.subscribe(self._topic)
        async for record in self.consumer:
            self._seen(int(record.value))

    async def close(self) -> None:
        """Request the record after the last one, as a program does, then leave the group."""
        await self._stop()
        await self.consumer.poll()
        await self.consumer.close()

    async def kill(self) -> None:
        """End without a word to the group."""
        await self._stop()
        await self.consumer.close(0.0, group_membership_operation="remain_in_group")

    async def _stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.result()


async def _write(servers: str, topic: str, numbers: range) -> None:
    async with Producer(bootstrap_servers=servers) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
            await producer.drain()
        await producer.flush()


@contextmanager
def _confluent(servers: str, topic: str, group_id: str, seen: Callable[[int], object]) -> Iterator[None]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group_id,
            "partition.assignment.strategy": "range",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": LONG_SESSION_MS,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                seen(int(message.value()))

    thread = threading.Thread(target=poll, name="confluent-consumer")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(10)
        consumer.close()


@asynccontextmanager
async def _aiokafka(servers: str, topic: str, group_id: str, seen: Callable[[int], object]) -> AsyncIterator[None]:
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=group_id,
        auto_offset_reset="earliest",
        session_timeout_ms=LONG_SESSION_MS,
        heartbeat_interval_ms=500,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    await consumer.start()

    async def read() -> None:
        async for message in consumer:
            seen(int(message.value))

    reading = asyncio.ensure_future(read())
    try:
        yield
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        await consumer.stop()


@contextmanager
def _java(servers: str, topic: str, group_id: str, seen: Callable[[int], object]) -> Iterator[None]:
    command = [jars.java(), "-Xmx128m", *jars.SHORT_LIVED, "-cp", f"{jars.resolve(jars.TOOLS)}/*"]
    command += ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", servers]
    command += ["--topic", topic, "--group", group_id, "--from-beginning"]
    command += ["--command-property", f"session.timeout.ms={LONG_SESSION_MS}"]
    command += ["--command-property", "heartbeat.interval.ms=500"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    output = process.stdout

    def read() -> None:
        for line in output:
            seen(int(line))

    thread = threading.Thread(target=read, name="java-consumer")
    thread.start()
    try:
        yield
    finally:
        # SIGTERM: it commits and leaves the group.
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        thread.join(10)
        output.close()


async def _shared(servers: str, group_id: str, count: int, *ours: Consumer) -> None:
    """Wait until ``count`` members share the partitions, and ours have theirs."""
    async with asyncio.timeout(TIMEOUT), Admin(bootstrap_servers=servers) as admin:
        while True:
            await asyncio.sleep(0.1)
            try:
                (described,) = await admin.describe_groups([group_id])
            except GroupIdNotFoundError:
                continue
            if described.state != "Stable" or len(described.members) != count:
                continue
            owned = {member.member_id: member.assignment or frozenset() for member in described.members}
            assert sorted(each.partition for part in owned.values() for each in part) == list(range(PARTITIONS))
            assert {len(part) for part in owned.values()} <= {PARTITIONS // count, -(-PARTITIONS // count)}
            if all(owned.get(each.group_metadata().member_id) == each.assignment() for each in ours):
                assert described.assignor == "range"
                return


async def _counted(seen: Counter[int], count: int) -> None:
    async with asyncio.timeout(TIMEOUT):
        while len(seen) < count:  # noqa: ASYNC110 - threads count too
            await asyncio.sleep(0.05)


async def test_members_of_four_clients_read_every_record_once(one_node: KafkaCluster) -> None:
    topic = group_id = f"mixed-{uuid.uuid4().hex[:8]}"
    await asyncio.to_thread(one_node.create_topic, topic, PARTITIONS)
    servers, seen = one_node.bootstrap_servers, Counter[int]()
    lock = threading.Lock()

    def note(value: int) -> None:
        with lock:
            seen[value] += 1

    settings = {"partition.assignment.strategy": "range", "session.timeout.ms": LONG_SESSION_MS}
    first, second = (_member(servers, group_id, **settings) for _ in range(2))
    one = Application(first, topic, note)
    await _shared(servers, group_id, 1, first)
    with _confluent(servers, topic, group_id, note), _java(servers, topic, group_id, note):
        async with _aiokafka(servers, topic, group_id, note):
            two = Application(second, topic, note)
            await _shared(servers, group_id, 5, first, second)
            await _write(servers, topic, range(2000))
            await _counted(seen, 2000)
            await one.close()
            await _shared(servers, group_id, 4, second)
            await _write(servers, topic, range(2000, 4000))
            await _counted(seen, 4000)
        await _shared(servers, group_id, 3, second)
        await _write(servers, topic, range(4000, 5000))
        await _counted(seen, 5000)
    await _shared(servers, group_id, 1, second)
    await _write(servers, topic, range(5000, 6000))
    await _counted(seen, 6000)
    await two.close()
    assert seen == Counter(range(6000))


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_members_that_join_leave_and_die_skip_no_record(one_node: KafkaCluster, assignor: str) -> None:
    await _turbulence(one_node, assignor, members=6, events=10, records=6000)


@pytest.mark.soak
@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_twenty_members_that_join_leave_and_die_skip_no_record(one_node: KafkaCluster, assignor: str) -> None:
    await _turbulence(one_node, assignor, members=20, events=80, records=100_000)


async def _turbulence(cluster: KafkaCluster, assignor: str, *, members: int, events: int, records: int) -> None:
    """Let members come and go while records are written: each record is processed, in order the first time."""
    topic = group_id = f"turbulence-{uuid.uuid4().hex[:8]}"
    await asyncio.to_thread(cluster.create_topic, topic, PARTITIONS)
    servers, seen, random = cluster.bootstrap_servers, Counter[int](), Random(1)
    # The next value of each partition that has not been processed yet.
    following = list(range(PARTITIONS))

    def note(value: int) -> None:
        seen[value] += 1
        partition = value % PARTITIONS
        assert value <= following[partition], "a record was skipped"
        following[partition] = max(following[partition], value + PARTITIONS)

    def join() -> Application:
        settings = {"partition.assignment.strategy": assignor, "session.timeout.ms": SESSION_MS}
        return Application(_member(servers, group_id, **settings), topic, note)

    applications = [join() for _ in range(members // 2)]
    writing = asyncio.ensure_future(_write_slowly(servers, topic, records, events))
    for _ in range(events):
        await asyncio.sleep(random.uniform(0.1, 0.6))
        what = random.choice(["join", "join", "close", "kill"])
        if what == "join" and len(applications) < members:
            applications.append(join())
        elif len(applications) > 1:
            leaving = applications.pop(random.randrange(len(applications)))
            await (leaving.kill() if what == "kill" else leaving.close())
    await writing
    await _counted(seen, records)
    for application in applications:
        await application.close()
    assert sorted(seen) == list(range(records))


async def _write_slowly(servers: str, topic: str, records: int, parts: int) -> None:
    bounds = [records * part // parts for part in range(parts + 1)]
    for first, end in itertools.pairwise(bounds):
        await _write(servers, topic, range(first, end))
        await asyncio.sleep(0.2)
