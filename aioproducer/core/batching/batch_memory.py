"""How much memory a batch is given, and when it is better to wait for more."""

from __future__ import annotations

from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.batching.buffer_pool import BufferPool, Slab

# The part of the memory that open batches may take before there is anything in them, as its reciprocal.
_OPEN_SHARE = 4

# With less memory than this left, and batches under way, records wait.
_LEAST_OF_THE_REST = 65536

# Batches up to this size take a piece of memory of just their size.
_EXACT_PIECE = 16384


def _near_power_of_two(size: int) -> int:
    """The next one up where that is at most an eighth more than is needed, or the one below."""
    up = 1
    while up < size:
        up <<= 1
    return up if up - size <= up >> 3 else up >> 1


class BatchMemory:
    """Takes slabs for batches out of the pool.

    Args:
        batch_size: bytes of a batch as it is sent.
        compresses: batches have limits of their own, by how well the last ones were compressed.
    """

    def __init__(self, pool: BufferPool, *, batch_size: int, compresses: bool) -> None:
        self._pool = pool
        self._batch_size = batch_size
        self._compresses = compresses
        self._open_limit = pool.total_memory // _OPEN_SHARE

    def first(
        self, record_size: int, last_batch_size: int, size_limit: int, open_batches: int, under_way: int
    ) -> Slab | None:
        """A slab for a new batch of at most ``size_limit`` bytes, whose first record has ``record_size``.

        ``last_batch_size`` is what the partition's last one took, ``open_batches`` how many there are already, and
        ``under_way`` how many batches will give theirs back. ``None`` where that is to be waited for.
        """
        preferred = record_size
        if open_batches * self._batch_size <= self._open_limit:
            # As much as the partition's last batch took: one piece to take, to checksum and to send. Where so many
            # batches are open that most of the memory would be room in them, they grow from small.
            preferred = max(record_size, self._piece_for(last_batch_size, size_limit))
        return self._take(record_size, preferred, under_way)

    def next(self, batch: ProducerBatch, record_size: int, under_way: int) -> Slab | None:
        """Another slab for a batch that has no room for a record of this size; otherwise as ``first``."""
        return self._take(record_size, _near_power_of_two(batch.next_slab_size(record_size)), under_way)

    def _take(self, least: int, wanted: int, under_way: int) -> Slab | None:
        """``BufferPool.take``, or ``None`` though there is some: batches made of crumbs cost more than to wait.

        What waits has the open batches sent at once, and where none is on its way nothing is waited for.
        """
        if under_way > 0 and self._pool.available_memory < min(wanted, _LEAST_OF_THE_REST):
            return None
        return self._pool.take(least, wanted)

    def _piece_for(self, expected: int, limit: int) -> int:
        """How large a piece of memory to take for a batch of ``expected`` bytes, ``limit`` being the most.

        With pieces of just what is expected, which differs from batch to batch, a full buffer would soon be nothing but
        gaps that no other size fits. Of small batches there are as many sizes as kibibytes, and of those that are more
        than half full eight: none wastes much, and most take one and the same. Others take powers of two, which fit
        where others were; so do batches that are compressed, whose limits differ too.
        """
        expected = min(expected, limit)
        if not self._compresses:
            if expected <= _EXACT_PIECE:
                return expected
            if expected > limit >> 1:
                step = limit >> 4
                return limit - (limit - expected) // step * step
        return _near_power_of_two(expected)
