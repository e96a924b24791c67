"""The records of the decision topic, and what a planner reads from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.spark.transactional import decisions
from aioproducer.spark.transactional.decisions import (
    SUPERSEDED_KEPT,
    CopyKey,
    CopyNote,
    Decision,
    DecisionTopicError,
    Handle,
    RowRange,
    TopicRecord,
    copy_record,
    decision_records,
    done_records,
    superseded_by,
)
from aioproducer.spark.transactional.table import DecisionTable

NUMBERS = st.integers(0, 2**40)
RANGES = st.builds(RowRange, st.sampled_from(["a", "ü-1"]), st.integers(0, 9), st.just("ab"), NUMBERS, NUMBERS, NUMBERS)
HANDLES = st.integers(0, 12).flatmap(
    lambda count: st.tuples(
        *[
            st.builds(
                Handle,
                st.just(f"s-t-{number}"),
                NUMBERS,
                st.integers(0, 32767),
                st.integers(1, 2),
                NUMBERS,
                st.lists(RANGES, max_size=9).map(tuple),
            )
            for number in range(count)
        ]
    )
)


def decision(batch_id: int = 0, handles: tuple[Handle, ...] = (), key: str = "q") -> Decision:
    return Decision(
        "s", key, batch_id, f"d{batch_id}", "r", ("old",), sum(each.rows for each in handles), 5, False, handles
    )


def handle(number: int, rows: int = 3) -> Handle:
    return Handle(f"s-t-{number}", 10 + number, 1, 2, 99, (RowRange("t", 0, "", 4, 9, rows),))


def table_of(records: list[TopicRecord]) -> DecisionTable:
    table = DecisionTable("s")
    for offset, record in enumerate(records):
        table.apply(offset, record.key, record.value)
    return table


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "HANDLES_PER_CHUNK", 2)
    monkeypatch.setattr(decisions, "RANGES_PER_CHUNK", 3)


@given(HANDLES, st.integers(1, 4), st.integers(1, 4))
def test_a_decision_is_read_as_it_was_written_whatever_its_chunks(handles, per_chunk, ranges):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decisions, "HANDLES_PER_CHUNK", per_chunk)
        patch.setattr(decisions, "RANGES_PER_CHUNK", ranges)
        written = decision(7, handles)
        records = decision_records(written)
        (read,) = table_of(records).decisions()
    assert read == replace(written, chunks=len(records))
    assert len({record.key for record in records}) == len(records)


def test_records_of_other_sinks_are_passed_over():
    table = DecisionTable("s")
    table.apply(0, b'["ss","q",0]', b"not json")
    table.apply(1, None, b"x")
    table.apply(2, b"foreign", b"x")
    assert (table.decisions(), table.position) == ([], 3)


def test_an_older_batch_of_more_chunks_is_no_part_of_a_newer_one(small_chunks):
    old = decision(1, tuple(handle(number) for number in range(6)))
    new = decision(2, (handle(8),))
    (read,) = table_of([*decision_records(old), *decision_records(new)]).decisions()
    assert (read.batch_id, read.handles) == (2, new.handles)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_or_foreign_part_stops_the_planner(small_chunks, lost):
    records = decision_records(decision(1, tuple(handle(number) for number in range(6))))
    without = [record for number, record in enumerate(records) if number != lost]
    with pytest.raises(DecisionTopicError, match="is not in the topic"):
        table_of(without).decisions()
    other = decision_records(decision(2, tuple(handle(number) for number in range(6))))
    with pytest.raises(DecisionTopicError, match="is not in the topic"):
        table_of([*records, other[1]]).decisions()


def test_the_done_note_leaves_one_record(small_chunks):
    decided = decision(1, tuple(handle(number) for number in range(6)))
    place = CopyKey("s-t-0", 1, "t", 0)
    records = [*decision_records(decided), copy_record(decided, place, CopyNote(5, 2))]
    table = table_of(records)
    assert table.copied(decided) == {place: CopyNote(5, 2)}
    assert table.copied(decision(2)) == {}
    done = done_records(table.decisions()[0], table.copied(decided))
    left = {record.key: record.value for record in [*records, *done]}
    assert sum(value is not None for value in left.values()) == 1
    (read,) = table_of([*records, *done]).decisions()
    assert (read.done, read.handles, read.rows, read.superseded) == (True, (), 18, ("old",))


def test_decisions_come_in_the_order_in_which_they_were_made():
    records = [*decision_records(decision(5, key="a")), *decision_records(decision(1, key="b"))]
    records += decision_records(decision(6, key="a"))
    assert [(each.key, each.batch_id) for each in table_of(records).decisions()] == [("b", 1), ("a", 6)]


def test_another_version_of_the_format_is_rejected():
    (record,) = decision_records(decision())
    assert record.value is not None
    with pytest.raises(DecisionTopicError, match="another version"):
        table_of([record._replace(value=record.value.replace(b'"v":1', b'"v":2'))]).decisions()
    with pytest.raises(DecisionTopicError, match="another version"):
        DecisionTable("s").apply(0, b'["s","q","new",1]', b"{}")
    with pytest.raises(DecisionTopicError, match="no JSON"):
        DecisionTable("s").apply(0, b'["s",', b"{}")


def test_the_run_of_the_last_decision_is_superseded_by_another_one():
    assert superseded_by("b", "a", ()) == ("a",)
    assert superseded_by("b", "b", ("a",)) == ("a",)
    assert superseded_by("a", "b", ("a",)) == ("b",)
    assert superseded_by("b", None, ()) == ()
    many = [str(number) for number in range(SUPERSEDED_KEPT)]
    assert superseded_by("b", "a", many) == (*many[1:], "a")
