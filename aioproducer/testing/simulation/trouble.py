"""What goes wrong while clients work, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from aioproducer.broker.image import GROUP_METADATA_TOPIC
from aioproducer.errors import KafkaError, KafkaStorageError
from aioproducer.testing.simulation.world import SimulatedWorld, node_name

NETWORK_FAULTS = ("cut", "cut within", "half-open", "stop")
CLUSTER_FAULTS = ("kill", "move leader", "move coordinator", "late marker", "late end")
REQUEST_FAULTS = ("error", "delay", "postpone", "repeat", "disconnect", "throttle")
SLOW_FAULTS = ("slow", "full disk")
FAULTS = (*NETWORK_FAULTS, *CLUSTER_FAULTS, *REQUEST_FAULTS, *SLOW_FAULTS, "power loss")
"""Every kind of fault."""

_ERRORS: dict[str, tuple[str, ...]] = {
    "Produce": ("NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS", "CORRUPT_MESSAGE"),
    "InitProducerId": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "AddPartitionsToTxn": ("COORDINATOR_NOT_AVAILABLE", "CONCURRENT_TRANSACTIONS", "UNKNOWN_TOPIC_OR_PARTITION"),
    "EndTxn": ("COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS", "NOT_COORDINATOR"),
    "FindCoordinator": ("COORDINATOR_NOT_AVAILABLE",),
    "Fetch": ("NOT_LEADER_OR_FOLLOWER", "KAFKA_STORAGE_ERROR"),
}
"""Errors that a client has to survive, by request."""

_GROUP_ERRORS: dict[str, tuple[str, ...]] = {
    "JoinGroup": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"),
    "SyncGroup": ("REBALANCE_IN_PROGRESS", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"),
    "Heartbeat": ("REBALANCE_IN_PROGRESS", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"),
    "OffsetCommit": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "REQUEST_TIMED_OUT"),
    "OffsetFetch": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "UNSTABLE_OFFSET_COMMIT"),
    "TxnOffsetCommit": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"),
}
"""The same, of a cluster with consumer groups."""

_REQUESTS = ("Produce", "Produce", "Produce", "EndTxn", "InitProducerId", "AddPartitionsToTxn", "Metadata", "Fetch")
_REPEATABLE = ("Produce", "EndTxn", "InitProducerId", "AddPartitionsToTxn", "WriteTxnMarkers")
_GROUP_REPEATABLE = ("Heartbeat", "OffsetCommit", "TxnOffsetCommit", "LeaveGroup")

_MIN_REPLICAS = 3
"""Replicas that a partition has at least if a power loss may come: two of three keep what was acknowledged."""


class Trouble:
    """Draws faults for a while; ``heal`` ends them.

    Args:
        faults: The kinds of faults that come.
        rate: Faults in a second, on average.
        has_late_ends: Whether an EndTxn may come late. Without KIP-890 a late one ends a later transaction.
        longest: Seconds after which a node runs, answers and can write again, at most; ``None`` if only another fault
            of the same kind, or ``heal``, ends that.
    """

    def __init__(
        self,
        world: SimulatedWorld,
        random: Random,
        *,
        faults: Sequence[str],
        rate: float,
        has_late_ends: bool = True,
        longest: float | None = None,
    ) -> None:
        self._world = world
        self._random = random
        self._faults = faults
        self._rate = rate
        self._has_late_ends = has_late_ends
        self._longest = longest
        self._is_over = asyncio.Event()
        self._down: set[int] = set()
        self._full: set[int] = set()
        self._ending: set[asyncio.Task[None]] = set()
        """Wait for the ends of faults."""

    async def run(self, seconds: float) -> None:
        """Let faults come for some seconds, or until ``stop``."""
        world, random = self._world, self._random
        ends = world.loop.time() + seconds
        while world.loop.time() < ends and not self._is_over.is_set():
            if not self._rate or not self._faults:
                await self._sleep(ends - world.loop.time())
                return
            await self._sleep(min(random.expovariate(self._rate), ends - world.loop.time() + 0.001))
            if self._is_over.is_set():
                return
            kind = random.choice(self._faults)
            world.note(f"fault: {kind}")
            await self._do(kind)

    def stop(self) -> None:
        """Let ``run`` return when the fault that it makes is made."""
        self._is_over.set()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._is_over.wait()
        except TimeoutError:
            return

    async def heal(self) -> None:
        """End every fault, and start the nodes that are down. Replicas catch up afterwards."""
        world = self._world
        world.note("healing")
        self.stop()
        if self._ending:
            await asyncio.wait(self._ending)
        world.clear_faults()
        world.network.heal()
        for node_id in sorted(self._full):
            world.disk_of(node_id).set_full(False)
        # A log that could not be written is offline until its node starts again, as in Kafka.
        for node_id in sorted(self._down | self._full):
            await world.cluster.restart(node_id)
        self._down.clear()
        self._full.clear()

    def _end_later(self, kind: str, node_id: int) -> None:
        """Let a fault of a node end after a drawn time, if such a time is set."""
        if self._longest is not None:
            pause = self._random.uniform(0, self._longest)
            task = asyncio.create_task(self._end(kind, node_id, pause), name=f"end of {kind}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end(self, kind: str, node_id: int, pause: float) -> None:
        await self._sleep(pause)
        world, name = self._world, node_name(node_id)
        match kind:
            case "stop":
                world.network.resume(name)
            case "slow":
                world.network.slow.pop(name, None)
            case "full disk":
                await self._make_space(node_id)
            case _:
                while node_id in self._down and not self._is_over.is_set():
                    await self._restart(node_id)
                    await self._sleep(pause + 0.1)

    async def _do(self, kind: str) -> None:
        world, random = self._world, self._random
        node_id = random.choice(world.node_ids)
        match kind:
            case "cut" | "cut within" | "half-open":
                links = world.network.links(random.choice([None, node_name(node_id)]))
                links = [link for link in links if not link.is_frozen]
                if not links:
                    return
                link = random.choice(links)
                if kind == "cut":
                    link.cut()
                elif kind == "cut within":
                    link.bytes_until_cut = random.choice([1, 3, 30, random.randrange(1, 1000)])
                else:
                    link.abandon()
            case "stop":
                name = node_name(node_id)
                if name in world.network.stopped:
                    world.network.resume(name)
                else:
                    world.network.stop(name)
                    self._end_later(kind, node_id)
            case "slow":
                seconds = random.choice([0.0, 0.05, 0.3, 1.0])
                world.note(f"node {node_id} is slow by {seconds} s")
                world.network.slow[node_name(node_id)] = seconds
                self._end_later(kind, node_id)
            case "full disk":
                if node_id in self._full:
                    await self._make_space(node_id)
                else:
                    world.note(f"disk of node {node_id} is full")
                    self._full.add(node_id)
                    world.disk_of(node_id).set_full(True)
                    self._end_later(kind, node_id)
            case "kill":
                await self._kill_or_restart(node_id)
            case "power loss":
                # A node that comes back is in no ISR until it has caught up, so that its loss costs nothing.
                if not self._down and all(len(each.isr) >= _MIN_REPLICAS for each in world.cluster.image.partitions()):
                    self._down.add(node_id)
                    await world.lose_power(node_id)
                    self._end_later(kind, node_id)
            case "move leader":
                self._move_leader()
            case "move coordinator":
                self._move_coordinator()
            case "late marker":
                # The next coordinator writes the marker again, and the late one comes in a later transaction.
                world.cluster.faults.postpone("WriteTxnMarkers", random.choice([300, 1000, 2000]), 1)
                await asyncio.sleep(random.expovariate(10))
                self._move_coordinator()
            case _:
                self._set_fault(kind)

    async def _kill_or_restart(self, node_id: int) -> None:
        world = self._world
        if node_id in self._down:
            await self._restart(node_id)
        elif not self._down:
            world.note(f"kill {node_id}")
            self._down.add(node_id)
            await world.cluster.kill(node_id)
            self._end_later("kill", node_id)

    async def _make_space(self, node_id: int) -> None:
        """Let a full disk have space again, and restart its node."""
        if node_id in self._full:
            self._world.note(f"disk of node {node_id} has space")
            self._world.disk_of(node_id).set_full(False)
            self._full.discard(node_id)
            self._down.add(node_id)
            await self._restart(node_id)

    async def _restart(self, node_id: int) -> None:
        world = self._world
        world.note(f"restart {node_id}")
        try:
            await world.cluster.restart(node_id)
        except KafkaStorageError as error:
            # Its disk is full.
            world.note(f"node {node_id} does not start: {error}")
            return
        self._down.discard(node_id)

    def _move_leader(self) -> None:
        world, random = self._world, self._random
        partitions = list(world.cluster.image.partitions())
        if not partitions:
            return
        partition = random.choice(partitions)
        others = [node for node in partition.isr if node != partition.leader and world.cluster.image.is_alive(node)]
        if others:
            to = random.choice(others)
            world.note(f"leader of {partition.topic}-{partition.index} moves to {to}")
            world.move_leader(partition.topic, partition.index, to)

    def _move_coordinator(self) -> None:
        for drop in (self._world.drop_transaction_coordinator, self._world.drop_coordinator):
            try:
                drop("any")
            except (KafkaError, IndexError):
                # There is none, or no node is up.
                continue

    def _set_fault(self, kind: str) -> None:
        faults, random = self._world.cluster.faults, self._random
        has_groups = GROUP_METADATA_TOPIC in self._world.cluster.image.topics
        errors = _ERRORS | _GROUP_ERRORS if has_groups else _ERRORS
        request = random.choice((*_REQUESTS, *_GROUP_ERRORS) if has_groups else _REQUESTS)
        times = random.choice([1, 1, 2, 5])
        match kind:
            case "error":
                request = random.choice(list(errors))
                faults.fail(request, random.choice(errors[request]), times)
            case "delay":
                faults.delay(request, random.choice([10, 500, 1500]), times)
            case "postpone":
                if request in ("EndTxn", "TxnOffsetCommit") and not self._has_late_ends:
                    return
                request = random.choice([request, "WriteTxnMarkers"])
                faults.postpone(request, random.choice([10, 500, 1500, 4000]), 1)
            case "late end":
                faults.postpone("EndTxn", random.choice([400, 1100, 1500, 3100]), times)
            case "repeat":
                faults.repeat(random.choice((*_REPEATABLE, *_GROUP_REPEATABLE) if has_groups else _REPEATABLE), times)
            case "disconnect":
                faults.disconnect(request, random.choice(["before", "after", "half"]), times)
            case "throttle":
                faults.throttle(request, random.choice([10, 300]), times)
