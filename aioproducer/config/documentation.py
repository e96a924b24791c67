"""Generator of docs/configuration.md from the definition of the keys."""

from __future__ import annotations

from aioproducer.config.client_files import ALIASES, SCHEMA_REGISTRY_PREFIXES
from aioproducer.config.consumer_keys import CONSUMER_KEYS
from aioproducer.config.definition import NO_DEFAULT, ConfigKey, Status, Type
from aioproducer.config.own_keys import OWN_KEYS
from aioproducer.config.producer import CONFIG_DEF

_INTRODUCTION = """\
# Configuration

All keys of the producer of Apache Kafka 4.4 work under their own names, and a few more, in three forms:

| form | spelling | example |
|---|---|---|
| keyword arguments | snake_case | `Producer(linger_ms=10)` |
| mapping | dotted or snake_case | `Producer.from_config({"linger.ms": 10})` |
| Java properties file (ISO 8859-1, `\\uXXXX`) | dotted | `Producer.from_properties("my.properties")` |

Values may be strings, as in a properties file, or Python's own types. For keyword arguments type checkers know each key
with its type and its documentation: editors complete it, and mypy and pyright report a misspelt key, a number given as
text, or a value that an enumeration does not have. A function that passes keys on declares them with the same type:

```python
from typing import Unpack

from aioproducer import Producer
from aioproducer.config import ProducerConfigDict


def orders_producer(**config: Unpack[ProducerConfigDict]) -> Producer:
    config.setdefault("bootstrap_servers", "localhost:9092")
    return Producer(**config)
```

`Admin` and `Reader` take only the keys about connections, `ConnectionConfigDict`. Settings that a program reads from
elsewhere, as text, go into a mapping: type checkers do not look into it, and all is checked when the client is created.

An unknown key is an error that suggests the nearest name, or the name here of a key of another client. Keys that end in
`ms` are milliseconds; sizes are bytes.

A properties file may be shared with other clients. Of a file, and only there, these keys are ignored, and the log has
one line with their names: those that only Kafka's consumer, admin client or Streams have, and those that begin with
{prefixes}. {aliases}

This page is generated from the definition of the keys: `python -m aioproducer.config > docs/configuration.md`.

## Rules between keys

- Idempotence is on by default. If `enable.idempotence` is not given, `acks` other than `all` or `retries` of 0 disable
  it, and `aioproducer.config` logs so. If it is given as true, they are an error. As in Java.
- `max.in.flight.requests.per.connection` above 5 is an error unless `enable.idempotence` is false. As in Java.
- `delivery.timeout.ms` must be at least `linger.ms` + `request.timeout.ms`. If it is not given, it is raised to that
  sum.
- A `reconnect.backoff.ms` without `reconnect.backoff.max.ms` does not grow.
- `partitioner.rack.aware` needs `client.rack`.
- `ssl_context` exists only in Python: an `ssl.SSLContext` that replaces all `ssl` keys. With it, `security.protocol` is
  `SSL` unless given.
- `security.protocol` `SASL_SSL` and `SASL_PLAINTEXT` need `sasl.mechanism`. `PLAIN` and `SCRAM-SHA-*` need
  `sasl.username` and `sasl.password`, or `sasl.jaas.config`: not both. `OAUTHBEARER` needs
  `sasl.oauthbearer.token.endpoint.url` or `sasl.token.provider`: not both. `AWS_MSK_IAM` needs nothing else.
- The login module in `sasl.jaas.config` must fit the mechanism. Its options `clientId`, `clientSecret` and `scope`
  stand for keys that are not given, `extension_NAME` for SASL extensions.
- With `SASL_PLAINTEXT`, `aioproducer.config` warns if a password or token is sent unencrypted to another machine.
- SASL keys without a SASL protocol have no effect; a warning names them.

[Security](security.md) has the keys for each provider.

## Plug-ins

`key.serializer`, `value.serializer`, `partitioner.class`, `interceptor.classes` and `ssl.engine.factory.class` accept
Python objects, strings `module:attribute`, and names of entry points. These class names of Kafka are accepted as well:
`StringSerializer`, `ByteArraySerializer`, `BytesSerializer`, `ByteBufferSerializer`, `BooleanSerializer`,
`ShortSerializer`, `IntegerSerializer`, `LongSerializer`, `FloatSerializer`, `DoubleSerializer`, `UUIDSerializer`,
`VoidSerializer`, `RoundRobinPartitioner`.

## Placeholders

`${alias:path:key}` in a value is replaced if `config.providers` names the alias, and `config.providers.ALIAS.class` is
one of Kafka's providers. Parameters are set with `config.providers.ALIAS.param.NAME`.

| provider | placeholder | parameter |
|---|---|---|
| `EnvVarConfigProvider` | `${env:NAME}` | `allowlist.pattern`: a regular expression of allowed names |
| `FileConfigProvider` | `${file:/path/to.properties:key}` | `allowed.paths`: allowed paths, with commas between |
| `DirectoryConfigProvider` | `${directory:/path:file}` | `allowed.paths` |

"""


