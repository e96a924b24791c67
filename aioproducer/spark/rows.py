"""``executor_producer``: a producer for code that does not await, such as a function for ``foreachPartition``.

The calling thread puts rows into a queue, the executor's loop takes many of them at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from threading import get_ident
from typing import Any, NamedTuple

from aioproducer._client import validation
from aioproducer._client.arrow import encoded, header_pairs, in_milliseconds, is_arrow, items
from aioproducer._common.texts import counted
from aioproducer.errors import ConfigurationError, KafkaError, KafkaTimeoutError, ProducerClosedError
from aioproducer.record import HeaderPair, normalise_headers
from aioproducer.spark.executor import Executor
from aioproducer.spark.row_queue import (
    CHUNK_BYTES,
    FLUSH_MARGIN_MS,
    LOOP_CLOSED,
    Columns,
    RowQueue,
    last_error_text,
    outcome_text,
)
from aioproducer.spark.statistics import SendStatistics

logger = logging.getLogger("aioproducer.spark")

# The most rows of lists that are queued together.
CHUNK_ROWS = 1000
# What a row on its way holds besides its key and value, in bytes.
ROW_OVERHEAD = 200
# How long sent rows may still be delivered if an exception leaves the `with`, in seconds.
GRACE_AFTER_EXCEPTION = 1.0
# In seconds.
SHORTEST_FLUSH = 0.02
# How long the end of the `with` waits for the loop, in seconds; usually one iteration of it.
CLOSE_TIMEOUT = 5.0

_NO_HEADERS: tuple[HeaderPair, ...] = ()
_MISSING = object()


class Counts(NamedTuple):
    """How many rows were sent, and how many of them are known to be acknowledged."""

    rows: int
    acked: int


class ExecutorProducer:
    """A producer for one thread that does not await, such as that of a Spark task; ``executor_producer`` makes it.

    ``send`` and ``send_many`` return when the row is in a queue, which the executor's loop empties when it has some
    hundred rows, or after ``linger.ms``; where too much is on its way they wait for room, for ``max.block.ms`` at most.
    Rows of one topic keep their order. After the first row that could not be delivered every call raises, with the same
    ``RowsFailedError``.

    What may be changed by its owner, such as a bytearray, is copied; an object for a configured serializer is not, and
    must stay as it is until it is flushed.
    """

    def __init__(self, executor: Executor, config: Mapping[str, object], flush_timeout: float | None) -> None:
        self._executor = executor
        self._config = config
        self._flush_timeout = flush_timeout
        self._queue: RowQueue | None = None
        self._over = False
        self._statistics = SendStatistics()
        # The one that was found right the last time.
        self._topic: str | None = None
        self._serializes_key = self._serializes_value = False

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[HeaderPair] = _NO_HEADERS,
    ) -> None:
        """Send a row; the arguments are those of ``Producer.send``. Without a timestamp it has that of its batching.

        Raises:
            RowsFailedError: this or an earlier row could not be delivered.
            BufferExhaustedError: there was no room for ``max.block.ms``.
            TypeError, ValueError: an argument is not what it should be.
            ProducerClosedError, WrongCallerError: the ``with`` was left, or this is the loop's own thread.
        """
        queue = self._running_queue()
        if topic is not self._topic:
            topic = self._topic = validation.check_topic(topic)
        size = ROW_OVERHEAD
        if type(value) is bytes:
            size += len(value)
        elif value is not None:
            value = self._lasting("value", value)
            size += validation.size_of(value)
        if type(key) is bytes:
            size += len(key)
        elif key is not None:
            key = self._lasting("key", key)
            size += validation.size_of(key)
        if partition is not None or timestamp_ms is not None or headers:
            headers = normalise_headers(headers)
            validation.check(topic, partition, None, None, headers, 0 if timestamp_ms is None else timestamp_ms)
            size += sum([len(name) + validation.size_of(data) for name, data in headers])
        queue.put((topic, value, key, partition, timestamp_ms, headers, size), 1, size)

    def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        partition: int | None = None,
        timestamps_ms: Iterable[Any] | None = None,
        headers: Iterable[Any] | None = None,
    ) -> None:
        """Send the rows of columns: pyarrow arrays, sequences, or any iterables, a generator of rows for instance.

        Arrow's columns are read as ``Producer.send_many`` reads them, where they lie.

        Raises:
            ValueError: the columns are not of one length; the rows before the end of the shortest may have been sent.
            TypeError: a column is none, or an entry is not what it should be.
            RowsFailedError, BufferExhaustedError, ProducerClosedError, WrongCallerError: as ``send``.
        """
        self._running_queue()
        topic = validation.check_topic_and_partition(topic, partition)
        columns = {"values": values, "keys": keys, "timestamps_ms": timestamps_ms, "headers": headers}
        given = {name: column for name, column in columns.items() if column is not None or name == "values"}
        _check_columns(given)
        if all(is_arrow(column) or isinstance(column, list | tuple) for column in given.values()):
            self._send_columns(topic, partition, given)
            return
        config = self._running_queue().producer.config
        iterators = {
            "values": lambda: items(values, encoded if config.value_serializer is None else None),
            "keys": lambda: items(keys, encoded if config.key_serializer is None else None),
            "timestamps_ms": lambda: items(in_milliseconds(timestamps_ms), None),
            "headers": lambda: items(headers, header_pairs),
        }
        places = {name: place for place, name in enumerate(given)}
        key_place, time_place, header_place = (places.get(name) for name in ("keys", "timestamps_ms", "headers"))
        for row in zip_longest(*(iterators[name]() for name in given), fillvalue=_MISSING):
            if any(value is _MISSING for value in row):
                raise ValueError(f"{', '.join(given)} are not of one length")
            self.send(
                topic,
                row[0],
                None if key_place is None else row[key_place],
                partition=partition,
                timestamp_ms=None if time_place is None else row[time_place],
                headers=_NO_HEADERS if header_place is None else row[header_place] or _NO_HEADERS,
            )

    def _send_columns(self, topic: str, partition: int | None, given: Mapping[str, Any]) -> None:
        """Lists, tuples and Arrow's arrays, a chunk at a time."""
        count = len(given["values"])
        has_lists = not all(is_arrow(column) for column in given.values())
        at_once = most = CHUNK_ROWS if has_lists else max(count, 1)
        start = 0
        while start < count:
            queue = self._running_queue()
            while True:
                chunk = {name: _slice(column, start, at_once) for name, column in given.items()}
                size = sum([_size(column) for column in chunk.values()])
                if size <= CHUNK_BYTES or at_once == 1:
                    break
                at_once = max(1, min(at_once // 2, len(chunk["values"]) * CHUNK_BYTES // size))
            for name in ("value", "key"):
                column = chunk.get(f"{name}s")
                if isinstance(column, list | tuple):
                    chunk[f"{name}s"] = self._lasting_column(name, column)
            rows = len(chunk["values"])
            queue.put(
                Columns(
                    topic,
                    chunk["values"],
                    chunk.get("keys"),
                    partition,
                    chunk.get("timestamps_ms"),
                    chunk.get("headers"),
                    size,
                ),
                rows,
                size,
            )
            start += rows
            if 2 * size < CHUNK_BYTES:
                # Large rows came before.
                at_once = min(2 * at_once, most)

    def _lasting_column(self, name: str, column: Sequence[Any]) -> Sequence[Any]:
        if set(map(type, column)) <= {bytes, type(None)}:
            return column
        return [None if data is None else self._lasting(name, data) for data in column]

    def _lasting(self, name: str, data: Any) -> Any:
        """Return a key or value as bytes that its owner cannot change.

        Raises:
            TypeError, ValueError: it is no bytes-like, and there is no serializer for it.
        """
        if self._serializes_value if name == "value" else self._serializes_key:
            return data
        buffer = validation.as_buffer(name, data)
        return buffer if isinstance(buffer, bytes) or buffer is None else bytes(buffer)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every row sent so far is acknowledged, at most ``timeout`` seconds.

        ``None`` is the ``flush_timeout`` of ``executor_producer``.

        Raises:
            RowsFailedError: a row could not be delivered; the first is named.
            KafkaTimeoutError: the time was over before; the rows are sent on.
            ProducerClosedError, WrongCallerError: as ``send``.
        """
        queue = self._running_queue()
        if queue.acked == queue.rows_in:
            return
        if timeout is None:
            timeout = self._flush_timeout
        if timeout is None:
            timeout = (queue.producer.config.delivery_timeout_ms + FLUSH_MARGIN_MS) / 1000
        try:
            # With no time at all the loop could not count the responses that it has received already.
            self._executor.run(queue.flush(), max(timeout, SHORTEST_FLUSH))
        except KafkaError:
            raise
        except TimeoutError:
            raise KafkaTimeoutError(
                f"not every row was acknowledged within {timeout:g} s. {outcome_text(queue.rows_in, queue.acked)}"
                + last_error_text(queue.producer)
            ) from None
        self._running_queue()

    @property
    def counts(self) -> Counts:
        """Rows passed to ``send`` and ``send_many``, and those of them that are known to be acknowledged."""
        return Counts(0, 0) if self._queue is None else Counts(self._queue.rows_in, self._queue.acked)

    def statistics(self) -> SendStatistics:
        """Return the statistics since the ``with`` began; after its end, those of the whole ``with``."""
        if self._over or self._queue is None:
            return self._statistics
        return self._executor.run(self._queue.statistics(), CLOSE_TIMEOUT)

    # The life of the `with`

    def _running_queue(self) -> RowQueue:
        queue = self._queue
        executor = self._executor
        if queue is None or queue.stopped or executor.over or get_ident() == executor.thread_id:
            raise self._refusal()
        return queue

    def _refusal(self) -> Exception:
        if self._over:
            return ProducerClosedError(
                "the `with executor_producer(...)` that made this was left: send inside of it, or in a new one"
            )
        self._executor.check_caller()
        return ProducerClosedError(LOOP_CLOSED) if self._queue is None else self._queue.stop_error()

    async def _open(self) -> None:
        producer = await self._executor.producer(self._config)
        self._serializes_key = producer.config.key_serializer is not None
        self._serializes_value = producer.config.value_serializer is not None
        self._queue = RowQueue(producer)

    def _leave(self, error: BaseException) -> None:
        """Deliver the rows that were sent before an exception of the caller, if that is quick."""
        queue = self._queue
        if queue is None or queue.stopped or self._executor.over:
            return
        try:
            self._executor.run(queue.flush(), GRACE_AFTER_EXCEPTION)
        except Exception as failure:
            # The caller's own exception is the reason of the end.
            logger.debug("not everything was delivered: %r", failure)
        if queue.acked < queue.rows_in:
            error.add_note(outcome_text(queue.rows_in, queue.acked))

    def _close(self) -> None:
        queue, executor = self._queue, self._executor
        self._over = True
        if queue is None or executor.over:
            return
        try:
            self._statistics = executor.run(queue.close(), CLOSE_TIMEOUT)
        except Exception as error:
            logger.debug("the executor has gone before: %r", error)


@contextmanager
def executor_producer(
    config: Mapping[str, object], *, flush_timeout: float | None = None
) -> Iterator[ExecutorProducer]:
    """Open a producer for the rows of a task, on the event loop of this process.

    ::

        def send(rows):
            with executor_producer({"bootstrap.servers": "host:9092"}) as producer:
                for row in rows:
                    producer.send("clicks", row.value, row.key)

        df.foreachPartition(send)

    The end of the ``with`` waits until every row is acknowledged, and raises the first failure. After an exception in
    the ``with``, sent rows have one second for their delivery. Later tasks with the same configuration use the producer
    and its connections again. The keys are Kafka's (``"linger.ms"``).

    Args:
        flush_timeout: limit of that wait in seconds; by default ``delivery.timeout.ms`` and ten seconds.

    Raises:
        ConfigurationError: the configuration is wrong, or has a transactional id.
        RowsFailedError: a row could not be delivered.
        KafkaTimeoutError: not all were acknowledged in time.
        WrongCallerError: this is the executor's own event loop.
    """
    if config.get("transactional.id", config.get("transactional_id")) is not None:
        raise ConfigurationError(
            "transactional.id: executor_producer sends outside transactions; remove the key, or use the executor's "
            "producer() in a coroutine that begins and ends its transactions"
        )
    executor = Executor.current()
    producer = ExecutorProducer(executor, config, flush_timeout)
    try:
        executor.run(producer._open())
        yield producer
    except BaseException as error:
        producer._leave(error)
        raise
    else:
        producer.flush()
    finally:
        producer._close()


def _check_columns(columns: Mapping[str, Any]) -> None:
    """
    Raises:
        TypeError: one is no column.
        ValueError: their lengths are known, and are not one.
    """
    for name, column in columns.items():
        if isinstance(column, str | bytes | bytearray | memoryview | Mapping) or not isinstance(column, Iterable):
            raise TypeError(f"{name} must be a pyarrow array or an iterable of rows, not {type(column).__name__}")
    lengths = {name: len(column) for name, column in columns.items() if hasattr(column, "__len__")}
    count = lengths.get("values")
    for name, length in lengths.items():
        if count is not None and length != count:
            raise ValueError(f"{name} has {length} entries for {counted(count, 'value')}")


def _slice(column: Any, start: int, count: int) -> Any:
    return column.slice(start, count) if is_arrow(column) else column[start : start + count]


def _size(column: Any) -> int:
    """About how many bytes of memory a chunk of a column holds."""
    if is_arrow(column):
        chunks = getattr(column, "chunks", [column])
        return sum([_arrow_size(chunk) for chunk in chunks])
    return sum([validation.size_of(data) for data in column]) + ROW_OVERHEAD // 4 * len(column)


def _arrow_size(array: Any) -> int:
    dictionary = getattr(array, "dictionary", None)
    if dictionary is None:
        return int(array.nbytes)
    # A slice shares the whole dictionary: each row counts with the average size of an entry.
    return int(array.indices.nbytes) + len(array) * int(dictionary.nbytes) // max(len(dictionary), 1)
