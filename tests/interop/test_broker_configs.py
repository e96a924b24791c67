"""Topics and their configurations: the embedded broker and Apache Kafka return the same responses."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from aioproducer.broker import BrokerCluster
from aioproducer.broker.config import SERVER_CONFIG_DEF, TOPIC_KEYS
from aioproducer.broker.config.server_keys import why_meaningless
from aioproducer.config import Type
from aioproducer.errors import UnknownTopicOrPartitionError
from aioproducer.protocol import Request, Response, decode_response, encode_request
from aioproducer.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    IncrementalAlterConfigsRequest,
)
from aioproducer.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.kafka.cluster import KafkaCluster

ResponseT = TypeVar("ResponseT", bound=Response)

TOPIC, BROKER = 2, 4
DEADLINE_S = 30.0

# The properties of the fixture's Apache Kafka that apply here too.
PROPERTIES = {
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "default.replication.factor": "1",
    "log.retention.ms": "-1",
    "log.cleaner.enable": "false",
    "auto.create.topics.enable": "true",
}
RACK = "east"

# By key: the fields that are not compared, and why.
DIFFERENT: Mapping[str, tuple[set[str], str]] = {
    "min.insync.replicas": (
        {"source", "synonyms"},
        "Kafka with eligible leader replicas (KIP-966) sets it for all brokers when a cluster is formatted",
    ),
    "max.connections": ({"is read-only"}, "a listener takes its limits when it starts"),
    "max.connections.per.ip": ({"is read-only"}, "a listener takes its limits when it starts"),
    "queued.max.request.bytes": ({"value", "synonyms"}, "the memory of an embedded broker is bounded by default"),
}


REFUSED_HERE = {
    # Kafka accepts it, and then cannot determine a topic's flush.ms.
    ("log.flush.interval.ms", "-9"),
    # Kafka accepts them, and then its cleaner cleans nothing.
    ("log.cleaner.io.buffer.load.factor", "-9"),
    ("log.cleaner.io.buffer.load.factor", "0"),
}


class Client:
    """Requests and responses over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sent = 0

    async def ask(self, request: Request[ResponseT], version: int) -> ResponseT:
        self._sent += 1
        self._writer.writelines(bytes(part) for part in encode_request(request, version, self._sent, "test"))
        async with asyncio.timeout(DEADLINE_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            frame = await self._reader.readexactly(size)
        correlation_id, response = decode_response(type(request).response_class(), version, frame)
        assert correlation_id == self._sent
        return response


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Client]:
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def both(kafka: KafkaCluster) -> AsyncIterator[tuple[Client, Client]]:
    """A connection to the embedded broker and one to Apache Kafka."""
    async with (
        BrokerCluster(racks=[RACK], properties=PROPERTIES) as cluster,
        connected(cluster.bootstrap_servers) as ours,
        connected(kafka.bootstrap_servers) as theirs,
    ):
        yield ours, theirs


def wish(
    name: str,
    num_partitions: int = -1,
    replication_factor: int = -1,
    assignments: Iterable[tuple[int, list[int]]] = (),
    configs: Mapping[str, str | None] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=num_partitions,
        replication_factor=replication_factor,
        assignments=[CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in assignments],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


async def create(client: Client, *wishes: CreatableTopic, validate_only: bool = False) -> list[tuple[object, ...]]:
    request = CreateTopicsRequest(topics=list(wishes), timeout_ms=5000, validate_only=validate_only)
    return [
        (
            topic.name,
            topic.error_code,
            topic.error_message,
            topic.num_partitions,
            topic.replication_factor,
            [
                (config.name, config.value, config.config_source, config.read_only, config.is_sensitive)
                for config in topic.configs or []
                if config.name not in DIFFERENT
            ],
        )
        for topic in (await client.ask(request, 7)).topics
    ]


async def describe(client: Client, kind: int, name: str) -> dict[str, dict[str, object]]:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)],
        include_synonyms=True,
        include_documentation=True,
    )
    async with asyncio.timeout(DEADLINE_S):
        (result,) = (await client.ask(request, 4)).results
        # A broker has a topic's metadata a moment after the controller has created it.
        while result.error_code == UnknownTopicOrPartitionError.code:
            await asyncio.sleep(0.01)
            (result,) = (await client.ask(request, 4)).results
    assert (result.error_code, result.error_message) == (0, "")
    assert (result.resource_type, result.resource_name) == (kind, name)
    return {config.name: described(config) for config in result.configs}


