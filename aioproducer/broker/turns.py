"""Gives the loop a turn during a long piece of work: a request with many partitions, or the load of a log."""

from __future__ import annotations

import asyncio
from typing import Final

LONGEST_TURN: Final = 0.002
"""Seconds of work after which others get their turn."""


class Turns:
    """Counts the time since others had a turn."""

    __slots__ = ("_ends", "_time")

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._ends = self._time() + LONGEST_TURN

    async def pause(self) -> None:
        """Let others run if this has taken long enough; call it between two pieces of work."""
        if self._time() > self._ends:
            await asyncio.sleep(0)
            self._ends = self._time() + LONGEST_TURN
