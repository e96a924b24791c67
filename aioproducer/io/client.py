"""Single requests to the nodes of a cluster, each awaited for its response: the basis of admin calls and readers.

The producer does not use it: it assembles a request when a node has room. Here a caller has a request, waits for a node
that accepts it, and gets the response. Nodes, their connections and backoffs are the same as in the producer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from random import Random
from typing import TypeVar

from aioproducer.core.metadata.cluster import MetadataChange, NodeCandidate, NodeState, least_loaded_node
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.core.requests.connection import Completed
from aioproducer.errors import (
    AuthenticationError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NetworkError,
    UnknownTopicOrPartitionError,
    broker_error,
)
from aioproducer.hooks import Hooks
from aioproducer.io.dialing import NodeSettings
from aioproducer.io.node import InternalRequest, NodeConnection, NodeOwner
from aioproducer.io.node_pool import NodePool
from aioproducer.metrics import ConnectionMetrics
from aioproducer.protocol import ApiKey, Request, Response
from aioproducer.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from aioproducer.transport.base import Connector

R = TypeVar("R", bound=Response)

# Before this version of Metadata an empty list meant all topics.
_NO_TOPICS_FROM = 1


class BrokerClient(NodeOwner):
    """Requests to the nodes of a cluster, each awaited for its response.

    Connections are made when first needed. The client belongs to one event loop, and ``close`` ends it.

    Args:
        metrics: of its connections; clients may share them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metadata: ClusterMetadata,
        connector: Connector,
        settings: NodeSettings,
        *,
        random: Random,
        metrics: ConnectionMetrics | None = None,
    ) -> None:
        super().__init__()
        self.metadata = metadata
        self._loop = loop
        self._log = settings.log
        self._request_timeout = settings.request_timeout
        self._random = random
        self._pool = NodePool(
            loop, metadata, self, connector, settings, metrics or ConnectionMetrics(), Hooks(), random
        )
        self._changed = loop.create_future()
        self._renewing = asyncio.Lock()
        self.on_change: Callable[[MetadataChange], object] | None = None
        """Receives each change of metadata, for another client that shares the metadata and has its own connections."""

    # Requests

    async def request(
        self,
        request: Request[R],
        *,
        node_id: int | None = None,
        lowest: int = 0,
        highest: int = 32767,
        timeout: float,
    ) -> R:
        """Return the response of a node, by default the least loaded one, within ``timeout`` seconds in total.

        Other calls share the connection. If ``request_timeout_ms`` is longer, a missing response ends it only then.

        Args:
            lowest, highest: the versions of the request that may be used.
            node_id: a node that metadata lists. By default, attempts to connect continue until a node is ready.

        Raises:
            KafkaTimeoutError: there was no response in time; the text contains the cause if it is known.
            AuthenticationError: a broker has rejected the client, and none serves it.
            NetworkError, ConnectionFailedError: the given node cannot be reached, or the connection ended.
            UnsupportedVersionError: the node does not support the request in these versions; it was not sent.
        """
        try:
            async with asyncio.timeout(timeout):
                node, now = await self._any_usable() if node_id is None else await self._usable(node_id)
                completed = await self._send(node, now, request, lowest, highest, timeout)
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            raise self._too_late(timeout) from None
        response = completed.response
        assert isinstance(response, request.response_class())
        return response

    def _too_late(self, timeout: float) -> KafkaTimeoutError:
        cause = self.last_error()
        if cause is not None:
            return KafkaTimeoutError(f"No broker could be reached within {timeout:.3g} s. {cause}")
        return KafkaTimeoutError(f"No broker answered within {timeout:.3g} s.")

    async def _send(
        self, node: NodeConnection, now: float, request: Request[R], lowest: int, highest: int, timeout: float
    ) -> Completed:
        answer: asyncio.Future[Completed] = self._loop.create_future()

        def answered(completed: Completed) -> None:
            if not answer.done():
                answer.set_result(completed)

        def failed(error: KafkaError) -> None:
            if not answer.done():
                answer.set_exception(error.fresh())

        api_key = request.schema.api_key
        assert api_key is not None
        version = node.negotiate(api_key, highest, lowest)
        in_flight = max(timeout, self._request_timeout)
        node.send(request, InternalRequest(answered, failed), now, version=version, timeout=in_flight)
        return await answer

    # Nodes

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return sum(node.connected for node in self._pool.nodes.values())

    def node_ready(self, node: NodeConnection) -> None:
        self._pool.node_ready(node)

    def node_changed(self, node: NodeConnection, now: float) -> None:
        """Let every call that waits for a node check again."""
        if not node.connected:
            self._pool.node_lost(node, now)
        self._wake_waiting()

    def authentication_failed(self, node: NodeConnection, error: AuthenticationError, now: float) -> None:
        """The calls that wait for the node raise the error, its ``last_error``, when they check again."""

    def login_failed(self, node: NodeConnection) -> None:
        """The calls that wait for the node try again, or raise the error, when they check again."""

    def _wake_waiting(self) -> None:
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)

    def expected_cluster_id(self) -> str | None:
        return self.metadata.cluster_id

    def node(self, node_id: int) -> NodeConnection | None:
        """Return the connection to a node, None if metadata does not list it."""
        return self._pool.node(node_id)

    def last_error(self) -> KafkaError | None:
        """Return the latest reason why a broker could not be reached, for error messages."""
        return self._pool.last_error()

    async def _usable(self, node_id: int) -> tuple[NodeConnection, float]:
        """Return the node once it can take a request, and the time at which it can: a moment later its session may end.

        Raises:
            NetworkError: metadata does not list it.
            KafkaError: the attempt to connect failed.
        """
        began = self._loop.time()
        while True:
            node = self.node(node_id)
            if node is None:
                raise NetworkError(f"the cluster no longer lists broker {node_id}")
            now = self._loop.time()
            if node.can_send(now):
                return node, now
            # While an attempt is in progress, the error is that of the connection before.
            has_failed = node.last_attempt >= began and not node.connected and not node.is_connecting
            if node.last_error is not None and has_failed:
                raise node.last_error.fresh()
            node.request_connection()
            await self._wait_changed([node], now)

    async def _any_usable(self) -> tuple[NodeConnection, float]:
        """Return a node once it can take a request, and the time at which it can.

        Raises:
            AuthenticationError: a broker has rejected the client, and none serves it.
        """
        began = self._loop.time()
        while True:
            now = self._loop.time()
            node = self._least_loaded(now)
            if node is not None:
                return node, now
            self._raise_if_rejected(began)
            await self._wait_changed(list(self._pool.nodes.values()), now)

    def _raise_if_rejected(self, began: float) -> None:
        nodes = self._pool.nodes.values()
        for node in nodes:
            error = node.last_error
            is_rejected = isinstance(error, AuthenticationError) and not node.connected
            others = any(other.is_ready or other.is_connecting for other in nodes)
            if is_rejected and node.last_attempt >= began and not others:
                assert error is not None
                raise error.fresh()

    def _least_loaded(self, now: float) -> NodeConnection | None:
        """Return a node that can take a request now, or None and connect to one, or to the bootstrap addresses."""
        candidates = [
            NodeCandidate(node_id, NodeState.CAN_CONNECT) if node is None else node.candidate(now)
            for node_id, node in ((node_id, self._pool.nodes.get(node_id)) for node_id in self.metadata.nodes)
        ]
        chosen = least_loaded_node(candidates, self._random)
        self.metadata.begin_attempt(now)
        usable = chosen is not None or any(node.connected for node in self._pool.nodes.values())
        if self.metadata.needs_rebootstrap(now, node_available=usable):
            if not self.metadata.rebootstraps:
                self._log.warning("No known broker can be reached: returning to the bootstrap addresses")
            self._apply(self.metadata.rebootstrap(now))
            return self._least_loaded(now)
        node = None if chosen is None else self.node(chosen)
        if node is None or node.can_send(now):
            return node
        node.request_connection()
        return None

    async def _wait_changed(self, nodes: list[NodeConnection], now: float) -> None:
        """Wait until a node changes, or until a backoff or throttling ends that was in progress at ``now``.

        A later time would miss a backoff that has ended since, and the caller would not wake.
        """
        changed = self._changed
        retry_at = min((node.retry_at() for node in nodes if node.retry_at() > now), default=math.inf)
        timeout = None if retry_at == math.inf else retry_at - now
        await asyncio.wait([changed], timeout=timeout)

    # Metadata

    async def renew_metadata(self, timeout: float) -> None:
        """Request the topics in use again, after a backoff if the last response contained no change.

        Raises:
            KafkaTimeoutError: there was no response in time.
        """
        metadata = self.metadata
        try:
            async with asyncio.timeout(timeout):
                version = metadata.version
                async with self._renewing:
                    while metadata.version == version:
                        await self._request_metadata(timeout)
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            raise self._too_late(timeout) from None

    async def broker_ids(self, timeout: float) -> list[int]:
        """Return the ids of the brokers that the cluster has now.

        Metadata is renewed for a broker that it does not list with this address, and only then: while nothing changes,
        each renewal waits longer than the one before.

        Raises:
            LeaderNotAvailableError: the broker that has answered knows of none, as it has just started.
            KafkaError: as ``request``.
        """
        deadline = self._loop.time() + timeout
        response = await self.request(MetadataRequest(topics=[]), lowest=_NO_TOPICS_FROM, timeout=timeout)
        if response.error_code:
            raise broker_error(response.error_code)
        if not response.brokers:
            raise LeaderNotAvailableError("The broker's metadata lists no brokers: the broker is starting.")
        if not all(self._is_listed(broker) for broker in response.brokers):
            await self.renew_metadata(max(deadline - self._loop.time(), 0))
        return [broker.node_id for broker in response.brokers]

    def _is_listed(self, broker: MetadataResponseBroker) -> bool:
        node = self.metadata.nodes.get(broker.node_id)
        return node is not None and (node.host, node.port) == (broker.host, broker.port)

    async def update_metadata(self, timeout: float) -> None:
        """Send the Metadata request that is due and apply its response; return at once if none is due.

        A failure that may pass is left to the backoff of metadata.

        Raises:
            KafkaTimeoutError: there was no response in time.
            KafkaError: the cluster rejects the client.
        """
        try:
            async with asyncio.timeout(timeout), self._renewing:
                if self.metadata.next_update_delay(self._loop.time()) <= 0:
                    await self._send_metadata(timeout)
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            raise self._too_late(timeout) from None

    async def _request_metadata(self, timeout: float) -> None:
        metadata = self.metadata
        metadata.request_update(self._loop.time(), "a call needs it")
        delay = metadata.next_update_delay(self._loop.time())
        if delay > 0:
            await asyncio.sleep(delay)
        await self._send_metadata(timeout)

    async def _send_metadata(self, timeout: float) -> None:
        metadata = self.metadata
        node, now = await self._any_usable()
        version = node.negotiate(ApiKey.METADATA)
        request = metadata.build_request(now)
        try:
            completed = await self._send(node, now, request, 0, version, timeout)
        except BaseException as error:
            # A cancelled call leaves metadata as if it had not been requested.
            reason = error if isinstance(error, KafkaError) else KafkaTimeoutError("the caller stopped waiting")
            metadata.handle_failure(reason, self._loop.time())
            if isinstance(error, KafkaError) and error.retriable:
                return
            raise
        response = completed.response
        assert isinstance(response, MetadataResponse)
        self._apply(metadata.handle_response(response, self._loop.time(), version=completed.version))

    def _apply(self, change: MetadataChange) -> None:
        self.apply_change(change)
        if self.on_change is not None:
            self.on_change(change)

    def apply_change(self, change: MetadataChange) -> None:
        """Retire and move nodes after a change of the metadata."""
        self._pool.apply(change)
        # A call may wait for a node: the end of its attempt to connect causes no notification.
        self._wake_waiting()

    async def partition_count(self, topic: str, timeout: float) -> int:
        """Return the topic's number of partitions; from then on it is in use, and metadata keeps its leaders.

        Raises:
            BrokerError: the cluster has no such topic, or denies access to it.
            KafkaTimeoutError: there was no response in time.
        """
        known = self.metadata.add_topic(topic, self._loop.time())
        if known is None:
            await self.renew_metadata(timeout)
            known = self.metadata.topic(topic)
        code = self.metadata.topic_error(topic)
        if known is None or code:
            raise broker_error(code or UnknownTopicOrPartitionError.code)
        return len(known.partitions)

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition of a topic in use, or ``NO_LEADER``."""
        self.metadata.touch(topic, self._loop.time())
        return self.metadata.leader(topic, partition)

    async def close(self) -> None:
        """End every connection."""
        await self._pool.close()
