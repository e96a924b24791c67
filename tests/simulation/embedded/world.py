"""The world of the tests: what the clients did, the rules that were broken, and bounds of waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, NamedTuple, TypeVar

from aioproducer import Producer
from aioproducer.testing.simulation.loop import VirtualLoop
from aioproducer.testing.simulation.world import SimulatedWorld
from aioproducer.testing.simulation.world import play as play_world
from tests.simulation.embedded.history import History
from tests.simulation.embedded.story import SLACK

T = TypeVar("T")


class Violation(NamedTuple):
    """A rule that was broken."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


class Overdue(Exception):  # noqa: N818 - the name describes a state
    """A wait has exceeded its bound; the violation is noted, and the client cannot continue."""


class ClusterWorld(SimulatedWorld):
    """Everything of one play."""

    def __init__(self, loop: VirtualLoop, random: Random, *, seed: int = 0, **options: Any) -> None:
        super().__init__(loop, random, **options)
        self.seed = seed
        self.history = History()
        self.violations: list[Violation] = []
        errors = (options.get("clock_errors") or {0: 0}).values()
        self.clock_error = (max(0, *errors) - min(0, *errors)) / 1000
        """Seconds by which two clocks of the cluster differ, at most."""
        self._watches: dict[asyncio.TimerHandle, Callable[[], bool]] = {}

    def violated(self, rule: str, what: str) -> None:
        """Note a broken rule."""
        self.note(f"violated {rule}: {what}")
        self.violations.append(Violation(rule, what))

    def producer(self, name: str, **config: Any) -> Producer:
        """A producer with its own endpoint, not started."""
        config.setdefault("client_id", name)
        config.setdefault("bootstrap_servers", self.bootstrap_servers)
        return Producer(transport=self.network.endpoint(name), **config)

    # Bounds

    @asynccontextmanager
    async def within(self, bound: float, what: str) -> AsyncIterator[None]:
        """Let the block take at most ``bound`` seconds, and some slack.

        Raises:
            Overdue: it takes longer; a violation of "progress" is noted.
        """
        deadline = asyncio.timeout(bound + SLACK)
        try:
            async with deadline:
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
            self.violated("progress", f"{what} took longer than {bound:g} s")
            raise Overdue(what) from None

    async def until(self, bound: float, condition: Callable[[], bool], what: str) -> bool:
        """Wait until ``condition`` is true, at most ``bound`` seconds; return whether it is."""
        try:
            async with self.within(bound, what):
                while not condition():  # noqa: ASYNC110 - the state of the cluster sets no event
                    await asyncio.sleep(0.02)
        except Overdue:
            return False
        return True

    def expect(self, bound: float, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        """Have ``condition`` be true after ``bound`` seconds; otherwise a violation of "progress" is noted."""

        def look() -> None:
            del self._watches[handle]
            if not condition():
                self.violated("progress", f"{what()} after {bound:g} s")

        handle = self.loop.call_later(bound + SLACK, look)
        self._watches[handle] = condition

    async def expected(self) -> None:
        """Wait until every condition is true, or was looked at too late."""
        while True:
            for handle, condition in list(self._watches.items()):
                if condition():
                    handle.cancel()
                    del self._watches[handle]
            if not self._watches:
                return
            await asyncio.sleep(0.1)

    # The end

    def check_nothing_is_left(self) -> None:
        """Note tasks, connections and exceptions that clients or brokers have left."""
        for error in self.loop_errors:
            self.violated("no unhandled exception", error)
        current = asyncio.current_task(self.loop)
        for name in sorted(
            task.get_name() for task in asyncio.all_tasks(self.loop) if not task.done() and task is not current
        ):
            self.violated("nothing is left", f"task {name}")
        for link in self.network.links():
            self.violated("nothing is left", f"connection {link.name}")


def run(scenario: Callable[[ClusterWorld], Awaitable[T]], *, seed: int = 0, **options: Any) -> tuple[T, ClusterWorld]:
    """Start a cluster, play a scenario on virtual time, stop the cluster, and look for what is left.

    ``options`` are those of ``SimulatedWorld``.
    """

    def make_world(loop: VirtualLoop, random: Random) -> ClusterWorld:
        return ClusterWorld(loop, random, seed=seed, **options)

    return play_world(make_world, scenario, seed=seed, finish=ClusterWorld.check_nothing_is_left)
