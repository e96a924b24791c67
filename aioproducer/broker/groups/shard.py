"""The groups of one partition of ``__consumer_offsets``: what its log says, kept in memory and served.

What is in memory is what the last records that were written *and replicated* say: a record is applied when the high
watermark has passed it, and a write that fails changes nothing (Kafka's ``CoordinatorRuntime``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Container, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from aioproducer.broker.groups.classic_group import GroupWrite
from aioproducer.broker.groups.codes import Code, code_of_append
from aioproducer.broker.groups.group import Group
from aioproducer.broker.groups.offsets import Offsets
from aioproducer.broker.groups.records import (
    GroupMetadataValue,
    GroupRecord,
    OffsetRecord,
    Record,
    decode_record,
    encode_record,
    group_record,
)
from aioproducer.broker.groups.states import GroupSettings, GroupState
from aioproducer.broker.groups.timers import MILLISECOND, Moment
from aioproducer.broker.replicas.partition import Partition
from aioproducer.errors import KafkaError, NotEnoughReplicasAfterAppendError, ProtocolError
from aioproducer.wire.record import SimpleRecord
from aioproducer.wire.record_batch import BatchRecord, encode_batch, iter_batches

logger = logging.getLogger(__name__)

LONGEST_TURN: Final = 0.002
"""For how many seconds the loop is held while loading or cleaning up, before others get a turn."""

_LOAD_BYTES: Final = 64 * 1024

Done = Callable[[int], None]
"""Takes the code with which a write ended, 0 where it is in the log and replicated. Called once."""


@dataclass(slots=True)
class _Pending:
    """A write that is in the log and not replicated yet."""

    end_offset: int
    records: Sequence[Record]
    done: Done | None
    """None where its time was up: who waited was told so, the records may be replicated yet."""
    give_up_at: float


class Turns:
    """Lets others have the loop when a long piece of work has held it for a while."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def over(self) -> None:
        """Call it after each small step."""
        if self._loop.time() - self._began > LONGEST_TURN:
            await asyncio.sleep(0)
            self._began = self._loop.time()


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
        self._settings = settings
        self._moment = moment
        self._commit_timeout = commit_timeout_ms * MILLISECOND
        self._compression_type = compression_type
        self._pending: deque[_Pending] = deque()
        self._give_up: asyncio.TimerHandle | None = None
        self._wakes: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"Shard({self.partition.topic}-{self.partition.index}, {len(self.groups)} groups)"

    # Loading

    async def load(self) -> None:
        """Read the log, then serve. Takes turns with whatever else the loop has to do.

        Raises:
            KafkaError: the log cannot be read.
        """
        turns = Turns()
        metadata: dict[str, GroupMetadataValue] = {}
        async for stored in self._stored(turns):
            try:
                record = decode_record(stored.key, stored.value)
            except ProtocolError as error:
                logger.error("%r: the record at offset %d is left out: %s", self, stored.offset, error)
                continue
            if isinstance(record, OffsetRecord):
                self.offsets.apply(record.key, record.value)
            elif isinstance(record, GroupRecord):
                metadata.pop(record.key.group, None)
                if record.value is not None:
                    metadata[record.key.group] = record.value
        for group_id, value in metadata.items():
            self.groups[group_id] = Group.load(group_id, value, self._settings, _unique)
            await turns.over()
        for group_id in self.offsets.group_ids:
            self._simple_group(group_id)
        self.partition.add_watcher(self._settle)
        self.is_loaded = True
        for group in self.groups.values():
            group.resume(self._moment())
            self.serve(group)

    async def _stored(self, turns: Turns) -> AsyncIterator[BatchRecord]:
        log = self.partition.log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            # The log may be cut at its start meanwhile.
            offset = max(offset, log.log_start_offset)
            for buffer in log.read(offset, _LOAD_BYTES, up_to=log.log_end_offset, min_one_batch=True):
                for batch in iter_batches(buffer):
                    if not batch.is_control:
                        for record in batch.records():
                            if record.offset >= offset:
                                yield record
                            await turns.over()
                    offset = max(offset, batch.next_offset)
            await turns.over()

    def close(self, code: int) -> None:
        """Serve no more. Who waits is told ``code``."""
        self._is_closed = True
        self.is_loaded = False
        self.partition.remove_watcher(self._settle)
        if self._give_up is not None:
            self._give_up.cancel()
        for _, handle in self._wakes.values():
            handle.cancel()
        self._wakes.clear()
        for group in self.groups.values():
            group.close(code)
        while self._pending:
            self._finish(self._pending.popleft(), code)

    # Groups

    def create_group(self, group_id: str) -> Group:
        """A new group, without members. It is to be written to the log."""
        group = Group(group_id, self._settings, _unique, wall_ms=self._moment().wall_ms)
        self.groups[group_id] = group
        return group

    def _simple_group(self, group_id: str) -> None:
        """The group of a consumer that keeps offsets and is no member of any."""
        if group_id not in self.groups:
            self.create_group(group_id)

    def write_new(self, group: Group) -> None:
        """Have the log say that there is such a group; it is gone again where that fails."""

        def written(code: int, at: Moment) -> None:
            if code and not self._is_closed and self.groups.get(group.group_id) is group:
                logger.warning("%r: the new group %s could not be written", self, group.group_id)
                self._drop(group, code)

        empty = GroupMetadataValue(protocol=None, leader=None, current_state_timestamp=group.state_since_ms)
        group.writes.append(GroupWrite(empty, written))

    def _drop(self, group: Group, code: int) -> None:
        self.groups.pop(group.group_id, None)
        self._sleep_on(group)
        group.close(code)

    def serve(self, group: Group) -> None:
        """Do what ``group`` wants done after something has happened to it."""
        while group.writes:
            write = group.writes.pop(0)
            self.append([group_record(group.group_id, write.value)], self._told(group, write))
        wake_at = group.timers.wake_at
        if self._is_closed or wake_at is None:
            return
        armed = self._wakes.get(group.group_id)
        if armed is None or armed[0] > wake_at:
            self._sleep_on(group)
            handle = asyncio.get_running_loop().call_at(wake_at, self._wake, group)
            self._wakes[group.group_id] = wake_at, handle

    def _sleep_on(self, group: Group) -> None:
        armed = self._wakes.pop(group.group_id, None)
        if armed is not None:
            armed[1].cancel()

    def _told(self, group: Group, write: GroupWrite) -> Done:
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

    def append(self, records: Sequence[Record], done: Done) -> None:
        """Write ``records`` as one batch; they are true, and ``done`` is called, when they are replicated.

        Without records ``done`` is called when all writes before have ended.
        """
        if self._is_closed:
            done(Code.NOT_COORDINATOR)
            return
        at = self._moment()
        end_offset = self._pending[-1].end_offset if self._pending else 0
        if records:
            try:
                kept = [SimpleRecord(at.wall_ms, *encode_record(record)) for record in records]
                batch = b"".join(encode_batch(kept, compression_type=self._compression_type))
                info = self.partition.append(bytearray(batch), acks=-1, origin="coordinator")
            except KafkaError as error:
                logger.debug("%r: a write failed: %s", self, error)
                done(code_of_append(error))
                return
            end_offset = info.last_offset + 1
        self._pending.append(_Pending(end_offset, records, done, at.now + self._commit_timeout))
        self._settle()

    def _settle(self) -> None:
        """End those writes that are replicated, or never will be as far as this leader can tell."""
        while self._pending:
            try:
                if not self.partition.replicated(self._pending[0].end_offset):
                    self._watch_time()
                    return
                code = int(Code.NONE)
            except NotEnoughReplicasAfterAppendError:
                # It is committed all the same.
                code = Code.NONE
            except KafkaError as error:
                code = code_of_append(error)
            self._finish(self._pending.popleft(), code)

    def _finish(self, pending: _Pending, code: int) -> None:
        if code == Code.NONE:
            for record in pending.records:
                self._apply(record)
        if pending.done is not None:
            pending.done(code)

    def _apply(self, record: Record) -> None:
        if isinstance(record, OffsetRecord):
            self.offsets.apply(record.key, record.value)
            if record.value is not None:
                self._simple_group(record.key.group)
        elif record.value is None:
            group = self.groups.get(record.key.group)
            # Who has joined meanwhile has the group written again.
            if group is not None and group.state is GroupState.EMPTY and not group.pending_members:
                self._drop(group, Code.COORDINATOR_NOT_AVAILABLE)

    def _watch_time(self) -> None:
        """Writes are told that their time is up even when nothing moves."""
        if self._give_up is None and not self._is_closed:
            waiting = next((pending.give_up_at for pending in self._pending if pending.done is not None), None)
            if waiting is not None:
                self._give_up = asyncio.get_running_loop().call_at(waiting, self._time_is_up)

    def _time_is_up(self) -> None:
        self._give_up = None
        now = self._moment().now
        late = [pending for pending in self._pending if pending.done is not None and pending.give_up_at <= now]
        for pending in late:
            done, pending.done = pending.done, None
            if done is not None:
                done(Code.COORDINATOR_NOT_AVAILABLE)
        self._watch_time()

    # Cleaning up

    async def clean_up(self, retention_ms: int) -> None:
        """Forget offsets that have expired, and groups that have neither members nor offsets."""
        turns = Turns()
        for group in list(self.groups.values()):
            if self._is_closed:
                return
            if any(record.key.group == group.group_id for pending in self._pending for record in pending.records):
                # What is on its way may be newer than what is known here.
                continue
            records: list[Record] = list(self.offsets.expired(group, self._moment().wall_ms, retention_ms))
            kept = sum(len(partitions) for partitions in self.offsets.of_group(group.group_id).values())
            if len(records) == kept and group.state is GroupState.EMPTY and not group.pending_members:
                records.append(group_record(group.group_id, None))
            if records:
                self.append(records, lambda code: None)
            await turns.over()

    def forget_partitions(self, partitions: Container[tuple[str, int]]) -> None:
        """Forget the offsets of partitions that were deleted, also those that are being committed now."""

        def forget(code: int) -> None:
            records = self.offsets.of_partitions(partitions)
            if records and code == Code.NONE:
                self.append(records, lambda code: None)

        self.append([], forget)


def _unique() -> str:
    return str(uuid4())
