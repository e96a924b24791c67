"""One of several threads in a process, measured as if it had the process for itself.

A client's broker in another thread takes Python's lock away from it, which a broker elsewhere does not: so both are
kept on one processor, where the broker gives way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_INTERVAL = 0.0005
"""How long a thread keeps the interpreter when another wants it, in seconds."""


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let threads have the interpreter for ``SWITCH_INTERVAL`` at most."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def one_processor() -> Iterator[None]:
    """Keep this thread, and those that it starts, on one processor; on Linux only.

    A thread that has Python's lock but no processor holds up all others. On one processor it is the others' turn that
    it gets while they wait for the lock.
    """
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def give_way() -> None:
    """Let this thread, and those that it starts, have the processor while no other thread wants it; on Linux only."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
