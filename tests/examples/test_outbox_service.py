"""The own tests of the example of an outbox: simulated faults, and the seed that finds a commit before the send."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "outbox_service"


def test_the_services_own_tests() -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=FOLDER,
        env=inherited,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.stdout.strip().splitlines()[-1].startswith("6 passed in"), run.stdout + run.stderr
