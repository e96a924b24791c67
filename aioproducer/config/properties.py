"""Parser of Java's ``.properties`` files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from aioproducer.errors import ConfigurationError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = r"\\(u[0-9a-fA-F]{4}|u|.)"


def load_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the entries of the file at ``path``, in ISO 8859-1 as for ``java.util.Properties.load``.

    Raises:
        ConfigurationError: the file cannot be read, or violates the format.
    """
    try:
        with open(path, encoding="iso-8859-1", newline="") as file:
            text = file.read()
    except OSError as error:
        raise ConfigurationError(f"the properties file {os.fspath(path)} cannot be read: {error.strerror}") from error
    try:
        return parse_properties(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{os.fspath(path)}: {error}") from None


def parse_properties(text: str) -> dict[str, str]:
    """Return the entries of ``text`` in the format of ``java.util.Properties``; of equal keys the last one counts.

    Raises:
        ConfigurationError: a ``\\u`` is not followed by four hexadecimal digits.
    """
    entries: dict[str, str] = {}
    for line in _logical_lines(text):
        key_end = _key_end(line)
        rest = line[key_end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        key = _unescape(line[:key_end], "a key")
        entries[key] = _unescape(rest, f"the value of {key}")
    return entries


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines without comments and blank lines, and join those that a backslash continues."""
    joined = ""
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(_BLANKS)
        if not joined and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2 == 1:
            joined += line[:-1]
        else:
            yield joined + line
            joined = ""
    if joined:
        yield joined


def _key_end(line: str) -> int:
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str, description: str) -> str:
    """Return ``text`` with its escapes replaced. An error contains the ``description``: the text may be a password."""
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        escape = match[1]
        if escape == "u":
            raise ConfigurationError(f"\\u must be followed by four hexadecimal digits, in {description}")
        return chr(int(escape[1:], 16)) if len(escape) > 1 else _ESCAPES.get(escape, escape)

    # Two \u escapes, a UTF-16 surrogate pair, stand for a character beyond the basic plane.
    return re.sub(_ESCAPE, replace, text, flags=re.DOTALL).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
