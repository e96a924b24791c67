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

_CLASSIC_ONLY = "The consumer joins groups by the classic protocol."
_SHARE_GROUPS = "About share groups (KIP-932)."
_NO_SHARE_GROUPS = "The consumer joins no share groups."
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


# The names of assignors in JoinGroup, which Kafka's classes have for them, and the names of these classes.
ASSIGNOR_NAMES: Final = ("range", "roundrobin", "sticky", "cooperative-sticky")
_JAVA_ASSIGNORS: Final = {
    f"org.apache.kafka.clients.consumer.{java}": name
    for java, name in zip(
        ("RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor"),
        ASSIGNOR_NAMES,
        strict=True,
    )
}
_INSTANCE_ID = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def assignor_name(value: str) -> str:
    """Return the name of an assignor in JoinGroup, from this name or from Kafka's class."""
    return _JAVA_ASSIGNORS.get(value, value.lower())


def _are_assignors(value: Value) -> bool:
    if not isinstance(value, tuple) or not value:
        return False
    names = [assignor_name(each) if isinstance(each, str) else "" for each in value]
    return set(names).issubset(ASSIGNOR_NAMES) and len(set(names)) == len(names)


def _is_instance_id(value: Value) -> bool:
    if value is None:
        return True
    return isinstance(value, str) and value not in (".", "..") and _INSTANCE_ID.fullmatch(value) is not None


def _unused_key(
    name: str, type: Type, default: Value, doc: str, reason: str, validator: Validator | None = None
) -> ConfigKey:
    return ConfigKey(name, type, default, Importance.LOW, doc, validator, status=Status.WITHOUT_EFFECT, reason=reason)


CONSUMER_KEYS = (
    ConfigKey(
        "allow.auto.create.topics",
        Type.BOOLEAN,
        True,
        Importance.MEDIUM,
        "Let brokers create an assigned topic that does not exist, if auto.create.topics.enable permits it.",
    ),
    ConfigKey(
        "auto.commit.interval.ms",
        Type.INT,
        5000,
        Importance.LOW,
        "Milliseconds between automatic commits, with enable.auto.commit.",
        validator=at_least(0),
        reason="At least 10 ms pass between two commits.",
    ),
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
    ConfigKey(
        "enable.auto.commit",
        Type.BOOLEAN,
        True,
        Importance.MEDIUM,
        (
            "Commit offsets automatically: every auto.commit.interval.ms, before partitions are revoked, and by close. "
            "Without group.id nothing is committed."
        ),
        reason="Only records behind which the next one was requested are committed; Java commits all returned ones.",
    ),
    ConfigKey(
        "exclude.internal.topics",
        Type.BOOLEAN,
        True,
        Importance.MEDIUM,
        "Let a subscription by pattern match no internal topics, such as __consumer_offsets.",
    ),
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
        "The consumer group: needed for subscribe, commit and committed.",
        validator=Validator(
            "non-empty string",
            lambda value: value is None or (isinstance(value, str) and bool(value.strip())),
            "must not be empty",
        ),
    ),
    ConfigKey(
        "group.instance.id",
        Type.STRING,
        None,
        Importance.MEDIUM,
        (
            "The name of a static member (KIP-345): it keeps its partitions while it restarts, for at most "
            "session.timeout.ms. No two members of a group may have the same one."
        ),
        validator=Validator(
            "non-empty string",
            _is_instance_id,
            "must have 1 to 249 letters, digits, dots, underscores or hyphens, and must not be . or ..",
        ),
    ),
    ConfigKey(
        "group.protocol",
        Type.STRING,
        "classic",
        Importance.HIGH,
        "The protocol of groups: classic. The consumer protocol (KIP-848) is refused.",
        validator=one_of_ignoring_case("CLASSIC", "CONSUMER"),
        reason=_CLASSIC_ONLY,
    ),
    _unused_key("group.remote.assignor", Type.STRING, None, "The assignor of the broker (KIP-848).", _CLASSIC_ONLY),
    ConfigKey(
        "heartbeat.interval.ms",
        Type.INT,
        3000,
        Importance.HIGH,
        "Milliseconds between heartbeats to the group's coordinator; at most a third of session.timeout.ms is good.",
        validator=at_least(1),
    ),
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
    _unused_key(
        "internal.throw.on.fetch.stable.offset.unsupported",
        Type.BOOLEAN,
        False,
        "Fail instead of waiting for stable committed offsets.",
        "Brokers before Kafka 2.5 return the offsets that they have.",
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
    ConfigKey(
        "max.poll.interval.ms",
        Type.INT,
        300000,
        Importance.MEDIUM,
        (
            "Milliseconds between two requests for records, after which the member leaves the group; also the time "
            "that the group waits for this member in a rebalance."
        ),
        validator=at_least(1),
        reason="Waiting for records counts as requesting them.",
    ),
    ConfigKey(
        "max.poll.records",
        Type.INT,
        500,
        Importance.MEDIUM,
        "Records that poll returns unless its max_records says otherwise.",
        validator=at_least(1),
    ),
    ConfigKey(
        "partition.assignment.strategy",
        Type.LIST,
        tuple(name for name, each in _JAVA_ASSIGNORS.items() if each in ("range", "cooperative-sticky")),
        Importance.MEDIUM,
        (
            "The assignors in the order of preference: range, roundrobin, sticky, cooperative-sticky, or Kafka's class "
            "names. The group uses one that all members have. Rebalances are incremental (KIP-429) if all of them can "
            "do so, which is cooperative-sticky alone."
        ),
        validator=Validator(
            "[range, roundrobin, sticky, cooperative-sticky], or their classes",
            _are_assignors,
            f"must contain some of {', '.join(ASSIGNOR_NAMES)} or Kafka's classes of them, each once",
        ),
        reason="Assignors of other classes cannot be loaded.",
    ),
    ConfigKey(
        "receive.buffer.bytes",
        Type.INT,
        65536,
        Importance.MEDIUM,
        "Size of the socket's receive buffer (SO_RCVBUF); -1 for the system's default.",
        validator=at_least(-1),
    ),
    ConfigKey(
        "session.timeout.ms",
        Type.INT,
        45000,
        Importance.HIGH,
        "Milliseconds without a heartbeat after which the group removes the member.",
        validator=at_least(1),
        reason="Brokers limit it by group.min.session.timeout.ms and group.max.session.timeout.ms.",
    ),
    _unused_key("share.acknowledgement.mode", Type.STRING, "implicit", _SHARE_GROUPS, _NO_SHARE_GROUPS),
    _unused_key("share.acquire.mode", Type.STRING, "BATCH_OPTIMIZED", _SHARE_GROUPS, _NO_SHARE_GROUPS),
    ConfigKey(
        "value.deserializer",
        Type.CLASS,
        None,
        Importance.HIGH,
        "Deserializer of values, as key.deserializer.",
        reason="Java requires one; here bytes pass unchanged if none is given.",
    ),
)
