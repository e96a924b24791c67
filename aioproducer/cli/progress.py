"""A line of progress on a terminal, with messages above it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from aioproducer._common.texts import plural
from aioproducer.cli.output import note

# Seconds between two updates of the line.
_INTERVAL = 0.2


def human_count(count: float) -> str:
    """Format ``336776`` as ``336,776``."""
    return f"{count:,.0f}"


def human_counted(count: int, noun: str) -> str:
    """Format a count with its noun: ``1 record``, ``336,776 records``."""
    return f"{human_count(count)} {plural(count, noun)}"


def human_bytes(count: float) -> str:
    """Format a size with its unit, in steps of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class _Rate(ProgressColumn):
    """The column of records per second since the start."""

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        return Text(f"{human_count(task.fields['records'] / elapsed if elapsed else 0)}/s")


class Reporter:
    """Writes messages to stderr, above the line of progress if there is one."""

    def __init__(self, command: str, *, quiet: bool = False) -> None:
        self._command = command
        self._live: Console | None = None
        self._shows = not quiet and sys.stderr.isatty()

    def say(self, text: str) -> None:
        """Write a line for the user."""
        if self._live is None:
            note(self._command, text)
        else:
            self._live.print(f"aioproducer {self._command}: {' '.join(text.split())}", markup=False, soft_wrap=True)

    @asynccontextmanager
    async def progress(self, total_bytes: int | None, look: Callable[[], tuple[int, int]]) -> AsyncIterator[None]:
        """Show progress on a terminal during the block; ``look() -> (records, bytes)`` is called repeatedly."""
        with self._bar(total_bytes) as draw:

            async def draw_repeatedly() -> None:
                while True:
                    draw(*look())
                    await asyncio.sleep(_INTERVAL)

            drawing = asyncio.create_task(draw_repeatedly())
            try:
                yield
            finally:
                drawing.cancel()
                await asyncio.gather(drawing, return_exceptions=True)
                draw(*look())

    @contextmanager
    def _bar(self, total_bytes: int | None) -> Iterator[Callable[[int, int], None]]:
        """Yield a function that draws a number of records and bytes."""
        if not self._shows:
            yield lambda records, size: None
            return
        columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.fields[shown]} records"), _Rate()]
        if total_bytes:
            columns += [BarColumn(bar_width=16), TextColumn("{task.percentage:>3.0f}%")]
        console = Console(stderr=True, highlight=False)
        progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
        task = progress.add_task("", total=total_bytes, records=0, shown="0")

        def draw(records: int, size: int) -> None:
            progress.update(task, completed=size, records=records, shown=human_count(records))
            progress.refresh()

        with progress:
            self._live = progress.console
            try:
                yield draw
            finally:
                self._live = None


class Stopwatch:
    """Measures the seconds since it was created."""

    def __init__(self) -> None:
        self._began = perf_counter()

    def seconds(self) -> float:
        return perf_counter() - self._began
