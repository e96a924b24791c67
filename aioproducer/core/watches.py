"""Futures for those who wait for many: ``flush``, ``close`` and ``drain``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aioproducer.core.delivery import FutureFactory

if TYPE_CHECKING:
    from asyncio import Future


class Watches:
    """Batches and waiting records are numbered as they come, so that "all so far" is a number to be passed.

    Args:
        first_batch: the number of the oldest batch without an outcome, or of the next to come.
        first_in_line: the same of the records in line.
        has_room: whether a sender should go on.
    """

    __slots__ = ("_batches", "_first_batch", "_first_in_line", "_has_room", "_line", "_loop", "_room")

    def __init__(
        self,
        loop: FutureFactory,
        *,
        first_batch: Callable[[], int],
        first_in_line: Callable[[], int],
        has_room: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._first_batch = first_batch
        self._first_in_line = first_in_line
        self._has_room = has_room
        self._batches: list[tuple[int, Future[None]]] = []
        self._line: list[tuple[int, Future[None]]] = []
        self._room: list[tuple[int, Future[None]]] = []

    def batches(self, last_number: int) -> Future[None]:
        """A future that is done when all batches up to a number have their outcomes."""
        return self._watch(self._batches, last_number)

    def line(self, last_number: int) -> Future[None]:
        """A future that is done when all records up to a number have left the line, into batches or failed."""
        return self._watch(self._line, last_number)

    def room(self) -> Future[None]:
        """A future that is done when there is room."""
        return self._watch(self._room, 0)

    def _watch(self, watches: list[tuple[int, Future[None]]], number: int) -> Future[None]:
        future: Future[None] = self._loop.create_future()
        watches.append((number, future))
        self.check()
        return future

    def check(self) -> None:
        """End the watches whose time has come; to be called when a batch ends, a line shortens or memory returns."""
        if self._batches:
            self._batches = _passed(self._batches, self._first_batch())
        if self._line:
            self._line = _passed(self._line, self._first_in_line())
        if self._room and self._has_room():
            self._room = _passed(self._room, 1)


def _passed(watches: list[tuple[int, Future[None]]], oldest: int) -> list[tuple[int, Future[None]]]:
    """End the watches whose number is below ``oldest``, and return the others; cancelled ones are dropped."""
    remaining = []
    for number, future in watches:
        if future.done():
            continue
        if number < oldest:
            future.set_result(None)
        else:
            remaining.append((number, future))
    return remaining
