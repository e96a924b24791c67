"""Files with tokens, assertions and keys: read at each use, since they are replaced while the client runs."""

from __future__ import annotations

import os

from aioproducer.errors import TokenProviderError

MAX_FILE_BYTES = 1 << 20
"""A larger file holds no token; a device or pipe would never end."""


def read_bytes(key: str, path: str | os.PathLike[str]) -> bytes:
    """Return the content of the file that the configuration key ``key`` names; blocks.

    Raises:
        TokenProviderError: the file is missing, unreadable, empty or too large.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TokenProviderError(f"The file {os.fspath(path)} ({key}) cannot be read: {error.strerror}.") from None
    if len(content) > MAX_FILE_BYTES:
        raise TokenProviderError(f"The file {os.fspath(path)} ({key}) is too large (maximum {MAX_FILE_BYTES} bytes).")
    if not content.strip():
        raise TokenProviderError(f"The file {os.fspath(path)} ({key}) is empty.")
    return content


def read_text(key: str, path: str | os.PathLike[str]) -> str:
    """Return the text of a file as `read_bytes` does, without surrounding blanks and line breaks.

    Raises:
        TokenProviderError: as `read_bytes`, or the file is not ASCII.
    """
    content = read_bytes(key, path)
    # Not by an exception: it would have the content as an attribute, and be the context of the error.
    if not content.isascii():
        del content
        raise TokenProviderError(f"The file {os.fspath(path)} ({key}) contains other characters than ASCII.")
    return content.decode().strip()
