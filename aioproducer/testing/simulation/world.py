"""The loop, the network, the disk and the cluster of one simulation."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from random import Random
from typing import Any, TypeVar

from aioproducer.broker import BrokerCluster
from aioproducer.broker.cluster import Surroundings
from aioproducer.broker.replicas.partition import Partition
from aioproducer.testing.cluster import cluster_properties, out_of_sync
from aioproducer.testing.control import ClusterControl
from aioproducer.testing.simulation.determinism import WALL_CLOCK, reproducible
from aioproducer.testing.simulation.disk import SimulatedDisk
from aioproducer.testing.simulation.loop import VirtualLoop
from aioproducer.testing.simulation.network import SimulatedNetwork
from aioproducer.testing.simulation.trace import Trace

T = TypeVar("T")

LONGEST_PLAY = 3600.0
"""Seconds of virtual time that no simulation takes without another limit."""


class SimulatedBrokers(BrokerCluster):
    """A cluster whose nodes have an endpoint each, for clients and for each other.

    ``clock_errors``: milliseconds by which the clock of a node is ahead, by node id.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        nodes: int,
        disk: SimulatedDisk,
        *,
        clock_errors: Mapping[int, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(nodes, network=network.endpoint("cluster"), host="sim", storage=disk, **options)
        self._simulated = network
        self._clock_errors = dict(clock_errors or {})

    def _surroundings(self) -> dict[int, Surroundings]:
        return {node_id: self._surroundings_of(node_id) for node_id in self._node_ids}

    def _surroundings_of(self, node_id: int) -> Surroundings:
        endpoint = self._simulated.endpoint(node_name(node_id))
        error_ms = self._clock_errors.get(node_id, 0)
        return Surroundings(endpoint, endpoint, lambda: self._wall_ms() + error_ms)


def node_name(node_id: int) -> str:
    """Name of a node's endpoint."""
    return f"node{node_id}"


class SimulatedWorld(ClusterControl):
    """Everything of one simulation; the methods of ``ClusterControl`` change its cluster."""

    def __init__(
        self,
        loop: VirtualLoop,
        random: Random,
        *,
        nodes: int = 1,
        properties: Mapping[str, object] | None = None,
        features: Mapping[str, int] | None = None,
        clock_errors: Mapping[int, int] | None = None,
        send_buffer_bytes: int = 0,
        keep_trace: bool = False,
    ) -> None:
        self.loop = loop
        self.random = random
        self.trace = Trace(keep=keep_trace)
        self.network = SimulatedNetwork(loop, self.trace, send_buffer_bytes=send_buffer_bytes)
        self.disk = SimulatedDisk()
        self.cluster = SimulatedBrokers(
            self.network,
            nodes,
            self.disk,
            clock_errors=clock_errors,
            properties=cluster_properties(nodes, properties),
            features=features,
            wall_ms=self.wall_ms,
        )
        self.node_ids = range(1, nodes + 1)
        self.loop_errors: list[str] = []

    def _call(self, function: Callable[[BrokerCluster], T]) -> T:
        return function(self.cluster)

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int((WALL_CLOCK + self.loop.time()) * 1000)

    def note(self, text: str) -> None:
        """Add an event to the trace."""
        self.trace.note(self.loop.time(), text)

    def is_in_sync(self) -> bool:
        """Whether each replica on a node that is up is in the ISR."""
        return not out_of_sync(self.cluster)

    def disk_of(self, node_id: int) -> SimulatedDisk:
        """The disk of a node."""
        return self.disk.sub(f"broker-{node_id}")

    async def lose_power(self, node_id: int) -> None:
        """Kill a node; a part of what it had not synced is lost."""
        await self.cluster.kill(node_id)
        lost = self.disk_of(node_id).lose_power(self.random)
        self.note(f"node {node_id} loses power, and {lost} bytes")

    def replicas(self, topic: str, index: int) -> dict[int, Partition]:
        """The replicas of a partition on the nodes that are up, by node id, the leader's first."""
        leader = self.leader(topic, index)
        found = {
            node_id: broker.replicas.partitions[topic, index]
            for node_id, broker in self.cluster.brokers.items()
            if broker.is_running and (topic, index) in broker.replicas.partitions
        }
        return {leader: found.pop(leader), **found} if leader in found else found


W = TypeVar("W", bound=SimulatedWorld)


def play(
    make_world: Callable[[VirtualLoop, Random], W],
    scenario: Callable[[W], Awaitable[T]],
    *,
    seed: int = 0,
    limit: float = LONGEST_PLAY,
    finish: Callable[[W], None] = lambda world: None,
    around: Callable[[VirtualLoop], AbstractContextManager[object]] = nullcontext,
) -> tuple[T, W]:
    """Start the cluster of a world, play a scenario on virtual time, and stop the cluster.

    Args:
        limit: Seconds of virtual time after which the scenario ends with ``TimeoutError``.
        finish: Looks at what is left when the cluster has stopped.
        around: A context for as long as the loop runs.
    """
    random = Random(seed)
    with closing(VirtualLoop(random)) as loop, reproducible(loop, random), around(loop):
        world = make_world(loop, random)
        loop.set_exception_handler(lambda loop, context: world.loop_errors.append(_text_of(context)))

        async def run() -> T:
            async with asyncio.timeout(limit):
                async with world.cluster:
                    result = await scenario(world)
                # The other side learns of the end of a connection a little later.
                await asyncio.sleep(1)
                finish(world)
                return result

        with _quiet(logs=world.trace.is_kept):
            try:
                result = loop.run_until_complete(run())
                world.note(f"end after {loop.turns} iterations, {random.random()}")
            finally:
                _cancel_all(loop)
    return result, world


@contextmanager
def _quiet(*, logs: bool) -> Iterator[None]:
    """Collect no garbage meanwhile, as finalizers run when they like, and let logs pass only with ``logs``.

    At the end the garbage is collected: a task reports an exception that nothing has received when it is collected, and
    it often is in a cycle with the exception.
    """
    was_collecting, disabled = gc.isenabled(), logging.root.manager.disable
    gc.disable()
    if not logs:
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        # All that was made meanwhile is in the youngest generation; older ones would take long.
        gc.collect(0)
        logging.disable(disabled)
        if was_collecting:
            gc.enable()


def _text_of(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context['message']}: {error!r}"


def _cancel_all(loop: VirtualLoop) -> None:
    """Cancel what a failed simulation has left."""
    loop.count_turns_again()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.call_later(30, loop.stop)
        loop.run_forever()
