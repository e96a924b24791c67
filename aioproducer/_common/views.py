"""Views of single bytes, one behind the other: told from others, made and cut without an object more than it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.memoryview import PyMemoryView_FromObject, PyMemoryView_GET_BUFFER


def view_of(buffer: bytes | bytearray | memoryview) -> memoryview:
    """A view of the single bytes of ``buffer``.

    Raises:
        TypeError: it is no buffer, or not contiguous.
    """
    view = memoryview(buffer)
    # To cast a view costs more than to make one, and nearly all are of single bytes as they come.
    if is_of_bytes(view):
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


def is_of_bytes(view: memoryview) -> bool:
    """Whether it is of single bytes that lie one behind the other."""
    if cython.compiled:
        return (
            PyMemoryView_GET_BUFFER(view).ndim == 1
            and PyMemoryView_GET_BUFFER(view).format[0] == b"B"
            and PyMemoryView_GET_BUFFER(view).strides[0] == 1
            and PyMemoryView_GET_BUFFER(view).suboffsets is cython.NULL
        )
    return view.ndim == 1 and view.format == "B" and view.c_contiguous


def part_of(view: memoryview, offset: int, length: int) -> memoryview:
    """``view[offset : offset + length]`` of a view of single bytes one behind the other, which has so many."""
    if cython.compiled:
        # Without a slice, and the numbers in it.
        assert 0 <= offset <= offset + length <= PyMemoryView_GET_BUFFER(view).len
        part: memoryview = PyMemoryView_FromObject(view)
        buffer = PyMemoryView_GET_BUFFER(part)
        buffer.buf = cython.cast(cython.p_char, buffer.buf) + offset
        buffer.len = buffer.shape[0] = length
        return part
    return view[offset : offset + length]
