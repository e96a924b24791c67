"""Waiting for what has no event of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], timeout: float = 10, *, pause: float = 0) -> None:
    """Until ``condition`` holds; asked once each turn of the loop, or every ``pause`` seconds."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110  # conditions of many kinds
            await asyncio.sleep(pause)
