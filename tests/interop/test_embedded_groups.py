"""Consumer groups of the embedded broker, by the consumers of confluent-kafka, aiokafka and kafka-python."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition

from aioproducer.broker import BrokerCluster
from aioproducer.wire.record import SimpleRecord
from aioproducer.wire.record_batch import encode_batch
from tests.kafka import jars
from tests.kafka.cluster import free_ports

pytestmark = pytest.mark.interop

TOPIC = "orders"
PARTITIONS = 4
DEADLINE = 30.0
PROPERTIES = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 3}


class Member(Protocol):
    """A consumer in a group, with calls that block for a short time."""

    def poll(self) -> list[bytes]:
        """Return new records after a short wait; this also keeps the member in the group."""

    def assignment(self) -> set[int]: ...

    def commit(self) -> None: ...

    def close(self) -> None: ...


class ConfluentMember:
    """librdkafka's consumer."""

    def __init__(
        self, bootstrap_servers: str, group_id: str, instance_id: str | None = None, *, session_timeout_ms: int = 6000
    ) -> None:
        settings: dict[str, str | int | bool] = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": 200,
        }
        if instance_id is not None:
            settings["group.instance.id"] = instance_id
        self._consumer = confluent_kafka.Consumer(settings)
        self._consumer.subscribe([TOPIC])

    def poll(self) -> list[bytes]:
        messages = self._consumer.consume(100, timeout=0.1)
        errors = [message.error() for message in messages if message.error() is not None]
        assert not errors
        return [message.value() or b"" for message in messages]

    def assignment(self) -> set[int]:
        return {assigned.partition for assigned in self._consumer.assignment()}

    def commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException as error:
            # Another member has read everything.
            if error.args[0].code() != confluent_kafka.KafkaError._NO_OFFSET:
                raise

    def close(self) -> None:
        self._consumer.close()


class PythonMember:
    """kafka-python's consumer."""

    def __init__(self, bootstrap_servers: str, group_id: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            TOPIC,
            bootstrap_servers=bootstrap_servers.split(","),
            group_id=group_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            metadata_max_age_ms=1000,
        )
        # If it is elected leader before it has the topic's metadata, it assigns nothing and never joins again.
        assert self._consumer.partitions_for_topic(TOPIC) == set(range(PARTITIONS))

    def poll(self) -> list[bytes]:
        polled = self._consumer.poll(timeout_ms=100)
        return [record.value for records in polled.values() for record in records]

    def assignment(self) -> set[int]:
        return {assigned.partition for assigned in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit()

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class AioMember:
    """aiokafka's consumer, on a separate loop."""

    def __init__(self, bootstrap_servers: str, group_id: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start(bootstrap_servers, group_id))

    async def _start(self, bootstrap_servers: str, group_id: str) -> None:
        self._consumer = AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=bootstrap_servers,
            group_id=group_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            metadata_max_age_ms=1000,
        )
        await self._consumer.start()

    def poll(self) -> list[bytes]:
        polled = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=100))
        return [record.value for records in polled.values() for record in records]

    def assignment(self) -> set[int]:
        return {assigned.partition for assigned in self._consumer.assignment()}

    def commit(self) -> None:
        self._loop.run_until_complete(self._consumer.commit())

    def committed(self, partition: int) -> int | None:
        offset: int | None = self._loop.run_until_complete(
            self._consumer.committed(AioTopicPartition(TOPIC, partition))
        )
        return offset

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


MEMBERS: dict[str, Callable[[str, str], Member]] = {
    "confluent-kafka": ConfluentMember,
    "kafka-python": PythonMember,
    "aiokafka": AioMember,
}


class Running:
    """A member that a thread polls continuously, as an application does."""

    def __init__(self, make: Callable[[], Member]) -> None:
        self._make = make
        self._ending = threading.Event()
        self._commit = threading.Event()
        self.values: list[bytes] = []
        self.assigned: set[int] = set()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            member = self._make()
            try:
                while not self._ending.is_set():
                    self.values.extend(member.poll())
                    self.assigned = member.assignment()
                    if self._commit.is_set():
                        member.commit()
                        self._commit.clear()
            finally:
                member.close()
        except BaseException as error:
            self.error = error

    @property
    def is_committing(self) -> bool:
        return self._commit.is_set()

    def commit(self) -> None:
        """Commit the polled records; done when ``is_committing`` is false again."""
        self._commit.set()

    def end(self) -> None:
        """Leave the group and end."""
        self._ending.set()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()


