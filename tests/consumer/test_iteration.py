"""The coroutine of ``anext``: it takes a record when it runs, and is like a coroutine in every other way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import pytest

from aioproducer import Consumer
from aioproducer.errors import ConsumerClosedError
from aioproducer.testing import EmbeddedCluster

TOPIC = "a"


@asynccontextmanager
async def consumer_of(count: int) -> AsyncIterator[Consumer]:
    """Yield a consumer of ``count`` records, of which the first was returned and the others are decoded."""
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic(TOPIC)
        async with cluster.producer() as producer:
            for number in range(count):
                producer.send(TOPIC, b"%d" % number)
        async with cluster.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([(TOPIC, 0)])
            assert (await anext(consumer)).offset == 0
            yield consumer


async def test_a_call_that_never_runs_takes_no_record():
    async with consumer_of(4) as consumer:
        anext(consumer).close()
        never = asyncio.create_task(anext(consumer))
        never.cancel()
        with pytest.raises(asyncio.CancelledError):
            await never
        with pytest.raises(KeyError, match="thrown"):
            anext(consumer).throw(KeyError("thrown"))
        assert [(await anext(consumer)).offset for _ in range(3)] == [1, 2, 3]


async def test_a_call_is_a_coroutine_that_runs_once():
    async with consumer_of(3) as consumer:
        call = anext(consumer)
        assert isinstance(call, Coroutine)
        assert (await call).offset == 1
        with pytest.raises(RuntimeError, match="already awaited"):
            await call
        with pytest.raises(StopIteration) as found:
            anext(consumer).send(None)
        assert found.value.value.offset == 2


async def test_a_waiting_call_returns_the_next_record_and_a_cancelled_one_leaves_it():
    async with consumer_of(1) as consumer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(consumer)
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
        consumer.seek((TOPIC, 0), 0)
        assert (await waiting).offset == 0


async def test_decoded_records_are_not_returned_after_close():
    async with consumer_of(3) as consumer:
        await consumer.close()
        with pytest.raises(ConsumerClosedError):
            await anext(consumer)
