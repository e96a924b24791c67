"""Stands in for Cython where a module that can be compiled runs uncompiled and Cython is not installed."""

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
