"""Long computations that pause: generators that yield often, and return their result.

The driver decides what happens in a pause: it gives other callbacks a turn, or runs the yielded ``Work`` in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")


class Work(NamedTuple):
    """A call that cannot pause. The driver sends its result back, or throws its error."""

    size: int
    """Bytes that the call processes; a driver runs large calls in a thread."""
    run: Callable[[], Any]
    """Touches nothing that another call changes, so it may run in any thread."""
    is_slow: bool = False
    """Whether the call may wait for the disk, whatever its size."""


Steps: TypeAlias = Generator[Work | None, Any, T]
"""Yields ``None`` for a pause, or ``Work``; returns ``T``."""

RECORDS_PER_STEP = 64
"""Records between two pauses: about 0.3 ms on the uncompiled sources."""


def done_by(size: int, run: Callable[[], T], *, is_slow: bool = False) -> Steps[T]:
    """Have the driver call ``run``, and return its result."""
    result: T = yield Work(size, run, is_slow)
    return result
