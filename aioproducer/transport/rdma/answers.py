"""Compiled. Whether the peer answers what is sent.

If it does, lent memory comes back with the answer, and nothing else needs to wake the loop for it. A timer detects that
answers are missing or slow. While answers arrive, the timer is long. If the loop waits for less than the system's tick,
the processor's timer is set and reset each time. In a virtual machine this costs more than the wake-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aioproducer.transport.rdma.ring import SendQueue

_MEMORY_BACK: Final = 0.002
"""Seconds that lent memory waits for received data before a poll without it."""
_MEMORY_BACK_WITH_ANSWERS: Final = 0.1
"""The same if data was received the last time."""


class Answers:
    """Calls ``poll`` if memory that ``queue`` has lent waits too long for received data."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: SendQueue, poll: Callable[[], None]) -> None:
        self._loop = loop
        self._queue = queue
        self._poll: Callable[[], None] | None = poll
        self.missing = False
        """Writes complete, but nothing was received for two timers in a row. Once may be a slow answer."""
        self._missed_once = False
        """Nothing had been received when the timer last expired."""
        self._received = False
        """Data was received since the timer was started."""
        self._expected = False
        """Data was received, and since then no timer has expired without more."""
        self._timer: asyncio.TimerHandle | None = None

    def received(self) -> None:
        """Record that data was received."""
        self._received = self._expected = True
        self._missed_once = self.missing = False

    def start_timer(self) -> None:
        """Wait for received data that gives lent memory back."""
        if self._timer is None:
            self._received = False
            delay = _MEMORY_BACK_WITH_ANSWERS if self._expected else _MEMORY_BACK
            self._timer = self._loop.call_later(delay, self._expired)

    def stop(self) -> None:
        """Stop calling ``poll``, and drop the reference to it."""
        self._poll = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        self._timer = None
        if not self._queue.lent or self._poll is None:
            return
        # If data was received, the timer belongs to an earlier write.
        if not self._received:
            self.missing = self._missed_once
            self._missed_once = True
            self._expected = False
        self._poll()
