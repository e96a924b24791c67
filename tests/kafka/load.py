"""Sending records through the producer under test, and recording them in a ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aioproducer.errors import KafkaError
from tests.kafka.ledger import Ledger

if TYPE_CHECKING:
    from aioproducer import Producer
    from aioproducer.core.outcomes.delivery import Delivery


class Load:
    """Sends to partitions in rotation, as fast as ``drain`` allows, and records the outcomes in the ledger."""

    def __init__(
        self, producer: Producer, topic: str, partitions: int = 1, *, size: int = 0, sender: str = "s"
    ) -> None:
        self.ledger = Ledger(sender)
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._size = size
        self._burst_sent = asyncio.Event()
        self._pending: list[tuple[bytes, Delivery]] = []

    def send_one(self) -> Delivery:
        """Send one record to the next partition in rotation."""
        partition = self.ledger.sent % self._partitions
        value = self.ledger.next_value(self._size)
        delivery = self._producer.send(self._topic, value, partition=partition)
        self._pending.append((value, delivery))
        return delivery

    async def send(self, count: int) -> None:
        """Send ``count`` records."""
        for _ in range(count):
            self.send_one()
            await self._producer.drain()

    async def finish(self) -> Ledger:
        """Flush, and record the outcome of each record."""
        await self._producer.flush()
        pending, self._pending = self._pending, []
        for value, delivery in pending:
            try:
                self.ledger.ack(value, await delivery)
            except KafkaError as error:
                self.ledger.fail(value, error)
        return self.ledger

    @asynccontextmanager
    async def running(self, burst: int = 20, pause: float = 0.005) -> AsyncIterator[None]:
        """Send ``burst`` records every ``pause`` seconds during the block, then flush and record the outcomes."""
        stopping = asyncio.Event()

        async def keep_sending() -> None:
            while not stopping.is_set():
                await self.send(burst)
                self._burst_sent.set()
                await asyncio.sleep(pause)

        task = asyncio.create_task(keep_sending())
        try:
            yield
        except BaseException:
            task.cancel()
            await asyncio.wait([task])
            raise
        stopping.set()
        await task
        await self.finish()

    async def more(self, count: int, timeout: float = 60) -> None:
        """While ``running``, wait until ``count`` further records were sent and the last of them was acknowledged."""
        async with asyncio.timeout(timeout):
            target = self.ledger.sent + count
            while self.ledger.sent < target:
                self._burst_sent.clear()
                await self._burst_sent.wait()
            await self._pending[-1][1]
