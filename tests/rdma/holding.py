"""What is held of the RDMA devices, as the kernel has it: an account that no process keeps for itself.

Of all processes together: the kernel knows the thread that made a thing and not its process, and that thread may have
ended.
"""

from __future__ import annotations

import json
import subprocess
import time
from typing import NamedTuple


class Held(NamedTuple):
    """How many there are of each kind of verbs object, the kernel's own included."""

    queue_pairs: int
    completion_queues: int
    regions: int
    domains: int


def held() -> Held:
    """What all processes hold."""
    return Held(*(_count(kind) for kind in ("qp", "cq", "mr", "pd")))


def _count(kind: str) -> int:
    command = ["rdma", "-j", "resource", "show", kind]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return len(json.loads(told or "[]"))


def until_held(expected: Held, seconds: float = 60.0) -> None:
    """Wait until that is held, and no more.

    Raises:
        TimeoutError: it is something else all the time.
    """
    deadline = time.monotonic() + seconds
    while (found := held()) != expected:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{found}, and not {expected}, after {seconds:g} s")
        time.sleep(0.1)
