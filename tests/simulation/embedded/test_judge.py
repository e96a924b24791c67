"""The checker of another project finds nothing in our histories, and finds planted bugs in them."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from tests.simulation.embedded.judge import anomalies, install
from tests.simulation.embedded.planted import BUGS
from tests.simulation.embedded.play import play_story
from tests.simulation.embedded.story import reading_story

pytestmark = pytest.mark.soak

_SEEDS = 200
_SEEDS_WITH_BUG = 20


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cargo") is None:
        pytest.skip("the judge is compiled by cargo, which is not installed")
    return install(tmp_path_factory.mktemp("judge"))


def _verdicts(judge: Path, seeds: int, folder: Path) -> list[set[str]]:
    """The anomalies of each history that has enough reads."""
    histories = (play_story(reading_story(Random(seed)), seed).history for seed in range(seeds))
    return [found for history in histories if (found := anomalies(judge, history, folder)) is not None]


def test_the_judge_finds_no_anomaly(judge: Path, tmp_path: Path) -> None:
    verdicts = _verdicts(judge, _SEEDS, tmp_path)
    assert len(verdicts) >= _SEEDS / 3
    assert set().union(*verdicts) == set()


@pytest.mark.parametrize("name", ["an_abort_is_marked_as_a_commit", "aborted_records_are_not_filtered"])
def test_the_judge_finds_a_planted_bug(judge: Path, tmp_path: Path, name: str) -> None:
    if BUGS[name].is_compiled:
        pytest.skip("a compiled class cannot be changed")
    with BUGS[name].planted():
        verdicts = _verdicts(judge, _SEEDS_WITH_BUG, tmp_path)
    assert "G1a" in set().union(*verdicts)
