"""Scheduler settings of computing threads, so that event loops need not wait for them."""

from __future__ import annotations

import os
import struct
import sys
from contextlib import suppress

NICENESS = 10
"""Added to the niceness of such a thread: if all processors are busy, it gets about a tenth of a loop's share."""

SLICE_MS = 100
"""Requested length of a time slice, the longest that Linux grants.

From 6.12 on, Linux (EEVDF) lets a waking thread preempt another within its slice only if the other has requested a
longer slice, however nice it is. Otherwise a loop behind a nice thread would be late by whole milliseconds.
"""

# The C library has no sched_setattr(2) before glibc 2.41. These are the kernel's system call numbers by architecture.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
# The first form of struct sched_attr: its size, policy, flags, niceness, priority, runtime (ns), deadline, period.
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")


def give_way() -> None:
    """Give this thread the lowest impact on others that the system permits; settings that it denies stay unchanged."""
    # On other systems the whole process would become nicer, including the loop.
    if sys.platform == "linux":
        # A sandbox may deny either call.
        with suppress(OSError):
            os.nice(NICENESS)
        # Not every Python has ctypes.
        with suppress(OSError, ImportError):
            _request_long_slices()


def _request_long_slices() -> None:
    import ctypes

    # A 32-bit Python uses other call numbers.
    number = _SCHED_SETATTR.get(os.uname().machine) if sys.maxsize > 2**32 else None
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    # Of this thread: on Linux 0 is the calling thread.
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, niceness, 0, SLICE_MS * 1_000_000, 0, 0)
    # Kernels without slices ignore it; if it is denied, nothing changes.
    ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, attributes, 0)
