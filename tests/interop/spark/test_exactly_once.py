"""The exactly-once sink without Spark: each row of the crash table, in both generations of transactions."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter

import pyarrow
import pytest

from aioproducer.admin import Admin
from aioproducer.cli import main
from aioproducer.errors import ConfigurationError, KafkaError
from aioproducer.producer import Producer
from aioproducer.spark.columns import SinkColumns
from aioproducer.spark.exactly_once import TaskOf, abort_batch, commit_batch, plan_batch, write_transaction
from aioproducer.spark.options import SinkOptions
from aioproducer.spark.task import SparkTaskError
from aioproducer.spark.transactional.flows import Finisher
from aioproducer.spark.transactional.rules import ExactlyOnceError, ReplayDiffersError, SinkTakenOverError
from tests.interop.spark.crashes import (
    PARTITIONS,
    STABLE_SOON,
    abort_tasks,
    check_stable,
    committed,
    killed_at,
    rows_of,
    wanted,
)
from tests.interop.spark.driver import eventually
from tests.interop.spark.sink_program import log, options_of, run_batch, write_tasks

pytestmark = pytest.mark.timeout(600)


def test_batches_are_written_once_and_replays_are_skipped(kafka, topic, options):
    for batch_id in range(3):
        run_batch(options, batch_id, rows_of(batch_id), tasks=batch_id + 1)
        replayed = run_batch(options, batch_id, rows_of(batch_id), tasks=3)
        assert all(each.skipped for each in replayed)
    run_batch(options, 3, [])
    run_batch(options, 4, [])
    assert committed(kafka, topic) == wanted(3)
    check_stable(kafka, topic)
    with pytest.raises(ReplayDiffersError, match="decided with 0 rows, and its replay has 1"):
        run_batch(options, 4, ["x"])
    with pytest.raises(ExactlyOnceError, match="rolled back"):
        run_batch(options, 3, [])
    with pytest.raises(ExactlyOnceError, match="Decision lost"):
        run_batch(options, 6, [])
    assert committed(kafka, topic) == wanted(3)


UNDECIDED = ("planned", "deciding", "appended")


@pytest.mark.parametrize("point", [*UNDECIDED, "decided", "half-ended", "ended", "done"])
def test_a_process_killed_at_a_point_loses_and_doubles_nothing(kafka, topic, options, tmp_path, point):
    run_batch(options, 0, rows_of(0))
    with killed_at(point, options, 1, tmp_path):
        pass
    replayed = run_batch(options, 1, rows_of(1), run_id="second run", tasks=3)
    assert all(each.skipped for each in replayed) == (point not in UNDECIDED)
    run_batch(options, 2, rows_of(2), run_id="second run")
    assert committed(kafka, topic) == wanted(3)
    check_stable(kafka, topic)
    if point != "planned":
        with pytest.raises(SinkTakenOverError, match="taken over by run second run"):
            run_batch(options, 2, rows_of(2))


@pytest.mark.parametrize("point", ["deciding", "decided", "half-ended"])
def test_rows_of_transactions_that_timed_out_after_the_decision_are_copied(
    kafka, topic, options, sink, tmp_path, capsys, point
):
    with killed_at(point, options, 0, tmp_path):
        pass
    abort_tasks(kafka, sink)
    run_batch(options, 0, rows_of(0), tasks=3)
    assert ("copied" in capsys.readouterr().out) == (point != "deciding")
    assert committed(kafka, topic) == wanted(1)
    check_stable(kafka, topic)


def test_a_killed_repair_goes_on_where_it_ended(kafka, topic, options, sink, tmp_path):
    with killed_at("decided", options, 0, tmp_path):
        pass
    abort_tasks(kafka, sink)
    for _ in range(2):
        with killed_at("copied", options, 0, tmp_path) as out:
            assert out.count("copied") == 1
        (tmp_path / "copied-0").unlink()
    run_batch(options, 0, rows_of(0))
    assert committed(kafka, topic) == wanted(1)


def test_abort_ends_an_undecided_batch_and_no_decided_one(kafka, topic, options):
    parsed = SinkOptions.parse(options)
    plan = plan_batch(parsed, log)
    reports = write_tasks(parsed, plan, TaskOf("query", 0, "run"), rows_of(0))
    assert abort_batch(parsed, reports, log) == (plan.version == 2)
    if plan.version == 2:
        check_stable(kafka, topic)
        with pytest.raises(KafkaError):
            commit_batch(parsed, reports, log)
    reports = run_batch(options, 0, rows_of(0))
    assert not abort_batch(parsed, reports, log)
    assert committed(kafka, topic) == wanted(1)


def test_an_old_driver_cannot_decide_after_a_newer_plan(kafka, topic, options):
    parsed = SinkOptions.parse(options)
    task = TaskOf("query", 0, "old")
    old = write_tasks(parsed, plan_batch(parsed, log), task, rows_of(0))
    new_plan = plan_batch(parsed, log)
    with pytest.raises(KafkaError):
        commit_batch(parsed, old, log)
    assert not abort_batch(parsed, old, log)
    commit_batch(parsed, write_tasks(parsed, new_plan, TaskOf("query", 0, "new"), rows_of(0)), log)
    assert committed(kafka, topic) == wanted(1)


def test_a_lost_attempt_is_aborted_by_the_commit_or_the_next_plan(kafka, topic, options):
    parsed = SinkOptions.parse(options)
    plan = plan_batch(parsed, log)
    task = TaskOf("query", 0, "run")
    won = write_tasks(parsed, plan, task, rows_of(0))
    lost = write_tasks(parsed, plan, task, rows_of(0))
    assert {each.handle.transactional_id for each in won}.isdisjoint({each.handle.transactional_id for each in lost})
    commit_batch(parsed, won, log)
    if plan.version == 1:
        plan_batch(parsed, log)
    check_stable(kafka, topic)
    assert committed(kafka, topic) == wanted(1)


def test_a_batch_whose_transaction_timed_out_before_the_decision_is_refused(kafka, topic, options, sink):
    parsed = SinkOptions.parse(options)
    reports = write_tasks(parsed, plan_batch(parsed, log), TaskOf("query", 0, "run"), rows_of(0))
    abort_tasks(kafka, sink)
    with pytest.raises(ExactlyOnceError, match="no longer open"):
        commit_batch(parsed, reports, log)
    run_batch(options, 0, rows_of(0))
    assert committed(kafka, topic) == wanted(1)


def test_a_write_with_an_id_is_written_once_and_one_without_an_id_each_time(kafka, topic, options):
    parsed = SinkOptions.parse(options)

    def write(key: str, rows: list[str]) -> bool:
        reports = write_tasks(parsed, plan_batch(parsed, log, key), TaskOf(key, None, uuid.uuid4().hex), rows)
        commit_batch(parsed, reports, log)
        return not reports[0].skipped

    assert [write("write:a", rows_of(0)), write("write:a", rows_of(0)), write("write:b", rows_of(1))] == [
        True,
        False,
        True,
    ]
    assert [write("once:1", rows_of(2)), write("once:2", rows_of(2))] == [True, True]
    assert committed(kafka, topic) == wanted(3) + Counter(rows_of(2))


def test_what_cannot_work_is_refused_by_the_plan(kafka, topic, options, sink):
    with pytest.raises(ConfigurationError, match=r"allow at most 900000 ms \(transaction\.max"):
        plan_batch(SinkOptions.parse({**options, "transaction.timeout.ms": "900001"}), log)
    kafka.create_topic(f"{sink}-deleted", 1)
    with pytest.raises(ExactlyOnceError, match=r"cleanup\.policy=delete"):
        plan_batch(SinkOptions.parse({**options, "decision.topic": f"{sink}-deleted"}), log)
    with pytest.raises(ExactlyOnceError, match="has 3 partitions, and must have one"):
        plan_batch(SinkOptions.parse({**options, "decision.topic": topic}), log)


def test_the_command_line_shows_recovers_and_forgets_a_sink(kafka, topic, options, sink, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("AIOPRODUCER_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)

    def call(command: str, *arguments: str) -> tuple[int, str, str]:
        code = main(["spark-sink", command, *arguments, "--decision-topic", f"{sink}-decisions"])
        return code, *capfd.readouterr()

    with killed_at("decided", options, 0, tmp_path):
        pass
    # Kafka answers EndTxn before the markers are written, and the list ends at the first open transaction.
    (shown,) = eventually(lambda: json.loads(call("list", sink, "--json")[1]), "the decision is listed")
    assert (shown["sink"], shown["batch"], shown["rows"], shown["done"]) == (sink, 0, 40, False)
    assert shown["open_transactions"] == sorted(shown["transactions"])
    assert "unfinished (2)" in call("list", sink)[1]
    code, out, error = call("recover", sink)
    assert (code, f"{sink}: batch 0 of query query is done" in out) == (0, True), error
    check_stable(kafka, topic)
    assert committed(kafka, topic) == wanted(1)
    with pytest.raises(ReplayDiffersError):
        run_batch(options, 0, rows_of(0, 39))
    assert call("recover", sink, "--accept-replay", "1")[0] == 1
    assert call("recover", sink, "--accept-replay", "0")[0] == 0
    run_batch(options, 0, rows_of(0, 39))
    run_batch(options, 1, rows_of(1))
    capfd.readouterr()
    assert call("forget", sink, "--older-than", "0")[:2] == (0, "")
    assert call("forget", sink, "--key", "query")[:2] == (0, "query: forgotten\n")
    eventually(lambda: json.loads(call("list", sink, "--json")[1]) == [], "nothing is listed")
    assert committed(kafka, topic) == wanted(2)


@pytest.mark.soak
def test_transactions_that_the_coordinator_has_timed_out_are_copied(kafka, topic, options, sink, tmp_path, capsys):
    options = {**options, "transaction.timeout.ms": "1000"}
    with killed_at("half-ended", options, 0, tmp_path):
        pass

    async def until_timed_out() -> None:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers, timeout=20) as admin, asyncio.timeout(40):
            while await admin.list_transactions(states=["Ongoing"], pattern=f"{sink}-t-.*"):  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    asyncio.run(until_timed_out())
    run_batch(options, 0, rows_of(0), tasks=3)
    assert "copied" in capsys.readouterr().out
    assert committed(kafka, topic) == wanted(1)
    check_stable(kafka, topic, STABLE_SOON)


def test_a_task_that_fails_leaves_no_row_and_its_retry_has_another_id(kafka, topic, options):
    parsed = SinkOptions.parse({**options, "kafka.max.request.size": "10000"})
    plan = plan_batch(parsed, log)
    task = TaskOf("query", 0, "run")
    with pytest.raises(SparkTaskError, match="more than max_request_size allows"):
        write_tasks(parsed, plan, task, [*rows_of(0, 5), "x" * 20_000], 1)
    reports = write_tasks(parsed, plan, task, rows_of(0), 1)
    assert reports[0].handle.transactional_id.endswith("-1")
    commit_batch(parsed, reports, log)
    check_stable(kafka, topic)
    assert committed(kafka, topic) == wanted(1)


def test_the_oldest_brokers_with_all_requests_are_enough(old_broker, topic, sink):
    """Apache Kafka 3.3: transactions of the first generation, and ListTransactions without a pattern."""
    old_broker.create_topic(topic, PARTITIONS)
    options = options_of(old_broker.bootstrap_servers, topic, sink, **{"kafka.linger.ms": "0"})
    run_batch(options, 0, rows_of(0))
    parsed = SinkOptions.parse(options)
    write_tasks(parsed, plan_batch(parsed, log), TaskOf("query", 1, "run"), rows_of(1))
    run_batch(options, 1, rows_of(1))
    assert committed(old_broker, topic) == wanted(2)
    check_stable(old_broker, topic)


# At length


@pytest.mark.soak
def test_rows_of_every_shape_are_there_once_after_a_repair(kafka, topic, sink, options, monkeypatch):
    """Dynamic topics, 200 partitions, nulls, headers, and values of nearly 1 MB."""
    kafka.create_topic(f"{topic}-wide", 200)
    names = [topic, f"{topic}-wide"]
    given = {name: value for name, value in options.items() if name != "topic"}
    parsed = SinkOptions.parse(given)
    count = 400
    values = [None if number % 7 == 0 else b"%d" % number for number in range(count - 1)] + [b"x" * 900_000]
    keys = [None if number % 5 == 0 else b"k%d" % number for number in range(count)]
    headers = [[{"key": "number", "value": b"%d" % number}, {"key": "null", "value": None}] for number in range(count)]
    header = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    batch = pyarrow.RecordBatch.from_pydict(
        {
            "topic": [names[number % 2] for number in range(count)],
            "value": values,
            "key": keys,
            "headers": headers,
            "partition": [number // 2 % (200 if number % 2 else PARTITIONS) for number in range(count)],
        },
        pyarrow.schema(
            [
                ("topic", pyarrow.string()),
                ("value", pyarrow.binary()),
                ("key", pyarrow.binary()),
                ("headers", pyarrow.list_(header)),
                ("partition", pyarrow.int32()),
            ]
        ),
    )

    async def killed(*_: object) -> None:
        raise KafkaError("killed")

    task = TaskOf("query", 0, "run")
    report = write_transaction([batch], SinkColumns(None, "", ""), parsed, plan_batch(parsed, log), task)[1]
    with monkeypatch.context() as patch:
        patch.setattr(Finisher, "end", killed)
        with pytest.raises(KafkaError, match="killed"):
            commit_batch(parsed, [report], log)
    abort_tasks(kafka, sink)
    assert not plan_batch(parsed, log).writes(task.key, task.batch_id, task.run_id)
    found = [record for name in names for of in kafka.read_back(name, committed=True).values() for record in of]
    numbers = sorted(int(dict(record.headers)["number"]) for record in found)
    assert numbers == list(range(count))
    for record in found:
        number = int(dict(record.headers)["number"])
        assert (record.key, record.value) == (keys[number], values[number])
    check_stable(kafka, topic, STABLE_SOON)


@pytest.mark.soak
def test_the_plan_waits_for_the_open_decision_of_another_sink(kafka, topic, options, sink):
    """Its driver was killed between its decision and EndTxn: what lies behind is not skipped."""
    run_batch(options, 0, rows_of(0))

    async def decide_as_other() -> None:
        producer = Producer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"{sink}-other-committer")
        async with producer:
            await producer.begin_transaction()
            await producer.send(f"{sink}-decisions", b"{}", key=b'["other","query",0]')
            running = asyncio.create_task(asyncio.to_thread(run_batch, options, 1, rows_of(1)))
            await asyncio.sleep(2)
            assert not running.done()
            await producer.abort_transaction()
            await running

    asyncio.run(decide_as_other())
    assert committed(kafka, topic) == wanted(2)


@pytest.mark.soak
def test_the_coordinator_is_killed_before_the_commit(three_brokers, topic, sink):
    three_brokers.create_topic(topic, PARTITIONS)
    options = options_of(three_brokers.bootstrap_servers, topic, sink, **{"kafka.linger.ms": "0"})
    run_batch(options, 0, rows_of(0))
    parsed = SinkOptions.parse(options)
    reports = write_tasks(parsed, plan_batch(parsed, log), TaskOf("query", 1, "run"), rows_of(1))

    async def coordinator() -> int:
        async with Admin(bootstrap_servers=three_brokers.bootstrap_servers, timeout=20) as admin:
            return (await admin.describe_transactions([f"{sink}-committer"]))[0].coordinator

    node = asyncio.run(coordinator())
    three_brokers.kill(node)
    try:
        commit_batch(parsed, reports, log)
        run_batch(options, 2, rows_of(2))
        assert committed(three_brokers, topic) == wanted(3)
        check_stable(three_brokers, topic, STABLE_SOON)
    finally:
        three_brokers.restart(node)


@pytest.mark.soak
def test_two_queries_with_one_sink_id_lose_and_double_nothing(kafka, topic, options):
    """They plan in turn; the one that decides first goes on, and the other one learns of it."""
    parsed = SinkOptions.parse(options)
    tasks = [TaskOf("first", 0, "first run"), TaskOf("second", 0, "second run")]
    first = write_tasks(parsed, plan_batch(parsed, log), tasks[0], rows_of(0))
    second = write_tasks(parsed, plan_batch(parsed, log), tasks[1], rows_of(1))
    with pytest.raises(KafkaError):
        commit_batch(parsed, first, log)
    commit_batch(parsed, second, log)
    first = write_tasks(parsed, plan_batch(parsed, log), tasks[0], rows_of(0))
    commit_batch(parsed, first, log)
    with pytest.raises(SinkTakenOverError, match="taken over by run first run"):
        write_tasks(parsed, plan_batch(parsed, log), TaskOf("second", 1, "second run"), rows_of(2))
    assert committed(kafka, topic) == wanted(2)
