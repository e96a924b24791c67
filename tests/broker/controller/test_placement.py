"""Where replicas are placed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.controller.placement import place
from aioproducer.broker.image import BrokerRegistration
from aioproducer.errors import InvalidReplicationFactorError


def _nodes(racks: list[str | None]) -> list[BrokerRegistration]:
    return [BrokerRegistration(number, "h", 1, rack, True, 0) for number, rack in enumerate(racks, start=1)]


def test_leaders_rotate_from_the_start() -> None:
    placed = place(_nodes([None] * 3), {1, 2, 3}, start=0, num_partitions=4, replication_factor=2)
    assert placed == [[1, 2], [2, 3], [3, 1], [1, 3]]
    assert place(_nodes([None] * 3), {1, 2, 3}, start=4, num_partitions=1, replication_factor=1) == [[2]]


def test_racks_are_kept_apart() -> None:
    nodes = _nodes(["a", "a", "b", "b", "c"])
    for replicas in place(nodes, {1, 2, 3, 4, 5}, start=0, num_partitions=40, replication_factor=3):
        assert len({nodes[node_id - 1].rack for node_id in replicas}) == 3


def test_a_node_out_of_service_never_leads_and_follows_only_if_needed() -> None:
    placed = place(_nodes([None] * 3), {2, 3}, start=0, num_partitions=10, replication_factor=2)
    assert {node_id for replicas in placed for node_id in replicas} == {2, 3}
    placed = place(_nodes([None] * 3), {2, 3}, start=0, num_partitions=10, replication_factor=3)
    assert {replicas[2] for replicas in placed} == {1}


def test_too_few_nodes_are_an_error() -> None:
    with pytest.raises(
        InvalidReplicationFactorError,
        match=r"Unable to replicate the partition 3 time\(s\): The target replication factor of 3 cannot be reached "
        r"because only 2 broker\(s\) are registered\.",
    ):
        place(_nodes([None] * 2), {1, 2}, start=0, num_partitions=1, replication_factor=3)
    with pytest.raises(InvalidReplicationFactorError, match="All brokers are currently fenced"):
        place(_nodes([None] * 2), set(), start=0, num_partitions=1, replication_factor=1)


@given(
    racks=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=7),
    start=st.integers(0, 50),
    num_partitions=st.integers(1, 40),
    data=st.data(),
)
@settings(max_examples=60)
def test_every_placement_is_legal_and_even(
    racks: list[str | None], start: int, num_partitions: int, data: st.DataObject
) -> None:
    nodes = _nodes(racks)
    eligible = data.draw(st.sets(st.integers(1, len(nodes)), min_size=1))
    factor = data.draw(st.integers(1, len(nodes)))
    placed = place(nodes, eligible, start=start, num_partitions=num_partitions, replication_factor=factor)
    assert len(placed) == num_partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert replicas[0] in eligible
        assert len(eligible & set(replicas)) == min(len(eligible), factor)
    led = Counter(replicas[0] for replicas in placed)
    counts = [led[node_id] for node_id in eligible]
    assert max(counts) - min(counts) <= 1
