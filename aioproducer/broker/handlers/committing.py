"""Shared by OffsetCommit and TxnOffsetCommit: the topics of a request, and the codes of their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aioproducer.broker.groups.commits import CommittedOffset
from aioproducer.errors import UnknownTopicIdError, UnknownTopicOrPartitionError
from aioproducer.protocol import ZERO_UUID

if TYPE_CHECKING:
    from aioproducer.broker.image import ClusterImage


class _Partition(Protocol):
    @property
    def partition_index(self) -> int: ...
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_leader_epoch(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


class _Topic(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> bytes: ...
    @property
    def partitions(self) -> Sequence[_Partition]: ...


class TopicCodes(NamedTuple):
    """The error codes of one topic's partitions, in the order of the response."""

    name: str
    topic_id: bytes
    codes: list[tuple[int, int]]
    """Partition and code."""


class CommitAnswer:
    """Collects the codes of partitions by topic."""

    def __init__(self, *, by_id: bool) -> None:
        self._by_id = by_id
        self._topics: dict[str | bytes, TopicCodes] = {}

    @property
    def topics(self) -> list[TopicCodes]:
        """The topics, in the order in which they were added."""
        return list(self._topics.values())

    def add(self, name: str, topic_id: bytes, index: int, code: int) -> None:
        """Add the code of a partition."""
        key = topic_id if self._by_id else name
        self._topics.setdefault(key, TopicCodes(name, topic_id, [])).codes.append((index, code))

    def add_all(self, offsets: Iterable[CommittedOffset], codes: Mapping[tuple[str, int], int] | int) -> None:
        """Add the codes of ``offsets``: one for each partition, or the same for all."""
        for offset in offsets:
            code = codes if isinstance(codes, int) else codes[offset.topic, offset.partition]
            self.add(offset.topic, offset.topic_id, offset.partition, code)


def known_offsets(
    image: ClusterImage, topics: Iterable[_Topic], answer: CommitAnswer, *, by_id: bool, retention_ms: int = -1
) -> list[CommittedOffset]:
    """Return the offsets of partitions that exist; ``answer`` receives the codes of the others.

    The record of an offset contains its topic's id even if the request identifies the topic by name.
    """
    offsets: list[CommittedOffset] = []
    for topic in topics:
        known = image.topics_by_id.get(topic.topic_id) if by_id else image.topics.get(topic.name)
        for partition in topic.partitions:
            index = partition.partition_index
            if known is None:
                unknown = UnknownTopicIdError if by_id else UnknownTopicOrPartitionError
                answer.add(topic.name, topic.topic_id if by_id else ZERO_UUID, index, unknown.code)
            elif not 0 <= index < len(known.partitions):
                answer.add(known.name, known.topic_id, index, UnknownTopicOrPartitionError.code)
            else:
                offsets.append(
                    CommittedOffset(
                        known.name,
                        known.topic_id,
                        index,
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        partition.committed_metadata,
                        retention_ms,
                    )
                )
    return offsets
