"""Test suites that freeze or move the time, with a producer and a broker in the process."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import freezegun
import pytest
import time_machine

from aioproducer.testing import EmbeddedCluster

THEN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
THEN_MS = 1_577_836_800_000


def freezing() -> AbstractContextManager[Any]:
    # The loop uses the system's time; otherwise nothing would ever be due.
    return freezegun.freeze_time(THEN, real_asyncio=True)


def travelling() -> AbstractContextManager[Any]:
    return time_machine.travel(THEN, tick=False)


@pytest.mark.parametrize("moved", [freezing, travelling])
@pytest.mark.kafka_cluster(transport="memory")
async def test_records_have_the_frozen_time_of_the_test(
    kafka_cluster: EmbeddedCluster, moved: Callable[[], AbstractContextManager[Any]]
) -> None:
    """Compiled code once read the system clock, and the broker rejected timestamps years in the future."""
    async with kafka_cluster.producer() as before:
        await before.send("t", b"of today")
        with moved():
            await before.send("t", b"1")
            async with kafka_cluster.producer() as inside:
                await inside.send("t", b"2", partition=0)
                await inside.send_many("t", [b"3"] * 3)
        await before.send("t", b"of today")
    times = [record.timestamp_ms for record in kafka_cluster.records("t")]
    assert times[1:-1] == [THEN_MS] * 5
    assert min(times[0], times[-1]) > THEN_MS
