"""The batches that have no outcome yet: what becomes of each after it was filled, and who waits for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from aioproducer.core.batch import PENDING, ProducerBatch
from aioproducer.core.buffer_pool import BufferPool
from aioproducer.core.compression_ratio import CompressionRatios
from aioproducer.core.delivery import FutureFactory
from aioproducer.core.lines import Lines
from aioproducer.core.partition_queue import PartitionQueue
from aioproducer.core.pending import PendingRecord
from aioproducer.core.producer_state import ProducerState
from aioproducer.core.ready import BatchFinisher, ReadyPartitions
from aioproducer.core.split import parts
from aioproducer.core.watches import Watches

if TYPE_CHECKING:
    from asyncio import Future
    from collections import OrderedDict
    from random import Random

    from aioproducer.core.accumulator import AccumulatorSettings


# The part of the memory that has to be free before those go on who waited for it, as its reciprocal.
AMPLE_SHARE = 8


class BatchList:
    """Batches in the order in which they came; who goes is found at once, and the oldest too.

    Linked in the batches themselves: a batch is in one list at most.
    """

    __slots__ = ("count", "newest", "oldest")

    def __init__(self) -> None:
        self.oldest: ProducerBatch | None = None
        self.newest: ProducerBatch | None = None
        self.count = 0

    def add(self, batch: ProducerBatch) -> None:
        """Put the batch behind all others."""
        newest = self.newest
        if newest is None:
            self.oldest = batch
        else:
            newest.newer = batch
            batch.older = newest
        self.newest = batch
        self.count += 1

    def discard(self, batch: ProducerBatch) -> None:
        """Take the batch out, if it is there."""
        older, newer = batch.older, batch.newer
        if older is not None:
            older.newer = newer
        elif self.oldest is batch:
            self.oldest = newer
        else:
            return
        if newer is not None:
            newer.older = older
        else:
            self.newest = older
        batch.older = batch.newer = None
        self.count -= 1

    def __iter__(self) -> Iterator[ProducerBatch]:
        batch = self.oldest
        while batch is not None:
            yield batch
            batch = batch.newer


class IncompleteBatches(BatchFinisher):
    """The half of the accumulator behind the open batches: compression, outcomes, deadlines, watches.

    The other half, ``RecordAccumulator``, fills batches and drains them.
    """

    # Records that have no batch yet: their lines, who stands in that for memory, and who in any.
    lines: Lines
    _memory_line: OrderedDict[PendingRecord, None]
    _waiting: OrderedDict[PendingRecord, None]

    def __init__(
        self,
        loop: FutureFactory,
        pool: BufferPool,
        producer_state: ProducerState,
        settings: AccumulatorSettings,
        *,
        wake: Callable[[], None],
        random: Random,
    ) -> None:
        self.loop = loop
        self.pool = pool
        self.producer_state = producer_state
        self.settings = settings
        self.wake = wake
        self.random = random
        self.ready = ReadyPartitions(producer_state, settings.linger, wake)
        # Every batch without its outcome, oldest first; a split batch keeps its place until its last part is done.
        self.incomplete = BatchList()
        # Closed batches that wait for a compressor.
        self.to_compress: dict[ProducerBatch, None] = {}
        self.flushing = 0
        self.closing = False
        self._batch_number = 0
        # Batches that still take records.
        self._open_batches = 0
        self._ratios = CompressionRatios()
        self._watches = Watches(
            loop,
            first_batch=self._first_batch_number,
            first_in_line=self._first_in_line,
            has_room=self._has_ample_room,
        )

    # Compression

    def _begin_compression(self, batch: ProducerBatch) -> None:
        if not batch.compressing:
            batch.compressing = True
            batch.readers += 1
            self.to_compress[batch] = None
            self.wake()

    def take_to_compress(self) -> list[ProducerBatch]:
        """Closed batches to be compressed (``compress(batch.body)``) in a thread; answer each by ``compressed``."""
        batches, self.to_compress = self.to_compress, {}
        return list(batches)

    def compressed(self, batch: ProducerBatch, data: bytes | None, now: float) -> None:
        """The compressor is done with the batch, and ``data`` is what it made; ``None`` where the batch is given up."""
        batch.compressing = False
        batch.readers -= 1
        if batch.outcome != PENDING:
            self.release(batch)
        elif data is not None:
            self._set_compressed(batch, data)
            if batch.queue is not None:
                self.ready.update(batch.queue, now)

    def _set_compressed(self, batch: ProducerBatch, data: bytes) -> None:
        codec = self.settings.codec
        assert codec is not None
        batch.set_compressed(codec.id, data, self.pool)
        self._ratios.observe(batch.topic_partition.topic, batch.size() / batch.uncompressed_size())
        self._watches.check()
        self.wake()

    # Outcomes

    def request_ended(self, batch: ProducerBatch) -> None:
        """The request that carried the batch got its answer, or its connection has ended: the partition may go on."""
        assert batch.queue is not None
        batch.on_wire = False
        batch.queue.on_wire -= 1
        batch.queue.muted = False

    def completed(self, batch: ProducerBatch, now: float) -> None:
        """The batch has its outcome: let go of it, and let its partition go on."""
        queue = batch.queue
        assert queue is not None
        self._forget(batch)
        self.release(batch)
        if not batch.on_wire:
            batch.queue = None
        self.ready.settle(queue, now)

    def release(self, batch: ProducerBatch) -> None:
        """Give the memory of a finished batch back, unless a transport or a compressor still reads it."""
        if batch.outcome != PENDING and batch.readers == 0:
            batch.release_memory(self.pool)
            self._watches.check()
            if self._memory_line:
                self.wake()

    def reenqueue(self, batch: ProducerBatch, now: float, *, backoff: bool = True) -> None:
        """Put a batch back to be sent again, in its place: sequences in order, before all without one."""
        queue = batch.queue
        assert queue is not None
        if backoff:
            self.ready.back_off(queue, now + self.settings.retry_backoff.delay(max(batch.attempts - 1, 0), self.random))
        _insert(queue, [batch])
        self.ready.settle(queue, now)
        self.wake()

    def split(self, batch: ProducerBatch, children: list[ProducerBatch], now: float) -> None:
        """Send ``children`` in the place of a batch that was too large."""
        queue = batch.queue
        assert queue is not None
        if self.settings.codec is not None:
            self._ratios.reset(batch.topic_partition.topic, batch.size() / batch.uncompressed_size())
        for child in children:
            self.pool.charge(child.charged_size)
        self.producer_state.split(batch, children, queue.sequences)
        batch.split_into(children)
        _insert(queue, children)
        batch.queue = None
        self.release(batch)
        self.ready.settle(queue, now)
        self.wake()

    def expired(self, now: float, most: int | None = None) -> list[ProducerBatch]:
        """The batches whose ``delivery_timeout`` has passed, oldest first; the caller fails them.

        Of more than ``most``, as they were made, the first ones.
        """
        timeout = self.settings.delivery_timeout
        over = takewhile(lambda batch: batch.created_at + timeout <= now, self.incomplete)
        return [part for batch in islice(over, most) for part in _unfinished_parts(batch)]

    def withdraw(self, batch: ProducerBatch, now: float) -> None:
        """Take a batch that is about to be failed out of its queue."""
        queue = batch.queue
        assert queue is not None
        if not batch.closed:
            batch.close()
        if queue.open_batch is batch:
            queue.open_batch = None
            self._open_batches -= 1
        self.ready.closed(batch)
        if batch in self.to_compress:
            del self.to_compress[batch]
            batch.compressing = False
            batch.readers -= 1
        if not batch.on_wire:
            queue.remove(batch)

    def all_incomplete(self, most: int | None = None) -> list[ProducerBatch]:
        """Every batch without its outcome, the parts of split ones in their place.

        Of more than ``most``, as they were made, the first ones.
        """
        return [part for batch in islice(self.incomplete, most) for part in _unfinished_parts(batch)]

    def has_undelivered(self) -> bool:
        """Whether a record was accepted that has no outcome yet."""
        return bool(self.incomplete.count or self._waiting)

    def _forget(self, batch: ProducerBatch) -> None:
        part: ProducerBatch | None = batch
        while part is not None and part.is_finished():
            parent = part.parent
            if parent is None:
                self.incomplete.discard(part)
            else:
                parent.undone_children -= 1
                part.parent = None
            part = parent
        self._watches.check()

    # Those who wait for many

    def watch_batches(self) -> Future[None]:
        """A future that is done when every batch made so far has its outcome."""
        return self._watches.batches(self._batch_number)

    def watch_line(self) -> Future[None]:
        """A future that is done when every record that waits in line now has left it, for its batch or failed."""
        return self._watches.line(self.lines.waiting.last_number)

    def watch_room(self) -> Future[None]:
        """A future that is done when there is room again, and not just for the next few records."""
        return self._watches.room()

    def has_room(self) -> bool:
        """Whether a well-behaved sender should go on: no one waits for memory, nor do the lines fill up."""
        if self._memory_line or self.pool.available_memory <= 0:
            return False
        return self.lines.waiting.size * 2 <= self.lines.waiting.size_limit

    def _has_ample_room(self) -> bool:
        """Whether to let those go on who waited for room.

        With each kibibyte that comes free they would fill it and wait again, and records go the long way in: they wait
        for a part of the memory, or for all that there will be.
        """
        if not self.has_room():
            return False
        return self.pool.available_memory * AMPLE_SHARE >= self.pool.total_memory or not self.incomplete.count

    def _first_in_line(self) -> int:
        return self.lines.waiting.first_number()

    def _first_batch_number(self) -> int:
        oldest = self.incomplete.oldest
        return self._batch_number + 1 if oldest is None else oldest.number

    def check_watches(self) -> None:
        """End the watches whose time has come."""
        self._watches.check()


def _unfinished_parts(batch: ProducerBatch) -> list[ProducerBatch]:
    return [part for _, part in parts(batch) if part.outcome == PENDING]


def _insert(queue: PartitionQueue, batches: list[ProducerBatch]) -> None:
    """Put batches back in front, in the order of their sequences; without any, in the order they were made."""
    in_flight = queue.sequences.in_flight
    places = {id(each): place for place, each in enumerate(in_flight)}

    def place(each: ProducerBatch) -> tuple[int, tuple[int, ...]]:
        return places.get(id(each), len(in_flight)), each.order

    waiting = queue.own_batches()
    for batch in sorted(batches, key=place, reverse=True):
        # A few: of those that wait only what was sent before comes before it.
        before = []
        while waiting and place(waiting[0]) < place(batch):
            before.append(waiting.popleft())
        waiting.appendleft(batch)
        waiting.extendleft(reversed(before))
