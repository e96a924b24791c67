"""The command line: ``aioproducer produce | consume | topics | broker | perf | config | doctor``.

``pip install 'aioproducer[cli]'`` installs its dependencies (click, rich).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from aioproducer.cli.exits import FAILED

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with ``arguments`` (None: those of the process), and return the exit code."""
    try:
        import click  # noqa: F401  # only whether it is there
        import rich  # noqa: F401
    except ModuleNotFoundError as error:
        print(
            f"aioproducer: the command line needs {error.name}, which is not installed: pip install 'aioproducer[cli]'",
            file=sys.stderr,
        )
        return FAILED
    from aioproducer.cli.app import run_command

    return run_command(sys.argv[1:] if arguments is None else arguments)
