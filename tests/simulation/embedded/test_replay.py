"""A seed replays exactly: in this process and in fresh ones, whatever the hash order of sets is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.embedded.play import play_seed

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
