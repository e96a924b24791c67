"""Reads a topic as a member of a consumer group, and commits what was written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from aioproducer.cli.exits import CommandError
from aioproducer.cli.running import Interruption
from aioproducer.config.consumer import CONSUMER_CONFIG_DEF
from aioproducer.config.producer import CONFIG_DEF
from aioproducer.consumer import Consumer, ConsumerRecord, RebalanceListener
from aioproducer.errors import RebalanceInProgressError
from aioproducer.record import TopicPartition

# How long a request for records waits before the command looks whether it has reached the end, in seconds.
_POLL = 0.25


def without_consumer_keys(config: Mapping[str, object]) -> dict[str, object]:
    """Return the keys for an Admin: without those that only a consumer has."""
    consumers = CONSUMER_CONFIG_DEF.keys.keys() - CONFIG_DEF.keys.keys()
    consumers |= {CONSUMER_CONFIG_DEF.keys[name].attribute for name in consumers}
    return {name: value for name, value in config.items() if name not in consumers}


def without_producer_keys(config: Mapping[str, object]) -> dict[str, object]:
    """Return the keys for a consumer: without those that only a producer has, as a common file has them."""
    producers = CONFIG_DEF.keys.keys() - CONSUMER_CONFIG_DEF.keys.keys()
    return {name: value for name, value in config.items() if name not in producers}


class _Forgetting(RebalanceListener):
    """Forgets what was written of partitions that are taken away: other members may read and commit more of them."""

    def __init__(self, written: dict[TopicPartition, int]) -> None:
        self._written = written

    async def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._written.pop(partition, None)


class GroupReading:
    """The loop of ``consume --group``.

    A record counts as processed when the next one is requested, so the consumer's automatic commits cover exactly what
    was written before. The last records have no successor: they are committed when the command ends.

    Args:
        config: client keys, with that of the group.
        write: writes records; a record may be written again by the next member if it does not return.
        timeout: for the group to assign partitions, and for the last commit, in seconds.
        is_gathering: the records are written when the output is finished; ``commit`` is called then.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        topic: str,
        write: Callable[[list[ConsumerRecord]], Awaitable[None]],
        *,
        timeout: float,
        max_records: int | None,
        is_gathering: bool,
    ) -> None:
        automatic = "false" if is_gathering else "true"
        chosen = {**without_producer_keys(config), "enable.auto.commit": automatic}
        self._consumer = Consumer.from_config(chosen)
        self._topic = topic
        self._write = write
        self._timeout = timeout
        self._left = max_records
        # The offsets behind what was written, of partitions that were not taken away since then.
        self._written: dict[TopicPartition, int] = {}
        self._is_gathering = is_gathering

    async def start(self) -> None:
        """Join the group."""
        await self._consumer.start()
        self._consumer.subscribe(self._topic, listener=_Forgetting(self._written))

    async def close(self) -> None:
        """Commit what was processed, and leave the group."""
        await self._consumer.close(self._timeout)

    async def read(
        self, stops: Mapping[TopicPartition, int] | None, interruption: Interruption, longest_finish: float
    ) -> None:
        """Write records until all assigned partitions have reached their ``stops``, or until a signal comes.

        Raises:
            CommandError: the group assigns no partition.
            KafkaError: the group or a partition cannot be read.
        """
        loop = asyncio.get_running_loop()
        assigned_by = loop.time() + self._timeout
        while self._left != 0:
            batches = await interruption.unless(self._consumer.poll(_POLL, self._left))
            if batches is None:
                break
            records = [record for batch in batches.values() for record in batch]
            if records:
                if not await interruption.unless(self._write_all(records), grace=longest_finish):
                    return
                self._written.update({partition: batch[-1].offset + 1 for partition, batch in batches.items()})
                if self._left is not None:
                    self._left -= len(records)
            if self._consumer.assignment():
                assigned_by = loop.time() + self._timeout
            elif stops is not None and loop.time() > assigned_by:
                raise CommandError(
                    f"the group has assigned no partition within {self._timeout:g} s: other members have all of them; "
                    "wait with --follow, or with a larger --timeout"
                )
            if not records and stops is not None and await interruption.unless(self._has_reached(stops)):
                break
        if not self._is_gathering:
            await self.commit()

    async def commit(self) -> None:
        """Commit everything that was written, of partitions that still belong to this member."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        unwritten: Mapping[TopicPartition, list[ConsumerRecord]] = {}
        while True:
            try:
                await self._commit_assigned()
                return
            except RebalanceInProgressError:
                # Records of a new partition were not written: a further request would count them as processed.
                if unwritten or loop.time() > deadline:
                    raise
            # A request for records joins the group again.
            self._consumer.pause()
            unwritten = await self._consumer.poll(_POLL)

    async def _commit_assigned(self) -> None:
        assigned = self._consumer.assignment()
        offsets = {partition: offset for partition, offset in self._written.items() if partition in assigned}
        if offsets:
            await self._consumer.commit(offsets, self._timeout)

    async def _write_all(self, records: list[ConsumerRecord]) -> bool:
        await self._write(records)
        return True

    async def _has_reached(self, stops: Mapping[TopicPartition, int]) -> bool:
        assigned = self._consumer.assignment()
        for partition in assigned:
            if await self._consumer.position(partition, self._timeout) < stops.get(partition, 0):
                return False
        return bool(assigned)
