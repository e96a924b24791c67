"""Prefetched batches to records: decompressed in threads if large, deserialized, and never long on the loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

from aioproducer.deserializers import ResolvedDeserializer
from aioproducer.errors import KafkaError, ProtocolError, RecordDeserializationError
from aioproducer.record import TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from aioproducer.core.fetching.buffer import FetchedBatches
    from aioproducer.core.fetching.fetcher import Fetcher
    from aioproducer.core.fetching.records import ConsumerRecord

OnDeserializationError: TypeAlias = Callable[[RecordDeserializationError], Awaitable[object] | object]
"""Receives the error of a record that cannot be deserialized. If it returns, or its awaitable does, the record is
skipped; its exception goes to the caller."""

LONGEST_TURN = 0.0005
"""Seconds after which the loop runs others before further records are decoded."""
SLICE = 100
"""Records that are decoded at a time."""
THREAD_BYTES = 64 * 1024
"""Compressed bytes from which a batch is decompressed in a thread: below, waking a thread takes longer."""
MAX_WORKERS = 2


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
        self._turn_began = perf_counter()

    @property
    def is_plain(self) -> bool:
        """Whether keys and values stay bytes."""
        return self._key is None and self._value is None

    async def prepare(self, limit: int) -> int:
        """Make up to ``limit`` records ready if they are prefetched; return how many are.

        A cancelled call loses no record.

        Raises:
            RecordDeserializationError: the next record cannot be deserialized, and none before it is ready.
        """
        records = self._fetcher.records
        count = records.ready_count()
        while count < limit:
            batches = records.next_batches()
            if batches is None:
                break
            step = min(limit - count, SLICE)
            if not self._read(batches, step):
                await self._decompress_in_thread(batches)
            elif self.is_plain:
                count += records.all_ready(batches)
            else:
                try:
                    await self._deserialize(batches, step)
                except RecordDeserializationError:
                    if not records.ready:
                        raise
                    break
                count = records.ready_count()
            if batches.is_batch_read:
                records.end_turn(batches)
            if perf_counter() - self._turn_began > LONGEST_TURN:
                await asyncio.sleep(0)
                self.turn_begins()
        return records.ready_count()

    def turn_begins(self) -> None:
        """Note that the loop has just run others."""
        self._turn_began = perf_counter()

    def _read(self, batches: FetchedBatches, limit: int) -> bool:
        """Decode at most ``limit`` further records, or drop ``batches`` at their end or if they are corrupt.

        Return False if the open batch must be decompressed in a thread first.
        """
        fetcher = self._fetcher
        partition = batches.partition
        try:
            if batches.batch is None or batches.is_batch_read:
                was_full = fetcher.is_full(partition)
                if batches.open_batch() is None:
                    fetcher.records.finish(batches)
                    self._freed()
                    return True
                if was_full and not fetcher.is_full(partition):
                    self._freed()
            if batches.reader is None:
                batch = batches.batch
                assert batch is not None
                if batch.compression_id and batch.size_in_bytes >= THREAD_BYTES:
                    return False
                batches.set_body(batches.decompress())
            if not batches.raw:
                batches.read(limit)
        except ProtocolError as error:
            fetcher.corrupt(batches, error)
        return True

    async def _decompress_in_thread(self, batches: FetchedBatches) -> None:
        """Decompress the open batch in a thread, or here if the system has no more threads."""
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="aioproducer-decompressor")
        try:
            try:
                work = self._loop.run_in_executor(self._executor, batches.decompress)
            except RuntimeError:
                self._executor.shutdown(wait=False, cancel_futures=True)
                self._executor = None
                body = batches.decompress()
            else:
                body = await work
                self.turn_begins()
        except ProtocolError as error:
            self._fetcher.corrupt(batches, error)
            return
        if not batches.is_dropped:
            # Otherwise a seek or a rebalance came in between.
            batches.set_body(body)

    # Deserializers

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

    async def _deserialized(self, record: ConsumerRecord) -> ConsumerRecord:
        key, value = record.key, record.value
        is_key = True
        try:
            if self._key is not None:
                key = self._key(record.topic, key, record.headers)
                if inspect.isawaitable(key):
                    key = await key
            is_key = False
            if self._value is not None:
                value = self._value(record.topic, value, record.headers)
                if inspect.isawaitable(value):
                    value = await value
        except Exception as error:
            raise _failure(record, is_key, error) from error
        return record._replace(key=key, value=value)

    async def close(self) -> None:
        """Let the threads end after the batches in progress; their results are dropped."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None


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
