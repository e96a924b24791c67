"""Apache Kafka and the embedded broker must return the same responses to the same requests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from aioproducer.broker import BrokerCluster
from tests.interop.differential import scenarios as _all_scenarios
from tests.interop.differential.comparing import Found, differences, judge
from tests.interop.differential.known import KNOWN, Difference
from tests.interop.differential.normal import Tree
from tests.interop.differential.scenario import SCENARIOS, Scenario, run
from tests.kafka.cluster import KafkaCluster, free_ports

assert _all_scenarios.__path__, "importing them is what finds the scenarios"

DOCUMENT = Path(__file__).parents[3] / "docs" / "embedded-broker.md"

# The settings of the shared Kafka clusters of tests/interop that affect responses.
_BOTH = {
    # The default of the compiled build, to which the table applies.
    "aioproducer.validate.records": "true",
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.retention.ms": "-1",
}
PROPERTIES = {
    1: {
        **_BOTH,
        "auto.create.topics.enable": "true",
        "broker.rack": "east",
        "default.replication.factor": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    },
    3: {
        **_BOTH,
        "auto.create.topics.enable": "false",
        "default.replication.factor": "3",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "min.insync.replicas": "2",
    },
}


class _Kafka:
    """Apache Kafka, for scenarios."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self.addresses = {node.id: ("127.0.0.1", node.port["PLAINTEXT"]) for node in cluster.nodes.values()}

    async def kill(self, node: int) -> None:
        await asyncio.to_thread(self._cluster.kill, node)

    async def restart(self, node: int) -> None:
        await asyncio.to_thread(self._cluster.restart, node)


class _Embedded:
    """The embedded broker, for scenarios."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self._cluster = cluster
        self.addresses = {broker.node_id: (broker.host, broker.port) for broker in cluster.brokers.values()}

    async def kill(self, node: int) -> None:
        await self._cluster.kill(node)

    async def restart(self, node: int) -> None:
        await self._cluster.restart(node)


_kafka_observed: dict[tuple[str, KafkaCluster], dict[str, Tree]] = {}


async def _kafka(found: Scenario, cluster: KafkaCluster) -> dict[str, Tree]:
    """Kafka's responses, requested once in a session."""
    if (found.name, cluster) not in _kafka_observed:
        _kafka_observed[found.name, cluster] = await run(found, _Kafka(cluster))
    return _kafka_observed[found.name, cluster]


async def embedded(found: Scenario, token: str = "", *, features: Mapping[str, int] | None = None) -> dict[str, Tree]:
    """Return the responses of a new embedded cluster."""
    # As the fixture `three_nodes`.
    racks = [f"rack-{node}" for node in (1, 2, 3)] if found.nodes == 3 else None
    # A port that another process could take while its node is down would give the client a stranger's responses.
    ports = free_ports(found.nodes)
    async with BrokerCluster(
        found.nodes, properties=PROPERTIES[found.nodes], features=features, racks=racks, ports=ports
    ) as cluster:
        return await run(found, _Embedded(cluster), token)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_answers_are_those_of_apache_kafka(name: str, request: pytest.FixtureRequest) -> None:
    found = SCENARIOS[name]
    kafka = await _kafka(found, request.getfixturevalue("one_node" if found.nodes == 1 else "three_nodes"))
    unlisted, gone = judge(name, differences(kafka, await embedded(found)), KNOWN)
    assert not unlisted, f"{len(unlisted)} differences:\n" + "\n".join(str(item) for item in unlisted[:60])
    assert not gone, "listed, but they no longer occur:\n" + "\n".join(str(item) for item in gone)


OF_OLD_TRANSACTIONS = [name for name, found in SCENARIOS.items() if found.play.__module__.endswith(".transactions")]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", OF_OLD_TRANSACTIONS)
async def test_old_transactions_are_those_of_apache_kafka(
    name: str, one_node_with_old_transactions: KafkaCluster
) -> None:
    """The same scenarios with transaction.version 1, where not every row of the table occurs."""
    found = SCENARIOS[name]
    kafka = await _kafka(found, one_node_with_old_transactions)
    unlisted, _ = judge(name, differences(kafka, await embedded(found, features={"transaction.version": 1})), KNOWN)
    assert not unlisted, f"{len(unlisted)} differences:\n" + "\n".join(str(item) for item in unlisted[:60])


def test_scenarios_of_the_table_exist() -> None:
    assert {difference.scenario for difference in KNOWN} <= set(SCENARIOS)


def test_document_lists_the_table() -> None:
    section = DOCUMENT.read_text().split("\n## Where it differs")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    listed = [Difference(scenario.strip("`"), path.strip("`"), reason) for scenario, path, reason in rows]
    assert listed == list(KNOWN)


def test_code_of_the_document_runs() -> None:
    code = DOCUMENT.read_text().split("```python\n")[1].split("```")[0]
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    partition, offset = ran.stdout.split()
    assert (int(partition) in range(6), int(offset)) == (True, 0)


def test_differences_are_found() -> None:
    kafka: dict[str, Tree] = {"a": {"error_code": "X", "topics": [{"name": "t", "id": 1}]}, "same": 5}
    ours: dict[str, Tree] = {"a": {"error_code": "Y", "topics": [{"name": "t", "id": True}]}, "same": 5, "b": 1}
    found = differences(kafka, ours)
    assert [item.path for item in found] == ["a.error_code", "a.topics[t].id", "b"]
    known = [Difference("s", "a.topics[*].id", "x"), Difference("s", "c", "y"), Difference("t", "b", "z")]
    unlisted, gone = judge("s", found, known)
    assert [item.path for item in unlisted] == ["a.error_code", "b"]
    assert gone == [known[1]]
    assert judge("s", [Found("a.topics[t].id", 1, 2)], known)[0] == []
