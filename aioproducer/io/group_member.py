"""The membership of a consumer in its group, on asyncio: ``GroupMembership`` decides, this sends, waits and calls.

One task drives the member: it sends heartbeats and joins whatever the application does. The rebalance listener begins
when the application asks for its next records, as the ones before are processed then. It runs in a task of its own: a
cancelled request for records does not cancel it, and the next one waits for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from random import Random
from typing import Any, NamedTuple

from aioproducer._common.client_log import ClientLog
from aioproducer.consumer_metrics import ConsumerMetrics
from aioproducer.core.membership.events import EventKind, LeaveOperation, RebalanceEvent
from aioproducer.core.membership.membership import GroupMembership
from aioproducer.core.membership.offsets import FetchedOffsets
from aioproducer.core.membership.requests import GroupRequest
from aioproducer.core.membership.states import (
    AWAITING_SYNC,
    FAILED,
    FENCED,
    FINDING_COORDINATOR,
    IN_GENERATION,
    JOINING,
    REVOKING,
    STABLE,
)
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.core.transactions.requests import Result
from aioproducer.errors import ConsumerClosedError, KafkaError, NetworkError, WrongCallerError
from aioproducer.io.client import BrokerClient
from aioproducer.io.dialing import NodeSettings
from aioproducer.io.group_topics import GroupTopics
from aioproducer.metrics import ConnectionMetrics
from aioproducer.offsets import ConsumerGroupMetadata, OffsetAndMetadata
from aioproducer.protocol import ApiKey, Response
from aioproducer.record import TopicPartition
from aioproducer.transport.base import Connector

# A loop that was blocked this long, in seconds, is named when the member loses its partitions.
_BLOCKED = 1.0
# The task that drives a member wakes at least this often, in seconds, to measure how long the loop was blocked.
_PULSE = 1.0
# The part of its timeout that ``close`` waits for commits in progress; the rest is for the listener and LeaveGroup.
_COMMITS_PART = 0.5
# Seconds that ``close`` waits for cancelled tasks: a listener may ignore its cancellation.
_CANCELLATION = 1.0


class CoordinatorClient(BrokerClient):
    """The connections of one member to its coordinator.

    Args:
        control: the client that looks up coordinators and requests metadata; by default this one.
        metrics: as of ``BrokerClient``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metadata: ClusterMetadata,
        connector: Connector,
        settings: NodeSettings,
        *,
        random: Random,
        control: BrokerClient | None = None,
        metrics: ConnectionMetrics | None = None,
    ) -> None:
        super().__init__(loop, metadata, connector, settings, random=random, metrics=metrics)
        self._control = control or self
        # Nodes whose connection is about to end.
        self._ending: set[int] = set()

    async def exchange(self, request: GroupRequest) -> Response:
        """Return the response to a request of the member.

        Raises:
            KafkaError: as ``request`` does.
        """
        client: BrokerClient = self if request.node is not None else self._control
        try:
            async with asyncio.timeout(request.timeout):
                if request.node is None:
                    node, now = await client._any_usable()
                else:
                    if self.node(request.node) is None:
                        await self._control.renew_metadata(request.timeout)
                    await self._wait_ended(request.node)
                    node, now = await self._usable(request.node)
                version = node.negotiate(request.api_key, request.highest_version, request.lowest_version)
                completed = await client._send(node, now, request.build(version), version, version, request.timeout)
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            raise client._too_late(request.timeout) from None
        response = completed.response
        assert isinstance(response, Response)
        return response

    def end_connection(self, node_id: int, reason: str) -> None:
        """End the connection to a node: its requests in flight fail, later ones take a new connection."""
        node = self.node(node_id)
        if node is not None and node.connected:
            node.poison(NetworkError(reason))
            self._ending.add(node_id)

    async def _wait_ended(self, node_id: int) -> None:
        node = self.node(node_id)
        if node is not None and node_id in self._ending:
            await node.disconnected()
        self._ending.discard(node_id)


