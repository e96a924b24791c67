"""The one place where a simulation replaces clocks and sources of randomness.

The core takes time and randomness as arguments. The modules around it read clocks, and draw random numbers, under
names of their own; ``reproducible`` replaces all of them for as long as a simulation runs.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import random as random_module
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import ModuleType
from unittest import mock

import aioproducer
from tests.simulation.loop import VirtualLoop

WALL_CLOCK = 1_700_000_000.0
"""Seconds since 1970 at the loop's time 0."""

_CLOCKS = (time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic)

_OTHER_PROCESSES = ("cli", "gateway", "spark", "testing.plugin", "testing.thread", "testing.verbs", "transport.rdma")
"""Rooms that no simulation runs; they import what may not be installed."""


@functools.cache
def _import_all() -> None:
    skipped = tuple(f"aioproducer.{room}" for room in _OTHER_PROCESSES)
    for module in pkgutil.walk_packages(aioproducer.__path__, "aioproducer.", onerror=lambda name: None):
        if not module.name.startswith(skipped) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def preload() -> tuple[ModuleType, ...]:
    """Import every module that a simulation can use, and return all of the project that are imported.

    A module that is imported while a simulation runs would read real clocks. Other tests may import more between two.
    """
    _import_all()
    return tuple(module for name, module in sorted(sys.modules.items()) if name.startswith("aioproducer"))


@functools.cache
def _clocks_of(module: ModuleType) -> list[tuple[str, Callable[[], float]]]:
    """The names under which a module has a clock, with the clock."""
    return [
        (name, value)
        for name, value in vars(module).items()
        if callable(value) and any(value is clock for clock in _CLOCKS)
    ]


@functools.cache
def _randoms_of(module: ModuleType) -> list[str]:
    """The names under which a module has the class ``Random``."""
    return [name for name, value in vars(module).items() if value is Random]


@contextmanager
def reproducible(loop: VirtualLoop, random: Random) -> Iterator[None]:
    """Let every module of the project draw from ``random`` and read its clocks from ``loop``.

    Covered are the clocks of ``time``, ``Random()``, the functions of the module ``random``, ``os.urandom``, and with
    that ``uuid4``. Raises ``AssertionError`` at the end if a module was imported meanwhile.
    """

    def make_random() -> Random:
        return Random(random.random())

    clocks: dict[Callable[[], float], Callable[[], float]] = {
        time.time: lambda: WALL_CLOCK + loop.time(),
        time.time_ns: lambda: int((WALL_CLOCK + loop.time()) * 1e9),
        time.perf_counter: loop.time,
        time.perf_counter_ns: lambda: int(loop.time() * 1e9),
        time.monotonic: loop.time,
    }
    modules = preload()
    state = random_module.getstate()
    with ExitStack() as patches:
        patches.callback(random_module.setstate, state)
        random_module.seed(random.random())
        patches.enter_context(mock.patch.object(os, "urandom", random.randbytes))
        for module in modules:
            for name, clock in _clocks_of(module):
                patches.enter_context(mock.patch.object(module, name, clocks[clock]))
            for name in _randoms_of(module):
                patches.enter_context(mock.patch.object(module, name, make_random))
        yield
    late = {name for name in sys.modules if name.startswith("aioproducer")} - {module.__name__ for module in modules}
    assert not late, f"imported by a simulation, with real clocks: {sorted(late)}"
