"""Tracks which partitions of a reader have changed, so that the cost depends on changes and not on partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from aioproducer.broker.replicas.partition import Partition, Watcher

Key: TypeAlias = tuple[str | bytes, int]
"""A partition in a session: by the topic's name, or from version 13 on by its id."""
Listener: TypeAlias = Callable[[Key], None]


class FetchMoves:
    """Watches the partitions that a request or a session has read.

    They are watched while a request listens, or the session is ``kept``.
    """

    __slots__ = ("_is_kept", "_listeners", "_watched", "moved")

    def __init__(self) -> None:
        self.moved: set[Key] = set()
        """The partitions that the next request of the session must read: all except those without changes since a read
        that returned nothing."""
        self._watched: dict[Key, tuple[Partition, Watcher]] = {}
        self._listeners: dict[Listener, None] = {}
        self._is_kept = False

    @property
    def watched_count(self) -> int:
        return len(self._watched)

    def keep(self) -> None:
        """Keep watching after the request, for a session."""
        self._is_kept = True

    def end(self) -> None:
        """End the session. A request of it that still waits is notified to its end."""
        self._is_kept = False
        self._close_unused()

    @contextmanager
    def notifying(self, listener: Listener) -> Iterator[None]:
        """Within this context call ``listener`` with each partition that changes."""
        self._listeners[listener] = None
        try:
            yield
        finally:
            del self._listeners[listener]
            self._close_unused()

    def _close_unused(self) -> None:
        if not self._is_kept and not self._listeners:
            for partition, watcher in self._watched.values():
                partition.remove_watcher(watcher)
            self._watched.clear()

    def watch(self, key: Key, partition: Partition) -> None:
        """Map ``key`` to this ``partition`` from now on."""
        known = self._watched.get(key)
        if known is not None:
            if known[0] is partition:
                return
            known[0].remove_watcher(known[1])
        watcher = partial(self._move, key, partition)
        self._watched[key] = partition, watcher
        partition.add_watcher(watcher)

    def forget(self, key: Key) -> None:
        """Stop watching ``key``, which the session no longer reads."""
        self.moved.discard(key)
        partition, watcher = self._watched.pop(key, (None, None))
        if partition is not None and watcher is not None:
            partition.remove_watcher(watcher)

    def _move(self, key: Key, partition: Partition) -> None:
        self.moved.add(key)
        if partition.is_removed:
            # An unused session must not keep the log of a deleted topic in memory.
            self.forget(key)
            self.moved.add(key)
        for listener in tuple(self._listeners):
            listener(key)