@contextmanager
def running(*made: Callable[[], Member]) -> Iterator[list[Running]]:
    """Run members that end with the block, which raises their errors."""
    with ExitStack() as stack:
        members = []
        for make in made:
            members.append(Running(make))
            stack.callback(members[-1].end)
        yield members
    for member in members:
        if member.error is not None:
            raise member.error


async def until(condition: Callable[[], bool], members: list[Running]) -> None:
    """Wait for a condition that members in other threads bring about."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        for member in members:
            if member.error is not None:
                raise member.error
        assert time.monotonic() < deadline, [(member.assigned, len(member.values)) for member in members]
        await asyncio.sleep(0.02)


def write(cluster: BrokerCluster, values: list[bytes]) -> None:
    """Produce ``values`` to the topic's partitions in rotation."""
    for index in range(PARTITIONS):
        mine = values[index::PARTITIONS]
        leader = cluster.image.partition(TOPIC, index).leader
        partition = cluster.brokers[leader].replicas.leader(TOPIC, index)
        batch = b"".join(encode_batch([SimpleRecord(1, None, value) for value in mine]))
        partition.append(bytearray(batch), acks=1)


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


async def ended(block: ExitStack) -> None:
    """Leave ``block``; its members need this loop to leave the group."""
    await asyncio.to_thread(block.close)


