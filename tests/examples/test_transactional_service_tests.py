"""The tests of the example of a service with a transaction for each request, on the embedded broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "transactional_service"


def test_the_services_own_tests_pass() -> None:
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
    tests = (FOLDER / "test_orders.py").read_text().count("async def test_")
    assert run.stdout.strip().splitlines()[-1].startswith(f"{tests} passed in"), run.stdout + run.stderr
