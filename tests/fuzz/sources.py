"""Running the compiled modules' sources, uncompiled, beside the compiled ones in one process."""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from types import ModuleType

from aioproducer._build import SourceFinder


def uncompiled(name: str) -> ModuleType:
    """Import a module of the package again from its source, together with all that it imports of the package.

    It shares nothing with the package that the tests import: its classes, including those of exceptions, are different.
    """
    return uncompiled_together(name)[0]


@functools.cache
def uncompiled_together(*names: str) -> list[ModuleType]:
    """As ``uncompiled``, for modules that share what they import."""
    others = {key: sys.modules.pop(key) for key in [*sys.modules] if _is_ours(key)}
    sys.meta_path.insert(0, SourceFinder)
    try:
        return [import_module(name) for name in names]
    finally:
        sys.meta_path.remove(SourceFinder)
        for key in [*sys.modules]:
            if _is_ours(key):
                del sys.modules[key]
        sys.modules.update(others)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "aioproducer"