@pytest.mark.parametrize("client", MEMBERS)
async def test_two_members_share_partitions_and_one_takes_over(client: str) -> None:
    async with BrokerCluster(1, properties=PROPERTIES) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        write(cluster, numbered(0, 40))
        servers = cluster.bootstrap_servers
        block = ExitStack()
        try:
            first, second = members = block.enter_context(
                running(*[lambda: MEMBERS[client](servers, "readers") for _ in range(2)])
            )
            await until(lambda: len(first.assigned) == len(second.assigned) == PARTITIONS // 2, members)
            await until(lambda: {*first.values, *second.values} == {*numbered(0, 40)}, members)
            group = cluster.brokers[1].groups.group("readers")
            assert group is not None
            await until(lambda: len(group.members) == 2, members)
            for member in members:
                member.commit()
            await until(lambda: not first.is_committing and not second.is_committing, members)

            generation = group.generation_id
            await asyncio.to_thread(second.end)
            await until(lambda: len(first.assigned) == PARTITIONS, members)
            assert group.generation_id > generation
            write(cluster, numbered(40, 80))
            await until(lambda: {*numbered(40, 80)} <= {*first.values}, members)
            first.commit()
            await until(lambda: not first.is_committing, members)
        finally:
            await ended(block)
        assert not group.members

        # A later member continues where the others have stopped.
        write(cluster, numbered(80, 120))
        block = ExitStack()
        try:
            (third,) = members = block.enter_context(running(lambda: MEMBERS[client](servers, "readers")))
            await until(lambda: {*third.values} >= {*numbered(80, 120)}, members)
            assert sorted(third.values) == sorted(numbered(80, 120))
        finally:
            await ended(block)


@pytest.mark.parametrize("client", MEMBERS)
async def test_committed_offsets_survive_a_restart(client: str, tmp_path: Path) -> None:
    async with BrokerCluster(1, properties=PROPERTIES, data_dir=tmp_path, ports=free_ports(1)) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        write(cluster, numbered(0, 40))
        for start in (0, 40, 80):
            block = ExitStack()
            try:
                servers = cluster.bootstrap_servers
                (member,) = members = block.enter_context(running(lambda at=servers: MEMBERS[client](at, "readers")))
                await until(lambda seen=member, low=start: {*seen.values} >= {*numbered(low, low + 40)}, members)
                assert sorted(member.values) == sorted(numbered(start, start + 40))
                member.commit()
                await until(lambda seen=member: not seen.is_committing, members)
            finally:
                await ended(block)
            if start == 40:
                await cluster.kill(1)
            else:
                await cluster.brokers[1].stop()
            await cluster.restart(1)
            write(cluster, numbered(start + 40, start + 80))


async def test_a_static_member_returns_without_a_rebalance() -> None:
    async with BrokerCluster(1, properties=PROPERTIES) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        servers = cluster.bootstrap_servers
        session = {"session_timeout_ms": 45_000}
        block, restarted = ExitStack(), ExitStack()
        try:
            (first,) = block.enter_context(running(lambda: ConfluentMember(servers, "static", "one", **session)))
            (second,) = restarted.enter_context(running(lambda: ConfluentMember(servers, "static", "two", **session)))
            await until(lambda: len(first.assigned) == len(second.assigned) == 2, [first, second])
            group = cluster.brokers[1].groups.group("static")
            assert group is not None
            generation, assigned = group.generation_id, second.assigned
            await ended(restarted)
            (again,) = restarted.enter_context(running(lambda: ConfluentMember(servers, "static", "two", **session)))
            await until(lambda: again.assigned == assigned, [first, again])
            assert group.generation_id == generation
            assert len(group.members) == 2
        finally:
            await ended(restarted)
            await ended(block)


async def test_a_group_continues_when_its_coordinator_is_killed() -> None:
    properties = {**PROPERTIES, "offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 3}
    async with BrokerCluster(3, properties=properties) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 3)
        write(cluster, numbered(0, 40))
        servers = cluster.bootstrap_servers
        block = ExitStack()
        try:
            first, second = members = block.enter_context(
                running(*[lambda: ConfluentMember(servers, "readers") for _ in range(2)])
            )
            await until(lambda: len(first.assigned) == len(second.assigned) == 2, members)
            await until(lambda: {*first.values, *second.values} == {*numbered(0, 40)}, members)
            for member in members:
                member.commit()
            await until(lambda: not first.is_committing and not second.is_committing, members)
            coordinator = cluster.image.partition("__consumer_offsets", 0).leader
            await cluster.kill(coordinator)
            assert cluster.image.partition("__consumer_offsets", 0).leader not in (-1, coordinator)
            write(cluster, numbered(40, 80))
            await until(lambda: {*first.values, *second.values} == {*numbered(0, 80)}, members)
            for member in members:
                member.commit()
            await until(lambda: not first.is_committing and not second.is_committing, members)
        finally:
            await ended(block)


def decoded_by_kafka(data_dir: Path) -> list[dict[str, Any]]:
    """Return the values in the log of __consumer_offsets as DumpLogSegments reads them."""
    (segment,) = data_dir.rglob("__consumer_offsets-0/*.log")
    tools = jars.resolve(jars.TOOLS)
    command = [jars.java(), *jars.SHORT_LIVED, "-cp", f"{tools}/*", "org.apache.kafka.tools.DumpLogSegments"]
    dumped = subprocess.run(
        [*command, "--offsets-decoder", "--deep-iteration", "--print-data-log", "--files", str(segment)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "isvalid: false" not in dumped.stdout
    return [json.loads(text) for text in re.findall(r"payload: (\{.*\})$", dumped.stdout, re.MULTILINE)]


async def test_kafka_reads_the_records_of_groups(tmp_path: Path) -> None:
    properties = {**PROPERTIES, "offsets.topic.num.partitions": 1}
    async with BrokerCluster(1, properties=properties, data_dir=tmp_path) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        write(cluster, numbered(0, 40))
        servers = cluster.bootstrap_servers
        block = ExitStack()
        try:
            (member,) = members = block.enter_context(running(lambda: ConfluentMember(servers, "readers", "one")))
            await until(lambda: len(member.values) == 40, members)
            member.commit()
            await until(lambda: not member.is_committing, members)
        finally:
            await ended(block)
    payloads = await asyncio.to_thread(decoded_by_kafka, tmp_path)
    generations = [payload["data"] for payload in payloads if "generation" in payload["data"]]
    assert generations[-1]["protocolType"] == "consumer"
    assert [kept["groupInstanceId"] for kept in generations[-1]["members"]] == ["one"]
    offsets = [payload for payload in payloads if "commitTimestamp" in payload["data"]]
    assert [payload["version"] for payload in offsets] == ["4"] * PARTITIONS
    assert [payload["data"]["offset"] for payload in offsets] == [10] * PARTITIONS
