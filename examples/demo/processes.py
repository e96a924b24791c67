"""Running the tool and other programs as processes, to their end or beside the demo; none is left behind."""

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
"""Seconds for a process to end after SIGTERM."""

ERROR = re.compile(r"(ERROR: |([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception)\b)")
"""The start of a line with the reason for which a Python program, or pip, ended."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the demo."""


class ToolError(Exception):
    """The tool, or another program, failed; the text is empty if it has printed the reason itself."""


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay signals until the end of the block, so that it is not interrupted."""
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
    """End a process as ``_end`` does, together with the processes that it has started."""
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
    """Return the remaining processes of the session that ``leader`` began; none on systems without /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            # The process has just ended.
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
    """Start a process that ends with ``stack``."""
    with _undisturbed():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            text=True,
            # Only the demo receives a terminal's Ctrl-C. It ends the others in order: first the producing one, then
            # the broker.
            start_new_session=True,
        )
        assert process.stdout is not None
        stack.enter_context(process.stdout)
        stack.callback(end, process)
    return process


def run(*arguments: str) -> str:
    """Run the tool and return its output; its progress and its errors go to the terminal.

    Raises:
        ToolError: its exit code was not 0.
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
    """Run a program and yield its output line by line; its errors go to ``log``. Its child processes end with it.

    Raises:
        ToolError: its exit code was not 0; the text has the last error in the log.
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
    """Start a broker that ends with ``stack``, and return its bootstrap address.

    Raises:
        ToolError: it did not start; the text has its last message.
    """
    said: deque[str] = deque(maxlen=20)
    ready = threading.Event()
    addresses: list[str] = []

    def listen(lines: Iterable[str]) -> None:
        # Read to the end: a broker would block if nothing read its output and the pipe was full.
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
            # Registered before its output is closed; joined after the process has received SIGTERM.
            stack.callback(listener.join)
            stack.callback(_end, process)
        ready.wait(READY)
        if not addresses:
            _end(process)
            listener.join()
            last = next((line for line in reversed(said) if line), "it said nothing")
            raise ToolError(f"the embedded broker did not start: {last}")
        yield addresses[0]
