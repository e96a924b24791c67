"""Loops that are run inside their own callbacks, which asyncio's refuse until they are patched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_a_send_that_is_awaited_inside_an_awaiting_one_is_not_held_until_that_one_goes_on() -> None:
    """It waited for ever: the turn that was to send it was kept until the first one's callback had returned."""
    # In a process of its own, all of whose loops are patched.
    command = [sys.executable, "-W", "error", "-m", "tests.nesting"]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
