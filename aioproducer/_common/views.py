"""Compiled. Memoryviews of contiguous single bytes: check, create and slice them without intermediate objects.

No Python form: ``is_of_bytes`` reads the buffer of a view, and ``part_of`` sets it, without Python objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.memoryview import PyMemoryView_FromObject, PyMemoryView_GET_BUFFER


def view_of(buffer: bytes | bytearray | memoryview) -> memoryview:
    """Return a view of the single bytes of ``buffer``.

    Raises:
        TypeError: it is no buffer, or not contiguous.
    """
    view = memoryview(buffer)
    # A cast costs more than a new view, and nearly all views consist of single bytes already.
    if is_of_bytes(view):
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


def is_of_bytes(view: memoryview) -> bool:
    """Return whether the view consists of contiguous single bytes."""
    if cython.compiled:
        return (
            PyMemoryView_GET_BUFFER(view).ndim == 1
            and PyMemoryView_GET_BUFFER(view).format[0] == b"B"
            and PyMemoryView_GET_BUFFER(view).strides[0] == 1
            and PyMemoryView_GET_BUFFER(view).suboffsets is cython.NULL
        )
    return view.ndim == 1 and view.format == "B" and view.c_contiguous


def part_of(view: memoryview, offset: int, length: int) -> memoryview:
    """Return ``view[offset : offset + length]`` of a view of contiguous single bytes that is at least that long."""
    if cython.compiled:
        # Avoids a slice object and its numbers.
        assert 0 <= offset <= offset + length <= PyMemoryView_GET_BUFFER(view).len
        part: memoryview = PyMemoryView_FromObject(view)
        buffer = PyMemoryView_GET_BUFFER(part)
        buffer.buf = cython.cast(cython.p_char, buffer.buf) + offset
        buffer.len = buffer.shape[0] = length
        return part
    return view[offset : offset + length]
