"""Yields to the event loop during long work: a request with many partitions, or the load of a log."""

from __future__ import annotations

import asyncio
from typing import Final

MAX_STEP_SECONDS: Final = 0.002
"""Seconds of work after which the loop runs other callbacks."""


class LoopYielder:
    """Measures the time since the last yield."""

    __slots__ = ("_ends", "_time")

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._ends = self._time() + MAX_STEP_SECONDS

    async def pause(self) -> None:
        """Yield to the loop if the last yield was long ago; call it between two pieces of work."""
        if self._time() > self._ends:
            await asyncio.sleep(0)
            self._ends = self._time() + MAX_STEP_SECONDS
