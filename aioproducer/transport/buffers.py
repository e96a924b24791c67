"""Compiled. Lists of buffers as one stream of bytes: counted, cut to a length, advanced, never copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from aioproducer._common.views import view_of
from aioproducer.transport.base import Buffer


def bytes_of(buffers: Sequence[Buffer]) -> int:
    """Return the total size of ``buffers`` in bytes."""
    size = 0
    for buffer in buffers:
        if type(buffer) is bytes:
            size += len(buffer)
        else:
            size += buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
    return size


def views_of(buffers: Sequence[Buffer]) -> list[memoryview]:
    """Return a view of single bytes for each buffer that is not empty.

    Raises:
        TypeError: an item is no buffer, or not contiguous.
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
    """Yield the first ``limit`` bytes, or all bytes if there are fewer."""
    for view in views:
        if limit <= 0:
            return
        yield view[:limit]
        limit -= len(view)
