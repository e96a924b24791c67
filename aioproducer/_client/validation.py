"""Checks of the arguments of ``send``.

For common arguments the hot path runs them only after an append has failed; unusual ones are checked before.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from aioproducer.record import check_header, not_headers
from aioproducer.wire.record import is_number

# Exceptions that an append raises if an argument is wrong.
WRONG_ARGUMENTS = (TypeError, ValueError, AttributeError, OverflowError, BufferError)

# Limits of Kafka's Topic.validate.
MAX_TOPIC_LENGTH = 249
_TOPIC_PATTERN = r"[a-zA-Z0-9._-]{1,249}"


def check(topic: object, partition: object, key: object, value: object, headers: object, timestamp_ms: object) -> None:
    """Check the arguments of a send, after serialization.

    Raises:
        TypeError, ValueError: an argument is wrong; the text names it.
    """
    check_topic_and_partition(topic, partition)
    as_buffer("value", value)
    as_buffer("key", key)
    _check_number("timestamp_ms", timestamp_ms, 63)
    _check_headers(headers)


def check_topic_and_partition(topic: object, partition: object) -> str:
    """Return the topic's name as ``check_topic`` does.

    Raises:
        TypeError, ValueError: the topic is not a str, or empty; the partition is not an int from 0 to 2**31 - 1.
    """
    name = check_topic(topic)
    if partition is not None:
        _check_number("partition", partition, 31)
    return name


def check_topic(topic: object) -> str:
    """Return the topic's name as a plain str; a member of a ``StrEnum`` is not one.

    Raises:
        TypeError, ValueError: the topic is not a str, or empty.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}")
    if not topic:
        raise ValueError("topic must not be empty")
    # str() of a subclass may return something else, such as the name of an enum's member.
    return topic if type(topic) is str else str.__str__(topic)


def why_invalid_topic(topic: str) -> str | None:
    """Return why no topic can have this name, or None if one can (Kafka's ``Topic.validate``)."""
    if len(topic) > MAX_TOPIC_LENGTH:
        return f"topic name {topic[:40]!r}... is too long: {len(topic)} characters (maximum {MAX_TOPIC_LENGTH})"
    if topic in (".", "..") or not re.fullmatch(_TOPIC_PATTERN, topic):
        return (
            f"topic name {topic!r} is invalid: use ASCII letters, digits, '.', '_' and '-', "
            "and neither '.' nor '..' alone"
        )
    return None


def check_timeout(timeout: object) -> None:
    """Check the ``timeout`` argument of a call; a negative one has passed already.

    Raises:
        TypeError: it is not an int or float.
        ValueError: it is not a number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
    if timeout != timeout:
        raise ValueError("timeout must be a number of seconds, not nan")


def as_buffer(name: str, data: object) -> bytes | bytearray | memoryview | None:
    """Return a key or value as an object with a buffer of contiguous bytes.

    Raises:
        TypeError: it is not bytes-like; a str is not encoded.
        ValueError: its memory is not contiguous.
    """
    if data is None or isinstance(data, bytes | bytearray):
        return data
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # without a buffer: TypeError, below
        if isinstance(data, str) or is_number(view):
            raise TypeError
    except TypeError:
        raise TypeError(
            f"{name} must be bytes-like (bytes, bytearray, memoryview) or None, not {type(data).__name__}: encode it, "
            f"or set {name}_serializer"
        ) from None
    if not view.c_contiguous:
        raise ValueError(f"{name} must be a contiguous memoryview")
    return view


def _check_number(name: str, number: object, bits: int) -> None:
    if not isinstance(number, int):
        raise TypeError(f"{name} must be int, not {type(number).__name__}")
    if not 0 <= number < 2**bits:
        raise ValueError(f"{name} must be from 0 to 2**{bits} - 1, not {number}")


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Sequence) or isinstance(headers, str | bytes | bytearray | memoryview):
        raise not_headers(headers)
    for header in headers:
        key, value = check_header(header)
        # Raises UnicodeEncodeError, a ValueError, for a lone surrogate.
        key.encode()
        if isinstance(value, memoryview) and not value.c_contiguous:
            raise ValueError(f"the value of header {key!r} must be a contiguous memoryview")


def explain(
    topic: object, partition: object, key: object, value: object, headers: object, timestamp_ms: object
) -> None:
    """Raise a clear error in place of one that wrong arguments led to; return if the arguments are right.

    Raises:
        TypeError, ValueError: as ``check``.
    """
    try:
        check(topic, partition, key, value, headers, timestamp_ms)
    except (TypeError, ValueError) as clear:
        raise clear from None


def size_of_headers(headers: object) -> int:
    """Return roughly how many bytes the headers hold; 0 for malformed headers, which ``send`` will reject."""
    if not isinstance(headers, list | tuple):
        return 0
    return sum(size_of(part) for header in headers if isinstance(header, list | tuple) for part in header)


def size_of(data: object) -> int:
    """Return the size of a key or value in bytes; an estimate if it is not serialized yet."""
    if data is None:
        return 0
    return memoryview(data).nbytes if isinstance(data, bytes | bytearray | memoryview) else sys.getsizeof(data)
