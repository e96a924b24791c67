"""How numbers are put into sentences."""

from __future__ import annotations


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
