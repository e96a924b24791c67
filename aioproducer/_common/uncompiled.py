"""A substitute for the ``cython`` module in uncompiled runs and for type checkers; only Cython sees itself.

A module imports it like this::

    if TYPE_CHECKING and not TYPE_CHECKING:
        # Read by Cython alone.
        import cython
    else:
        from aioproducer._common.uncompiled import cython

Checkers skip the first branch. The types of Cython's own decorators would make a decorated class none for pyright.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

_T = TypeVar("_T")


class _Cython:
    """The parts of the ``cython`` module that the compiled modules use, without any effect."""

    compiled = False

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @staticmethod
    def cclass(kind: type[_T]) -> type[_T]:
        return kind

    final = no_gc = cclass

    @staticmethod
    def freelist(size: int) -> Callable[[type[_T]], type[_T]]:
        return _Cython.cclass


cython = _Cython()
