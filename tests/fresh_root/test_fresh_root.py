"""A minimal machine and the Dockerfile's image run the demo, and the check detects a failed demo.

The complete test takes minutes, root and debootstrap: `make soak` runs it, and AIOPRODUCER_FRESH_ROOT=1.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fresh_root import run

SCRIPT = Path(run.__file__)


@pytest.mark.fresh_root
@pytest.mark.timeout(1800)
def test_the_demo_runs_on_a_minimal_machine() -> None:
    if os.environ.get("AIOPRODUCER_FRESH_ROOT") != "1":
        pytest.skip("takes minutes: AIOPRODUCER_FRESH_ROOT=1 asks for it")
    reason = run.why_not()
    if reason is not None:
        pytest.skip(reason)
    ended = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_instructions_of_a_dockerfile_are_parsed() -> None:
    text = '# comment\nFROM debian:bookworm-slim\nRUN one \\\n    && two\n\nCMD ["make"]\n'
    assert [(name, " ".join(rest.split())) for name, rest in run.instructions(text)] == [
        ("FROM", "debian:bookworm-slim"),
        ("RUN", "one && two"),
        ("CMD", '["make"]'),
    ]
    assert run.base_suite(text) == "bookworm"
    with pytest.raises(run.FreshRootError, match="does not begin with FROM debian"):
        run.base_suite("FROM python:3.13\n")


def test_the_projects_dockerfile_is_understood() -> None:
    text = (run.REPOSITORY / "Dockerfile").read_text()
    steps = list(run.instructions(text))
    assert run.base_suite(text)
    assert {name for name, _ in steps} <= {"FROM", "RUN", "COPY", "USER", "WORKDIR", "ENV", "CMD"}
    assert [rest for name, rest in steps if name == "USER"][-1] not in ("root", "0")


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        (".git/config", True),
        ("tests/conftest.py", True),
        ("aioproducer/core/__pycache__/batch.pyc", True),
        ("aioproducer/core/batching/batch.py", False),
        ("examples/demo/__main__.py", False),
        ("Makefile", False),
    ],
)
def test_ignored_files_are_not_in_the_image(path: str, ignored: bool) -> None:
    patterns = (run.REPOSITORY / ".dockerignore").read_text().splitlines()
    assert run._ignored(path, patterns) == ignored


def test_a_demo_that_lost_flights_is_detected() -> None:
    lost = "        all                                 336,776   336,775              NO\n"
    with pytest.raises(run.FreshRootError, match="did not say in 1 stages that all 336,776 flights came back"):
        run._check_demo(lost, 1)
    came = "\n        all                                 336,776   336,776              yes  \n"
    run._check_demo(came, 1)
    with pytest.raises(run.FreshRootError, match="in 2 stages"):
        run._check_demo(came + lost)
    run._check_demo(2 * came)
