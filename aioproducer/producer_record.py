"""``Record``, in its own module: ``send`` works without it, and the import of ``dataclasses`` takes milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aioproducer.record import HeaderPair, normalise_headers


def _check_not_negative(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be int or None, not {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{name} must be at least 0, not {value}")


@dataclass(frozen=True, slots=True)
class Record:
    """A record to send (Kafka's ``ProducerRecord``): an argument of ``Producer.send_record`` and of interceptors.

    ``value`` and ``key`` are the caller's objects, before any serializer; ``value=None`` is a tombstone. With
    ``partition=None`` the partitioner chooses. ``timestamp_ms`` is in milliseconds since the epoch; ``None`` stands for
    the time of the send. ``headers`` accepts any iterable of pairs and stores a tuple of ``(str, bytes | None)``.

    Immutable; ``dataclasses.replace`` makes a changed copy.

    Raises:
        TypeError: the topic is not a str, partition or timestamp are no int, or the headers are malformed.
        ValueError: the topic is empty, or partition or timestamp are negative.
    """

    topic: str
    value: object = None
    key: object = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[HeaderPair] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str):
            raise TypeError(f"topic must be str, not {type(self.topic).__name__}")
        if not self.topic:
            raise ValueError("topic must not be empty")
        if self.partition is not None:
            _check_not_negative("partition", self.partition)
        if self.timestamp_ms is not None:
            _check_not_negative("timestamp_ms", self.timestamp_ms)
        object.__setattr__(self, "headers", normalise_headers(self.headers))
