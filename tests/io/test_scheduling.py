"""Scheduler settings of threads, read from Linux's /proc."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from aioproducer.io.scheduling import NICENESS, SLICE_MS, give_way

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads share their process's niceness elsewhere")


def in_a_thread(function):
    """Return the result of ``function`` in a new thread, the end of which undoes its requests."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def niceness():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def slice_ns():
    """Return the calling thread's slice; None if the kernel does not report it."""
    file = Path(f"/proc/self/task/{threading.get_native_id()}/sched")
    found = re.search(r"se\.slice\s*:\s*(\d+)", file.read_text()) if file.exists() else None
    return None if found is None else int(found[1])


def has_slices():
    """Return whether threads may choose their slice (Linux 6.12)."""
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) >= (6, 12)


def test_giving_way_raises_the_niceness_of_one_thread_only():
    own = niceness()

    def nicer():
        give_way()
        return niceness()

    assert in_a_thread(nicer) == min(own + NICENESS, 19)
    assert niceness() == own


@pytest.mark.skipif(not has_slices(), reason="this kernel gives all threads the same slices")
def test_a_thread_that_gives_way_has_a_longer_time_slice():
    def slices():
        before = slice_ns()
        give_way()
        return before, slice_ns()

    before, after = in_a_thread(slices)
    if before is None:
        pytest.skip("this kernel does not tell of slices")
    assert after == SLICE_MS * 1_000_000 > before
    assert slice_ns() == before


def test_a_thread_without_permission_to_give_way_continues_unchanged(monkeypatch):
    def forbidden(increment):
        raise PermissionError(1, "Operation not permitted")

    class Refusing:
        def syscall(self, *arguments):
            return -1

    own = niceness()
    monkeypatch.setattr(os, "nice", forbidden)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Refusing())

    def same():
        give_way()
        return niceness()

    assert in_a_thread(same) == own


@pytest.mark.parametrize("missing", ["sched_getscheduler", "ctypes"])
def test_a_thread_gives_way_by_niceness_if_time_slices_are_unavailable(monkeypatch, missing):
    def forbidden(thread):
        raise PermissionError(1, "Operation not permitted")

    if missing == "ctypes":
        monkeypatch.setitem(sys.modules, "ctypes", None)
    else:
        monkeypatch.setattr(os, "sched_getscheduler", forbidden)
    own = niceness()

    def nicer():
        give_way()
        return niceness()

    assert in_a_thread(nicer) == min(own + NICENESS, 19)


@pytest.mark.parametrize(("machine", "policy"), [("another", "SCHED_OTHER"), ("x86_64", "SCHED_BATCH")])
def test_time_slices_are_requested_only_with_the_default_policy_on_a_known_machine(monkeypatch, machine, policy):
    requested = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name, **options: requested.append(name))
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: getattr(os, policy))
    in_a_thread(give_way)
    assert requested == []
