"""Ctrl-C for the main thread while it waits."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, FunctionType

PATIENCE = 60.0


def interrupt_wait_in(function: FunctionType, when: Callable[[], object] = lambda: True) -> threading.Thread:
    """Interrupt the main thread once ``when`` holds and ``function`` waits there for an event."""
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        deadline = time.monotonic() + PATIENCE
        while not when() or (waiting := _waiting_frame(main, function)) is None:
            assert time.monotonic() < deadline, f"{function.__qualname__} did not wait"
            time.sleep(0.002)
        # Python overlooks a signal between the start of the wait and its system call, so one may not be enough.
        while _waiting_frame(main, function) is waiting:
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def _waiting_frame(thread: int, function: FunctionType) -> FrameType | None:
    """Return the frame of ``function`` in a thread if it waits for an event."""
    frames = []
    frame: FrameType | None = sys._current_frames()[thread]
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    for called, caller in itertools.pairwise(frames):
        if (called.f_code, caller.f_code) == (threading.Event.wait.__code__, function.__code__):
            return caller
    return None
