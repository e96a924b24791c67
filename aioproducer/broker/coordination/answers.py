"""Results that a request awaits and a callback sets, possibly after the request was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aioproducer.broker.coordination.replicated_writes import Done

T = TypeVar("T")


def awaited(of: type[T]) -> tuple[Awaitable[T], Callable[[T], None]]:
    """Return an awaitable, and the function that sets its result."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def give(value: T) -> None:
        # The request may have been cancelled.
        if not future.done():
            future.set_result(value)

    return future, give


async def outcome(begin: Callable[[Done], None]) -> int:
    """Start a write by ``begin``, and return the error code with which it ends."""
    answer, give = awaited(int)
    begin(give)
    return await answer
