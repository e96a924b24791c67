"""The choice of a partition: sticky, adaptive, rack aware, round robin and custom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.errors import InvalidPartitionError
from aioproducer.partitioner import (
    ClusterView,
    PartitionLoad,
    RoundRobinPartitioner,
    StickyPartitioner,
    check_partition,
    resolve_partitioner,
)
from aioproducer.record import Node, PartitionInfo


def sticky(
    load: PartitionLoad, *, sticky_size: int = 1000, seed: int = 7, rack: str | None = None
) -> StickyPartitioner:
    return StickyPartitioner(sticky_size, load, Random(seed), rack)


def draws(partitioner: StickyPartitioner, count: int) -> Counter[int]:
    return Counter(partitioner.next_partition() for _ in range(count))


def assert_proportional(counts: Counter[int], weights: dict[int, int]) -> None:
    """Check that Pearson's statistic is below its 99.99 % bound (33.7 for up to 9 degrees of freedom)."""
    assert set(counts) <= {partition for partition, weight in weights.items() if weight}
    total = counts.total()
    expected = {partition: total * weight / sum(weights.values()) for partition, weight in weights.items() if weight}
    statistic = sum((counts[partition] - mean) ** 2 / mean for partition, mean in expected.items())
    assert statistic < 33.7, counts


@st.composite
def loads(draw: st.DrawFn) -> PartitionLoad:
    partition_count = draw(st.integers(1, 12))
    available = draw(st.lists(st.integers(0, partition_count - 1), unique=True))
    size = len(available)
    return PartitionLoad(
        partition_count,
        available,
        draw(st.none() | st.lists(st.integers(0, 50), min_size=size, max_size=size)),
        draw(st.none() | st.lists(st.sampled_from(["a", "b", None]), min_size=size, max_size=size)),
        draw(st.sets(st.sampled_from(available))) if available else set(),
    )


def allowed(load: PartitionLoad, rack: str | None) -> set[int]:
    """Return the partitions allowed by the rule: leader known, broker not slow, own rack; each if any are left."""
    racks = dict(zip(load.available, load.leader_racks or [], strict=False))
    chosen = set(load.available) or set(range(load.partition_count))
    chosen = {partition for partition in chosen if partition not in load.slow} or chosen
    if rack is not None:
        chosen = {partition for partition in chosen if racks.get(partition) == rack} or chosen
    return chosen


class TestChoice:
    @settings(max_examples=100)
    @given(loads(), loads(), st.sampled_from(["a", "c", None]), st.integers())
    def test_every_allowed_partition_and_no_other_is_chosen(
        self, first: PartitionLoad, second: PartitionLoad, rack: str | None, seed: int
    ) -> None:
        partitioner = sticky(first, rack=rack, seed=seed)
        assert partitioner.partition in allowed(first, rack)
        partitioner.refresh(second)
        assert 0 <= partitioner.partition < second.partition_count
        assert set(draws(partitioner, 50)) <= allowed(second, rack)

    def test_without_queue_sizes_the_choice_is_uniform(self) -> None:
        assert_proportional(draws(sticky(PartitionLoad(5, range(5))), 20_000), dict.fromkeys(range(5), 1))

    def test_with_equal_queues_the_choice_is_uniform(self) -> None:
        assert_proportional(draws(sticky(PartitionLoad(5, range(5), [4] * 5)), 20_000), dict.fromkeys(range(5), 1))

    def test_frequencies_equal_the_example_of_kip_794(self) -> None:
        assert_proportional(draws(sticky(PartitionLoad(3, [0, 1, 2], [0, 3, 1])), 40_000), {0: 4, 1: 1, 2: 3})

    @settings(max_examples=15, derandomize=True)
    @given(st.lists(st.integers(0, 20), min_size=2, max_size=10))
    def test_frequencies_follow_the_queue_sizes(self, queue_sizes: list[int]) -> None:
        available = [2 * position + 1 for position in range(len(queue_sizes))]
        load = PartitionLoad(2 * len(queue_sizes), available, queue_sizes)
        weights = {
            partition: max(queue_sizes) + 1 - queue_size
            for partition, queue_size in zip(available, queue_sizes, strict=True)
        }
        assert_proportional(draws(sticky(load), 5_000), weights)

    def test_partitions_without_a_leader_are_not_chosen(self) -> None:
        assert_proportional(draws(sticky(PartitionLoad(4, [1, 3])), 5_000), {1: 1, 3: 1})

    def test_without_any_leader_every_partition_can_be_chosen(self) -> None:
        assert_proportional(draws(sticky(PartitionLoad(4, [])), 5_000), dict.fromkeys(range(4), 1))

    def test_partitions_of_slow_brokers_are_not_chosen_while_others_remain(self) -> None:
        load = PartitionLoad(4, range(4), [0, 0, 0, 0], slow={1, 2})
        assert_proportional(draws(sticky(load), 5_000), {0: 1, 3: 1})
        all_slow = PartitionLoad(4, range(4), [0, 0, 0, 0], slow=range(4))
        assert_proportional(draws(sticky(all_slow), 5_000), dict.fromkeys(range(4), 1))

    def test_the_clients_rack_is_preferred_and_weighted_on_its_own(self) -> None:
        """KIP-1123: a long queue elsewhere does not flatten the differences within the rack."""
        load = PartitionLoad(4, range(4), [0, 2, 90, 1], ["a", "a", "b", "a"])
        assert_proportional(draws(sticky(load, rack="a"), 20_000), {0: 3, 1: 1, 3: 2})

    def test_without_a_leader_in_the_rack_every_partition_can_be_chosen(self) -> None:
        load = PartitionLoad(3, range(3), None, ["a", None, "b"])
        assert_proportional(draws(sticky(load, rack="c"), 5_000), dict.fromkeys(range(3), 1))

    def test_other_racks_are_used_if_the_brokers_of_the_clients_rack_are_slow(self) -> None:
        load = PartitionLoad(3, range(3), [1, 0, 0], ["a", "b", "b"], slow={0})
        assert_proportional(draws(sticky(load, rack="a"), 5_000), {1: 1, 2: 1})

    def test_without_a_client_rack_racks_are_ignored(self) -> None:
        load = PartitionLoad(2, range(2), None, ["a", None])
        assert_proportional(draws(sticky(load), 5_000), {0: 1, 1: 1})


