"""Sends the requests of a ``TransactionManager``: each to its coordinator, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from aioproducer.core.requests.connection import Completed
from aioproducer.core.transactions.manager import TRANSACTION_FEATURE, TransactionManager
from aioproducer.core.transactions.requests import CoordinatorType, TransactionalRequest
from aioproducer.errors import KafkaError
from aioproducer.io.node import InternalRequest, NodeConnection
from aioproducer.protocol import ApiKey, Response

if TYPE_CHECKING:
    import asyncio

    from aioproducer._common.client_log import ClientLog
    from aioproducer.core.batching.accumulator import RecordAccumulator
    from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
    from aioproducer.io.node_pool import NodePool


class TransactionalRequests:
    """The transactional requests of a producer, as one kind of its internal requests (see ``Cluster``).

    Args:
        any_node: returns a node with a free slot, for FindCoordinator.
        wake: requests a pass of the sender.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        manager: TransactionManager,
        accumulator: RecordAccumulator,
        metadata: ClusterMetadata,
        pool: NodePool,
        log: ClientLog,
        *,
        any_node: Callable[[float], NodeConnection | None],
        wake: Callable[[], None],
    ) -> None:
        self.manager = manager
        self._loop = loop
        self._accumulator = accumulator
        self._metadata = metadata
        self._pool = pool
        self._log = log
        self._any_node = any_node
        self._wake = wake

    def is_due(self, now: float) -> bool:
        """Return whether a request could be sent if its node has a slot."""
        return self._next(now) is not None

    def retry_at(self) -> float:
        """Return the loop time of the next attempt; infinity for none."""
        return self.manager.retry_at()

    def _next(self, now: float) -> TransactionalRequest | None:
        accumulator = self._accumulator
        if self.manager.settle(now):
            accumulator.ready.unblock_held(now)
        return self.manager.poll(now, accumulator.has_undelivered() or accumulator.on_wire > 0)

    def send(self, now: float) -> bool:
        """Send the next request if its node has a slot; return whether it was sent."""
        request = self._next(now)
        if request is None:
            return False
        node_id = self.manager.queue.node_of(request)
        node = self._any_node(now) if node_id is None else self._coordinator(request, node_id, now)
        if node is None:
            return False
        self.manager.queue.sent(request)
        try:
            version = node.negotiate(request.api_key, request.highest_version)
            context = InternalRequest(partial(self._answered, request), partial(self._failed, request))
            self._log.debug("sending %s version %d to broker %s", request, version, node.node)
            node.send(request.message(version), context, now, version=version)
        except KafkaError as error:
            self._failed(request, error)
            return False
        node.slots.internal_sent()
        return True

    def _coordinator(self, request: TransactionalRequest, node_id: int, now: float) -> NodeConnection | None:
        """Return the node of a coordinator if it has a slot, else connect to it."""
        node = self._pool.node(node_id)
        if node is None:
            # It was started after the last metadata response, or metadata has lost it.
            self._metadata.request_update(now, f"the coordinator of {request.key!r} is broker {node_id}, not listed")
            self.manager.queue.unreachable(request, now)
            self._wake()
            return None
        if not node.can_send(now):
            node.request_connection()
            return None
        if not node.slots.is_for_internal(node_id in self._accumulator.ready.ready_nodes):
            # The data that waits for this node has the next slot.
            return None
        return node

    def node_ready(self, node: NodeConnection) -> None:
        """Receive the features and versions of a node that has connected."""
        versions = node.versions
        feature = versions.finalized_features.get(TRANSACTION_FEATURE)
        self.manager.features_known(versions.finalized_features_epoch, 0 if feature is None else feature.highest)
        coordinator = self.manager.queue.coordinators.get(CoordinatorType.TRANSACTION)
        if coordinator is None or coordinator[1] == node.id:
            supported = versions.apis.get(ApiKey.INIT_PRODUCER_ID)
            self.manager.coordinator_ready(-1 if supported is None else supported.highest)

    def node_lost(self, node: NodeConnection, now: float) -> None:
        """Find the coordinator again if the next request goes to this node, which cannot be reached."""
        request = self._next(now)
        if request is not None and node.last_error is not None and self.manager.queue.node_of(request) == node.id:
            self.manager.queue.unreachable(request, now)

    def _answered(self, request: TransactionalRequest, completed: Completed) -> None:
        now = self._loop.time()
        response = completed.response
        assert isinstance(response, Response)
        self.manager.answered(request, response, now)
        self._changed(now)

    def _failed(self, request: TransactionalRequest, error: KafkaError) -> None:
        now = self._loop.time()
        self.manager.disconnected(request, error, now)
        self._changed(now)

    def _changed(self, now: float) -> None:
        # Partitions that have joined the transaction, or have a new epoch, may send.
        self._accumulator.ready.unblock_held(now)
        self._wake()
