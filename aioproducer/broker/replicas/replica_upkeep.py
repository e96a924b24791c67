"""The periodic work of a node on its replicas: ISRs, retention, checkpoints, flushing, expiry of producers.

Each kind of work is a loop over the partitions in small steps, which gives other callbacks a turn in between. Idle
partitions cost next to nothing, also a thousand of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aioproducer.errors import KafkaError

if TYPE_CHECKING:
    from aioproducer.broker.replicas.host import PartitionKey
    from aioproducer.broker.replicas.partition import Partition

    # A circle of two: the upkeep is a part of the manager, in a file of its own, and uses most of it.
    from aioproducer.broker.replicas.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

NEVER_MS = 2**63 - 1
SHORTEST_FLUSH_MS = 10
LONGEST_FLUSH_CHECK_MS = 1000
"""Between these limits, the interval of the search for logs to flush is the smallest flush.ms.

Kafka searches every log.flush.scheduler.interval.ms. Unless that is set it never does, so flush.ms has no effect."""

LONGEST_TURN = 0.001
"""Seconds of steps after which other callbacks get a turn."""


class ReplicaUpkeep:
    """The loops of one node."""

    def __init__(self, manager: ReplicaManager) -> None:
        self._manager = manager
        self._tasks: list[asyncio.Task[None]] = []
        self._checkpointed: dict[PartitionKey, tuple[int, int, int]] = {}
        self._flushed: dict[PartitionKey, tuple[int, float]] = {}
        """Recovery points, and the time at which each was first seen."""

    def start(self) -> None:
        """Start the loops; each waits for its interval first."""
        config = self._manager.broker.config
        loops: list[tuple[str, float, Callable[[], Awaitable[None]]]] = [
            ("isr", config.replica_lag_time_max_ms / 2, self.shrink_isrs),
            ("retention", config.log_retention_check_interval_ms, self.delete_old_segments),
            ("checkpoint", config.replica_high_watermark_checkpoint_interval_ms, self.checkpoint),
            ("producers", config.producer_id_expiration_check_interval_ms, self.expire_producers),
        ]
        coroutines = [(name, _every(interval_ms / 1000, step)) for name, interval_ms, step in loops]
        if config.log_flush_scheduler_interval_ms < NEVER_MS:
            coroutines.append(("flush", _every(config.log_flush_scheduler_interval_ms / 1000, self.flush)))
        else:
            coroutines.append(("flush", self._flush_often()))
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(coroutine, name=f"{name} of node {self._manager.node_id}")
            for name, coroutine in coroutines
        ]

    async def close(self) -> None:
        """Stop the loops."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _each(self, step: Callable[[Partition], object]) -> None:
        """Call ``step`` for each partition, repeatedly while it returns a true value."""
        turn_ends = self._manager.now() + LONGEST_TURN
        partitions = list(self._manager.partitions.values())
        partitions.reverse()
        while partitions:
            partition = partitions.pop()
            if partition.is_removed:
                continue
            try:
                if step(partition):
                    partitions.append(partition)
            except (KafkaError, OSError) as error:
                logger.error("%r: %s", partition, error)
            if self._manager.now() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = self._manager.now() + LONGEST_TURN

    async def shrink_isrs(self) -> None:
        """Remove lagging followers from ISRs."""
        await self._each(lambda partition: partition.shrink_isr())

    async def delete_old_segments(self) -> None:
        """Delete segments by time, size and log start offset."""

        def step(partition: Partition) -> bool:
            start = partition.log_start_offset
            count = partition.log.delete_old_segments(partition.high_watermark, at_most=1)
            if partition.log_start_offset != start:
                self._manager.log_start_moved(partition)
            return count > 0

        await self._each(step)
        self._manager.give_back()

    async def checkpoint(self) -> None:
        """Write high watermarks, log starts and recovery points to their checkpoints, if one has changed."""
        points: dict[PartitionKey, tuple[int, int, int]] = {}

        def step(partition: Partition) -> None:
            log = partition.log
            points[partition.topic, partition.index] = (
                partition.high_watermark,
                log.log_start_offset,
                log.recovery_point,
            )

        await self._each(step)
        if points != self._checkpointed:
            await asyncio.sleep(0)
            self._manager.broker.logs.checkpoint(self._manager.high_watermarks())
            self._checkpointed = points

    async def expire_producers(self) -> None:
        """Remove producers that have written nothing for producer.id.expiration.ms."""
        now_ms = self._manager.broker.wall_ms()

        def step(partition: Partition) -> None:
            log = partition.log
            log.producer_state.remove_expired(now_ms, log.config.producer_id_expiration_ms)

        await self._each(step)

    async def flush(self) -> None:
        """Flush logs with unflushed records and a last flush at least flush.ms ago."""
        now = self._manager.now()
        seen: dict[PartitionKey, tuple[int, float]] = {}
        due = []
        for key, partition in self._manager.flushed_by_time.items():
            log = partition.log
            recovery_point, since = self._flushed.get(key, (-1, now))
            seen[key] = (log.recovery_point, since if recovery_point == log.recovery_point else now)
            if log.recovery_point < log.log_end_offset and (now - seen[key][1]) * 1000 >= log.config.flush_ms:
                due.append(partition)
        self._flushed = seen
        for partition in due:
            try:
                await self._manager.flush_log(partition)
            except KafkaError as error:
                logger.error("%r: the log cannot be flushed to disk: %s", partition, error)

    async def _flush_often(self) -> None:
        """Flush logs, at the interval that the smallest flush.ms of all logs requires."""
        while True:
            smallest = min(
                (partition.log.config.flush_ms for partition in self._manager.flushed_by_time.values()),
                default=NEVER_MS,
            )
            await asyncio.sleep(min(max(smallest, SHORTEST_FLUSH_MS), LONGEST_FLUSH_CHECK_MS) / 1000)
            await _guarded(self.flush)


async def _every(interval: float, step: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(interval)
        await _guarded(step)


async def _guarded(step: Callable[[], Awaitable[None]]) -> None:
    try:
        await step()
    except (KafkaError, OSError) as error:
        # A full or missing disk, for example: the next round tries again.
        logger.error("upkeep failed: %s", error)
    except Exception:
        # One failed round must not end the loop.
        logger.exception("upkeep failed")
