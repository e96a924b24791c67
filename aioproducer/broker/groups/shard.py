"""The groups of one partition of ``__consumer_offsets``: loaded from its log, kept in memory and served.

Memory reflects the records that were written *and replicated*: a record is applied when the high watermark has passed
it, and a failed write changes nothing (Kafka's ``CoordinatorRuntime``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from aioproducer.broker.coordination.codes import coordinator_code
from aioproducer.broker.coordination.replicated_writes import NOWHERE, Done, ReplicatedWrites
from aioproducer.broker.coordination.stored_records import stored_records
from aioproducer.broker.groups.classic_group import GroupWrite
from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.group import Group
from aioproducer.broker.groups.offsets import Offsets
from aioproducer.broker.groups.records import (
    GroupMetadataValue,
    GroupRecord,
    OffsetRecord,
    Record,
    decode_marker,
    decode_record,
    encode_record,
    group_record,
)
from aioproducer.broker.groups.states import GroupSettings, GroupState
from aioproducer.broker.groups.timers import MILLISECOND, Moment
from aioproducer.broker.replicas.partition import Partition
from aioproducer.broker.yielding import LoopYielder
from aioproducer.errors import ProtocolError
from aioproducer.wire.record import SimpleRecord
from aioproducer.wire.record_batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchRecord,
    RecordBatch,
    encode_batch,
)

if TYPE_CHECKING:
    from aioproducer.broker.log import AppendInfo, VerificationGuard

logger = logging.getLogger(__name__)


class Marker(NamedTuple):
    """The end of a producer's transaction."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


