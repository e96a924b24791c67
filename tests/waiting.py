"""Waiting for conditions without an event, or that may take long on a slow machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aioproducer.errors import MetadataTimeoutError
from aioproducer.producer import Producer


async def until(condition: Callable[[], object], timeout: float = 10, *, pause: float = 0) -> None:
    """Wait until ``condition`` holds; check it in each iteration of the loop, or every ``pause`` seconds."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110  # conditions of many kinds
            await asyncio.sleep(pause)


async def know_topic(producer: Producer, topic: str) -> None:
    """Wait until the producer knows the topic, even if its ``max_block_ms`` is shorter than that takes."""
    async with asyncio.timeout(30):
        await producer.wait_ready(30)
        while True:
            try:
                await producer.partitions_for(topic)
            except MetadataTimeoutError:
                continue
            return
