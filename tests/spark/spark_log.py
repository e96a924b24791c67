"""Reading what Spark's processes write to stderr."""

from __future__ import annotations

import re
import time
from pathlib import Path


def wait_for_line(log: Path, pattern: str, after: int = 0) -> re.Match[str]:
    """A line like ``pattern`` behind the first ``after`` characters of the log; it may come late."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace")[after:])
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no line like {pattern!r} in {log.read_text(errors='replace')[after:]}")
