"""What sentences for people are made of: numbers with their nouns, and text that a broker sent."""

from __future__ import annotations

LONGEST_FOREIGN_TEXT = 200
"""Characters of a text from a broker that an error or a log line holds at most."""


def plural(count: float, noun: str) -> str:
    """``noun`` as it follows ``count``: ``record`` after 1, ``records`` after every other number."""
    if count == 1:
        return noun
    return f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """``1 record``, ``17 records``."""
    return f"{count} {plural(count, noun)}"


def are(count: float) -> str:
    """``is`` after 1, ``are`` after every other number."""
    return "is" if count == 1 else "are"


def were(count: float) -> str:
    """``was`` after 1, ``were`` after every other number."""
    return "was" if count == 1 else "were"


def printable(text: str, limit: int = LONGEST_FOREIGN_TEXT) -> str:
    """A text from a broker as it may stand in an error, a log or on a terminal.

    Whatever is not printable is escaped: line breaks, escape sequences of terminals, characters that change the
    direction of writing. Past ``limit`` characters the rest is left out, and ``...`` stands in its place.
    """
    if len(text) <= limit and text.isprintable():
        return text
    # The text may have megabytes: only what is kept is escaped.
    escaped = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[: limit + 1])
    return escaped if len(escaped) <= limit else f"{escaped[: limit - 3]}..."
