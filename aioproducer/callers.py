"""Who may call a producer, and with what: the checks of ``send``, made where something was wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from aioproducer.errors import KafkaError, ProducerClosedError, WrongCallerError
from aioproducer.wire.record import is_number

# No thread has this identity.
NO_THREAD = 0

NOT_STARTED, RUNNING, CLOSED, FORKED, OTHER_THREAD, OTHER_LOOP, LOOP_CLOSED = range(7)

# What an append raises where an argument is wrong.
WRONG_ARGUMENTS = (TypeError, ValueError, AttributeError, OverflowError, BufferError)

# What Kafka's Topic.validate allows.
LONGEST_TOPIC = 249
_LAWFUL_TOPIC = r"[a-zA-Z0-9._-]{1,249}"


def refusal(reason: int) -> KafkaError:
    """Why a call is refused."""
    if reason == CLOSED:
        return ProducerClosedError("this producer is closed: make a new one")
    if reason == NOT_STARTED:
        return WrongCallerError("this producer is not started: use `async with Producer(...)`, or await start() first")
    if reason == FORKED:
        return WrongCallerError("this producer belongs to the parent process: make one in this process, after the fork")
    if reason == OTHER_LOOP:
        return WrongCallerError("this producer belongs to another event loop: make one on this loop")
    if reason == LOOP_CLOSED:
        return ProducerClosedError(
            "this producer's event loop is closed, so that no record can be sent any more: make a new producer on a "
            "running loop, and close it before its loop (`async with Producer(...)`)"
        )
    return WrongCallerError(
        "this producer belongs to another thread: call producer.threadsafe() there, once, and use that"
    )


def check(topic: object, value: object, key: object, partition: object, timestamp_ms: object, headers: object) -> None:
    """Check the arguments of a send, after serialization.

    Raises:
        TypeError, ValueError: one is wrong; the text says which.
    """
    check_place(topic, partition)
    as_buffer("value", value)
    as_buffer("key", key)
    _check_number("timestamp_ms", timestamp_ms, 63)
    _check_headers(headers)


def check_place(topic: object, partition: object) -> str:
    """The topic's name, as ``check_topic``.

    Raises:
        TypeError, ValueError: the topic is no str, or empty; the partition is no number of one.
    """
    name = check_topic(topic)
    if partition is not None:
        _check_number("partition", partition, 31)
    return name


def check_topic(topic: object) -> str:
    """The topic's name as a plain str, which a member of an enumeration of strings for instance is not.

    Raises:
        TypeError, ValueError: it is no str, or empty.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}")
    if not topic:
        raise ValueError("topic must not be empty")
    # What a class of its own makes of str() may be something else, such as the member's name.
    return topic if type(topic) is str else str.__str__(topic)


def why_unlawful(topic: str) -> str | None:
    """Why no topic can have this name, or ``None`` (Kafka's ``Topic.validate``)."""
    if len(topic) > LONGEST_TOPIC:
        return f"{topic[:40]!r}... is no topic name: it has {len(topic)} characters, and {LONGEST_TOPIC} are possible"
    if topic in (".", "..") or not re.fullmatch(_LAWFUL_TOPIC, topic):
        return f"{topic!r} is no topic name: one is of ASCII letters, digits, '.', '_' and '-', and not '.' or '..'"
    return None


def as_buffer(name: str, data: object) -> bytes | bytearray | memoryview | None:
    """The bytes of a key or value.

    Raises:
        TypeError: it has none; a str is not encoded.
        ValueError: they do not lie one after the other.
    """
    if data is None or isinstance(data, bytes | bytearray):
        return data
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # what has no buffer raises the TypeError below
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
        raise ValueError(f"{name} must not be negative nor over {bits} bits, but is {number}")


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Sequence) or isinstance(headers, str | bytes):
        raise TypeError(f"headers must be a sequence of (name, value) pairs, not {type(headers).__name__}")
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2:
            raise TypeError(f"a header must be a (name, value) pair, not {header!r}")
        name, value = header
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        name.encode()
        if value is not None and not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"the value of header {name!r} must be bytes or None, not {type(value).__name__}")
        if isinstance(value, memoryview) and not value.c_contiguous:
            raise ValueError(f"the value of header {name!r} must be a contiguous memoryview")


def explain(
    topic: object,
    value: object,
    key: object,
    partition: object,
    timestamp_ms: object,
    headers: object,
) -> None:
    """Raise the clear form of an error that wrong arguments led to, if they did.

    Raises:
        TypeError, ValueError: as ``check``.
    """
    try:
        check(topic, value, key, partition, timestamp_ms, headers)
    except (TypeError, ValueError) as clear:
        raise clear from None


def size_of_headers(headers: object) -> int:
    """About the bytes that they hold; nothing for what are none, of which whoever takes the record will tell."""
    if not isinstance(headers, list | tuple):
        return 0
    return sum(size_of(part) for header in headers if isinstance(header, list | tuple) for part in header)


def size_of(data: object) -> int:
    """The bytes of a key or value, or about how many it holds where it is not serialized yet."""
    if data is None:
        return 0
    return memoryview(data).nbytes if isinstance(data, bytes | bytearray | memoryview) else sys.getsizeof(data)
