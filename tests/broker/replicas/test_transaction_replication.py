"""Whatever happens to three replicas, readers of committed records see each transaction whole or not at all."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from aioproducer.broker.log import Log
from aioproducer.broker.replicas.partition import Partition
from aioproducer.errors import NotEnoughReplicasError
from aioproducer.wire.aborted_filter import AbortedFilter
from aioproducer.wire.control_batch import ControlRecordType, read_control_record
from aioproducer.wire.record_batch import RecordBatch, SimpleRecord, encode_batch, iter_batches
from tests.broker.replicas.nodes import contents
from tests.broker.replicas.test_replication_properties import Replication

PRODUCERS = st.integers(1, 2)


def batches_below(log: Log, end: int) -> list[RecordBatch]:
    return [batch for batch in iter_batches(contents(log)) if batch.last_offset < end]


def expected(partition: Partition) -> tuple[int, list[bytes]]:
    """The last stable offset, and the values of committed transactions below it, by reading every batch."""
    batches = batches_below(partition.log, partition.high_watermark)
    open_: dict[int, list[RecordBatch]] = {}
    aborted: set[int] = set()
    for batch in batches:
        if batch.is_control:
            ended = open_.pop(batch.producer_id, [])
            if read_control_record(batch).type is ControlRecordType.ABORT:
                aborted.update(each.base_offset for each in ended)
        elif batch.is_transactional:
            open_.setdefault(batch.producer_id, []).append(batch)
    stable = min((each[0].base_offset for each in open_.values()), default=partition.high_watermark)
    return stable, [
        record.value or b""
        for batch in batches
        if batch.last_offset < stable and not batch.is_control and batch.base_offset not in aborted
        for record in batch.records()
    ]


def committed_values(partition: Partition) -> list[bytes]:
    """What a reader of committed records gets, some bytes at a time."""
    found: list[bytes] = []
    offset, end = partition.log_start_offset, partition.last_stable_offset
    while offset < end:
        buffers, listed = partition.log.read_committed(offset, 300, up_to=end, min_one_batch=True)
        aborted = AbortedFilter((each.first_offset, each.producer_id) for each in listed)
        batches = list(iter_batches(b"".join(buffers)))
        if not batches:
            # The last batch below the high watermark that this replica knows reaches above it.
            break
        for batch in batches:
            if not (aborted.drops(batch) or batch.is_control):
                found += [record.value or b"" for record in batch.records()]
        offset = batches[-1].next_offset
    return found


class TransactionReplication(Replication):
    """As ``Replication``, with two producers that write transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[bytes] = []
        """The most that a reader of committed records has seen at a leader."""

    @precondition(Replication.has_leader)
    @rule(producer_id=PRODUCERS, count=st.integers(1, 2))
    def write(self, producer_id: int, count: int) -> None:
        leader = self.nodes.leader
        state = leader.log.producer_state.producers.get(producer_id)
        sequence = state.last_sequence + 1 if state is not None else 0
        epoch = state.producer_epoch if state is not None else 0
        records = encode_batch(
            [SimpleRecord(0, None, b"%d" % next(self.numbers)) for _ in range(count)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        guard = leader.begin_verification(producer_id, sequence, epoch, supports_epoch_bump=False)
        leader.append(bytearray().join(records), acks=1, guard=guard)

    @precondition(Replication.has_leader)
    @rule(producer_id=PRODUCERS, committed=st.booleans(), is_bumped=st.booleans(), is_replicated=st.booleans())
    def end(self, producer_id: int, committed: bool, is_bumped: bool, is_replicated: bool) -> None:
        """Write a marker, where asked for when all before it is committed."""
        if is_replicated:
            self.replicate(1)
        leader = self.nodes.leader
        state = leader.log.producer_state.producers.get(producer_id)
        epoch = (state.producer_epoch if state is not None else 0) + is_bumped
        too_few = len(leader.isr) < 2
        try:
            leader.append_marker(
                producer_id,
                epoch,
                committed=committed,
                coordinator_epoch=0,
                transaction_version=2 if is_bumped else 1,
            )
        except NotEnoughReplicasError:
            assert too_few
        else:
            assert not too_few

    @precondition(Replication.has_leader)
    @rule(times=st.integers(1, 2))
    def replicate(self, times: int) -> None:
        """All followers fetch what is there, and the second time what has become of the high watermark."""
        for _ in range(2 * times):
            for node_id in self.alive():
                self.nodes.fetch(node_id)

    @invariant()
    def offsets_are_in_order(self) -> None:
        for node_id in self.alive():
            partition = self.nodes.partition(node_id)
            assert (
                partition.log_start_offset
                <= partition.last_stable_offset
                <= partition.high_watermark
                <= partition.log_end_offset
            )

    @invariant()
    def transactions_are_whole(self) -> None:
        for node_id in self.alive():
            partition = self.nodes.partition(node_id)
            stable, values = expected(partition)
            if partition.high_watermark in {batch.next_offset for batch in iter_batches(contents(partition.log))}:
                assert partition.last_stable_offset == stable
            assert committed_values(partition) == values

    @invariant()
    def what_was_read_stays(self) -> None:
        if self.has_leader():
            values = committed_values(self.nodes.leader)
            shorter, longer = sorted((values, self.read), key=len)
            assert longer[: len(shorter)] == shorter
            self.read = longer

    def teardown(self) -> None:
        super().teardown()
        states = [self.nodes.partition(node_id).log.producer_state.producers for node_id in self.nodes.nodes]
        transactions = [
            {key: (state.producer_epoch, state.current_transaction_first_offset) for key, state in each.items()}
            for each in states
        ]
        assert transactions[0] == transactions[1] == transactions[2]
        assert committed_values(self.nodes.leader)[: len(self.read)] == self.read
        entries = [
            [each for segment in self.nodes.partition(node_id).log._segments for each in segment.transaction_index]
            for node_id in self.nodes.nodes
        ]
        assert entries[0] == entries[1] == entries[2]


TransactionReplication.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestTransactionReplication = TransactionReplication.TestCase
