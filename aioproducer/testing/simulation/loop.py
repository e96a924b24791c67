"""An asyncio loop on virtual time: its clock jumps to the next timer when nothing is ready."""

from __future__ import annotations

import asyncio
import itertools
import selectors
import socket
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from random import Random
from typing import Any, NoReturn

TURN = 1e-6
"""Seconds that one iteration of the loop takes: a task that never sleeps ends, and is seen."""

LONGEST_TURN_COUNT = 3_000_000
"""More iterations than any scenario takes: beyond it, the loop counts as endless."""


class StalledError(RuntimeError):
    """Nothing is ready and nothing is scheduled, but a task still waits: it would wait for ever."""


class _VirtualSelector(selectors.DefaultSelector):
    """Never waits: it adds to the clock what a real one would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Nothing outside the loop makes a file ready: no call of the kernel is needed.
        self.turns += 1
        if self.turns > LONGEST_TURN_COUNT:
            raise StalledError(f"the loop has made {self.turns} iterations: something in it never sleeps")
        if timeout is None:
            raise StalledError("nothing is ready and nothing is scheduled: every task waits for another one")
        self.now += TURN + max(timeout, 0.0)
        return []


class _NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number: a ``set`` of such tasks has the same order in each process.

    ``asyncio.TaskGroup`` and ``asyncio.wait`` go through sets of tasks, which otherwise are in the order of addresses.
    """

    def __init__(
        self, number: int, coroutine: Coroutine[Any, Any, Any], *, name: str | None = None, **options: Any
    ) -> None:
        # First, as the task adds itself to a set.
        self._number = number
        super().__init__(coroutine, name=f"Task-{number}" if name is None else name, **options)

    def __hash__(self) -> int:
        return self._number


def _numbered_tasks() -> Callable[..., asyncio.Task[Any]]:
    """Return a factory that numbers the tasks of a loop by their creation."""
    numbers = itertools.count(1)

    def make(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        return _NumberedTask(next(numbers), coroutine, loop=loop, **options)

    return make


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop without sockets and threads; the same scenario takes the same steps every time.

    ``addresses``: the addresses of a host name, itself if it is not listed; an exception is raised.
    ``canonical_names``: the canonical name of an address, likewise.
    ``when_task_is_made``: called with each new task and its context.
    """

    def __init__(self, random: Random) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)
        self.set_task_factory(_numbered_tasks())
        self._random = random
        self.addresses: dict[str, list[str] | OSError] = {}
        self.canonical_names: dict[str, str] = {}
        self.resolved: list[str] = []
        self.resolving_takes = 0.0
        self.executor_calls = 0
        self.when_task_is_made: Callable[[asyncio.Task[Any], Context], object] | None = None

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._virtual.now

    @property
    def turns(self) -> int:
        """Iterations that the loop has made."""
        return self._virtual.turns

    def count_turns_again(self) -> None:
        """Count from 0 again: what is cancelled needs some iterations to end."""
        self._virtual.turns = 0

    def hold_up(self, seconds: float) -> None:
        """Advance the time, as a caller does that blocks the loop."""
        self._virtual.now += seconds

    def pending_timers(self) -> list[asyncio.TimerHandle]:
        """Timers that are not cancelled."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]  # of BaseEventLoop
        return [handle for handle in scheduled if not handle.cancelled()]

    def create_task(  # type: ignore[override]  # options depend on the version of Python
        self, coro: Coroutine[Any, Any, Any], *, context: Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        """Make a task, and report it to ``when_task_is_made``."""
        task: asyncio.Task[Any] = super().create_task(coro, context=context, **options)
        if self.when_task_is_made is not None:
            self.when_task_is_made(task, copy_context() if context is None else context)
        return task

    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> list[Any]:
        """Resolve a name by ``addresses``."""
        self.resolved.append(host)
        addresses = self.addresses.get(host, [host])
        await asyncio.sleep(self.resolving_takes)
        if isinstance(addresses, OSError):
            raise addresses
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        """Resolve an address by ``canonical_names``."""
        address, port = sockaddr
        return self.canonical_names.get(address, address), str(port)

    def run_in_executor(  # type: ignore[override]  # of any function
        self, executor: Any, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run ``function`` on the loop, a little later, in the place of a thread."""
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

    def _no_sockets(self, *args: Any, **options: Any) -> NoReturn:
        """Raise: a socket or process would wait for the real world, and virtual time does not."""
        raise RuntimeError(
            "a simulation has no sockets and no processes: connect by the simulation's transport, and replace other "
            "services by objects in memory"
        )

    create_connection = create_server = create_unix_connection = create_unix_server = _no_sockets
    create_datagram_endpoint = sock_connect = subprocess_exec = subprocess_shell = _no_sockets
    add_reader = add_writer = _no_sockets  # type: ignore[assignment]  # it never returns
