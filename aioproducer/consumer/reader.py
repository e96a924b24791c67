"""``Reader``: the records of a topic's partitions, between two positions.

A face of the consumer's fetcher: without a group and without commits, for one topic, with ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from datetime import datetime
from random import Random
from time import time
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias, Unpack

from aioproducer import config as configuration
from aioproducer._common.client_log import ClientLog
from aioproducer.admin import (
    ISOLATION_LEVELS,
    Admin,
    IsolationLevel,
    NoSuchTopicError,
    OffsetSpec,
    partition_count,
)
from aioproducer.config import ProducerConfig
from aioproducer.consumer.connections import Clients, connect
from aioproducer.consumer.decoding import RecordDecoder
from aioproducer.consumer.driver import SESSION_END_TIMEOUT, FetchDriver
from aioproducer.consumer.iteration import RecordIterator
from aioproducer.core.fetching.fetcher import OFFSET_OUT_OF_RANGE, Fetcher, FetcherSettings
from aioproducer.core.fetching.partition import AssignedPartition, FetchPosition
from aioproducer.core.fetching.records import ConsumerRecord
from aioproducer.core.fetching.reset import NONE
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.errors import (
    LogTruncationError,
    NoOffsetForPartitionError,
    UnknownTopicOrPartitionError,
    error_class,
)
from aioproducer.io.client import BrokerClient
from aioproducer.record import TopicPartition
from aioproducer.transport.base import Connector

Position: TypeAlias = Literal["beginning", "end"] | int | datetime
"""A place in a partition: its first record, behind its last one, an offset, or the first record not older than a time
(a naive one is local time)."""

UNKNOWN_TOPIC_OR_PARTITION = UnknownTopicOrPartitionError.code

MAX_BYTES = 8 * 1024 * 1024
PARTITION_MAX_BYTES = 1024 * 1024
MAX_WAIT_MS = 500
BUFFERED_RESPONSES = 8
"""The memory of a Reader, in responses of ``max_bytes``."""

SLICE = 500
"""The most records of one list."""

_SPECS: Mapping[str, OffsetSpec] = {"beginning": "earliest", "end": "latest"}


class FetchLimits(NamedTuple):
    """How much a response may contain, in bytes, and how long it may wait for the first byte."""

    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int


class Reader:
    """Reads partitions of one topic; an async context manager and an async iterator of records.

    ::

        async with Reader("clicks", bootstrap_servers="localhost:9092", stop="end") as reader:
            async for record in reader:
                print(record.partition, record.offset, record.value)

    Records of a partition come in order. Checksums are checked, and control records are left out. A leader that moves,
    or a connection that ends, is waited out.

    Args:
        topic: its name.
        partitions: those to read; all that there are at the start if None.
        start: where to begin, for all partitions or by partition.
        stop: where to end, before that place; None reads for ever. ``"end"`` is the end as it is at the start.
        isolation_level: ``"read_uncommitted"`` reads every record. ``"read_committed"`` leaves out those of aborted
            transactions, and ends where the first open transaction begins: nothing behind it is read before it ends.
        timeout: seconds that nothing may be had of the cluster, or of a partition, before that is an error.
        max_bytes: about the most bytes that one answer may bring, and of one partition ``partition_max_bytes``. A
            batch that is larger comes all the same.
        max_wait_ms: how long a broker may wait for records before it answers.
        transport: as ``Producer(transport=...)``.
        config: as ``Admin(...)``.

    Raises:
        ConfigurationError: a key is unknown, or a value is wrong.
        ValueError: ``start`` or ``stop`` is no position, or ``isolation_level`` is unknown.
    """

    def __init__(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        *,
        start: Position | Mapping[int, Position] = "beginning",
        stop: Position | Mapping[int, Position] | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
        timeout: float = 30.0,
        max_bytes: int = MAX_BYTES,
        partition_max_bytes: int = PARTITION_MAX_BYTES,
        max_wait_ms: int = MAX_WAIT_MS,
        transport: str | Connector = "tcp",
        **config: Unpack[configuration.ConnectionConfigDict],
    ) -> None:
        self._configure(
            Admin(timeout=timeout, transport=transport, **config),
            topic,
            partitions,
            start,
            stop,
            isolation_level,
            timeout,
            FetchLimits(max_wait_ms, max_bytes, partition_max_bytes),
        )

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        topic: str,
        partitions: Iterable[int] | None = None,
        *,
        start: Position | Mapping[int, Position] = "beginning",
        stop: Position | Mapping[int, Position] | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
        timeout: float = 30.0,
        max_bytes: int = MAX_BYTES,
        partition_max_bytes: int = PARTITION_MAX_BYTES,
        max_wait_ms: int = MAX_WAIT_MS,
        transport: str | Connector = "tcp",
    ) -> Self:
        """A Reader of Kafka's dotted names."""
        reader = cls.__new__(cls)
        reader._configure(
            Admin.from_config(config, timeout=timeout, transport=transport),
            topic,
            partitions,
            start,
            stop,
            isolation_level,
            timeout,
            FetchLimits(max_wait_ms, max_bytes, partition_max_bytes),
        )
        return reader

    def _configure(
        self,
        admin: Admin,
        topic: str,
        partitions: Iterable[int] | None,
        start: Position | Mapping[int, Position],
        stop: Position | Mapping[int, Position] | None,
        isolation_level: IsolationLevel,
        timeout: float,
        limits: FetchLimits,
    ) -> None:
        self._admin = admin
        self._log = admin.log = ClientLog("Consumer", admin.client_id)
        self._topic = topic
        self._wanted = None if partitions is None else sorted(set(partitions))
        for name, position in (("start", start), ("stop", stop)):
            for each in position.values() if isinstance(position, Mapping) else (position,):
                if each is not None and not isinstance(each, int | datetime) and each not in _SPECS:
                    raise ValueError(f"{name} must be 'beginning', 'end', an offset or a datetime, not {each!r}")
        if isolation_level not in ISOLATION_LEVELS:
            raise ValueError(f"isolation_level must be 'read_uncommitted' or 'read_committed', not {isolation_level!r}")
        self._isolation_level: IsolationLevel = isolation_level
        self._start_at = start
        self._stop_at = stop
        self._timeout = timeout
        self._limits = limits
        self._is_running = False
        self._is_iterated = False
        self._iterator = RecordIterator(self._next_record)
        self._closing: asyncio.Task[None] | None = None
        self._clients: Clients
        self._fetcher: Fetcher
        self._driver: FetchDriver
        self._decoder: RecordDecoder
        # Partitions whose position is an offset that the caller named: no other position replaces it.
        self._explicit: frozenset[int] = frozenset()
        # By partition: the offset behind what was fetched, and that before which reading ends.
        self._positions: dict[int, int] = {}
        self._stops: dict[int, int | None] = {}

    # Life

    async def start(self) -> None:
        """Find out where to begin and to end.

        Raises:
            NoSuchTopicError: there is no such topic or partition.
            KafkaError: the cluster refuses, or does not answer in time.
        """
        if self._is_running:
            return
        loop = asyncio.get_running_loop()
        random = Random()
        self._admin._start_with(lambda config, connector: self._connect(loop, config, connector, random))
        try:
            await self._find_positions()
        except BaseException:
            try:
                await self._clients.fetch.close()
            finally:
                await self._admin.close()
            raise
        self._start_fetching(loop, random)

    def _connect(
        self, loop: asyncio.AbstractEventLoop, config: ProducerConfig, connector: Connector, random: Random
    ) -> BrokerClient:
        self._clients = connect(config, loop, connector, random, self._log, may_create_topics=False)
        self._settings = FetcherSettings(
            min_bytes=1,
            max_wait_ms=self._limits.max_wait_ms,
            max_bytes=self._limits.max_bytes,
            max_partition_bytes=self._limits.partition_max_bytes,
            buffer_bytes=BUFFERED_RESPONSES * self._limits.max_bytes,
            isolation_level=ISOLATION_LEVELS[self._isolation_level],
            check_crcs=True,
            reset=NONE,
            rack="",
            retry_backoff=ExponentialBackoff(100, 1000),
            metadata_max_age=config.metadata_max_age_ms / 1000,
        )
        return self._clients.control

    async def _find_positions(self) -> None:
        # From here on the topic is in use, and its leaders are known.
        count = await partition_count(self._clients.control, self._topic, self._timeout)
        wanted = list(range(count)) if self._wanted is None else self._wanted
        beyond = [partition for partition in wanted if not 0 <= partition < count]
        if beyond:
            raise NoSuchTopicError(
                f"Topic {self._topic} has no partition {beyond[0]}: it has {count}, which count from 0."
            )
        starts = {partition: _at(self._start_at, partition, "beginning") for partition in wanted}
        stops = {partition: _at(self._stop_at, partition, None) for partition in wanted}
        self._explicit = frozenset(partition for partition, start in starts.items() if isinstance(start, int))
        self._positions = await self._resolve(starts)
        found = await self._resolve(stops)
        self._stops = {partition: found.get(partition) for partition in wanted}

    async def _resolve(self, positions: Mapping[int, Position | None]) -> dict[int, int]:
        """Return the offset of each position that there is."""
        found = {partition: position for partition, position in positions.items() if isinstance(position, int)}
        specs: dict[int, OffsetSpec] = {}
        for partition, position in positions.items():
            if isinstance(position, datetime):
                specs[partition] = position
            elif isinstance(position, str):
                specs[partition] = _SPECS[position]
        if specs:
            found.update(await self._admin.list_offsets(self._topic, specs, isolation_level=self._isolation_level))
        return found

    def _start_fetching(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self._fetcher = Fetcher(self._settings, self._clients.control.metadata, random, self._log)
        self._driver = FetchDriver(loop, self._fetcher, self._clients, self._timeout, time, self._log)
        self._decoder = RecordDecoder(loop, self._fetcher, None, None, None, self._driver.wake)
        names = [TopicPartition(self._topic, partition) for partition in self._stops]
        self._fetcher.assign(names, loop.time())
        for name in names:
            self._fetcher.partitions[name].stop = self._stops[name.partition]
            self._fetcher.seek(name, FetchPosition(self._positions[name.partition]))
        self._is_running = True
        self._iterator.open(self._fetcher.records, None, loop)
        self._driver.wake()

    async def close(self) -> None:
        """End every connection. Records that were not returned are dropped; a call that waits for them ends."""
        if self._is_running:
            self._is_running = self._iterator.is_open = False
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="aioproducer-reader-close")
        if self._closing is not None:
            # Cancelling this call does not stop the closing.
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._note_positions()
        try:
            await self._driver.close(SESSION_END_TIMEOUT)
        finally:
            await self._decoder.close()
            self._fetcher.assign((), asyncio.get_running_loop().time())
            await self._admin.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # Asking

    def positions(self) -> dict[int, int]:
        """Return by partition the offset behind what was fetched; some of that may not have been returned yet."""
        if self._is_running:
            self._note_positions()
        return dict(self._positions)

    def _note_positions(self) -> None:
        for name, each in self._fetcher.partitions.items():
            if each.fetch_position is not None:
                self._positions[name.partition] = each.fetch_position.offset

    def stops(self) -> dict[int, int | None]:
        """Return by partition the offset before which reading ends."""
        return dict(self._stops)

    # Reading

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self._iterator

    def __anext__(self) -> Coroutine[Any, Any, ConsumerRecord]:
        return anext(self._iterator)

    async def _next_record(self) -> ConsumerRecord:
        if not self._is_iterated:
            self._check_started()
            self._is_iterated = True
        while await self._wait_ready():
            record = self._fetcher.records.next_one()
            if record is not None:
                return record
        raise StopAsyncIteration

    async def batches(self) -> AsyncIterator[list[ConsumerRecord]]:
        """Return the records, some at a time; all of one list are of one partition.

        A cancelled or abandoned iteration loses none: another one, or ``anext``, continues behind the last list.

        Raises:
            OffsetOutOfRangeError: the partition does not have the offset to begin at.
            CorruptBatchError: a batch cannot be read.
            LogTruncationError: records before the position were lost by an unclean election.
            NoSuchTopicError: the topic was deleted.
            RuntimeError: the Reader is not started, or closed.
            KafkaError: the cluster refuses, or nothing can be read for longer than the timeout.
        """
        self._check_started()
        while await self._wait_ready():
            records = self._fetcher.records.take_run(SLICE)
            if records:
                yield records

    def _check_started(self) -> None:
        if not self._is_running:
            raise RuntimeError("the Reader is not started: use it inside `async with Reader(...)`")

    async def _wait_ready(self) -> bool:
        """Wait until records are ready; return False at the end, and if the Reader was closed.

        Between the last look at the fetcher and the wait nothing else runs: no news are missed.
        """
        while self._is_running:
            if await self._decoder.prepare(SLICE):
                return True
            if self._unassign_finished():
                return False
            error = self._driver.take_error()
            if error is not None:
                raise error
            refused = self._fetcher.first_failed()
            if refused is not None:
                await self._go_on_after(refused)
                continue
            self._raise_lasting_failure()
            await self._driver.wait(None)
            self._decoder.turn_begins()
        return False

    def _unassign_finished(self) -> bool:
        """Request nothing more of partitions that were read to their end; return whether all were."""
        partitions = self._fetcher.partitions
        left = [name for name, each in partitions.items() if not each.is_finished]
        if len(left) < len(partitions):
            self._note_positions()
            self._fetcher.assign(left, asyncio.get_running_loop().time())
            self._driver.wake()
        return not left

    async def _go_on_after(self, partition: AssignedPartition) -> None:
        """Continue where the first offset is, if the position was deleted.

        Raises:
            KafkaError: that of the partition.
        """
        error = partition.error
        if isinstance(error, error_class(OFFSET_OUT_OF_RANGE)):
            await self._find_again(partition)
            return
        position = None if partition.position is None else partition.position.offset
        if isinstance(error, LogTruncationError):
            raise LogTruncationError(
                f"The log of partition {partition.name} was truncated before the position {position}, by an unclean "
                "election: records that were read are lost. Open another Reader where to go on."
            ) from error
        if isinstance(error, NoOffsetForPartitionError):
            raise NoSuchTopicError(f"Topic {self._topic!r} was deleted, and created again.") from error
        self._driver.wake()
        raise self._fetcher.take_error(partition, asyncio.get_running_loop().time())

    def _raise_lasting_failure(self) -> None:
        if self._clients.control.metadata.topic_error(self._topic) == UNKNOWN_TOPIC_OR_PARTITION:
            raise NoSuchTopicError(f"Topic {self._topic!r} was deleted.")
        for partition in self._fetcher.partitions.values():
            if partition.failure is not None and partition.failing_for >= self._timeout:
                raise partition.failure.fresh()

    async def _find_again(self, partition: AssignedPartition) -> None:
        """Continue at the first offset, unless the caller named the one that was refused.

        Raises:
            OffsetOutOfRangeError: the caller named the offset, or it is behind the end.
            KafkaError: the cluster refuses, or does not answer in time.
        """
        assert partition.position is not None
        index, position = partition.name.partition, partition.position.offset
        earliest = (await self._admin.list_offsets(self._topic, {index: "earliest"}))[index]
        latest = (await self._admin.list_offsets(self._topic, {index: "latest"}))[index]
        if index in self._explicit or position > latest:
            raise error_class(OFFSET_OUT_OF_RANGE)(
                f"Partition {index} of topic {self._topic} has no offset {position}: it has {earliest} to {latest}."
            )
        if self._fetcher.partitions.get(partition.name) is not partition:
            # The Reader was closed.
            return
        if earliest > position:
            self._log.warning(
                "Partition %d of topic %s: offsets %d to %d were deleted before they could be read",
                index,
                self._topic,
                position,
                earliest - 1,
            )
        error = partition.error
        self._fetcher.seek(partition.name, FetchPosition(max(earliest, position)))
        if earliest <= position and error is not None:
            # The leader is behind another replica: it will have the offset.
            now = asyncio.get_running_loop().time()
            partition.failed(error, now)
            partition.attempts.failed(now)
            self._raise_lasting_failure()
        # The lookups may have taken the place of the driver's requests for metadata.
        self._driver.wake()


def _at(
    position: Position | Mapping[int, Position] | None, partition: int, otherwise: Position | None
) -> Position | None:
    return position.get(partition, otherwise) if isinstance(position, Mapping) else position
