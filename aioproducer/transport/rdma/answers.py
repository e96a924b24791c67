"""Whether what is sent is answered: where it is, lent memory comes back with the answer, and nothing else need wake the
loop for it.

A timer finds where it is not, or takes long. Where answers come it is slow: a wait of the loop that ends before the
system's next tick has the processor's timer set and set back, which in a virtual machine costs more than the wake-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aioproducer.transport.rdma.ring import SendQueue

_MEMORY_BACK: Final = 0.002
"""Seconds that lent memory waits for something to be received, before it is looked for without."""
_MEMORY_BACK_WITH_ANSWERS: Final = 0.1
"""The same where something was received the last time."""


class Answers:
    """Calls ``look`` where memory that ``queue`` has lent waits for something to be received, and that takes long."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: SendQueue, look: Callable[[], None]) -> None:
        self._loop = loop
        self._queue = queue
        self._look: Callable[[], None] | None = look
        self.missing = False
        """Writes complete and nothing comes back, twice in a row: once is an answer that takes long."""
        self._late = False
        """Nothing had come when the timer ended the last time."""
        self._came = False
        """Something has, since the timer was started."""
        self._expected = False
        """Something has, and the timer has not ended without since."""
        self._timer: asyncio.TimerHandle | None = None

    def came(self) -> None:
        """Something was received."""
        self._came = self._expected = True
        self._late = self.missing = False

    def wait(self) -> None:
        """Memory is lent, and what is received is to give it back."""
        if self._timer is None:
            self._came = False
            delay = _MEMORY_BACK_WITH_ANSWERS if self._expected else _MEMORY_BACK
            self._timer = self._loop.call_later(delay, self._expired)

    def stop(self) -> None:
        """Call ``look`` no more, and let go of it."""
        self._look = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        self._timer = None
        if not self._queue.lent or self._look is None:
            return
        # Else the timer was that of an earlier write.
        if not self._came:
            self.missing = self._late
            self._late = True
            self._expected = False
        self._look()
