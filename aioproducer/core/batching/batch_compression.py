"""Compression of closed batches, and the compression ratios of each topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aioproducer.core.batching.batch import CLOSED, COMPRESSING

if TYPE_CHECKING:
    from aioproducer.compression import Codec
    from aioproducer.core.batching.batch import ProducerBatch
    from aioproducer.core.batching.buffer_pool import BufferPool

# The margin that Kafka adds to the estimated compressed size (COMPRESSION_RATE_ESTIMATION_FACTOR).
RATIO_SAFETY = 1.05

# Batches of at most this many bytes are compressed at once by a quick codec; a thread takes longer to wake.
INLINE_SIZE = 4096

IMPROVING_STEP = 0.005
DETERIORATING_STEP = 0.05


class CompressionRatios:
    """The estimated ratio of compressed to uncompressed size, for each topic (Kafka's ``CompressionRatioEstimator``).

    An estimate rises at once to a worse ratio and falls slowly to a better one: a batch that is too large costs a round
    trip.
    """

    __slots__ = ("_estimates",)

    def __init__(self) -> None:
        self._estimates: dict[str, float] = {}

    def estimate(self, topic: str) -> float:
        """Return the estimated ratio; 1 for an unknown topic."""
        return self._estimates.get(topic, 1.0)

    def observe(self, topic: str, ratio: float) -> None:
        """Adjust the estimate: a batch of the topic was compressed to ``ratio`` of its size."""
        estimate = self.estimate(topic)
        if ratio > estimate:
            self._estimates[topic] = max(estimate + DETERIORATING_STEP, ratio)
        else:
            self._estimates[topic] = max(estimate - IMPROVING_STEP, ratio)

    def reset(self, topic: str, ratio: float) -> None:
        """Expect no gain by compression, or a worse ``ratio``: a batch was too large for the broker."""
        self._estimates[topic] = max(1.0, ratio)

    def forget(self, topic: str) -> None:
        """Drop the estimate of a topic."""
        self._estimates.pop(topic, None)


class BatchCompression:
    """The closed batches that wait for a compressor.

    Args:
        level: the codec's level; ``None`` for its default.
        wake: called when a batch waits, or has been compressed.
    """

    def __init__(self, codec: Codec, level: int | None, pool: BufferPool, wake: Callable[[], None]) -> None:
        self.codec = codec
        self.level = level
        self.ratios = CompressionRatios()
        self.waiting: dict[ProducerBatch, None] = {}
        """Batches to be compressed in a thread."""
        self._inline_size = INLINE_SIZE if codec.is_quick(level) else 0
        self._pool = pool
        self._wake = wake

    def uncompressed_limit(self, topic: str, size_limit: int, largest: int) -> int:
        """Return the uncompressed bytes that probably compress to ``size_limit``, at most ``largest``."""
        return min(int(size_limit / (self.ratios.estimate(topic) * RATIO_SAFETY)), largest)

    def enqueue(self, batch: ProducerBatch) -> None:
        """Add the closed batch to ``waiting``, unless it is there already."""
        if batch.state == CLOSED:
            batch.set_state(COMPRESSING)
            batch.readers += 1
            self.waiting[batch] = None
            self._wake()

    def take_waiting(self) -> list[ProducerBatch]:
        """Return the waiting batches; the caller compresses them and calls ``RecordAccumulator.compressed``."""
        waiting, self.waiting = self.waiting, {}
        return list(waiting)

    def discard(self, batch: ProducerBatch) -> None:
        """Remove a batch that is about to fail."""
        if batch in self.waiting:
            del self.waiting[batch]
            self.end(batch)

    def end(self, batch: ProducerBatch) -> None:
        """Close the batch again: the compressor no longer reads it."""
        if batch.state == COMPRESSING:
            batch.set_state(CLOSED)
        batch.readers -= 1

    def compress_inline(self, batch: ProducerBatch) -> bool:
        """Compress the batch now if that is quick; return whether it is compressed."""
        if batch.body_size > self._inline_size:
            return False
        assert batch.body is not None
        try:
            data = self.codec.compress(batch.body, self.level)
        except Exception:
            # A thread will raise the same error, and then the batch fails with it. Drained batches are sent first.
            return False
        self.set_compressed(batch, data)
        return True

    def set_compressed(self, batch: ProducerBatch, data: bytes) -> None:
        """Replace the batch's body by ``data``, and observe the ratio."""
        batch.set_compressed(self.codec.id, data, self._pool)
        self.ratios.observe(batch.topic_partition.topic, batch.size() / batch.uncompressed_size())
        self._wake()
