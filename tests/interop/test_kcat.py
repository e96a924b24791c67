"""kcat (librdkafka) against the embedded broker: it produces, consumes, joins groups, lists and queries offsets."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, TypedDict

import pytest

from aioproducer.broker import BrokerCluster
from tests.kafka.cluster import free_ports

DEADLINE_S = 30.0

_KCAT = shutil.which("kcat") or shutil.which("kafkacat")

pytestmark = pytest.mark.skipif(
    _KCAT is None, reason="kcat is not installed (Debian and Ubuntu: apt-get install kcat; macOS: brew install kcat)"
)


class Message(TypedDict, total=False):
    """A message as ``kcat -J`` prints it."""

    topic: str
    partition: int
    offset: int
    tstype: str
    ts: int
    headers: list[str]
    key: str | None
    payload: str | None


class Kcat:
    """kcat's command line, with a deadline."""

    # A fetch without records shows it the end of a partition.
    OPTIONS: Final = {"fetch.wait.max.ms": "20"}

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    async def run(self, *arguments: str, stdin: bytes = b"", options: Mapping[str, str] | None = None) -> str:
        """Return its output; its errors fail the test."""
        assert _KCAT is not None
        properties = [
            part for key, value in {**self.OPTIONS, **(options or {})}.items() for part in ("-X", f"{key}={value}")
        ]
        process = await asyncio.create_subprocess_exec(
            _KCAT,
            "-b",
            self._bootstrap_servers,
            *properties,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                output, errors = await process.communicate(stdin)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, f"kcat {' '.join(arguments)} ended with {process.returncode}: {errors.decode()}"
        return output.decode()

    async def produce(self, topic: str, *lines: str, more: Sequence[str] = (), **options: str) -> None:
        """Produce one message for each line; ``options`` are librdkafka's in snake_case."""
        text = "".join(f"{line}\n" for line in lines).encode()
        await self.run("-P", "-t", topic, *more, stdin=text, options=_dotted(options))

    async def consume(self, topic: str, *more: str, **options: str) -> list[Message]:
        """Return the messages of a topic, until its end."""
        return _messages(await self.run("-C", "-t", topic, "-e", "-J", "-q", *more, options=_dotted(options)))

    async def consume_group(self, group: str, topics: Sequence[str], *more: str, **options: str) -> list[Message]:
        """Return the messages of a new group member, until the end of its partitions."""
        options = {"auto_offset_reset": "earliest", **options}
        return _messages(await self.run("-G", group, "-e", "-J", "-q", *more, *topics, options=_dotted(options)))


def _dotted(options: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in options.items()}


def _messages(output: str) -> list[Message]:
    return [json.loads(line) for line in output.splitlines()]


def payloads(messages: Sequence[Message]) -> list[str | None]:
    return [message["payload"] for message in messages]


@pytest.fixture
async def cluster() -> AsyncIterator[BrokerCluster]:
    properties = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 3}
    properties["offsets.topic.replication.factor"] = 3
    async with BrokerCluster(3, properties=properties, ports=free_ports(3)) as running:
        yield running


@pytest.fixture
def kcat(cluster: BrokerCluster) -> Kcat:
    return Kcat(cluster.bootstrap_servers)


CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
"""Return the names of codecs by their numbers in a batch."""


@pytest.mark.parametrize("codec", CODECS)
async def test_messages_of_every_codec_are_read_back(cluster: BrokerCluster, kcat: Kcat, codec: str) -> None:
    cluster.create_topic("clicks", 1, 3)
    values = [f"value {number} " + "x" * 200 for number in range(500)]
    await kcat.produce("clicks", *values, more=["-z", codec], acks="all")
    messages = await kcat.consume("clicks", "-p", "0", check_crcs="true")
    assert payloads(messages) == values
    assert [message["offset"] for message in messages] == list(range(500))
    (first, *_) = cluster.brokers[1].logs.logs["clicks", 0].read(0, 1, up_to=500, min_one_batch=True)
    attributes = int.from_bytes(first[21:23], "big")
    assert CODECS[attributes & 7] == codec, "stored as it was sent"


