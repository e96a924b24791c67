"""The deadlines of a group, as data: the caller has the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Moment(NamedTuple):
    """A time, as both clocks show it."""

    now: float
    """Seconds on a monotonic clock."""
    wall_ms: int
    """Milliseconds since 1970."""


Expire: TypeAlias = Callable[[Moment], None]

MILLISECOND = 0.001


class Timers:
    """Deadlines by name. ``wake_at`` is when to call ``expire``; it may be early, never late."""

    __slots__ = ("_due", "wake_at")

    def __init__(self) -> None:
        self._due: dict[str, tuple[float, Expire]] = {}
        self.wake_at: float | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._due

    def schedule(self, name: str, timeout_ms: int, expire: Expire, at: Moment) -> None:
        """Call ``expire`` in ``timeout_ms``, instead of an earlier timer with this name.

        A client may set a timeout below one millisecond, which counts as one. A timer that sets itself again must not
        expire for ever at one moment.
        """
        due = at.now + max(timeout_ms, 1) * MILLISECOND
        self._due[name] = due, expire
        if self.wake_at is None or due < self.wake_at:
            self.wake_at = due

    def cancel(self, name: str) -> None:
        """Cancel the timer ``name``, if there is one."""
        self._due.pop(name, None)

    def clear(self) -> None:
        """Cancel all timers."""
        self._due.clear()
        self.wake_at = None

    def expire(self, at: Moment) -> None:
        """Call the functions that are due, in the order of their deadlines."""
        due = sorted((when, name) for name, (when, _) in self._due.items() if when <= at.now)
        for when, name in due:
            scheduled = self._due.get(name)
            if scheduled is not None and scheduled[0] == when:
                del self._due[name]
                scheduled[1](at)
        self.wake_at = min([when for when, _ in self._due.values()], default=None)
