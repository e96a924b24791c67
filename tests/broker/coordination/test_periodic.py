"""Periodic work of a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from aioproducer.broker.coordination.periodic import periodically
from tests import waiting


@asynccontextmanager
async def running(action: Callable[[], Awaitable[None] | None]) -> AsyncIterator[None]:
    task = asyncio.create_task(periodically(lambda: 1, action))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_periodic_work_continues_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(len(calls))
        raise OSError("the disk is gone")

    async with running(fail):
        await waiting.until(lambda: len(calls) > 2)
    assert "the disk is gone" in caplog.text


async def test_asynchronous_work_is_awaited_before_its_next_call() -> None:
    steps: list[str] = []

    async def wait() -> None:
        steps.append("begun")
        await asyncio.sleep(0.005)
        steps.append("ended")

    async with running(wait):
        await waiting.until(lambda: len(steps) >= 4)
    assert steps[:4] == ["begun", "ended", "begun", "ended"]
