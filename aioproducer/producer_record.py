"""``Record``. A separate module: ``send`` works without it, and importing ``dataclasses`` takes milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aioproducer.record import HeaderPair, normalise_headers


def _check_not_negative(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be int or None, not {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{name} must not be negative, but is {value}")


@dataclass(frozen=True, slots=True)
class Record:
    """A record to be sent: what ``Producer.send_record`` takes, and what interceptors see and may replace.

    ``value`` and ``key`` are what the caller gave, before any serializer; ``value=None`` is a tombstone.
    ``partition=None`` leaves the choice to the partitioner, ``timestamp_ms=None`` (milliseconds since the epoch) to the
    producer's wall clock. ``headers`` may be any iterable of pairs and is kept as a tuple of ``(str, bytes | None)``.

    Immutable; ``dataclasses.replace`` makes a changed copy. Raises TypeError or ValueError for an empty or non-str
    topic, a negative partition or timestamp and malformed headers (Kafka's ``ProducerRecord``).
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
