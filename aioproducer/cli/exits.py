"""The command line's exit codes, and the exceptions that lead to them."""

from __future__ import annotations

SUCCEEDED = 0
FAILED = 1
"""The command failed, entirely or partly."""
USAGE = 2
"""The command line or the configuration is wrong; the command did nothing."""
PARTLY_REJECTED = 3
"""Done, except for some bad input, which was skipped."""
SIGNALLED = 128
"""Added to the signal's number: 130 for Ctrl-C, 143 for SIGTERM, 141 for output into a closed pipe."""

EXPLANATION = """\
Exit codes: 0 done; 1 failed; 2 wrong usage or configuration; 3 done, but some input lines were bad; 130 and 143 ended
by Ctrl-C or SIGTERM; 141 the output's reader closed it."""


class CommandError(Exception):
    """The command failed; the text is one line that says what to do."""


class CommandUsageError(CommandError):
    """The command line is wrong; the text is one line that says what to do."""


def missing(module: str, purpose: str, extra: str) -> CommandError:
    """An optional dependency is not installed."""
    return CommandError(f"{purpose} needs {module}, which is not installed: pip install 'aioproducer[{extra}]'")
