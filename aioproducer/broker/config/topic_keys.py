"""The keys of a topic's configuration: all of ``LogConfig`` and ``TopicConfig`` of Kafka 4.4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aioproducer.broker.config.values import (
    INT_MAX,
    LONG_MAX,
    as_number,
    at_least,
    between,
    between_or,
    one_of,
    some_of,
    throttled_replicas,
)
from aioproducer.config import ConfigDef, ConfigKey, Importance, Status, Type, Validator
from aioproducer.config.definition import Value
from aioproducer.errors import InvalidConfigurationError

_NO_COMPACTION = "Logs are not compacted: a compacted topic keeps every record."
_NO_TIERED_STORAGE = "There is no tiered storage."
_NO_LEVEL = "What is compressed here is compressed at the codec's default level."


@dataclass(frozen=True, slots=True)
class TopicKey:
    """A key of a topic and the broker's keys that give its default, the strongest first."""

    key: ConfigKey
    synonyms: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def has_effect(self) -> bool:
        """Whether this broker does anything with it; ``key.reason`` says why not."""
        return self.key.status is Status.SUPPORTED


def _key(
    name: str,
    type_: Type,
    default: Value,
    validator: Validator | None,
    synonyms: str,
    doc: str,
    *,
    without_effect: str = "",
    internal: bool = False,
) -> TopicKey:
    status = Status.WITHOUT_EFFECT if without_effect else Status.SUPPORTED
    key = ConfigKey(
        name, type_, default, Importance.MEDIUM, doc, validator, status=status, reason=without_effect, internal=internal
    )
    return TopicKey(key, tuple(synonyms.split()))


