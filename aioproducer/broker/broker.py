"""One node: a broker process as an object."""

from __future__ import annotations

import asyncio
import enum
import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from aioproducer.broker.config import BrokerConfig, log_config
from aioproducer.broker.groups import GroupCoordinator
from aioproducer.broker.handlers.requests import Requests
from aioproducer.broker.image import (
    CLUSTER_DEFAULT,
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    BrokerRegistration,
    ClusterImage,
    PartitionState,
)
from aioproducer.broker.log import LogConfig, LogManager
from aioproducer.broker.replicas.replica_manager import ReplicaManager
from aioproducer.broker.server.peer import PeerClient
from aioproducer.broker.server.server import Server
from aioproducer.broker.transactions import TransactionCoordinator

if TYPE_CHECKING:
    from aioproducer.broker.controller.controller import Controller
    from aioproducer.broker.faults import Faults
    from aioproducer.broker.log import Storage
    from aioproducer.transport.base import Listener
    from aioproducer.transport.memory import MemoryNetwork

logger = logging.getLogger(__name__)

PEER_PORT = 9093
"""The address by which nodes reach each other in the network of the cluster."""


class _Stage(enum.Enum):
    DOWN = "down"
    BOUND = "bound"
    """Logs are loaded and the port is known; requests wait."""
    SERVING = "serving"


