"""One group of our members, confluent-kafka, aiokafka and Java on Apache Kafka, which all know the range assignor."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from confluent_kafka import Consumer

from aioproducer.core.membership.states import STABLE
from aioproducer.core.membership.subscription import decode_assignment
from aioproducer.protocol.messages.groups import DescribedGroup, DescribeGroupsRequest
from tests.io.group_application import Application
from tests.kafka import jars
from tests.kafka.cluster import KafkaCluster

PARTITIONS = 8
SESSION_MS = 6000


@contextmanager
def _confluent(servers: str, topic: str, group_id: str) -> Iterator[None]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group_id,
            "partition.assignment.strategy": "range",
            "session.timeout.ms": SESSION_MS,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.is_set():
            consumer.poll(0.05)

    thread = threading.Thread(target=poll, name="confluent-consumer")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(10)
        consumer.close()


@asynccontextmanager
async def _aiokafka(servers: str, topic: str, group_id: str) -> AsyncIterator[None]:
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=group_id,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=500,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    await consumer.start()
    try:
        yield
    finally:
        await consumer.stop()


@contextmanager
def _java(servers: str, topic: str, group_id: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [jars.java(), "-Xmx128m", *jars.SHORT_LIVED, "-cp", f"{jars.resolve(jars.TOOLS)}/*"]
    command += ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", servers]
    command += ["--topic", topic, "--group", group_id]
    command += ["--command-property", f"session.timeout.ms={SESSION_MS}"]
    command += ["--command-property", "heartbeat.interval.ms=500"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


async def _described(application: Application, group_id: str) -> DescribedGroup:
    client, coordinator = application.member._client, application.member.membership.coordinator
    response = await client.request(DescribeGroupsRequest(groups=[group_id]), node_id=coordinator, timeout=10)
    return response.groups[0]


async def _shared(count: int, group_id: str, *applications: Application) -> None:
    """Wait until the group is stable with its members, and each partition has one owner, as seen by our members."""
    async with asyncio.timeout(60):
        while True:
            await asyncio.sleep(0.1)
            if any(application.member.membership.state is not STABLE for application in applications):
                continue
            described = await _described(applications[0], group_id)
            if described.group_state != "Stable" or len(described.members) != count:
                continue
            owned = {
                member.member_id: sorted(
                    where.partition for where in decode_assignment(member.member_assignment).partitions
                )
                for member in described.members
            }
            assert sorted(number for numbers in owned.values() for number in numbers) == list(range(PARTITIONS))
            assert {len(numbers) for numbers in owned.values()} <= {PARTITIONS // count, -(-PARTITIONS // count)}
            ours = {one.member.membership.generation.member_id: one.owned for one in applications}
            if all(owned[member_id] == numbers for member_id, numbers in ours.items()):
                assert described.protocol_data == "range"
                return


async def test_members_of_four_clients_share_the_partitions(one_node: KafkaCluster) -> None:
    topic = group_id = f"mixed-{uuid.uuid4().hex[:8]}"
    one_node.create_topic(topic, partitions=PARTITIONS)
    servers = one_node.bootstrap_servers
    first, second = (
        Application(
            servers,
            topic=topic,
            group_id=group_id,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
            max_poll_interval_ms=20_000,
            request_timeout_ms=20_000,
        )
        for _ in range(2)
    )
    first.start()
    await _shared(1, group_id, first)
    with _confluent(servers, topic, group_id), _java(servers, topic, group_id) as java:
        async with _aiokafka(servers, topic, group_id):
            await _shared(4, group_id, first)
            second.start()
            await _shared(5, group_id, first, second)
            java.kill()
            await first.stop()
            await _shared(3, group_id, second)
        await _shared(2, group_id, second)
    await _shared(1, group_id, second)
    await second.stop()
