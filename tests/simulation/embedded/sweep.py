"""Many seeds, one after another or on all processors."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

from tests.simulation.embedded.elle import elle_lines
from tests.simulation.embedded.planted import BUGS, PlantedBug
from tests.simulation.embedded.play import play_story
from tests.simulation.embedded.story import KINDS, Kind, Story, draw_story, small
from tests.simulation.embedded.world import ClusterWorld, Violation

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
    return play_within_limit(story, seed)[0]


def play_within_limit(story: Story, seed: int) -> tuple[list[Violation], ClusterWorld | None]:
    """The rules that a play breaks, as ``violations_of`` returns them, and its world unless it has raised."""
    previous = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST_SEED)
    try:
        world = play_story(story, seed)
    except Exception as error:
        return [Violation("the play ends", repr(error))], None
    else:
        return world.violations, world
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def kind_of(seed: int) -> Kind:
    """The kind of client that a seed of a sweep has: each in turn."""
    return KINDS[seed % len(KINDS)]


def story_of(seed: int, *, version: int, is_small: bool) -> Story:
    """The story that a seed of a sweep has."""
    random = Random(seed)
    story = draw_story(random, kinds=(kind_of(seed),), version=version)
    return small(random, story) if is_small else story


def _play(version: int, is_small: bool, histories: Path | None, seed: int) -> Played:
    violations, world = play_within_limit(story_of(seed, version=version, is_small=is_small), seed)
    if histories is not None and world is not None:
        lines = "".join(f"{line}\n" for line in elle_lines(world.history))
        (histories / f"seed-{seed}.jsonl").write_text(lines, encoding="utf-8")
    return Played(seed, kind_of(seed), violations)


def sweep(
    seeds: Iterable[int], *, version: int = 2, is_small: bool = True, histories: Path | None = None
) -> Iterator[Played]:
    """Play seeds on all processors, with this ``transaction.version``; yield their results in order.

    Args:
        histories: A folder for the transactions of each seed, as Elle's JSON lines; those that raise have none.
    """
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        yield from processes.map(functools.partial(_play, version, is_small, histories), seeds, chunksize=2)


class Found(NamedTuple):
    """How a planted bug was found."""

    seeds: int
    """Number of seeds that it took."""
    violation: Violation


def find(bug: PlantedBug, seeds: Iterable[int] = range(MAX_SEEDS)) -> Found | None:
    """Play seeds with the bug until one breaks a rule; ``None`` if none does."""
    with bug.planted():
        for count, seed in enumerate(seeds, 1):
            violations = violations_of(bug.story(seed), seed)
            if violations:
                return Found(count, violations[0])
    return None


def _find(name: str) -> tuple[str, Found | None]:
    return name, find(BUGS[name])


def find_all(names: Iterable[str]) -> Iterator[tuple[str, Found | None]]:
    """Find planted bugs on all processors; yield them in order, with how each was found."""
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        yield from processes.map(_find, names)
