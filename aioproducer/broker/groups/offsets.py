"""The committed offsets of the groups in one partition of ``__consumer_offsets``, and their expiry.

An offset that is committed in a transaction is pending until the transaction's marker makes it visible or drops it
(Kafka's ``OffsetMetadataManager``).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from aioproducer.broker.groups.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from aioproducer.broker.groups.records import (
    NO_TIMESTAMP,
    OffsetCommitKey,
    OffsetCommitValue,
    OffsetRecord,
    offset_record,
)
from aioproducer.broker.groups.states import GroupState
from aioproducer.wire.record_batch import NO_PRODUCER_ID


class StoredOffset(NamedTuple):
    """A group's offset of one partition, and the offset of its record in ``__consumer_offsets``."""

    value: OffsetCommitValue
    record_offset: int


OffsetKey: TypeAlias = tuple[str, str, int]
"""Group, topic and partition."""

_NONE: Final[Mapping[str, Mapping[int, StoredOffset]]] = MappingProxyType({})
_NOTHING_PENDING: Final[Mapping[str, Mapping[int, Collection[int]]]] = MappingProxyType({})


class Offsets:
    """Offsets by group, topic and partition, and those of open transactions by producer id."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, dict[int, StoredOffset]]] = {}
        self._pending: dict[int, dict[OffsetKey, StoredOffset]] = {}
        self._open: dict[str, dict[str, dict[int, set[int]]]] = {}
        """Producer ids with a pending offset, by group, topic and partition; no inner mapping is ever empty."""

    def apply(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        record_offset: int,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Apply a record of the log. ``None`` is a tombstone, which also drops pending offsets of the partition."""
        offset_key = key.group, key.topic, key.partition
        if value is None:
            self._drop(offset_key)
        elif producer_id == NO_PRODUCER_ID:
            self._store(offset_key, StoredOffset(value, record_offset))
        else:
            self._pending.setdefault(producer_id, {})[offset_key] = StoredOffset(value, record_offset)
            topics = self._open.setdefault(key.group, {})
            topics.setdefault(key.topic, {}).setdefault(key.partition, set()).add(producer_id)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply a marker of the log: make the producer's pending offsets visible, or drop them.

        The record with the higher offset wins. Otherwise compaction, which keeps the last record of a key, could change
        the result of a load.
        """
        for offset_key, pending in self._pending.pop(producer_id, {}).items():
            self._close(offset_key, producer_id)
            group_id, topic, index = offset_key
            kept = self.of_group(group_id).get(topic, {}).get(index)
            if committed and (kept is None or pending.record_offset > kept.record_offset):
                self._store(offset_key, pending)

    def _store(self, offset_key: OffsetKey, kept: StoredOffset) -> None:
        group_id, topic, index = offset_key
        self._by_group.setdefault(group_id, {}).setdefault(topic, {})[index] = kept

    def _drop(self, offset_key: OffsetKey) -> None:
        group_id, topic, index = offset_key
        topics = self._by_group.get(group_id, {})
        partitions = topics.get(topic, {})
        if partitions.pop(index, None) is not None and not partitions:
            del topics[topic]
            if not topics:
                del self._by_group[group_id]
        for producer_id in tuple(self.pending_of(group_id).get(topic, {}).get(index, ())):
            self._close(offset_key, producer_id)
            pending = self._pending[producer_id]
            del pending[offset_key]
            if not pending:
                del self._pending[producer_id]

    def _close(self, offset_key: OffsetKey, producer_id: int) -> None:
        """Remove a producer id from the open transactions of a partition."""
        group_id, topic, index = offset_key
        topics = self._open[group_id]
        partitions = topics[topic]
        partitions[index].remove(producer_id)
        if not partitions[index]:
            del partitions[index]
            if not partitions:
                del topics[topic]
                if not topics:
                    del self._open[group_id]

    def of_group(self, group_id: str) -> Mapping[str, Mapping[int, StoredOffset]]:
        """A group's visible offsets by topic and partition."""
        return self._by_group.get(group_id, _NONE)

    def pending_of(self, group_id: str) -> Mapping[str, Mapping[int, Collection[int]]]:
        """The producer ids with a pending offset of the group, by topic and partition."""
        return self._open.get(group_id, _NOTHING_PENDING)

    @property
    def pending(self) -> Mapping[int, Mapping[OffsetKey, StoredOffset]]:
        """The pending offsets of each producer id that has some."""
        return self._pending

    def of_partitions(self, partitions: Container[tuple[str, int]]) -> list[OffsetRecord]:
        """Tombstones for all offsets of ``partitions``, which were deleted."""
        offset_keys = {
            (group_id, topic, index)
            for by_group in (self._by_group, self._open)
            for group_id, topics in by_group.items()
            for topic, indexes in topics.items()
            for index in indexes
            if (topic, index) in partitions
        }
        return _tombstones(sorted(offset_keys))

    def forgotten(self, group_id: str) -> list[OffsetRecord]:
        """Tombstones for all offsets of a group."""
        offset_keys = {
            (group_id, topic, index)
            for topics in (self.of_group(group_id), self.pending_of(group_id))
            for topic, indexes in topics.items()
            for index in indexes
        }
        return _tombstones(sorted(offset_keys))

    def has(self, group_id: str, topic: str, index: int) -> bool:
        """Whether the group has an offset of the partition, visible or pending."""
        return index in self.of_group(group_id).get(topic, {}) or index in self.pending_of(group_id).get(topic, {})

    def expired(self, group: ClassicGroup, wall_ms: int, retention_ms: int) -> Iterator[OffsetRecord]:
        """Tombstones for the expired offsets of ``group`` (KIP-211).

        The retention begins when the group's last member leaves. For a consumer outside any group, and for a topic that
        no member reads any longer, it begins with the commit. An offset with a pending one is kept: its tombstone would
        drop the pending one too.
        """
        since_state = group.protocol_type is not None and group.state is GroupState.EMPTY
        knows_topics = group.protocol_type == CONSUMER_PROTOCOL_TYPE and group.subscribed_topics is not None
        may_expire = group.protocol_type is None or since_state or (knows_topics and group.state is GroupState.STABLE)
        if not may_expire:
            return
        pending = self.pending_of(group.group_id)
        for topic, partitions in self.of_group(group.group_id).items():
            if group.is_subscribed_to(topic):
                continue
            for index, (value, _) in partitions.items():
                begun = value.commit_timestamp
                if since_state and group.state_since_ms != NO_TIMESTAMP:
                    begun = group.state_since_ms
                expires = value.expire_timestamp if value.expire_timestamp != NO_TIMESTAMP else begun + retention_ms
                if wall_ms >= expires and index not in pending.get(topic, {}):
                    yield offset_record(group.group_id, topic, index, None)


def _tombstones(offset_keys: Iterable[OffsetKey]) -> list[OffsetRecord]:
    return [offset_record(group_id, topic, index, None) for group_id, topic, index in offset_keys]
