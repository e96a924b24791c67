"""One cluster for all commands; running commands in this process, and as separate processes."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from aioproducer.cli import main
from aioproducer.testing import EmbeddedClusterThread

TIMEOUT = 60
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread() as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: EmbeddedClusterThread) -> str:
    """An empty topic with two partitions."""
    name = f"topic-{next(_numbers)}"
    cluster.create_topic(name, 2)
    return name


@pytest.fixture
def environment(cluster: EmbeddedClusterThread, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Let commands find the cluster without an option."""
    monkeypatch.setenv("AIOPRODUCER_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
    # With pytest-xdist these have the width of pytest's terminal.
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    return dict(os.environ)


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def call(environment: dict[str, str], capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Ended]]:
    """Run a command in this process; its changes of logging are undone."""
    logger = logging.getLogger("aioproducer")
    before = logger.handlers[:], logger.level, logger.propagate

    def run(*arguments: object) -> Ended:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return Ended(code, *capfd.readouterr())

    yield run
    logger.handlers[:], logger.level, logger.propagate = before


class Commands:
    """Starts commands as processes; none outlives its test."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._environment = environment
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: object, **options: object) -> subprocess.Popen[bytes]:
        """Start the process; its pipes carry bytes."""
        process = subprocess.Popen(
            [sys.executable, "-m", "aioproducer", *map(str, arguments)],
            env=self._environment,
            cwd=self._folder,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        self.processes.append(process)
        return process

    def run(self, *arguments: object, input_: bytes | None = None, **options: object) -> Ended:
        """Run a command to its end."""
        if input_ is not None:
            options["stdin"] = subprocess.PIPE
        return self.end(self.start(*arguments, **options), input_)

    def end(self, process: subprocess.Popen[bytes], input_: bytes | None = None) -> Ended:
        out, err = process.communicate(input_, timeout=TIMEOUT)
        return Ended(process.returncode, (out or b"").decode(), (err or b"").decode())


@pytest.fixture
def commands(environment: dict[str, str], tmp_path: Path) -> Iterator[Commands]:
    started = Commands(environment, tmp_path)
    yield started
    for process in started.processes:
        if process.poll() is None:
            process.kill()
        with process:
            process.wait()
