"""The bench's transactions: each work commits exactly the number that its measurement is divided by."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from aioproducer.admin import Admin
from aioproducer.testing import EmbeddedCluster
from bench import confluent_peer, ours, raw_socket
from bench.job import Job
from bench.runner import derived
from tests.waiting import until

TOPIC = "transactions"


@pytest.mark.parametrize(
    ("work", "coroutines"),
    [
        (ours.transactions, 1),
        (ours.pooled_transactions, 3),
        (raw_socket.transactions, 1),
        (raw_socket.transactions, 3),
        (confluent_peer.transactions, 1),
        (confluent_peer.transactions, 3),
    ],
    ids=lambda value: value.__module__ if callable(value) else str(value),
)
async def test_a_work_commits_the_records_and_transactions_that_it_reports(
    work: Callable[[Job], Any], coroutines: int
) -> None:
    properties = {"add.partitions.to.txn.retry.backoff.ms": "1"}
    async with EmbeddedCluster(properties=properties) as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        job = Job(
            work.__name__,
            cluster.bootstrap_servers,
            TOPIC,
            partitions=2,
            records=5 * 3 * coroutines,
            warm_up=5 * 2 * coroutines,
            records_a_transaction=5,
            coroutines=coroutines,
        )
        measured = await (work(job) if inspect.iscoroutinefunction(work) else asyncio.to_thread(work, job))
        assert (measured["records"], measured["transactions"]) == (15 * coroutines, 3 * coroutines)
        assert (measured["sent"], measured["markers"]) == (25 * coroutines, 5 * coroutines)
        # Commits are answered before their markers are written.
        await until(lambda: len(cluster.records(TOPIC, committed=True)) >= measured["sent"])
        assert len(cluster.records(TOPIC, committed=True)) == measured["sent"]
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            ends = await admin.list_offsets(TOPIC, {0: "latest", 1: "latest"})
        assert sum(ends.values()) == measured["sent"] + measured["markers"]


def test_transactions_have_a_rate_and_cpu_time_each() -> None:
    found = derived({"records": 100, "transactions": 10, "elapsed": 2.0, "user": 0.25, "system": 0.75})
    assert (found["transaction_rate"], found["transaction_cpu_ms"]) == (5.0, pytest.approx(100.0))
    assert (found["rate"], found["cpu_us"]) == (50.0, pytest.approx(10_000.0))


def test_every_coroutine_has_the_same_share_of_whole_transactions() -> None:
    job = Job("transactions", records_a_transaction=100, coroutines=16)
    assert job.shares(3200) == 2
    assert job.shares(100) == 0
