"""What a request awaits and something else gives, also after the request was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aioproducer.broker.coordination.replicated_writes import Done

T = TypeVar("T")


def awaited(of: type[T]) -> tuple[Awaitable[T], Callable[[T], None]]:
    """Something to wait for, and the function that gives it."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def give(value: T) -> None:
        # The request may have been cancelled.
        if not future.done():
            future.set_result(value)

    return future, give


async def outcome(begin: Callable[[Done], None]) -> int:
    """The code with which the write ends that ``begin`` begins."""
    answer, give = awaited(int)
    begin(give)
    return await answer
