"""What a thread that computes asks of the system's scheduler, so that event loops need not wait for it."""

from __future__ import annotations

import os
import struct
import sys
from contextlib import suppress

NICENESS = 10
"""What such a thread adds to its own: where all processors are busy, it gets about a tenth of what a loop gets."""

SLICE_MS = 100
"""How long it wants to run at a stretch, the most that Linux grants.

Linux lets nobody who wakes up take a processor away from a thread before that one's slice is over, however nice it is,
unless the thread has asked for a longer slice than those who wake up (EEVDF, from 6.12 on): a loop behind a nice thread
would be late by whole milliseconds.
"""

# The C library has no sched_setattr(2) before glibc 2.41. The numbers of the call are the kernel's, by architecture.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
# struct sched_attr, as it was first: its size, policy, flags, niceness, priority, runtime (ns), deadline, period.
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")


def give_way() -> None:
    """Let this thread be in the way of others as little as the system can; what it refuses is left as it was."""
    # Elsewhere it is the process that becomes nicer, with the loop in it.
    if sys.platform == "linux":
        # A sandbox may forbid either.
        with suppress(OSError):
            os.nice(NICENESS)
        # Not every Python has ctypes.
        with suppress(OSError, ImportError):
            _ask_for_long_slices()


def _ask_for_long_slices() -> None:
    import ctypes

    # A Python of 32 bits has calls of other numbers.
    number = _SCHED_SETATTR.get(os.uname().machine) if sys.maxsize > 2**32 else None
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    # Of the thread: Linux takes 0 for whoever calls.
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, niceness, 0, SLICE_MS * 1_000_000, 0, 0)
    # Kernels that know no slices take no notice; where it is forbidden, nothing has changed.
    ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, attributes, 0)