class TestStickiness:
    def test_a_turn_ends_at_exactly_the_sticky_size(self) -> None:
        partitioner = sticky(PartitionLoad(10, range(10)))
        first = partitioner.partition
        assert partitioner.update(999) is False
        assert (partitioner.partition, partitioner.produced_bytes) == (first, 999)
        assert partitioner.update(1) is True
        assert partitioner.produced_bytes == 0

    def test_a_half_filled_batch_keeps_the_turn_but_not_beyond_twice_the_size(self) -> None:
        partitioner = sticky(PartitionLoad(10, range(10)))
        assert partitioner.update(1999, enable_switch=False) is False
        assert partitioner.update(1, enable_switch=False) is True
        assert partitioner.update(1000, enable_switch=False) is False
        assert partitioner.update(0, enable_switch=True) is True

    @given(st.lists(st.tuples(st.integers(1, 1500), st.booleans()), max_size=60), st.integers())
    def test_sticky_turns_are_as_long_as_those_of_kafka(self, appends: list[tuple[int, bool]], seed: int) -> None:
        partitioner = sticky(PartitionLoad(6, range(6)), seed=seed)
        produced = 0
        for size, enable_switch in appends:
            before = partitioner.partition
            produced += size
            expected = produced >= 2000 or (produced >= 1000 and enable_switch)
            assert partitioner.update(size, enable_switch) is expected
            if expected:
                produced = 0
            else:
                assert partitioner.partition == before

    def test_a_refresh_keeps_the_current_turn(self) -> None:
        partitioner = sticky(PartitionLoad(4, [2]))
        partitioner.update(500)
        partitioner.refresh(PartitionLoad(4, [0, 1]))
        assert (partitioner.partition, partitioner.produced_bytes) == (2, 500)
        partitioner.update(500)
        assert partitioner.partition in (0, 1)

    def test_a_removed_partition_is_left_at_once(self) -> None:
        partitioner = sticky(PartitionLoad(8, [7]))
        partitioner.update(500)
        partitioner.refresh(PartitionLoad(2, [0, 1]))
        assert partitioner.partition in (0, 1)
        assert partitioner.produced_bytes == 0

    def test_bytes_are_spread_evenly_for_any_record_sizes(self) -> None:
        """The aim of KIP-794: each partition gets the same bytes, though one always has small batches."""
        random = Random(11)
        partitioner = sticky(PartitionLoad(5, range(5)), seed=3)
        spread: Counter[int] = Counter()
        for _ in range(200_000):
            size = random.randrange(1, 30) if partitioner.partition == 0 else random.randrange(1, 300)
            spread[partitioner.partition] += size
            partitioner.update(size)
        mean = spread.total() / 5
        # A turn is 1,000 bytes and up to a record more: on average 1,014 bytes for one partition, 1,150 for the others.
        assert all(abs(bytes_there - mean) < 0.15 * mean for bytes_there in spread.values()), spread

    def test_the_same_seed_makes_the_same_choices(self) -> None:
        load = PartitionLoad(50, range(50), list(range(50)))
        one, other = sticky(load, seed=5), sticky(load, seed=5)
        assert [one.next_partition() for _ in range(50)] == [other.next_partition() for _ in range(50)]


class TestBadLoad:
    def test_a_topic_without_partitions_is_rejected(self) -> None:
        with pytest.raises(ValueError, match="partition_count must be at least 1, not 0"):
            PartitionLoad(0, [])

    def test_columns_of_unequal_length_are_rejected(self) -> None:
        with pytest.raises(ValueError, match="queue_sizes has 1 entries for 2 available partitions"):
            PartitionLoad(2, [0, 1], [1])
        with pytest.raises(ValueError, match="leader_racks has 3 entries for 2 available partitions"):
            PartitionLoad(2, [0, 1], None, ["a", "a", "a"])

    def test_a_sticky_size_below_one_is_rejected(self) -> None:
        with pytest.raises(ValueError, match="sticky_size must be at least 1, not 0"):
            sticky(PartitionLoad(1, [0]), sticky_size=0)


