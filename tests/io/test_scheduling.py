"""What threads ask of Linux's scheduler, as its files under /proc tell."""

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
    """What ``function`` returns in a thread of its own, which takes with it what it asked for."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def niceness():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def slice_ns():
    """The calling thread's slice; None where the kernel does not tell."""
    told = Path(f"/proc/self/task/{threading.get_native_id()}/sched")
    found = re.search(r"se\.slice\s*:\s*(\d+)", told.read_text()) if told.exists() else None
    return None if found is None else int(found[1])


def has_slices():
    """Whether threads may choose theirs (Linux 6.12)."""
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) >= (6, 12)


def test_a_thread_that_gives_way_is_nicer_and_its_others_stay_as_they_were():
    own = niceness()

    def nicer():
        give_way()
        return niceness()

    assert in_a_thread(nicer) == min(own + NICENESS, 19)
    assert niceness() == own


@pytest.mark.skipif(not has_slices(), reason="this kernel gives all threads the same slices")
def test_a_thread_that_gives_way_is_interrupted_by_whoever_wakes_up():
    def slices():
        before = slice_ns()
        give_way()
        return before, slice_ns()

    before, after = in_a_thread(slices)
    if before is None:
        pytest.skip("this kernel does not tell of slices")
    assert after == SLICE_MS * 1_000_000 > before
    assert slice_ns() == before


def test_a_thread_that_may_ask_for_nothing_goes_on_as_it_was(monkeypatch):
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
def test_a_thread_goes_on_where_the_system_may_not_be_asked(monkeypatch, missing):
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
def test_only_a_thread_of_the_usual_policy_on_a_machine_that_is_known_asks_for_slices(monkeypatch, machine, policy):
    def unexpected(name):
        raise AssertionError("the system was asked")

    monkeypatch.setattr(ctypes, "CDLL", unexpected)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: getattr(os, policy))
    in_a_thread(give_way)
