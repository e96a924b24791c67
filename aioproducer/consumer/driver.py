"""``FetchDriver``: the tasks and timers that send the fetcher's requests."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from aioproducer.consumer_metrics import ConsumerMetrics
from aioproducer.core.fetching.lookups import PlannedLookup, PlannedReset, PositionLookups
from aioproducer.core.fetching.partition import FetchPosition
from aioproducer.errors import ConsumerClosedError, KafkaError, NetworkError, UnknownTopicOrPartitionError
from aioproducer.protocol.messages.offsets import ListOffsetsResponse, OffsetForLeaderEpochResponse

if TYPE_CHECKING:
    from aioproducer._common.client_log import ClientLog
    from aioproducer.consumer.connections import Clients
    from aioproducer.consumer.membership import GroupOffsets
    from aioproducer.core.fetching.fetcher import Fetcher, PlannedFetch
    from aioproducer.core.fetching.partition import AssignedPartition
    from aioproducer.protocol.messages.fetch import FetchRequest

T = TypeVar("T")

SESSION_END_TIMEOUT = 1.0
"""Seconds that ``close`` waits for the end of idle fetch sessions. Brokers evict sessions that were not ended."""


class FetchDriver:
    """Sends every request that is due: metadata, lookups of positions, and one Fetch to each node at a time.

    Each event, of the network, the clock or the caller, leads to one pass, ``_run``, in the next iteration of the loop.

    Args:
        wall_clock: returns seconds since 1970.
        metrics: of the consumer.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fetcher: Fetcher,
        clients: Clients,
        request_timeout: float,
        wall_clock: Callable[[], float],
        log: ClientLog,
        metrics: ConsumerMetrics | None = None,
    ) -> None:
        self._loop = loop
        self._fetcher = fetcher
        self._lookups = PositionLookups(fetcher)
        self._clients = clients
        self._request_timeout = request_timeout
        self._wall_clock = wall_clock
        self._log = log
        self._metrics = metrics or ConsumerMetrics()
        self.group: GroupOffsets | None = None
        """The group whose committed offsets the partitions begin at."""
        self._looked_up: Counter[str] = Counter()
        self._has_new_topics = False
        # A dict keeps the order in which tasks are cancelled. A set's order depends on addresses, so that a simulation
        # could not be replayed.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._metadata_task: asyncio.Task[None] | None = None
        self._committed_task: asyncio.Task[None] | None = None
        # Topics that did not exist in the last response, and those of them that were warned of.
        self._missing: frozenset[str] = frozenset()
        self._warned_of: frozenset[str] = frozenset()
        self._pass: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._calls: dict[asyncio.Task[Any], None] = {}
        self._is_closed = False
        self.error: BaseException | None = None
        """An error of the whole client, raised once to the next caller that asks."""

    # Passes

    def wake(self) -> None:
        """Make a pass in the next iteration of the loop."""
        if self._pass is None and not self._is_closed:
            self._pass = self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._pass = None
        if self._is_closed:
            return
        if self.error is not None:
            # Nothing is sent before the caller has it: repeated attempts with a wrong password would lock an account.
            self.wake_waiters()
            return
        now = self._loop.time()
        fetcher, metadata = self._fetcher, self._fetcher.metadata
        fetcher.metadata_applied(now)
        if self.group is not None:
            self.group.metadata_applied()
        self._initialize()
        if self._has_new_topics:
            self._retain_topics()
        for lookup in self._lookups.due(now, round(self._wall_clock() * 1000)):
            task = self._start(self._look_up(lookup), f"aioproducer-consumer-positions-{lookup.node_id}")
            _if_cancelled(task, partial(self._lookups.failed, lookup), self._loop)
        for node_id in fetcher.nodes_to_fetch(now):
            plan = fetcher.build_fetch(node_id, now)
            if plan is not None:
                task = self._start(self._fetch(plan), f"aioproducer-consumer-fetch-{node_id}")
                _if_cancelled(task, partial(fetcher.fetch_failed, plan), self._loop)
        if self._needs_metadata() and metadata.next_update_delay(now) <= 0 and not _is_running(self._metadata_task):
            self._metadata_task = self._start(self._update_metadata(), "aioproducer-consumer-metadata")
        self._arm(now)
        self.wake_waiters()

    def _arm(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = self._fetcher.next_retry(now)
        if self._needs_metadata() and not _is_running(self._metadata_task):
            when = min(when, now + self._fetcher.metadata.next_update_delay(now))
        if when < math.inf:
            self._timer = self._loop.call_at(when, self.wake)

    def _needs_metadata(self) -> bool:
        return bool(self._fetcher.partitions) or (self.group is not None and bool(self.group.watched_topics))

    def topics_changed(self) -> None:
        """Partitions were assigned, or topics are watched: metadata has to keep their topics, and no others."""
        self._has_new_topics = True
        self.wake()

    @contextmanager
    def looking_up(self, topics: Iterable[str]) -> Iterator[None]:
        """Keep the metadata of topics for a call, whether they are assigned or not."""
        names = set(topics)
        self._looked_up.update(names)
        try:
            yield
        finally:
            self._looked_up.subtract(names)
            self._looked_up += Counter()
            self.topics_changed()

    def _retain_topics(self) -> None:
        self._has_new_topics = False
        self._fetcher.metadata.retain_topics(self._read_topics() | self._looked_up.keys())

    def _read_topics(self) -> set[str]:
        """Return the topics of the assigned partitions, and those that the group watches."""
        assigned = {name.topic for name in self._fetcher.partitions}
        return assigned if self.group is None else assigned | self.group.watched_topics

    def _initialize(self) -> None:
        names = self._fetcher.uninitialized()
        if self.group is None:
            for name in names:
                self._fetcher.initialize(name, None)
        elif names and not _is_running(self._committed_task):
            partitions = [self._fetcher.partitions[name] for name in names]
            asking = self._ask_group(self.group, partitions)
            self._committed_task = self._start(asking, "aioproducer-consumer-committed")

    def _start(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.error = error
        if not self._is_closed:
            # The event may have been the last one for long: waiters check their conditions after the pass.
            self.wake()

    # Tasks

    async def _fetch(self, plan: PlannedFetch) -> None:
        timeout = self._request_timeout + plan.request.max_wait_ms / 1000
        began = self._loop.time()
        try:
            response = await self._clients.fetch.request(
                plan.request, node_id=plan.node_id, highest=plan.highest, timeout=timeout
            )
        except KafkaError as error:
            self._log.info("Fetch from broker %d: %s", plan.node_id, error)
            self._fetcher.fetch_failed(plan, error, self._loop.time())
            return
        now, before = self._loop.time(), self._fetcher.received_bytes
        change = self._fetcher.fetch_answered(plan, response, now)
        node = self._clients.fetch.node(plan.node_id)
        sensors = None if node is None else node.sensors
        size = self._fetcher.received_bytes - before
        self._metrics.fetched(sensors, size, response.throttle_time_ms, began, now)
        if self._fetcher.records.next_batches() is not None:
            # Two iterations of the loop earlier than the pass would.
            self.wake_waiters()
        if change:
            for client in self._clients:
                client.apply_change(change)

    async def _look_up(self, plan: PlannedLookup) -> None:
        try:
            response: ListOffsetsResponse | OffsetForLeaderEpochResponse = await self._clients.control.request(
                plan.request, node_id=plan.node_id, lowest=plan.lowest, timeout=self._request_timeout
            )
        except KafkaError as error:
            self._lookups.failed(plan, error, self._loop.time())
            return
        now = self._loop.time()
        if isinstance(plan, PlannedReset):
            assert isinstance(response, ListOffsetsResponse)
            self._lookups.offsets_listed(plan, response, now)
        else:
            assert isinstance(response, OffsetForLeaderEpochResponse)
            self._lookups.epochs_ended(plan, response, now)

    async def _update_metadata(self) -> None:
        try:
            await self._clients.control.update_metadata(self._request_timeout)
        except KafkaError as error:
            if not error.retriable:
                raise
            self._log.info("Metadata: %s", error)
        else:
            self._warn_of_missing_topics()

    def _warn_of_missing_topics(self) -> None:
        """Log each topic that two responses in a row lack: one broker may lag behind, or create it just now."""
        metadata = self._fetcher.metadata
        missing = frozenset(
            name for name in self._read_topics() if metadata.topic_error(name) == UnknownTopicOrPartitionError.code
        )
        for name in sorted(missing & self._missing - self._warned_of):
            self._log.warning("The topic %r does not exist: nothing is read of it until it does", name)
        self._warned_of = missing & (self._missing | self._warned_of)
        self._missing = missing

    async def _ask_group(self, group: GroupOffsets, partitions: list[AssignedPartition]) -> None:
        names = [each.name for each in partitions]
        try:
            committed = await group.committed(names, self._request_timeout)
        except KafkaError as error:
            if not error.retriable:
                raise
            self._log.info("Fetching committed offsets failed: %s", error)
            await asyncio.sleep(self._fetcher.settings.retry_backoff.maximum)
            return
        for each in partitions:
            if self._fetcher.partitions.get(each.name) is not each:
                # It was taken away, and may have come back: another member may have committed since.
                continue
            offset = committed.get(each.name)
            epoch = -1 if offset is None or offset.leader_epoch is None else offset.leader_epoch
            self._fetcher.initialize(each.name, None if offset is None else FetchPosition(offset.offset, epoch))

    # Waiting

    async def wait(self, timeout: float | None) -> None:
        """Wait until something has changed, for at most ``timeout`` seconds."""
        if self._is_closed:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        # asyncio.wait would take an iteration of the loop more.
        timer = None if timeout is None else self._loop.call_later(timeout, _resolve, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def now(self) -> float:
        """Return the time of the loop, in seconds."""
        return self._loop.time()

    async def until_closed(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the result of a call, which ``close`` ends.

        Raises:
            ConsumerClosedError: the consumer was closed meanwhile.
        """
        task = self._loop.create_task(call)
        self._calls[task] = None
        task.add_done_callback(self._calls.pop)
        try:
            return await task
        except asyncio.CancelledError:
            if self._is_closed and task.cancelled() and not _is_cancelled():
                raise ConsumerClosedError("the consumer was closed before the call ended") from None
            task.cancel()
            raise

    def wake_waiters(self) -> None:
        """Let the calls that wait check their conditions."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _resolve(waiter)

    def take_error(self) -> BaseException | None:
        """Return an error of the whole client, once."""
        error, self.error = self.error, None
        if error is not None:
            self.wake()
        return error.fresh() if isinstance(error, KafkaError) else error

    # The end

    async def close(self, timeout: float) -> None:
        """End every task, idle fetch sessions within ``timeout`` seconds, and every connection."""
        self._is_closed = True
        for call in list(self._calls):
            call.cancel()
        for handle in (self._pass, self._timer):
            if handle is not None:
                handle.cancel()
        self.wake_waiters()
        busy = self._fetcher.busy_nodes()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end_sessions(busy, min(timeout, SESSION_END_TIMEOUT))
        finally:
            try:
                await self._clients.fetch.close()
            finally:
                try:
                    await self._clients.coordinator.close()
                finally:
                    await self._clients.control.close()

    async def _end_sessions(self, busy: set[int], timeout: float) -> None:
        """End the sessions of nodes without a request in flight: the others would answer it first."""
        ends = [
            (node_id, request)
            for node_id, request in self._fetcher.build_session_ends()
            if node_id not in busy
            and (node := self._clients.fetch.node(node_id)) is not None
            and node.can_send(self._loop.time())
        ]
        if ends and timeout > 0:
            await asyncio.gather(*(self._end_session(node_id, request, timeout) for node_id, request in ends))

    async def _end_session(self, node_id: int, request: FetchRequest, timeout: float) -> None:
        try:
            await self._clients.fetch.request(request, node_id=node_id, timeout=timeout)
        except KafkaError as error:
            self._log.info("The fetch session of broker %d was not ended: %s", node_id, error)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _is_running(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done()


def _if_cancelled(
    task: asyncio.Task[None], failed: Callable[[KafkaError, float], object], loop: asyncio.AbstractEventLoop
) -> None:
    """Call ``failed`` if ``task`` is cancelled: a program may cancel all tasks of its loop and continue.

    A task that is cancelled before it begins runs no line of its own, so that it cannot do this itself.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            failed(NetworkError("the task of the request was cancelled"), loop.time())

    task.add_done_callback(ended)


def _is_cancelled() -> bool:
    """Return whether the running task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