class Shard:
    """One partition of ``__consumer_offsets``, led by this node."""

    def __init__(
        self,
        partition: Partition,
        settings: GroupSettings,
        moment: Callable[[], Moment],
        *,
        commit_timeout_ms: int,
        compression_type: str = "none",
    ) -> None:
        self.partition = partition
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.is_loaded = False
        self.is_current = True
        """A new leader epoch changes nothing here."""
        self._settings = settings
        self._moment = moment
        self._commit_timeout = commit_timeout_ms * MILLISECOND
        self._compression_type = compression_type
        self._writes = ReplicatedWrites(partition)
        self._undecided: deque[frozenset[str]] = deque()
        """The groups of each write without an outcome."""
        self._wakes: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"Shard({self.partition.topic}-{self.partition.index}, {len(self.groups)} groups)"

    # Loading

    async def load(self) -> None:
        """Read the log, then serve. Yields to the loop while it reads.

        Raises:
            KafkaError: the log cannot be read.
        """
        metadata: dict[str, GroupMetadataValue | None] = {}
        async for batch, stored in stored_records(self.partition):
            try:
                self._replay(batch, stored, metadata)
            except ProtocolError as error:
                logger.error("%r: skipping the record at offset %d: %s", self, stored.offset, error)
        yielder = LoopYielder()
        for group_id, value in metadata.items():
            if value is None:
                self._simple_group(group_id)
            else:
                self.groups[group_id] = Group.load(group_id, value, self._settings, _unique)
            await yielder.pause()
        self.is_loaded = True
        for group in self.groups.values():
            group.resume(self._moment())
            self.serve(group)

    def _replay(self, batch: RecordBatch, stored: BatchRecord, metadata: dict[str, GroupMetadataValue | None]) -> None:
        """Apply a record of the log. ``metadata`` is that of each group, ``None`` for one that only has offsets.

        Raises:
            ProtocolError: the record cannot be decoded.
        """
        if batch.is_control:
            committed = decode_marker(stored.key)
            if committed is not None:
                self.offsets.end_transaction(batch.producer_id, committed=committed)
            return
        record = decode_record(stored.key, stored.value)
        if isinstance(record, OffsetRecord):
            self.offsets.apply(record.key, record.value, stored.offset, batch.producer_id)
            if record.value is not None:
                metadata.setdefault(record.key.group, None)
        elif isinstance(record, GroupRecord):
            metadata.pop(record.key.group, None)
            if record.value is not None:
                metadata[record.key.group] = record.value

    def close(self, code: int) -> None:
        """Stop serving; waiting requests are answered with ``code``."""
        self._is_closed = True
        self.is_loaded = False
        for _, handle in self._wakes.values():
            handle.cancel()
        self._wakes.clear()
        for group in self.groups.values():
            group.close(code)
        self._writes.close(code)

    # Groups

    def create_group(self, group_id: str) -> Group:
        """Create a group without members; the caller has to write it to the log."""
        group = Group(group_id, self._settings, _unique, wall_ms=self._moment().wall_ms)
        self.groups[group_id] = group
        return group

    def _simple_group(self, group_id: str) -> None:
        """Create the group of a consumer that commits offsets without being a member."""
        if group_id not in self.groups:
            self.create_group(group_id)

    def write_new(self, group: Group) -> None:
        """Write a new group to the log; remove it again if the write fails."""

        def written(code: int, at: Moment) -> None:
            if code and not self._is_closed and self.groups.get(group.group_id) is group:
                logger.warning("%r: the new group %s could not be written to the log", self, group.group_id)
                self._drop(group, code)

        empty = GroupMetadataValue(protocol=None, leader=None, current_state_timestamp=group.state_since_ms)
        group.writes.append(GroupWrite(empty, written))

    def _drop(self, group: Group, code: int) -> None:
        self.groups.pop(group.group_id, None)
        self._cancel_wake(group)
        group.close(code)

    def serve(self, group: Group) -> None:
        """Append what ``group`` has to write, and set its timer; call it after each change of the group."""
        while group.writes:
            write = group.writes.pop(0)
            self.append([group_record(group.group_id, write.value)], self._write_done(group, write))
        wake_at = group.timers.wake_at
        if self._is_closed or wake_at is None:
            return
        armed = self._wakes.get(group.group_id)
        if armed is None or armed[0] > wake_at:
            self._cancel_wake(group)
            handle = asyncio.get_running_loop().call_at(wake_at, self._wake, group)
            self._wakes[group.group_id] = wake_at, handle

    def _cancel_wake(self, group: Group) -> None:
        armed = self._wakes.pop(group.group_id, None)
        if armed is not None:
            armed[1].cancel()

    def _write_done(self, group: Group, write: GroupWrite) -> Done:
        def done(code: int) -> None:
            write.done(code, self._moment())
            if not self._is_closed:
                self.serve(group)

        return done

    def _wake(self, group: Group) -> None:
        self._wakes.pop(group.group_id, None)
        group.timers.expire(self._moment())
        self.serve(group)

    # Writing

    def append(
        self,
        records: Sequence[Record],
        done: Done,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        guard: VerificationGuard | None = None,
    ) -> None:
        """Write ``records`` as one batch; when it is replicated, they take effect and ``done`` is called.

        Without records ``done`` is called when all earlier writes have ended. The other arguments belong to a
        transaction, see ``append_in_transaction``.
        """

        def finish(code: int) -> None:
            done(coordinator_code(code))

        if not records:
            self._writes.wait(self._commit_timeout, finish)
            return
        is_transactional = producer_id != NO_PRODUCER_ID
        groups = frozenset(record.key.group for record in records)

        def append() -> AppendInfo:
            kept = [SimpleRecord(self._moment().wall_ms, *encode_record(record)) for record in records]
            batch = encode_batch(
                kept,
                compression_type=self._compression_type,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=0 if is_transactional else NO_SEQUENCE,
                transactional=is_transactional,
            )
            info = self.partition.append(bytearray().join(batch), acks=-1, origin="coordinator", guard=guard)
            self._undecided.append(groups)
            return info

        def decided(code: int, end_offset: int) -> None:
            if end_offset != NOWHERE:
                self._undecided.remove(groups)
            if code == Code.NONE:
                for record_offset, record in enumerate(records, end_offset - len(records)):
                    self._apply(record, record_offset, producer_id)

        self._writes.write(append, self._commit_timeout, decided, finish)

    def begin_verification(self, producer_id: int, producer_epoch: int, *, adds: bool) -> VerificationGuard | None:
        """Return the guard that ``append_in_transaction`` needs after the coordinator has verified the transaction.

        ``None`` if the transaction has written to this partition before and is still open. ``adds``: the transaction
        coordinator adds the partition, as it does for producers that get an epoch for each transaction.

        Raises:
            InvalidProducerEpochError: a newer epoch is known.
        """
        return self.partition.begin_verification(producer_id, NO_SEQUENCE, producer_epoch, supports_epoch_bump=adds)

    def append_in_transaction(
        self,
        records: Sequence[OffsetRecord],
        producer_id: int,
        producer_epoch: int,
        guard: VerificationGuard | None,
        done: Done,
    ) -> None:
        """Write offsets as one batch of a transaction; when it is replicated, they are pending and ``done`` is called.

        The batch has the sequence number 0, as Kafka's coordinator writes it: neither checks that of its own batches.
        """
        self.append(records, done, producer_id, producer_epoch, guard)

    def append_marker(self, marker: Marker, done: Done) -> None:
        """Write the end of a transaction; when it is replicated, it takes effect and ``done`` is called.

        ``done`` receives the code of the partition, not the coordinator's.
        """

        def append() -> AppendInfo:
            return self.partition.append_marker(
                marker.producer_id,
                marker.producer_epoch,
                committed=marker.committed,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )

        def decided(code: int, end_offset: int) -> None:
            if code == Code.NONE:
                self.offsets.end_transaction(marker.producer_id, committed=marker.committed)

        self._writes.write(append, self._commit_timeout, decided, done)

    def _apply(self, record: Record, record_offset: int, producer_id: int) -> None:
        if isinstance(record, OffsetRecord):
            self.offsets.apply(record.key, record.value, record_offset, producer_id)
            if record.value is not None:
                self._simple_group(record.key.group)
        elif record.value is None:
            group = self.groups.get(record.key.group)
            # If a client has joined since, its group is written again.
            if group is not None and group.state is GroupState.EMPTY and not group.pending_members:
                self._drop(group, Code.COORDINATOR_NOT_AVAILABLE)

    # Cleaning up

    async def clean_up(self, retention_ms: int) -> None:
        """Delete expired offsets, and groups that have neither members nor offsets, pending ones included."""
        yielder = LoopYielder()
        for group in list(self.groups.values()):
            if self._is_closed:
                return
            if any(group.group_id in groups for groups in self._undecided):
                # A write in progress may be newer than the state in memory.
                continue
            records: list[Record] = list(self.offsets.expired(group, self._moment().wall_ms, retention_ms))
            kept = sum(len(partitions) for partitions in self.offsets.of_group(group.group_id).values())
            has_pending = bool(self.offsets.pending_of(group.group_id))
            is_unused = group.state is GroupState.EMPTY and not group.pending_members and not has_pending
            if len(records) == kept and is_unused:
                records.append(group_record(group.group_id, None))
            if records:
                self.append(records, lambda code: None)
            await yielder.pause()

    def forget_partitions(self, partitions: Container[tuple[str, int]]) -> None:
        """Delete the offsets of deleted partitions, including those of commits in progress."""

        def forget(code: int) -> None:
            records = self.offsets.of_partitions(partitions)
            if records and code == Code.NONE:
                self.append(records, lambda code: None)

        self.append([], forget)


def _unique() -> str:
    return str(uuid4())
