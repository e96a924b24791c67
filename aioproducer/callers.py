"""Who may call a producer, and with what: the checks of ``send``, made where something was wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from aioproducer.errors import KafkaError, ProducerClosedError, WrongCallerError
from aioproducer.record import Record

# No thread has this identity.
NO_THREAD = 0

NOT_STARTED, CLOSED, FORKED, RUNNING, OTHER_LOOP = range(5)


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
    return WrongCallerError(
        "this producer belongs to another thread: call producer.threadsafe() there, once, and use that"
    )


def check(topic: object, value: object, key: object, partition: object, timestamp_ms: object, headers: object) -> None:
    """Check the arguments of a send, after serialization.

    Raises:
        TypeError, ValueError: one is wrong; the text says which.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}")
    if not topic:
        raise ValueError("topic must not be empty")
    for name, data in (("value", value), ("key", key)):
        if data is not None and not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(
                f"{name} must be bytes, bytearray, memoryview or None, not {type(data).__name__}: encode it, or set "
                f"{name}_serializer"
            )
        if isinstance(data, memoryview) and not data.contiguous:
            raise ValueError(f"{name} must be a contiguous memoryview")
    if partition is not None:
        _check_number("partition", partition)
    _check_number("timestamp_ms", timestamp_ms)
    _check_headers(headers)


def _check_number(name: str, number: object) -> None:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{name} must be int, not {type(number).__name__}")
    if not 0 <= number < 2**63:
        raise ValueError(f"{name} must not be negative nor over 63 bits, but is {number}")


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Sequence) or isinstance(headers, str | bytes):
        raise TypeError(f"headers must be a sequence of (name, value) pairs, not {type(headers).__name__}")
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2:
            raise TypeError(f"a header must be a (name, value) pair, not {header!r}")
        name, value = header
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        if value is not None and not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"the value of header {name!r} must be bytes or None, not {type(value).__name__}")


def explain(
    error: Exception,
    topic: object,
    value: object,
    key: object,
    partition: object,
    timestamp_ms: object,
    headers: object,
) -> Exception:
    """The clear form of an error that wrong arguments led to, or the error itself if they were right."""
    try:
        check(topic, value, key, partition, timestamp_ms, headers)
    except (TypeError, ValueError) as clear:
        return clear
    return error


def size_hint(record: Record) -> int:
    """About how many bytes a record will have that is not serialized yet."""
    return sum(
        memoryview(part).nbytes if isinstance(part, bytes | bytearray | memoryview) else sys.getsizeof(part)
        for part in (record.key, record.value)
        if part is not None
    )
