"""Scenarios on virtual time, with a wall clock that follows the loop's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from tests.simulation.loop import VirtualLoop
from tests.virtual_time import run_to_end

EPOCH = 1_800_000_000.0
"""The wall clock when a scenario begins, in seconds since the epoch."""


class Scenario:
    """The loop, its clocks, and the behaviour of a provider of tokens."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self._begin = loop.time()
        self.skew_s = 0.0
        """How far this machine's clock is ahead."""

    def elapsed(self) -> float:
        """Seconds since the scenario began."""
        return self.loop.time() - self._begin

    def true_time(self) -> float:
        return EPOCH + self.elapsed()

    def wall_clock(self) -> float:
        return self.true_time() + self.skew_s


def run_virtually(scenario: Callable[[Scenario], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """Run a scenario; nothing may be left behind: no task, no timer, no exception that was never retrieved."""
    loop = VirtualLoop(Random(seed))
    run_to_end(loop, scenario(Scenario(loop)))
