"""Periodic work of a coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

_MILLISECOND = 0.001


async def periodically(interval_ms: Callable[[], int], action: Callable[[], Awaitable[None] | None]) -> None:
    """Call ``action`` once in each interval, also after it failed, and await its result if it is awaitable."""
    while True:
        await asyncio.sleep(interval_ms() * _MILLISECOND)
        try:
            pending = action()
            if pending is not None:
                await pending
        except Exception:
            logger.exception("periodic work of a coordinator failed")
