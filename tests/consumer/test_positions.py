"""What a consumer may commit, on values."""

from __future__ import annotations

from random import Random

import pytest

from aioproducer import OffsetAndMetadata, TopicPartition
from aioproducer.consumer.positions import CommitLedger, committable, delivered_positions, processed_positions
from aioproducer.core.fetching.memory import FetchBuffer
from aioproducer.core.fetching.partition import AssignedPartition, FetchPosition
from aioproducer.core.fetching.reset import EARLIEST
from aioproducer.core.requests.retry import Attempts, ExponentialBackoff

A, B = TopicPartition("a", 0), TopicPartition("a", 1)


def at(**offsets):
    return {{"a": A, "b": B}[name]: FetchPosition(offset) for name, offset in offsets.items()}


def commit(**offsets):
    return {{"a": A, "b": B}[name]: OffsetAndMetadata(offset) for name, offset in offsets.items()}


def test_a_position_is_committed_with_its_leader_epoch():
    assert committable(FetchPosition(7, 3)) == OffsetAndMetadata(7, leader_epoch=3)
    assert committable(FetchPosition(7)) == OffsetAndMetadata(7)


def test_what_the_group_has_confirmed_is_not_committed_again():
    ledger = CommitLedger()
    assert ledger.automatic(at(a=1, b=2)) == commit(a=1, b=2)
    ledger.confirmed(commit(a=1))
    assert ledger.automatic(at(a=1, b=2)) == commit(b=2)
    assert ledger.automatic(at(a=3, b=2)) == commit(a=3, b=2)


def test_a_commit_that_was_not_confirmed_is_due_again():
    ledger = CommitLedger()
    assert ledger.automatic(at(a=1)) == ledger.automatic(at(a=1)) == commit(a=1)


def test_a_seek_backwards_is_committed():
    ledger = CommitLedger()
    ledger.confirmed(commit(a=9))
    assert ledger.automatic(at(a=4)) == commit(a=4)


@pytest.mark.parametrize("offset", [4, 5])
def test_an_explicit_commit_is_never_set_back(offset):
    ledger, explicit = CommitLedger(), commit(a=5)
    ledger.explicit_begins(explicit)
    assert ledger.automatic(at(a=offset)) == {}
    ledger.explicit_ends(explicit, is_confirmed=True)
    assert ledger.automatic(at(a=offset)) == {}
    assert ledger.automatic(at(a=6)) == commit(a=6)


def test_an_explicit_commit_that_failed_holds_nothing_back():
    ledger, explicit, other = CommitLedger(), commit(a=5), commit(a=5)
    ledger.explicit_begins(explicit)
    ledger.explicit_begins(other)
    ledger.explicit_ends(explicit, is_confirmed=False)
    assert ledger.automatic(at(a=4)) == {}
    ledger.explicit_ends(other, is_confirmed=False)
    assert ledger.automatic(at(a=4)) == commit(a=4)


def test_an_explicit_commit_that_failed_in_part_is_not_set_back_and_not_taken_as_confirmed():
    ledger, explicit = CommitLedger(), commit(a=5, b=5)
    ledger.confirmed(commit(a=5))
    ledger.explicit_begins(explicit)
    ledger.explicit_ends(explicit, is_confirmed=False, may_be_accepted=True)
    assert ledger.automatic(at(a=4, b=4)) == {}
    assert ledger.automatic(at(a=5, b=5)) == commit(a=5, b=5)


def test_the_latest_explicit_commit_counts():
    ledger = CommitLedger()
    for offset in (100, 5):
        explicit = commit(a=offset)
        ledger.explicit_begins(explicit)
        ledger.explicit_ends(explicit, is_confirmed=True)
    assert ledger.automatic(at(a=6)) == commit(a=6)


def test_partitions_that_were_taken_away_are_forgotten():
    ledger, explicit = CommitLedger(), commit(a=5, b=5)
    ledger.explicit_begins(explicit)
    ledger.explicit_ends(explicit, is_confirmed=True)
    ledger.retain({B})
    assert ledger.automatic(at(a=5, b=5)) == commit(a=5)


