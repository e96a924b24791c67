"""The options of ``df.write.format("aioproducer").option(...)``, checked before any task runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from aioproducer._common.diagnosis import nearest
from aioproducer.config import CONFIG_DEF, Password, ProducerConfig, Type
from aioproducer.config.client_files import CONSUMER_KEYS
from aioproducer.errors import ConfigurationError
from aioproducer.spark.format_names import FORMATS
from aioproducer.spark.row_queue import FLUSH_MARGIN_MS
from aioproducer.spark.transactional.rules import check_sink_id, write_sink

KAFKA: Final = "kafka."
"""Prefix of a producer's key, as in ``kafka.bootstrap.servers``."""

OPTIONS: Final = ("topic", "key_format", "value_format", "flush_timeout_ms", "check_timeout_ms")
"""The sink's own options."""

EXACTLY_ONCE_OPTIONS: Final = ("delivery", "sink.id", "transaction.timeout.ms", "decision.topic", "write.id")
"""The sink's own options about exactly-once delivery."""

WRITE_NAME: Final = "write.name"
WRITE_BATCH: Final = "write.batch"
"""What ``write_batch`` sets: the write of a micro-batch in ``foreachBatch``, and the number of that."""

AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
DELIVERIES: Final = (AT_LEAST_ONCE, EXACTLY_ONCE)
DECISION_TOPIC: Final = "__aioproducer_decisions"
TRANSACTION_TIMEOUT_MS: Final = 900_000
_OF_EXACTLY_ONCE: Final = (*EXACTLY_ONCE_OPTIONS[1:], WRITE_NAME, WRITE_BATCH)
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

CHECK_TIMEOUT_MS: Final = 10_000
_LONGEST_MS: Final = 2**31 - 1

# Options that Spark adds or reads itself. includeHeaders belongs to the Kafka source; this sink writes a headers column
# in any case, as Spark's own.
_SPARKS_OWN: Final = frozenset(
    (
        "asyncprogresstrackingcheckpointintervalms",
        "asyncprogresstrackingenabled",
        "checkpointlocation",
        "includeheaders",
        "queryname",
        "_asyncprogresstrackingoverridesinksupportcheck",
    )
)
_SPARKS_OWN_PREFIX: Final = "__"

_SOURCE_ONLY: Final = frozenset(
    (
        "assign",
        "endingoffsets",
        "endingoffsetsbytimestamp",
        "endingtimestamp",
        "failondataloss",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "groupidprefix",
        "kafkaconsumer.polltimeoutms",
        "maxoffsetspertrigger",
        "maxrecordsperpartition",
        "maxtriggerdelay",
        "minoffsetspertrigger",
        "minpartitions",
        "startingoffsets",
        "startingoffsetsbytimestamp",
        "startingoffsetsbytimestampstrategy",
        "startingtimestamp",
        "subscribe",
        "subscribepattern",
    )
)

# Keys of Kafka's producer that the sink rejects, and the remedies.
_REFUSED_KEYS: Final = {
    "transactional.id": (
        "each task has a transactional id of its own: drop the option, and for exactly-once set "
        '.option("delivery", "exactly-once").option("sink.id", ...)'
    ),
    "key.serializer": "the sink writes the bytes of the column: convert it in the query, or with the option key_format",
    "value.serializer": (
        "the sink writes the bytes of the column: convert it in the query, or with the option value_format"
    ),
}
# Serializers of byte arrays are dropped: the sink does the same.
_SERIALIZERS: Final = ("key.serializer", "value.serializer")
_BYTES_AS_THEY_ARE: Final = "org.apache.kafka.common.serialization.ByteArraySerializer"

# Prefixes of keys that plug-ins define, with any name.
_OPEN_PREFIXES: Final = ("config.providers.", "metrics.context.")


@dataclass(frozen=True, slots=True)
class ExactlyOnceOptions:
    """The options of exactly-once delivery.

    sink
        Names the sink over restarts; its transactional ids begin with it.
    timeout_ms
        The coordinator aborts a transaction that is open for longer.
    decision_topic
        The topic of the decisions.
    write_id
        Names a batch job: the same id again writes nothing; None if a rerun writes again.
    micro_batch
        The number of the micro-batch that a batch job is in ``foreachBatch``; None for another one.
    """

    sink: str
    timeout_ms: int
    decision_topic: str
    write_id: str | None
    micro_batch: int | None