def described(config: DescribeConfigsResourceResult) -> dict[str, object]:
    return {
        "value": config.value,
        "source": config.config_source,
        "type": config.config_type,
        "is read-only": config.read_only,
        "is sensitive": config.is_sensitive,
        "is documented": bool(config.documentation),
        "synonyms": [(origin.name, origin.value, origin.source) for origin in config.synonyms],
    }


def compared(configs: Mapping[str, dict[str, object]], names: Iterable[str]) -> dict[str, dict[str, object]]:
    """Return ``configs`` without known differences."""
    return {
        name: {what: value for what, value in configs[name].items() if what not in DIFFERENT.get(name, (set(), ""))[0]}
        for name in names
    }


async def test_a_topic_is_described_as_by_kafka(one_node: KafkaCluster, topic: str) -> None:
    overrides = {"segment.ms": "77", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1e-9"}
    async with both(one_node) as (ours, theirs):
        answers = []
        for client in (ours, theirs):
            await create(client, wish(topic, configs=overrides))
            answers.append(await describe(client, TOPIC, topic))
    here, there = answers
    assert here.keys() == there.keys() == {name for name, entry in TOPIC_KEYS.items() if not entry.key.internal}
    assert compared(here, here) == compared(there, here)
    assert here["segment.ms"]["value"] == "77"


async def test_a_broker_is_described_as_by_kafka(one_node: KafkaCluster) -> None:
    async with both(one_node) as (ours, theirs):
        here, there = await describe(ours, BROKER, "1"), await describe(theirs, BROKER, "1")
    assert here.keys() - there.keys() == {"aioproducer.validate.records"}
    unexplained = [name for name in there.keys() - here.keys() if not why_meaningless(name)]
    assert unexplained == [], "every key of Kafka is either accepted or refused with a reason"
    same = here.keys() & there.keys()
    assert compared(here, same) == compared(there, same)
    assert here["broker.rack"]["value"] == RACK


NUMBERS = ["-3", "-2", "-1", "0", "1", "3", "10", "18", "23", "2147483648", "9223372036854775808", "0.5", "1e3"]
WORDS = ["", " 7 ", "x", "true", "FALSE", "delete", "compact,delete", "compact,x", "lz4", "LogAppendTime"]
REPLICAS = ["*", "0:1,1:2", "0:1:2"]


async def alter(client: Client, kind: int, name: str, key: str, operation: int, value: str | None) -> tuple[int, str]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterableConfig(name=key, config_operation=operation, value=value)],
            )
        ],
        validate_only=True,
    )
    (response,) = (await client.ask(request, 1)).responses
    return response.error_code, response.error_message or ""


async def test_a_topics_values_are_accepted_and_refused_as_by_kafka(one_node: KafkaCluster, topic: str) -> None:
    different = []
    async with both(one_node) as (ours, theirs):
        for client in (ours, theirs):
            await create(client, wish(topic, configs={"cleanup.policy": "delete"}))
        for key in [*TOPIC_KEYS, "no.such.key"]:
            for value in (*NUMBERS, *WORDS, *REPLICAS):
                changes = [(0, value)]
                if value in ("delete", "x"):
                    changes += [(2, value), (3, value), (1, None)]
                for operation, operand in changes:
                    here = await alter(ours, TOPIC, topic, key, operation, operand)
                    there = await alter(theirs, TOPIC, topic, key, operation, operand)
                    if here != there:
                        different.append((key, operation, operand, here, there))
    assert different == []


async def test_a_brokers_values_are_accepted_and_refused_as_by_kafka(one_node: KafkaCluster) -> None:
    # If Kafka refuses only the combination of values, its text names variables of its code.
    together = {"log.retention.ms", "log.roll.ms", "log.roll.jitter.ms", "log.cleaner.dedupe.buffer.size"}
    lists = {name for name, key in SERVER_CONFIG_DEF.keys.items() if key.type is Type.LIST}
    different = []
    async with both(one_node) as (ours, theirs):
        for key in sorted(SERVER_CONFIG_DEF.keys.keys() - DIFFERENT.keys() - {"aioproducer.validate.records"}):
            for value in ("x", "-9", "0", "1", "0.5", "true", "delete"):
                changes = [(0, value), (1, None)] + ([(2, value), (3, value)] if key in lists else [])
                for operation, operand in changes:
                    for name in ("", "1"):
                        here = await alter(ours, BROKER, name, key, operation, operand)
                        there = await alter(theirs, BROKER, name, key, operation, operand)
                        if key in together:
                            here, there = (here[0], ""), (there[0], "")
                        if here != there and (key, operand) not in REFUSED_HERE:
                            different.append((name, key, operation, operand, here, there))
    assert different == []


