"""Everything a scenario needs, and what must be true when it is over."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, TypeVar

from aioproducer import Producer
from aioproducer.protocol import ApiKey
from aioproducer.record import TopicPartition
from aioproducer.testing.simulation.determinism import reproducible
from aioproducer.testing.simulation.loop import VirtualLoop
from aioproducer.transport.base import Buffer, TransportHandler
from aioproducer.transport.memory import MemoryListener, MemoryNetwork, MemoryTransport
from tests.simulation.broker import BrokerConnection, Event
from tests.simulation.cluster import SimulatedCluster, until

T = TypeVar("T")


class World:
    """A cluster, the network to it, and the producers that a scenario makes; the producers' ``Connector``."""

    def __init__(
        self, loop: VirtualLoop, random: Random, *, send_buffer_bytes: int = 0, **cluster_options: Any
    ) -> None:
        self.loop = loop
        self.random = random
        self.cluster = SimulatedCluster(random, **cluster_options)
        self.journal: list[Event] = []
        self.connections: dict[BrokerConnection, None] = {}
        self.attempts: list[tuple[float, str, int]] = []
        """Each try to connect: when, host and port."""
        self.server_hostnames: list[str | None] = []
        self.hanging: set[str] = set()
        """Hosts that take packets and say nothing."""
        self.latency: Callable[[], float] = lambda: 0.0
        """Seconds that connecting takes."""
        self.receive_window: int | None = None
        """What brokers take in a turn; of connections made from now on."""
        self.failures: list[tuple[TopicPartition, int, Exception]] = []
        self.loop_errors: list[dict[str, Any]] = []
        self._network = MemoryNetwork(send_buffer_bytes=send_buffer_bytes)
        self._listeners: dict[int, MemoryListener] = {}
        for node_id in self.cluster.nodes:
            self.start_node(node_id)

    # The network

    async def resolve(self, host: str, port: int) -> list[str]:
        return [address[0] for *_, address in await self.loop.getaddrinfo(host, port)]

    async def connect(
        self, host: str, port: int, handler: TransportHandler, *, server_hostname: str | None = None
    ) -> MemoryTransport:
        self.attempts.append((self.loop.time(), host, port))
        self.server_hostnames.append(server_hostname)
        if host in self.hanging:
            await self.loop.create_future()
        latency = self.latency()
        if latency:
            await asyncio.sleep(latency)
        if host in self.hanging:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
        transport = await self._network.connect(host, port, handler, server_hostname=server_hostname)
        self._watch_writes(transport)
        return transport

    def _watch_writes(self, transport: MemoryTransport) -> None:
        """A client must not write while an earlier write waits to be sent: there is no other back-pressure."""
        write = transport.write

        def watched(buffers: Sequence[Buffer]) -> bool:
            if transport._writes_owed and not transport.is_writable:
                self.cluster.violations.append("a write began while an earlier one waited to be sent")
            return write(buffers)

        transport.write = watched  # type: ignore[method-assign]  # only this one is watched

    def start_node(self, node_id: int, host: str | None = None) -> None:
        """Let a broker listen, as another host where one is given."""
        node = self.cluster.nodes[node_id]
        node.up = True
        if host is not None:
            node.host = host

        def accept(transport: MemoryTransport) -> BrokerConnection:
            transport.receive_window = self.receive_window
            return BrokerConnection(self, node, transport)

        self._listeners[node_id] = self._network.listen(node.host, node.port, accept)

    def stop_node(self, node_id: int) -> None:
        """Let a broker go down; nothing more is answered or written."""
        self.cluster.nodes[node_id].up = False
        self._listeners.pop(node_id).close()
        self.disconnect(node_id)

    def disconnect(self, node_id: int) -> None:
        """End the connections to a broker."""
        for connection in list(self.connections):
            if connection.node.id == node_id:
                connection.transport.abort()

    # What happened

    def events(self, api: ApiKey | None = None, *, node: int | None = None, what: str = "got") -> list[Event]:
        """The requests that brokers got, all or those of an API."""
        return [
            event
            for event in self.journal
            if event.what == what and (api is None or event.api is api) and node in (None, event.node)
        ]

    def requests(self, *, node: int | None = None) -> list[str]:
        """The names of the APIs that were asked for, in order."""
        return [event.api.name for event in self.events(node=node) if event.api is not None]

    async def until(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        await until(condition, timeout)

    # Producers

    def producer(self, *, hooks: tuple[object, ...] = (), **config: Any) -> Producer:
        config.setdefault("bootstrap_servers", "broker1:9092")
        config.setdefault("client_id", "simulated")
        return Producer(transport=self, hooks=hooks, on_error=self._note_failure, **config)

    def _note_failure(self, topic_partition: TopicPartition, count: int, error: Exception) -> None:
        self.failures.append((topic_partition, count, error))

    # The end

    def check_nothing_is_left(self, *, but: asyncio.Task[Any] | None = None) -> None:
        """Check that no task (``but`` one), timer, connection or unhandled exception is left."""
        assert not self.loop_errors, self.loop_errors
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done() and task is not but]
        assert not left, left
        assert not self.connections, [f"{connection.node.host} left behind" for connection in self.connections]
        pending = map(str, self.loop.pending_timers())
        # The loop's threads are none of the producer's timers, although the checkout's path may have its name.
        timers = [handle for handle in pending if "aioproducer" in handle and "run_in_executor" not in handle]
        assert not timers, timers
        assert not self.cluster.violations, self.cluster.violations


def run(
    scenario: Callable[[World], Awaitable[T]], *, seed: int = 0, check: bool = True, **options: Any
) -> tuple[T, World]:
    """Play a scenario on virtual time; afterwards nothing may be left.

    ``options`` are those of ``World`` and ``SimulatedCluster``.
    """
    random = Random(seed)
    loop = VirtualLoop(random)
    world = World(loop, random, **options)
    loop.set_exception_handler(lambda loop, context: world.loop_errors.append(context))
    try:
        with reproducible(loop, random):

            async def play() -> T:
                result = await scenario(world)
                # Brokers see the end of a connection some passes after the client.
                for _ in range(20):
                    await asyncio.sleep(0)
                return result

            result = loop.run_until_complete(play())
            if check:
                world.check_nothing_is_left()
        return result, world
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_later(0, loop.stop)
        loop.run_forever()
        loop.close()
