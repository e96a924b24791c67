"""The tool, and other programs, as processes: run to their end, or beside the demo; never left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

TOOL = [sys.executable, "-m", "aioproducer"]
READY = 60.0
"""Seconds that a broker may take to start."""
STOP = 20.0
"""Seconds that a process may take to end when it is told to."""

ERROR = re.compile(r"(ERROR: |([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception)\b)")
"""How a line begins that says why a program of Python's, or pip, ended."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the demo."""


class ToolError(Exception):
    """The tool, or another program, failed; empty where it has said why itself."""


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
        for signalled in came:
            signal.raise_signal(signalled)


def _end(process: subprocess.Popen[str]) -> None:
    with _undisturbed():
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _end_all(process: subprocess.Popen[str]) -> None:
    """As ``_end``; and what the process has started is gone as well."""
    with _undisturbed():
        _end(process)
        give_up = time.monotonic() + STOP
        while left := _session(process.pid):
            if time.monotonic() > give_up:
                for number in left:
                    with suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
            time.sleep(0.02)


def _session(leader: int) -> list[int]:
    """Who is left of the session that ``leader`` began; nobody is found where there is no /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            # It ended meanwhile.
            continue
        if int(session) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def _start(
    stack: ExitStack,
    command: Sequence[str],
    stderr: int | IO[str] | None,
    environment: Mapping[str, str] | None = None,
    end: Callable[[subprocess.Popen[str]], None] = _end,
) -> subprocess.Popen[str]:
    """A process that ends with ``stack``."""
    with _undisturbed():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            text=True,
            # A terminal's Ctrl-C is for the demo alone, which ends the others in their order: first who produces, then
            # the broker that takes it.
            start_new_session=True,
        )
        assert process.stdout is not None
        stack.enter_context(process.stdout)
        stack.callback(end, process)
    return process


def run(*arguments: str) -> str:
    """What the tool prints; its progress and its errors go to the terminal.

    Raises:
        ToolError: it ended with another exit code than 0.
    """
    with ExitStack() as stack:
        process = _start(stack, [*TOOL, *arguments], stderr=None)
        printed, _ = process.communicate()
    if process.returncode < 0:
        raise ToolError(f"`aioproducer {' '.join(arguments[:2])}` was ended by signal {-process.returncode}")
    if process.returncode > 0:
        raise ToolError
    return printed


def program(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """What a program prints, line by line as it comes; its errors go into ``log``. What it started ends with it.

    Raises:
        ToolError: it ended with another exit code than 0; the text has the last error in the log.
    """
    with ExitStack() as stack:
        errors = stack.enter_context(log.open("w", encoding="utf-8"))
        process = _start(stack, command, errors, environment, end=_end_all)
        assert process.stdout is not None
        for line in process.stdout:
            yield line.rstrip("\n")
        process.wait()
    if process.returncode != 0:
        said = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        last = next((line for line in reversed(said) if ERROR.match(line)), said[-1] if said else "it said nothing")
        raise ToolError(f"{last} (more in {log})")


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
        process = _start(stack, [*TOOL, "broker", *arguments], stderr=subprocess.STDOUT)
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
