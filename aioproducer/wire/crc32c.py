"""Compiled. CRC-32C (Castagnoli) over a sequence of buffers, as in a record batch's header."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from aioproducer.compression.base import Buffer

_Checksum = Callable[[Buffer, int, int], int]

# The mode of the GIL: kept. A megabyte takes 40 µs, and who lets the GIL go while another thread wants it gets it back
# after a whole switch interval: 5 ms.
_KEEP_GIL = 0


def _find_extension() -> _Checksum | None:
    """The function of the package ``crc32c``, without the rest of that package.

    Its ``__init__`` asks for its own version and has a command line, which takes longer to import than all that a
    producer needs: ``argparse``, ``email``, ``zipfile`` and others. None where the extension is not found, as in a
    program that was frozen into one file, or where a release of the package has it elsewhere.
    """
    package = PathFinder.find_spec("crc32c")
    if package is None or package.submodule_search_locations is None:
        return None
    spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return None
    extension = module_from_spec(spec)
    spec.loader.exec_module(extension)
    return getattr(extension, "crc32c", None)


def _import_package() -> _Checksum:
    from crc32c import crc32c

    return crc32c


_crc32c = _find_extension() or _import_package()


def crc32c(buffers: Iterable[Buffer], value: int = 0) -> int:
    """The checksum of ``buffers`` one after the other, unsigned; ``value`` is the checksum of what came before them."""
    for buffer in buffers:
        value = _crc32c(buffer, value, _KEEP_GIL)
    return value
