"""Compiled. The size of a batch's slabs, and when a record should wait for more memory instead."""

from __future__ import annotations

from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.batching.buffer_pool import BufferPool, Slab

# Open batches preallocate at most one part in this many of the memory.
_OPEN_SHARE = 4

# With fewer bytes left than this, and batches in progress, records wait.
_MIN_AVAILABLE = 65536

# Batches up to this size take a slab of exactly their size.
_MAX_EXACT_SLAB = 16384


def _near_power_of_two(size: int) -> int:
    """Return the next larger power of two if at most an eighth of it is surplus, else the next smaller one."""
    up = 1
    while up < size:
        up <<= 1
    return up if up - size <= up >> 3 else up >> 1


class BatchMemory:
    """Allocates slabs for batches from the pool.

    Args:
        batch_size: bytes of a batch on the wire.
        compresses: each batch has another limit, which depends on the compression ratio of earlier ones.
    """

    def __init__(self, pool: BufferPool, *, batch_size: int, compresses: bool) -> None:
        self._pool = pool
        self._batch_size = batch_size
        self._compresses = compresses
        self._open_limit = pool.total_memory // _OPEN_SHARE

    def first(
        self, record_size: int, last_batch_size: int, size_limit: int, open_batches: int, in_progress: int
    ) -> Slab | None:
        """Return a slab for a new batch of at most ``size_limit`` bytes, or ``None`` if its first record has to wait.

        Args:
            record_size: bytes of the first record.
            last_batch_size: bytes of the partition's last batch.
            open_batches: the number of open batches.
            in_progress: the number of closed batches, which will return their memory.
        """
        preferred = record_size
        if open_batches * self._batch_size <= self._open_limit:
            # As much as the partition's last batch took: one slab to allocate, to checksum and to send. Batches start
            # small if there are many open ones: otherwise most of the memory would be unused room in them.
            preferred = max(record_size, self._slab_size(last_batch_size, size_limit))
        return self._take(record_size, preferred, in_progress)

    def next(self, batch: ProducerBatch, record_size: int, in_progress: int) -> Slab | None:
        """Return another slab for a batch without room for a record of this size, or ``None`` as ``first`` does."""
        return self._take(record_size, _near_power_of_two(batch.next_slab_size(record_size)), in_progress)

    def _take(self, minimum: int, preferred: int, in_progress: int) -> Slab | None:
        """Call ``BufferPool.take``; return ``None`` if little memory is left, as small slabs cost more than waiting.

        While a record waits, open batches are sent at once. If no batch is in progress, no record waits.
        """
        if in_progress > 0 and self._pool.available_memory < min(preferred, _MIN_AVAILABLE):
            return None
        return self._pool.take(minimum, preferred)

    def _slab_size(self, expected: int, limit: int) -> int:
        """Return the size of the slab for a batch of ``expected`` bytes and at most ``limit``.

        Expected sizes differ from batch to batch. With slabs of exactly those sizes, a full buffer would soon consist
        of gaps that no other size fits. Therefore slabs have few sizes: one per kibibyte for small batches, and eight
        for batches that are more than half full. None wastes much, and most batches take the same size. Other batches
        take powers of two, which fit where others were. So do compressed batches, as their limits differ too.
        """
        expected = min(expected, limit)
        if not self._compresses:
            if expected <= _MAX_EXACT_SLAB:
                return expected
            if expected > limit >> 1:
                step = limit >> 4
                return limit - (limit - expected) // step * step
        return _near_power_of_two(expected)
