"""A substitute for the ``cython`` module in uncompiled runs; only the compiler sees Cython itself."""

from __future__ import annotations

from typing import TypeVar

_T = TypeVar("_T")


class _Cython:
    """The parts of the ``cython`` module that the compiled modules use, without any effect."""

    compiled = False

    @staticmethod
    def cclass(kind: type[_T]) -> type[_T]:
        return kind

    final = no_gc = cclass

    @staticmethod
    def freelist(size: int) -> object:
        return _Cython.cclass


cython = _Cython()
