"""The keys of Kafka's consumer that its producer does not have, or has with another meaning."""

from __future__ import annotations

import re
from typing import Final

from aioproducer.config.definition import (
    ConfigKey,
    Importance,
    Status,
    Type,
    Validator,
    Value,
    at_least,
    list_without_empty_items,
    one_of,
    one_of_ignoring_case,
)

_NO_GROUP = "This consumer reads assigned partitions; it does not join groups yet."
_BY_DURATION: Final = "by_duration:"
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)


def duration_ms(text: str) -> int | None:
    """Return an ISO 8601 duration (``P1DT2H3M4.5S``) in milliseconds; None if it is none, or negative."""
    match = _DURATION.fullmatch(text.upper())
    if match is None or not any(match.groups()) or text.upper().endswith("T"):
        return None
    parts = {name: float(value or 0) for name, value in match.groupdict().items()}
    return round((((parts["days"] * 24 + parts["hours"]) * 60 + parts["minutes"]) * 60 + parts["seconds"]) * 1000)


def is_reset(value: Value) -> bool:
    """Return whether ``value`` is a policy of ``auto.offset.reset``."""
    if value in ("earliest", "latest", "none"):
        return True
    return isinstance(value, str) and value.startswith(_BY_DURATION) and reset_duration_ms(value) is not None


def reset_duration_ms(value: str) -> int | None:
    """Return the duration of a policy ``by_duration:...`` in milliseconds."""
    return duration_ms(value[len(_BY_DURATION) :])


def _group_key(name: str, type: Type, default: Value, doc: str, validator: Validator | None = None) -> ConfigKey:
    return ConfigKey(
        name, type, default, Importance.LOW, doc, validator, status=Status.WITHOUT_EFFECT, reason=_NO_GROUP
    )


def _metrics_key(name: str, type: Type, default: Value, validator: Validator | None = None) -> ConfigKey:
    return ConfigKey(
        name,
        type,
        default,
        Importance.LOW,
        "About metrics.",
        validator,
        status=Status.WITHOUT_EFFECT,
        reason="The consumer has no metrics yet.",
    )


