"""Compacts the logs of one node, one at a time, the dirtiest first (Kafka's ``LogCleaner``).

A cleaner reads a whole log, which takes long. It works in steps of well below a millisecond, gives other callbacks a
turn after a millisecond, and leaves large compressed batches and every ``fsync`` to a thread.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aioproducer.broker.log.cleaner.offset_map import OffsetMap
from aioproducer.broker.log.cleaner.selection import Cleanable
from aioproducer.broker.log.cleaner.steps import Steps, Work
from aioproducer.broker.log.cleaning import Cleaning, CleaningAbortedError, OffsetMapTooSmallError, cleanable
from aioproducer.errors import CorruptRecordError, KafkaError

if TYPE_CHECKING:
    from aioproducer.broker.replicas.host import CleanerHost
    from aioproducer.broker.replicas.partition import Partition

logger = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_TURN = 0.001
"""Seconds of steps after which other callbacks get a turn."""

LARGE_WORK = 32 * 1024
"""Bytes from which on a compressed batch is left to a thread."""

_AFTER_FAILURE = 1.0
"""The shortest pause in seconds after a round that failed, also if ``log.cleaner.backoff.ms`` is smaller."""

_FIRST_RETRY = 60.0
_LONGEST_RETRY = 3600.0
"""Seconds for which a log that failed is passed over: first, and at most. The time doubles with each failure."""


class _Failed(NamedTuple):
    """A log whose last round failed, or which could not be looked at."""

    until: float
    """Not tried again before this time of the host's clock."""
    delay: float
    """Seconds between the failure and ``until``."""


