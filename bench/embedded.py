"""The embedded broker in its own process, for benches that measure only the client's process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent


@contextmanager
def embedded_broker(*options: str) -> Iterator[str]:
    """Run ``aioproducer broker`` with further options, and yield its address.

    Raises:
        SystemExit: it did not start.
    """
    command = [sys.executable, "-m", "aioproducer", "broker", "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise SystemExit("The embedded broker did not start.")
            yield address
        finally:
            process.terminate()
