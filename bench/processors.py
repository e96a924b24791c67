"""Measuring one of several threads in a process as if it were alone in the process.

A broker in another thread takes the GIL from the client, unlike a broker in another process. Therefore both threads run
on one processor, where the broker gives way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_INTERVAL = 0.0005
"""Seconds for which a thread may keep the GIL while another requests it."""


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let a thread keep the GIL for at most ``SWITCH_INTERVAL`` while another requests it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def one_processor() -> Iterator[None]:
    """Keep this thread, and those that it starts, on one processor; on Linux only.

    A thread that has the GIL but no processor blocks all others. On one processor it runs while they wait for the GIL.
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
    """Let this thread, and those that it starts, run only while no other thread wants the processor; on Linux only."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
