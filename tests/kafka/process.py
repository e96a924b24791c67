"""Processes that never outlive the process that started them."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

_PR_SET_PDEATHSIG = 1
_running: weakref.WeakSet[Process] = weakref.WeakSet()

# Linux delivers the death signal when the *thread* that forked ends. Therefore one thread that lives as long as the
# process forks all of them: a node restarted from a loop's executor must not end together with that executor.
_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka-forker")
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def _die_with_parent() -> None:
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A child process in a separate group, with its output in ``log``."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        self._popen = _forker.submit(self._start, command, environment).result()
        _running.add(self)

    def _start(self, command: Sequence[str], environment: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if environment is None else {**os.environ, **environment},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def returncode(self) -> int | None:
        """``None`` while the process runs."""
        return self._popen.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""
        return self._popen.wait(timeout)

    def kill(self) -> None:
        """Send SIGKILL to the whole group, and wait for its end."""
        if self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        self._popen.send_signal(number)

    def tail(self, characters: int = 3000) -> str:
        """Return the end of the log, for error messages."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""


@atexit.register
def _kill_all() -> None:
    for process in list(_running):
        process.kill()


class Startable:
    """A context manager for a class with ``start`` and ``stop``."""

    failed = False
    """Keep the files that show the reason, because the block or the start has raised."""

    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.failed = True
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.failed = self.failed or error is not None
        self.stop()
