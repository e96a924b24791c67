"""Helpers for messages: numbers with their nouns, and text that a broker sent."""

from __future__ import annotations

LONGEST_FOREIGN_TEXT = 200
"""Limit of a broker's text in an error or a log message, in characters."""


def plural(count: float, noun: str) -> str:
    """Return ``noun`` in the number of ``count``: ``record`` for 1, else ``records``."""
    if count == 1:
        return noun
    return f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """Return the number with its noun: ``1 record``, ``17 records``."""
    return f"{count} {plural(count, noun)}"


def are(count: float) -> str:
    """Return ``is`` for 1, else ``are``."""
    return "is" if count == 1 else "are"


def were(count: float) -> str:
    """Return ``was`` for 1, else ``were``."""
    return "was" if count == 1 else "were"


def printable(text: str, limit: int = LONGEST_FOREIGN_TEXT) -> str:
    """Return a broker's text so that it is safe in an error, in a log and on a terminal.

    Unprintable characters are escaped: line breaks, terminal escape sequences, characters that change the writing
    direction. A text longer than ``limit`` characters is cut and ends in ``...``.
    """
    if len(text) <= limit and text.isprintable():
        return text
    # The text may have megabytes: only the part that is kept is escaped.
    escaped = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[: limit + 1])
    return escaped if len(escaped) <= limit else f"{escaped[: limit - 3]}..."


def has_utf8_form(text: str) -> bool:
    """Return whether ``text`` can be encoded; a lone surrogate cannot.

    For secrets: an error that is raised where UnicodeEncodeError is caught has it as its context, and with it the text.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