def shown_default(value: object) -> str:
    """Return a key's default as Markdown."""
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


def _introduction() -> str:
    prefixes = [f"`{prefix}`" for prefix in SCHEMA_REGISTRY_PREFIXES]
    aliases = " ".join(f"`{alias}` stands for `{name}`." for alias, name in ALIASES.items())
    return _INTRODUCTION.replace("{prefixes}", f"{', '.join(prefixes[:-1])} or {prefixes[-1]}").replace(
        "{aliases}", aliases
    )


def _row(key: ConfigKey) -> str:
    type_ = "string" if key.type is Type.PASSWORD else key.type.value
    valid = f" `{key.validator.description}`" if key.validator and key.validator.description else ""
    doc = f"{key.doc} {key.reason}" if key.reason else key.doc
    name = f"`{key.name}`{' (internal)' if key.internal else ''}"
    return f"| {name} | {shown_default(key.default)} | {doc}<br>*{type_}{valid}, {key.importance.value} importance* |"


def _other_names() -> str:
    """Return a line for each key that has another name in other clients."""
    lines: dict[str, list[str]] = {}
    for name, (here, remark) in sorted(CONFIG_DEF.other_names().items()):
        lines.setdefault(here, []).append(f"`{name}`{f' (here: {remark})' if remark else ''}")
    return "\n".join(f"- `{here}`: {', '.join(names)}" for here, names in sorted(lines.items()))


def configuration_page() -> str:
    """Return the text of docs/configuration.md."""
    # Few columns, because the longest key takes a third of the page.
    head = "| key | default | meaning, *type, valid values and importance* |\n|---|---|---|\n"
    own = {key.name for key in OWN_KEYS}
    keys = [key for name, key in CONFIG_DEF.keys.items() if name not in own]
    supported = "\n".join(_row(key) for key in keys if key.status is Status.SUPPORTED)
    parts = [_introduction(), "## Supported\n\n", head, supported, "\n\n"]
    parts += [
        "## Keys that only this client has\n\n",
        "Kafka does not have these keys: its own clients ignore them with a warning, so that a file can be shared.\n\n",
        head,
        "\n".join(_row(CONFIG_DEF.keys[name]) for name in sorted(own)),
        "\n\n",
    ]
    for status, title, sentence in (
        (
            Status.WITHOUT_EFFECT,
            "Accepted, without effect",
            "The values are checked and have no effect; the log has one line for each.",
        ),
        (Status.REFUSED, "Refused", "Any value except the default is an error."),
    ):
        chosen = [key for key in keys if key.status is status]
        parts += [f"## {title}\n\n{sentence}\n\n", head, "\n".join(_row(key) for key in chosen), "\n\n"]
    parts += [
        "## Keys of the consumer\n\n",
        "`Consumer` has all keys of the consumer of Apache Kafka 4.4, in the first two forms. Those about connections "
        "and security are the producer's above, with 65536 for `receive.buffer.bytes`. The others:\n\n",
        head,
        "\n".join(
            _row(key) for key in CONSUMER_KEYS if key.status is Status.SUPPORTED and key.name not in CONFIG_DEF.keys
        ),
        "\n\nAccepted, without effect: ",
        ", ".join(f"`{key.name}`" for key in CONSUMER_KEYS if key.status is Status.WITHOUT_EFFECT),
        ". Refused, as the consumer calls no interceptors: ",
        ", ".join(f"`{key.name}`" for key in CONSUMER_KEYS if key.status is Status.REFUSED),
        ".\n\n",
    ]
    parts += [
        "## Coming from another client\n\n",
        "The names of these keys in librdkafka, and in kafka-python and aiokafka (with `_` for `.`). Here those names "
        "raise an error that contains the right one.\n\n",
        _other_names(),
    ]
    return "".join(parts).rstrip("\n") + "\n"
