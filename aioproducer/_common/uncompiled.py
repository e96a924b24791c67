"""Stands in for Cython in modules that can be compiled; the compiler alone sees Cython itself."""

from __future__ import annotations

from typing import TypeVar

_T = TypeVar("_T")


class _Cython:
    """What the compiled modules use of the ``cython`` module; none of it has an effect here."""

    compiled = False

    @staticmethod
    def cclass(kind: type[_T]) -> type[_T]:
        return kind

    final = no_gc = cclass

    @staticmethod
    def freelist(size: int) -> object:
        return _Cython.cclass


cython = _Cython()
