"""Whatever happens to three replicas, nothing committed is lost and the logs agree in the end."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aioproducer.broker.replicas.partition import Partition
from aioproducer.errors import NotEnoughReplicasAfterAppendError, NotEnoughReplicasError, NotLeaderOrFollowerError
from aioproducer.wire.record_batch import iter_batches
from tests.broker.replicas.nodes import LAG_TIME_MAX, Answer, Nodes, batch, contents

NODE_IDS = st.integers(1, 3)


def values_of(partition: Partition) -> list[bytes]:
    """The values in a log, by offset from 0 on."""
    return [record.value or b"" for found in iter_batches(contents(partition.log)) for record in found.records()]


class Replication(RuleBasedStateMachine):
    """Three replicas, min.insync.replicas 2; nodes die, leaders move, answers to fetches arrive late or never."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = Nodes(min_insync_replicas=2)
        self.numbers = itertools.count()
        self.waiting: list[tuple[Partition, int, list[bytes]]] = []
        self.acknowledged: dict[int, bytes] = {}
        self.answers: list[Answer] = []
        self.seen: dict[tuple[int, int], int] = {}

    def alive(self) -> list[int]:
        return [node_id for node_id, node in self.nodes.nodes.items() if node.partition is not None]

    def has_leader(self) -> bool:
        return self.nodes.state.leader != -1

    @precondition(has_leader)
    @rule(count=st.integers(1, 3), acks=st.sampled_from([1, -1]))
    def append(self, count: int, acks: int) -> None:
        leader = self.nodes.leader
        end = leader.log_end_offset
        values = [b"%d" % next(self.numbers) for _ in range(count)]
        too_few = len(leader.isr) < 2
        try:
            info = leader.append(batch(*values), acks=acks)
        except NotEnoughReplicasError:
            assert too_few
            assert acks == -1
            assert leader.log_end_offset == end
            return
        assert not (too_few and acks == -1)
        assert (info.first_offset, info.last_offset) == (end, end + count - 1)
        if acks == -1:
            self.waiting.append((leader, end, values))

    @rule(node_id=NODE_IDS, max_bytes=st.sampled_from([1, 100, 2**20]))
    def ask(self, node_id: int, max_bytes: int) -> None:
        if node_id in self.alive():
            answer = self.nodes.ask(node_id, max_bytes)
            if answer is not None:
                self.answers.append(answer)

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.answers) - 1))
        self.nodes.take(self.answers.pop(index))

    @rule(node_id=NODE_IDS)
    def fetch(self, node_id: int) -> None:
        if node_id in self.alive():
            self.nodes.fetch(node_id)

    @rule(node_id=NODE_IDS)
    def kill_or_restart(self, node_id: int) -> None:
        node = self.nodes.nodes[node_id]
        if node.partition is not None:
            node.kill()
        else:
            node.restart()

    @rule(node_id=NODE_IDS)
    def move_leader(self, node_id: int) -> None:
        state = self.nodes.state
        if node_id in state.isr and node_id != state.leader and node_id in self.alive():
            self.nodes.controller.elect_leader(state.topic, state.index, node_id)

    @rule(seconds=st.sampled_from([1.0, LAG_TIME_MAX / 2, LAG_TIME_MAX + 1]))
    def time_passes(self, seconds: float) -> None:
        self.nodes.time += seconds
        if self.has_leader():
            self.nodes.leader.shrink_isr()

    @rule(node_id=NODE_IDS)
    def checkpoint(self, node_id: int) -> None:
        node = self.nodes.nodes[node_id]
        if node.partition is not None:
            node.checkpointed = node.partition.high_watermark

    @invariant()
    def acknowledge(self) -> None:
        """acks=all answers only when the high watermark has passed the batch, or with an error."""
        still = []
        for leader, first, values in self.waiting:
            end = first + len(values)
            try:
                is_replicated = leader.replicated(end)
            except NotLeaderOrFollowerError:
                continue
            except NotEnoughReplicasAfterAppendError:
                is_replicated = True
            assert is_replicated == (leader.high_watermark >= end)
            if is_replicated:
                self.acknowledged.update(enumerate(values, first))
            else:
                still.append((leader, first, values))
        self.waiting = still

    @invariant()
    def acknowledged_is_kept(self) -> None:
        if self.has_leader():
            values = values_of(self.nodes.leader)
            for offset, value in self.acknowledged.items():
                assert values[offset] == value

    @invariant()
    def high_watermark_is_what_the_isr_has(self) -> None:
        if not self.has_leader():
            return
        leader = self.nodes.leader
        in_sync = [self.nodes.partition(node_id) for node_id in leader.isr]
        assert leader.high_watermark <= min(partition.log_end_offset for partition in in_sync)
        key = (self.nodes.state.leader, leader.leader_epoch)
        assert leader.high_watermark >= self.seen.get(key, 0)
        self.seen[key] = leader.high_watermark

    @invariant()
    def epochs_rise(self) -> None:
        for node_id in self.alive():
            partition = self.nodes.partition(node_id)
            entries = partition.log.leader_epochs.entries
            for before, after in itertools.pairwise(entries):
                assert before.epoch < after.epoch
                assert before.start_offset < after.start_offset
                assert partition.log.end_offset_for_epoch(before.epoch) == (before.epoch, after.start_offset)
            if entries:
                last = entries[-1].epoch
                assert partition.log.end_offset_for_epoch(last) == (last, partition.log_end_offset)

    @invariant()
    def caught_up_is_equal(self) -> None:
        """What a follower was confirmed to have is what the leader has."""
        if not self.has_leader():
            return
        leader = self.nodes.leader
        for node_id, follower in leader.followers.items():
            if node_id in self.alive() and follower.broker_epoch == self.nodes.controller.image.nodes[node_id].epoch:
                partition = self.nodes.partition(node_id)
                end = follower.log_end_offset
                if partition.leader_epoch == leader.leader_epoch and partition.log_end_offset >= end > 0:
                    assert values_of(partition)[:end] == values_of(leader)[:end]

    def teardown(self) -> None:
        for node in self.nodes.nodes.values():
            if node.partition is None:
                node.restart()
        self.nodes.settle()
        leader = self.nodes.leader
        logs = [contents(self.nodes.partition(node_id).log) for node_id in self.nodes.nodes]
        assert logs[0] == logs[1] == logs[2]
        assert sorted(leader.isr) == [1, 2, 3]
        assert {self.nodes.partition(node_id).high_watermark for node_id in self.nodes.nodes} == {leader.log_end_offset}
        values = values_of(leader)
        assert {offset: values[offset] for offset in self.acknowledged} == self.acknowledged


Replication.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestReplication = Replication.TestCase