async def test_topics_are_created_and_refused_as_by_kafka(one_node: KafkaCluster, topic: str) -> None:
    requests = [
        [wish(topic)],
        [wish(topic)],
        [wish(f"{topic}.x", 2, 1), wish(f"{topic}.y", configs={"retention.ms": "5", "segment.bytes": "1048576"})],
        [wish(f"{topic}_x")],
        [wish(f"{topic}-1", 1), wish(f"{topic}-1", 1), wish(f"{topic}-2")],
        [wish("")],
        [wish("..")],
        [wish("a b")],
        [wish("a" * 250)],
        [wish("__cluster_metadata")],
        [wish(f"{topic}-3", 0, 1)],
        [wish(f"{topic}-3", 1, 0)],
        [wish(f"{topic}-3", -2)],
        [wish(f"{topic}-3", 10001)],
        [wish(f"{topic}-3", 10000)],
        [wish(f"{topic}-3", 1, -1, [(0, [1])])],
        [wish(f"{topic}-3", -1, 1, [(0, [1])])],
        [wish(f"{topic}-3", assignments=[(1, [1])])],
        [wish(f"{topic}-3", assignments=[(0, [1]), (0, [1])])],
        [wish(f"{topic}-3", assignments=[(0, [1, 1])])],
        [wish(f"{topic}-3", assignments=[(0, [])])],
        [wish(f"{topic}-3", assignments=[(0, [9])])],
        [wish(f"{topic}-3", assignments=[(0, [1]), (1, [1])])],
        [wish(f"{topic}-4", configs={"nosuch": "1"})],
        [wish(f"{topic}-4", configs={"retention.ms": None, "segment.ms": None})],
        [wish(f"{topic}-4", configs={"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})],
        [],
    ]
    async with both(one_node) as (ours, theirs):
        for request in requests:
            for validate_only in (True, False):
                here = await create(ours, *request, validate_only=validate_only)
                assert here == await create(theirs, *request, validate_only=validate_only)


async def test_topics_are_deleted_as_by_kafka(one_node: KafkaCluster, topic: str) -> None:
    zero = bytes(16)
    names = [f"{topic}-{number}" for number in range(6)]

    async def run(client: Client) -> list[object]:
        request = CreateTopicsRequest(topics=[wish(name) for name in names], timeout_ms=5000)
        ids = {made.name: made.topic_id for made in (await client.ask(request, 7)).topics}
        places = {topic_id: name for name, topic_id in ids.items()} | {zero: "none", b"\x01" * 16: "unknown"}

        async def delete(*topics: tuple[str | None, bytes]) -> object:
            states = [DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in topics]
            response = await client.ask(DeleteTopicsRequest(topics=states, timeout_ms=5000), 6)
            # Kafka returns responses in random order.
            return sorted(
                (str(result.name), places[result.topic_id], result.error_code, str(result.error_message))
                if result.error_code or result.name not in ids
                else (result.name, "deleted", 0, "")
                for result in response.responses
            )

        return [
            await delete((names[0], zero), ("no-such-topic", zero)),
            await delete((None, ids[names[1]]), (None, b"\x01" * 16), (None, zero), ("a", b"\x01" * 16)),
            await delete((None, ids[names[1]])),
            await delete((names[2], zero), (names[2], zero), (names[3], zero)),
            await delete((None, ids[names[4]]), (None, ids[names[4]])),
            await delete((None, ids[names[5]]), (names[5], zero)),
        ]

    async with both(one_node) as (ours, theirs):
        assert await run(ours) == await run(theirs)


@pytest.mark.parametrize("reason", [reason for _, reason in DIFFERENT.values()])
def test_differences_have_a_reason(reason: str) -> None:
    assert reason
