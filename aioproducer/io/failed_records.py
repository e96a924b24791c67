"""Passes failed records to ``on_record_failed``: decodes them again, a few in each iteration of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from time import perf_counter

from aioproducer._common.client_log import Log
from aioproducer.compression import codec
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.waiting.pending import PendingRecord
from aioproducer.errors import KafkaError
from aioproducer.record import Record
from aioproducer.wire.record import decode_record

# Seconds for which records are reported before the loop runs other callbacks.
REPORT_SLICE_SECONDS = 0.0005
# Bytes that are decompressed in the loop, which gzip does in a quarter of a millisecond. A thread decompresses larger
# batches.
MAX_DECOMPRESSED_INLINE = 65536

OnRecordFailed = Callable[[Record, KafkaError], None]


class FailedRecords:
    """Failed batches and waiting records that are still to be reported, in the order in which they failed.

    A batch counts one more reader and so keeps its memory, which is part of ``buffer_memory``. Other records may take
    ``size_limit`` bytes together; beyond that all records are reported at once.

    Args:
        hooks: called with each record and its error; they raise nothing.
        release: called with a batch that is no longer read.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        hooks: tuple[OnRecordFailed, ...],
        release: Callable[[ProducerBatch], None],
        size_limit: int,
        log: Log,
    ) -> None:
        self._loop = loop
        self._hooks = hooks
        self._release = release
        self._size_limit = size_limit
        self._log = log
        self._size = 0
        self._waiting: deque[ProducerBatch | PendingRecord] = deque()
        # The remaining records of the batch, or the record, that came before those.
        self._records: Iterator[tuple[Record, KafkaError]] | None = None
        self._task: asyncio.Task[None] | None = None
        # Hooks run in the context of the caller of start(), not of send().
        self._context = copy_context()

    def add(self, failed: ProducerBatch | PendingRecord) -> None:
        """Report the batch's records, or this record, soon."""
        self._waiting.append(failed)
        if isinstance(failed, PendingRecord):
            self._size += failed.charged
            if self._size > self._size_limit:
                self.report_all()
                return
        if self._task is None:
            create_task = self._loop.create_task
            # Without the argument ``context``, which a task factory of the application may not accept.
            self._task = self._context.run(create_task, self._report(), name="aioproducer-failed-records")

    async def wait_reported(self) -> None:
        """Wait until all are reported."""
        while self._task is not None:
            await asyncio.wait([self._task])
        self.report_all()

    def report_all(self) -> None:
        """Report all records now, however long that takes."""
        while self._report_next():
            continue

    async def _report(self) -> None:
        try:
            # An eager task starts within ``add``, while the caller is still failing records.
            await asyncio.sleep(0)
            began = perf_counter()
            more = True
            while more:
                if self._records is None and self._waiting and _is_slow(self._waiting[0]):
                    await self._read_in_thread()
                more = self._report_next()
                if perf_counter() - began > REPORT_SLICE_SECONDS:
                    await asyncio.sleep(0)
                    began = perf_counter()
        except asyncio.CancelledError:
            # Usually the loop is about to end, so this is the last opportunity.
            self.report_all()
            raise
        finally:
            self._task = None

    def _report_next(self) -> bool:
        """Report the next record, or finish a batch without further ones; return False if nothing is left."""
        if self._records is None:
            if not self._waiting:
                return False
            self._records = self._read(self._waiting.popleft())
        try:
            found = next(self._records, None)
        except Exception:
            self._log.exception("Decoding failed records for on_record_failed failed")
            found = None
        if found is None:
            self._records = None
        else:
            for on_record_failed in self._hooks:
                on_record_failed(*found)
        return True

    def _read(self, failed: ProducerBatch | PendingRecord) -> Iterator[tuple[Record, KafkaError]]:
        if isinstance(failed, ProducerBatch):
            return self._decoded(failed, self._body(failed), failed.codec_id)
        self._size -= failed.charged
        return self._alone(failed)

    def _body(self, batch: ProducerBatch) -> bytes:
        """Return a copy of the batch's body, and return its memory."""
        assert batch.body is not None
        body = b"".join(batch.body)
        batch.readers -= 1
        self._release(batch)
        return body

    async def _read_in_thread(self) -> None:
        """Begin to read the oldest batch, which a thread decompresses."""
        batch = self._waiting.popleft()
        assert isinstance(batch, ProducerBatch)
        body = self._body(batch)
        # For callers that cannot wait, and if no thread can be started.
        here = self._records = self._decoded(batch, body, batch.codec_id)
        try:
            data = await asyncio.to_thread(codec(batch.codec_id).decompress, body)
        except Exception:
            # If the bytes are malformed, decompressing them in the loop fails too and logs the error.
            return
        if self._records is here:
            self._records = self._decoded(batch, data, 0)

    def _decoded(self, batch: ProducerBatch, body: bytes, codec_id: int) -> Iterator[tuple[Record, KafkaError]]:
        topic, partition = batch.topic_partition
        data = codec(codec_id).decompress(body) if codec_id else body
        position = 0
        for index in range(batch.record_count):
            each = decode_record(data, position)
            position = each.end
            timestamp_ms = batch.base_timestamp + each.timestamp_delta
            error = batch.error(index)
            assert error is not None
            yield Record(topic, each.value, each.key, partition, timestamp_ms, each.headers), error

    def _alone(self, pending: PendingRecord) -> Iterator[tuple[Record, KafkaError]]:
        assert pending.stored_error is not None
        yield (
            Record(
                pending.topic,
                pending.value,
                pending.key,
                pending.partition,
                pending.timestamp_ms,
                pending.headers,
            ),
            pending.stored_error.fresh(),
        )


def _is_slow(failed: ProducerBatch | PendingRecord) -> bool:
    return isinstance(failed, ProducerBatch) and failed.codec_id != 0 and failed.used_before > MAX_DECOMPRESSED_INLINE
