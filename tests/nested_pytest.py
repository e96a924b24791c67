"""Run the tests of a folder in a pytest of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def inherited_environment() -> dict[str, str]:
    """The environment without what this pytest and its coverage have put there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}


def run_pytest(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of ``folder`` in a pytest of their own."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**inherited_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def outcome_of(run: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of its output, without the time that it took."""
    assert run.stdout, run.stderr
    return re.sub(r" in [0-9.]+s.*", "", run.stdout.strip().splitlines()[-1])


def check_all_pass(folder: Path, tests: int) -> None:
    """Run the tests of ``folder``: ``tests`` of them, all of which must pass."""
    run = run_pytest(folder)
    assert outcome_of(run) == f"{tests} passed", run.stdout + run.stderr
