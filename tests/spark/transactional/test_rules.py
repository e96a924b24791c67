"""When a task writes, when it skips, and which slot it takes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.spark.transactional.decisions import ANY_ROWS, Handle, Token
from aioproducer.spark.transactional.rules import (
    DecidedBatch,
    ExactlyOnceError,
    Plan,
    ReplayDiffersError,
    SinkTakenOverError,
    Slots,
    TaskReport,
    batch_of,
    check_replay,
    check_sink_id,
    committer_id,
    task_id,
    task_pattern,
    write_sink,
)

TOKEN = Token(5, 1, 2)
TOKENS = st.builds(Token, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


def plan(decided: dict[str, DecidedBatch] | None = None, token: Token = TOKEN) -> Plan:
    return Plan("orders", token, 2, decided or {}, "run-b", ("run-a",))


def report(rows: int = 3, *, skipped: bool = False, of: Plan | None = None, handle: Handle | None = None) -> TaskReport:
    return TaskReport(of or plan(), "q", 4, "run-b", rows, skipped, handle)


def test_the_batch_after_the_last_decided_one_is_written_and_that_one_is_skipped():
    decided = plan({"q": DecidedBatch(3, 10)})
    assert decided.writes("q", 4, "run-b")
    assert not decided.writes("q", 3, "run-b")
    assert decided.writes("other query", 17, "run-c")


@pytest.mark.parametrize(("batch_id", "text"), [(2, "Checkpoint rolled back"), (5, "Decision lost or another sink.id")])
def test_a_gap_or_a_step_back_fails_before_anything_is_written(batch_id, text):
    with pytest.raises(ExactlyOnceError, match=text):
        plan({"q": DecidedBatch(3, 10)}).writes("q", batch_id, "run-b")


def test_a_superseded_run_is_told_which_run_has_taken_over():
    with pytest.raises(SinkTakenOverError, match=r"taken over by run run-b.*\(run-a\)"):
        plan().writes("q", 0, "run-a")


def test_a_run_that_has_decided_the_batch_itself_writes_it_a_second_time():
    decided = plan({"q": DecidedBatch(3, 10)})
    assert decided.is_second_write("q", 3, "run-b")
    assert not decided.is_second_write("q", 4, "run-b")
    assert not decided.is_second_write("q", 3, "run-c")
    assert not decided.is_second_write("other query", 3, "run-b")


def test_a_write_of_a_known_id_is_skipped():
    assert not plan({"w": DecidedBatch(None, 10)}).writes("w", None, "x")
    assert plan({"w": DecidedBatch(None, 10)}).writes("v", None, "x")


def test_a_replay_of_another_size_is_an_error_until_it_is_accepted():
    of = plan({"q": DecidedBatch(4, 5)})
    batch = batch_of([report(3, skipped=True, of=of), report(2, skipped=True, of=of)])
    check_replay(batch)
    with pytest.raises(ReplayDiffersError, match=r"decided with 5 rows, and its replay has 3.*--accept-replay 4"):
        check_replay(batch_of([report(3, skipped=True, of=of)]))
    check_replay(batch_of([report(3, skipped=True, of=plan({"q": DecidedBatch(4, ANY_ROWS)}))]))


def test_reports_of_different_plans_are_not_decided():
    with pytest.raises(ExactlyOnceError, match="planned at different times"):
        batch_of([report(), report(of=plan(token=Token(6, 1, 2)))])
    with pytest.raises(ExactlyOnceError, match="no task"):
        batch_of([])


def test_a_batch_has_the_handles_of_the_tasks_that_had_rows():
    handle = Handle("orders-t-1", 1, 2, 2, 0, ())
    batch = batch_of([report(0), report(4, handle=handle)])
    assert (batch.rows, batch.handles) == (4, (handle,))


@given(st.lists(st.tuples(TOKENS, st.booleans()), max_size=30))
def test_a_slot_is_taken_only_by_a_writer_with_a_newer_token(writers):
    slots = Slots()
    opened: dict[int, Token] = {}
    running: set[int] = set()
    for token, succeeds in writers:
        number = slots.take(token)
        assert number not in running
        assert number not in opened or opened[number] < token
        assert number <= len(opened)
        opened[number] = token
        if succeeds:
            slots.release(number)
        else:
            running.add(number)


def test_a_token_is_newer_if_more_of_the_topic_was_read_or_the_committer_is_newer():
    token = Token(5, 10, 3)
    for newer in (Token(6, 1, 1), Token(5, 11, 0), Token(5, 10, 4)):
        assert newer > token
    assert replace(plan(), token=token).token.identity == (10, 3)


@pytest.mark.parametrize("sink", ["", "a" * 101, "a-t-b", "a b", "a--b", "ä", "a.b"])
def test_a_sink_id_that_is_ambiguous_is_rejected(sink):
    with pytest.raises(ValueError, match="must be 1 to 100 letters"):
        check_sink_id(sink)


def test_ids_of_one_sink_never_match_another_ones_pattern():
    process = "0123456789abcdef" * 2
    assert check_sink_id("orders_1-x") == "orders_1-x"
    for sink in ("orders", write_sink("orders", "audit"), "orders-t", "orders-committer"):
        assert re.fullmatch(task_pattern(sink), task_id(sink, process, 12))
        assert not re.fullmatch(task_pattern(sink), committer_id(sink))
        for other in ("order", "orders-x", "orders-t-t", "xorders"):
            assert not re.fullmatch(task_pattern(sink), task_id(other, process, 1))
