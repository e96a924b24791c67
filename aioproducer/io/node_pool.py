"""The connections to a cluster's nodes, shared by the producer's cluster and by ``BrokerClient``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.error_codes import REBOOTSTRAP_REQUIRED
from aioproducer.errors import BrokerError, KafkaError, TokenProviderError
from aioproducer.io.dialing import NodeSettings
from aioproducer.io.node import NodeConnection, NodeOwner

if TYPE_CHECKING:
    from random import Random

    from aioproducer._common.client_log import ClientLog
    from aioproducer.core.metadata.cluster import MetadataChange
    from aioproducer.hooks import Hooks
    from aioproducer.metrics import ConnectionMetrics
    from aioproducer.transport.base import Connector

# Seconds that connections have to end in good order, and then to end at all.
CLOSE_TIMEOUT = 0.2
ABORT_TIMEOUT = 10.0
"""TCP needs one iteration of the loop; an RDMA device may have to release gigabytes of memory, which takes seconds."""


class NodePool:
    """Nodes by id, each connected when first needed.

    A node that metadata no longer lists is retired: it ends its requests, then its connection.

    Args:
        owner: receives the notifications of the nodes.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metadata: ClusterMetadata,
        owner: NodeOwner,
        connector: Connector,
        settings: NodeSettings,
        metrics: ConnectionMetrics,
        hooks: Hooks,
        random: Random,
    ) -> None:
        self.nodes: dict[int, NodeConnection] = {}
        self._retired: dict[NodeConnection, None] = {}
        self._loop = loop
        self._metadata = metadata
        self._owner = owner
        self._connector = connector
        self._settings = settings
        self._metrics = metrics
        self._hooks = hooks
        self._random = random

    def node(self, node_id: int) -> NodeConnection | None:
        """Return the connection to a node, None if metadata does not list it."""
        node = self.nodes.get(node_id)
        if node is None:
            known = self._metadata.node(node_id)
            if known is None:
                return None
            node = self.nodes[node_id] = NodeConnection(
                self._loop,
                known,
                self._owner,
                self._connector,
                self._settings,
                self._metrics,
                self._hooks,
                self._random,
            )
        return node

    def node_ready(self, node: NodeConnection) -> None:
        """End an outage, if there was one and metadata lists the node."""
        if node.id >= 0:
            self._owner.reconnect_histories.clear()
            self._metadata.broker_reached()

    def node_lost(self, node: NodeConnection, now: float) -> None:
        """Forget a disconnected node if it is retired; request metadata if an error has disconnected it."""
        self._forget_if_retired(node)
        error = node.last_error
        if error is None:
            return
        if isinstance(error, BrokerError) and error.code == REBOOTSTRAP_REQUIRED:
            self._metadata.require_rebootstrap()
        # The broker may be down, with other brokers leading its partitions by now, or it may have moved.
        self._metadata.request_update(now, f"a broker cannot be reached: {error}")

    def apply(self, change: MetadataChange) -> None:
        """Retire removed nodes, and set the new addresses of moved nodes."""
        for removed in change.nodes_removed:
            node = self.nodes.pop(removed.id, None)
            if node is not None:
                self._retired[node] = None
                node.retire()
                self._forget_if_retired(node)
        for moved in change.nodes_moved:
            if moved.id in self.nodes:
                self.nodes[moved.id].set_address(moved)

    def _forget_if_retired(self, node: NodeConnection) -> None:
        if node in self._retired and not node.connected:
            del self._retired[node]
            self._metrics.forget_node(node.id)
            node.task.cancel()

    def last_error(self) -> KafkaError | None:
        """Return the latest reason why a broker could not be reached, for error messages."""
        failed = [node for node in self.nodes.values() if node.last_error is not None]
        if not failed:
            return self._login_delay() or self._metadata.last_error
        latest = max(failed, key=lambda node: node.last_attempt).last_error
        assert latest is not None
        return latest.fresh()

    def _login_delay(self) -> KafkaError | None:
        """Return the reason why no broker is connected if the client waits for its first credentials."""
        waiting = [node.login_began for node in self.nodes.values() if node.login_began <= self._loop.time()]
        if not waiting:
            return None
        seconds = self._loop.time() - min(waiting)
        return TokenProviderError(
            f"The source of the SASL credentials (sasl_token_provider or sasl_password) has returned nothing for "
            f"{seconds:.1f} s, and no connection is made without them."
        )

    async def close(self) -> None:
        """End every connection and task; none stays open, even if this is cancelled."""
        nodes = [*self.nodes.values(), *self._retired]
        log, login = self._settings.log, self._settings.login
        try:
            for node in nodes:
                node.close()
            if login is not None:
                login.stop()
            await _wait_disconnected(nodes, CLOSE_TIMEOUT, log)
        finally:
            try:
                for node in nodes:
                    node.abort()
                await _wait_disconnected(nodes, ABORT_TIMEOUT, log)
            finally:
                for node in nodes:
                    node.task.cancel()
                self.nodes.clear()
                self._retired.clear()
                await asyncio.gather(*(node.task for node in nodes), return_exceptions=True)
                if login is not None:
                    await login.close()


async def _wait_disconnected(nodes: Sequence[NodeConnection], timeout: float, log: ClientLog) -> None:
    try:
        async with asyncio.timeout(timeout):
            for node in nodes:
                await node.disconnected()
    except TimeoutError:
        log.debug("connections that did not end within %s s: %s", timeout, [node.node for node in nodes])
