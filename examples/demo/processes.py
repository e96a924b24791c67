"""The tool as a process: run to its end, or beside the demo; never left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

TOOL = [sys.executable, "-m", "aioproducer"]
READY = 60.0
"""Seconds that a broker may take to start."""
STOP = 20.0
"""Seconds that a process may take to end when it is told to."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the demo."""


class ToolError(Exception):
    """The tool failed; empty where it has said why itself."""


@contextmanager
def _undisturbed() -> Iterator[None]:
    """What is done in the block is done whole: signals come behind it."""
    came: list[int] = []
    handlers = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def _end(process: subprocess.Popen[str]) -> None:
    with _undisturbed():
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(stack: ExitStack, arguments: Sequence[str], stderr: int | None) -> subprocess.Popen[str]:
    """A process of the tool that ends with ``stack``."""
    with _undisturbed():
        process = subprocess.Popen(
            [*TOOL, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            # A terminal's Ctrl-C is for the demo alone, which ends the others in their order: first who produces, then
            # the broker that takes it.
            start_new_session=True,
        )
        assert process.stdout is not None
        stack.enter_context(process.stdout)
        stack.callback(_end, process)
    return process


def run(*arguments: str) -> str:
    """What the tool prints; its progress and its errors go to the terminal.

    Raises:
        ToolError: it ended with another exit code than 0.
    """
    with ExitStack() as stack:
        process = _start(stack, arguments, stderr=None)
        printed, _ = process.communicate()
    if process.returncode < 0:
        raise ToolError(f"`aioproducer {' '.join(arguments[:2])}` was ended by signal {-process.returncode}")
    if process.returncode > 0:
        raise ToolError
    return printed


@contextmanager
def broker(*arguments: str) -> Iterator[str]:
    """A broker beside the caller; its bootstrap address.

    Raises:
        ToolError: it did not start; the text has what it said last.
    """
    said: deque[str] = deque(maxlen=20)
    ready = threading.Event()
    addresses: list[str] = []

    def listen(lines: Iterable[str]) -> None:
        # To the end: a broker whose output nobody reads would stand still when the pipe is full.
        for line in lines:
            said.append(line.strip())
            if line.startswith("127.0.0.1:") and not addresses:
                addresses.append(line.strip())
                ready.set()
        ready.set()

    with ExitStack() as stack:
        process = _start(stack, ["broker", *arguments], stderr=subprocess.STDOUT)
        assert process.stdout is not None
        listener = threading.Thread(target=listen, args=[process.stdout], name="demo-broker-output")
        with _undisturbed():
            listener.start()
            # Before its output is closed; and to be waited for when the process has been told to end.
            stack.callback(listener.join)
            stack.callback(_end, process)
        ready.wait(READY)
        if not addresses:
            _end(process)
            listener.join()
            last = next((line for line in reversed(said) if line), "it said nothing")
            raise ToolError(f"the embedded broker did not start: {last}")
        yield addresses[0]