def test_a_commit_that_ends_when_its_partition_was_taken_away_is_forgotten():
    ledger, explicit = CommitLedger(), commit(a=5, b=5)
    ledger.explicit_begins(explicit)
    ledger.retain({B})
    assert ledger.automatic(at(a=4, b=4)) == commit(a=4)
    ledger.explicit_ends(explicit, is_confirmed=True)
    assert ledger.automatic(at(a=4, b=4)) == commit(a=4)


def test_the_commits_of_a_deleted_topic_are_forgotten():
    partition = AssignedPartition(A, Attempts(ExponentialBackoff(1, 1), Random(1)), FetchBuffer(1000))
    ledger, ended, in_progress = CommitLedger(), commit(a=5, b=5), commit(a=7, b=7)
    for explicit in (ended, in_progress):
        ledger.explicit_begins(explicit)
    ledger.explicit_ends(ended, is_confirmed=True)
    partition.seek(FetchPosition(7))
    partition.recreated(b"new")
    assert processed_positions([partition]) == {}
    ledger.forget_recreated([partition])
    assert ledger.automatic(at(a=2, b=2)) == commit(a=2)
    ledger.explicit_ends(in_progress, is_confirmed=True)
    ledger.forget_recreated([partition])
    assert ledger.automatic(at(a=2, b=2)) == commit(a=2)


def test_automatic_commits_set_back_no_explicit_one_in_any_order():
    """Random histories: begin and end explicit commits, confirm automatic ones."""
    for seed in range(200):
        random, ledger = Random(seed), CommitLedger()
        in_progress: list[dict[TopicPartition, OffsetAndMetadata]] = []
        latest = -1
        for _ in range(30):
            match random.randrange(3):
                case 0:
                    explicit = commit(a=random.randrange(20))
                    ledger.explicit_begins(explicit)
                    in_progress.append(explicit)
                case 1 if in_progress:
                    explicit = in_progress.pop(0)
                    is_confirmed = random.random() < 0.5
                    ledger.explicit_ends(explicit, is_confirmed=is_confirmed)
                    if is_confirmed:
                        latest = explicit[A].offset
                case _:
                    due = ledger.automatic(at(a=random.randrange(20)))
                    least = max([latest, *(each[A].offset + 1 for each in in_progress)])
                    assert not due or due[A].offset >= least, seed
                    if random.random() < 0.5:
                        ledger.confirmed(due)


def test_processed_and_delivered_positions_differ_by_the_record_in_progress():
    partition = AssignedPartition(A, Attempts(ExponentialBackoff(1, 1), Random(1)), FetchBuffer(1000))
    assert processed_positions([partition]) == delivered_positions([partition]) == {}
    partition.seek(FetchPosition(3))
    partition.position = FetchPosition(4, 2)
    assert processed_positions([partition]) == {partition.name: FetchPosition(3)}
    assert delivered_positions([partition]) == {partition.name: OffsetAndMetadata(4, leader_epoch=2)}
    partition.request_reset(EARLIEST)
    assert delivered_positions([partition]) == {}


def test_a_move_never_covers_the_records_in_progress():
    partition = AssignedPartition(A, Attempts(ExponentialBackoff(1, 1), Random(1)), FetchBuffer(1000))
    partition.seek(FetchPosition(3))
    partition.returned(FetchPosition(6))
    partition.seek(FetchPosition(9), in_progress=True)
    assert (partition.position, partition.processed) == (FetchPosition(9), FetchPosition(3))
    partition.truncated(FetchPosition(5), in_progress=True)
    assert (partition.position, partition.processed) == (FetchPosition(5), FetchPosition(3))
    partition.request_reset(EARLIEST)
    partition.reset_found(FetchPosition(1), in_progress=True)
    assert (partition.position, partition.processed) == (FetchPosition(1), FetchPosition(1))
