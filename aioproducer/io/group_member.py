"""The membership of a consumer in its group, on asyncio: ``GroupMembership`` decides, this sends, waits and calls.

One task drives the member: it sends heartbeats and joins whatever the application does. The application's coroutine
runs the rebalance listener, in ``before_records``: when it asks for the next records, the ones before are processed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from random import Random

from aioproducer._common.client_log import ClientLog
from aioproducer.core.membership.events import EventKind, LeaveOperation
from aioproducer.core.membership.membership import GroupMembership
from aioproducer.core.membership.requests import GroupRequest
from aioproducer.core.membership.states import FAILED, FENCED
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.core.transactions.requests import Result
from aioproducer.errors import KafkaError, NetworkError
from aioproducer.io.client import BrokerClient
from aioproducer.io.dialing import NodeSettings
from aioproducer.offsets import OffsetAndMetadata
from aioproducer.protocol import Response
from aioproducer.record import TopicPartition
from aioproducer.transport.base import Connector

# A loop that was blocked this long, in seconds, is named when the member loses its partitions.
_BLOCKED = 1.0
# Seconds between attempts to get the topics' metadata, after those of the client itself.
_METADATA_PAUSE = 0.5


class CoordinatorClient(BrokerClient):
    """The connections of one member: to any node for lookups, and to its coordinator."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metadata: ClusterMetadata,
        connector: Connector,
        settings: NodeSettings,
        *,
        random: Random,
    ) -> None:
        super().__init__(loop, metadata, connector, settings, random=random)
        # Nodes with a connection that is about to end.
        self._ending: set[int] = set()

    async def exchange(self, request: GroupRequest) -> Response:
        """Return the response to a request of the member.

        Raises:
            KafkaError: as ``request`` does.
        """
        api_key, lowest, highest = request.api_key, request.lowest_version, request.highest_version
        try:
            async with asyncio.timeout(request.timeout):
                if request.node is None:
                    node = await self._any_usable()
                else:
                    if self.node(request.node) is None:
                        await self.renew_metadata(request.timeout)
                    await self._wait_ended(request.node)
                    node = await self._usable(request.node)
                version = node.negotiate(api_key, highest, lowest)
                completed = await self._send(node, request.build(version), version, version, request.timeout)
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            raise self._too_late(request.timeout) from None
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


