"""Finding the code blocks of the documents, and running them as a reader would."""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from aioproducer.testing import EmbeddedClusterThread
from tests.kafka.cluster import KafkaCluster, free_ports
from tests.nested_pytest import inherited_environment

ROOT = Path(__file__).parents[2]
ADDRESS = "localhost:9092"
"""The address of the reader's Kafka in the documents."""

PYTEST_INI = """\
[pytest]
filterwarnings = error
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is the number of its first line of content."""

    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


class BlockError(AssertionError):
    """A block does not behave as a reader would expect."""


def blocks_of(document: Path) -> list[Block]:
    """Return every fenced block, in order; the language is empty if none is named.

    Raises:
        BlockError: a block does not end.
    """
    found: list[Block] = []
    opened: tuple[int, str, str, str] | None = None
    content: list[str] = []
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None:
            if fence:
                info = fence["info"].split()
                opened = number + 1, fence["fence"], info[0] if info else "", fence["indent"]
                content = []
        elif fence and fence["fence"].startswith(opened[1]) and not fence["info"].strip():
            found.append(Block(document, opened[0], opened[2], "".join(content)))
            opened = None
        else:
            content.append(line.removeprefix(opened[3]) + "\n")
    if opened is not None:
        raise BlockError(f"{document.name}:{opened[0]}: the block does not end")
    return found


def starts_a_broker(blocks: list[Block]) -> bool:
    """Whether the document tells the reader to start the broker at this address."""
    return any(block.language == "sh" and "aioproducer broker" in block.text for block in blocks)


class Page:
    """Runs one document's blocks in order, in one folder; processes that they leave running end with it."""

    def __init__(self, folder: Path, cluster: EmbeddedClusterThread | KafkaCluster | None) -> None:
        """Without a ``cluster`` the document starts its own at the address."""
        self._folder = folder
        self.address = f"127.0.0.1:{free_ports(1)[0]}" if cluster is None else cluster.bootstrap_servers
        self._groups: list[int] = []
        binaries = folder / ".bin"
        binaries.mkdir()
        for name, module in {"aioproducer": "aioproducer", "python": "", "pytest": "pytest"}.items():
            script = binaries / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {f"-m {module}" if module else ""} "$@"\n')
            script.chmod(0o755)
        self._environment = {
            **inherited_environment(),
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "100",
            # The tool's default address.
            "AIOPRODUCER_BOOTSTRAP_SERVERS": self.address,
        }

    def run(self, block: Block) -> str:
        """Run a block of Python or shell, and return its output.

        Raises:
            BlockError: it failed.
        """
        text = block.text.replace(ADDRESS, self.address)
        named = re.match(r"# (\S+\.py)\n", text)
        if named and named[1].startswith("test_"):
            return self._run_tests(block, named[1], text)
        if named:
            (self._folder / named[1]).write_text(text)
        if block.language == "python":
            return self._run_python(block, text)
        return self._run_shell(block, text)

    def _run_tests(self, block: Block, name: str, text: str) -> str:
        (self._folder / "pytest.ini").write_text(PYTEST_INI)
        (self._folder / name).write_text(text)
        return self._run_shell(block, f"pytest -q -p no:cacheprovider {name}")

    def _run_python(self, block: Block, text: str) -> str:
        script = self._folder / ".block.py"
        script.write_text(text)
        run = [sys.executable, "-W", "error", "-m", "tests.docs.run_block", str(script), str(block), self.address]
        return self._run(block, run)

    def _run_shell(self, block: Block, text: str) -> str:
        return self._run(block, ["bash", "-euo", "pipefail", "-c", text])

    def _run(self, block: Block, command: list[str]) -> str:
        # A file for each block, because processes in the background continue to write.
        output = self._folder / f".output-{len(self._groups)}"
        # To a file, because processes in the background would keep a pipe open.
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._groups.append(process.pid)
        try:
            code = process.wait(120)
        except subprocess.TimeoutExpired:
            raise BlockError(f"{block} does not end; it printed:\n{output.read_text()}") from None
        printed = output.read_text()
        if code != 0:
            raise BlockError(f"{block} ended with exit code {code}; it printed:\n{printed}")
        return printed

    def close(self) -> None:
        """End processes that are left: by SIGTERM, and after some seconds by SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            give_up = time.monotonic() + 15
            for group in self._groups:
                _signal(group, number)
            while any(_signal(group, 0) for group in self._groups) and time.monotonic() < give_up:
                time.sleep(0.02)


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def check_output(block: Block, want: str, got: str) -> None:
    """Compare two outputs; ``...`` in the document matches anything. Raise BlockError if they differ."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if not doctest.OutputChecker().check_output(want, got, flags):
        raise BlockError(f"{block} should be what the block before printed, which is:\n{got}")
