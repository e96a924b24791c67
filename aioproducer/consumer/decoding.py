"""Prefetched batches to records: decompressed in threads if large, deserialized, and never long on the loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from aioproducer.core.fetching.buffer import decompressed
from aioproducer.core.fetching.columns import RecordColumns
from aioproducer.deserializers import ResolvedDeserializer
from aioproducer.errors import KafkaError, ProtocolError, RecordDeserializationError
from aioproducer.record import TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from aioproducer.core.fetching.buffer import FetchedBatches
    from aioproducer.core.fetching.fetcher import Fetcher
    from aioproducer.core.fetching.records import ConsumerRecord
    from aioproducer.wire.record_batch import RecordBatch

P = ParamSpec("P")
T = TypeVar("T")

OnDeserializationError: TypeAlias = Callable[[RecordDeserializationError], Awaitable[object] | object]
"""Receives the error of a record that cannot be deserialized. If it returns, or its awaitable does, the record is
skipped; its exception goes to the caller."""

LONGEST_TURN = 0.0005
"""Seconds after which the loop runs others before further records are decoded."""
LONGEST_WAIT = 0.01
"""Seconds that asynchronous deserializers may take for further records once one is ready."""
SLICE = 100
"""Records that are decoded at a time."""
SLICE_BYTES = 256 * 1024
"""Bytes of records that are decoded at a time, or one record."""
MAX_WORKERS = 2
COLUMN_BYTES = 2 * 1024 * 1024
"""Bytes of keys and values that are copied into columns at a time, as long as a turn of the loop may take."""
COLUMN_ROWS = 10_000
"""Rows that are copied at a time, likewise."""


class RecordDecoder:
    """Makes prefetched records ready for the caller.

    Args:
        freed: called when there is room for further data.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fetcher: Fetcher,
        key_deserializer: object,
        value_deserializer: object,
        on_error: OnDeserializationError | None,
        freed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._fetcher = fetcher
        self._key = None if key_deserializer is None else ResolvedDeserializer(key_deserializer, "key")
        self._value = None if value_deserializer is None else ResolvedDeserializer(value_deserializer, "value")
        self._on_error = on_error
        self._freed = freed
        self._executor: ThreadPoolExecutor | None = None
        # The batch that a thread decompresses: a cancelled call leaves it to the next one.
        self._decompressing: tuple[RecordBatch, asyncio.Future[bytes | memoryview]] | None = None
        self._turn_began = perf_counter()
        # Set by the first asynchronous deserializer of a call.
        self._waits_until: float | None = None
        self.columns = RecordColumns()
        """What ``take_columns`` returns."""

    @property
    def is_plain(self) -> bool:
        """Whether keys and values stay bytes."""
        return self._key is None and self._value is None

    async def prepare(self, limit: int) -> int:
        """Make up to ``limit`` records ready if they are prefetched; return how many are.

        They are fewer if they occupy their part of the memory, or if asynchronous deserializers take long. A cancelled
        call loses no record.

        Raises:
            RecordDeserializationError: the next record cannot be deserialized, and none before it is ready.
            ConfigurationError: the codec's library is not installed, likewise.
        """
        records, buffer = self._fetcher.records, self._fetcher.buffer
        decode = records.decode if self.is_plain else records.decode_raw
        self._room_again()
        self._waits_until = None
        count = records.ready_count()
        while count < limit and (count == 0 or buffer.may_decode):
            batches = records.next_batches()
            if batches is None:
                break
            step = min(limit - count, SLICE)
            try:
                if not self._decoded(decode, step, SLICE_BYTES):
                    await self._decompress_in_thread()
                elif not self.is_plain:
                    await self._deserialize(batches, step)
                    if batches.is_batch_read():
                        records.end_turn(batches)
            except KafkaError:
                if not records.ready:
                    raise
                # The caller first gets the records before it; the next call meets it again.
                break
            count = records.ready_count()
            if count and self._waits_long():
                break
            if perf_counter() - self._turn_began > LONGEST_TURN:
                await asyncio.sleep(0)
                self.turn_begins()
        return records.ready_count()

    async def prepare_columns(self, limit: int) -> int:
        """Make ``columns`` of up to ``limit`` records if they are prefetched; return how many rows there are.

        Nothing is awaited once there is a row, so that a cancelled call loses none: the next ``take_columns`` has to
        follow at once. There are fewer rows than ``limit`` if they take too long to copy.

        Raises:
            ConfigurationError: the codec's library is not installed, and there is no row before the batch.
        """
        self._room_again()
        records = self._fetcher.records
        limit = min(limit, COLUMN_ROWS)
        while self.columns.count < limit and self.columns.size < COLUMN_BYTES and (ready := records.take_one()):
            # A call for records was cancelled, or has returned fewer.
            self.columns.append_record(ready)
        while self.columns.count < limit and self.columns.size < COLUMN_BYTES and records.next_batches() is not None:
            try:
                is_read = self._decoded(records.decode_columns, self.columns, limit, COLUMN_BYTES)
            except KafkaError:
                if not self.columns.count:
                    raise
                # The caller first gets the rows before it, which count as returned; the next call meets it again.
                break
            if not is_read:
                if self.columns.count:
                    break
                await self._decompress_in_thread()
            elif not self.columns.count and perf_counter() - self._turn_began > LONGEST_TURN:
                await asyncio.sleep(0)
                self.turn_begins()
        return self.columns.count

    def take_columns(self) -> RecordColumns:
        """Return the columns of ``prepare_columns``; the next ones are new."""
        columns, self.columns = self.columns, RecordColumns()
        return columns

    def _decoded(self, decode: Callable[P, bool], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Call a function of ``RecordTurns``, which returns False if a thread must decompress; drop a corrupt batch."""
        records = self._fetcher.records
        try:
            return decode(*args, **kwargs)
        except ProtocolError as error:
            batches = records.next_batches()
            assert batches is not None
            self._fetcher.corrupt(batches, error)
            return True
        finally:
            self._room_again()

    def _room_again(self) -> None:
        """Let requests go on that may have waited for memory: of records that the caller has taken, or of responses."""
        buffer = self._fetcher.buffer
        if buffer.has_room_again:
            buffer.has_room_again = False
            self._freed()

    def turn_begins(self) -> None:
        """Note that the loop has just run others."""
        self._turn_began = perf_counter()

    async def _decompress_in_thread(self) -> None:
        """Decompress the batch whose turn it is in a thread, or here if the system has no more threads."""
        batches = self._fetcher.records.next_batches()
        assert batches is not None
        batch = batches.batch
        assert batch is not None
        if self._decompressing is None or self._decompressing[0] is not batch:
            self._decompressing = batch, self._begin_decompression(batch)
        work = self._decompressing[1]
        # Cancelling this call does not cancel the work: calls with short timeouts would never get the batch.
        await asyncio.wait([work])
        self.turn_begins()
        if self._decompressing is not None and self._decompressing[0] is batch:
            self._decompressing = None
        if batches.batch is not batch or batches.reader is not None or work.cancelled():
            # A seek, a rebalance or the end of the consumer came in between.
            return
        try:
            batches.set_body(work.result())
        except ProtocolError as error:
            self._fetcher.corrupt(batches, error)

    def _begin_decompression(self, batch: RecordBatch) -> asyncio.Future[bytes | memoryview]:
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="aioproducer-decompressor")
        try:
            work = self._loop.run_in_executor(self._executor, decompressed, batch)
            work.add_done_callback(_retrieve_error)
            return work
        except RuntimeError:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
        done: asyncio.Future[bytes | memoryview] = self._loop.create_future()
        try:
            done.set_result(decompressed(batch))
        except KafkaError as error:
            done.set_exception(error)
            _retrieve_error(done)
        return done

    # Deserializers

    def _waits_long(self) -> bool:
        """Return whether asynchronous deserializers have taken so long that the caller gets what is ready."""
        return self._waits_until is not None and self._loop.time() >= self._waits_until

    async def _await(self, result: Awaitable[T]) -> T:
        if self._waits_until is None:
            self._waits_until = self._loop.time() + LONGEST_WAIT
        return await result

    async def _deserialize(self, batches: FetchedBatches, limit: int) -> None:
        for _ in range(min(limit, len(batches.raw))):
            record = batches.raw[0]
            try:
                record = await self._deserialized(record)
            except RecordDeserializationError as error:
                if batches.is_dropped:
                    return
                if self._on_error is None or self._fetcher.records.ready:
                    # The caller first gets the records before it.
                    raise
                handled = self._on_error(error)
                if inspect.isawaitable(handled):
                    await handled
                if not batches.is_dropped:
                    batches.pass_record()
                return
            if batches.is_dropped:
                return
            self._fetcher.records.record_ready(batches, record)
            if self._waits_long():
                return

    async def _deserialized(self, record: ConsumerRecord) -> ConsumerRecord:
        key, value = record.key, record.value
        is_key = True
        try:
            if self._key is not None:
                key = self._key(record.topic, key, record.headers)
                if inspect.isawaitable(key):
                    key = await self._await(key)
            is_key = False
            if self._value is not None:
                value = self._value(record.topic, value, record.headers)
                if inspect.isawaitable(value):
                    value = await self._await(value)
        except Exception as error:
            raise _failure(record, is_key, error) from error
        return record._replace(key=key, value=value)

    async def close(self) -> None:
        """Let the threads end after the batches in progress; their results are dropped."""
        if self._decompressing is not None:
            self._decompressing[1].cancel()
            self._decompressing = None
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None


def _retrieve_error(work: asyncio.Future[bytes | memoryview]) -> None:
    """Let no error count as overlooked: if no call needs the batch any longer, none asks for its error."""
    if not work.cancelled():
        work.exception()


def _failure(record: ConsumerRecord, is_key: bool, cause: Exception) -> RecordDeserializationError:
    field = "key" if is_key else "value"
    reason = str(cause) if isinstance(cause, KafkaError) else repr(cause)
    error = RecordDeserializationError(
        f"The {field} of the record at offset {record.offset} of partition {record.topic}-{record.partition} cannot be "
        f"deserialized: {reason}. Seek past it, or pass on_deserialization_error."
    )
    error.topic_partition = TopicPartition(record.topic, record.partition)
    error.offset = record.offset
    error.timestamp_ms = record.timestamp_ms
    error.key, error.value, error.headers = record.key, record.value, record.headers
    error.is_key = is_key
    return error
