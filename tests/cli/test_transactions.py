"""``aioproducer transactions`` and ``produce --transaction``: wrong usage, and the output."""

from __future__ import annotations

import json

import pytest

from aioproducer.admin import ProducerDescription, TransactionDescription, TransactionListing
from aioproducer.cli.exits import CommandError, CommandUsageError
from aioproducer.cli.transactions import (
    _abort_in_partition,
    _parse_partition,
    _print_producers,
    _print_transactions,
)
from aioproducer.record import TopicPartition

pytestmark = pytest.mark.usefixtures("environment")

USAGE = 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["abort"], "give either transactional ids, or --partition"),
        (["abort", "a", "--partition", "t:0"], "give either transactional ids, or --partition"),
        (["abort", "--partition", "t:0"], "--partition and --producer-id belong together"),
        (["abort", "a", "--producer-id", "1"], "--partition and --producer-id belong together"),
        (["describe"], "give either transactional ids or --partition"),
        (["describe", "a", "--partition", "t:0"], "give either transactional ids or --partition"),
        (["describe", "--partition", "t"], "--partition takes TOPIC:NUMBER, not 't'"),
        (["list", "--open-for", "1", "--state", "Empty"], "--open-for shows open transactions"),
        (["list", "--pattern", "("], "pattern is not a regular expression"),
        (["list", "--state", "Foo"], "'Foo' is not one of 'Empty', 'Ongoing'"),
    ],
)
def test_wrong_usage_is_rejected_in_one_line(call, arguments, text):
    ended = call("transactions", *arguments)
    assert (ended.code, ended.out) == (USAGE, "")
    assert text in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--transaction"], "--transaction needs --transactional-id ID"),
        (["--transactional-id", "a"], "add --transaction"),
        (["-X", "transactional.id=a"], "add --transaction"),
        (["-X", "transactional_id=a"], "add --transaction"),
    ],
)
def test_a_transaction_and_its_id_belong_together(call, topic, arguments, text):
    ended = call("produce", topic, "/dev/null", *arguments)
    assert (ended.code, ended.out) == (USAGE, "")
    assert text in ended.err


@pytest.mark.parametrize(("text", "found"), [("t:0", ("t", 0)), ("a:b:12", ("a:b", 12)), ("t.x-1:3", ("t.x-1", 3))])
def test_a_partition_is_the_topic_and_a_number(text, found):
    assert _parse_partition(text) == found


@pytest.mark.parametrize("text", ["", "t", ":1", "t:", "t:-1", "t:x", "t:1 "])
def test_other_texts_are_no_partition(text):
    with pytest.raises(CommandUsageError, match="takes TOPIC:NUMBER"):
        _parse_partition(text)


PARTITIONS = frozenset({TopicPartition("b", 0), TopicPartition("a", 1)})
DESCRIBED = TransactionDescription("orders-1", 2, "Ongoing", 7, 3, 60_000, 1_700_000_000_123, PARTITIONS)


def test_a_transaction_is_described_in_lines_and_in_json(capsys):
    _print_transactions([DESCRIBED], False)
    assert capsys.readouterr().out == (
        "orders-1:\n"
        "  state:       Ongoing\n"
        "  producer:    id 7, epoch 3\n"
        "  coordinator: broker 2\n"
        "  begun:       2023-11-14T22:13:20.123Z\n"
        "  time-out:    60 s\n"
        "  partitions:  a:1, b:0\n"
    )
    _print_transactions([DESCRIBED], True)
    assert json.loads(capsys.readouterr().out) == [
        {
            "transactional_id": "orders-1",
            "state": "Ongoing",
            "producer_id": 7,
            "producer_epoch": 3,
            "coordinator": 2,
            "timeout_ms": 60_000,
            "start_time_ms": 1_700_000_000_123,
            "partitions": [{"topic": "a", "partition": 1}, {"topic": "b", "partition": 0}],
        }
    ]


def test_producers_are_described_in_a_table_and_in_json(capsys):
    producers = [ProducerDescription(7, 3, 4, 1_700_000_000_123, 0, 99), ProducerDescription(8, 0, -1, -1, -1, None)]
    _print_producers(producers, False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [["7", "3", "4", "2023-11-14T22:13:20.123Z", "0", "99"], ["8", "0", "-1", "-1"]]
    _print_producers(producers, True)
    assert [each["transaction_start_offset"] for each in json.loads(capsys.readouterr().out)] == [99, None]


class PartitionAdmin:
    """An Admin with one producer in one partition, and the coordinators' state of it."""

    def __init__(self, start_offset, described=()):
        self.producer = ProducerDescription(7, 3, 4, 0, 5, start_offset)
        self.described = list(described)
        self.aborted = []

    async def describe_producers(self, partitions):
        return dict.fromkeys(partitions, (self.producer,))

    async def list_transactions(self, *, producer_ids):
        assert producer_ids == [7]
        return [TransactionListing(each.transactional_id, 7, each.state, 2) for each in self.described]

    async def describe_transactions(self, transactional_ids):
        assert transactional_ids == [each.transactional_id for each in self.described]
        return self.described

    async def abort_transaction(self, *arguments):
        self.aborted.append(arguments)


A1, C0 = TopicPartition("a", 1), TopicPartition("c", 0)


@pytest.mark.parametrize("described", [[], [DESCRIBED]], ids=["forgotten", "other partitions"])
async def test_a_transaction_that_no_coordinator_has_in_the_partition_is_aborted_there(described):
    admin = PartitionAdmin(0, described)
    await _abort_in_partition(admin, C0, 7)
    assert admin.aborted == [(C0, 7, 3, 5)]


@pytest.mark.parametrize(
    ("admin", "producer_id", "text"),
    [
        (PartitionAdmin(0, [DESCRIBED]), 7, "'aioproducer transactions abort orders-1' aborts it in all"),
        (PartitionAdmin(None), 7, "producer id 7 has no open transaction in a:1"),
        (PartitionAdmin(0), 8, "producer id 8 has no open transaction in a:1"),
    ],
    ids=["known", "not open", "another producer"],
)
async def test_no_marker_is_written_for_other_transactions(admin, producer_id, text):
    with pytest.raises(CommandError, match=text):
        await _abort_in_partition(admin, A1, producer_id)
    assert admin.aborted == []