async def test_keys_headers_timestamps_and_null_are_read_back(cluster: BrokerCluster, kcat: Kcat) -> None:
    cluster.create_topic("clicks", 1, 1)
    before = cluster.brokers[1].wall_ms()
    await kcat.produce("clicks", "k1:v1", ":v2", "k3:", more=["-K", ":", "-Z", "-H", "a=1", "-H", "b=2", "-H", "a=3"])
    after = cluster.brokers[1].wall_ms()
    messages = await kcat.consume("clicks")
    assert [(message["key"], message["payload"]) for message in messages] == [("k1", "v1"), (None, "v2"), ("k3", None)]
    assert all(message["headers"] == ["a", "1", "b", "2", "a", "3"] for message in messages)
    assert all(message["tstype"] == "create" and before <= message["ts"] <= after for message in messages)


async def test_the_log_append_time_is_returned(cluster: BrokerCluster, kcat: Kcat) -> None:
    cluster.create_topic("clicks", 1, 1, configs={"message.timestamp.type": "LogAppendTime"})
    before = cluster.brokers[1].wall_ms()
    await kcat.produce("clicks", "a", "b", more=["-z", "lz4"])
    messages = await kcat.consume("clicks")
    assert payloads(messages) == ["a", "b"]
    assert all(message["tstype"] == "logappend" and message["ts"] >= before for message in messages)


async def test_keys_choose_the_partition(cluster: BrokerCluster, kcat: Kcat) -> None:
    cluster.create_topic("clicks", 5, 2)
    lines = [f"key {number % 20}:value {number}" for number in range(200)]
    await kcat.produce("clicks", *lines, more=["-K", ":"], partitioner="murmur2_random")
    messages = await kcat.consume("clicks")
    assert sorted(payloads(messages), key=str) == sorted(line.partition(":")[2] for line in lines)
    of_key: dict[str | None, set[int]] = {}
    for message in messages:
        of_key.setdefault(message["key"], set()).add(message["partition"])
    assert all(len(partitions) == 1 for partitions in of_key.values())
    assert len(set().union(*of_key.values())) > 1
    for partition in range(5):
        own = [message for message in messages if message["partition"] == partition]
        assert [message["offset"] for message in own] == list(range(len(own))), "in order, without a gap"


async def test_every_kind_of_acks_stores_messages(cluster: BrokerCluster, kcat: Kcat) -> None:
    cluster.create_topic("clicks", 1, 3)
    await kcat.produce("clicks", "a", "b", enable_idempotence="true")
    await kcat.produce("clicks", "c", acks="1")
    await kcat.produce("clicks", "d", acks="0")
    assert payloads(await kcat.consume("clicks")) == ["a", "b", "c", "d"]


async def test_a_topic_is_created_on_demand(cluster: BrokerCluster, kcat: Kcat) -> None:
    await kcat.produce("made", "a")
    assert payloads(await kcat.consume("made")) == ["a"]
    assert "made" in cluster.image.topics


async def test_it_reads_from_offsets(cluster: BrokerCluster, kcat: Kcat) -> None:
    cluster.create_topic("clicks", 1, 1)
    await kcat.produce("clicks", *"abcdef")
    for where, expected in [("beginning", "abcdef"), ("4", "ef"), ("-2", "ef"), ("end", ""), ("1", "bcdef")]:
        assert payloads(await kcat.consume("clicks", "-p", "0", "-o", where)) == list(expected), where
    assert payloads(await kcat.consume("clicks", "-p", "0", "-o", "2", "-c", "3")) == list("cde")


async def test_it_reads_from_and_until_timestamps(cluster: BrokerCluster, kcat: Kcat) -> None:
    cluster.create_topic("clicks", 1, 1)
    stamps = []
    for value in "abc":
        await kcat.produce("clicks", value)
        (message,) = await kcat.consume("clicks", "-p", "0", "-o", "-1")
        stamps.append(message["ts"])
    assert len(set(stamps)) == 3
    assert payloads(await kcat.consume("clicks", "-p", "0", "-o", f"s@{stamps[1]}")) == ["b", "c"]
    found = await kcat.consume("clicks", "-p", "0", "-o", f"s@{stamps[0]}", "-o", f"e@{stamps[2]}")
    assert payloads(found) == ["a", "b"]