class LogCleaner:
    """The task of one node that compacts its logs."""

    def __init__(self, host: CleanerHost) -> None:
        self._host = host
        self._task: asyncio.Task[None] | None = None
        self._uncleanable: dict[Partition, int] = {}
        """Partitions whose logs cannot be cleaned, and the size of the offset map at that time; 0 for damage."""
        self._failed: dict[Partition, _Failed] = {}
        """Partitions that are passed over for a while, so that one with a bad disk does not keep others waiting."""

    def start(self) -> None:
        """Begin, unless ``log.cleaner.enable`` is false."""
        if self._host.broker.config.log_cleaner_enable:
            name = f"log cleaner of node {self._host.node_id}"
            self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def close(self) -> None:
        """Stop, also in the middle of a log; the next start begins that log again."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            pause = self._host.broker.config.log_cleaner_backoff_ms / 1000
            try:
                if await self.clean_dirtiest():
                    pause = 0.0
            except (KafkaError, OSError) as error:
                # A full disk, for example: the next round tries again.
                logger.error("the log cleaner failed: %s", error)
                pause = max(pause, _AFTER_FAILURE)
            except Exception:
                logger.exception("the log cleaner failed")
                pause = max(pause, _AFTER_FAILURE)
            await asyncio.sleep(pause)

    async def clean_dirtiest(self) -> bool:
        """Clean the log with the largest dirty part, of those that are due. Return whether there was one.

        A log whose round fails is passed over for a while.

        Raises:
            KafkaError, OSError: the disk failed.
        """
        self._uncleanable = {
            partition: size for partition, size in self._uncleanable.items() if not partition.is_removed
        }
        self._failed = {partition: failed for partition, failed in self._failed.items() if not partition.is_removed}
        now_ms = self._host.broker.wall_ms()
        dirtiest = await self._find_dirtiest(now_ms)
        if dirtiest is None:
            return False
        partition, part = dirtiest
        log = partition.log
        config = self._host.broker.config
        memory = config.log_cleaner_dedupe_buffer_size
        expected = part.end_offset - part.first_dirty_offset
        offsets = OffsetMap(memory, config.log_cleaner_io_buffer_load_factor, expected)
        size_before = log.size
        try:
            log.cleaned_to = await self._drive(Cleaning(log, part, offsets, now_ms).steps())
        except CleaningAbortedError as aborted:
            logger.debug("%s", aborted)
            return True
        except (CorruptRecordError, OffsetMapTooSmallError) as error:
            # As in Kafka the others are cleaned all the same.
            self._uncleanable[partition] = memory if isinstance(error, OffsetMapTooSmallError) else 0
            logger.error("%r cannot be compacted: %s", partition, error)
            return True
        except Exception:
            self._pass_over(partition)
            raise
        finally:
            offsets.close()
        self._failed.pop(partition, None)
        logger.debug(
            "%r: compacted up to offset %d, %d bytes of %d are left", partition, log.cleaned_to, log.size, size_before
        )
        self._host.broker.logs.checkpoint_cleaner()
        self._host.give_back()
        return True

    async def _find_dirtiest(self, now_ms: int) -> tuple[Partition, Cleanable] | None:
        host = self._host
        memory = host.broker.config.log_cleaner_dedupe_buffer_size
        dirtiest: tuple[Partition, Cleanable] | None = None
        turn_ends = host.now() + LONGEST_TURN
        for partition in list(host.partitions.values()):
            if (
                not partition.is_removed
                and partition.log.config.compacts
                and not self._is_uncleanable(partition, memory)
                and not self._is_passed_over(partition)
            ):
                part = self._cleanable(partition, now_ms)
                if part is not None and part.is_due and (dirtiest is None or part.ratio > dirtiest[1].ratio):
                    dirtiest = partition, part
            if host.now() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = host.now() + LONGEST_TURN
        return dirtiest

    def _cleanable(self, partition: Partition, now_ms: int) -> Cleanable | None:
        """Return the part of a log that can be cleaned; ``None`` if the disk failed, which concerns no other log."""
        try:
            part = cleanable(partition.log, now_ms, partition.high_watermark)
        except (KafkaError, OSError) as error:
            self._pass_over(partition)
            logger.error("%r: the log cleaner cannot read the log: %s", partition, error)
            return None
        if part.is_checkpoint_invalid:
            self._reset_checkpoint(partition, part)
        return part

    def _pass_over(self, partition: Partition) -> None:
        """Try a log that failed again later, and after twice that time if it fails again."""
        # Longer than the pause that follows, or the next round would take the same log.
        backoff = self._host.broker.config.log_cleaner_backoff_ms / 1000
        before = self._failed.get(partition)
        delay = _FIRST_RETRY if before is None else min(2 * before.delay, _LONGEST_RETRY)
        delay = max(delay, 2 * backoff)
        self._failed[partition] = _Failed(self._host.now() + delay, delay)

    def _is_passed_over(self, partition: Partition) -> bool:
        failed = self._failed.get(partition)
        return failed is not None and self._host.now() < failed.until

    def _is_uncleanable(self, partition: Partition, memory: int) -> bool:
        """Return whether a round has failed for this log, and a larger offset map does not help."""
        failed_with = self._uncleanable.get(partition)
        return failed_with is not None and not 0 < failed_with < memory

    def _reset_checkpoint(self, partition: Partition, part: Cleanable) -> None:
        if not partition.log.config.deletes:
            logger.warning(
                "%r: the cleaner's checkpoint %s is outside of the log, which is cleaned from %d on",
                partition,
                partition.log.cleaned_to,
                part.first_dirty_offset,
            )
        partition.log.cleaned_to = part.first_dirty_offset

    async def _drive(self, steps: Steps[T]) -> T:
        """Run ``steps`` to their end, with turns for others in between; close them if this is cancelled."""
        with closing(steps):
            return await self._run_steps(steps)

    async def _run_steps(self, steps: Steps[T]) -> T:
        now = self._host.now
        loop = asyncio.get_running_loop()
        turn_ends = now() + LONGEST_TURN
        result: Any = None
        failure: Exception | None = None
        while True:
            try:
                work: Work | None = steps.send(result) if failure is None else steps.throw(failure)
            except StopIteration as end:
                value: T = end.value
                return value
            result = failure = None
            if work is not None:
                try:
                    if work.is_slow or work.size >= LARGE_WORK:
                        result = await loop.run_in_executor(None, work.run)
                    else:
                        result = work.run()
                except Exception as error:
                    failure = error
            if now() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = now() + LONGEST_TURN
