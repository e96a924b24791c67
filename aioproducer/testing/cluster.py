"""``EmbeddedCluster``: brokers in the event loop of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from aioproducer.broker import BrokerCluster
from aioproducer.testing.control import ClusterControl
from aioproducer.transport.base import Connector, Listener
from aioproducer.transport.memory import MemoryNetwork

if TYPE_CHECKING:
    from aioproducer.config import ConsumerConfigDict, ProducerConfigDict
    from aioproducer.consumer.consumer import Consumer
    from aioproducer.consumer.decoding import OnDeserializationError
    from aioproducer.io.failure_reporter import OnError
    from aioproducer.producer import Producer
    from aioproducer.transport.rdma.verbs import Verbs


T = TypeVar("T")


def cluster_properties(brokers: int, properties: Mapping[str, object] | None) -> dict[str, object]:
    """Return a test cluster's default configuration: replicas on up to three nodes, and groups that start at once.

    Kafka waits 3 s for further members of a new group, and spreads offsets and transactions over 50 partitions each.
    """
    replicas = min(brokers, 3)
    return {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        **{name.replace("_", "."): value for name, value in (properties or {}).items()},
    }


class EmbeddedCluster(ClusterControl):
    """A cluster of ``brokers`` nodes in this event loop; an async context manager.

    Its records are kept in memory, or in ``data_dir`` if given; a cluster that finds its earlier files there continues
    from them. ``properties`` are Kafka's server properties (``{"auto.create.topics.enable": "false"}``). By default,
    topics have a replica on every node, at most three.

    ``features`` are levels of Kafka's features: ``{"transaction.version": 1}`` for transactions as before KIP-890.

    With ``transport="tcp"`` it listens on free ports of the loopback interface, or on ``ports``, one for each node.
    Another process may take a free port while its node is down; the node then returns on another one.

    With ``transport="memory"`` there are no sockets: a producer reaches it by its argument
    ``transport=cluster.transport``, other clients cannot. A test may have thousands of such clusters. With
    ``transport="rdma"`` only RDMA reaches it, by the same argument of the producer. ``verbs`` defaults to those of this
    machine; ``aioproducer.testing.verbs.SimulatedFabric()`` needs no card.

    A cluster belongs to its event loop: from another thread or loop use ``EmbeddedClusterThread``.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        properties: Mapping[str, object] | None = None,
        data_dir: str | Path | None = None,
        transport: str = "tcp",
        verbs: Verbs | None = None,
        features: Mapping[str, int] | None = None,
        ports: Sequence[int] | None = None,
    ) -> None:
        if transport not in ("tcp", "memory", "rdma"):
            raise ValueError(f'transport must be "tcp", "memory" or "rdma", not {transport!r}')
        if verbs is not None and transport != "rdma":
            raise ValueError('verbs are for transport="rdma"')
        self._network = MemoryNetwork() if transport == "memory" else None
        self._transport: str | Connector = "tcp" if self._network is None else self._network
        listener: Listener | None = None
        if transport == "rdma":
            from aioproducer.transport.rdma import RdmaConnector, RdmaListener

            listener = RdmaListener(verbs)
            self._transport = RdmaConnector(verbs)
        self._cluster = BrokerCluster(
            brokers,
            properties=cluster_properties(brokers, properties),
            data_dir=None if data_dir is None else Path(data_dir),
            network=self._network,
            listener=listener,
            features=features,
            ports=ports,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def _call(self, function: Callable[[BrokerCluster], T]) -> T:
        if self._loop is None:
            raise RuntimeError("the cluster is not running: use it inside `async with EmbeddedCluster()`")
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "this cluster runs in another thread: call it there, or use EmbeddedClusterThread, which may be called "
                "from every thread"
            )
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            # A synchronous fixture or helper: the loop is not running in this thread, so it can run for a moment.
            return self._loop.run_until_complete(_called(function, self._cluster))
        if running is not self._loop:
            raise RuntimeError(
                "this cluster runs in another event loop, which stands still while this one runs: with pytest-asyncio "
                "give the test and the fixture the same loop_scope, or use EmbeddedClusterThread"
            )
        return function(self._cluster)

    @property
    def broker_cluster(self) -> BrokerCluster:
        """The underlying cluster, for operations without a method here."""
        return self._cluster

    @property
    def transport(self) -> str | Connector:
        """The argument of ``Producer(transport=...)`` that reaches this cluster."""
        return self._transport

    def producer(
        self,
        *,
        transport: str | Connector | None = None,
        on_error: OnError | None = None,
        hooks: Sequence[object] = (),
        **configuration: Unpack[ProducerConfigDict],
    ) -> Producer:
        """A ``Producer`` for this cluster, not yet started: ``async with cluster.producer(acks=1) as producer``."""
        from aioproducer.producer import Producer

        configuration.setdefault("bootstrap_servers", self.bootstrap_servers)
        chosen = self.transport if transport is None else transport
        return Producer(transport=chosen, on_error=on_error, hooks=hooks, **configuration)

    def consumer(
        self,
        *topics: str,
        transport: str | Connector | None = None,
        on_deserialization_error: OnDeserializationError | None = None,
        **configuration: Unpack[ConsumerConfigDict],
    ) -> Consumer:
        """A ``Consumer`` for this cluster, not yet started: ``async with cluster.consumer() as consumer``.

        With topics it joins a group: ``cluster.consumer("clicks", group_id="billing")``.
        """
        from aioproducer.consumer.consumer import Consumer

        configuration.setdefault("bootstrap_servers", self.bootstrap_servers)
        return Consumer(
            *topics,
            transport=self.transport if transport is None else transport,
            on_deserialization_error=on_deserialization_error,
            **configuration,
        )

    async def start(self) -> None:
        """Start every node; ``async with`` does."""
        await self._cluster.start()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def stop(self) -> None:
        """Shut down every node cleanly; leaves no task, socket or file open."""
        await self._cluster.stop()
        self._loop = None

    async def kill(self, node: int) -> None:
        """End a node as SIGKILL would: it sends and writes nothing more; its log stays for ``restart``."""
        self._call(lambda cluster: cluster)
        await self._cluster.kill(node)

    async def restart(self, node: int) -> None:
        """Start a node again at its address; a running node is stopped first."""
        self._call(lambda cluster: cluster)
        await self._cluster.restart(node)

    async def wait_in_sync(self, timeout: float = 30.0) -> None:
        """Wait until every replica on a running node is in sync.

        Raises:
            TimeoutError: ``timeout`` seconds have passed; the text names a partition that is not in sync.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while missing := self._call(out_of_sync):
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"not in sync within {timeout:g} s: {missing[0]}")
            await asyncio.sleep(0.005)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()


async def _called(function: Callable[[BrokerCluster], T], cluster: BrokerCluster) -> T:
    return function(cluster)


def out_of_sync(cluster: BrokerCluster) -> list[str]:
    """Return the partitions with a replica on a running node that is not in sync."""
    return [
        f"{partition.topic}-{partition.index}"
        for partition in cluster.image.partitions()
        if any(cluster.image.is_alive(node) and node not in partition.isr for node in partition.replicas)
    ]
