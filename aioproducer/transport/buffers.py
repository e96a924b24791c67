"""Lists of buffers as one stream of bytes: counted, cut to a length, moved on, never copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from aioproducer.transport.base import Buffer

if TYPE_CHECKING:
    import cython
else:
    from aioproducer.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.memoryview import PyMemoryView_FromObject, PyMemoryView_GET_BUFFER


def bytes_of(buffers: Sequence[Buffer]) -> int:
    """How many bytes ``buffers`` hold together."""
    size = 0
    for buffer in buffers:
        if type(buffer) is bytes:
            size += len(buffer)
        else:
            size += buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
    return size


def view_of(buffer: Buffer) -> memoryview:
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


def views_of(buffers: Sequence[Buffer]) -> list[memoryview]:
    """Views of the single bytes of each buffer that has any.

    Raises:
        TypeError: something is no buffer, or not contiguous.
    """
    views = []
    for buffer in buffers:
        view = view_of(buffer)
        if len(view):
            views.append(view)
    return views


def advance(views: deque[memoryview], count: int) -> None:
    """Drop the first ``count`` bytes."""
    while count:
        head = views[0]
        if len(head) > count:
            views[0] = head[count:]
            return
        views.popleft()
        count -= len(head)


def first_bytes(views: deque[memoryview], limit: int) -> Iterator[memoryview]:
    """The first ``limit`` bytes, or all where there are fewer."""
    for view in views:
        if limit <= 0:
            return
        yield view[:limit]
        limit -= len(view)
