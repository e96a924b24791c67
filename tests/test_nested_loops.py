"""Loops that run inside their own callbacks, which asyncio's loops refuse until patched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_a_send_awaited_in_a_nested_loop_is_sent_while_the_outer_one_waits() -> None:
    """It once waited forever: its sender pass was held until the outer callback had returned."""
    # This runs in a separate process, in which all loops are patched.
    command = [sys.executable, "-W", "error", "-m", "tests.nesting"]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
