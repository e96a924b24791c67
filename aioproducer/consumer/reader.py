"""``Reader``: the records of a topic's partitions, from where to where the caller says.

There is no group and nothing is committed: whoever reads knows the positions. Each leader has one long poll open at a
time; while its answer is handed on, the next is under way, and no more than that is in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import repeat
from random import Random
from time import perf_counter
from types import TracebackType
from typing import Literal, Self, TypeAlias, Unpack

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
from aioproducer.consumer.fetching import FetchLimits, Found, Progress, answers, fetch_request, take
from aioproducer.core.fetching.records import ConsumerRecord
from aioproducer.core.metadata.cluster import NO_LEADER
from aioproducer.core.requests.retry import Attempts, ExponentialBackoff
from aioproducer.errors import (
    KafkaError,
    LeaderNotAvailableError,
    ProtocolError,
    UnknownTopicOrPartitionError,
    broker_error,
    error_class,
)
from aioproducer.io.client import BrokerClient
from aioproducer.protocol.messages.fetch import FetchResponse, PartitionData
from aioproducer.transport.base import Connector

Position: TypeAlias = Literal["beginning", "end"] | int | datetime
"""A place in a partition: its first record, behind its last one, an offset, or the first record not older than a time
(a naive one is local time)."""

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = UnknownTopicOrPartitionError.code

MAX_BYTES = 8 * 1024 * 1024
PARTITION_MAX_BYTES = 1024 * 1024
MAX_WAIT_MS = 500

_SPECS: Mapping[str, OffsetSpec] = {"beginning": "earliest", "end": "latest"}

# How long records are decoded between two turns for others, in seconds, and how many at a time.
LONGEST_TURN = 0.0005
SLICE = 500
# No batch may become larger than this when it is decompressed.
LARGEST_BATCH = 256 * 1024 * 1024


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
        # Connections and metadata are the Admin's.
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
        self._random = Random()
        self._started = False
        self._progress: list[Progress] = []
        self._tasks: dict[asyncio.Task[FetchResponse], list[Progress]] = {}
        self._renewal: asyncio.Task[None] | None = None
        # What has been fetched and not handed on yet: batches, those of the batch that comes first, and of these what
        # `anext` has left. A caller who is cancelled, or gives an iteration up, loses nothing of it.
        self._found: deque[Found] = deque()
        self._slices_of_first: Iterator[list[ConsumerRecord]] | None = None
        self._left: Iterator[ConsumerRecord] = iter(())
        self._iterated = False
        self._turn_began = 0.0

    # Life

    async def start(self) -> None:
        """Find out where to begin and to end.

        Raises:
            NoSuchTopicError: there is no such topic or partition.
            KafkaError: the cluster refuses, or does not answer in time.
        """
        await self._admin.start()
        try:
            await self._find_positions()
        except BaseException:
            await self._admin.close()
            raise
        self._started = True

    async def _find_positions(self) -> None:
        client = self._admin.client
        # From here on the topic is in use, and its leaders are known.
        count = await partition_count(client, self._topic, self._timeout)
        wanted = list(range(count)) if self._wanted is None else self._wanted
        beyond = [partition for partition in wanted if not 0 <= partition < count]
        if beyond:
            raise NoSuchTopicError(
                f"Topic {self._topic} has no partition {beyond[0]}: it has {count}, which count from 0."
            )
        starts = {partition: _at(self._start_at, partition, "beginning") for partition in wanted}
        stops = {partition: _at(self._stop_at, partition, None) for partition in wanted}
        first = await self._resolve(starts)
        last = await self._resolve(stops)
        backoff = ExponentialBackoff(100, 1000)
        self._progress = [
            Progress(
                partition,
                first[partition],
                last.get(partition),
                Attempts(backoff, self._random),
                explicit=isinstance(starts[partition], int),
            )
            for partition in wanted
        ]

    async def _resolve(self, positions: Mapping[int, Position | None]) -> dict[int, int]:
        """The offset of each position that there is."""
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

    async def close(self) -> None:
        """End every connection; what was not handed on is dropped, and whoever waits for a record comes to the end."""
        self._started = False
        tasks = [*self._tasks, *([] if self._renewal is None else [self._renewal])]
        self._tasks.clear()
        self._renewal = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
        """By partition, the offset behind what has been fetched; some of that may not have been handed on yet."""
        return {each.partition: each.position for each in self._progress}

    def stops(self) -> dict[int, int | None]:
        """By partition, the offset before which reading ends."""
        return {each.partition: each.stop for each in self._progress}

    # Reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        for record in self._left:
            return record
        if not self._iterated:
            self._check_started()
            self._iterated = True
        records = await self._next_records()
        if records is None:
            raise StopAsyncIteration
        self._left = iter(records)
        return next(self._left)

    async def batches(self) -> AsyncIterator[list[ConsumerRecord]]:
        """The records, some at a time; all of one list are of one partition.

        Whoever stops in the middle, or is cancelled, may go on later, here or record by record: with what comes behind
        the last that was handed on.

        Raises:
            OffsetOutOfRangeError: an offset that was asked for is not there.
            ProtocolError: a batch is corrupt.
            RuntimeError: the Reader is not started, or closed.
            KafkaError: the cluster refuses, or nothing can be had of it for longer than the timeout.
        """
        self._check_started()
        left, self._left = list(self._left), iter(())
        if left:
            yield left
        while (records := await self._next_records()) is not None:
            yield records

    def _check_started(self) -> None:
        if not self._started:
            raise RuntimeError("the Reader is not started: use it inside `async with Reader(...)`")

    async def _next_records(self) -> list[ConsumerRecord] | None:
        """Some records of one partition, never none; ``None`` where all have been handed on."""
        if perf_counter() - self._turn_began > LONGEST_TURN:
            await asyncio.sleep(0)
            self._turn_began = perf_counter()
        while self._started:
            if self._slices_of_first is not None:
                try:
                    records = next(self._slices_of_first, None)
                except KafkaError as error:
                    # What is behind it in the batch cannot be had, and must not be passed over.
                    self._slices_of_first = _raising(error)
                    raise
                if records is not None:
                    return records
                self._slices_of_first = None
            # The next poll is under way while these are handed on.
            left = self._begin_fetches()
            if self._found:
                self._slices_of_first = self._slices(self._found.popleft())
            elif not left:
                return None
            else:
                await self._take_answers()
                self._turn_began = perf_counter()
        return None

    def _slices(self, found: Found) -> Iterator[list[ConsumerRecord]]:
        topic, partition, stop = self._topic, found.progress.partition, found.progress.stop
        records: list[ConsumerRecord] = []
        epoch = found.batch.partition_leader_epoch
        leader_epoch = epoch if epoch >= 0 else None
        for offset, timestamp_ms, _, key, value, headers in found.batch.records(LARGEST_BATCH):
            if offset < found.first:
                continue
            if stop is not None and offset >= stop:
                break
            records.append(ConsumerRecord(topic, partition, offset, timestamp_ms, key, value, headers, leader_epoch))
            if len(records) >= SLICE:
                yield records
                records = []
        if records:
            yield records

    # Fetching

    def _begin_fetches(self) -> bool:
        """Ask each leader that nothing is asked of; whether there is anything left to read."""
        client = self._admin.client
        now = asyncio.get_running_loop().time()
        by_leader: dict[int, list[Progress]] = {}
        busy: set[int] = set()
        left = False
        for progress in self._progress:
            if progress.finished:
                continue
            left = True
            leader = client.leader(self._topic, progress.partition)
            if progress.in_flight:
                busy.add(leader)
            elif progress.attempts.delay(now) == 0:
                by_leader.setdefault(leader, []).append(progress)
        for leader, progresses in by_leader.items():
            if leader == NO_LEADER:
                for progress in progresses:
                    error = LeaderNotAvailableError(
                        f"Partition {progress.partition} of topic {self._topic} has no leader at present."
                    )
                    self._note_failure(progress, error)
            elif leader not in busy:
                self._fetch(client, leader, progresses)
        return left or bool(self._tasks)

    def _fetch(self, client: BrokerClient, leader: int, progresses: list[Progress]) -> None:
        topic = client.metadata.topic(self._topic)
        topic_id = None if topic is None else topic.topic_id
        request, highest = fetch_request(self._topic, topic_id, progresses, self._limits, self._isolation_level)
        timeout = self._timeout + self._limits.max_wait_ms / 1000
        coroutine = client.request(request, node_id=leader, highest=highest, timeout=timeout)
        task = asyncio.get_running_loop().create_task(coroutine, name=f"aioproducer-fetch-{leader}")
        for progress in progresses:
            progress.in_flight = True
        self._tasks[task] = progresses

    async def _take_answers(self) -> None:
        """Find what the next answers bring; nothing where some have failed, or time makes others due.

        Raises:
            KafkaError: as ``batches``.
        """
        now = asyncio.get_running_loop().time()
        waits = [each.attempts.delay(now) for each in self._progress if not (each.finished or each.in_flight)]
        waiting: set[asyncio.Task[FetchResponse] | asyncio.Task[None]] = {*self._tasks}
        if self._renewal is not None:
            waiting.add(self._renewal)
        timeout = min((wait for wait in waits if wait > 0), default=None)
        if waiting:
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        elif timeout is not None:
            await asyncio.sleep(timeout)
        if self._renewal is not None and self._renewal.done():
            renewal, self._renewal = self._renewal, None
            try:
                renewal.result()
            except KafkaError as error:
                # As long as fetching fails it is asked again; what fetching met says more in the end.
                if not error.retriable:
                    raise
                self._log.info("Metadata of topic %s: %s", self._topic, error)
            code = self._admin.client.metadata.topic_error(self._topic)
            if code == UNKNOWN_TOPIC_OR_PARTITION:
                raise NoSuchTopicError(f"Topic {self._topic!r} was deleted.")
        for task in [task for task in self._tasks if task.done()]:
            progresses = self._tasks.pop(task, [])
            for progress in progresses:
                progress.in_flight = False
            await self._answered(task, progresses)

    async def _answered(self, task: asyncio.Task[FetchResponse], progresses: list[Progress]) -> None:
        try:
            response = task.result()
            if response.error_code:
                raise broker_error(response.error_code)
        except KafkaError as error:
            for progress in progresses:
                self._note_failure(progress, error)
            return
        by_partition = answers(response)
        for progress in progresses:
            data = by_partition.get(progress.partition)
            if data is None:
                self._note_failure(progress, UnknownTopicOrPartitionError())
            elif data.error_code == OFFSET_OUT_OF_RANGE:
                await self._find_again(progress)
            elif data.error_code:
                self._note_failure(progress, broker_error(data.error_code))
            else:
                progress.succeeded()
                self._take(progress, data)

    def _take(self, progress: Progress, data: PartitionData) -> None:
        try:
            found = list(take(progress, data))
        except ProtocolError as error:
            raise ProtocolError(
                f"Partition {progress.partition} of topic {self._topic} cannot be read at offset "
                f"{progress.position}: {error}"
            ) from error
        if found:
            # Its turn comes after that of the others: an answer has room for some partitions only.
            self._progress.remove(progress)
            self._progress.append(progress)
            self._found += found

    def _note_failure(self, progress: Progress, error: KafkaError) -> None:
        """Try again after a while, with what metadata says then.

        Raises:
            KafkaError: it makes no sense, or has been tried for too long.
        """
        if not error.retriable:
            raise error
        failing = progress.failed(asyncio.get_running_loop().time())
        if failing >= self._timeout:
            raise error
        self._log.info("Partition %d of topic %s: %s", progress.partition, self._topic, error)
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().create_task(
                self._admin.client.renew_metadata(self._timeout), name="aioproducer-reader-metadata"
            )

    async def _find_again(self, progress: Progress) -> None:
        """The offset is not there (any more): go on with the first one, where nobody asked for that very offset.

        Raises:
            OffsetOutOfRangeError: somebody did, or the offset is beyond the end.
        """
        partition = progress.partition
        earliest = (await self._admin.list_offsets(self._topic, {partition: "earliest"}))[partition]
        latest = (await self._admin.list_offsets(self._topic, {partition: "latest"}))[partition]
        if progress.explicit or progress.position > latest:
            raise error_class(OFFSET_OUT_OF_RANGE)(
                f"Partition {partition} of topic {self._topic} has no offset {progress.position}: it has "
                f"{earliest} to {latest}."
            )
        self._log.warning(
            "Partition %d of topic %s: offsets %d to %d were deleted before they could be read",
            partition,
            self._topic,
            progress.position,
            earliest - 1,
        )
        progress.position = max(earliest, progress.position)


def _raising(error: KafkaError) -> Iterator[list[ConsumerRecord]]:
    """Raises it whenever asked."""
    return map(_raise, repeat(error))


def _raise(error: KafkaError) -> list[ConsumerRecord]:
    raise error.fresh()


def _at(
    position: Position | Mapping[int, Position] | None, partition: int, otherwise: Position | None
) -> Position | None:
    return position.get(partition, otherwise) if isinstance(position, Mapping) else position
