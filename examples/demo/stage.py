"""The common part of both stages of the demo: their folder, their data, and their end."""

from __future__ import annotations

import fcntl
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flights import FlightsError, write_json_lines
from processes import ENDING, ToolError
from readback import ReadBackError
from rich.console import Console

FOLDER = Path(".demo")
PARTITIONS = 6
INTERRUPTED = 130

console = Console(highlight=False)


class DemoError(Exception):
    """The demo cannot continue."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other demos out of this folder during the block."""
    folder.mkdir(exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"another demo is running in {folder.absolute()}") from None
        yield


def flights_of(folder: Path) -> Path:
    """Return the flights as JSON lines, made unless an earlier run has left the file."""
    target = folder / "flights.jsonl"
    if target.exists():
        console.print(f"[bold]data[/]     {target}, {target.stat().st_size / 1e6:.1f} MB, from an earlier run")
        return target
    began = time.perf_counter()
    write_json_lines(target)
    seconds = time.perf_counter() - began
    console.print(f"[bold]data[/]     {target}, {target.stat().st_size / 1e6:.1f} MB, made in {seconds:.1f} s")
    return target


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="your own Kafka instead of the embedded broker")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for data and broker, default: %(default)s")
    parser.add_argument(
        "--timeout", type=float, default=10, help="seconds for the cluster to answer, default: %(default)s"
    )


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def exit_code(stage: Callable[[], None]) -> int:
    """Run a stage; its failure is one line."""
    for number in ENDING:
        signal.signal(number, _interrupt)
    try:
        stage()
    except KeyboardInterrupt:
        print("demo: interrupted; nothing is left running", file=sys.stderr)
        return INTERRUPTED
    except (DemoError, FlightsError, ReadBackError, ToolError, OSError) as failure:
        if str(failure):
            print(f"demo: {failure}", file=sys.stderr)
        return 1
    return 0
