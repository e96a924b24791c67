"""Loader of the Python objects for class-name keys."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Final

from aioproducer.errors import ConfigurationError


class PluginKind:
    """The kind of object that a key accepts."""

    __slots__ = ("group", "java_classes", "methods", "takes_callables")

    def __init__(
        self,
        group: str,
        methods: tuple[str, ...],
        takes_callables: bool,
        java_classes: Callable[[], Mapping[str, object]],
    ) -> None:
        self.group: Final = group
        """Group of the entry points that the key accepts by name."""
        self.methods: Final = methods
        """An object must have one of these methods; with ``takes_callables`` it may be callable instead."""
        self.takes_callables: Final = takes_callables
        self.java_classes: Final = java_classes
        """Returns the equivalent of each of Kafka's class names; ``None`` stands for the built-in behaviour."""


def _java_serializers() -> Mapping[str, object]:
    from aioproducer.serializers import JAVA_CLASS_NAMES

    return JAVA_CLASS_NAMES


def _java_deserializers() -> Mapping[str, object]:
    from aioproducer.deserializers import JAVA_CLASS_NAMES

    return JAVA_CLASS_NAMES


def _java_partitioners() -> Mapping[str, object]:
    from aioproducer.partitioner import RoundRobinPartitioner

    package = "org.apache.kafka.clients.producer."
    return {
        f"{package}RoundRobinPartitioner": RoundRobinPartitioner,
        f"{package}internals.DefaultPartitioner": None,
    }


def _no_java_classes() -> Mapping[str, object]:
    return {}


def _java_ssl_engine_factories() -> Mapping[str, object]:
    return {"org.apache.kafka.common.security.ssl.DefaultSslEngineFactory": None}


SERIALIZER = PluginKind("aioproducer.serializers", ("serialize",), True, _java_serializers)
DESERIALIZER = PluginKind("aioproducer.deserializers", ("deserialize",), True, _java_deserializers)
PARTITIONER = PluginKind("aioproducer.partitioners", ("partition",), True, _java_partitioners)
INTERCEPTOR = PluginKind(
    "aioproducer.interceptors", ("on_send", "on_headers", "on_acknowledgement"), False, _no_java_classes
)
SSL_ENGINE_FACTORY = PluginKind("aioproducer.ssl_engine_factories", (), True, _java_ssl_engine_factories)


def load_plugin(key: str, value: object, kind: PluginKind) -> object:
    """Return the object for the ``value`` of the configuration key ``key``; ``None`` for the built-in behaviour.

    An object is returned unchanged. A string is ``module:attribute``, the name of an entry point, or a class name of
    Kafka with an equivalent here.

    Raises:
        ConfigurationError: there is no such object, or the key does not accept its kind.
    """
    found = _load(key, value.strip(), kind) if isinstance(value, str) else value
    if found is None:
        return None
    if any(callable(getattr(found, method, None)) for method in kind.methods):
        return found
    if kind.takes_callables and callable(found):
        return found
    several = len(kind.methods) > 1
    wanted = f"{'one of the methods' if several else 'a method'} {', '.join(kind.methods)}" if kind.methods else ""
    if kind.takes_callables:
        wanted = f"{wanted}, or be callable" if wanted else "be callable"
    verb = "must have" if kind.methods else "must"
    raise ConfigurationError(f"{key} {verb} {wanted}, not {value!r}")


def _load(key: str, name: str, kind: PluginKind) -> object:
    java_classes = kind.java_classes()
    if name in java_classes:
        return java_classes[name]
    module_name, colon, path = name.partition(":")
    if colon:
        return _import(key, module_name, path)
    # Imported late: it costs as much as the whole package, and few configurations use entry points.
    from importlib import metadata

    entry_points = metadata.entry_points(group=kind.group, name=name)
    for entry_point in entry_points:
        try:
            loaded: object = entry_point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"{key}: entry point {name!r} ({entry_point.value}) cannot be loaded: {error}"
            ) from error
        return loaded
    if "." in name:
        known = f" These Kafka classes have an equivalent: {', '.join(java_classes)}." if java_classes else ""
        raise ConfigurationError(
            f"{key} {name!r} looks like a Java class, which Python cannot load: use a Python object or "
            f"'module:attribute'.{known}"
        )
    raise ConfigurationError(
        f"{key}: there is no entry point {name!r} in the group {kind.group!r}: use a Python object or "
        "'module:attribute'"
    )


def _import(key: str, module_name: str, path: str) -> object:
    try:
        found: object = importlib.import_module(module_name)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{key}: {module_name}:{path} cannot be loaded: {error}") from error
    return found


def load_token_provider(value: object) -> object:
    """Return the callable for ``sasl.token.provider``: itself, or the attribute that ``module:attribute`` names.

    Raises:
        ConfigurationError: it is neither; the error does not show the value, which may be a token.
    """
    key = "sasl.token.provider"
    if isinstance(value, str) and re.fullmatch(r"[\w.]+:[\w.]+", value.strip()):
        module_name, _, path = value.strip().partition(":")
        value = _import(key, module_name, path)
    if not callable(value):
        raise ConfigurationError(
            f"{key} must be a function that returns a token, or its 'module:attribute', not a {type(value).__name__}"
        )
    return value
