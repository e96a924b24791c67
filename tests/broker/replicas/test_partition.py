"""A partition as leader and follower, step by step; with real logs and the real controller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from aioproducer.broker.image import PartitionState
from aioproducer.broker.replicas.partition import Follower
from aioproducer.errors import (
    FencedLeaderEpochError,
    InvalidUpdateVersionError,
    KafkaStorageError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownLeaderEpochError,
)
from tests.broker.replicas.nodes import LAG_TIME_MAX, Node, Nodes, batch, contents


def replicate(nodes: Nodes, *values: bytes) -> None:
    """Write, and replicate to all followers."""
    nodes.leader.append(batch(*values), acks=1)
    nodes.settle()


class TestAppend:
    def test_only_a_leader_accepts_appends(self) -> None:
        nodes = Nodes()
        with pytest.raises(NotLeaderOrFollowerError, match="Leader not local for partition topic-0 on broker 2"):
            nodes.partition(2).append(batch(b"a"), acks=1)
        assert nodes.partition(2).log_end_offset == 0

    def test_without_followers_a_batch_is_committed_at_once(self) -> None:
        nodes = Nodes(1)
        info = nodes.leader.append(batch(b"a", b"b"), acks=-1)
        assert (info.first_offset, info.last_offset) == (0, 1)
        assert nodes.leader.high_watermark == 2
        assert nodes.leader.last_stable_offset == 2
        assert nodes.leader.replicated(2)

    def test_a_too_small_isr_rejects_before_the_write(self) -> None:
        nodes = Nodes(2, min_insync_replicas=2)
        nodes.nodes[2].kill()
        with pytest.raises(NotEnoughReplicasError, match=r"ISR \[1\] is insufficient .* of 2 for partition topic-0"):
            nodes.leader.append(batch(b"a"), acks=-1)
        assert nodes.leader.log_end_offset == 0
        for acks in (0, 1):
            nodes.leader.append(batch(b"a"), acks=acks)
        assert (nodes.leader.log_end_offset, nodes.leader.high_watermark) == (2, 0)

    def test_min_insync_replicas_is_at_most_the_number_of_replicas(self) -> None:
        nodes = Nodes(1, min_insync_replicas=3)
        nodes.leader.append(batch(b"a"), acks=-1)
        assert nodes.leader.replicated(1)

    def test_a_committed_batch_with_too_few_replicas_is_an_error(self) -> None:
        nodes = Nodes(2)
        replicate(nodes, b"a")
        nodes.nodes[2].kill()
        nodes.leader.log.config = replace(nodes.leader.log.config, min_insync_replicas=2)
        with pytest.raises(NotEnoughReplicasAfterAppendError):
            nodes.leader.replicated(1)

    def test_a_duplicate_changes_nothing(self) -> None:
        nodes = Nodes(1)
        calls: list[None] = []
        records = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
        nodes.leader.append(bytearray(records), acks=-1)
        nodes.leader.add_watcher(lambda: calls.append(None))
        info = nodes.leader.append(bytearray(records), acks=-1)
        assert info.is_duplicate
        assert (info.first_offset, info.last_offset) == (0, 0)
        assert not calls


class TestFlush:
    def test_with_flush_messages_only_flushed_batches_are_committed(self) -> None:
        nodes = Nodes(1, flush_messages=2)
        leader = nodes.leader
        leader.append(batch(b"a"), acks=1)
        assert leader.durable(1)
        assert leader.high_watermark == 1
        leader.append(batch(b"b"), acks=1)
        assert nodes.nodes[1].flushes == [leader]
        assert not leader.durable(2)
        assert not leader.replicated(2)
        assert leader.high_watermark == 1
        leader.log.flush()
        leader.flushed()
        assert leader.durable(2)
        assert leader.replicated(2)

    def test_unflushed_records_are_not_acknowledged(self) -> None:
        nodes = Nodes(1, flush_messages=1)
        leader = nodes.leader
        leader.append(batch(b"a"), acks=1)
        leader.flush_failed(KafkaStorageError("disk is gone"))
        for is_acknowledged in (leader.durable, leader.replicated):
            with pytest.raises(KafkaStorageError, match="disk is gone"):
                is_acknowledged(1)
        leader.append(batch(b"b"), acks=1)
        # Of that batch nothing is known yet.
        assert not leader.durable(2)
        leader.log.flush()
        leader.flushed()
        assert leader.durable(1)
        assert leader.replicated(2)


class TestEpochs:
    def test_a_clients_epoch_is_compared(self) -> None:
        nodes = Nodes()
        nodes.controller.elect_leader("topic", 0, 2)
        leader = nodes.leader
        assert leader.leader_epoch == 1
        leader.check_leader_epoch(1)
        leader.check_leader_epoch(-1)
        with pytest.raises(FencedLeaderEpochError):
            leader.check_leader_epoch(0)
        with pytest.raises(UnknownLeaderEpochError):
            leader.check_leader_epoch(2)

    def test_an_epoch_begins_where_the_log_ends_even_if_nothing_is_written(self) -> None:
        nodes = Nodes()
        replicate(nodes, b"a", b"b")
        nodes.controller.elect_leader("topic", 0, 2)
        assert [tuple(entry) for entry in nodes.leader.log.leader_epochs.entries] == [(0, 0), (1, 2)]
        assert nodes.leader.leader_epoch_start_offset == 2
        assert nodes.partition(1).leader_epoch_start_offset == -1

    def test_an_older_state_is_dropped(self) -> None:
        nodes = Nodes()
        old = nodes.state
        nodes.controller.elect_leader("topic", 0, 2)
        assert not nodes.partition(1).apply(old)
        assert not nodes.partition(1).is_leader

    def test_a_leader_that_is_elected_again_keeps_its_followers(self) -> None:
        nodes = Nodes()
        replicate(nodes, b"a")
        leader = nodes.leader
        state = nodes.state
        nodes.time += 5
        again = replace(
            state, isr=[1, 2], leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1
        )
        assert leader.apply(again)
        assert leader.followers[2].log_end_offset == 1
        assert leader.followers[2].last_caught_up_time == nodes.time
        assert leader.followers[3].last_caught_up_time < 0

    def test_a_diverging_fetch_returns_the_end_of_the_epoch(self) -> None:
        nodes = Nodes()
        replicate(nodes, b"a", b"b", b"c")
        leader = nodes.leader
        assert leader.diverging(-1, 7) is None
        assert leader.diverging(0, 3) is None
        assert leader.diverging(0, 4) == (0, 3)
        with pytest.raises(OffsetOutOfRangeError, match="Could not determine the end offset"):
            leader.diverging(5, 3)
        leader.delete_records(2)
        with pytest.raises(OffsetOutOfRangeError, match="range 2 to 3"):
            leader.diverging(0, 1)

    def test_a_follower_truncates_records_that_the_leader_lacks(self) -> None:
        nodes = Nodes()
        replicate(nodes, b"a")
        nodes.leader.append(batch(b"lost"), acks=1)
        nodes.controller.elect_leader("topic", 0, 2)
        replicate(nodes, b"b")
        assert contents(nodes.partition(1).log) == contents(nodes.partition(2).log)
        assert nodes.partition(1).log_end_offset == 2

    @pytest.mark.parametrize(
        ("epoch", "end_offset", "kept"),
        [
            pytest.param(1, 3, 3, id="the leader's epoch ends before"),
            pytest.param(1, 9, 4, id="the own epoch ends before"),
            pytest.param(2, 9, 6, id="nothing is too much"),
            pytest.param(3, 9, 6, id="an epoch above all"),
            pytest.param(0, 1, 1, id="an old epoch"),
            pytest.param(1, -1, 5, id="no offset"),
        ],
    )
    def test_a_follower_truncates_to_the_end_of_the_common_epoch(self, epoch: int, end_offset: int, kept: int) -> None:
        follower = Nodes().partition(2)
        for leader_epoch in range(3):
            for index in range(2):
                offset = 2 * leader_epoch + index
                records = batch(b"a", base_offset=offset, partition_leader_epoch=leader_epoch)
                follower.append_fetched(records, 5, 0)
        follower.truncate_to_leader(epoch, end_offset)
        assert follower.log_end_offset == kept

    def test_an_unknown_epoch_truncates_to_the_end_of_the_one_before(self) -> None:
        follower = Nodes().partition(2)
        for offset, leader_epoch in enumerate((0, 2, 2)):
            follower.append_fetched(batch(b"a", base_offset=offset, partition_leader_epoch=leader_epoch), 0, 0)
        follower.truncate_to_leader(1, 3)
        assert follower.log_end_offset == 1
        assert follower.high_watermark == 0


class TestWatchers:
    def test_watchers_are_called_when_log_watermark_or_leadership_change(self) -> None:
        nodes = Nodes(2)
        seen: list[tuple[int, int, bool]] = []
        leader = nodes.leader

        def watch() -> None:
            seen.append((leader.log_end_offset, leader.high_watermark, leader.is_leader))

        leader.add_watcher(watch)
        leader.add_watcher(watch)
        assert leader.watcher_count == 1
        leader.append(batch(b"a"), acks=1)
        nodes.fetch(2)
        nodes.fetch(2)
        nodes.controller.elect_leader("topic", 0, 2)
        assert list(dict.fromkeys(seen)) == [(1, 0, True), (1, 1, True), (1, 1, False)]
        leader.remove_watcher(watch)
        leader.remove_watcher(watch)
        assert leader.watcher_count == 0

    def test_a_watcher_may_be_removed_during_the_calls(self) -> None:
        leader = Nodes(1).leader
        calls: list[str] = []

        def first() -> None:
            calls.append("first")
            leader.remove_watcher(first)

        leader.add_watcher(first)
        leader.add_watcher(lambda: calls.append("second"))
        leader.append(batch(b"a"), acks=1)
        leader.append(batch(b"b"), acks=1)
        assert calls == ["first", "second", "second"]

    def test_watchers_are_called_on_removal(self) -> None:
        leader = Nodes(1).leader
        leader.append(batch(b"a"), acks=1)
        calls: list[None] = []
        leader.add_watcher(lambda: calls.append(None))
        leader.remove()
        assert calls
        with pytest.raises(NotLeaderOrFollowerError):
            leader.replicated(1)


class TestInSync:
    def test_a_follower_that_reaches_the_previous_end_is_caught_up(self) -> None:
        follower = Follower()
        for turn in range(1, 100):
            # One record comes between each two fetches, so that it never has all.
            follower.fetched(turn - 1, 0, float(turn), turn, -1)
        assert follower.last_caught_up_time == 98.0
        assert follower.is_caught_up(200, 100.0, 30.0)
        assert not follower.is_caught_up(200, 130.0, 30.0)
        assert follower.is_caught_up(98, 130.0, 30.0)

    def test_slow_followers_leave_the_isr_after_lag_time_max_and_return(self) -> None:
        nodes = Nodes()
        replicate(nodes, b"a")
        nodes.leader.append(batch(b"b"), acks=1)
        nodes.fetch(2)
        nodes.fetch(2)
        nodes.time += LAG_TIME_MAX
        nodes.leader.shrink_isr()
        assert nodes.state.isr == [1, 2, 3]
        nodes.time += 1
        nodes.leader.shrink_isr()
        assert nodes.state.isr == [1, 2]
        assert nodes.leader.high_watermark == 2
        nodes.fetch(3)
        assert nodes.state.isr == [1, 2]
        nodes.fetch(3)
        assert nodes.state.isr == [1, 2, 3]

    def test_an_idle_partition_keeps_its_isr(self) -> None:
        nodes = Nodes()
        replicate(nodes, b"a")
        nodes.time += 1000 * LAG_TIME_MAX
        nodes.leader.shrink_isr()
        assert nodes.state.isr == [1, 2, 3]
        # A follower that had the whole log until now has not lagged before.
        nodes.leader.append(batch(b"b"), acks=1)
        nodes.time += LAG_TIME_MAX
        nodes.leader.shrink_isr()
        assert nodes.state.isr == [1, 2, 3]

    def test_the_high_watermark_waits_for_a_follower_that_catches_up(self) -> None:
        nodes = Nodes(2)
        replicate(nodes, b"a")
        nodes.nodes[2].kill()
        replicate(nodes, b"b")
        assert nodes.leader.high_watermark == 2
        nodes.time += 2 * LAG_TIME_MAX
        nodes.nodes[2].restart()
        nodes.fetch(2)
        nodes.leader.append(batch(b"c"), acks=1)
        assert nodes.leader.high_watermark == 3
        # It has come to where the log ended at its last fetch, but lacks what was committed since.
        nodes.fetch(2)
        assert nodes.state.isr == [1]
        nodes.leader.append(batch(b"d"), acks=1)
        assert nodes.leader.high_watermark == 3
        nodes.fetch(2)
        assert nodes.state.isr == [1, 2]

    def test_a_rejected_expansion_is_dropped(self) -> None:
        nodes = Nodes(2)
        host = nodes.nodes[1]
        nodes.nodes[2].kill()
        nodes.nodes[2].restart()
        maximal: list[set[int]] = []

        def refuse(state: PartitionState, isr: list[int]) -> PartitionState:
            maximal.append(nodes.leader.maximal_isr)
            nodes.leader.append(batch(b"meanwhile"), acks=1)
            assert nodes.leader.high_watermark == 0
            raise InvalidUpdateVersionError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(host, "alter_isr", refuse)
            nodes.fetch(2)
        assert maximal == [{1, 2}]
        assert nodes.leader.maximal_isr == {1}
        nodes.settle()
        assert nodes.state.isr == [1, 2]

    def test_a_follower_joins_only_with_all_records_of_earlier_epochs(self) -> None:
        nodes = Nodes()
        replicate(nodes, b"a")
        nodes.nodes[3].kill()
        nodes.leader.append(batch(b"b"), acks=1)
        nodes.fetch(2)
        nodes.fetch(2)
        assert nodes.leader.high_watermark == 2
        # Node 2 does not know yet that the second one is committed.
        nodes.partition(2).high_watermark = 1
        nodes.nodes[3].restart()
        nodes.controller.elect_leader("topic", 0, 2)
        leader = nodes.leader
        assert (leader.high_watermark, leader.leader_epoch_start_offset) == (1, 2)
        nodes.fetch(3)
        assert 3 not in nodes.state.isr
        nodes.fetch(3)
        assert 3 in nodes.state.isr

    def test_a_fetch_from_before_a_restart_is_rejected(self) -> None:
        nodes = Nodes(2)
        old = nodes.controller.image.nodes[2].epoch
        nodes.nodes[2].kill()
        nodes.nodes[2].restart()
        with pytest.raises(NotLeaderOrFollowerError, match="stale fetch state update"):
            nodes.leader.follower_fetched(2, 0, 0, old)
        assert nodes.state.isr == [1]
        nodes.leader.follower_fetched(2, 0, 0)
        assert nodes.state.isr == [1, 2]

    def test_an_unknown_replica_should_retry(self) -> None:
        with pytest.raises(UnknownLeaderEpochError, match="Replica 9 is not recognized"):
            Nodes().leader.follower_fetched(9, 0, 0)


class TestDeleteRecords:
    def test_delete_records_moves_the_log_start(self) -> None:
        nodes = Nodes(2)
        replicate(nodes, b"a", b"b", b"c")
        leader = nodes.leader
        assert leader.delete_records(2) == 0
        assert leader.log_start_offset == 2
        nodes.settle()
        assert nodes.partition(2).log_start_offset == 2
        assert leader.low_watermark == 2
        assert leader.delete_records(1) == 2
        assert leader.delete_records(-1) == 2
        assert leader.log_start_offset == 3
        nodes.nodes[2].kill()
        assert leader.low_watermark == 3

    def test_invalid_delete_records_are_rejected(self) -> None:
        nodes = Nodes(2)
        replicate(nodes, b"a")
        with pytest.raises(OffsetOutOfRangeError, match="larger than the high watermark 1"):
            nodes.leader.delete_records(2)
        with pytest.raises(OffsetOutOfRangeError, match="The offset -2"):
            nodes.leader.delete_records(-2)
        with pytest.raises(NotLeaderOrFollowerError):
            nodes.partition(2).delete_records(1)
        nodes.leader.log.config = replace(nodes.leader.log.config, cleanup_policy=frozenset({"compact"}))
        with pytest.raises(PolicyViolationError, match="due to the configured policy"):
            nodes.leader.delete_records(1)


class TestFollowing:
    def test_a_followers_high_watermark_is_at_most_its_log_end(self) -> None:
        follower = Nodes().partition(2)
        calls: list[None] = []
        follower.add_watcher(lambda: calls.append(None))
        follower.append_fetched(batch(b"a", partition_leader_epoch=0), 5, 0)
        assert follower.high_watermark == 1
        assert len(calls) == 1
        follower.append_fetched(b"", 0, 0)
        assert follower.high_watermark == 1
        assert len(calls) == 1

    def test_a_checkpoint_beyond_the_log_is_limited_to_it(self) -> None:
        nodes = Nodes(1)
        nodes.leader.append(batch(b"a"), acks=1)
        node: Node = nodes.nodes[1]
        node.checkpointed = 100
        node.kill()
        node.restart()
        assert nodes.leader.high_watermark == 1

    @pytest.mark.parametrize("make", [lambda: b"garbage" * 20, lambda: batch(b"a", base_offset=0)])
    def test_records_with_wrong_offsets_are_not_appended(self, make: Callable[[], bytes]) -> None:
        follower = Nodes().partition(2)
        follower.append_fetched(batch(b"a", partition_leader_epoch=0), 1, 0)
        with pytest.raises(Exception, match=r"."):
            follower.append_fetched(make(), 1, 0)
        assert follower.log_end_offset == 1


def test_the_repr_shows_role_epoch_and_offsets() -> None:
    nodes = Nodes(2)
    replicate(nodes, b"a")
    assert repr(nodes.leader) == "Partition(topic-0, leader, epoch 0, [0, 1, 1])"
    assert repr(nodes.partition(2)) == "Partition(topic-0, follower, epoch 0, [0, 1, 1])"
