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

_NO_TIERED_STORAGE = "There is no tiered storage."
_NO_LEVEL = "Compression by the broker uses the codec's default level."


@dataclass(frozen=True, slots=True)
class TopicKey:
    """A topic key, and the broker keys with its default, the strongest first."""

    key: ConfigKey
    synonyms: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def has_effect(self) -> bool:
        """Whether the key has an effect on this broker; ``key.reason`` gives the reason if not."""
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
            "What happens to old segments: delete removes those beyond retention.ms and retention.bytes. compact keeps "
            "only the last record of each key."
        ),
    ),
    _key(
        "compression.gzip.level",
        Type.INT,
        -1,
        between_or(1, 9, -1),
        "compression.gzip.level",
        "The level if compression.type is gzip; -1 is the codec's own default.",
        without_effect=_NO_LEVEL,
    ),
    _key(
        "compression.lz4.level",
        Type.INT,
        9,
        between(1, 17),
        "compression.lz4.level",
        "The level if compression.type is lz4.",
        without_effect=_NO_LEVEL,
    ),
    _key(
        "compression.type",
        Type.STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "compression.type",
        "The codec in which batches are stored; producer keeps the batch's own codec.",
    ),
    _key(
        "compression.zstd.level",
        Type.INT,
        3,
        between(-131072, 22),
        "compression.zstd.level",
        "The level if compression.type is zstd.",
        without_effect=_NO_LEVEL,
    ),
    _key(
        "delete.retention.ms",
        Type.LONG,
        86400000,
        at_least(0),
        "log.cleaner.delete.retention.ms",
        "How long, in milliseconds, compaction keeps a record without value (a tombstone), or a transaction marker.",
    ),
    _key(
        "errors.deadletterqueue.group.enable",
        Type.BOOLEAN,
        False,
        None,
        "",
        "Whether share groups may write records to this topic that they could not deliver.",
        without_effect="There are no share groups.",
    ),
    _key(
        "file.delete.delay.ms",
        Type.LONG,
        60000,
        at_least(0),
        "log.segment.delete.delay.ms",
        "How long, in milliseconds, the files of a removed segment stay on disk.",
        without_effect="Files are deleted at once: nothing reads a segment after its removal.",
    ),
    _key(
        "flush.messages",
        Type.LONG,
        LONG_MAX,
        at_least(1),
        "log.flush.interval.messages",
        "Maximum records in a log before it is flushed to disk (fsync); 1 flushes every append.",
    ),
    _key(
        "flush.ms",
        Type.LONG,
        LONG_MAX,
        at_least(0),
        "log.flush.interval.ms log.flush.scheduler.interval.ms",
        "Maximum milliseconds that a record stays in a log before it is flushed to disk (fsync).",
    ),
    _key(
        "follower.replication.throttled.replicas",
        Type.LIST,
        (),
        throttled_replicas(),
        "",
        "Follower replicas whose fetching is throttled: partition:broker with commas between, or * for all.",
        without_effect="Replication is not throttled.",
    ),
    _key(
        "index.interval.bytes",
        Type.INT,
        4096,
        at_least(0),
        "log.index.interval.bytes",
        "Approximate bytes of a log between two entries of its indexes.",
    ),
    _key(
        "internal.segment.bytes",
        Type.INT,
        None,
        None,
        "",
        "Size of a segment in bytes, instead of segment.bytes and without its lower bound. For tests.",
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
        "Bytes of a partition that stay on this disk if older records are in tiered storage.",
        without_effect=_NO_TIERED_STORAGE,
    ),
    _key(
        "local.retention.ms",
        Type.LONG,
        -2,
        at_least(-2),
        "log.local.retention.ms",
        "Milliseconds that records stay on this disk if older records are in tiered storage.",
        without_effect=_NO_TIERED_STORAGE,
    ),
    _key(
        "max.compaction.lag.ms",
        Type.LONG,
        LONG_MAX,
        at_least(1),
        "log.cleaner.max.compaction.lag.ms",
        "Maximum milliseconds before a record is compacted. Segments are also rolled at this age.",
    ),
    _key(
        "max.decompressed.message.bytes",
        Type.INT,
        INT_MAX - 8,
        between(1, INT_MAX - 8),
        "max.decompressed.message.bytes",
        "Maximum bytes of a record, decompressed.",
        without_effect="If records are read at all, the decompressed batch is limited as a whole.",
    ),
    _key(
        "max.message.bytes",
        Type.INT,
        1048588,
        at_least(0),
        "message.max.bytes",
        "Maximum bytes of a batch, as it is stored.",
    ),
    _key(
        "message.timestamp.after.max.ms",
        Type.LONG,
        3600000,
        at_least(0),
        "log.message.timestamp.after.max.ms",
        "Maximum milliseconds that a record's CreateTime may be ahead of the broker's clock.",
    ),
    _key(
        "message.timestamp.before.max.ms",
        Type.LONG,
        LONG_MAX,
        at_least(0),
        "log.message.timestamp.before.max.ms",
        "Maximum milliseconds that a record's CreateTime may be behind the broker's clock.",
    ),
    _key(
        "message.timestamp.type",
        Type.STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
        "The source of a record's timestamp: the producer (CreateTime) or the broker (LogAppendTime).",
    ),
    _key(
        "min.cleanable.dirty.ratio",
        Type.DOUBLE,
        0.5,
        between(0, 1),
        "log.cleaner.min.cleanable.ratio",
        "The uncompacted part of a log above which it is compacted.",
    ),
    _key(
        "min.compaction.lag.ms",
        Type.LONG,
        0,
        at_least(0),
        "log.cleaner.min.compaction.lag.ms",
        "Minimum milliseconds before a record is compacted.",
    ),
    _key(
        "min.insync.replicas",
        Type.INT,
        1,
        at_least(1),
        "min.insync.replicas",
        "Replicas, including the leader, that must be in sync for a write with acks=all to be accepted.",
    ),
    _key(
        "preallocate",
        Type.BOOLEAN,
        False,
        None,
        "log.preallocate",
        "Whether a new segment's file has its full size on disk at once.",
        without_effect="Files grow as they are written.",
    ),
    _key(
        "remote.copy.lag.bytes",
        Type.LONG,
        -1,
        at_least(-1),
        "log.remote.copy.lag.bytes",
        "Newer bytes after which a segment is copied to tiered storage; -1: retention.bytes.",
        without_effect=_NO_TIERED_STORAGE,
    ),
    _key(
        "remote.copy.lag.ms",
        Type.LONG,
        0,
        at_least(-1),
        "log.remote.copy.lag.ms",
        "Age of a segment, in milliseconds, after which it is copied to tiered storage; -1: retention.ms.",
        without_effect=_NO_TIERED_STORAGE,
    ),
    _key(
        "remote.log.copy.disable",
        Type.BOOLEAN,
        False,
        None,
        "",
        "Whether no further segments of this topic are copied to tiered storage.",
        without_effect=_NO_TIERED_STORAGE,
    ),
    _key(
        "remote.log.delete.on.disable",
        Type.BOOLEAN,
        False,
        None,
        "",
        "Whether a topic's records in tiered storage are deleted when tiered storage is disabled for the topic.",
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
        "Maximum bytes of a partition before its oldest segments are deleted; negative: no limit.",
    ),
    _key(
        "retention.ms",
        Type.LONG,
        604800000,
        at_least(-1),
        "log.retention.ms log.retention.minutes log.retention.hours",
        "Maximum age, in milliseconds, of a segment's newest record before the segment is deleted; -1: no limit.",
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
        "Maximum random milliseconds by which segment.ms is shortened.",
    ),
    _key(
        "segment.ms",
        Type.LONG,
        604800000,
        at_least(1),
        "log.roll.ms log.roll.hours",
        "Milliseconds after which a new segment is started, even if the current one is not full.",
    ),
    _key(
        "unclean.leader.election.enable",
        Type.BOOLEAN,
        False,
        None,
        "unclean.leader.election.enable",
        "Whether a replica that is not in sync may become leader if no other is left; records are lost then.",
    ),
)

TOPIC_KEYS: dict[str, TopicKey] = {entry.name: entry for entry in _KEYS}
"""Every topic key by its name, in the order of names, including the internal one."""

TOPIC_CONFIG_DEF = ConfigDef.of(entry.key for entry in _KEYS)


def check_topic_values(values: Mapping[str, Value]) -> None:
    """Check the rules about several topic keys, those of ``LogConfig.validateValues``.

    Raises:
        InvalidConfigurationError: values contradict each other; the text is Kafka's.
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
