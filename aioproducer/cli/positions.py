"""Positions in a topic, in the command line's notation."""

from __future__ import annotations

from datetime import UTC, datetime

from aioproducer.cli.exits import CommandUsageError
from aioproducer.consumer import Position

LARGEST_OFFSET = 2**63 - 1


def parse_position(text: str, option: str) -> Position:
    """Parse ``beginning``, ``end``, an offset, ``@`` and milliseconds since 1970, or a time in ISO 8601.

    A time without a zone is local.

    Raises:
        CommandUsageError: the text has another form.
    """
    if text == "beginning":
        return "beginning"
    if text == "end":
        return "end"
    number = text.removeprefix("@")
    if number.isdecimal() and int(number) <= LARGEST_OFFSET:
        if text == number:
            return int(number)
        try:
            return datetime.fromtimestamp(int(number) / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            raise CommandUsageError(f"{option} {text}: the time is out of range") from None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise CommandUsageError(
            f"{option} takes beginning, end, an offset, @MILLISECONDS since 1970, or a time as 2026-01-31T12:00:00Z; "
            f"not {text!r}"
        ) from None
