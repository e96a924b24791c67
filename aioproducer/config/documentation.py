"""docs/configuration.md, made from the definition of the keys."""

from __future__ import annotations

from aioproducer.config.definition import NO_DEFAULT, ConfigKey, Status, Type
from aioproducer.config.producer import CONFIG_DEF

_INTRODUCTION = """\
# Configuration

This page is generated from the definition of the keys: `python -m aioproducer.config > docs/configuration.md`.

Every key of the producer of Apache Kafka 4.4 is here, under its own name. A `Producer` takes them as keyword arguments
in snake_case (`linger_ms=10`), `Producer.from_config` as a mapping in dotted or snake_case spelling
(`{"linger.ms": 10}`), `Producer.from_properties` as a Java properties file, which is read as Java reads it (ISO 8859-1,
`\\uXXXX`). Values may be strings, as in such a file, or Python's own types. An unknown key is an error that names the
nearest one, or the one that another client calls so. Names ending in `ms` are milliseconds; sizes are bytes.

Between keys:

- Without `enable.idempotence` being asked for, `acks` other than `all` or `retries` of 0 switch it off, with a line in
  the log of `aioproducer.config`; where it was asked for they are an error.
  `max.in.flight.requests.per.connection` above 5 is an error unless `enable.idempotence` is false. All as in Java.
- `delivery.timeout.ms` must be at least `linger.ms` + `request.timeout.ms`; where it is not given it is raised to that.
- A `reconnect.backoff.ms` without `reconnect.backoff.max.ms` does not grow.
- `partitioner.rack.aware` needs `client.rack`.

One key is Python's alone: `ssl_context`, an `ssl.SSLContext` that takes the place of all `ssl` keys. With it
`security.protocol` is `SSL` unless given.

Plug-ins (`key.serializer`, `value.serializer`, `partitioner.class`, `interceptor.classes`,
`ssl.engine.factory.class`) are Python objects, or strings `module:attribute`, or names of entry points. Kafka's own
class names are understood where there is an equal: `StringSerializer`, `ByteArraySerializer`, `BytesSerializer`,
`ByteBufferSerializer`,
`BooleanSerializer`, `ShortSerializer`, `IntegerSerializer`, `LongSerializer`, `FloatSerializer`, `DoubleSerializer`,
`UUIDSerializer`, `VoidSerializer`, `RoundRobinPartitioner`.

Placeholders `${alias:path:key}` in values are replaced where `config.providers` names the alias and
`config.providers.ALIAS.class` is Kafka's `EnvVarConfigProvider` (`${env:NAME}`), `FileConfigProvider`
(`${file:/path/to.properties:key}`) or `DirectoryConfigProvider` (`${directory:/path:file}`). Their parameters
`config.providers.ALIAS.param.allowlist.pattern` and `.param.allowed.paths` are heeded.

"""


def _shown(value: object) -> str:
    if value is NO_DEFAULT:
        return "required"
    if value is None:
        return "none"
    if value == "":
        return '""'
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(str(item) for item in value)}`" if value else "empty"
    return f"`{value}`"


def _row(key: ConfigKey) -> str:
    type_ = "string" if key.type is Type.PASSWORD else key.type.value
    valid = f" `{key.validator.description}`" if key.validator and key.validator.description else ""
    doc = f"{key.doc} {key.reason}" if key.reason else key.doc
    name = f"`{key.name}`{' (internal)' if key.internal else ''}"
    return f"| {name} | {_shown(key.default)} | {doc}<br>*{type_}{valid}, {key.importance.value} importance* |"


def _other_names() -> str:
    """A line for each key that is called otherwise elsewhere."""
    lines: dict[str, list[str]] = {}
    for name, (here, remark) in sorted(CONFIG_DEF.other_names().items()):
        lines.setdefault(here, []).append(f"`{name}`{f' (here: {remark})' if remark else ''}")
    return "\n".join(f"- `{here}`: {', '.join(names)}" for here, names in sorted(lines.items()))


def configuration_page() -> str:
    """The text of docs/configuration.md."""
    # Few columns: the longest key takes a third of the page.
    head = "| key | default | meaning, *type, valid values and importance* |\n|---|---|---|\n"
    keys = CONFIG_DEF.keys.values()
    supported = "\n".join(_row(key) for key in keys if key.status is Status.SUPPORTED)
    parts = [_INTRODUCTION, "## Supported\n\n", head, supported, "\n\n"]
    for status, title, sentence in (
        (
            Status.WITHOUT_EFFECT,
            "Accepted, without effect",
            "Values are checked; one line in the log says that they do nothing.",
        ),
        (Status.REFUSED, "Refused", "Any value but the default is an error."),
    ):
        chosen = [key for key in keys if key.status is status]
        parts += [f"## {title}\n\n{sentence}\n\n", head, "\n".join(_row(key) for key in chosen), "\n\n"]
    parts += [
        "## Coming from another client\n\n",
        "What librdkafka, kafka-python and aiokafka (which have `_` for `.`) call these keys; here those names are "
        "errors that say so.\n\n",
        _other_names(),
    ]
    return "".join(parts).rstrip("\n") + "\n"
