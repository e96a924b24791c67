"""Commits of offsets by a consumer, or by a producer in a transaction, and the records made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aioproducer.broker.coordination import partitioning
from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.records import NO_TIMESTAMP, OffsetCommitValue, OffsetRecord, offset_record


class CommittedOffset(NamedTuple):
    """An offset that a group commits; ``retention_ms`` -1 stands for the broker's default."""

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    retention_ms: int = NO_TIMESTAMP


class Committer(NamedTuple):
    """The source of a commit: a member of a generation, or a consumer outside any group (-1 and no member id)."""

    group_id: str
    member_id: str = ""
    group_instance_id: str | None = None
    generation_id: int = -1


class OpenTransaction(NamedTuple):
    """The transaction that a commit belongs to."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class PreparedCommit(NamedTuple):
    """The records of a commit, and the error code of each partition."""

    records: list[OffsetRecord]
    codes: dict[tuple[str, int], int]


def prepare(
    group_id: str, offsets: Sequence[CommittedOffset], *, wall_ms: int, max_metadata_length: int
) -> PreparedCommit:
    """Make the records of a commit; an offset with too long metadata gets an error code instead."""
    prepared = PreparedCommit([], {})
    for offset in offsets:
        metadata = offset.metadata or ""
        if partitioning.java_string_length(metadata) > max_metadata_length:
            prepared.codes[offset.topic, offset.partition] = Code.OFFSET_METADATA_TOO_LARGE
            continue
        prepared.codes[offset.topic, offset.partition] = Code.NONE
        expires = NO_TIMESTAMP if offset.retention_ms == NO_TIMESTAMP else wall_ms + offset.retention_ms
        value = OffsetCommitValue(
            offset=offset.offset,
            leader_epoch=offset.leader_epoch,
            metadata=metadata,
            commit_timestamp=wall_ms,
            expire_timestamp=expires,
            topic_id=offset.topic_id,
        )
        prepared.records.append(offset_record(group_id, offset.topic, offset.partition, value))
    return prepared
