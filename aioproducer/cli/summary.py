"""The summary of a run: outcomes of records, counted by the producer's hooks for each batch."""

from __future__ import annotations

import math
from collections import Counter

from aioproducer.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    RecordTooLargeError,
)
from aioproducer.record import TopicPartition

# Latencies are rounded to 1 %.
_GROWTH = math.log(1.02)
# A batch with this many failed attempts causes a message.
_ATTEMPTS_WORTH_A_MESSAGE = 3

OF_THE_RECORD = (RecordTooLargeError, InvalidRecordError, InvalidTimestampError)
"""Errors of a single record, which do not affect the next one."""


class Latencies:
    """A histogram of milliseconds, with buckets that are 2 % wide."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.maximum = 0.0
        self._sum = 0.0

    def add(self, milliseconds: float, count: int = 1) -> None:
        """Add ``count`` records with this latency."""
        self._buckets[math.floor(math.log(max(milliseconds, 1e-3)) / _GROWTH)] += count
        self.count += count
        self._sum += milliseconds * count
        self.maximum = max(self.maximum, milliseconds)

    def percentile(self, percent: float) -> float | None:
        """Return the percentile, within 1 %; None without any latency."""
        wanted = math.ceil(self.count * percent / 100)
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= max(wanted, 1):
                return min(math.exp((bucket + 0.5) * _GROWTH), self.maximum)
        return None

    @property
    def mean(self) -> float | None:
        return self._sum / self.count if self.count else None


class Summary:
    """The counts of a run; its ``on_...`` methods are the producer's hooks, ``on_error`` its callback."""

    def __init__(self) -> None:
        self.accepted = 0
        """Records that ``send`` accepted."""
        self.accepted_bytes = 0
        """Size of their keys and values."""
        self.acked = 0
        self.failed = 0
        self.errors: Counter[str] = Counter()
        """Numbers of failed records by the name of their error."""
        self.first_error: KafkaError | None = None
        self.grave_error: KafkaError | None = None
        """The first error that is likely to affect all further records too."""
        self.batches = 0
        self.retries = 0
        """Records sent again."""
        self.sent_bytes = 0
        """Size of the batches as sent, including retries."""
        self.latencies = Latencies()
        """Times from the first record of a batch to its acknowledgement."""
        self.messages: list[str] = []
        """Messages for the user; the code that prints one removes it."""
        self._reported: set[type[BaseException]] = set()

    def on_batch_sent(
        self,
        topic_partition: TopicPartition,
        record_count: int,
        size: int,
        uncompressed_size: int,
        queue_time_ms: float,
        attempt: int,
    ) -> None:
        self.sent_bytes += size

    def on_batch_acked(
        self, topic_partition: TopicPartition, record_count: int, base_offset: int | None, latency_ms: float
    ) -> None:
        self.batches += 1
        self.acked += record_count
        self.latencies.add(latency_ms, record_count)

    def on_batch_retried(
        self, topic_partition: TopicPartition, record_count: int, attempt: int, error: BaseException
    ) -> None:
        self.retries += record_count
        if attempt >= _ATTEMPTS_WORTH_A_MESSAGE and type(error) not in self._reported:
            self._reported.add(type(error))
            self.messages.append(f"retrying a batch of {topic_partition} after {attempt} failed attempts: {error}")

    def on_error(self, topic_partition: TopicPartition, count: int, error: KafkaError) -> None:
        self.failed += count
        self.errors[type(error).__name__] += count
        if self.first_error is None:
            self.first_error = error
        if self.grave_error is None and not isinstance(error, OF_THE_RECORD):
            self.grave_error = error

    def as_json(self, seconds: float) -> dict[str, object]:
        """Return the summary for JSON output; rates are of acknowledged records."""
        return {
            "records": self.accepted,
            "acknowledged": self.acked,
            "failed": self.failed,
            "bytes": self.accepted_bytes,
            "batches": self.batches,
            "batch_bytes_sent": self.sent_bytes,
            "records_retried": self.retries,
            "errors": dict(self.errors),
            "seconds": round(seconds, 3),
            "records_per_second": round(self.acked / seconds) if seconds > 0 else None,
            "latency_ms": {
                "p50": rounded(self.latencies.percentile(50)),
                "p99": rounded(self.latencies.percentile(99)),
                "max": rounded(self.latencies.maximum if self.latencies.count else None),
            },
        }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