class Broker:
    """A node of a ``BrokerCluster``, which creates it, starts it and shares its controller, faults and network with it.

    It may be started again after ``stop`` and ``kill``. Its parts (``logs``, ``replicas``, ``server``, ...) are created
    by each start.
    """

    logs: LogManager
    replicas: ReplicaManager
    requests: Requests
    server: Server

    def __init__(
        self,
        node_id: int,
        *,
        controller: Controller,
        config: BrokerConfig,
        storage: Storage,
        faults: Faults,
        listener: Listener,
        host: str,
        port: int,
        advertised_host: str,
        peers: MemoryNetwork,
        wall_ms: Callable[[], int],
    ) -> None:
        """A node that does not run yet.

        Args:
            listener, host, port: Where it listens; port 0 for any free one.
            advertised_host: The host in metadata for clients.
            peers: The network between the cluster's nodes.
        """
        self.node_id = node_id
        self.controller = controller
        self.config = config
        """The initial configuration with its changes since (``Controller.alter_node_configs``)."""
        self.faults = faults
        self.wall_ms = wall_ms
        self.host = advertised_host
        """The host in metadata for clients."""
        self.port = port
        """0 before it is known."""
        self._static_config = config
        self._storage = storage
        self._listener = listener
        self._host = host
        self._is_port_given = port != 0
        self._peers = peers
        self._stage = _Stage.DOWN
        self._servers: list[Server] = []
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._log_configs: dict[str, LogConfig] = {}
        self._changing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Broker {self.node_id} at {self.host}:{self.port}, {self._stage.value}>"

    @property
    def image(self) -> ClusterImage:
        """The current state of the cluster."""
        return self.controller.image

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return self._stage is not _Stage.DOWN

    @property
    def groups(self) -> GroupCoordinator:
        """The coordinator of consumer groups, created at its first use."""
        return self._groups or self._make_groups()

    def _make_groups(self) -> GroupCoordinator:
        self._groups = GroupCoordinator(self)
        if self._stage is _Stage.SERVING:
            self._groups.start()
        return self._groups

    @property
    def transactions(self) -> TransactionCoordinator:
        """The coordinator of transactional ids, created at its first use."""
        return self._transactions or self._make_transactions()

    def _make_transactions(self) -> TransactionCoordinator:
        self._transactions = TransactionCoordinator(self)
        if self._stage is _Stage.SERVING:
            self._transactions.start()
        return self._transactions

    def log_config(self, topic: str) -> LogConfig:
        """The configuration of a topic's logs on this node; without the topic's own keys if the topic is unknown."""
        config = self._log_configs.get(topic)
        if config is None:
            known = self.image.topics.get(topic)
            config = log_config(self.config, known.configs if known is not None else {})
            self._log_configs[topic] = config
        return config

    def peer_client(self, node: BrokerRegistration) -> PeerClient:
        """Create a client for another node; it connects at its first request."""
        return PeerClient(self._peers, f"broker-{node.node_id}", PEER_PORT, client_id=f"broker-{self.node_id}")

    # Life

    async def start(self) -> None:
        """Load the logs, listen, register and serve; do nothing if it runs already.

        Raises:
            KafkaError, OSError: the start failed for the reason in the text; nothing is left running.
        """
        async with self._changing:
            if self.is_running:
                return
            await self.open()
            try:
                self.join()
                self.controller.register(self.registration())
                self.serve()
            except BaseException:
                await self.abandon()
                raise

    async def open(self) -> None:
        """Lock and load the logs, and listen; requests wait until ``serve``.

        Raises:
            KafkaError, OSError: as ``start``.
        """
        self._configure()
        self._log_configs.clear()
        self.logs = LogManager(
            self._storage,
            node_id=self.node_id,
            cluster_id=self.image.cluster_id,
            config_for=self.log_config,
            wall_ms=self.wall_ms,
        )
        self.logs.load()
        self._stage = _Stage.BOUND
        try:
            self.replicas = ReplicaManager(self)
            self.requests = Requests(self)
            await self._bind()
            await self._listen(self._new_server(), self._peers, f"broker-{self.node_id}", PEER_PORT)
        except BaseException:
            await self.abandon()
            raise

    def _new_server(self) -> Server:
        return Server(
            self.requests.answer,
            max_request_bytes=self.config.socket_request_max_bytes,
            queued_max_bytes=self.config.queued_max_request_bytes,
            connections_max_idle_ms=self.config.connections_max_idle_ms,
        )

    async def _listen(self, server: Server, listener: Listener, host: str, port: int) -> None:
        await server.start(listener, host, port, serve=False)
        self._servers.append(server)

    async def _bind(self) -> None:
        self.server = self._new_server()
        self.server.max_connections = self.config.max_connections
        self.server.max_connections_per_ip = self.config.max_connections_per_ip
        known = self.image.nodes.get(self.node_id)
        port = self.port or (known.port if known is not None and known.host == self.host else 0)
        try:
            try:
                await self._listen(self.server, self._listener, self._host, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or self._is_port_given or port == 0:
                    raise
                logger.warning("broker %d: port %s:%d is in use, taking another one", self.node_id, self._host, port)
                await self._listen(self.server, self._listener, self._host, 0)
        except OSError as error:
            raise type(error)(error.errno, f"broker {self.node_id} cannot start: {error.strerror or error}") from error
        self.port = self.server.port

    def registration(self) -> BrokerRegistration:
        """The node's registration with the controller."""
        return BrokerRegistration(self.node_id, self.host, self.port, self.config.broker_rack, is_alive=True, epoch=-1)

    def join(self) -> None:
        """Apply the image, and follow the controller from now on."""
        self.controller.attach(self)
        self.apply(self.image.partitions(), [])

    def serve(self) -> None:
        """Start answering requests."""
        self._stage = _Stage.SERVING
        self.replicas.start()
        if self._groups is not None:
            self._groups.start()
        elif GROUP_METADATA_TOPIC in self.image.topics:
            self._make_groups()
        if self._transactions is not None:
            self._transactions.start()
        elif TRANSACTION_STATE_TOPIC in self.image.topics:
            self._make_transactions()
        for server in self._servers:
            server.serve()

    async def stop(self) -> None:
        """Move leadership away, answer pending requests, flush everything to disk; do nothing if it does not run."""
        async with self._changing:
            if not self.is_running:
                return
            try:
                self.controller.begin_shutdown(self.node_id)
            finally:
                await self._leave()
            self.controller.fence(self.node_id)

    async def leave(self) -> None:
        """Stop as ``stop`` does, after the controller was notified."""
        async with self._changing:
            if self.is_running:
                await self._leave()

    async def _leave(self) -> None:
        try:
            await asyncio.gather(*(server.stop() for server in self._servers))
        finally:
            await self._end(clean=True)

    async def kill(self) -> None:
        """End as by SIGKILL: connections are reset, nothing more is written or sent. The controller knows at once.

        Does nothing if the node does not run; a node that is being stopped stops at once.
        """
        self._abort()
        async with self._changing:
            if not self.is_running:
                return
            self.controller.detach(self)
            try:
                self.controller.fence(self.node_id)
            finally:
                await self._end(clean=False)

    async def abandon(self) -> None:
        """Undo ``open``, ``join`` and ``serve``."""
        self._abort()
        await self._end(clean=True)

    def _abort(self) -> None:
        for server in self._servers:
            server.abort()

    async def _end(self, *, clean: bool) -> None:
        """Release everything. Whatever fails, the logs are closed, and their known state is written to disk."""
        self._stage = _Stage.DOWN
        self.controller.detach(self)
        groups, self._groups = self._groups, None
        transactions, self._transactions = self._transactions, None
        servers, self._servers = self._servers, []
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.replicas.close())
                if groups is not None:
                    tasks.create_task(groups.close())
                if transactions is not None:
                    tasks.create_task(transactions.close())
                for server in servers:
                    tasks.create_task(server.wait_closed())
        finally:
            self.logs.close(clean, self.replicas.high_watermarks())

    # Called by the controller

    def apply(self, changed: list[PartitionState], removed: list[PartitionState]) -> None:
        """Become leader, follower or neither of partitions, as the controller decided."""
        for state in removed:
            self._log_configs.pop(state.topic, None)
        self.replicas.apply(changed, removed)
        for state in changed:
            self._coordinate(state, state.leader == self.node_id)
        for state in removed:
            self._coordinate(state, False)
        if self._groups is not None and removed:
            self._groups.partitions_deleted((state.topic, state.index) for state in removed)

    def _coordinate(self, state: PartitionState, is_leader: bool) -> None:
        """Start or stop coordinating the keys in a partition of an internal topic."""
        may_begin = is_leader and self._stage is _Stage.SERVING
        if state.topic == GROUP_METADATA_TOPIC and (self._groups is not None or may_begin):
            self.groups.shards.leadership(state.index, is_leader)
        elif state.topic == TRANSACTION_STATE_TOPIC and (self._transactions is not None or may_begin):
            self.transactions.shards.leadership(state.index, is_leader)

    def configs_changed(self, topics: Sequence[str] | None) -> None:
        """Apply the controller's current configurations of these topics, or of nodes if ``None``."""
        if topics is None:
            self._configure()
            self._log_configs.clear()
        else:
            for topic in topics:
                self._log_configs.pop(topic, None)
        self.replicas.reconfigure(topics)

    def _configure(self) -> None:
        altered: Mapping[str, Mapping[str, str]] = self.image.node_configs
        self.config = self._static_config.with_dynamic(
            altered.get(CLUSTER_DEFAULT, {}), altered.get(str(self.node_id), {})
        )
