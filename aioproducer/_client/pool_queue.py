"""The queue in front of a pool: callers wait for one of a fixed number of slots, first come, first served."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from aioproducer.errors import KafkaError


class Numbered(Protocol):
    """A slot of a pool."""

    @property
    def number(self) -> int: ...

    @property
    def is_warm(self) -> bool:
        """Whether its next use costs less than that of a cold one."""


SlotT = TypeVar("SlotT", bound=Numbered)


class PoolQueue(Generic[SlotT]):
    """The free slots, and the callers that wait for one.

    A slot that becomes free goes to the first caller directly: no slot is free while a caller waits, and a new caller
    cannot overtake. A caller that is cancelled with a slot in its hand passes it on.

    Args:
        on_free: called whenever a slot becomes free.
    """

    def __init__(self, on_free: Callable[[], None] = lambda: None) -> None:
        self._on_free = on_free
        # Warm slots, the one that has been free longest first.
        self._warm: deque[SlotT] = deque()
        # Of the others, the lowest number first.
        self._cold: list[tuple[int, SlotT]] = []
        self._waiters: deque[asyncio.Future[SlotT]] = deque()
        self._error: KafkaError | None = None

    @property
    def waiting(self) -> int:
        """Number of callers that wait."""
        return len(self._waiters)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._warm) + len(self._cold)

    async def take(self, timeout: float, timed_out: Callable[[], KafkaError]) -> SlotT:
        """Return a free slot, or wait for one for at most ``timeout`` seconds.

        A warm slot comes before a cold one. A caller with a slot gives it back exactly once.

        Raises:
            KafkaError: what ``timed_out`` returns, or the error of ``close``.
        """
        if self._error is not None:
            raise self._error.fresh()
        if self._warm:
            return self._warm.popleft()
        if self._cold:
            return heapq.heappop(self._cold)[1]
        waiter: asyncio.Future[SlotT] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait([waiter], timeout=timeout)
        except asyncio.CancelledError:
            self._leave(waiter)
            raise
        if not waiter.done():
            error = timed_out()
            self._waiters.remove(waiter)
            raise error
        return waiter.result()

    def _leave(self, waiter: asyncio.Future[SlotT]) -> None:
        if not waiter.done():
            self._waiters.remove(waiter)
        elif waiter.exception() is None:
            # The slot came together with the cancellation.
            self.give_back(waiter.result())

    def give_back(self, slot: SlotT) -> None:
        """Receive a slot that its caller no longer uses."""
        if self._waiters:
            self._waiters.popleft().set_result(slot)
            return
        if slot.is_warm:
            self._warm.append(slot)
        else:
            heapq.heappush(self._cold, (slot.number, slot))
        self._on_free()

    def close(self, error: KafkaError) -> None:
        """Raise this error in every caller that waits, and in later ones."""
        self._error = error
        while self._waiters:
            self._waiters.popleft().set_exception(error.fresh())
