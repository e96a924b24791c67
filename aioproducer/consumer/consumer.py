"""``Consumer``: the records of assigned partitions, for one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from aioproducer._client.factory import connector_for
from aioproducer._client.validation import check_timeout
from aioproducer._common.client_log import ClientLog
from aioproducer.config.consumer import ConsumerConfig
from aioproducer.consumer.connections import fetcher_settings, make_clients
from aioproducer.consumer.decoding import SLICE, OnDeserializationError, RecordDecoder
from aioproducer.consumer.driver import FetchDriver
from aioproducer.consumer.timestamps import offsets_for_times
from aioproducer.core.fetching.fetcher import Fetcher
from aioproducer.core.fetching.lookups import OffsetAndTimestamp
from aioproducer.core.fetching.partition import FetchPosition, FetchState
from aioproducer.core.fetching.records import ConsumerRecord
from aioproducer.core.fetching.reset import EARLIEST, LATEST, OffsetReset
from aioproducer.errors import ConfigurationError, ConsumerClosedError, KafkaTimeoutError, WrongCallerError
from aioproducer.offsets import OffsetAndMetadata
from aioproducer.record import TopicPartition
from aioproducer.transport.base import Connector

if TYPE_CHECKING:
    import pyarrow

    from aioproducer.config import ConsumerConfigDict
    from aioproducer.consumer.membership import Membership

DEFAULT_CLOSE_TIMEOUT = 30.0
"""Seconds, as in Java."""


class Consumer:
    """Reads assigned partitions; an async context manager and an async iterator of records.

    ::

        async with Consumer(bootstrap_servers="localhost:9092", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("clicks", 0)])
            async for record in consumer:
                print(record.offset, record.value)

    Records of a partition come in order, partitions in turn. Brokers are asked in the background for further records,
    until ``fetch_buffer_bytes`` are in memory: a slow reader stops the fetches. The position of a partition is behind
    the last returned record. A cancelled call loses no record. A consumer serves one task at a time.

    Args:
        transport: as ``Producer(transport=...)``.
        on_deserialization_error: a function, plain or async, that receives the ``RecordDeserializationError`` of a
            record. If it returns, the record is skipped. Without one the call raises the error; ``seek`` passes the
            record over.
        config: the keys of Kafka's consumer in snake_case.

    Raises:
        ConfigurationError: a key is unknown, a value is wrong, or the transport cannot be used.
    """

    def __init__(
        self,
        *,
        transport: str | Connector = "tcp",
        on_deserialization_error: OnDeserializationError | None = None,
        **config: Unpack[ConsumerConfigDict],
    ) -> None:
        self._configure(ConsumerConfig.from_mapping(config), transport, on_deserialization_error)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        *,
        transport: str | Connector = "tcp",
        on_deserialization_error: OnDeserializationError | None = None,
    ) -> Self:
        """Create a consumer from Kafka's dotted names: ``Consumer.from_config({"bootstrap.servers": ...})``.

        Raises:
            ConfigurationError: as ``Consumer(...)``.
        """
        consumer = cls.__new__(cls)
        consumer._configure(ConsumerConfig.from_mapping(config), transport, on_deserialization_error)
        return consumer

    def _configure(
        self,
        config: ConsumerConfig,
        transport: str | Connector,
        on_deserialization_error: OnDeserializationError | None,
        membership: Membership | None = None,
    ) -> None:
        self._config = config
        self._log = ClientLog("Consumer", config.client_id)
        self._connector = connector_for(config.connection, transport, self._log)
        self._on_deserialization_error = on_deserialization_error
        self._membership = membership
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._is_busy = False
        self._closing: asyncio.Task[None] | None = None
        self._fetcher: Fetcher
        self._driver: FetchDriver
        self._decoder: RecordDecoder

    # Life

    async def start(self) -> None:
        """Start the consumer on the running event loop; ``async with`` does. It connects when partitions are assigned.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        if self._is_closed:
            raise _closed()
        if self._loop is not None:
            return
        loop = asyncio.get_running_loop()
        random = Random()
        clients = make_clients(self._config, loop, self._connector, random, self._log)
        self._clients = clients
        self._fetcher = Fetcher(fetcher_settings(self._config), clients.control.metadata, random, self._log)
        self._driver = FetchDriver(
            loop,
            self._fetcher,
            clients,
            self._config.request_timeout_ms / 1000,
            time.time,
            self._log,
            self._membership,
        )
        self._decoder = RecordDecoder(
            loop,
            self._fetcher,
            self._config.key_deserializer,
            self._config.value_deserializer,
            self._on_deserialization_error,
            self._driver.wake,
        )
        self._loop = loop

    async def close(self, timeout: float = DEFAULT_CLOSE_TIMEOUT) -> None:
        """End every task and connection, within ``timeout`` seconds plus the time that connections take to end.

        A call that waits for records ends: iterations end, others raise ConsumerClosedError. Prefetched records are
        dropped. Cancelling this call does not stop the closing.

        Raises:
            ValueError: ``timeout`` is negative or no number.
        """
        check_timeout(timeout)
        self._is_closed = True
        if self._loop is None:
            return
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(timeout), name="aioproducer-consumer-close")
        await asyncio.shield(self._closing)

    async def _close(self, timeout: float) -> None:
        assert self._loop is not None
        deadline = self._loop.time() + timeout
        try:
            if self._membership is not None:
                await self._membership.close(timeout)
        finally:
            try:
                await self._driver.close(max(deadline - self._loop.time(), 0.0))
            finally:
                await self._decoder.close()
                self._fetcher.assign((), self._loop.time())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _check(self) -> asyncio.AbstractEventLoop:
        if self._is_closed:
            raise _closed()
        if self._loop is None:
            raise WrongCallerError(
                "this consumer is not started: use `async with Consumer(...)`, or await start() first"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise WrongCallerError("this consumer belongs to another event loop: create one on this loop")
        return self._loop

    # Assignment and positions

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions from now on, and no others; those that were assigned before keep their positions.

        A new partition begins where ``auto_offset_reset`` says, unless ``seek`` follows.

        Raises:
            ConsumerClosedError, WrongCallerError: the consumer is not running on this event loop.
            TypeError, ValueError: an element is no topic and partition.
        """
        loop = self._check()
        wanted = [_partition(each) for each in partitions]
        self._fetcher.assign(list(dict.fromkeys(wanted)), loop.time())
        self._driver.wake()

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""
        self._check()
        return frozenset(self._fetcher.partitions)

    def seek(self, partition: TopicPartition | tuple[str, int], position: int | OffsetAndMetadata) -> None:
        """Continue at an offset; prefetched records of the partition are dropped.

        With the leader epoch of an ``OffsetAndMetadata`` the position is validated first (KIP-320).

        Raises:
            ValueError: the partition is not assigned, or the offset is negative.
        """
        name = self._assigned(partition)
        if isinstance(position, OffsetAndMetadata):
            epoch = -1 if position.leader_epoch is None else position.leader_epoch
            found = FetchPosition(position.offset, epoch)
        else:
            found = FetchPosition(position)
        if type(found.offset) is not int or found.offset < 0:
            raise ValueError(f"an offset is an int of at least 0, not {position!r}")
        self._fetcher.seek(name, found)
        self._driver.wake()

    def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Continue at the first record of these partitions, of all without arguments, once their leaders have answered.

        Raises:
            ValueError: a partition is not assigned.
        """
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Continue behind the last record, as ``seek_to_beginning``. ``read_committed`` ends at the first open
        transaction.

        Raises:
            ValueError: a partition is not assigned.
        """
        self._seek_to(partitions, LATEST)

    def _seek_to(self, partitions: Iterable[TopicPartition | tuple[str, int]], reset: OffsetReset) -> None:
        for name in self._several(partitions):
            self._fetcher.request_reset(name, reset)
        self._driver.wake()

    async def position(self, partition: TopicPartition | tuple[str, int], timeout: float | None = None) -> int:
        """Return the offset of the next record, waiting for a lookup if necessary.

        Args:
            timeout: seconds; ``default_api_timeout_ms`` if None.

        Raises:
            ValueError: the partition is not assigned.
            NoOffsetForPartitionError: there is no position, and ``auto_offset_reset`` is none.
            KafkaTimeoutError: no leader answered in time.
        """
        name = self._assigned(partition)
        limit = self._api_timeout(timeout)
        deadline = self._check().time() + limit
        while True:
            loop = self._check()
            found = self._fetcher.partitions.get(name)
            if found is None:
                raise _not_assigned(name)
            if found.position is not None and found.has_position:
                return found.position.offset
            if found.state is FetchState.FAILED:
                error = self._fetcher.take_error(found, loop.time())
                # The partition may go on, after a backoff.
                self._driver.wake()
                raise error
            self._raise_client_error()
            left = deadline - loop.time()
            if left <= 0:
                raise KafkaTimeoutError(f"The position of partition {name} was not found within {limit:.3g} s.")
            await self._driver.wait(left)

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each partition that is not older than a timestamp, None if there is none.

        Args:
            timestamps_ms: milliseconds since 1970; the partitions need not be assigned.
            timeout: seconds; ``default_api_timeout_ms`` if None.

        Raises:
            ValueError: a timestamp is negative.
            KafkaError: a broker rejects the request.
            KafkaTimeoutError: not all leaders answered in time.
        """
        self._check()
        for name, timestamp in timestamps_ms.items():
            if timestamp < 0:
                raise ValueError(f"the timestamp of {name} must not be negative, but is {timestamp}")
        wanted = {_partition(name): timestamp for name, timestamp in timestamps_ms.items()}
        level = self._fetcher.settings.isolation_level
        try:
            return await offsets_for_times(self._clients.control, wanted, level, self._api_timeout(timeout))
        finally:
            # Its metadata requests were in the place of the driver's.
            self._driver.wake()

    def lag(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """Return how many offsets the position is behind the end, as of the last response; None if it is unknown.

        With ``read_committed`` the end is the first open transaction.

        Raises:
            ValueError: the partition is not assigned.
        """
        name = self._assigned(partition)
        return self._fetcher.partitions[name].lag(is_committed=self._fetcher.settings.is_committed)

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Neither request nor return records of these partitions, of all without arguments.

        Raises:
            ValueError: a partition is not assigned.
        """
        for name in self._several(partitions):
            self._fetcher.pause(name)
        self._driver.wake()

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Undo ``pause`` for these partitions, for all without arguments.

        Raises:
            ValueError: a partition is not assigned.
        """
        for name in self._several(partitions):
            self._fetcher.resume(name)
        self._driver.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        self._check()
        return frozenset(name for name, each in self._fetcher.partitions.items() if each.is_paused)

    def _assigned(self, partition: TopicPartition | tuple[str, int]) -> TopicPartition:
        self._check()
        name = _partition(partition)
        if name not in self._fetcher.partitions:
            raise _not_assigned(name)
        return name

    def _several(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> list[TopicPartition]:
        self._check()
        return [self._assigned(each) for each in partitions] or list(self._fetcher.partitions)

    def _api_timeout(self, timeout: float | None) -> float:
        if timeout is None:
            return self._config.default_api_timeout_ms / 1000
        check_timeout(timeout)
        return timeout

    # Records

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """Return the next record, however long it takes.

        Raises:
            StopAsyncIteration: the consumer was closed while the call waited.
            KafkaError: as ``poll``.
        """
        if not (self._is_busy or self._is_closed or self._membership is not None) and self._loop is not None:
            # The next record has been decoded already.
            record = self._fetcher.records.next_one()
            if record is not None:
                return record
        self._check()
        with self._busy():
            while True:
                if not await self._wait_ready(SLICE, None):
                    raise StopAsyncIteration
                record = self._fetcher.records.take_one()
                if record is not None:
                    return record

    async def poll(
        self, timeout: float = 0.0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return the next records by partition, an empty dict if there are none within ``timeout`` seconds.

        The call returns as soon as there is a record. Records that were returned before count as processed now.

        Args:
            max_records: the most records to return, ``max_poll_records`` if None.

        Raises:
            NoOffsetForPartitionError: a partition has no position, and ``auto_offset_reset`` is none.
            OffsetOutOfRangeError, LogTruncationError: the log no longer has the position, likewise.
            RecordDeserializationError: the next record cannot be deserialized; the position is that of the record.
            ProtocolError: the next batch is corrupt.
            TopicAuthorizationError: the client is not allowed to read a topic.
            AuthenticationError: the cluster rejects the client.
            ConsumerClosedError: the consumer is closed.
            WrongCallerError: another task waits for records of this consumer.
        """
        check_timeout(timeout)
        limit = self._limit(max_records)
        self._check()
        with self._busy():
            if not await self._wait_ready(limit, timeout):
                if self._is_closed:
                    raise _closed()
                return {}
            return self._fetcher.records.take(limit)

    async def poll_arrow(self, timeout: float = 0.0, max_records: int | None = None) -> pyarrow.RecordBatch:
        """Return the next records as an Arrow record batch, without rows if there are none within ``timeout`` seconds.

        The columns are those of ``ConsumerRecord``; key and value are binary, headers a list of structs.

        Raises:
            ConfigurationError: the consumer has deserializers, or pyarrow is not installed.
            KafkaError: as ``poll``.
        """
        self._check()
        if not self._decoder.is_plain:
            raise ConfigurationError(
                "poll_arrow returns keys and values as bytes: create the consumer without deserializers"
            )
        from aioproducer.consumer.arrow import record_batch, require_pyarrow

        require_pyarrow()
        polled = await self.poll(timeout, max_records)
        return record_batch(polled.values())

    def _limit(self, max_records: int | None) -> int:
        if max_records is None:
            return self._config.max_poll_records
        if type(max_records) is not int or max_records < 1:
            raise ValueError(f"max_records must be an int of at least 1, not {max_records!r}")
        return max_records

    async def _wait_ready(self, limit: int, timeout: float | None) -> bool:
        """Wait until records are ready; return False if there are none in time, or the consumer was closed."""
        loop, fetcher, driver = self._check(), self._fetcher, self._driver
        deadline = None if timeout is None else loop.time() + timeout
        fetcher.records.mark_processed()
        if self._membership is not None:
            await self._membership.before_records()
        while not self._is_closed:
            if await self._decoder.prepare(limit):
                return True
            self._raise_client_error()
            error = fetcher.next_error(loop.time())
            if error is not None:
                driver.wake()
                raise error
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                # A caller that polls without a timeout must not keep the loop from receiving records.
                await asyncio.sleep(0)
                return bool(await self._decoder.prepare(limit))
            await self._wait_news(left)
            self._decoder.turn_begins()
        return False

    async def _wait_news(self, timeout: float | None) -> None:
        """Wait until the fetcher or the group has news, for at most ``timeout`` seconds."""
        if self._membership is None:
            await self._driver.wait(timeout)
            return
        waiting = [
            asyncio.ensure_future(self._driver.wait(timeout)),
            asyncio.ensure_future(self._membership.wait_changed()),
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        for task in waiting:
            if not task.cancelled():
                task.result()
        await self._membership.handle_events()

    def _raise_client_error(self) -> None:
        error = self._driver.take_error()
        if error is not None:
            raise error

    @contextmanager
    def _busy(self) -> Iterator[None]:
        if self._is_busy:
            raise WrongCallerError("another task waits for records of this consumer: use one consumer for each task")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False


def _closed() -> ConsumerClosedError:
    return ConsumerClosedError("this consumer is closed: create a new one")


def _not_assigned(name: TopicPartition) -> ValueError:
    return ValueError(f"partition {name} is not assigned: pass it to assign() first")


def _partition(value: TopicPartition | tuple[str, int]) -> TopicPartition:
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(f"a partition is a TopicPartition or a pair of topic and partition, not {value!r}")
    topic, partition = value
    if not isinstance(topic, str) or type(partition) is not int:
        raise TypeError(f"a partition is a pair of str and int, not {value!r}")
    if not topic or partition < 0:
        raise ValueError(f"a partition has a topic and a number of at least 0, not {value!r}")
    return TopicPartition(topic, partition)
