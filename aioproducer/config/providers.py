"""Kafka's config providers: external values for ``${alias:path:key}`` or ``${alias:key}`` (KIP-297).

The providers are Kafka's own: environment variables, properties files, and directories with one file per key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from aioproducer.config.keys import PROVIDERS_PREFIX
from aioproducer.config.properties import load_properties
from aioproducer.errors import ConfigurationError

_PLACEHOLDER = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")
_JAVA_PACKAGE = "org.apache.kafka.common.config.provider."

# Returns the value of (path, key), or None if there is none.
Provider: TypeAlias = Callable[[str, str], str | None]


def _environment(parameters: Mapping[str, str]) -> Provider:
    """Return Kafka's EnvVarConfigProvider, ``${alias:NAME}``; ``allowlist.pattern`` restricts the names."""
    allowed = re.compile(parameters.get("allowlist.pattern", ".*"))

    def get(path: str, key: str) -> str | None:
        if path:
            raise ConfigurationError(f"an environment variable has no path, but {path!r} is given: use ${{alias:NAME}}")
        return os.environ.get(key) if allowed.fullmatch(key) else None

    return get


def _file(parameters: Mapping[str, str]) -> Provider:
    """Return Kafka's FileConfigProvider, ``${alias:/path/file.properties:key}``; ``allowed.paths`` restricts paths."""

    def get(path: str, key: str) -> str | None:
        _check_allowed(path, parameters)
        return load_properties(path).get(key)

    return get


def _directory(parameters: Mapping[str, str]) -> Provider:
    """Return Kafka's DirectoryConfigProvider, ``${alias:/directory:file}``; ``allowed.paths`` restricts the paths."""

    def get(path: str, key: str) -> str | None:
        _check_allowed(path, parameters)
        file = Path(path) / key
        if file.parent != Path(path) or not file.is_file():
            return None
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{file} cannot be read: {error}") from error

    return get


def _check_allowed(path: str, parameters: Mapping[str, str]) -> None:
    allowed = [entry.strip() for entry in parameters.get("allowed.paths", "").split(",") if entry.strip()]
    resolved = Path(path).resolve()
    if allowed and not any(resolved.is_relative_to(Path(entry).resolve()) for entry in allowed):
        raise ConfigurationError(f"{path} is outside allowed.paths ({', '.join(allowed)})")


_PROVIDERS: dict[str, Callable[[Mapping[str, str]], Provider]] = {
    "EnvVarConfigProvider": _environment,
    "FileConfigProvider": _file,
    "DirectoryConfigProvider": _directory,
}


def has_placeholder(text: str, aliases: tuple[str, ...]) -> bool:
    """Return whether ``text`` contains a placeholder of one of these providers."""
    return any(match[1] in aliases for match in _PLACEHOLDER.finditer(text))


def resolve_placeholders(given: Mapping[str, object], aliases: tuple[str, ...]) -> dict[str, object]:
    """Replace the placeholders of the providers in ``aliases`` (the value of config.providers).

    The replacement is not recursive: placeholders in a provider's value stay. Placeholders of other aliases stay, too.

    Raises:
        ConfigurationError: a provider is unknown, or has no value for a placeholder.
    """
    providers = {alias: _provider(alias, given) for alias in aliases}

    def replace(match: re.Match[str]) -> str:
        provider = providers.get(match[1])
        if provider is None:
            return match[0]
        value = provider(match[3] or "", match[4])
        if value is None:
            raise ConfigurationError(f"config provider {match[1]!r} has no value for {match[0]}")
        return value

    resolved: dict[str, object] = {}
    for name, value in given.items():
        if isinstance(value, str) and not name.startswith(PROVIDERS_PREFIX):
            try:
                resolved[name] = _PLACEHOLDER.sub(replace, value)
            except ConfigurationError as error:
                raise ConfigurationError(f"{name}: {error}") from error.__cause__
        else:
            resolved[name] = value
    return resolved


def _provider(alias: str, given: Mapping[str, object]) -> Provider:
    class_key = f"{PROVIDERS_PREFIX}{alias}.class"
    name = given.get(class_key)
    if name is None:
        raise ConfigurationError(f"config.providers names {alias!r}, but {class_key} is missing: set it")
    make = _PROVIDERS.get(str(name).strip().removeprefix(_JAVA_PACKAGE))
    if make is None:
        known = ", ".join(_JAVA_PACKAGE + provider for provider in _PROVIDERS)
        raise ConfigurationError(f"{class_key} {name!r} is unknown: use one of {known}")
    prefix = f"{PROVIDERS_PREFIX}{alias}.param."
    return make({key.removeprefix(prefix): str(value) for key, value in given.items() if key.startswith(prefix)})
