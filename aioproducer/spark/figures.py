"""What a task has sent, in figures: by the difference of what its producer's ``metrics()`` said before and after.

Kafka's metrics count no batches, and their averages and maxima are those of the last minute. So the executor's
producers count for themselves as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from weakref import WeakSet

from aioproducer.metrics import MetricsSnapshot
from aioproducer.producer import Producer
from aioproducer.record import TopicPartition


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

    def __init__(self) -> None:
        self.rows = 0
        self.acked = 0
        self.bytes = 0
        self.batches = 0
        self.retries = 0
        self.acked_batches = 0
        self.latency_sum_ms = 0.0
        self.latency_max_ms = 0.0


class Meter:
    """Counts what a producer does, as a hook of it: ``Producer(hooks=[meter])``."""

    def __init__(self) -> None:
        # Its largest latency is that since the last reading.
        self._totals = Reading()
        self._readings: WeakSet[Reading] = WeakSet()

    def read(self) -> Reading:
        """The totals now. To be called on the producer's loop."""
        totals = self._totals
        for earlier in self._readings:
            earlier.latency_max_ms = max(earlier.latency_max_ms, totals.latency_max_ms)
        totals.latency_max_ms = 0.0
        reading = Reading()
        for name in ("rows", "acked", "bytes", "batches", "retries", "acked_batches", "latency_sum_ms"):
            setattr(reading, name, getattr(totals, name))
        self._readings.add(reading)
        return reading

    def on_batch_sent(
        self,
        topic_partition: TopicPartition,
        record_count: int,
        size: int,
        uncompressed_size: int,
        queue_time_ms: float,
        attempt: int,
    ) -> None:
        totals = self._totals
        totals.bytes += size
        if attempt == 1:
            totals.batches += 1
            totals.rows += record_count

    def on_batch_retried(
        self, topic_partition: TopicPartition, record_count: int, attempt: int, error: BaseException
    ) -> None:
        self._totals.retries += record_count

    def on_batch_acked(
        self, topic_partition: TopicPartition, record_count: int, base_offset: int | None, latency_ms: float
    ) -> None:
        totals = self._totals
        totals.acked += record_count
        totals.acked_batches += 1
        totals.latency_sum_ms += latency_ms
        if latency_ms > totals.latency_max_ms:
            totals.latency_max_ms = latency_ms


class MeteredSnapshot(MetricsSnapshot):
    """The metrics at one moment, with the reading that ``figures`` compares."""

    def __init__(self, snapshot: MetricsSnapshot, reading: Reading) -> None:
        super().__init__(snapshot, snapshot.topics, snapshot.nodes)
        self.reading = reading


class MeteredProducer(Producer):
    """A producer whose ``metrics()`` can be compared by ``figures``."""

    _meter: Meter

    @classmethod
    def metered(cls, config: Mapping[str, object]) -> Self:
        """As ``from_config``."""
        meter = Meter()
        producer = cls.from_config(config, hooks=[meter])
        producer._meter = meter
        return producer

    def metrics(self) -> MeteredSnapshot:
        return MeteredSnapshot(super().metrics(), self._meter.read())


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