class Cluster:
    """A view of topics given as lists of leaders."""

    def __init__(self, **topics: list[Node | None]) -> None:
        self._topics = {
            topic: [PartitionInfo(topic, partition, leader) for partition, leader in enumerate(leaders)]
            for topic, leaders in topics.items()
        }

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        return self._topics[topic]

    def available_partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        return [info for info in self._topics[topic] if info.leader is not None]

    def partition_count(self, topic: str) -> int:
        return len(self._topics[topic])

    def node(self, node_id: int) -> Node | None:
        return next((node for node in self.nodes() if node.id == node_id), None)

    def nodes(self) -> Sequence[Node]:
        return [NODE]


NODE = Node(1, "broker", 9092)


class TestRoundRobin:
    def test_round_robin_ignores_the_key(self) -> None:
        cluster = Cluster(clicks=[NODE, NODE, NODE])
        partitioner = RoundRobinPartitioner()
        assert [partitioner.partition("clicks", b"same", b"v", cluster) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]

    def test_round_robin_counts_each_topic_separately(self) -> None:
        cluster = Cluster(clicks=[NODE, NODE], views=[NODE, NODE])
        partitioner = RoundRobinPartitioner()
        order = [partitioner.partition(topic, None, b"v", cluster) for topic in ("clicks", "views", "clicks", "views")]
        assert order == [0, 0, 1, 1]

    def test_partitions_without_a_leader_are_skipped_while_there_are_others(self) -> None:
        partitioner = RoundRobinPartitioner()
        cluster = Cluster(clicks=[NODE, None, NODE])
        assert [partitioner.partition("clicks", None, b"v", cluster) for _ in range(4)] == [0, 2, 0, 2]
        headless = Cluster(clicks=[None, None, None])
        assert [partitioner.partition("clicks", None, b"v", headless) for _ in range(3)] == [1, 2, 0]


class ByValueLength:
    def partition(self, topic: str, key: bytes | None, value: bytes | None, cluster: ClusterView) -> int:
        return len(value or b"") % cluster.partition_count(topic)


class TestUsersOwn:
    def test_an_object_a_class_and_a_function_are_accepted(self) -> None:
        cluster = Cluster(clicks=[NODE] * 4)

        def function(topic: str, key: bytes | None, value: bytes | None, cluster: ClusterView) -> int:
            return ByValueLength().partition(topic, key, value, cluster)

        for partitioner in (ByValueLength(), ByValueLength, function):
            assert resolve_partitioner(partitioner)("clicks", None, b"12345", cluster) == 1
        assert resolve_partitioner(RoundRobinPartitioner)("clicks", None, None, cluster) == 0

    def test_an_object_that_is_not_callable_is_rejected(self) -> None:
        with pytest.raises(TypeError, match=r"a partitioner must be an object with partition\(topic, key.* not 5"):
            resolve_partitioner(5)

    def test_a_coroutine_function_is_rejected(self) -> None:
        class Slow:
            async def partition(self, topic: str, key: bytes | None, value: bytes | None, cluster: ClusterView) -> int:
                return 0

        with pytest.raises(TypeError, match=r"Slow must not be a coroutine function"):
            resolve_partitioner(Slow())

    def test_a_partition_in_range_is_used(self) -> None:
        class WholeNumber:
            def __index__(self) -> int:
                return 2

        assert check_partition(0, "clicks", 3, ByValueLength()) == 0
        assert check_partition(WholeNumber(), "clicks", 3, ByValueLength()) == 2

    @pytest.mark.parametrize("answer", [-1, 3, 2**40])
    def test_a_partition_out_of_range_raises_an_error_that_names_the_range(self, answer: int) -> None:
        text = f"ByValueLength returned partition {answer} for topic 'clicks', which has partitions 0 to 2"
        with pytest.raises(InvalidPartitionError, match=text):
            check_partition(answer, "clicks", 3, ByValueLength())

    @pytest.mark.parametrize("answer", [None, 1.0, "1", True])
    def test_a_partition_that_is_not_an_int_raises_an_error_that_shows_it(self, answer: object) -> None:
        with pytest.raises(
            InvalidPartitionError, match=r"ByValueLength must return an int, but returned .* for topic 'clicks'"
        ):
            check_partition(answer, "clicks", 3, ByValueLength().partition)

    def test_a_function_is_named_by_its_name(self) -> None:
        def pick(topic: str, key: bytes | None, value: bytes | None, cluster: ClusterView) -> int:
            return 9

        with pytest.raises(InvalidPartitionError, match=r"the partitioner .*pick returned partition 9"):
            check_partition(9, "clicks", 3, pick)