async def test_an_offset_out_of_range_is_reset_by_the_consumer(cluster: BrokerCluster, kcat: Kcat) -> None:
    cluster.create_topic("clicks", 1, 1)
    await kcat.produce("clicks", "a", "b")
    assert payloads(await kcat.consume("clicks", "-p", "0", "-o", "99", topic_auto_offset_reset="earliest")) == [
        "a",
        "b",
    ]


async def test_it_queries_offsets(cluster: BrokerCluster, kcat: Kcat) -> None:
    cluster.create_topic("clicks", 2, 1)
    await kcat.produce("clicks", "a", "b", "c", more=["-p", "1"])
    (message,) = await kcat.consume("clicks", "-p", "1", "-o", "2", "-c", "1")

    async def query(partition: int, when: int) -> dict[int, int]:
        answer = json.loads(await kcat.run("-Q", "-t", f"clicks:{partition}:{when}", "-J"))
        return {found["partition"]: found["offset"] for index, found in answer["clicks"].items() if index.isdecimal()}

    latest, earliest = -1, -2
    assert (await query(0, latest))[0] == 0
    assert (await query(1, latest))[1] == 3
    assert (await query(1, earliest))[1] == 0
    assert 0 <= (await query(1, message["ts"]))[1] <= 2
    assert (await query(1, message["ts"] + 1))[1] == latest


async def test_it_lists_metadata(cluster: BrokerCluster, kcat: Kcat) -> None:
    topic = cluster.create_topic("clicks", 3, 2)
    listed = json.loads(await kcat.run("-L", "-J"))
    assert {broker["id"]: broker["name"] for broker in listed["brokers"]} == {
        node_id: f"{broker.host}:{broker.port}" for node_id, broker in cluster.brokers.items()
    }
    assert listed["controllerid"] == cluster.image.controller_id
    (described,) = [found for found in listed["topics"] if found["topic"] == "clicks"]
    assert [
        (
            found["partition"],
            found["leader"],
            [replica["id"] for replica in found["replicas"]],
            [replica["id"] for replica in found["isrs"]],
        )
        for found in described["partitions"]
    ] == [(state.index, state.leader, state.replicas, state.isr) for state in topic.partitions]


async def test_a_group_continues_at_its_offset(cluster: BrokerCluster, kcat: Kcat) -> None:
    cluster.create_topic("clicks", 2, 1)
    cluster.create_topic("views", 1, 1)
    await kcat.produce("clicks", *"abc", more=["-p", "0"])
    await kcat.produce("clicks", *"de", more=["-p", "1"])
    await kcat.produce("views", "f")
    first = await kcat.consume_group("readers", ["clicks", "views"])
    assert sorted(payloads(first), key=str) == list("abcdef")
    await kcat.produce("clicks", "g", more=["-p", "1"])
    assert payloads(await kcat.consume_group("readers", ["clicks", "views"])) == ["g"]
    assert await kcat.consume_group("readers", ["clicks", "views"]) == []
    assert len(await kcat.consume_group("others", ["clicks"])) == 6


async def test_two_members_share_the_partitions(cluster: BrokerCluster, kcat: Kcat) -> None:
    cluster.create_topic("clicks", 4, 1)
    for partition in range(4):
        await kcat.produce("clicks", *(f"{partition}-{number}" for number in range(50)), more=["-p", str(partition)])
    both = await asyncio.gather(*(kcat.consume_group("readers", ["clicks"]) for _ in range(2)))
    seen = [payload for messages in both for payload in payloads(messages)]
    assert set(seen) == {f"{partition}-{number}" for partition in range(4) for number in range(50)}


async def test_it_continues_when_a_node_is_killed(cluster: BrokerCluster, kcat: Kcat) -> None:
    cluster.create_topic("clicks", 3, 3)
    await kcat.produce("clicks", *(f"before {number}" for number in range(30)), acks="all")
    await cluster.kill(1)
    await kcat.produce("clicks", *(f"after {number}" for number in range(30)), acks="all")
    expected = {f"{when} {number}" for when in ("before", "after") for number in range(30)}
    assert set(payloads(await kcat.consume("clicks"))) == expected
    await cluster.restart(1)
    assert set(payloads(await kcat.consume("clicks"))) == expected
