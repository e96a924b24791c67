"""Statistics of a task's sends: the difference between its producer's ``metrics()`` before and after.

Kafka's metrics do not count batches, and their averages and maxima cover the last minute only: see ``Totals``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from weakref import WeakSet

from aioproducer.metrics import MetricsSnapshot, ProducerMetrics
from aioproducer.producer import Producer


@dataclass(frozen=True, slots=True)
class SendStatistics:
    """Statistics of a producer between two moments.

    Tasks that share a producer at the same time share its statistics.

    rows
        Records of the batches that were sent, without retries.
    acked
        Records that were acknowledged.
    bytes
        Bytes of record batches sent, after compression, including retries.
    batches
        Batches sent, without retries.
    retries
        Records sent again.
    latency_avg_ms, latency_max_ms
        From a batch's first record to its acknowledgement; 0 if no batch was acknowledged.
    """

    rows: int = 0
    acked: int = 0
    bytes: int = 0
    batches: int = 0
    retries: int = 0
    latency_avg_ms: float = 0.0
    latency_max_ms: float = 0.0


class Reading:
    """A producer's totals at one moment, and the largest latency since then until the latest reading."""

    __slots__ = (
        "__weakref__",
        "acked",
        "acked_batches",
        "batches",
        "bytes",
        "latency_max_ms",
        "latency_sum_ms",
        "retries",
        "rows",
    )

    def __init__(self, metrics: ProducerMetrics) -> None:
        totals = metrics.totals
        self.rows = totals.records
        self.acked = totals.acked_records
        self.bytes = int(metrics.batch_size.total)
        self.batches = totals.batches
        self.retries = int(metrics.record_retry.total)
        self.acked_batches = totals.acked_batches
        self.latency_sum_ms = totals.latency_sum_ms
        self.latency_max_ms = 0.0


class MeteredSnapshot(MetricsSnapshot):
    """The metrics at one moment, and the reading for ``send_statistics``."""

    def __init__(self, snapshot: MetricsSnapshot, reading: Reading) -> None:
        super().__init__(snapshot, snapshot.topics, snapshot.nodes)
        self.reading = reading


class MeteredProducer(Producer):
    """A producer with ``metrics()`` for ``send_statistics``."""

    # Readings that are still in use: each receives the largest latency since it was taken.
    _readings: WeakSet[Reading]

    @classmethod
    def metered(cls, config: Mapping[str, object]) -> Self:
        """Create a producer, as ``from_config``."""
        producer = cls.from_config(config)
        producer._readings = WeakSet()
        return producer

    def metrics(self) -> MeteredSnapshot:
        snapshot = super().metrics()
        metrics = self._running_parts().metrics
        for earlier in self._readings:
            earlier.latency_max_ms = max(earlier.latency_max_ms, metrics.totals.latency_max_ms)
        metrics.totals.latency_max_ms = 0.0
        reading = Reading(metrics)
        self._readings.add(reading)
        return MeteredSnapshot(snapshot, reading)


def send_statistics(before: MetricsSnapshot, after: MetricsSnapshot) -> SendStatistics:
    """Return the statistics between two results of ``metrics()`` of one producer of the executor.

    The largest latency is that since ``before``.

    Raises:
        TypeError: the metrics are of another producer, which does not count batches.
    """
    if not isinstance(before, MeteredSnapshot) or not isinstance(after, MeteredSnapshot):
        raise TypeError(
            "statistics need metrics() of a producer that Executor.producer() returned: others do not count batches"
        )
    return _difference(before.reading, after.reading)


def _difference(before: Reading, after: Reading) -> SendStatistics:
    batches = after.acked_batches - before.acked_batches
    return SendStatistics(
        rows=after.rows - before.rows,
        acked=after.acked - before.acked,
        bytes=after.bytes - before.bytes,
        batches=after.batches - before.batches,
        retries=after.retries - before.retries,
        latency_avg_ms=(after.latency_sum_ms - before.latency_sum_ms) / batches if batches else 0.0,
        latency_max_ms=before.latency_max_ms,
    )