@dataclass(frozen=True, slots=True, repr=False)
class SinkOptions:
    """The checked options of one write.

    config
        The producer's configuration: Kafka's dotted names and their values as given, sorted. Placeholders of config
        providers are not resolved here: a task's secrets are read on the executor.
    topic
        Topic of all rows; ``None`` if a column names it.
    key_format, value_format
        Formats that the columns are converted to; ``""`` if they must be strings or binary.
    flush_timeout_ms
        How long the end of a task waits for acknowledgements; by default ``delivery.timeout.ms`` and ten seconds.
    check_timeout_ms
        How long the driver waits for an answer of the cluster before the job starts.
    exactly_once
        The options of exactly-once delivery; None for delivery at least once.
    """

    config: tuple[tuple[str, str], ...]
    topic: str | None
    key_format: str
    value_format: str
    flush_timeout_ms: int
    check_timeout_ms: int
    exactly_once: ExactlyOnceOptions | None = None

    def __repr__(self) -> str:
        config = {name: Password("") if _is_secret(name) else value for name, value in self.config}
        return (
            f"SinkOptions(config={config!r}, topic={self.topic!r}, key_format={self.key_format!r}, "
            f"value_format={self.value_format!r}, flush_timeout_ms={self.flush_timeout_ms}, "
            f"check_timeout_ms={self.check_timeout_ms}, exactly_once={self.exactly_once!r})"
        )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse the options as Spark passes them, with keys in any case.

        A ``ProducerConfig`` checks the values. It opens no file of an ``ssl`` key, which may exist on the executors
        only. Modules of plug-ins and the files of config providers must exist on this machine.

        Raises:
            ConfigurationError: an option is unknown or missing, or its value is wrong; no secret is in the text.
        """
        given = {name.lower(): value for name, value in options.items()}
        config: dict[str, str] = {}
        own: dict[str, str] = {}
        for name, value in given.items():
            if name.startswith(KAFKA):
                key = name.removeprefix(KAFKA)
                if key not in _SERIALIZERS or value.strip() != _BYTES_AS_THEY_ARE:
                    _refuse_key(key)
                    config[key] = value
            elif name in (*OPTIONS, *EXACTLY_ONCE_OPTIONS, WRITE_NAME, WRITE_BATCH):
                own[name] = value.strip()
            elif name not in _SPARKS_OWN and not name.startswith(_SPARKS_OWN_PREFIX):
                raise ConfigurationError(_unknown(name))
        if not config.get("bootstrap.servers", "").strip():
            # Spark does not pass the options of a table.
            table = "" if config or own else "; those of CREATE TABLE reach no sink in Python: INSERT INTO t WITH (...)"
            raise ConfigurationError(
                f'the option kafka.bootstrap.servers is missing: .option("kafka.bootstrap.servers", "host:9092"){table}'
            )
        if own.get("topic") == "":
            raise ConfigurationError("the option topic is empty: name a topic, or drop it and have a column topic")
        config = _with_provider_names(config)
        exactly_once = _exactly_once(own)
        checked = config
        if exactly_once is not None:
            if "transaction.timeout.ms" in config:
                raise ConfigurationError(
                    "the option is 'transaction.timeout.ms', not 'kafka.transaction.timeout.ms': the sink sets it for "
                    "each task"
                )
            # This also checks what transactions need of the configuration.
            checked = {
                **config,
                "transactional.id": exactly_once.sink,
                "transaction.timeout.ms": str(exactly_once.timeout_ms),
            }
        flush_timeout_ms = _producer_config(checked).delivery_timeout_ms + FLUSH_MARGIN_MS
        return cls(
            config=tuple(sorted(config.items())),
            topic=own.get("topic"),
            key_format=_format(own, "key_format"),
            value_format=_format(own, "value_format"),
            flush_timeout_ms=_milliseconds(own, "flush_timeout_ms", flush_timeout_ms),
            check_timeout_ms=_milliseconds(own, "check_timeout_ms", CHECK_TIMEOUT_MS),
            exactly_once=exactly_once,
        )


def _exactly_once(own: Mapping[str, str]) -> ExactlyOnceOptions | None:
    """
    Raises:
        ConfigurationError: an option of exactly-once delivery is missing, wrong, or given without it.
    """
    delivery = own.get("delivery", AT_LEAST_ONCE).lower()
    if delivery not in DELIVERIES:
        raise ConfigurationError(f"the option delivery must be one of {', '.join(DELIVERIES)}, not {delivery!r}")
    if delivery == AT_LEAST_ONCE:
        for name in _OF_EXACTLY_ONCE:
            if name in own:
                raise ConfigurationError(
                    f'the option {name} is for exactly-once delivery: add .option("delivery", "{EXACTLY_ONCE}"), or '
                    "drop it"
                )
        return None
    if "sink.id" not in own:
        raise ConfigurationError(
            "the option sink.id is missing: exactly-once delivery needs a name that stays the same over restarts and "
            'that no other query or write has: .option("sink.id", "orders-job")'
        )
    option = "the option sink.id"
    try:
        sink = check_sink_id(own["sink.id"])
        if WRITE_NAME in own:
            option = "the name of write_batch"
            sink = write_sink(sink, check_sink_id(own[WRITE_NAME]))
    except ValueError as error:
        raise ConfigurationError(f"{option} {error}") from None
    topic = own.get("decision.topic", DECISION_TOPIC)
    if not _TOPIC_NAME.fullmatch(topic):
        raise ConfigurationError(f"the option decision.topic must be the name of a topic, not {topic!r}")
    write_id = own.get("write.id")
    if write_id == "":
        raise ConfigurationError("the option write.id is empty: name the write, or drop it")
    return ExactlyOnceOptions(
        sink,
        _milliseconds(own, "transaction.timeout.ms", TRANSACTION_TIMEOUT_MS),
        topic,
        write_id,
        int(own[WRITE_BATCH]) if WRITE_BATCH in own else None,
    )


def _with_provider_names(config: Mapping[str, str]) -> dict[str, str]:
    """``config`` with the names of config providers as the value of ``config.providers`` spells them.

    Spark makes keys lower-case. These names are the only part of a key that Kafka does not define.
    """
    restored = dict(config)
    for name in (alias.strip() for alias in config.get("config.providers", "").split(",")):
        lowered = f"config.providers.{name.lower()}."
        for key in [key for key in restored if key.startswith(lowered)]:
            restored[f"config.providers.{name}.{key.removeprefix(lowered)}"] = restored.pop(key)
    return restored


def _producer_config(config: Mapping[str, str]) -> ProducerConfig:
    try:
        return ProducerConfig.from_mapping(config)
    except ConfigurationError as error:
        # The same class, which distinguishes unsupported keys; names as the user wrote them.
        raise type(error)(_with_prefix(str(error))) from None


def _with_prefix(text: str) -> str:
    first = text.partition(" ")[0].rstrip(":")
    return f"option {KAFKA}{text}" if first in CONFIG_DEF.keys else f"kafka options: {text}"


def _refuse_key(key: str) -> None:
    """
    Raises:
        ConfigurationError: the producer has no such key, or the sink has its own way.
    """
    if key in CONFIG_DEF.keys:
        if key in _REFUSED_KEYS:
            raise ConfigurationError(f"the option {KAFKA}{key} is not supported: {_REFUSED_KEYS[key]}")
        return
    if key.startswith(_OPEN_PREFIXES):
        return
    if key in (*OPTIONS, *EXACTLY_ONCE_OPTIONS):
        raise ConfigurationError(f"the option is {key!r}, not {KAFKA + key!r}: it is the sink's, not Kafka's")
    if key in CONSUMER_KEYS:
        raise ConfigurationError(
            f"the option {KAFKA + key!r} is one of Kafka's consumer; to write there is no such thing: drop it"
        )
    hint = _spelt_like(KAFKA + key, [KAFKA + known for known in CONFIG_DEF.keys])
    raise ConfigurationError(f"unknown option {KAFKA + key!r}: Kafka's producer has no such key{_joined(hint)}")


def _unknown(name: str) -> str:
    if name == "path":
        return "the sink writes to a topic, not to a path: call save() or start() without one"
    if name in _SOURCE_ONLY:
        return f"the option {name!r} is one of Spark's Kafka source; to write there is no such thing: drop it"
    names = [*OPTIONS, *EXACTLY_ONCE_OPTIONS, *(KAFKA + key for key in CONFIG_DEF.keys)]
    if name in CONFIG_DEF.keys:
        hint = f"did you mean {KAFKA + name!r}?"
    else:
        hint = _spelt_like(name, names)
    own = ", ".join((*OPTIONS, *EXACTLY_ONCE_OPTIONS))
    return f"unknown option {name!r}{_joined(hint)} The sink's own options are {own}"


def _joined(hint: str) -> str:
    return f"; {hint}" if hint else "."


def _spelt_like(name: str, known: Iterable[str]) -> str:
    by_letters: dict[str, str] = {_letters(other): other for other in known}
    alike = by_letters.get(_letters(name))
    return f"did you mean {alike!r}?" if alike is not None else nearest(name, list(by_letters.values()))


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name))


def _format(own: Mapping[str, str], name: str) -> str:
    value = own.get(name, "").lower()
    if value and value not in FORMATS:
        hint = nearest(value, FORMATS)
        raise ConfigurationError(
            f"the option {name} must be one of {', '.join(FORMATS)}, not {value!r}{f'; {hint}' if hint else ''}"
        )
    return value


def _milliseconds(own: Mapping[str, str], name: str, default: int) -> int:
    text = own.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _LONGEST_MS):
        raise ConfigurationError(f"the option {name} must be a number of milliseconds above 0, not {text!r}")
    return int(text)


def _is_secret(name: str) -> bool:
    key = CONFIG_DEF.keys.get(name)
    # A plug-in's value may be a secret, such as a token.
    return key is None or key.type is Type.PASSWORD
