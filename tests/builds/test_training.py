"""The training program of a profile-guided build runs, and covers every compiled module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from aioproducer._build import COMPILED_MODULES

TRAINING = Path(__file__).parents[2] / "training.py"
SHORT = """
import runpy, sys
training = runpy.run_path(sys.argv[1])
training["main"](share=0.002)
print(*sorted(set(sys.argv[2:]) - set(sys.modules)))
"""


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def test_training_covers_every_compiled_module() -> None:
    run = _run("-c", SHORT, str(TRAINING), *COMPILED_MODULES)
    assert (run.returncode, run.stdout, run.stderr) == (0, "\n", "")


def test_training_reports_missing_modules(tmp_path: Path) -> None:
    """An example is a dependency of the package in pip's isolated build."""
    package = tmp_path / "aioproducer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "testing.py").write_text("raise ImportError('no crc32c here')\n")
    run = _run("-P", str(TRAINING), PYTHONPATH=str(tmp_path))
    assert run.returncode == 1
    assert "no crc32c here" in run.stderr
    assert "the broker did not start" in run.stderr
