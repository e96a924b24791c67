"""One node: what a broker process is, in an object."""

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
"""Where nodes reach each other in the network that is their own."""


class _Stage(enum.Enum):
    DOWN = "down"
    BOUND = "bound"
    """Logs are loaded and the port is known; requests wait."""
    SERVING = "serving"


class Broker:
    """A node of a ``BrokerCluster``, which makes it, starts it and shares its controller, faults and network with it.

    It may be started again after ``stop`` and ``kill``; what it is made of (``logs``, ``replicas``, ``server``, ...) is
    made anew then, and is there from the start on.
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
            listener, host, port: Where it listens; port 0 for one that is free.
            advertised_host: What clients are told.
            peers: The network that the cluster's nodes have for themselves.
        """
        self.node_id = node_id
        self.controller = controller
        self.config = config
        """As it was given, and as it was altered since (``Controller.alter_node_configs``)."""
        self.faults = faults
        self.wall_ms = wall_ms
        self.host = advertised_host
        """What clients are told."""
        self.port = port
        """0 until it is known."""
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
        """What is true of the cluster."""
        return self.controller.image

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return self._stage is not _Stage.DOWN

    @property
    def groups(self) -> GroupCoordinator:
        """The coordinator of consumer groups; made when something first needs it."""
        return self._groups or self._make_groups()

    def _make_groups(self) -> GroupCoordinator:
        self._groups = GroupCoordinator(self)
        if self._stage is _Stage.SERVING:
            self._groups.start()
        return self._groups

    @property
    def transactions(self) -> TransactionCoordinator:
        """The coordinator of transactional ids; made when something first needs it."""
        return self._transactions or self._make_transactions()

    def _make_transactions(self) -> TransactionCoordinator:
        self._transactions = TransactionCoordinator(self)
        if self._stage is _Stage.SERVING:
            self._transactions.start()
        return self._transactions

    def log_config(self, topic: str) -> LogConfig:
        """What a topic's configurations and this node's make of its logs; this node's alone for an unknown topic."""
        config = self._log_configs.get(topic)
        if config is None:
            known = self.image.topics.get(topic)
            config = log_config(self.config, known.configs if known is not None else {})
            self._log_configs[topic] = config
        return config

    def peer_client(self, node: BrokerRegistration) -> PeerClient:
        """A connection to another node, made when it is first used."""
        return PeerClient(self._peers, f"broker-{node.node_id}", PEER_PORT, client_id=f"broker-{self.node_id}")

    # Life

    async def start(self) -> None:
        """Load the logs, listen, register and serve; nothing where it runs already.

        Raises:
            KafkaError, OSError: it cannot; the text says why, and nothing of it is left running.
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
        """Lock and load the logs, and listen; what comes in waits until ``serve``.

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
                logger.warning(
                    "%s:%d, where broker %d was, is taken: it takes another port", self._host, port, self.node_id
                )
                await self._listen(self.server, self._listener, self._host, 0)
        except OSError as error:
            raise type(error)(error.errno, f"broker {self.node_id} cannot start: {error.strerror or error}") from error
        self.port = self.server.port

    def registration(self) -> BrokerRegistration:
        """What it registers with the controller."""
        return BrokerRegistration(self.node_id, self.host, self.port, self.config.broker_rack, is_alive=True, epoch=-1)

    def join(self) -> None:
        """Follow the image, and from now on the controller."""
        self.controller.attach(self)
        self.apply(self.image.partitions(), [])

    def serve(self) -> None:
        """Begin to answer."""
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
        """Hand over what it leads, answer what was asked, bring everything to disk; nothing where it does not run."""
        async with self._changing:
            if not self.is_running:
                return
            try:
                self.controller.begin_shutdown(self.node_id)
            finally:
                await self._leave()
            self.controller.fence(self.node_id)

    async def leave(self) -> None:
        """As ``stop`` where the controller knows that it goes."""
        async with self._changing:
            if self.is_running:
                await self._leave()

    async def _leave(self) -> None:
        try:
            await asyncio.gather(*(server.stop() for server in self._servers))
        finally:
            await self._end(clean=True)

    async def kill(self) -> None:
        """End as by SIGKILL: connections are reset, nothing more is written or said. The controller knows at once.

        Nothing where it does not run; one that is being stopped stops at once.
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
        """Undo what ``open``, ``join`` and ``serve`` did."""
        self._abort()
        await self._end(clean=True)

    def _abort(self) -> None:
        for server in self._servers:
            server.abort()

    async def _end(self, *, clean: bool) -> None:
        """Let go of everything; whatever goes wrong, the logs are closed, and what is known of them written down."""
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

    # What it is told

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
        """Coordinate what is kept in a partition of an internal topic, or no longer."""
        may_begin = is_leader and self._stage is _Stage.SERVING
        if state.topic == GROUP_METADATA_TOPIC and (self._groups is not None or may_begin):
            self.groups.shards.leadership(state.index, is_leader)
        elif state.topic == TRANSACTION_STATE_TOPIC and (self._transactions is not None or may_begin):
            self.transactions.shards.leadership(state.index, is_leader)

    def configs_changed(self, topics: Sequence[str] | None) -> None:
        """Work by the configurations that the controller has now, of these topics or (``None``) of nodes."""
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
