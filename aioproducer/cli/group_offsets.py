"""New offsets for a consumer group: of which partitions, and where (``kafka-consumer-groups.sh --reset-offsets``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from aioproducer.admin import Admin, NoSuchTopicError, OffsetSpec
from aioproducer.cli.exits import CommandError, CommandUsageError
from aioproducer.config.consumer_keys import duration_ms
from aioproducer.offsets import OffsetAndMetadata, numbers_by_topic
from aioproducer.record import TopicPartition


@dataclass(frozen=True, slots=True)
class Target:
    """Where the partitions are reset to: one of the fields is set."""

    spec: OffsetSpec | None = None
    offset: int | None = None
    shift: int | None = None
    """The distance from the committed offset, in records; negative towards the first record."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The new offset of a partition, and the committed one, if there is any."""

    where: TopicPartition
    committed: int | None
    new_offset: int


def parse_target(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Target:
    """
    Raises:
        CommandUsageError: not exactly one of them is given, or one is wrong.
    """
    given: list[Target] = []
    if to_earliest:
        given.append(Target("earliest"))
    if to_latest:
        given.append(Target("latest"))
    if to_offset is not None:
        given.append(Target(offset=to_offset))
    if to_datetime is not None:
        given.append(Target(_time(to_datetime)))
    if by_duration is not None:
        given.append(Target(_time_before(now(), by_duration)))
    if shift_by is not None:
        given.append(Target(shift=shift_by))
    if len(given) != 1:
        raise CommandUsageError(
            "give one of --to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration and --shift-by"
        )
    return given[0]


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise CommandUsageError(
            f"--to-datetime takes a time in ISO 8601, as 2026-01-31T12:00:00Z or 2026-01-31T12:00:00.000, not {text!r}"
        ) from None
    # Kafka's tool takes a time without a zone as UTC.
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _time_before(now: datetime, duration: str) -> datetime:
    milliseconds = duration_ms(duration)
    if milliseconds is None:
        raise CommandUsageError(f"--by-duration takes a duration in ISO 8601, as P7D or PT1H30M, not {duration!r}")
    try:
        return now - timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise CommandUsageError(f"--by-duration {duration}: the time is out of range") from None


def parse_topics(topics: Sequence[str]) -> dict[str, list[int] | None]:
    """Return the partitions of each topic, None for all: ``clicks`` or ``clicks:0,2``.

    Raises:
        CommandUsageError: a text has another form.
    """
    found: dict[str, list[int] | None] = {}
    for text in topics:
        topic, colon, numbers = text.partition(":")
        listed = numbers.split(",")
        if not topic or (colon and not all(each.isdecimal() for each in listed)):
            raise CommandUsageError(f"--topic takes TOPIC or TOPIC:PARTITION,PARTITION, not {text!r}")
        if topic in found:
            raise CommandUsageError(f"--topic names {topic!r} twice: use {topic}:PARTITION,PARTITION")
        found[topic] = [int(each) for each in dict.fromkeys(listed)] if colon else None
    return found


async def end_offsets(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end offset of each partition; one without a leader, or that no longer exists, is left out."""
    topics: dict[str, set[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, set()).add(partition)
    found: dict[TopicPartition, int] = {}
    for topic, numbers in sorted(topics.items()):
        try:
            (described,) = await admin.describe_topics([topic])
            led = [each.partition for each in described.partitions if each.leader is not None]
            specs: dict[int, OffsetSpec] = {each: "latest" for each in led if each in numbers}
            offsets = await admin.list_offsets(topic, specs)
        except NoSuchTopicError:
            continue
        found |= {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
    return found


async def plan_resets(
    admin: Admin,
    group_id: str,
    topics: Mapping[str, list[int] | None] | None,
    target: Target,
    warn: Callable[[str], None],
) -> list[Reset]:
    """Return the new offset of each partition; nothing is changed.

    Args:
        topics: as ``parse_topics`` returns it; None for the partitions that have a committed offset.
        warn: called when the wanted offset is outside of the log, and the nearest one is used.

    Raises:
        CommandError: the group has no committed offset that the new ones depend on.
        NoSuchTopicError: there is no such topic or partition.
    """
    committed = (await admin.list_group_offsets([group_id]))[group_id]
    if topics is None:
        wanted = numbers_by_topic(sorted(committed))
        if not wanted:
            raise CommandError(f"group {group_id!r} has no committed offsets: name topics with --topic")
    else:
        wanted = {}
        for topic, numbers in topics.items():
            if numbers is None:
                (described,) = await admin.describe_topics([topic])
                numbers = [each.partition for each in described.partitions]
            wanted[topic] = numbers
    found: list[Reset] = []
    for topic, numbers in wanted.items():
        new = await _new_offsets(admin, topic, numbers, committed, target, warn)
        for partition in numbers:
            where = TopicPartition(topic, partition)
            before = committed.get(where)
            found.append(Reset(where, None if before is None else before.offset, new[partition]))
    return found


async def _new_offsets(
    admin: Admin,
    topic: str,
    numbers: list[int],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    target: Target,
    warn: Callable[[str], None],
) -> dict[int, int]:
    if target.spec is not None:
        return await admin.list_offsets(topic, dict.fromkeys(numbers, target.spec))
    first = await admin.list_offsets(topic, dict.fromkeys(numbers, "earliest"))
    end = await admin.list_offsets(topic, dict.fromkeys(numbers, "latest"))
    found: dict[int, int] = {}
    for partition in numbers:
        if target.offset is not None:
            offset = target.offset
        else:
            assert target.shift is not None
            before = committed.get(TopicPartition(topic, partition))
            if before is None:
                raise CommandError(f"{topic}:{partition} has no committed offset to shift: use --to-offset for it")
            offset = before.offset + target.shift
        if offset > end[partition]:
            warn(f"{topic}:{partition}: offset {offset} is beyond the end, {end[partition]}, which is used instead")
        elif offset < first[partition]:
            warn(f"{topic}:{partition}: offset {offset} is before the first, {first[partition]}, which is used instead")
        found[partition] = min(max(offset, first[partition]), end[partition])
    return found