class RebalanceListener:
    """Receives the partitions that come and go (Kafka's ``ConsumerRebalanceListener``); override what is needed.

    The group waits for these coroutines, at most ``max_poll_interval_ms`` since the last request for records.
    """

    async def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Other members may receive these partitions. Their offsets can still be committed."""

    async def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions were added. Records of them follow."""

    async def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Other members may have these partitions already. By default this calls ``on_revoked``."""
        await self.on_revoked(partitions)


class _Blocked(NamedTuple):
    """A time in which the loop ran nothing, in seconds, and when it ended."""

    duration: float
    until: float


class GroupMember:
    """Drives a ``GroupMembership``, and keeps its topics.

    Args:
        client: its connections; ``close`` closes them.
        control: the client whose metadata counts; its owner requests the updates, and calls ``metadata_applied``.
        on_assignment: called when partitions came or went, with those that are owned, and those of them that may be
            read: not while the listener runs for them, or has to.
        on_news: called when ``has_news`` has become true.
        timeout: of commits and fetches of offsets, in seconds (``default.api.timeout.ms``).
        metrics: of the consumer.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        membership: GroupMembership,
        *,
        control: BrokerClient,
        listener: RebalanceListener | None = None,
        on_assignment: Callable[[frozenset[TopicPartition], frozenset[TopicPartition]], object] | None = None,
        on_news: Callable[[], object] | None = None,
        request_metadata: Callable[[], object],
        metadata_max_age: float = 300.0,
        exclude_internal: bool = True,
        allow_creation: bool = False,
        timeout: float = 60.0,
        backoff: ExponentialBackoff,
        random: Random,
        log: ClientLog,
        metrics: ConsumerMetrics | None = None,
    ) -> None:
        self.membership = membership
        self._metrics = metrics or ConsumerMetrics()
        self._client = client
        self._listener = listener or RebalanceListener()
        self._on_assignment = on_assignment
        self._on_news = on_news
        self._timeout = timeout
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._changed = asyncio.Event()
        # A dict keeps the order in which tasks are cancelled. A set's order depends on addresses, so that a simulation
        # could not be replayed.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._driving: asyncio.Task[None] | None = None
        self._handling: asyncio.Task[None] | None = None
        self._listener_errors: list[Exception] = []
        self._calls: dict[Result, None] = {}
        self._assignment = (frozenset[TopicPartition](), frozenset[TopicPartition]())
        self._coordinator: int | None = None
        self._failure: BaseException | None = None
        self._closing: asyncio.Future[None] = self._loop.create_future()
        self._has_ended = False
        self._wake_at = float("inf")
        self._blocked: _Blocked | None = None
        self._announced: tuple[RebalanceEvent, bool] | None = None
        self._polled_before = float("-inf")
        self._was_silent = False
        self.polled_at = float("-inf")
        """When the application asked for records, in loop seconds; the application sets it."""
        self.is_waiting = False
        """Whether the application waits for records now; the application sets it. That counts as asking for them."""
        self.has_news = False
        """Whether an event or an error waits for ``handle_events``, or the member has left as nothing was requested."""
        self.topics = GroupTopics(
            control,
            membership,
            metadata_max_age=metadata_max_age,
            exclude_internal=exclude_internal,
            allow_creation=allow_creation,
            backoff=backoff,
            random=random,
            changed=self._wake,
            request_metadata=request_metadata,
            spawn=self._spawn,
            log=log,
        )

    def start(self) -> None:
        """Begin to drive the member; it joins when something is subscribed."""
        if self._driving is None or self._driving.done():
            self._driving = self._spawn(self._drive(), "aioproducer-group-member")

    def _wake(self) -> None:
        self._woken.set()

    # The subscription

    def subscribe(self, topics: frozenset[str]) -> None:
        """Read these topics; a change leads to a rebalance."""
        self.topics.subscribe(topics)

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Read the topics whose whole names match, also future ones."""
        self.topics.subscribe_pattern(pattern)

    @property
    def subscription(self) -> frozenset[str]:
        """The subscribed topics; of a pattern those that it has matched so far."""
        return self.membership.subscription

    @property
    def is_leaving(self) -> bool:
        """Whether ``leave`` was called, and has not ended yet."""
        return self.membership.is_leaving

    async def leave(self) -> None:
        """End the subscription: run the listener for all partitions, and leave the group.

        Raises:
            WrongCallerError: the listener itself calls this.
            Exception: a listener raised it; the member has left.
        """
        self.check_caller("unsubscribe")
        self.topics.unsubscribe()
        await self._leave(LeaveOperation.DEFAULT, "the consumer unsubscribed from all topics")

    def check_caller(self, call: str) -> None:
        """Check that the caller is not the listener.

        Raises:
            WrongCallerError: it is.
        """
        if self._handling is not None and asyncio.current_task() is self._handling:
            raise WrongCallerError(f"a rebalance listener must not call {call}(), which would wait for the listener")

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the group and the member, for transactions; see ``Member.group_metadata``."""
        return self.membership.group_metadata()

    def forget_generation(self) -> None:
        """The application assigns partitions itself from now on."""
        self.membership.forget_generation()

    def revocation_time(self) -> float:
        """Return the seconds that the group still waits for this member, before it loses its partitions."""
        return max(self.membership.poll_until - self._loop.time(), 0.0)

    @property
    def watched_topics(self) -> frozenset[str]:
        """The topics whose metadata has to be kept."""
        return self.topics.watched

    def metadata_applied(self) -> None:
        """Pass on metadata if there is newer one."""
        self.topics.metadata_applied()

    # The application

    async def before_records(self) -> None:
        """The application asks for its next records: run the listener for what has happened.

        Raises:
            KafkaError: the member is fenced, or has failed; after a failure the next call tries again.
            Exception: a listener raised it; the rebalance goes on.
        """
        self.polled_at = self._loop.time()
        self._woken.set()
        await self.handle_events()

    async def handle_events(self, timeout: float | None = None) -> bool:
        """Run the listener for the events that wait; return whether it has ended within ``timeout`` seconds.

        A cancelled call, or one that was too short, does not cancel the listener: the next one waits for it.

        Raises:
            WrongCallerError: the listener itself requests records.
            KafkaError, Exception: as ``before_records``.
        """
        self.check_caller("poll")
        deadline = None if timeout is None else self._loop.time() + timeout
        while True:
            if self._failure is not None:
                raise self._failure
            self.start()
            self._pump()
            self._begin_handling()
            if self._handling is None:
                break
            left = None if deadline is None else max(deadline - self._loop.time(), 0)
            handling: set[asyncio.Future[None]] = {self._handling, self._closing}
            await asyncio.wait(handling, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if self._handling is not None:
                return False
        # The application asks for records still, or again.
        self.polled_at = self._loop.time()
        self._woken.set()
        if self._listener_errors:
            raise self._listener_errors.pop(0)
        error = self.topics.take_error()
        membership = self.membership
        if membership.state is FENCED or membership.state is FAILED:
            error = membership.error
            if membership.state is FAILED:
                membership.restart()
                self._woken.set()
        self._check_news()
        if error is not None:
            raise error.fresh()
        return True

    def _begin_handling(self) -> None:
        if self._handling is None and self.membership.event is not None:
            self._handling = self._spawn(self._handle(self.membership.event), "aioproducer-group-listener")

    async def _handle(self, event: RebalanceEvent) -> None:
        """Run the listener for an event, and confirm it."""
        try:
            if self._is_loss(event):
                if event.partitions:
                    await self._listener.on_lost(event.partitions)
            elif event.kind is EventKind.REVOKED:
                await self._listener.on_revoked(event.partitions)
            else:
                await self._listener.on_assigned(event.partitions)
        except Exception as error:
            self._listener_errors.append(error)
        finally:
            # A listener that fails or is cancelled is not called again: the group cannot wait for it.
            self._handling = None
            self.membership.confirm(event)
            self._woken.set()
            if not self._has_ended:
                self._pump()
            self._changed.set()

    def _is_loss(self, event: RebalanceEvent) -> bool:
        """Return whether other members may have the partitions already.

        This includes a revocation that waited for a request when the member lost its generation.
        """
        return event.kind is EventKind.LOST or (
            event.kind is EventKind.REVOKED and not self.membership.generation.exists
        )

    def _check_news(self) -> None:
        membership = self.membership
        self.has_news = (
            membership.event is not None
            or membership.is_silent
            or membership.state is FENCED
            or membership.state is FAILED
            or self._failure is not None
            or self.topics.has_error
            or bool(self._listener_errors)
        )

    async def wait_changed(self) -> None:
        """Wait until an event or an error waits for ``handle_events``."""
        self._check_news()
        while not self.has_news:
            self._changed.clear()
            await self._changed.wait()

    # Offsets

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets; partitions without one are missing.

        Raises:
            KafkaTimeoutError: there was no answer in time.
            ConsumerClosedError: the member was closed meanwhile.
            KafkaError: the coordinator rejects the request.
        """
        self._raise_if_closed()
        result = self.membership.fetch_offsets(partitions, self._deadline(timeout))
        await self.ended(result)
        return {where: offset for where, offset in result.offsets.items() if offset is not None}

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout: float | None = None,
        *,
        retries: bool = True,
    ) -> None:
        """Commit offsets. A cancelled call does not cancel the commit.

        Raises:
            CommitFailedError: the member has lost its partitions.
            RebalanceInProgressError: the group is rebalancing.
            KafkaTimeoutError: there was no answer in time.
            ConsumerClosedError: the member was closed meanwhile.
            KafkaError: the coordinator rejects the request.
        """
        await self.ended(self.begin_commit(offsets, timeout, retries=retries))

    def begin_commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout: float | None = None,
        *,
        retries: bool = True,
    ) -> Result:
        """Commit offsets in the background; the result ends with the errors of ``commit``."""
        self._raise_if_closed()
        result = self.membership.commit(offsets, self._deadline(timeout), retries=retries)
        self._keep(result)
        return result

    def _deadline(self, timeout: float | None) -> float:
        return self._loop.time() + (self._timeout if timeout is None else timeout)

    def _raise_if_closed(self) -> None:
        if self._has_ended:
            raise _closed()

    def _keep(self, result: Result) -> None:
        """Let ``close`` end a call that has not ended before."""
        self._calls[result] = None
        result.add_callback(lambda: self._calls.pop(result, None))
        self.start()
        self._woken.set()

    async def ended(self, result: Result) -> None:
        """Wait for the end of a call, and raise its error."""
        ended = asyncio.Event()
        self._keep(result)
        result.add_callback(ended.set)
        await ended.wait()
        if result.error is not None:
            raise result.error.fresh()

    # The end

    async def close(self, timeout: float, operation: LeaveOperation = LeaveOperation.DEFAULT) -> None:
        """Run the listener for all partitions, leave the group, and end the connections, within ``timeout`` seconds.

        Commits in progress have half of the time. Calls that have not ended by then raise ConsumerClosedError.

        Raises:
            WrongCallerError: the listener itself calls this.
            Exception: a listener raised it; the member has left.
        """
        self.check_caller("close")
        if not self._closing.done():
            self._closing.set_result(None)
        try:
            async with asyncio.timeout(timeout):
                await self._end_commits(timeout * _COMMITS_PART)
                await self._leave(operation, "the consumer is being closed")
        except TimeoutError:
            self._log.warning(
                "The group %r was not left within %.3g s: its session ends later",
                self.membership.settings.group_id,
                timeout,
            )
        finally:
            await self._end()

    def _commits(self) -> list[Result]:
        return [call for call in self._calls if not isinstance(call, FetchedOffsets)]

    async def _end_commits(self, timeout: float) -> None:
        """Wait for the commits in progress; end those that need more than ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while self._commits():
                    # The program may have cancelled all tasks.
                    self.start()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            # The commit before the revocation would wait for them.
            for call in self._commits():
                call.end(_closed())

    async def _end(self) -> None:
        """End every call, task and connection."""
        self._has_ended = True
        for call in list(self._calls):
            call.end(_closed())
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                _, pending = await asyncio.wait(tasks, timeout=_CANCELLATION)
                if pending:
                    self._log.warning("The rebalance listener ignores its cancellation: close() no longer waits for it")
        finally:
            await self._client.close()

    async def _leave(self, operation: LeaveOperation, reason: str) -> None:
        result = self.membership.leave(operation, reason)
        result.add_callback(self._changed.set)
        self.start()
        self._pump()
        while not result.done and self._failure is None:
            self._changed.clear()
            self._begin_handling()
            if self._handling is not None:
                await asyncio.wait([self._handling])
            else:
                await self._changed.wait()
        if self._failure is not None:
            raise self._failure
        if result.error is not None:
            self._log.warning("The coordinator answered LeaveGroup with an error: %s", result.error)
        if self._listener_errors:
            # Kafka's consumer leaves the group all the same.
            failure = self._listener_errors[0]
            self._listener_errors.clear()
            raise failure

    # Tasks

    async def _drive(self) -> None:
        while True:
            self._woken.clear()
            self._pump()
            now = self._loop.time()
            self._wake_at = self.membership.wake_at
            if self.membership.state in IN_GENERATION:
                self._wake_at = min(self._wake_at, now + _PULSE)
            delay = self._wake_at - now
            try:
                async with asyncio.timeout(None if delay == float("inf") else max(delay, 0)):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._measure()

    def _measure(self) -> None:
        """Note how late the loop is: heartbeats wait as long."""
        now = self._loop.time()
        late = now - self._wake_at
        if late < _BLOCKED:
            return
        known = self._blocked
        if known is None or late > known.duration or now - known.until > self._session:
            self._blocked = _Blocked(late, now)

    @property
    def _session(self) -> float:
        return self.membership.settings.session_timeout_ms / 1000

    def _pump(self) -> None:
        """Send what is due, and pass on what has changed."""
        membership, now = self.membership, self._loop.time()
        if self.is_waiting:
            self.polled_at = now
        if self.polled_at > self._polled_before:
            self._polled_before = self.polled_at
            membership.polled(self.polled_at)
        while (request := membership.poll(now)) is not None:
            if request.needs_new_connection and request.node is not None:
                self._client.end_connection(
                    request.node, "a request of the group's member must not wait for a rebalance"
                )
            task = self._spawn(self._exchange(request), "aioproducer-group-request")
            task.add_done_callback(partial(self._exchange_ended, request))
        self._follow_rebalance()
        if self._coordinator is not None and membership.coordinator is None:
            self._client.end_connection(self._coordinator, "the group's coordinator has moved, or does not answer")
        self._coordinator = membership.coordinator
        if self.topics.watch():
            self._woken.set()
        assignment = (membership.owned, membership.assignment)
        if assignment != self._assignment:
            self._assignment = assignment
            if self._on_assignment is not None:
                self._on_assignment(*assignment)
        self._log_losses()
        self._check_news()
        self._changed.set()
        if self.has_news and self._on_news is not None:
            self._on_news()

    def _log_losses(self) -> None:
        membership, settings = self.membership, self.membership.settings
        if membership.is_silent and not self._was_silent:
            self._log.warning(
                "No records were requested within max_poll_interval_ms (%d): the member left the group %r, and joins "
                "again at the next request. Handle records faster, or take fewer at a time (max_poll_records)",
                settings.max_poll_interval_ms,
                settings.group_id,
            )
        self._was_silent = membership.is_silent
        event = membership.event
        if event is None:
            return
        is_loss = self._is_loss(event)
        if self._announced == (event, is_loss):
            return
        self._announced = (event, is_loss)
        if not is_loss:
            return
        blocked, self._blocked = self._blocked, None
        if blocked is not None and self._loop.time() - blocked.until <= self._session:
            self._log.warning(
                "The member of the group %r has lost its partitions. The event loop was blocked for up to %.1f s, "
                "and no heartbeat was sent in that time: move long work to a thread",
                settings.group_id,
                blocked.duration,
            )

    async def _exchange(self, request: GroupRequest) -> None:
        began = self._loop.time()
        if request.api_key is ApiKey.HEARTBEAT:
            self._metrics.heartbeat_at = began
        try:
            response = await self._client.exchange(request)
        except KafkaError as error:
            self.membership.disconnected(request, error, self._loop.time())
        else:
            now = self._loop.time()
            self._metrics.group_answered(request.api_key, getattr(response, "error_code", 0), began, now)
            self.membership.answered(request, response, now)
        self._follow_rebalance()
        # A request for records may come before the next turn.
        self._check_news()
        self._woken.set()

    def _follow_rebalance(self) -> None:
        """Record the beginning and the end of a rebalance."""
        state, now = self.membership.state, self._loop.time()
        if state is JOINING or state is AWAITING_SYNC:
            self._metrics.rebalance_begins(now)
        elif state is STABLE or state is REVOKING:
            self._metrics.rebalance_ended(now, has_assignment=True)
        elif state is not FINDING_COORDINATOR:
            self._metrics.rebalance_ended(now, has_assignment=False)

    def _exchange_ended(self, request: GroupRequest, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            # All tasks of the loop may have been cancelled, perhaps before this one began, but the program continues.
            reason = NetworkError("the task of the request was cancelled")
            self.membership.disconnected(request, reason, self._loop.time())
            self._woken.set()

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended_task)
        return task

    def _ended_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task is self._handling:
            # It was cancelled before it began.
            self._handling = None
            if self.membership.event is not None:
                self.membership.confirm(self.membership.event)
            self._woken.set()
            self._changed.set()
        if not task.cancelled() and (failure := task.exception()) is not None:
            # The next request for records raises it.
            self._failure = failure
        # If it was cancelled, the next request for records starts the driving task again.
        is_cancelled = self._driving is not None and self._driving.cancelled()
        if not is_cancelled and self._failure is None:
            return
        self.has_news = True
        self._changed.set()
        if self._on_news is not None and not self._closing.done():
            self._on_news()


def _closed() -> ConsumerClosedError:
    return ConsumerClosedError("the consumer was closed before the call ended")
