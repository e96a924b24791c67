"""Steps of the flows that need no model of Kafka."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.spark.transactional.cluster import OpenTransaction
from aioproducer.spark.transactional.decisions import Handle, Identity, Token
from aioproducer.spark.transactional.flows import Committer
from aioproducer.spark.transactional.rules import Batch, ExactlyOnceError, Plan, SinkTakenOverError

HANDLE = Handle("orders-t-1", 7, 3, 2, 0, ())
BATCH = Batch(Plan("orders", Token(5, 1, 2), 2, {}, None, ()), "query", 4, "run", 1000, False, (HANDLE,))


class DescribedCluster:
    """Describes the transaction of the batch."""

    sink = "orders"

    def __init__(self, found: OpenTransaction | None, *, taken_over: bool) -> None:
        self.found = found
        self.taken_over = taken_over

    async def is_committer(self, identity):
        assert identity == BATCH.plan.token.identity
        return not self.taken_over

    async def describe(self, handles):
        return [self.found]


def check(found: OpenTransaction | None, *, taken_over: bool = False) -> list[str]:
    logged: list[str] = []
    cluster = DescribedCluster(found, taken_over=taken_over)
    asyncio.run(Committer(cluster, logged.append, lambda: "id").check_open(BATCH))
    return logged


def is_open(open_for_ms: int) -> OpenTransaction:
    return OpenTransaction("orders-t-1", Identity(7, 3), open_for_ms, 60_000)


def test_a_batch_that_needs_more_than_half_of_its_timeout_is_worth_a_warning_with_its_figures():
    assert check(is_open(30_000)) == []
    (warning,) = check(is_open(30_001))
    assert "batch 4 of query with 1000 rows needed 30.0 s of the 60.0 s of transaction.timeout.ms" in warning


@pytest.mark.parametrize("found", [None, OpenTransaction("orders-t-1", Identity(7, 4), 61_000, 60_000)])
def test_a_batch_whose_transaction_has_ended_is_not_decided(found):
    with pytest.raises(ExactlyOnceError, match=r"no longer open.*nothing is decided.*raise transaction\.timeout\.ms"):
        check(found)


def test_a_batch_whose_transactions_another_planner_has_ended_names_the_shared_sink():
    with pytest.raises(SinkTakenOverError, match=r"sink.id 'orders' is being used by another query or write"):
        check(None, taken_over=True)
