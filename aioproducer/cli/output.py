"""Output of commands: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

# For output that is not a terminal, so that a program that reads a table finds it complete.
_UNLIMITED = 10_000


class _Console(Console):
    """A console that raises an error if the output was closed, instead of ending the process."""

    def on_broken_pipe(self) -> None:
        raise  # called while the BrokenPipeError is handled


def note(command: str, text: str) -> None:
    """Write a line for the user to stderr."""
    print(f"aioproducer {command}: {' '.join(text.split())}", file=sys.stderr, flush=True)


def print_json(value: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = ()) -> None:
    """Print rows under the names of their columns; align those in ``numbers`` to the right."""
    terminal = sys.stdout.isatty()
    console = _Console(file=sys.stdout, width=None if terminal else _UNLIMITED, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold" if terminal else None)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    console.print(table, markup=False)
