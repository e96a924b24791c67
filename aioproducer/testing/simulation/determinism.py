"""The one place where a simulation replaces clocks and sources of randomness.

The core takes time and randomness as arguments. The modules around it read clocks, and draw random numbers, under
names of their own; ``reproducible`` replaces all of them for as long as a simulation runs.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import pkgutil
import random as random_module
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from random import Random
from types import ModuleType
from typing import Any
from unittest import mock

from aioproducer.testing.simulation.loop import VirtualLoop

WALL_CLOCK = 1_700_000_000.0
"""Seconds since 1970 at the loop's time 0."""

_CLOCKS = {
    name: getattr(time, name)
    for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns")
}

_OTHER_PROCESSES = ("cli", "gateway", "spark", "testing.plugin", "testing.thread", "testing.verbs", "transport.rdma")
"""Rooms that no simulation runs; they import what may not be installed."""


_OWN = "aioproducer.testing.simulation"
"""Draws from the seed by itself."""


@functools.cache
def _import_all() -> None:
    skipped = tuple(f"aioproducer.{room}" for room in _OTHER_PROCESSES)
    package = sys.modules["aioproducer"]
    for module in pkgutil.walk_packages(package.__path__, "aioproducer.", onerror=lambda name: None):
        if not module.name.startswith(skipped) and not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                # An optional package is not installed: the simulation cannot import the module, either.
                if (error.name or "").startswith("aioproducer"):
                    raise


def preload() -> tuple[ModuleType, ...]:
    """Import every module that a simulation can use, and return all of the project that are imported.

    A module that is imported while a simulation runs would read real clocks. Other tests may import more between two.
    """
    _import_all()
    return tuple(module for name, module in sorted(sys.modules.items()) if name.startswith("aioproducer"))


def _clocks_of(module: ModuleType) -> list[tuple[str, str]]:
    """The names under which a module has a clock, with the name of the clock.

    They are looked up for each simulation: a test may have replaced a clock during an earlier one.
    """
    return [
        (name, clock)
        for name, value in vars(module).items()
        if callable(value)
        for clock, function in _CLOCKS.items()
        if value is function
    ]


def _randoms_of(module: ModuleType) -> list[str]:
    """The names under which a module has the class ``Random``."""
    return [name for name, value in vars(module).items() if value is Random]


def _counters_of(module: ModuleType) -> list[str]:
    """The names under which a module numbers what the process makes, as clients without an id."""
    return [name for name, value in vars(module).items() if isinstance(value, itertools.count)]


@contextmanager
def reproducible(loop: VirtualLoop, random: Random) -> Iterator[None]:
    """Let every module of the project draw from ``random``, read its clocks from ``loop``, and count from 1.

    Covered are the clocks of ``time``, ``Random()``, the functions of the module ``random``, ``os.urandom``, and with
    that ``uuid4``. Counters of a module are new ones meanwhile: what the process has made before would change client
    ids, and with their length each request. Raises ``AssertionError`` at the end if a module was imported meanwhile.
    """

    def make_random() -> Random:
        return Random(random.random())

    clocks = _virtual_clocks(loop)
    modules = preload()
    state = random_module.getstate()
    with ExitStack() as patches:
        patches.callback(random_module.setstate, state)
        random_module.seed(random.random())
        patches.enter_context(mock.patch.object(os, "urandom", random.randbytes))
        for module in modules:
            if module.__name__.startswith(_OWN):
                continue
            for name, clock in _clocks_of(module):
                patches.enter_context(mock.patch.object(module, name, clocks[clock]))
            for name in _randoms_of(module):
                patches.enter_context(mock.patch.object(module, name, make_random))
            for name in _counters_of(module):
                patches.enter_context(mock.patch.object(module, name, itertools.count(1)))
        yield
    late = {name for name in sys.modules if name.startswith("aioproducer")} - {module.__name__ for module in modules}
    assert not late, f"imported by a simulation, with real clocks: {sorted(late)}"


def _virtual_clocks(loop: VirtualLoop) -> dict[str, Callable[[], float]]:
    return {
        "time": lambda: WALL_CLOCK + loop.time(),
        "time_ns": lambda: int((WALL_CLOCK + loop.time()) * 1e9),
        "perf_counter": loop.time,
        "perf_counter_ns": lambda: int(loop.time() * 1e9),
        "monotonic": loop.time,
        "monotonic_ns": lambda: int(loop.time() * 1e9),
    }


@contextmanager
def virtual_time_for(loop: VirtualLoop, modules: Iterable[str] = ()) -> Iterator[None]:
    """Let a user's program read virtual clocks: through ``time``, and by names of their own in ``modules``.

    ``modules``: names of modules and packages that are imported; a package stands for all its modules.

    Raises:
        ValueError: none of a name is imported.
    """
    clocks = _virtual_clocks(loop)
    owners: list[tuple[Any, str, str]] = [(time, name, name) for name in _CLOCKS]
    for wanted in modules:
        found = [
            module for name, module in sorted(sys.modules.items()) if name == wanted or name.startswith(f"{wanted}.")
        ]
        if not found:
            raise ValueError(f"there is no imported module {wanted!r}: import it first, or correct `modules`")
        owners += [(module, name, clock) for module in found for name, clock in _clocks_of(module)]
    before = set(sys.modules)
    with ExitStack() as patches:
        for owner, name, clock in owners:
            patches.enter_context(mock.patch.object(owner, name, clocks[clock]))
        try:
            yield
        finally:
            _give_back_clocks(set(sys.modules) - before, clocks)


def _give_back_clocks(names: Iterable[str], clocks: Mapping[str, Callable[[], float]]) -> None:
    """Give real clocks to modules that were imported meanwhile by ``from time import ...``."""
    for module in [sys.modules[name] for name in names]:
        for name, value in list(getattr(module, "__dict__", {}).items()):
            for clock, virtual in clocks.items():
                if value is virtual:
                    setattr(module, name, _CLOCKS[clock])
