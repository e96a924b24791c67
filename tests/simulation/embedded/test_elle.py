"""The history of transactions as lists: Elle's JSON, cycles of reads, and reads of other records than the log has."""

from __future__ import annotations

import asyncio
import json

import pytest

from aioproducer import RecordMetadata
from aioproducer.testing import StoredRecord
from tests.simulation.embedded.checkers import Evidence, offsets_are_unique, transactions_read_the_log
from tests.simulation.embedded.elle import elle_lines, read_cycles
from tests.simulation.embedded.history import History, Sent, TransactionHistory


class Lists:
    """A history that a test writes: transactions, their records, and what they read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.history = History()
        self._loop = loop

    def transaction(self, *values: bytes, outcome: str = "committed") -> TransactionHistory:
        """A transaction that has sent records to partition 0 of topic ``t``."""
        number = len(self.history.transactions)
        transaction = TransactionHistory(f"task{number % 2}", number)
        transaction.outcome = outcome  # type: ignore[assignment]  # one of its literals
        self.history.transactions.append(transaction)
        for value in values:
            self.send(value, len(self.history.sent), transaction)
        return transaction

    def send(self, value: bytes, offset: int, transaction: TransactionHistory | None = None) -> None:
        """A record that was acknowledged at an offset."""
        delivery: asyncio.Future[RecordMetadata] = self._loop.create_future()
        delivery.set_result(RecordMetadata("t", 0, offset, 0))
        sent = Sent("task", len(self.history.sent), "t", value, delivery, 0.0, True, "all", transaction)
        self.history.sent.append(sent)
        if transaction is not None:
            transaction.sent.append(sent)

    def evidence(self, *values: bytes) -> Evidence:
        """The log of the partition, all of it committed."""
        records = [StoredRecord("t", 0, offset, 0, None, value, ()) for offset, value in enumerate(values)]
        return Evidence(self.history, {("t", 0): records}, {("t", 0): records}, {})


@pytest.fixture
async def lists() -> Lists:
    return Lists(asyncio.get_running_loop())


async def test_transactions_that_read_each_other_are_a_cycle(lists: Lists) -> None:
    first, second, third = lists.transaction(b"a"), lists.transaction(b"b"), lists.transaction(b"c")
    first.reads.append((("t", 0), [b"c"]))
    second.reads.append((("t", 0), [b"a"]))
    assert list(read_cycles(lists.history)) == []
    third.reads.append((("t", 0), [b"a", b"b"]))
    assert list(read_cycles(lists.history)) == [[0, 1, 2]]


async def test_a_transaction_that_was_not_committed_closes_no_cycle(lists: Lists) -> None:
    first, second = lists.transaction(b"a"), lists.transaction(b"b", outcome="unknown")
    first.reads.append((("t", 0), [b"b"]))
    second.reads.append((("t", 0), [b"a"]))
    assert list(read_cycles(lists.history)) == []


async def test_a_read_of_other_records_than_the_first_is_found(lists: Lists) -> None:
    lists.transaction(b"a")
    lists.transaction(b"b").reads.append((("t", 0), [b"x"]))
    (found,) = transactions_read_the_log(lists.evidence(b"a", b"b"))
    assert found == "transaction 1 has read 1 records of ('t', 0), not its first"


async def test_the_history_is_written_as_elle_reads_it(lists: Lists) -> None:
    lists.transaction(b"a", b"b")
    lists.transaction(b"c", outcome="aborted").reads.append((("t", 0), [b"a", b"b"]))
    both = [["append", "t-0", 0], ["append", "t-0", 1]]
    assert [json.loads(line) for line in elle_lines(lists.history)] == [
        {"index": 0, "type": "invoke", "process": 0, "f": "txn", "value": both},
        {"index": 1, "type": "ok", "process": 0, "f": "txn", "value": both},
        {"index": 2, "type": "invoke", "process": 1, "f": "txn", "value": [["r", "t-0", None], ["append", "t-0", 2]]},
        {"index": 3, "type": "fail", "process": 1, "f": "txn", "value": [["r", "t-0", [0, 1]], ["append", "t-0", 2]]},
    ]


async def test_a_history_may_have_a_list_for_each_record(lists: Lists) -> None:
    """The order of the writes, which Kafka does not isolate, is then no dependency."""
    lists.transaction(b"a", b"b").reads.append((("t", 0), [b"a"]))
    _, completed = elle_lines(lists.history, has_list_for_each_record=True)
    assert json.loads(completed)["value"] == [["r", "t-0-0", [0]], ["append", "t-0-0", 0], ["append", "t-0-1", 1]]


async def test_a_process_ends_with_an_outcome_that_is_not_known(lists: Lists) -> None:
    """As in Jepsen: its transaction may still be going on."""
    lists.transaction(b"a", outcome="unknown")
    lists.transaction(b"b")
    lists.transaction(b"c")
    lines = [json.loads(line) for line in elle_lines(lists.history)]
    assert [(line["type"], line["process"]) for line in lines[1::2]] == [("info", 0), ("ok", 1), ("ok", 2)]


async def test_offsets_that_are_acknowledged_twice_or_descend_are_found(lists: Lists) -> None:
    lists.send(b"a", 5)
    lists.send(b"b", 4)
    lists.send(b"c", 5)
    descending, twice = offsets_are_unique(lists.evidence())
    assert "task/1 was acknowledged" in descending
    assert "task/2 and task/0 were both acknowledged" in twice
