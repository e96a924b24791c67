"""What a task has sent, in figures: by the difference of what its producer's ``metrics()`` said before and after.

Kafka's metrics count no batches, and their averages and maxima are those of the last minute: see ``Totals``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from weakref import WeakSet

from aioproducer.metrics import Metrics, MetricsSnapshot
from aioproducer.producer import Producer


@dataclass(frozen=True, slots=True)
class Figures:
    """What a producer sent between two moments.

    They are the whole producer's: tasks that have one in common at the same time have them in common.

    rows
        Records of the batches that were sent, each once however often it was sent again.
    acked
        Records that were acknowledged.
    bytes
        Bytes of record batches sent, compressed as they were, those sent again included.
    batches
        Batches sent, each once.
    retries
        Records sent again.
    latency_avg_ms, latency_max_ms
        From a batch's first record until the batch was acknowledged; 0 where none was.
    """

    rows: int = 0
    acked: int = 0
    bytes: int = 0
    batches: int = 0
    retries: int = 0
    latency_avg_ms: float = 0.0
    latency_max_ms: float = 0.0


class Reading:
    """A producer's totals at one moment, and the largest latency between then and the last reading of all."""

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

    def __init__(self, metrics: Metrics) -> None:
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
    """The metrics at one moment, with the reading that ``figures`` compares."""

    def __init__(self, snapshot: MetricsSnapshot, reading: Reading) -> None:
        super().__init__(snapshot, snapshot.topics, snapshot.nodes)
        self.reading = reading


class MeteredProducer(Producer):
    """A producer whose ``metrics()`` can be compared by ``figures``."""

    # Those of which somebody still wants to know the largest latency since.
    _readings: WeakSet[Reading]

    @classmethod
    def metered(cls, config: Mapping[str, object]) -> Self:
        """As ``from_config``."""
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


def figures(before: MetricsSnapshot, after: MetricsSnapshot) -> Figures:
    """What was sent between two ``metrics()`` of one producer of the executor's.

    The largest latency is that of the time between ``before`` and this call.

    Raises:
        TypeError: they are of another producer, which does not count what is needed here.
    """
    if not isinstance(before, MeteredSnapshot) or not isinstance(after, MeteredSnapshot):
        raise TypeError("figures are of a producer that Executor.producer() gave: another does not count its batches")
    return _difference(before.reading, after.reading)


def _difference(before: Reading, after: Reading) -> Figures:
    batches = after.acked_batches - before.acked_batches
    return Figures(
        rows=after.rows - before.rows,
        acked=after.acked - before.acked,
        bytes=after.bytes - before.bytes,
        batches=after.batches - before.batches,
        retries=after.retries - before.retries,
        latency_avg_ms=(after.latency_sum_ms - before.latency_sum_ms) / batches if batches else 0.0,
        latency_max_ms=before.latency_max_ms,
    )
