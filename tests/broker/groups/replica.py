"""A partition with a high watermark that a test moves, and a shard that serves its groups."""

from __future__ import annotations

import asyncio
from typing import cast

from aioproducer.broker.groups.offsets import OffsetKey, StoredOffset
from aioproducer.broker.groups.records import OffsetCommitValue, OffsetRecord, Record, encode_record, offset_record
from aioproducer.broker.groups.shard import Marker, Shard
from aioproducer.broker.groups.states import GroupSettings
from aioproducer.broker.groups.timers import Moment
from aioproducer.broker.replicas.partition import Partition
from aioproducer.errors import InvalidProducerEpochError, InvalidTxnStateError
from aioproducer.wire.record import SimpleRecord
from aioproducer.wire.record_batch import RecordBatch, encode_batch
from tests.broker.coordination.replica import Appended
from tests.broker.coordination.replica import Replica as LedPartition

from .driving import WALL_MS


class Replica(LedPartition):
    """A partition of ``__consumer_offsets``, which accepts batches of transactions and their markers."""

    topic = "__consumer_offsets"

    def __init__(self, *, replicates: bool = True) -> None:
        super().__init__(replicates=replicates)
        self.epochs: dict[int, int] = {}
        self.open: set[int] = set()
        """The producer ids with an open transaction."""
        self.guards: dict[int, object] = {}

    def append(self, records: bytearray, *, acks: int, origin: str, guard: object | None = None) -> Appended:
        batch = RecordBatch(records)
        if self.append_error is None and batch.is_transactional:
            self._begin(batch.producer_id, batch.producer_epoch, guard)
        return super().append(records, acks=acks, origin=origin)

    def _check_epoch(self, producer_id: int, epoch: int) -> None:
        if epoch < self.epochs.get(producer_id, -1):
            raise InvalidProducerEpochError()
        self.epochs[producer_id] = epoch

    def _begin(self, producer_id: int, epoch: int, guard: object | None) -> None:
        if producer_id not in self.open and (guard is None or self.guards.get(producer_id) is not guard):
            raise InvalidTxnStateError()
        self._check_epoch(producer_id, epoch)
        self.guards.pop(producer_id, None)
        self.open.add(producer_id)

    def begin_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool
    ) -> object | None:
        assert sequence == -1
        if epoch < self.epochs.get(producer_id, -1):
            raise InvalidProducerEpochError()
        return None if producer_id in self.open else self.guards.setdefault(producer_id, object())

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Appended:
        if self.append_error is not None:
            raise self.append_error
        self._check_epoch(producer_id, producer_epoch)
        self.open.discard(producer_id)
        self.guards.pop(producer_id, None)
        return self.take(marker_batch(producer_id, producer_epoch, kind=int(committed)))

    def keep(self, *records: Record, key: bytes | None = None) -> None:
        """Append records to the log, as an earlier leader has done, and finally one with ``key``."""
        encoded = [encode_record(record) for record in records]
        self.store(*encoded, *([] if key is None else [(key, b"")]))


def marker_batch(producer_id: int, producer_epoch: int = 0, *, kind: int) -> bytearray:
    """A control batch; ``kind`` 0 aborts and 1 commits."""
    key = b"\0\0" + kind.to_bytes(2, "big")
    record = SimpleRecord(WALL_MS, key, b"\0\0\0\0\0\1")
    batch = encode_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )
    return bytearray().join(batch)


class Clock:
    """A wall clock that a test moves; the monotonic clock is the loop's."""

    def __init__(self) -> None:
        self.wall_ms = WALL_MS

    def moment(self) -> Moment:
        return Moment(asyncio.get_running_loop().time(), self.wall_ms)


async def serving(replica: Replica, clock: Clock | None = None, *, timeout_ms: int = 5000) -> Shard:
    shard = Shard(
        cast("Partition", replica),
        GroupSettings(initial_rebalance_delay_ms=0),
        (clock or Clock()).moment,
        commit_timeout_ms=timeout_ms,
    )
    await shard.load()
    return shard


def offset(index: int, value: int | None, group_id: str = "group", topic: str = "orders") -> OffsetRecord:
    kept = None if value is None else OffsetCommitValue(offset=value, commit_timestamp=WALL_MS)
    return offset_record(group_id, topic, index, kept)


def offsets_of(shard: Shard, group_id: str = "group") -> dict[tuple[str, int], int]:
    return {
        (topic, index): kept.value.offset
        for topic, partitions in shard.offsets.of_group(group_id).items()
        for index, kept in partitions.items()
    }


def committed(shard: Shard, producer_id: int, *records: OffsetRecord, epoch: int = 0) -> list[int]:
    """The codes that a commit in a transaction of ``producer_id`` has received so far."""
    codes: list[int] = []
    guard = shard.begin_verification(producer_id, epoch, adds=True)
    shard.append_in_transaction(records, producer_id, epoch, guard, codes.append)
    return codes


def ended(shard: Shard, producer_id: int, *, commit: bool, epoch: int = 0) -> list[int]:
    """The codes that a marker has received so far."""
    codes: list[int] = []
    shard.append_marker(Marker(producer_id, epoch, commit, 1, 2), codes.append)
    return codes


def pending_of(shard: Shard, group_id: str = "group") -> dict[tuple[str, int], set[int]]:
    """The producer ids with a pending offset, by topic and partition."""
    return {
        (topic, index): set(producer_ids)
        for topic, partitions in shard.offsets.pending_of(group_id).items()
        for index, producer_ids in partitions.items()
    }


def state_of(shard: Shard) -> tuple[object, ...]:
    """Return a shard's complete state of offsets."""
    groups = sorted(shard.groups)
    kept: dict[OffsetKey, StoredOffset] = {
        (group_id, topic, index): offset
        for group_id in groups
        for topic, partitions in shard.offsets.of_group(group_id).items()
        for index, offset in partitions.items()
    }
    pending = {producer_id: dict(keys) for producer_id, keys in shard.offsets.pending.items()}
    return groups, kept, pending, {group_id: pending_of(shard, group_id) for group_id in groups}
