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


def run_steps(steps: Steps[T]) -> T:
    """Run ``steps`` to their end in one go."""
    try:
        work = next(steps)
        while True:
            if work is None:
                work = next(steps)
                continue
            try:
                result = work.run()
            except BaseException as error:
                work = steps.throw(error)
            else:
                work = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
