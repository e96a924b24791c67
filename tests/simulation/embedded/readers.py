"""Readers of a topic: of committed records, and of all."""

from __future__ import annotations

import asyncio
from typing import Literal

from aioproducer.consumer import Reader
from aioproducer.errors import KafkaError
from tests.simulation.embedded.history import ReaderHistory
from tests.simulation.embedded.world import ClusterWorld


class TopicReader:
    """Reads a topic from its beginning until it is stopped; continues after errors where it was."""

    def __init__(self, world: ClusterWorld, topic: str, *, committed: bool, number: int) -> None:
        self.history = ReaderHistory(f"reader-{topic}-{committed}-{number}", topic, committed)
        world.history.readers.append(self.history)
        self._world = world
        self._committed = committed
        self._next: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read; nothing if it reads."""
        if self._task is None:
            self._task = asyncio.create_task(self._read(), name=self.history.name)

    async def stop(self) -> None:
        """End the reader."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    def has_read_up_to(self, ends: dict[int, int]) -> bool:
        """Whether everything before these offsets, by partition, was read."""
        return all(self._next.get(partition, 0) >= end for partition, end in ends.items())

    async def _read(self) -> None:
        world = self._world
        isolation: Literal["read_committed", "read_uncommitted"] = (
            "read_committed" if self._committed else "read_uncommitted"
        )
        while True:
            reader = Reader(
                self.history.topic,
                start=dict(self._next) or "beginning",
                isolation_level=isolation,
                timeout=5.0,
                max_wait_ms=500,
                transport=world.network.endpoint(self.history.name),
                bootstrap_servers=world.bootstrap_servers,
                client_id=self.history.name,
                request_timeout_ms=1000,
            )
            try:
                async with reader:
                    async for records in reader.batches():
                        self.history.records += records
                        last = records[-1]
                        self._next[last.partition] = last.offset + 1
                        world.note(f"{self.history.name} {last.partition}:{last.offset}")
            except KafkaError as error:
                world.note(f"{self.history.name} {type(error).__name__}")
                await asyncio.sleep(0.05)
