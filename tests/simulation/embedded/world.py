"""The loop, the network and the cluster of one play, and the rules that were broken in it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import Any, NamedTuple, TypeVar

from aioproducer import Producer
from aioproducer.broker import BrokerCluster
from aioproducer.broker.broker import Broker
from aioproducer.broker.controller.controller import Controller
from aioproducer.broker.replicas.partition import Partition
from aioproducer.testing.cluster import cluster_properties, out_of_sync
from aioproducer.testing.control import ClusterControl
from tests.simulation.determinism import WALL_CLOCK, reproducible
from tests.simulation.embedded.disk import SimulatedDisk
from tests.simulation.embedded.history import History
from tests.simulation.embedded.network import SimulatedNetwork
from tests.simulation.embedded.trace import Trace
from tests.simulation.loop import VirtualLoop

T = TypeVar("T")

SLACK = 0.6
"""Seconds by which a wait may exceed its limit: latencies, and 0.5 s while a queue is served before an expiry."""

LONGEST_PLAY = 3600.0
"""Seconds of virtual time that no play takes."""


class Violation(NamedTuple):
    """A rule that was broken."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


class Overdue(Exception):  # noqa: N818 - the name describes a state
    """A wait has exceeded its bound; the violation is noted, and the client cannot continue."""


class SimulatedBrokers(BrokerCluster):
    """A cluster whose nodes have an endpoint each, for clients and for each other."""

    def __init__(self, network: SimulatedNetwork, nodes: int, disk: SimulatedDisk, **options: Any) -> None:
        super().__init__(nodes, network=network.endpoint("cluster"), host="sim", **options)
        self._simulated = network
        self._storage = disk

    def _new_brokers(self, controller: Controller) -> dict[int, Broker]:
        brokers = super()._new_brokers(controller)
        for node_id, broker in brokers.items():
            broker._peers = broker._listener = self._simulated.endpoint(node_name(node_id))
        return brokers


def node_name(node_id: int) -> str:
    """Name of a node's endpoint."""
    return f"node{node_id}"


class ClusterWorld(ClusterControl):
    """Everything of one play; the methods of ``ClusterControl`` change its cluster."""

    def __init__(
        self,
        loop: VirtualLoop,
        random: Random,
        *,
        nodes: int = 1,
        properties: Mapping[str, object] | None = None,
        features: Mapping[str, int] | None = None,
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
            properties=cluster_properties(nodes, properties),
            features=features,
            wall_ms=self.wall_ms,
        )
        self.node_ids = range(1, nodes + 1)
        self.history = History()
        self.violations: list[Violation] = []
        self.loop_errors: list[str] = []
        self._watches: dict[asyncio.TimerHandle, Callable[[], bool]] = {}

    def _call(self, function: Callable[[BrokerCluster], T]) -> T:
        return function(self.cluster)

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int((WALL_CLOCK + self.loop.time()) * 1000)

    def note(self, text: str) -> None:
        """Add an event to the trace."""
        self.trace.note(self.loop.time(), text)

    def violated(self, rule: str, what: str) -> None:
        """Note a broken rule."""
        self.note(f"violated {rule}: {what}")
        self.violations.append(Violation(rule, what))

    def is_in_sync(self) -> bool:
        """Whether each replica on a node that is up is in the ISR."""
        return not out_of_sync(self.cluster)

    async def lose_power(self, node_id: int) -> None:
        """Kill a node; a part of what it had not synced is lost."""
        await self.cluster.kill(node_id)
        lost = self.disk.sub(f"broker-{node_id}").lose_power(self.random)
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

    def producer(self, name: str, **config: Any) -> Producer:
        """A producer with its own endpoint, not started."""
        config.setdefault("client_id", name)
        config.setdefault("bootstrap_servers", self.bootstrap_servers)
        return Producer(transport=self.network.endpoint(name), **config)

    # Bounds

    @asynccontextmanager
    async def within(self, bound: float, what: str) -> AsyncIterator[None]:
        """Let the block take at most ``bound`` seconds, and some slack.

        Raises:
            Overdue: it takes longer; a violation of "progress" is noted.
        """
        deadline = asyncio.timeout(bound + SLACK)
        try:
            async with deadline:
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
            self.violated("progress", f"{what} took longer than {bound:g} s")
            raise Overdue(what) from None

    async def until(self, bound: float, condition: Callable[[], bool], what: str) -> bool:
        """Wait until ``condition`` is true, at most ``bound`` seconds; return whether it is."""
        try:
            async with self.within(bound, what):
                while not condition():  # noqa: ASYNC110 - the state of the cluster sets no event
                    await asyncio.sleep(0.02)
        except Overdue:
            return False
        return True

    def expect(self, bound: float, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        """Have ``condition`` be true after ``bound`` seconds; otherwise a violation of "progress" is noted."""

        def look() -> None:
            del self._watches[handle]
            if not condition():
                self.violated("progress", f"{what()} after {bound:g} s")

        handle = self.loop.call_later(bound + SLACK, look)
        self._watches[handle] = condition

    async def expected(self) -> None:
        """Wait until every condition is true, or was looked at too late."""
        for handle, condition in list(self._watches.items()):
            if condition():
                handle.cancel()
                del self._watches[handle]
        while self._watches:
            last = max(handle.when() for handle in self._watches)
            await asyncio.sleep(max(0.0, last - self.loop.time()) + 0.001)

    # The end

    def check_nothing_is_left(self) -> None:
        """Note tasks, connections and exceptions that clients or brokers have left."""
        for error in self.loop_errors:
            self.violated("no unhandled exception", error)
        current = asyncio.current_task(self.loop)
        for name in sorted(
            task.get_name() for task in asyncio.all_tasks(self.loop) if not task.done() and task is not current
        ):
            self.violated("nothing is left", f"task {name}")
        for link in self.network.links():
            self.violated("nothing is left", f"connection {link.name}")


def run(scenario: Callable[[ClusterWorld], Awaitable[T]], *, seed: int = 0, **options: Any) -> tuple[T, ClusterWorld]:
    """Start a cluster, play a scenario on virtual time, stop the cluster, and look for what is left.

    ``options`` are those of ``ClusterWorld``.
    """
    random = Random(seed)
    loop = VirtualLoop(random)
    with reproducible(loop, random):
        world = ClusterWorld(loop, random, **options)
        loop.set_exception_handler(lambda loop, context: world.loop_errors.append(_text_of(context)))

        async def play() -> T:
            async with asyncio.timeout(LONGEST_PLAY):
                async with world.cluster:
                    result = await scenario(world)
                # The other side learns of the end of a connection a little later.
                await asyncio.sleep(1)
                world.check_nothing_is_left()
                return result

        with _quiet(logs=world.trace.is_kept):
            try:
                result = loop.run_until_complete(play())
                world.note(f"end after {loop.turns} iterations, {random.random()}")
            finally:
                _close(loop)
    return result, world


@contextmanager
def _quiet(*, logs: bool) -> Iterator[None]:
    """Collect no garbage meanwhile, as finalizers run when they like, and let logs pass only with ``logs``."""
    was_collecting, disabled = gc.isenabled(), logging.root.manager.disable
    gc.disable()
    if not logs:
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        if was_collecting:
            gc.enable()


def _text_of(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context['message']}: {error!r}"


def _close(loop: VirtualLoop) -> None:
    """Cancel what a failed play has left, and close the loop."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.call_later(30, loop.stop)
        loop.run_forever()
    loop.close()
