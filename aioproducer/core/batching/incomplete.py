"""Batches without an outcome: what becomes of each after it was filled, and the futures that wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from aioproducer.core.batching.batch import PENDING, ProducerBatch
from aioproducer.core.batching.buffer_pool import BufferPool
from aioproducer.core.batching.compression_ratio import CompressionRatios
from aioproducer.core.batching.partition_queue import PartitionQueue
from aioproducer.core.batching.producer_state import ProducerState
from aioproducer.core.batching.ready import BatchFinisher, ReadyPartitions
from aioproducer.core.batching.split import parts
from aioproducer.core.outcomes.delivery import FutureFactory
from aioproducer.core.waiting.blocked_records import Lines
from aioproducer.core.waiting.pending import PendingRecord
from aioproducer.core.waiting.waiters import DrainWaiter, Watches

if TYPE_CHECKING:
    from asyncio import Future
    from collections import OrderedDict
    from random import Random

    from aioproducer.core.batching.accumulator import AccumulatorSettings


# Hysteresis: ``drain`` resumes only when 1/8 of the memory is free, or its callers would block again at once.
AMPLE_SHARE = 8


class BatchList:
    """Batches in the order of creation; removing one and finding the oldest take constant time.

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

    # Records without a batch: their lines, those in the line for memory, and those in any line.
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
        # First come, first served: the numbers of each are no lower than those of the one before.
        self._drains: deque[DrainWaiter] = deque()
        self._watches = Watches(
            loop,
            first_batch=self._first_batch_number,
            first_in_line=self._first_in_line,
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
            if self._memory_line or self._drains:
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

    # Waiting for many records

    def watch_batches(self) -> Future[None]:
        """A future that is done when every batch made so far has its outcome."""
        return self._watches.batches(self._batch_number)

    def watch_line(self) -> Future[None]:
        """A future that is done when every record that waits in line now has left it, for its batch or failed."""
        return self._watches.line(self.lines.waiting.last_number)

    def watch_room(self) -> Future[None]:
        """A future that is done when a ``drain`` that comes now may go on; see ``_may_go_on``."""
        future: Future[None] = self.loop.create_future()
        lines = self.lines
        last_in_line = lines.waiting.last_number
        behind_records = bool(self._memory_line)
        while self._drains and self._drains[-1].future.done():
            # Cancelled: they would pile up behind one that waits.
            self._drains.pop()
        self._drains.append(
            DrainWaiter(future, lines.last_memory_number, last_in_line, self._batch_number, behind_records)
        )
        self.wake()
        return future

    def recharge(self, pending: PendingRecord) -> None:
        """The bytes of a record in line are known now: charge those instead of the estimate."""
        self.lines.waiting.recharge(pending)
        if self._drains:
            self.wake()

    def has_room(self) -> bool:
        """Whether a well-behaved sender should go on: no one waits for memory, nor do the lines fill up."""
        if self._memory_line or self.pool.available_memory <= 0 or not self._lines_have_room():
            return False
        return not self._drains or self._has_ample_memory()

    def _lines_have_room(self) -> bool:
        return self.lines.waiting.size * 2 <= self.lines.waiting.size_limit

    def _has_ample_memory(self) -> bool:
        """Whether a useful part of the memory is free, or all that there will be.

        Otherwise the waiting callers would fill each kibibyte that comes free and wait again, and records take the
        slow path.
        """
        return self.pool.available_memory * AMPLE_SHARE >= self.pool.total_memory or not self.incomplete.count

    def _may_go_on(self, waiter: DrainWaiter) -> bool:
        """Whether a ``drain`` has waited long enough.

        All records before it in the line for memory have their memory or have failed. The lines are less than half
        full; or all records that stood in them have left, and the largest record has room there.

        One that had no record before it waits for ample memory besides, at most until a record joins the line behind
        it or all batches made before have ended. Otherwise coroutines that await their sends could take all memory
        that comes free, for ever.
        """
        lines = self.lines
        waiting = lines.waiting
        if lines.first_memory_number() <= waiter.memory_number:
            return False
        if not self._lines_have_room():
            has_room = waiting.size + self.settings.max_request_size <= waiting.size_limit
            if not has_room or waiting.first_number() <= waiter.line_number:
                return False
        return (
            waiter.behind_records
            or self._has_ample_memory()
            or lines.last_memory_number > waiter.memory_number
            or self._first_batch_number() > waiter.batch_number
        )

    def end_drains(self, most: int) -> bool:
        """Let each ``drain`` go on that has waited long enough; return whether there are more than ``most``.

        And no more than may each send a large record and not fill the lines: how large theirs are is not known.
        """
        waiting = self.lines.waiting
        spare = waiting.size_limit // 2 - waiting.size
        most = max(min(spare // self.settings.max_request_size, most), 1)
        return self._end_drains(most, False)

    def end_all_drains(self, most: int) -> bool:
        """Let each ``drain`` go on, whatever it waits for, at most so many; return whether there are more."""
        return self._end_drains(most, True)

    def _end_drains(self, most: int, whatever: bool) -> bool:
        drains = self._drains
        while drains:
            waiter = drains[0]
            if not waiter.future.done():
                if not (whatever or self._may_go_on(waiter)):
                    return False
                if most <= 0:
                    return True
                most -= 1
                waiter.future.set_result(None)
            drains.popleft()
        return False

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