_KEYS = (
    _key(
        "cleanup.policy",
        Type.LIST,
        ("delete",),
        some_of("compact", "delete"),
        "log.cleanup.policy",
        (
            "What happens to old segments: delete removes those beyond retention.ms and retention.bytes; compact is "
            "accepted and shown, and such a topic keeps every record, as logs are not compacted here."
        ),
    ),
    _key(
        "compression.gzip.level",
        Type.INT,
        -1,
        between_or(1, 9, -1),
        "compression.gzip.level",
        "The level where compression.type is gzip; -1 is the codec's own default.",
        without_effect=_NO_LEVEL,
    ),
    _key(
        "compression.lz4.level",
        Type.INT,
        9,
        between(1, 17),
        "compression.lz4.level",
        "The level where compression.type is lz4.",
        without_effect=_NO_LEVEL,
    ),
    _key(
        "compression.type",
        Type.STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "compression.type",
        "The codec in which batches are stored; producer keeps the one they came in.",
    ),
    _key(
        "compression.zstd.level",
        Type.INT,
        3,
        between(-131072, 22),
        "compression.zstd.level",
        "The level where compression.type is zstd.",
        without_effect=_NO_LEVEL,
    ),
    _key(
        "delete.retention.ms",
        Type.LONG,
        86400000,
        at_least(0),
        "log.cleaner.delete.retention.ms",
        "How long, in milliseconds, compaction keeps a record without value (a tombstone).",
        without_effect=_NO_COMPACTION,
    ),
    _key(
        "errors.deadletterqueue.group.enable",
        Type.BOOLEAN,
        False,
        None,
        "",
        "Whether share groups may write to this topic what they could not deliver.",
        without_effect="There are no share groups.",
    ),
    _key(
        "file.delete.delay.ms",
        Type.LONG,
        60000,
        at_least(0),
        "log.segment.delete.delay.ms",
        "How long, in milliseconds, the files of a removed segment stay on disk.",
        without_effect="Files go at once: nothing reads a segment after it was removed.",
    ),
    _key(
        "flush.messages",
        Type.LONG,
        LONG_MAX,
        at_least(1),
        "log.flush.interval.messages",
        "How many records may be in a log before it is flushed to disk (fsync); 1 flushes every append.",
    ),
    _key(
        "flush.ms",
        Type.LONG,
        LONG_MAX,
        at_least(0),
        "log.flush.interval.ms log.flush.scheduler.interval.ms",
        "How long, in milliseconds, a record may be in a log before it is flushed to disk (fsync).",
    ),
    _key(
        "follower.replication.throttled.replicas",
        Type.LIST,
        (),
        throttled_replicas(),
        "",
        "Replicas whose fetching as a follower is throttled: partition:broker with commas between, or * for all.",
        without_effect="Replication is not throttled.",
    ),
    _key(
        "index.interval.bytes",
        Type.INT,
        4096,
        at_least(0),
        "log.index.interval.bytes",
        "How many bytes of a log there are, about, between two entries of its indexes.",
    ),
    _key(
        "internal.segment.bytes",
        Type.INT,
        None,
        None,
        "",
        "Size of a segment in bytes, in place of segment.bytes and without its lower bound. For tests.",
        internal=True,
    ),
    _key(
        "leader.replication.throttled.replicas",
        Type.LIST,
        (),
        throttled_replicas(),
        "",
        "Replicas to which the leader's sending is throttled: partition:broker with commas between, or * for all.",
        without_effect="Replication is not throttled.",
    ),
    _key(
        "local.retention.bytes",
        Type.LONG,
        -2,
        at_least(-2),
        "log.local.retention.bytes",
        "How many bytes of a partition stay on this disk where older ones are in tiered storage.",
        without_effect=_NO_TIERED_STORAGE,
    ),
    _key(
        "local.retention.ms",
        Type.LONG,
        -2,
        at_least(-2),
        "log.local.retention.ms",
        "How long, in milliseconds, records stay on this disk where older ones are in tiered storage.",
        without_effect=_NO_TIERED_STORAGE,
    ),
    _key(
        "max.compaction.lag.ms",
        Type.LONG,
        LONG_MAX,
        at_least(1),
        "log.cleaner.max.compaction.lag.ms",
        "How long, in milliseconds, a record may escape compaction.",
        without_effect=_NO_COMPACTION,
    ),
    _key(
        "max.decompressed.message.bytes",
        Type.INT,
        INT_MAX - 8,
        between(1, INT_MAX - 8),
        "max.decompressed.message.bytes",
        "The largest record, in bytes once decompressed, that is accepted.",
        without_effect="Where records are read at all, the decompressed batch is bounded as a whole.",
    ),
    _key(
        "max.message.bytes",
        Type.INT,
        1048588,
        at_least(0),
        "message.max.bytes",
        "The largest batch, in bytes as it is stored, that is accepted.",
    ),
    _key(
        "message.timestamp.after.max.ms",
        Type.LONG,
        3600000,
        at_least(0),
        "log.message.timestamp.after.max.ms",
        "How many milliseconds a record's timestamp may be ahead of the broker's clock, with CreateTime.",
    ),
    _key(
        "message.timestamp.before.max.ms",
        Type.LONG,
        LONG_MAX,
        at_least(0),
        "log.message.timestamp.before.max.ms",
        "How many milliseconds a record's timestamp may be behind the broker's clock, with CreateTime.",
    ),
    _key(
        "message.timestamp.type",
        Type.STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
        "Whose timestamps records have: the producer's (CreateTime) or the broker's (LogAppendTime).",
    ),
    _key(
        "min.cleanable.dirty.ratio",
        Type.DOUBLE,
        0.5,
        between(0, 1),
        "log.cleaner.min.cleanable.ratio",
        "Which part of a log must be uncompacted before it is compacted.",
        without_effect=_NO_COMPACTION,
    ),
    _key(
        "min.compaction.lag.ms",
        Type.LONG,
        0,
        at_least(0),
        "log.cleaner.min.compaction.lag.ms",
        "How long, in milliseconds, a record is safe from compaction.",
        without_effect=_NO_COMPACTION,
    ),
    _key(
        "min.insync.replicas",
        Type.INT,
        1,
        at_least(1),
        "min.insync.replicas",
        "How many replicas must be in sync, the leader among them, for a write with acks=all to be taken.",
    ),
    _key(
        "preallocate",
        Type.BOOLEAN,
        False,
        None,
        "log.preallocate",
        "Whether a new segment's file gets its whole size on disk at once.",
        without_effect="Files grow as they are written.",
    ),
    _key(
        "remote.copy.lag.bytes",
        Type.LONG,
        -1,
        at_least(-1),
        "log.remote.copy.lag.bytes",
        "How many newer bytes there are before a segment is copied to tiered storage; -1: retention.bytes.",
        without_effect=_NO_TIERED_STORAGE,
    ),
    _key(
        "remote.copy.lag.ms",
        Type.LONG,
        0,
        at_least(-1),
        "log.remote.copy.lag.ms",
        "How old, in milliseconds, a segment is before it is copied to tiered storage; -1: retention.ms.",
        without_effect=_NO_TIERED_STORAGE,
    ),
    _key(
        "remote.log.copy.disable",
        Type.BOOLEAN,
        False,
        None,
        "",
        "Whether nothing more of this topic goes to tiered storage.",
        without_effect=_NO_TIERED_STORAGE,
    ),
    _key(
        "remote.log.delete.on.disable",
        Type.BOOLEAN,
        False,
        None,
        "",
        "Whether what is in tiered storage is deleted once that is disabled for the topic.",
        without_effect=_NO_TIERED_STORAGE,
    ),
    _key(
        "remote.storage.enable",
        Type.BOOLEAN,
        False,
        None,
        "",
        "Whether the topic has tiered storage; true is refused.",
        without_effect=_NO_TIERED_STORAGE,
    ),
    _key(
        "retention.bytes",
        Type.LONG,
        -1,
        None,
        "log.retention.bytes",
        "How many bytes a partition may have before its oldest segments are deleted; negative: any number.",
    ),
    _key(
        "retention.ms",
        Type.LONG,
        604800000,
        at_least(-1),
        "log.retention.ms log.retention.minutes log.retention.hours",
        "How old, in milliseconds, a segment's newest record may be before the segment is deleted; -1: any age.",
    ),
    _key(
        "segment.bytes",
        Type.INT,
        1073741824,
        at_least(1048576),
        "log.segment.bytes",
        "The size of a segment, in bytes; segments are deleted as a whole.",
    ),
    _key(
        "segment.index.bytes",
        Type.INT,
        10485760,
        at_least(4),
        "log.index.size.max.bytes",
        "The size of a segment's offset index, in bytes; a full one starts the next segment.",
    ),
    _key(
        "segment.jitter.ms",
        Type.LONG,
        0,
        at_least(0),
        "log.roll.jitter.ms log.roll.jitter.hours",
        "Up to how many milliseconds, at random, segment.ms is shortened by.",
    ),
    _key(
        "segment.ms",
        Type.LONG,
        604800000,
        at_least(1),
        "log.roll.ms log.roll.hours",
        "After how many milliseconds the next segment is started though this one is not full.",
    ),
    _key(
        "unclean.leader.election.enable",
        Type.BOOLEAN,
        False,
        None,
        "unclean.leader.election.enable",
        "Whether a replica that is not in sync becomes leader where no other is left; records are lost then.",
    ),
)

TOPIC_KEYS: dict[str, TopicKey] = {entry.name: entry for entry in _KEYS}
"""Every key of a topic by its name, in the order of names; the internal one as well."""

TOPIC_CONFIG_DEF = ConfigDef.of(entry.key for entry in _KEYS)


def check_topic_values(values: Mapping[str, Value]) -> None:
    """The rules of several keys of a topic, as ``LogConfig.validateValues`` has them.

    Raises:
        InvalidConfigurationError: they do not go together; the text is Kafka's.
    """
    least, most = as_number(values["min.compaction.lag.ms"]), as_number(values["max.compaction.lag.ms"])
    if least > most:
        raise InvalidConfigurationError(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    if values["remote.storage.enable"]:
        raise InvalidConfigurationError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
