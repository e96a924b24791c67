"""The cluster as plug-ins see it: up to date, and rebuilt only if the metadata changed."""

from __future__ import annotations

from functools import partial
from random import Random

from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.core.metadata.cluster_view import MetadataView
from aioproducer.partitioner import RoundRobinPartitioner
from aioproducer.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aioproducer.record import Node, PartitionInfo
from tests.core.accumulating import count_operations


def answer(metadata: ClusterMetadata, leaders: list[int], *, host: str = "one", now: float = 0.0) -> None:
    """Apply a response about the topic "clicks"; -1 is no leader."""
    metadata.build_request(now)
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=1, host=host, port=1),
            MetadataResponseBroker(node_id=2, host="two", port=2),
        ],
        topics=[
            MetadataResponseTopic(
                name="clicks",
                topic_id=bytes(15) + b"t",
                partitions=[
                    MetadataResponsePartition(partition_index=number, leader_id=leader, leader_epoch=int(now))
                    for number, leader in enumerate(leaders)
                ],
            )
        ],
    )
    metadata.handle_response(response, now, version=13)


def known(leaders: list[int]) -> tuple[ClusterMetadata, MetadataView]:
    metadata = ClusterMetadata([("bootstrap", 1)], random=Random(0))
    metadata.add_topic("clicks", 0.0)
    answer(metadata, leaders)
    return metadata, MetadataView(metadata)


def led(view: MetadataView) -> list[tuple[int, Node | None]]:
    return [(info.partition, info.leader) for info in view.partitions_for("clicks")]


def test_the_view_follows_the_metadata() -> None:
    metadata, view = known([1, 2, -1])
    one, two = Node(1, "one", 1), Node(2, "two", 2)
    assert led(view) == [(0, one), (1, two), (2, None)]
    assert [info.partition for info in view.available_partitions_for("clicks")] == [0, 1]
    answer(metadata, [2, 2, 1, 1], now=100.0)
    assert led(view) == [(0, two), (1, two), (2, one), (3, one)]
    assert len(view.available_partitions_for("clicks")) == 4
    metadata.apply_leader_hints("clicks", 1, 3, 5000, [Node(3, "three", 3)], 100.0)
    assert led(view)[1] == (1, Node(3, "three", 3))
    answer(metadata, [2, 2, 1, 1], host="elsewhere", now=200.0)
    assert led(view)[2] == (2, Node(1, "elsewhere", 1))
    metadata.rebootstrap(250.0)
    assert not view.available_partitions_for("clicks")
    assert view.partitions_for("views") == view.available_partitions_for("views") == ()


def test_choosing_a_partition_costs_the_same_for_any_partition_count() -> None:
    """A record sent round robin once took ten milliseconds if its topic had 20,000 partitions."""
    work = []
    for count in (10, 1000):
        _, view = known([1] * count)
        partitioner = RoundRobinPartitioner()
        places = [partitioner.partition("clicks", None, b"value", view) for _ in range(count)]
        assert places == list(range(count))
        work.append(count_operations(partial(partitioner.partition, "clicks", None, b"value", view)))
    assert work[0] == work[1]


def test_returned_collections_are_immutable() -> None:
    _, view = known([1])
    partitions: object = view.partitions_for("clicks")
    assert isinstance(partitions, tuple)
    assert isinstance(partitions[0], PartitionInfo)
