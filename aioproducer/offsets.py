"""Offsets that a consumer group commits, and the group itself, as transactions commit them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aioproducer.record import TopicPartition

MAX_OFFSET = 2**63 - 1
_MAX_EPOCH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """The offset of the next record to read of a partition (Kafka's class of the same name).

    Raises:
        TypeError, ValueError: a field is of another type, or out of its range.
    """

    offset: int
    metadata: str = ""
    """Any text; the group returns it with the offset."""
    leader_epoch: int | None = None
    """The leader epoch of the last record that was read, if it is known (KIP-320)."""

    def __post_init__(self) -> None:
        _check_int("offset", self.offset, 0, MAX_OFFSET)
        if not isinstance(self.metadata, str):
            raise TypeError(f"metadata must be a str, not {type(self.metadata).__name__}")
        if self.leader_epoch is not None:
            _check_int("leader_epoch", self.leader_epoch, 0, _MAX_EPOCH)


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A consumer group, and the member that commits for it: the group then fences outdated members (KIP-447).

    Without a member (the default) the group accepts the offsets from any producer.

    Raises:
        TypeError, ValueError: a field is of another type, or out of its range.
    """

    group_id: str
    generation_id: int = -1
    """The generation, or member epoch, of the member; -1 without one."""
    member_id: str = ""
    group_instance_id: str | None = None
    """``group.instance.id`` of a static member."""

    def __post_init__(self) -> None:
        for name in ("group_id", "member_id"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a str, not {type(getattr(self, name)).__name__}")
        if not self.group_id:
            raise ValueError("group_id must not be empty: name the group whose offsets are committed")
        if self.group_instance_id is not None and not isinstance(self.group_instance_id, str):
            raise TypeError(f"group_instance_id must be a str or None, not {type(self.group_instance_id).__name__}")
        _check_int("generation_id", self.generation_id, -1, _MAX_EPOCH)
        if self.generation_id >= 0 and not self.member_id:
            raise ValueError(f"generation_id {self.generation_id} needs a member_id: pass both, or neither")


def _check_int(name: str, value: object, least: int, greatest: int) -> None:
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not least <= value <= greatest:
        raise ValueError(f"{name} must be between {least} and {greatest}, not {value}")


def numbers_by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Return the numbers of the partitions of each topic, in the order in which topics and numbers occur."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def checked_partition(value: object) -> TopicPartition:
    """Return a partition, from a pair of topic and number as well.

    Raises:
        TypeError, ValueError: it is none.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(f"a partition is a TopicPartition or a pair of topic and partition, not {value!r}")
    topic, partition = value
    if not isinstance(topic, str) or type(partition) is not int:
        raise TypeError(f"a partition is a pair of str and int, not {value!r}")
    if not topic or not 0 <= partition < 2**31:
        raise ValueError(f"a partition has a topic and a number of at least 0 and below 2**31, not {value!r}")
    return TopicPartition(topic, partition)


def checked_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets to commit; an int is an offset without metadata.

    Raises:
        TypeError, ValueError: they are no mapping, or an element is no partition or no offset.
    """
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets must be a mapping of (topic, partition) to offsets, not {type(offsets).__name__}")
    return {
        checked_partition(where): offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        for where, offset in offsets.items()
    }
