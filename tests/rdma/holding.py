"""The verbs objects in use, as counted by the kernel, independently of the processes under test.

The counts are those of all processes: the kernel knows only the thread that created an object, which may have ended.
"""

from __future__ import annotations

import json
import subprocess
import time
from typing import NamedTuple


class Held(NamedTuple):
    """Numbers of verbs objects of each kind, including the kernel's."""

    queue_pairs: int
    completion_queues: int
    regions: int
    domains: int


def held() -> Held:
    """Return the objects of all processes."""
    return Held(*(_count(kind) for kind in ("qp", "cq", "mr", "pd")))


def _count(kind: str) -> int:
    command = ["rdma", "-j", "resource", "show", kind]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return len(json.loads(output or "[]"))


def until_held(expected: Held, seconds: float = 60.0) -> None:
    """Wait until exactly these objects exist.

    Raises:
        TimeoutError: the numbers still differ after the time.
    """
    deadline = time.monotonic() + seconds
    while (found := held()) != expected:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{found}, and not {expected}, after {seconds:g} s")
        time.sleep(0.1)
