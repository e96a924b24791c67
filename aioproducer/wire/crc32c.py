"""Compiled. CRC-32C (Castagnoli) over a sequence of buffers, as in a record batch's header."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from aioproducer.compression.base import Buffer

_Checksum = Callable[[Buffer, int, int], int]

# Keep the GIL: a megabyte takes 40 µs. A thread that releases the GIL while another one waits gets it back only after a
# whole switch interval of 5 ms.
_KEEP_GIL = 0


def _find_extension() -> _Checksum | None:
    """Return the function of the package ``crc32c``, without importing the rest of the package.

    Its ``__init__`` reads its own version and has a command line. That takes longer to import than everything a
    producer
    needs: ``argparse``, ``email``, ``zipfile`` and others. ``None`` if the extension is not found: in a program that
    was frozen into one file, or if a release of the package has it elsewhere.
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
    """Return the unsigned checksum of all ``buffers``; ``value`` is the checksum of the bytes before them."""
    for buffer in buffers:
        value = _crc32c(buffer, value, _KEEP_GIL)
    return value
