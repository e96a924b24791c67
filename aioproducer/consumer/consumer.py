"""``Consumer``: the records of assigned partitions, or of a group's topics, for one event loop."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from time import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, Unpack

from aioproducer._client.factory import connector_for
from aioproducer._client.validation import check_timeout
from aioproducer._common.client_log import ClientLog
from aioproducer.config.consumer import ConsumerConfig
from aioproducer.consumer.connections import fetcher_settings, make_clients, make_group
from aioproducer.consumer.decoding import OnDeserializationError, RecordDecoder
from aioproducer.consumer.driver import FetchDriver
from aioproducer.consumer.group import ConsumerGroup
from aioproducer.consumer.iteration import RecordIterator
from aioproducer.consumer.queries import END_OFFSET, FIRST_OFFSET, offsets_at, offsets_for_times, partitions_for
from aioproducer.consumer.statistics import read_gauges, read_partitions
from aioproducer.consumer_metrics import ConsumerMetrics, ConsumerMetricsSnapshot
from aioproducer.core.fetching.fetcher import Fetcher
from aioproducer.core.fetching.lookups import OffsetAndTimestamp
from aioproducer.core.fetching.partition import FetchPosition, FetchState
from aioproducer.core.fetching.records import ConsumerRecord
from aioproducer.core.fetching.reset import EARLIEST, LATEST, OffsetReset
from aioproducer.core.membership.events import LeaveOperation
from aioproducer.errors import (
    ConfigurationError,
    ConsumerClosedError,
    KafkaTimeoutError,
    SubscriptionError,
    WrongCallerError,
)
from aioproducer.io.group_member import RebalanceListener
from aioproducer.metrics import Sensor
from aioproducer.offsets import (
    MAX_OFFSET,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    checked_offsets,
    checked_partition,
)
from aioproducer.record import PartitionInfo, TopicPartition
from aioproducer.transport.base import Connector

if TYPE_CHECKING:
    import pyarrow

    from aioproducer.config import ConsumerConfigDict
    from aioproducer.consumer.membership import Membership

GroupMembershipOperation: TypeAlias = Literal["default", "leave_group", "remain_in_group"]
"""What becomes of the membership when a consumer closes (KIP-1092)."""

_OPERATIONS: Final[Mapping[str, LeaveOperation]] = {
    "default": LeaveOperation.DEFAULT,
    "leave_group": LeaveOperation.LEAVE_GROUP,
    "remain_in_group": LeaveOperation.REMAIN_IN_GROUP,
}

DEFAULT_CLOSE_TIMEOUT = 30.0
"""Seconds, as in Java."""
RECORDS_AHEAD = 500
"""Records that an iteration decodes at a time, at most."""


class Consumer:
    """Reads topics as a member of a group, or assigned partitions; an async context manager and iterator of records.

    ::

        async with Consumer("clicks", bootstrap_servers="localhost:9092", group_id="billing") as consumer:
            async for record in consumer:
                print(record.offset, record.value)

    Records of a partition come in order, partitions in turn. Brokers are asked in the background for further records,
    until ``fetch_buffer_bytes`` are in memory: a slow reader stops the fetches. The position of a partition is behind
    the last returned record. A cancelled call loses no record. A consumer serves one task at a time.

    A record counts as processed when the next one is requested. With ``enable_auto_commit`` (the default of members)
    the offsets of processed records are committed. A rebalance takes a partition away after its last returned record
    was processed, or after ``max_poll_interval_ms``.

    Args:
        topics: subscribed when the consumer starts, as ``subscribe(topics)`` does.
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
        *topics: str,
        transport: str | Connector = "tcp",
        on_deserialization_error: OnDeserializationError | None = None,
        **config: Unpack[ConsumerConfigDict],
    ) -> None:
        self._configure(topics, ConsumerConfig.from_mapping(config), transport, on_deserialization_error)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        *topics: str,
        transport: str | Connector = "tcp",
        on_deserialization_error: OnDeserializationError | None = None,
    ) -> Self:
        """Create a consumer from Kafka's dotted names: ``Consumer.from_config({"bootstrap.servers": ...}, "clicks")``.

        Raises:
            ConfigurationError: as ``Consumer(...)``.
        """
        consumer = cls.__new__(cls)
        consumer._configure(topics, ConsumerConfig.from_mapping(config), transport, on_deserialization_error)
        return consumer

    def _configure(
        self,
        topics: Collection[str],
        config: ConsumerConfig,
        transport: str | Connector,
        on_deserialization_error: OnDeserializationError | None,
    ) -> None:
        self._config = config
        self._topics = _checked_topics(topics)
        if self._topics and config.group_id is None:
            raise _no_group("topics")
        self._log = ClientLog("Consumer", config.client_id)
        self._connector = connector_for(config.connection, transport, self._log)
        self._on_deserialization_error = on_deserialization_error
        self._group: ConsumerGroup | None = None
        self._membership: Membership | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        # Until then a listener may commit.
        self._has_left = False
        self._is_busy = False
        # Of the records that were returned, the number that metrics have, and since when others may have been.
        self._counted = 0
        self._counted_at = 0.0
        self._iterator = RecordIterator(self._next_record)
        self._closing: asyncio.Task[None] | None = None
        self._metrics: ConsumerMetrics
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
        shared = self._config.connection
        self._metrics = ConsumerMetrics(shared.metrics_num_samples, max(shared.metrics_sample_window_ms, 1))
        clients = make_clients(self._config, loop, self._connector, random, self._log, self._metrics)
        self._clients = clients
        self._fetcher = Fetcher(fetcher_settings(self._config), clients.control.metadata, random, self._log)
        self._driver = FetchDriver(
            loop,
            self._fetcher,
            clients,
            self._config.request_timeout_ms / 1000,
            time,
            self._log,
            self._metrics,
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
        if self._config.group_id is not None:
            self._group = make_group(
                self._config, loop, clients, self._fetcher, self._driver, random, self._log, self._metrics
            )
            self._membership = self._group.membership
            self._driver.group = self._group
            self._group.start()
            if self._topics:
                self._group.subscribe(self._topics, None)
        self._iterator.open(self._fetcher.records, self._membership, loop)

    async def close(
        self,
        timeout: float = DEFAULT_CLOSE_TIMEOUT,
        *,
        group_membership_operation: GroupMembershipOperation = "default",
    ) -> None:
        """Leave the group, and end every task and connection.

        Offsets of processed records are committed, and the listener runs for all partitions. A call that waits ends:
        iterations end, others raise ConsumerClosedError. Prefetched records are dropped. Cancelling this call does not
        stop the closing.

        Args:
            timeout: seconds for all of this; connections may take a little longer to end.
            group_membership_operation: whether a member leaves its group (KIP-1092): "leave_group",
                "remain_in_group" (its partitions are free when its session ends), or "default": a static member stays.

        Raises:
            ValueError: ``timeout`` is not a number, or the operation is unknown.
            WrongCallerError: a rebalance listener calls this, or the caller is not on the consumer's event loop.
            Exception: the rebalance listener raised it; everything has ended.
        """
        check_timeout(timeout)
        operation = _OPERATIONS.get(group_membership_operation)
        if operation is None:
            names = ", ".join(_OPERATIONS)
            raise ValueError(f"group_membership_operation must be one of {names}, not {group_membership_operation!r}")
        if self._loop is not None:
            self._check_loop(self._loop)
        if self._membership is not None:
            self._membership.check_caller("close")
        self._is_closed = True
        self._iterator.is_open = False
        if self._loop is None:
            return
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(timeout, operation), name="aioproducer-consumer-close")
        await asyncio.shield(self._closing)

    async def _close(self, timeout: float, operation: LeaveOperation) -> None:
        assert self._loop is not None
        deadline = self._loop.time() + timeout
        self._driver.wake_waiters()
        try:
            if self._group is not None:
                await self._group.close(timeout, operation)
        finally:
            self._has_left = True
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

    def _check(self, *, ends: bool = True) -> asyncio.AbstractEventLoop:
        """Check the caller; with ``ends`` False the call is allowed while the consumer leaves its group."""
        if self._is_closed if ends else self._has_left or (self._is_closed and self._loop is None):
            raise _closed()
        if self._loop is None:
            raise WrongCallerError(
                "this consumer is not started: use `async with Consumer(...)`, or await start() first"
            )
        self._check_loop(self._loop)
        return self._loop

    @staticmethod
    def _check_loop(loop: asyncio.AbstractEventLoop) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            raise WrongCallerError("call a consumer in the event loop that it was started on") from None
        if running is not loop:
            raise WrongCallerError("this consumer belongs to another event loop: create one on this loop")

    def __del__(self) -> None:
        # After a rejected configuration the attribute is missing.
        if getattr(self, "_loop", None) is not None and not self._is_closed:
            warnings.warn(f"{self!r} was not closed: use `async with`, or await close()", ResourceWarning, 2, self)

    def __repr__(self) -> str:
        return f"<Consumer {self._config.client_id}>"

    # Groups

    def subscribe(
        self, topics: str | Iterable[str] | re.Pattern[str], *, listener: RebalanceListener | None = None
    ) -> None:
        """Read topics as a member of the group ``group_id``, instead of those that were subscribed before.

        The group assigns the partitions among its members. The consumer joins in the background; the listener runs
        inside of requests for records.

        Args:
            topics: a name, several names, or a pattern that whole names match. A pattern finds new topics within
                ``metadata_max_age_ms``.
            listener: receives the partitions that come and go.

        Raises:
            ConfigurationError: the consumer has no ``group_id``.
            SubscriptionError: partitions were assigned by ``assign``; call ``unsubscribe`` first.
            TypeError, ValueError: a name is no string, or empty; there is none; the listener is no RebalanceListener.
            ConsumerClosedError, WrongCallerError: the consumer is not running on this event loop.
        """
        self._check()
        group = self._with_group("subscribe")
        if isinstance(topics, str):
            topics = [topics]
        names = topics if isinstance(topics, re.Pattern) else _checked_topics(topics)
        if not names:
            raise ValueError("subscribe needs at least one topic: call unsubscribe() to read none")
        if isinstance(names, re.Pattern) and not isinstance(names.pattern, str):
            raise TypeError("a pattern of topic names must be one of str, not of bytes")
        if listener is not None and not isinstance(listener, RebalanceListener):
            raise TypeError(f"listener must be a RebalanceListener, not {type(listener).__name__}: subclass it")
        if self._fetcher.partitions and not group.assigns:
            raise SubscriptionError("partitions are assigned by assign(): call unsubscribe() before subscribe()")
        group.subscribe(names, listener)

    async def unsubscribe(self) -> None:
        """Read nothing: leave the group after a commit and ``on_revoked``, or drop the partitions of ``assign``.

        Raises:
            ConsumerClosedError, WrongCallerError: the consumer is not running on this event loop, or a rebalance
                listener calls this.
            Exception: the rebalance listener raised it; the consumer has left.
        """
        loop = self._check()
        if self._group is not None and self._group.assigns:
            await self._group.unsubscribe()
        else:
            if self._group is not None:
                self._group.drop_others(())
            self._fetcher.assign((), loop.time())
            self._driver.topics_changed()

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics; of a pattern those that it has matched so far.

        After a change to a pattern they are those of before, until the first list of topics has arrived.

        Raises:
            ConsumerClosedError, WrongCallerError: the consumer is not running on this event loop.
        """
        self._check(ends=False)
        if self._group is None or not self._group.is_subscribed:
            return frozenset()
        return self._group.membership.subscription

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets to the group, and wait until it has them. A cancelled call does not cancel the commit.

        Args:
            offsets: for each partition the offset of the next record to read. By default the positions of all assigned
                partitions: every returned record counts as processed.
            timeout: seconds; ``default_api_timeout_ms`` if None.

        Raises:
            CommitFailedError: the group has given the partitions to other members.
            RebalanceInProgressError: the group is rebalancing; request records, then commit what is still assigned.
            FencedInstanceIdError: another member has the same ``group_instance_id``.
            GroupAuthorizationError, TopicAuthorizationError: the client is not allowed to commit.
            KafkaTimeoutError: the coordinator did not answer in time; the offsets may have been committed.
            ConsumerClosedError: the consumer was closed meanwhile, or is not started.
            ConfigurationError: the consumer has no ``group_id``.
            TypeError, ValueError: an element of ``offsets`` is no partition or no offset.
        """
        self._check(ends=False)
        group = self._with_group("commit")
        checked = None if offsets is None else checked_offsets(offsets)
        with self._waiting(self._metrics.commit_wait):
            await group.commit(checked, self._api_timeout(timeout))

    async def committed(
        self, *partitions: TopicPartition | tuple[str, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's offsets of these partitions, of all assigned ones without arguments; None without one.

        Args:
            timeout: seconds; ``default_api_timeout_ms`` if None.

        Raises:
            GroupAuthorizationError, TopicAuthorizationError: the client is not allowed to read them.
            KafkaTimeoutError: the coordinator did not answer in time.
            ConsumerClosedError, ConfigurationError: as ``commit``.
        """
        self._check(ends=False)
        group = self._with_group("committed")
        names = [checked_partition(each) for each in partitions] or list(self._fetcher.partitions)
        with self._waiting(self._metrics.committed_wait):
            found = await group.committed(names, self._api_timeout(timeout))
        return {name: found.get(name) for name in names}

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return what ``Transaction.send_offsets`` needs: the group, and this member, whose replacement fences it.

        Ask for it when the offsets are sent, not before: a rebalance changes it.

        Raises:
            ConsumerClosedError, WrongCallerError: the consumer is not running on this event loop.
            ConfigurationError: the consumer has no ``group_id``.
        """
        self._check(ends=False)
        return self._with_group("group_metadata").group_metadata()

    @contextmanager
    def _waiting(self, sensor: Sensor) -> Iterator[None]:
        """Record how long the block takes, in nanoseconds."""
        began = self._driver.now()
        try:
            yield
        finally:
            now = self._driver.now()
            sensor.record((now - began) * 1e9, now)

    def _with_group(self, call: str) -> ConsumerGroup:
        if self._group is None:
            raise _no_group(call)
        return self._group

    # Assignment and positions

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions from now on, and no others; those that were assigned before keep their positions.

        A new partition begins at the offset that the group ``group_id`` has committed. Without a group, or offset, it
        begins where ``auto_offset_reset`` says. ``seek`` sets another position. With ``enable_auto_commit`` what is
        processed of a dropped partition is committed in the background.

        Raises:
            SubscriptionError: topics are subscribed; call ``unsubscribe`` first.
            ConsumerClosedError, WrongCallerError: the consumer is not running on this event loop.
            TypeError, ValueError: an element is no topic and partition.
        """
        loop = self._check()
        wanted = dict.fromkeys([checked_partition(each) for each in partitions])
        if self._group is not None and self._group.assigns:
            raise SubscriptionError("topics are subscribed, and the group assigns their partitions: unsubscribe first")
        if self._group is not None:
            self._group.caller_assigns(wanted.keys())
        self._fetcher.assign(wanted.keys(), loop.time())
        self._driver.topics_changed()

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions; one that is revoked is among them until ``on_revoked`` has returned."""
        self._check(ends=False)
        return frozenset(self._fetcher.partitions)

    def seek(self, partition: TopicPartition | tuple[str, int], position: int | OffsetAndMetadata) -> None:
        """Continue at an offset; prefetched records of the partition are dropped.

        With the leader epoch of an ``OffsetAndMetadata`` the position is validated first (KIP-320).

        Raises:
            ValueError: the partition is not assigned, or the offset is negative or has over 63 bits.
        """
        name = self._assigned(partition)
        if isinstance(position, OffsetAndMetadata):
            epoch = -1 if position.leader_epoch is None else position.leader_epoch
            found = FetchPosition(position.offset, epoch)
        else:
            found = FetchPosition(position)
        if type(found.offset) is not int or not 0 <= found.offset <= MAX_OFFSET:
            raise ValueError(f"an offset is an int from 0 to {MAX_OFFSET}, not {position!r}")
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
        deadline = self._check(ends=False).time() + limit
        while True:
            loop = self._check(ends=False)
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
            TypeError, ValueError: a timestamp is no int, or negative.
            KafkaError: a broker rejects the request.
            KafkaTimeoutError: not all leaders answered in time.
        """
        self._check()
        for name, timestamp in timestamps_ms.items():
            if type(timestamp) is not int:
                raise TypeError(f"the timestamp of {name} must be an int of milliseconds, not {timestamp!r}")
            if timestamp < 0:
                raise ValueError(f"the timestamp of {name} must not be negative, but is {timestamp}")
        wanted = {checked_partition(name): timestamp for name, timestamp in timestamps_ms.items()}
        level = self._fetcher.settings.isolation_level
        with self._driver.looking_up({name.topic for name in wanted}):
            call = offsets_for_times(self._clients.control, wanted, level, self._api_timeout(timeout))
            return await self._driver.until_closed(call)

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionInfo]:
        """Return the topic's partitions, ordered by number: what ``assign`` may be called with.

        They may be known from earlier metadata, at most ``metadata_max_age_ms`` old. A topic that does not exist is
        created if ``allow_auto_create_topics`` and the brokers allow that.

        Args:
            timeout: seconds; ``default_api_timeout_ms`` if None.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            TopicAuthorizationError: the client is not allowed to describe it.
            KafkaTimeoutError: no broker answered in time.
        """
        self._check()
        (topic,) = _checked_topics([topic])
        with self._driver.looking_up({topic}):
            call = partitions_for(self._clients.control, topic, self._api_timeout(timeout))
            return await self._driver.until_closed(call)

    async def beginning_offsets(
        self, *partitions: TopicPartition | tuple[str, int], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record of these partitions, of all assigned ones without arguments.

        Args:
            timeout: seconds; ``default_api_timeout_ms`` if None.

        Raises:
            KafkaError, KafkaTimeoutError: as ``offsets_for_times``.
        """
        return await self._offsets_at(partitions, FIRST_OFFSET, timeout)

    async def end_offsets(
        self, *partitions: TopicPartition | tuple[str, int], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset behind the last record, as ``beginning_offsets``. ``read_committed`` ends at the first open
        transaction.
        """
        return await self._offsets_at(partitions, END_OFFSET, timeout)

    async def _offsets_at(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], which: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        self._check()
        names = [checked_partition(each) for each in partitions] or list(self._fetcher.partitions)
        level = self._fetcher.settings.isolation_level
        with self._driver.looking_up({name.topic for name in names}):
            call = offsets_at(self._clients.control, names, which, level, self._api_timeout(timeout))
            return await self._driver.until_closed(call)

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
        self._check(ends=False)
        return self._fetcher.paused()

    def _assigned(self, partition: TopicPartition | tuple[str, int]) -> TopicPartition:
        self._check(ends=False)
        name = checked_partition(partition)
        if name not in self._fetcher.partitions:
            raise _not_assigned(name)
        return name

    def _several(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> list[TopicPartition]:
        self._check(ends=False)
        return [self._assigned(each) for each in partitions] or list(self._fetcher.partitions)

    def _api_timeout(self, timeout: float | None) -> float:
        if timeout is None:
            return self._config.default_api_timeout_ms / 1000
        check_timeout(timeout)
        return timeout

    def metrics(self) -> ConsumerMetricsSnapshot:
        """Return Kafka's metrics by name; ``.partitions`` and ``.nodes`` hold those of each partition and broker.

        They can also be read after ``close``. Call it in the thread of the consumer's event loop.

        Raises:
            ConsumerClosedError, WrongCallerError: the consumer was not started.
        """
        if self._loop is None:
            self._check()
        now = self._driver.now()
        self._count_returned()
        partitions = read_partitions(self._fetcher, now)
        gauges = read_gauges(self._clients, self._membership, self._metrics, partitions, now)
        return self._metrics.snapshot(gauges, partitions, now)

    # Records

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self._iterator

    def __anext__(self) -> Coroutine[Any, Any, ConsumerRecord]:
        """Return the next record, however long it takes.

        Raises:
            StopAsyncIteration: the consumer was closed while the call waited.
            KafkaError: as ``poll``.
        """
        return anext(self._iterator)

    async def _next_record(self) -> ConsumerRecord:
        """Return the next record, which may have to be decoded, or fetched."""
        self._check()
        with self._busy():
            while True:
                if not await self._wait_ready(RECORDS_AHEAD, None):
                    raise StopAsyncIteration
                record = self._fetcher.records.take_one()
                if record is not None:
                    return record

    async def poll(
        self, timeout: float = 0.0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return the next records by partition, an empty dict if there are none within ``timeout`` seconds.

        The call returns as soon as there is a record; the deserializers of the first one are waited for. Records that
        were returned before count as processed now.

        Args:
            max_records: the most records to return, ``max_poll_records`` if None.

        Raises:
            NoOffsetForPartitionError: a partition has no position, and ``auto_offset_reset`` is none.
            OffsetOutOfRangeError, LogTruncationError: the log no longer has the position, likewise.
            RecordDeserializationError: the next record cannot be deserialized; the position is that of the record.
            ProtocolError: the next batch is corrupt.
            TopicAuthorizationError: the client is not allowed to read a topic.
            AuthenticationError: the cluster rejects the client.
            GroupAuthorizationError: the client is not allowed to join the group, or to read its offsets.
            FencedInstanceIdError: another member has the same ``group_instance_id``; this one reads nothing more.
            ConsumerClosedError: the consumer is closed, also during the call.
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
            records = self._fetcher.records.take(limit)
            self._count_returned()
            return records

    async def poll_arrow(self, timeout: float = 0.0, max_records: int | None = None) -> pyarrow.RecordBatch:
        """Return the next records as an Arrow record batch, without rows if there are none within ``timeout`` seconds.

        No Python object is made for a record. At most about 10,000 rows or 2 MiB are returned, the next ones by the
        next call. The columns are those of ``ConsumerRecord``; key and value are binary, headers a list of structs.

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
        check_timeout(timeout)
        limit = self._limit(max_records)
        with self._busy():
            if not await self._wait_ready(limit, timeout, self._decoder.prepare_columns) and self._is_closed:
                raise _closed()
            columns = self._decoder.take_columns()
            self._count_returned()
            return record_batch(columns)

    def _limit(self, max_records: int | None) -> int:
        if max_records is None:
            return self._config.max_poll_records
        if type(max_records) is not int or max_records < 1:
            raise ValueError(f"max_records must be an int of at least 1, not {max_records!r}")
        return max_records

    async def _wait_ready(
        self, limit: int, timeout: float | None, prepare: Callable[[int], Awaitable[int]] | None = None
    ) -> bool:
        """Wait until records are ready; return False if there are none in time, or the consumer was closed."""
        loop, fetcher, driver, group = self._check(), self._fetcher, self._driver, self._group
        prepare = prepare or self._decoder.prepare
        deadline = None if timeout is None else loop.time() + timeout
        fetcher.records.mark_processed()
        self._count_returned()
        if group is not None:
            group.membership.polled_at = loop.time()
        while not self._is_closed:
            left = None if deadline is None else max(deadline - loop.time(), 0)
            if group is not None and group.has_news:
                if not await group.handle_news(left):
                    # The listener goes on, and the next request for records waits for it.
                    return False
                continue
            if await prepare(limit):
                self._counted_at = loop.time()
                return True
            if self._is_closed or (group is not None and group.has_news):
                # It came while a record was deserialized, or a batch decompressed: this call did not wait for it.
                continue
            self._raise_client_error()
            error = fetcher.next_error(loop.time())
            if error is not None:
                driver.wake()
                raise error
            if left is not None and left <= 0:
                # A caller that polls without a timeout must not keep the loop from receiving records.
                await asyncio.sleep(0)
                self._counted_at = loop.time()
                return bool(await prepare(limit))
            if group is None:
                await driver.wait(left)
            else:
                await self._wait_as_member(group.membership, left)
            self._decoder.turn_begins()
        return False

    async def _wait_as_member(self, membership: Membership, timeout: float | None) -> None:
        """Wait for news of the fetcher or the group; the group counts that as requests for records."""
        membership.is_waiting = True
        try:
            await self._driver.wait(timeout)
        finally:
            membership.is_waiting = False
            membership.polled_at = self._driver.now()

    def _count_returned(self) -> None:
        returned, now = self._fetcher.records.returned, self._driver.now()
        if returned != self._counted:
            self._metrics.records_returned(returned - self._counted, self._counted_at, now)
            self._counted = returned
        self._counted_at = now

    def _raise_client_error(self) -> None:
        error = self._driver.take_error()
        if error is not None:
            raise error

    @contextmanager
    def _busy(self) -> Iterator[None]:
        if self._is_busy:
            raise WrongCallerError("another task waits for records of this consumer: use one consumer for each task")
        self._is_busy = True
        self._iterator.is_open = False
        try:
            yield
        finally:
            self._is_busy = False
            self._iterator.is_open = not self._is_closed


def _no_group(call: str) -> ConfigurationError:
    return ConfigurationError(f"{call} needs group_id: pass it to Consumer(...), or assign partitions")


def _checked_topics(names: Iterable[str]) -> tuple[str, ...]:
    checked = tuple(names)
    for name in checked:
        if not isinstance(name, str):
            raise TypeError(f"a topic is a str, not {name!r}; a pattern is the only argument of subscribe()")
        if not name:
            raise ValueError("a topic must have a name")
    return checked


def _closed() -> ConsumerClosedError:
    return ConsumerClosedError("this consumer is closed: create a new one")


def _not_assigned(name: TopicPartition) -> ValueError:
    return ValueError(f"partition {name} is not assigned: pass it to assign() first")
