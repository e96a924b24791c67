"""Packages that only some providers of tokens need."""

from __future__ import annotations

from importlib.util import find_spec

from aioproducer.errors import ConfigurationError


def require_package(module: str, error: str) -> None:
    """Check that a module is installed, without importing it.

    Imports of these packages take up to a second: providers import them in a thread when they make their first token.

    Raises:
        ConfigurationError: it is not installed; ``error`` is the text.
    """
    if find_spec(module) is None:
        raise ConfigurationError(error)
