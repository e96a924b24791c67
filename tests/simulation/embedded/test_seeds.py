"""Every rule holds for every seed. ``make simulate SEEDS=0-999`` plays many."""

from __future__ import annotations

import pytest

from aioproducer import Consumer, RecordMetadata, TopicPartition
from tests.simulation.embedded import checkers
from tests.simulation.embedded.play import play_seed
from tests.simulation.embedded.story import KINDS, Kind
from tests.simulation.embedded.world import ClusterWorld, run

_SEEDS_OF_A_KIND = 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(_SEEDS_OF_A_KIND))
def test_every_rule_holds_for_a_seed(seed: int, kind: Kind) -> None:
    assert play_seed(seed, kinds=(kind,)).violations == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(100, 104))
def test_every_rule_holds_for_a_small_story(seed: int, kind: Kind) -> None:
    assert play_seed(seed, kinds=(kind,), is_small=True).violations == []


def test_brokers_and_clients_share_one_network() -> None:
    """Faults of the network reach the connections of brokers among themselves, too."""

    async def scenario(world: ClusterWorld) -> RecordMetadata:
        world.create_topic("clicks", 1)
        async with world.producer("p") as producer:
            return await producer.send("clicks", b"value")

    metadata, world = run(scenario, nodes=2, keep_trace=True)
    assert (metadata.topic, metadata.partition, metadata.offset) == ("clicks", 0, 0)
    lines = "".join(world.trace.lines)
    assert "p>node" in lines
    assert "node1>node2" in lines or "node2>node1" in lines
    assert world.violations == []


def test_consumers_read_the_wall_clock_of_the_world() -> None:
    """A consumer read the system's clock: the record was older than an hour."""

    async def scenario(world: ClusterWorld) -> list[bytes]:
        world.create_topic("clicks", 1)
        async with world.producer("p") as producer:
            await producer.send("clicks", b"value")
        consumer = Consumer(
            transport=world.network.endpoint("c"),
            bootstrap_servers=world.bootstrap_servers,
            auto_offset_reset="by_duration:PT1H",
        )
        async with consumer:
            consumer.assign([TopicPartition("clicks", 0)])
            found = await consumer.poll(5.0)
        return [record.value for records in found.values() for record in records]

    values, world = run(scenario)
    assert values == [b"value"]
    assert world.violations == []


def test_rules_have_distinct_names() -> None:
    names = [check.__name__ for check in checkers.ALL]
    assert len(set(names)) == len(names)


def test_a_coordinator_does_not_answer_by_a_record_that_the_next_one_lacks() -> None:
    """A committed transaction was torn: a partition had no marker. See ``stored_records``."""
    assert play_seed(3, kinds=("transform",), is_small=True).violations == []


def test_a_follower_that_has_truncated_learns_the_high_watermark() -> None:
    """Without a further record it had the one of its checkpoint: see ``WantedPartition.sent``."""
    assert play_seed(3103, kinds=("idempotent",), is_small=True).violations == []


def test_a_partition_joins_while_another_is_being_added_before_kip_890() -> None:
    """No fault comes in this play. The producer failed as fenced: see ``TransactionManager._is_adding_partitions``."""
    assert play_seed(46, kinds=("transactional",), version=1).violations == []
