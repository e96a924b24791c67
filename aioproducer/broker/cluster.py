"""Several nodes in one process with one controller: the public class of the embedded broker."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self
from uuid import uuid4

from aioproducer.broker.broker import Broker
from aioproducer.broker.config import BrokerConfig
from aioproducer.broker.controller.controller import Controller, TopicSpec
from aioproducer.broker.controller.journal import Journal
from aioproducer.broker.faults import Faults
from aioproducer.broker.image import ClusterImage, TopicState
from aioproducer.broker.log import DirectoryStorage, MemoryStorage
from aioproducer.errors import ConfigurationError
from aioproducer.transport.memory import MemoryNetwork

if TYPE_CHECKING:
    from aioproducer.broker.log import Storage
    from aioproducer.transport.base import Listener

MEMORY_PORT = 9092
"""The host that nodes listen at in a ``MemoryNetwork``, where each has its own address."""

_EVERYWHERE = ("", "0.0.0.0", "::")

_RACK_KEY = "broker.rack"
_RACK_SPELLINGS = {_RACK_KEY, "broker_rack"}

_memory_addresses = itertools.count(1)


def _memory_address() -> str:
    """Return an address in 10.0.0.0/8 that no other node of this process has; unlike a name, it needs no resolving."""
    return str(IPv4Address(0x0A000000 + next(_memory_addresses) % 2**24))


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Surroundings(NamedTuple):
    """What a node uses outside of itself, besides its disk."""

    listener: Listener
    """Accepts its connections."""
    peers: MemoryNetwork
    """The network that the nodes of the cluster have for themselves."""
    wall_ms: Callable[[], int]
    """Its clock, in milliseconds since the epoch."""


class BrokerCluster:
    """Brokers that answer as Apache Kafka does, in this event loop; an async context manager.

    The cluster belongs to the loop that starts it. After ``stop`` it may be started again, with the same data.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        host: str | None = None,
        ports: Sequence[int] | None = None,
        advertised_host: str | None = None,
        data_dir: Path | str | None = None,
        properties: Mapping[str, object] | None = None,
        node_properties: Mapping[int, Mapping[str, object]] | None = None,
        racks: Sequence[str | None] | None = None,
        network: MemoryNetwork | None = None,
        ssl_context: ssl.SSLContext | None = None,
        listener: Listener | None = None,
        wall_ms: Callable[[], int] = wall_clock_ms,
        features: Mapping[str, int] | None = None,
        storage: Storage | None = None,
    ) -> None:
        """
        Args:
            nodes: Number of nodes; their ids count from 1.
            host: The host to listen at, and the one in metadata: ``127.0.0.1`` if ``None``. In a ``network`` each node
                has its own address if ``None``, else the name ``broker-<node id>.<host>``.
            ports: One for each node, 0 for any free port. Without it all are free ones, kept over a restart.
            advertised_host: The host in metadata instead of ``host``, which may be ``0.0.0.0`` then.
            data_dir: The folder of the logs and the controller's journal; ``None`` for memory.
            properties: Kafka's server keys, for all nodes.
            node_properties: Further keys, by node id.
            racks: One for each node: its ``broker.rack``, ``None`` for none.
            network: A network without sockets to listen in; ``None`` for TCP.
            ssl_context: The servers' side of TLS; ``None`` for plain connections.
            listener: Accepts the nodes' connections instead of TCP (as RDMA's listener with its own settings).
            wall_ms: Returns the timestamp of records and files, in milliseconds since the epoch.
            features: Levels of features, such as ``{"transaction.version": 1}`` for transactions as before KIP-890.
                Other features keep their level; in a new cluster they have the highest.
            storage: A disk of a simulation, instead of ``data_dir``.

        Raises:
            ConfigurationError: an argument or property is wrong.
        """
        if nodes < 1:
            raise ConfigurationError(f"nodes must be at least 1, not {nodes}")
        for name, values in (("ports", ports), ("racks", racks)):
            if values is not None and len(values) != nodes:
                raise ConfigurationError(
                    f"{name} must have one item for each of the {nodes} node(s), not {len(values)}"
                )
        if host in _EVERYWHERE and advertised_host is None:
            raise ConfigurationError(
                f"clients cannot connect to {host!r}: set advertised_host to the name by which they reach this machine"
            )
        if network is not None and advertised_host is not None:
            raise ConfigurationError(
                "nodes in a MemoryNetwork are reached where they listen: leave advertised_host out"
            )
        if network is not None and ssl_context is not None:
            raise ConfigurationError("a MemoryNetwork has no TLS: give ssl_context or network, not both")
        if listener is not None and (network is not None or ssl_context is not None):
            raise ConfigurationError("a listener has its own network and TLS: give listener alone, or the others")
        node_properties = node_properties or {}
        unknown = [node_id for node_id in node_properties if not 1 <= node_id <= nodes]
        if unknown:
            raise ConfigurationError(f"node_properties for unknown nodes {unknown}: node ids are 1 to {nodes}")
        if racks is not None:
            if any(not _RACK_SPELLINGS.isdisjoint(given) for given in (properties or {}, *node_properties.values())):
                raise ConfigurationError("racks sets broker.rack of each node: give one of the two, not both")
            node_properties = {
                node_id: {**node_properties.get(node_id, {}), **({} if rack is None else {_RACK_KEY: rack})}
                for node_id, rack in enumerate(racks, start=1)
            }
        self.brokers: dict[int, Broker] = {}
        """All nodes by id, also stopped ones."""
        self.faults = Faults()
        """Faults that a test injects at any node."""
        self._node_ids = range(1, nodes + 1)
        self._properties = dict(properties or {})
        self._config = BrokerConfig(self._properties)
        self._configs = {
            node_id: BrokerConfig({**self._properties, **node_properties[node_id]})
            if node_id in node_properties
            else self._config
            for node_id in self._node_ids
        }
        if storage is not None and data_dir is not None:
            raise ConfigurationError("logs are in a storage or in a data_dir: give one of them, not both")
        self._storage: Storage = storage or (MemoryStorage() if data_dir is None else DirectoryStorage(Path(data_dir)))
        self._network = network
        self._ssl_context = ssl_context
        self._listener = listener
        self._wall_ms = wall_ms
        self._features = dict(features or {})
        self._ports = dict(zip(self._node_ids, ports or [], strict=False))
        self._hosts = {
            node_id: (host or "127.0.0.1")
            if network is None
            else _memory_address()
            if host is None
            else f"broker-{node_id}.{host}"
            for node_id in self._node_ids
        }
        self._advertised_host = advertised_host
        self._controller: Controller | None = None
        self._journal: Journal | None = None
        self._changing = asyncio.Lock()

    @property
    def controller(self) -> Controller:
        """The cluster's controller.

        Raises:
            RuntimeError: the cluster was not started.
        """
        if self._controller is None:
            raise RuntimeError("the cluster was not started: use it inside `async with BrokerCluster()`")
        return self._controller

    @property
    def image(self) -> ClusterImage:
        """The current state of the cluster; ``RuntimeError`` if it was not started."""
        return self.controller.image

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every node, with commas between them; ``RuntimeError`` if the cluster was not started."""
        nodes = [self.image.nodes[node_id] for node_id in self._node_ids]
        return ",".join(
            f"[{node.host}]:{node.port}" if ":" in node.host else f"{node.host}:{node.port}" for node in nodes
        )

    def create_topic(
        self,
        name: str,
        num_partitions: int = -1,
        replication_factor: int = -1,
        *,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str | None] | None = None,
    ) -> TopicState:
        """Create a topic; see ``Controller.create_topic``."""
        return self.controller.create_topic(
            TopicSpec(name, num_partitions, replication_factor, assignments, configs or {})
        )

    # Life

    async def start(self) -> None:
        """Start every node; do nothing if the cluster runs already.

        Raises:
            KafkaError, OSError: the start failed for the reason in the text; nothing is left running.
        """
        async with self._changing:
            if self._journal is None:
                await self._start()

    async def _start(self) -> None:
        self._storage.make()
        self._storage.lock()
        self._journal = Journal(self._storage)
        opened: list[Broker] = []
        try:
            image = self._journal.load(_new_cluster_id())
            self._controller = Controller(image, self._journal, self._config)
            self._controller.begin(len(self._node_ids), self._features)
            self.brokers = self._new_brokers(self._controller)
            for broker in self.brokers.values():
                await broker.open()
                opened.append(broker)
            for broker in opened:
                broker.join()
            self._controller.register(*(broker.registration() for broker in opened))
            for broker in opened:
                broker.serve()
        except BaseException:
            for broker in opened:
                await broker.abandon()
            self._close()
            self._controller = None
            raise

    def _new_brokers(self, controller: Controller) -> dict[int, Broker]:
        default_port = 0 if self._network is None else MEMORY_PORT
        surroundings = self._surroundings()
        return {
            node_id: Broker(
                node_id,
                controller=controller,
                config=self._configs[node_id],
                storage=self._storage.sub(f"broker-{node_id}"),
                faults=self.faults,
                listener=surroundings[node_id].listener,
                host=self._hosts[node_id],
                port=self._ports.get(node_id, default_port),
                advertised_host=self._advertised_host or self._hosts[node_id],
                peers=surroundings[node_id].peers,
                wall_ms=surroundings[node_id].wall_ms,
            )
            for node_id in self._node_ids
        }

    def _surroundings(self) -> dict[int, Surroundings]:
        """Surroundings of each node; a simulation overrides it."""
        listener: Listener
        if self._listener is not None:
            listener = self._listener
        elif self._network is None:
            from aioproducer.transport.listening import StreamListener

            listener = StreamListener(self._ssl_context)
        else:
            listener = self._network
        peers = MemoryNetwork()
        return {node_id: Surroundings(listener, peers, self._wall_ms) for node_id in self._node_ids}

    async def stop(self) -> None:
        """Stop every node, all together; do nothing if the cluster does not run.

        No leader moves to a node that is about to stop too: all nodes stop serving at once. After a start each
        partition has the leader and the ISR that it had.
        """
        async with self._changing:
            if self._journal is None:
                return
            # A delay that a test has set must not delay the end.
            self.faults.let_go()
            running = [broker for broker in self.brokers.values() if broker.is_running]
            node_ids = [broker.node_id for broker in running]
            try:
                try:
                    self.controller.begin_shutdown(*node_ids)
                finally:
                    results = await asyncio.gather(*(broker.leave() for broker in running), return_exceptions=True)
                self.controller.fence(*node_ids)
            finally:
                self._close()
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    def _close(self) -> None:
        assert self._journal is not None
        self._journal.close()
        self._journal = None
        self._storage.unlock()

    async def kill(self, node_id: int) -> None:
        """End a node as SIGKILL would; do nothing if it does not run.

        Raises:
            ValueError: there is no such node.
        """
        broker = self._broker(node_id)
        async with self._changing:
            await broker.kill()

    async def restart(self, node_id: int) -> None:
        """Start a node again at its former address; a running node is stopped first.

        Raises:
            ValueError: there is no such node.
            KafkaError, OSError: the start failed for the reason in the text.
        """
        broker = self._broker(node_id)
        async with self._changing:
            await broker.stop()
            await broker.start()

    def _broker(self, node_id: int) -> Broker:
        if self._journal is None:
            raise RuntimeError("the cluster is not running: use it inside `async with BrokerCluster()`")
        broker = self.brokers.get(node_id)
        if broker is None:
            raise ValueError(f"there is no node {node_id}: node ids are 1 to {len(self._node_ids)}")
        return broker

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()


def _new_cluster_id() -> str:
    """Return a random UUID in Kafka's form: 22 characters of base64."""
    return urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
