"""An asyncio loop on virtual time: its clock jumps to the next timer when nothing is ready."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Callable
from random import Random
from typing import Any

TURN = 1e-6
"""What one turn of the loop takes, in seconds: a busy loop comes to an end, and is seen."""

LONGEST_TURN_COUNT = 3_000_000
"""More passes than any scenario takes: beyond it, the loop counts as endless."""


class Stalled(RuntimeError):  # noqa: N818 - the name describes the state of the loop, whatever the cause
    """Nothing is ready and nothing is scheduled, but a task still waits: it would wait forever."""


class _VirtualSelector(selectors.DefaultSelector):
    """Never waits: what would be waited for, is added to the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Nothing outside the loop makes a file ready: no call of the kernel is needed.
        ready: list[tuple[selectors.SelectorKey, int]] = []
        self.turns += 1
        if self.turns > LONGEST_TURN_COUNT:
            raise Stalled(f"the loop has turned {self.turns} times")
        if timeout is None and not ready:
            raise Stalled("nothing is ready and nothing is scheduled")
        self.now += TURN + max(timeout or 0.0, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop without sockets and threads; the same scenario takes the same steps every time.

    ``addresses``: what a host name resolves to, itself where it is not listed; an exception is raised.
    ``canonical_names``: what an address's canonical name is, likewise.
    """

    def __init__(self, random: Random) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)
        self._random = random
        self.addresses: dict[str, list[str] | OSError] = {}
        self.canonical_names: dict[str, str] = {}
        self.resolved: list[str] = []
        self.resolving_takes = 0.0
        self.executor_calls = 0

    def time(self) -> float:
        return self._virtual.now

    @property
    def turns(self) -> int:
        """How many turns the loop has made."""
        return self._virtual.turns

    def hold_up(self, seconds: float) -> None:
        """Advance the time as a caller does that blocks the loop."""
        self._virtual.now += seconds

    def pending_timers(self) -> list[asyncio.TimerHandle]:
        return [handle for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]

    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> list[Any]:
        self.resolved.append(host)
        addresses = self.addresses.get(host, [host])
        await asyncio.sleep(self.resolving_takes)
        if isinstance(addresses, OSError):
            raise addresses
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        address, port = sockaddr
        return self.canonical_names.get(address, address), str(port)

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """In the place of a thread: ``function`` runs on the loop, a little later."""
        self.executor_calls += 1
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.done():
                return
            try:
                future.set_result(function(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(self._random.uniform(0, 0.003), work)
        return future
