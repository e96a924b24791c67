"""Admin calls while clients send: a topic that grows, and one that is deleted, made again, and loses records."""

from __future__ import annotations

import asyncio
from random import Random

from aioproducer.admin import Admin
from aioproducer.errors import KafkaError
from tests.simulation.embedded.world import ClusterWorld, Overdue

GROWING = "growing"
"""It gets more partitions, and keeps every record."""

VOLATILE = "volatile"
"""Its records are deleted, with the topic or without; what was sent before the last deletion may be gone."""

ADMINISTERED = (GROWING, VOLATILE)

_MAX_PARTITIONS = 4
_TIMEOUT = 2.0
"""Seconds that a call of the client for administrators takes at most."""


async def administer(world: ClusterWorld, random: Random, until: float) -> None:
    """Change both topics until a loop time."""
    while world.loop.time() < until:
        await asyncio.sleep(random.expovariate(4))
        try:
            await _change(world, random)
        except KafkaError as error:
            world.note(f"administrator: {type(error).__name__}")
        except Overdue:
            return


async def _change(world: ClusterWorld, random: Random) -> None:
    match random.choice(["grow", "grow volatile", "delete", "re-create", "delete records", "delete records"]):
        case "grow":
            _grow(world, GROWING)
        case "grow volatile":
            _grow(world, VOLATILE)
        case "re-create":
            world.note(f"administrator re-creates {VOLATILE}")
            world.recreate_topic(VOLATILE)
        case "delete":
            await _delete_and_create(world, random)
        case _:
            index = random.randrange(len(world.cluster.image.topic(VOLATILE).partitions))
            node_id = world.leader(VOLATILE, index)
            if node_id < 0:
                return
            leader = world.cluster.brokers[node_id].replicas.leader(VOLATILE, index)
            offset = random.randint(leader.log_start_offset, leader.high_watermark)
            world.note(f"administrator deletes records of {VOLATILE}-{index} before {offset}")
            leader.delete_records(offset)


def _grow(world: ClusterWorld, topic: str) -> None:
    partitions = len(world.cluster.image.topic(topic).partitions)
    if partitions < _MAX_PARTITIONS:
        world.note(f"administrator grows {topic} to {partitions + 1}")
        world.cluster.controller.create_partitions(topic, partitions + 1)


async def _delete_and_create(world: ClusterWorld, random: Random) -> None:
    """Delete the volatile topic by requests, wait a little, and make it again."""
    async with Admin(
        timeout=_TIMEOUT,
        transport=world.network.endpoint("administrator"),
        bootstrap_servers=world.bootstrap_servers,
        client_id="administrator",
        request_timeout_ms=500,
    ) as admin:
        world.note(f"administrator deletes {VOLATILE}")
        try:
            async with world.within(_TIMEOUT, "Admin.delete_topic"):
                await admin.delete_topic(VOLATILE)
        finally:
            await asyncio.sleep(random.choice([0.0, 0.05, 0.5]))
        async with world.within(_TIMEOUT, "Admin.create_topic"):
            await admin.create_topic(VOLATILE, partitions=random.randint(1, 2))


def ensure_topics(world: ClusterWorld) -> None:
    """Make the volatile topic if no call has made it again."""
    if VOLATILE not in world.topics():
        world.create_topic(VOLATILE, 1)
