"""A seed replays exactly: in this process and in fresh ones, whatever the hash order of sets is."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from aioproducer.testing.simulation.loop import VirtualLoop
from tests.simulation.embedded.play import play_seed, play_story
from tests.simulation.embedded.story import GROUP_KINDS, Kind, late_end_story

_SCRIPT = "from tests.simulation.embedded.play import play_seed; print(play_seed({seed}).trace.digest)"


def _digest_of_a_fresh_process(seed: int, hash_seed: str) -> str:
    played = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(seed=seed)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return played.stdout.strip()


@pytest.mark.parametrize("seed", [5, 11])
def test_a_seed_replays_exactly_in_a_fresh_process(seed: int) -> None:
    """The digest covers each event of the network, of the clients and of the faults, with its time."""
    here = play_seed(seed).trace.digest
    assert _digest_of_a_fresh_process(seed, "1") == here
    assert _digest_of_a_fresh_process(seed, "2") == here


def test_seeds_differ() -> None:
    assert play_seed(5).trace.digest != play_seed(6).trace.digest


def _hash_randomly(monkeypatch: pytest.MonkeyPatch, random: Random) -> None:
    """Let tasks and futures have random hashes.

    Usually their hashes are their addresses, which depend on all that the process has done before.
    """

    class HashedFuture(asyncio.Future[Any]):
        def __init__(self, loop: VirtualLoop) -> None:
            self._hash = random.getrandbits(60)
            super().__init__(loop=loop)

        def __hash__(self) -> int:
            return self._hash

    class HashedTask(asyncio.Task[Any]):
        def __init__(self, coroutine: Coroutine[Any, Any, Any], loop: VirtualLoop, **options: Any) -> None:
            # The task adds itself to a set.
            self._hash = random.getrandbits(60)
            super().__init__(coroutine, loop=loop, **options)

        def __hash__(self) -> int:
            return self._hash

    monkeypatch.setattr(VirtualLoop, "create_future", lambda loop: HashedFuture(loop))
    monkeypatch.setattr(
        VirtualLoop, "create_task", lambda loop, coroutine, **options: HashedTask(coroutine, loop, **options)
    )


def test_a_play_does_not_depend_on_addresses_of_futures(monkeypatch: pytest.MonkeyPatch) -> None:
    """EndTxn requests that were held back in a set went on in the order of their addresses when the faults ended."""

    def digest() -> str:
        return play_story(late_end_story(Random(18), 1), 18).trace.digest

    plain = digest()
    for seed in range(2):
        _hash_randomly(monkeypatch, Random(seed))
        assert digest() == plain


@pytest.mark.parametrize("kind", GROUP_KINDS)
def test_a_play_of_a_group_does_not_depend_on_addresses_of_tasks(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = play_seed(3, kinds=(kind,), is_small=True).trace.digest
    _hash_randomly(monkeypatch, Random(1))
    assert play_seed(3, kinds=(kind,), is_small=True).trace.digest == plain
