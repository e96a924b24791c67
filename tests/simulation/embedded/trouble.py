"""What goes wrong while the clients work, and its end."""

from __future__ import annotations

import asyncio
from random import Random

from aioproducer.errors import KafkaError
from tests.simulation.embedded.story import Story
from tests.simulation.embedded.world import SLACK, ClusterWorld, node_name

_ERRORS: dict[str, tuple[str, ...]] = {
    "Produce": ("NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS", "CORRUPT_MESSAGE"),
    "InitProducerId": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "AddPartitionsToTxn": ("COORDINATOR_NOT_AVAILABLE", "CONCURRENT_TRANSACTIONS", "UNKNOWN_TOPIC_OR_PARTITION"),
    "EndTxn": ("COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS", "NOT_COORDINATOR"),
    "FindCoordinator": ("COORDINATOR_NOT_AVAILABLE",),
    "Fetch": ("NOT_LEADER_OR_FOLLOWER", "KAFKA_STORAGE_ERROR"),
}
"""Errors that a client has to survive, by request."""

_REQUESTS = ("Produce", "Produce", "Produce", "EndTxn", "InitProducerId", "AddPartitionsToTxn", "Metadata", "Fetch")
_REPEATABLE = ("Produce", "EndTxn", "InitProducerId", "AddPartitionsToTxn", "WriteTxnMarkers")


class Trouble:
    """Draws faults for a while; ``heal`` ends them."""

    def __init__(self, world: ClusterWorld, story: Story, random: Random) -> None:
        self._world = world
        self._story = story
        self._random = random
        self._down: set[int] = set()

    async def run(self) -> None:
        """Let faults come until the time is over."""
        world, story, random = self._world, self._story, self._random
        ends = world.loop.time() + story.seconds_of_trouble
        while world.loop.time() < ends:
            if not story.fault_rate or not story.faults:
                await asyncio.sleep(ends - world.loop.time())
                return
            await asyncio.sleep(min(random.expovariate(story.fault_rate), ends - world.loop.time() + 0.001))
            kind = random.choice(story.faults)
            world.note(f"fault: {kind}")
            await self._do(kind)

    async def heal(self) -> None:
        """Put everything in order: no fault is left, each node is up, each replica in sync."""
        world = self._world
        world.note("healing")
        world.clear_faults()
        world.network.heal()
        for node_id in sorted(self._down):
            await world.cluster.restart(node_id)
        self._down.clear()
        lag = int(str(self._story.properties["replica.lag.time.max.ms"])) / 1000
        await world.until(10 * lag + 5, world.is_in_sync, "replication after the faults")

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
            case "kill":
                await self._kill_or_restart(node_id)
            case "power loss":
                # Two of three replicas keep what was acknowledged. A node that comes back is in no ISR until it has
                # caught up, so that its loss costs nothing.
                if not self._down and all(len(each.isr) == 3 for each in world.cluster.image.partitions()):
                    self._down.add(node_id)
                    await world.lose_power(node_id)
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
            world.note(f"restart {node_id}")
            await world.cluster.restart(node_id)
            self._down.remove(node_id)
        elif not self._down:
            world.note(f"kill {node_id}")
            await world.cluster.kill(node_id)
            self._down.add(node_id)

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
        try:
            self._world.drop_transaction_coordinator("any")
        except (KafkaError, IndexError):
            # There is none, or no node is up.
            return

    def _set_fault(self, kind: str) -> None:
        faults, random = self._world.cluster.faults, self._random
        request = random.choice(_REQUESTS)
        times = random.choice([1, 1, 2, 5])
        match kind:
            case "error":
                request = random.choice(list(_ERRORS))
                faults.fail(request, random.choice(_ERRORS[request]), times)
            case "delay":
                faults.delay(request, random.choice([10, 500, 1500]), times)
            case "postpone":
                if request == "EndTxn" and self._story.transaction_version < 2:
                    # Without KIP-890 a late EndTxn ends a later transaction: test_transaction_versions.
                    return
                request = random.choice([request, "WriteTxnMarkers"])
                faults.postpone(request, random.choice([10, 500, 1500, 4000]), 1)
            case "late end":
                faults.postpone("EndTxn", random.choice([400, 1100, 1500, 3100]), times)
            case "repeat":
                faults.repeat(random.choice(_REPEATABLE), times)
            case "disconnect":
                faults.disconnect(request, random.choice(["before", "after", "half"]), times)
            case "throttle":
                faults.throttle(request, random.choice([10, 300]), times)


def healing_bound(story: Story) -> float:
    """Seconds after the end of all faults within which each topic takes a record.

    A client may be in the middle of a request, of a connection set-up and of a backoff, and may have to learn the
    leader first.
    """
    longest_ms = sum(max(int(client.config[key]) for client in story.clients) for key in _WAITS)
    return 2 * longest_ms / 1000 + 2 + SLACK


_WAITS = ("request_timeout_ms", "socket_connection_setup_timeout_max_ms", "linger_ms")