CONSUMER_KEYS = (
    ConfigKey(
        "allow.auto.create.topics",
        Type.BOOLEAN,
        True,
        Importance.MEDIUM,
        "Let brokers create an assigned topic that does not exist, if auto.create.topics.enable permits it.",
    ),
    _group_key("auto.commit.interval.ms", Type.INT, 5000, "Milliseconds between automatic commits.", at_least(0)),
    ConfigKey(
        "auto.offset.reset",
        Type.STRING,
        "latest",
        Importance.MEDIUM,
        (
            "Where to begin without a valid offset. earliest: the first record; latest: behind the last one; none: "
            "raise NoOffsetForPartitionError; by_duration:PnDTnHnMn.nS: the first record of that last time (KIP-1106)."
        ),
        validator=Validator(
            "[earliest, latest, none, by_duration:PnDTnHnMn.nS]",
            is_reset,
            "must be earliest, latest, none or by_duration: followed by an ISO 8601 duration such as PT1H",
        ),
        reason=(
            "With by_duration and no record that young, reading begins behind the last record; Java waits for one. "
            "In a re-created topic reading begins at its first record, unless none."
        ),
    ),
    ConfigKey(
        "check.crcs", Type.BOOLEAN, True, Importance.LOW, "Check the checksum of each batch before it is decoded."
    ),
    ConfigKey(
        "default.api.timeout.ms",
        Type.INT,
        60000,
        Importance.MEDIUM,
        "Milliseconds that a call without a timeout argument may take.",
        validator=at_least(0),
    ),
    _group_key("enable.auto.commit", Type.BOOLEAN, True, "Commit offsets of processed records automatically."),
    _group_key("exclude.internal.topics", Type.BOOLEAN, True, "Keep internal topics out of pattern subscriptions."),
    ConfigKey(
        "fetch.buffer.bytes",
        Type.LONG,
        67108864,
        Importance.MEDIUM,
        (
            "Bytes of fetched records in memory, over all partitions and brokers. A reader that is slower than the "
            "brokers stops the fetches. One batch that is larger than the limits still arrives (KIP-74)."
        ),
        validator=at_least(1),
        reason="Kafka does not have this key.",
    ),
    ConfigKey(
        "fetch.max.bytes",
        Type.INT,
        52428800,
        Importance.MEDIUM,
        "Bytes of records in one response; a first batch that is larger still arrives (KIP-74).",
        validator=at_least(0),
        reason="At most fetch.buffer.bytes, divided by the number of brokers that are fetched from.",
    ),
    ConfigKey(
        "fetch.max.wait.ms",
        Type.INT,
        500,
        Importance.LOW,
        "Milliseconds that a broker waits for fetch.min.bytes.",
        validator=at_least(0),
    ),
    ConfigKey(
        "fetch.min.bytes",
        Type.INT,
        1,
        Importance.HIGH,
        "Bytes that a broker waits for before it responds, for at most fetch.max.wait.ms.",
        validator=at_least(0),
    ),
    ConfigKey(
        "group.id",
        Type.STRING,
        None,
        Importance.HIGH,
        "The consumer group.",
        status=Status.REFUSED,
        reason=_NO_GROUP,
    ),
    ConfigKey(
        "group.instance.id",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "The name of a static member of the group.",
        status=Status.REFUSED,
        reason=_NO_GROUP,
    ),
    _group_key(
        "group.protocol",
        Type.STRING,
        "classic",
        "The protocol of groups (KIP-848).",
        one_of_ignoring_case("CLASSIC", "CONSUMER"),
    ),
    _group_key("group.remote.assignor", Type.STRING, None, "The assignor of the broker (KIP-848)."),
    _group_key("heartbeat.interval.ms", Type.INT, 3000, "Milliseconds between heartbeats."),
    ConfigKey(
        "interceptor.classes",
        Type.LIST,
        (),
        Importance.LOW,
        "Consumer interceptors.",
        validator=list_without_empty_items(may_be_empty=True),
        status=Status.REFUSED,
        reason="The consumer calls no interceptors.",
    ),
    _group_key(
        "internal.throw.on.fetch.stable.offset.unsupported",
        Type.BOOLEAN,
        False,
        "Fail instead of waiting for stable committed offsets.",
    ),
    ConfigKey(
        "isolation.level",
        Type.STRING,
        "read_uncommitted",
        Importance.MEDIUM,
        (
            "read_uncommitted: every record; read_committed: no records of aborted transactions, and none behind the "
            "first open transaction (KIP-98)."
        ),
        validator=one_of("read_committed", "read_uncommitted"),
    ),
    ConfigKey(
        "key.deserializer",
        Type.CLASS,
        None,
        Importance.HIGH,
        (
            "Deserializer of keys: an object with deserialize(topic, data, headers), a callable of the bytes, "
            '"module:attribute", an entry point of the group aioproducer.deserializers, or one of Kafka\'s class names.'
        ),
        reason="Java requires one; here bytes pass unchanged if none is given.",
    ),
    ConfigKey(
        "max.partition.fetch.bytes",
        Type.INT,
        1048576,
        Importance.HIGH,
        "Bytes of records of one partition in a response; a first batch that is larger still arrives.",
        validator=at_least(0),
    ),
    _group_key("max.poll.interval.ms", Type.INT, 300000, "Milliseconds between two polls of a member.", at_least(1)),
    ConfigKey(
        "max.poll.records",
        Type.INT,
        500,
        Importance.MEDIUM,
        "Records that poll returns unless its max_records says otherwise.",
        validator=at_least(1),
    ),
    _metrics_key("metrics.num.samples", Type.INT, 2, at_least(1)),
    _metrics_key("metrics.recording.level", Type.STRING, "INFO", one_of("INFO", "DEBUG", "TRACE")),
    _metrics_key("metrics.sample.window.ms", Type.LONG, 30000, at_least(0)),
    _group_key(
        "partition.assignment.strategy",
        Type.LIST,
        (
            "org.apache.kafka.clients.consumer.RangeAssignor",
            "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        ),
        "The assignors of the group.",
    ),
    ConfigKey(
        "receive.buffer.bytes",
        Type.INT,
        65536,
        Importance.MEDIUM,
        "Size of the socket's receive buffer (SO_RCVBUF); -1 for the system's default.",
        validator=at_least(-1),
    ),
    _group_key("session.timeout.ms", Type.INT, 45000, "Milliseconds without a heartbeat that end a membership."),
    _group_key("share.acknowledgement.mode", Type.STRING, "implicit", "About share groups (KIP-932)."),
    _group_key("share.acquire.mode", Type.STRING, "BATCH_OPTIMIZED", "About share groups (KIP-932)."),
    ConfigKey(
        "value.deserializer",
        Type.CLASS,
        None,
        Importance.HIGH,
        "Deserializer of values, as key.deserializer.",
        reason="Java requires one; here bytes pass unchanged if none is given.",
    ),
)
