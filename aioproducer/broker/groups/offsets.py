"""The offsets that the groups of one partition of ``__consumer_offsets`` keep, and when they are forgotten."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from aioproducer.broker.groups.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from aioproducer.broker.groups.records import (
    NO_TIMESTAMP,
    OffsetCommitKey,
    OffsetCommitValue,
    OffsetRecord,
    offset_record,
)
from aioproducer.broker.groups.states import GroupState

_NONE: Final[Mapping[str, Mapping[int, OffsetCommitValue]]] = MappingProxyType({})


class Offsets:
    """Offsets by group, topic and partition."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Take over what a record says; ``None`` is a tombstone."""
        if value is not None:
            self._by_group.setdefault(key.group, {}).setdefault(key.topic, {})[key.partition] = value
            return
        topics = self._by_group.get(key.group, {})
        partitions = topics.get(key.topic, {})
        if partitions.pop(key.partition, None) is not None and not partitions:
            del topics[key.topic]
            if not topics:
                del self._by_group[key.group]

    def of_group(self, group_id: str) -> Mapping[str, Mapping[int, OffsetCommitValue]]:
        """A group's offsets by topic and partition."""
        return self._by_group.get(group_id, _NONE)

    @property
    def group_ids(self) -> Iterable[str]:
        """The groups that keep offsets."""
        return self._by_group.keys()

    def of_partitions(self, partitions: Container[tuple[str, int]]) -> list[OffsetRecord]:
        """Tombstones for all offsets of ``partitions``, which are no more."""
        return [
            offset_record(group_id, topic, index, None)
            for group_id, topics in self._by_group.items()
            for topic, indexes in topics.items()
            for index in indexes
            if (topic, index) in partitions
        ]

    def forgotten(self, group_id: str) -> list[OffsetRecord]:
        """Tombstones for all offsets of a group."""
        return [
            offset_record(group_id, topic, index, None)
            for topic, partitions in self.of_group(group_id).items()
            for index in partitions
        ]

    def expired(self, group: ClassicGroup, wall_ms: int, retention_ms: int) -> Iterator[OffsetRecord]:
        """Tombstones for the offsets of ``group`` that nobody needs any more (KIP-211).

        A group's time begins when its last member leaves; that of a consumer that is in no group, and that of a topic
        that no member reads any more, with the commit.
        """
        since_state = group.protocol_type is not None and group.state is GroupState.EMPTY
        knows_topics = group.protocol_type == CONSUMER_PROTOCOL_TYPE and group.subscribed_topics is not None
        may_expire = group.protocol_type is None or since_state or (knows_topics and group.state is GroupState.STABLE)
        if not may_expire:
            return
        for topic, partitions in self.of_group(group.group_id).items():
            if group.is_subscribed_to(topic):
                continue
            for index, value in partitions.items():
                begun = value.commit_timestamp
                if since_state and group.state_since_ms != NO_TIMESTAMP:
                    begun = group.state_since_ms
                expires = value.expire_timestamp if value.expire_timestamp != NO_TIMESTAMP else begun + retention_ms
                if wall_ms >= expires:
                    yield offset_record(group.group_id, topic, index, None)