class GroupMember:
    """Drives a ``GroupMembership``.

    Args:
        client: its connections; ``close`` closes them.
        on_assignment: called with the partitions that may be read, whenever they have changed.
        metadata_max_age: seconds after which the topics' metadata is requested again.
        timeout: of commits and fetches of offsets, in seconds (``default.api.timeout.ms``).
    """

    def __init__(
        self,
        client: CoordinatorClient,
        membership: GroupMembership,
        *,
        listener: RebalanceListener | None = None,
        on_assignment: Callable[[frozenset[TopicPartition]], None] | None = None,
        metadata_max_age: float = 300.0,
        timeout: float = 60.0,
        log: ClientLog,
    ) -> None:
        self.membership = membership
        self._client = client
        self._listener = listener or RebalanceListener()
        self._on_assignment = on_assignment
        self._metadata_max_age = metadata_max_age
        self._timeout = timeout
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._watched_changed = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._assignment: frozenset[TopicPartition] = frozenset()
        self._watched: frozenset[str] = frozenset()
        self._coordinator: int | None = None
        self._failure: BaseException | None = None
        self._is_handling = False
        self._wake_at = float("inf")
        self._longest_delay = 0.0

    def start(self) -> None:
        """Begin to join: the subscription is that of the membership."""
        self._spawn(self._drive(), "aioproducer-group-member")
        self._spawn(self._watch_topics(), "aioproducer-group-metadata")

    # The application

    async def before_records(self) -> None:
        """The application asks for its next records: run the listener for what has happened.

        Raises:
            KafkaError: the member is fenced, or has failed; after a failure the next call tries again.
            Exception: a listener raised it; the rebalance goes on.
        """
        self.membership.polled(self._loop.time())
        self._woken.set()
        await self.handle_events()

    async def handle_events(self) -> None:
        """Run the listener for the events that wait. The caller waits for records, so that it processes none now.

        Raises:
            KafkaError, Exception: as ``before_records``.
        """
        if self._failure is not None:
            raise self._failure
        self._pump()
        await self._run_listener()
        membership = self.membership
        if membership.state is FENCED or membership.state is FAILED:
            error = membership.error
            assert error is not None
            if membership.state is FAILED:
                membership.restart()
                self._woken.set()
            raise error.fresh()

    async def _run_listener(self) -> None:
        """Run the listener for each event that waits, and confirm it."""
        membership = self.membership
        while membership.event is not None and not self._is_handling:
            event = membership.event
            calls = {
                EventKind.REVOKED: self._listener.on_revoked,
                EventKind.ASSIGNED: self._listener.on_assigned,
                EventKind.LOST: self._listener.on_lost,
            }
            self._is_handling = True
            try:
                await calls[event.kind](event.partitions)
            finally:
                # A listener that fails or is cancelled is not called again: the group cannot wait for it.
                self._is_handling = False
                membership.confirm(event)
                self._woken.set()
                self._pump()

    async def wait_changed(self) -> None:
        """Wait until an event or an error waits for ``handle_events``."""
        while not self._has_news():
            self._changed.clear()
            await self._changed.wait()

    def _has_news(self) -> bool:
        membership = self.membership
        is_over = membership.state is FENCED or membership.state is FAILED
        return self._failure is not None or is_over or (membership.event is not None and not self._is_handling)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets; partitions without one are missing.

        Raises:
            KafkaTimeoutError: there was no answer in time.
            KafkaError: the coordinator rejects the request.
        """
        result = self.membership.fetch_offsets(partitions, self._deadline(timeout))
        await self._ended(result)
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
            KafkaError: the coordinator rejects the request.
        """
        await self._ended(self.membership.commit(offsets, self._deadline(timeout), retries=retries))

    def _deadline(self, timeout: float | None) -> float:
        return self._loop.time() + (self._timeout if timeout is None else timeout)

    async def _ended(self, result: Result) -> None:
        ended = asyncio.Event()
        result.add_callback(ended.set)
        self._woken.set()
        await ended.wait()
        if result.error is not None:
            raise result.error.fresh()

    async def close(self, timeout: float, operation: LeaveOperation = LeaveOperation.DEFAULT) -> None:
        """Run the listener for all partitions, leave the group, and end the connections, within ``timeout`` seconds.

        Raises:
            Exception: a listener raised it; the member has left.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._leave(operation)
        except TimeoutError:
            self._log.warning("The group was not left within %.3g s: its session ends later", timeout)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._client.close()

    async def _leave(self, operation: LeaveOperation) -> None:
        result = self.membership.leave(operation)
        result.add_callback(self._changed.set)
        self._woken.set()
        self._pump()
        failure: Exception | None = None
        while not result.done and self._failure is None:
            self._changed.clear()
            if self.membership.event is None or self._is_handling:
                await self._changed.wait()
                continue
            try:
                await self._run_listener()
            except Exception as error:
                # Kafka's consumer leaves the group all the same.
                failure = failure or error
        if result.error is not None:
            self._log.warning("The coordinator answered LeaveGroup with an error: %s", result.error)
        if failure is not None:
            raise failure

    # Tasks

    async def _drive(self) -> None:
        while True:
            self._woken.clear()
            self._pump()
            self._wake_at = self.membership.wake_at
            delay = self._wake_at - self._loop.time()
            try:
                async with asyncio.timeout(None if delay == float("inf") else max(delay, 0)):
                    await self._woken.wait()
            except TimeoutError:
                # How late the loop is: heartbeats wait as long.
                self._longest_delay = max(self._longest_delay, self._loop.time() - self._wake_at)

    def _pump(self) -> None:
        """Send what is due, and pass on what has changed."""
        membership = self.membership
        while (request := membership.poll(self._loop.time())) is not None:
            if request.needs_new_connection and request.node is not None:
                self._client.end_connection(
                    request.node, "a request of the group's member must not wait for a rebalance"
                )
            self._spawn(self._exchange(request), "aioproducer-group-request")
        if self._coordinator is not None and membership.coordinator is None:
            self._client.end_connection(self._coordinator, "the group's coordinator has moved, or does not answer")
        self._coordinator = membership.coordinator
        if membership.watched_topics != self._watched or membership.needs_metadata:
            self._watched = membership.watched_topics
            self._watched_changed.set()
        if membership.assignment != self._assignment:
            self._assignment = membership.assignment
            if self._on_assignment is not None:
                self._on_assignment(self._assignment)
        event = membership.event
        if event is not None and event.kind is EventKind.LOST:
            if self._longest_delay >= _BLOCKED:
                self._log.warning(
                    "The member of the group %r has lost its partitions. The event loop was blocked for up to %.1f s, "
                    "and no heartbeat was sent in that time: move long work to a thread",
                    membership.settings.group_id,
                    self._longest_delay,
                )
            self._longest_delay = 0.0
        if self._has_news():
            self._changed.set()

    async def _exchange(self, request: GroupRequest) -> None:
        try:
            response = await self._client.exchange(request)
        except KafkaError as error:
            self.membership.disconnected(request, error, self._loop.time())
        else:
            self.membership.answered(request, response, self._loop.time())
        self._woken.set()

    async def _watch_topics(self) -> None:
        """Keep the metadata of the watched topics."""
        client, membership = self._client, self.membership
        while True:
            self._watched_changed.clear()
            names = membership.watched_topics
            now = self._loop.time()
            if names:
                for name in names:
                    client.metadata.add_topic(name, now)
                try:
                    await client.renew_metadata(membership.settings.request_timeout_ms / 1000)
                except KafkaError as error:
                    # The member itself fails if the cluster rejects this client for good.
                    self._log.warning("No metadata of the group's topics: %s", error)
                    await asyncio.sleep(_METADATA_PAUSE)
                    continue
                membership.update_metadata({name: self._racks(name) for name in names}, names)
                self._woken.set()
            try:
                async with asyncio.timeout(self._metadata_max_age):
                    await self._watched_changed.wait()
            except TimeoutError:
                continue

    def _racks(self, name: str) -> tuple[frozenset[str], ...]:
        """Return the racks of the replicas of each partition of a topic; empty if it does not exist."""
        metadata = self._client.metadata
        topic = metadata.topic(name)
        if topic is None:
            return ()
        racks = []
        for partition in topic.partitions:
            nodes = [metadata.node(node_id) for node_id in partition.replicas]
            racks.append(frozenset(node.rack for node in nodes if node is not None and node.rack))
        return tuple(racks)

    def _spawn(self, coroutine: Coroutine[object, object, None], name: str) -> None:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended_task)

    def _ended_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            # The next request for records raises it.
            self._failure = failure
            self._changed.set()
