"""Many seeds, one after another or on all processors."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from random import Random
from types import FrameType
from typing import NamedTuple

from tests.simulation.embedded.planted import BUGS, PlantedBug
from tests.simulation.embedded.play import KINDS, play_story
from tests.simulation.embedded.story import Kind, Story, draw_story
from tests.simulation.embedded.world import Violation

LONGEST_SEED = 60
"""Seconds of real time that no seed takes: a task that never lets the loop run stops the virtual time, too."""

MAX_SEEDS = 50
"""Seeds within which each planted bug is found."""


class Played(NamedTuple):
    """The result of a seed."""

    seed: int
    kind: Kind
    violations: list[Violation]


class SeedTooLongError(Exception):
    """A seed has taken ``LONGEST_SEED``."""


def _too_long(signal_number: int, frame: FrameType | None) -> None:
    raise SeedTooLongError(f"{LONGEST_SEED} s of real time")


def violations_of(story: Story, seed: int) -> list[Violation]:
    """The rules that a play breaks; an exception of the play counts as one. In the main thread only."""
    previous = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST_SEED)
    try:
        return play_story(story, seed).violations
    except Exception as error:
        return [Violation("the play ends", repr(error))]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def kind_of(seed: int) -> Kind:
    """The kind of client that a seed of a sweep has: each in turn."""
    return KINDS[seed % len(KINDS)]


def _play(version: int, seed: int) -> Played:
    kind = kind_of(seed)
    return Played(seed, kind, violations_of(draw_story(Random(seed), kinds=(kind,), version=version), seed))


def sweep(seeds: Iterable[int], version: int = 2) -> Iterator[Played]:
    """Play seeds on all processors, with this ``transaction.version``; yield their results in order."""
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        yield from processes.map(functools.partial(_play, version), seeds, chunksize=2)


class Found(NamedTuple):
    """How a planted bug was found."""

    seeds: int
    """Number of seeds that it took."""
    violation: Violation


def find(bug: PlantedBug, seeds: Iterable[int] = range(MAX_SEEDS)) -> Found | None:
    """Play seeds with the bug until one breaks a rule; ``None`` if none does."""
    with bug.planted():
        for count, seed in enumerate(seeds, 1):
            violations = violations_of(bug.draw(Random(seed)), seed)
            if violations:
                return Found(count, violations[0])
    return None


def _find(name: str) -> tuple[str, Found | None]:
    return name, find(BUGS[name])


def find_all(names: Iterable[str]) -> Iterator[tuple[str, Found | None]]:
    """Find planted bugs on all processors; yield them in order, with how each was found."""
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        yield from processes.map(_find, names)
