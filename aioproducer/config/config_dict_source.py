"""Generator of ``config_dict.py`` from the definition of the keys.

::

    python -m aioproducer.config.config_dict_source > aioproducer/config/config_dict.py
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from aioproducer.config.consumer import CONSUMER_CONFIG_DEF
from aioproducer.config.definition import NO_DEFAULT, ConfigKey, Status, Type
from aioproducer.config.documentation import shown_default
from aioproducer.config.own_keys import OWN_KEYS
from aioproducer.config.producer import CONFIG_DEF
from aioproducer.config.security_keys import SASL_KEYS, SSL_KEYS

_WIDTH = 120

_HEADER = '''\
"""The types of all keys as keyword arguments, for type checkers and editors.

This file is generated from the definition of the keys, and tests/config/test_config_dict.py compares the two:

    python -m aioproducer.config.config_dict_source > aioproducer/config/config_dict.py

The types are those of Python: a number is no ``str``, so that ``linger_ms="five"`` is found. At run time a ``str`` with
a number or a placeholder is accepted too; mappings and properties files have such values.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Literal, TypedDict

from aioproducer.config.definition import Password
from aioproducer.config.value_types import (
    DeserializerValue,
    EngineFactoryValue,
    InterceptorValue,
    PartitionerValue,
    PasswordValue,
    SerializerValue,
    TokenProviderValue,
)

'''

# The keys that clients other than the producer use too, beside all that concern security.
_CONNECTION_NAMES = frozenset(
    {
        "bootstrap.resolve.timeout.ms",
        "bootstrap.servers",
        "client.dns.lookup",
        "client.id",
        "config.providers",
        "connections.max.idle.ms",
        "max.in.flight.requests.per.connection",
        "metadata.cluster.check.enable",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        *(key.name for key in (*SSL_KEYS, *SASL_KEYS, *OWN_KEYS)),
    }
)

_TYPES = {
    Type.BOOLEAN: "bool",
    Type.STRING: "str",
    Type.INT: "int",
    Type.SHORT: "int",
    Type.LONG: "int",
    Type.DOUBLE: "float",
    Type.LIST: "str | Sequence[str]",
    Type.CLASS: "str",
    Type.PASSWORD: "str | Password",
}

# Keys with values that the definition does not describe: objects, and enumerations that other rules check.
_SPECIAL_TYPES = {
    "acks": 'Literal["all", "-1", "0", "1", -1, 0, 1]',
    "interceptor.classes": "str | Sequence[InterceptorValue]",
    "key.deserializer": "DeserializerValue",
    "key.serializer": "SerializerValue",
    "partitioner.class": "PartitionerValue",
    "sasl.mechanism": 'Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]',
    "sasl.password": "PasswordValue",
    "sasl.token.provider": "TokenProviderValue",
    "ssl.engine.factory.class": "EngineFactoryValue",
    "value.deserializer": "DeserializerValue",
    "value.serializer": "SerializerValue",
}

_SSL_CONTEXT = """\
    ssl_context: ssl.SSLContext | None
    \"\"\"An ``ssl.SSLContext`` that replaces all ``ssl`` keys. With it, ``security_protocol`` is SSL unless given.

    Default: none.
    \"\"\"
"""


def value_type(key: ConfigKey) -> str:
    """Return the type of a key's value as Python source."""
    if key.name in _SPECIAL_TYPES:
        type_ = _SPECIAL_TYPES[key.name]
    elif key.validator is not None and key.validator.choices:
        choices = list(key.validator.choices)
        if key.validator.ignores_case:
            choices += [choice.lower() for choice in choices]
        type_ = f"Literal[{', '.join(_quoted(choice) for choice in choices)}]"
    else:
        type_ = _TYPES[key.type]
    return f"{type_} | None" if key.default is None else type_


def _quoted(text: str) -> str:
    return f'"{text}"'


def _field(key: ConfigKey) -> str:
    declaration = f"    {key.attribute}: {value_type(key)}"
    if len(declaration) > _WIDTH:
        name, bracket, choices = declaration.partition("Literal[")
        inner, _, rest = choices.partition("]")
        lines = textwrap.wrap(inner, _WIDTH - 8)
        if len(lines) > 1:
            lines = [f"{choice}," for choice in inner.split(", ")]
        declaration = "\n".join([name + bracket, *(f"        {line}" for line in lines), f"    ]{rest}"])
    doc = f"{key.doc} {key.reason}".strip()
    if key.status is Status.WITHOUT_EFFECT:
        doc = f"Without effect. {doc}"
    default = "Required" if key.default is NO_DEFAULT else f"Default: {shown_default(key.default)}"
    text = f"{doc} {default}."
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    lines = textwrap.wrap(f'"""{escaped}', _WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    # The quotes at the end need room, and must not touch another quote.
    if len(lines) == 1 and len(lines[0]) + 3 <= _WIDTH - 4:
        lines[0] += '"""'
    else:
        lines.append('"""')
    return "\n".join([declaration, *(f"    {line}" for line in lines), ""])


def _class(name: str, base: str, doc: str, keys: Iterable[ConfigKey], further: str = "") -> str:
    fields = "\n".join(_field(key) for key in keys) + (f"\n{further}" if further else "")
    return f'class {name}({base}, total=False):\n    """{doc}"""\n\n{fields}'


def config_dict_source() -> str:
    """Return the text of ``config_dict.py``.

    Keys that are rejected are left out, so that type checkers find them.
    """
    keys = [key for key in CONFIG_DEF.keys.values() if key.status is not Status.REFUSED]
    consumer_keys = [key for key in CONSUMER_CONFIG_DEF.keys.values() if key.status is not Status.REFUSED]
    # The same object in both definitions, as a key with another default is another one.
    common = [key for key in keys if any(key is other for other in consumer_keys)]
    shared = [key for key in common if key.name in _CONNECTION_NAMES]
    more = [key for key in keys if key.name in _CONNECTION_NAMES and key not in common]
    own = [key for key in keys if key.name not in _CONNECTION_NAMES]
    client = _class(
        "ClientConfigDict", "TypedDict", "The keys about connections that every client has.", shared, _SSL_CONTEXT
    )
    connection = _class(
        "ConnectionConfigDict",
        "ClientConfigDict",
        "The keys about connections: those of ``Admin`` and ``Reader``.",
        more,
    )
    producer = _class(
        "ProducerConfigDict", "ConnectionConfigDict", "The keys of ``Producer``, except those that are rejected.", own
    )
    consumer = _class(
        "ConsumerConfigDict",
        "ClientConfigDict",
        "The keys of ``Consumer``, except those that are rejected.",
        [key for key in consumer_keys if key not in shared],
    )
    return "\n\n".join([_HEADER.rstrip("\n") + "\n", client, connection, producer, consumer])


if __name__ == "__main__":
    print(config_dict_source(), end="")
