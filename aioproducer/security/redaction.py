"""Removes possible secrets from the texts of foreign exceptions and servers.

Such a text may have any length and content, and is searched on the event loop: each search takes time in proportion to
the text (no pattern scans the same characters from many positions), and only `MAX_SEARCHED` characters are searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from aioproducer._common.texts import printable

HIDDEN = "[hidden]"

MAX_SEARCHED = 2_000
"""The longest text that is searched for secrets, in characters. The rest is cut, with the last word before it."""

# A part of a secret with this many characters is secret too.
_PART = 8

_SCHEMES = re.compile(r"\b(Bearer|Basic|Digest|Negotiate)(\s++)[^\s\"',;]+", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/\s]+@")
# The name before a value: `password=...`, `"access_token": "..."`, `X-Amz-Signature=...`.
_NAME = re.compile(r"(?<![\w-])[\w-]++[\"']?\s*+[=:]\s*+")
_SECRET_NAME = re.compile(
    r"secret|passw(?:or)?d|passphrase|token|assertion|api[-_]?key|authorization|signature|credential", re.IGNORECASE
)
_VALUE = re.compile(
    r"\[hidden\]|b?\"(?:[^\"\\]|\\.)*+\"?|b?'(?:[^'\\]|\\.)*+'?|[^\s\"',;&)}\]]+",
    re.DOTALL,
)
# With a digit in it, it looks random: tokens, keys, hashes; no word, host name or path has digits in so long a part.
_LONG = re.compile(r"[A-Za-z0-9_+=~%-]{20,}(?:\.[A-Za-z0-9_+=~%-]*)*")
_DIGIT = re.compile(r"[0-9]")
# Three parts of base64: a JWT, however short.
_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*)*")


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return ``text`` in printable form without ``secrets``, and without anything that looks like a secret.

    For texts that may contain secrets that are not known here. When in doubt it hides too much: a hidden word costs a
    look at the provider, a leaked token an incident.
    """
    return printable(_without_patterns(_beginning(text, secrets)))


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` in printable form without ``secrets``, their parts, and what looks random.

    For texts of a server that was sent these secrets alone: unlike `redacted` it leaves the value after a name such as
    ``token:``, which is usually the reason of a rejection.
    """
    return printable(_without_random(_beginning(text, secrets)))


def described(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Return type and text of an exception, as `redacted` does."""
    text = redacted(str(error), secrets)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _beginning(text: str, secrets: Iterable[str]) -> str:
    """Return at most `MAX_SEARCHED` characters of ``text`` without ``secrets``."""
    shown = _without_known(text[:MAX_SEARCHED], secrets)
    if len(text) > MAX_SEARCHED:
        # The last characters may be the beginning of a secret, too short to be found.
        shown = f"{shown[:-_PART].rpartition(' ')[0] or HIDDEN} ..."
    return shown


def _without_known(text: str, secrets: Iterable[str]) -> str:
    """Replace ``secrets`` and parts of them, e.g. of a token that a server has cut.

    A secret that may be a word is not replaced, as the rest of the sentence would reveal it: all of the text is hidden.
    """
    is_secret = bytearray(len(text))
    for secret in filter(None, secrets):
        size = _part_size(secret)
        parts = {secret[start : start + size] for start in range(len(secret) - size + 1)}
        for start in range(len(text) - size + 1):
            if text[start : start + size] in parts:
                is_secret[start : start + size] = b"\1" * size
    shown: list[str] = []
    end = 0
    for found in re.finditer(rb"\x01+", is_secret):
        if _may_be_a_word(text[found.start() : found.end()]):
            return HIDDEN
        shown += [text[end : found.start()], HIDDEN]
        end = found.end()
    return "".join([*shown, text[end:]])


def _part_size(secret: str) -> int:
    """Return the length of the parts that are searched: short secrets as a whole, others also with an end cut off."""
    return min(_PART, max(len(secret) - 1, min(len(secret), 5)))


def _may_be_a_word(part: str) -> bool:
    return len(part) < _PART or all(character.isalpha() or character in " -_'" for character in part)


def _without_patterns(text: str) -> str:
    text = _SCHEMES.sub(rf"\1\2{HIDDEN}", text)
    text = _USER_INFO.sub(f"{HIDDEN}@", text)
    return _without_random(_without_named_values(text))


def _without_named_values(text: str) -> str:
    shown: list[str] = []
    end = position = 0
    while (name := _NAME.search(text, position)) is not None:
        position = name.end()
        if _SECRET_NAME.search(name[0]) and (value := _VALUE.match(text, position)):
            shown += [text[end:position], HIDDEN]
            end = position = value.end()
    return "".join([*shown, text[end:]])


def _without_random(text: str) -> str:
    return _LONG.sub(_hidden_if_random, _JWT.sub(HIDDEN, text))


def _hidden_if_random(found: re.Match[str]) -> str:
    return HIDDEN if _DIGIT.search(found[0]) else found[0]
