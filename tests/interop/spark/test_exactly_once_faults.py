"""The exactly-once sink at length, without Spark: orphaned commits, long repairs that are killed, lost brokers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

import pyarrow
import pytest

from aioproducer.admin import Admin
from aioproducer.errors import KafkaError
from aioproducer.spark.columns import SinkColumns
from aioproducer.spark.exactly_once import TaskOf, commit_batch, plan_batch, write_transaction
from aioproducer.spark.options import SinkOptions
from aioproducer.spark.sink_cluster import COMMITTER_TIMEOUT_MS, KafkaSinkCluster
from aioproducer.spark.transactional.flows import Finisher
from tests.interop.spark.crashes import (
    PARTITIONS,
    ROOT,
    Cluster,
    abort_tasks,
    check_stable,
    committed,
    halted_at,
    killed_at,
    recover,
    rows_of,
    wanted,
)
from tests.interop.spark.sink_program import log, options_of, run_batch, write_tasks
from tests.kafka.cluster import KafkaCluster

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


# Orphaned processes


@pytest.mark.parametrize("beside", ["tasks", "half-ended"])
@pytest.mark.parametrize("timed_out", [False, True], ids=["in-time", "timed-out"])
@pytest.mark.parametrize("point", ["deciding", "appended", "decided", "half-ended", "ended"])
def test_an_orphaned_commit_that_goes_on_beside_a_new_run_loses_and_doubles_nothing(
    kafka, topic, options, sink, tmp_path, point, timed_out, beside
):
    """The driver has died without its commit process; the new run is in its tasks, or in a commit of its own."""
    run_batch(options, 0, rows_of(0))
    with halted_at(point, options, 1, tmp_path, "old run") as orphan:
        if timed_out and point != "ended":
            abort_tasks(kafka, sink)
        replayed = run_batch(options, 1, rows_of(1), run_id="new run", tasks=3)
        assert all(each.skipped for each in replayed) == (point not in ("deciding", "appended"))
        if beside == "tasks":
            parsed = SinkOptions.parse(options)
            reports = write_tasks(parsed, plan_batch(parsed, log), TaskOf("query", 2, "new run"), rows_of(2))
            printed = orphan.resume()
            commit_batch(parsed, reports, log)
        else:
            with halted_at(beside, options, 2, tmp_path, "new run") as new:
                printed = orphan.resume()
                new_printed = new.resume()
                assert new.process.returncode == 0, new_printed
        # It has found out, at the latest by its done note.
        assert orphan.process.returncode != 0, printed
        assert "committed" not in printed.splitlines()
    run_batch(options, 3, rows_of(3), run_id="new run")
    assert committed(kafka, topic) == wanted(4)
    recover(kafka, topic, sink)


# Repairs

TIMEOUT_MS = 10_000
REPAIRED_ROWS, ROW_SIZE = 2400, 10_000
QUOTA = 300_000
"""Bytes a second: all rows take longer than the time-out of the committer's transactions, and five times theirs."""


def wait_until_timed_out(kafka: Cluster, sink: str) -> None:
    async def wait() -> None:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers, timeout=20) as admin, asyncio.timeout(60):
            while await admin.list_transactions(states=["Ongoing"], pattern=f"{sink}-t-.*"):  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    asyncio.run(wait())


def start_and_kill(options: Mapping[str, str], pieces: int, more: float) -> list[int]:
    """Start the query again, kill it ``more`` seconds after ``pieces`` were copied, and return the rows of each."""
    arguments = json.dumps({"given": options, "batch_id": 0, "rows": [], "run_id": "run"})
    command = [sys.executable, "-m", "tests.interop.spark.sink_program", arguments]
    copied: list[int] = []
    printed: list[str] = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            found = re.search(r"copied (\d+) of", line)
            copied += [] if found is None else [int(found[1])]
            if len(copied) == pieces:
                break
        time.sleep(more)
        assert process.poll() is None, "".join(printed)
        process.kill()
    return copied


@pytest.mark.parametrize("kafka", ["one_node", "one_node_with_old_transactions"], indirect=True)
def test_a_repair_that_takes_five_timeouts_and_is_killed_twice_goes_on(
    kafka, topic, sink, options, monkeypatch, capsys
):
    """A quota makes it slow. Each start goes on behind the last piece, and no piece outlasts its transaction."""
    assert isinstance(kafka, KafkaCluster)
    kafka.create_topic(f"{topic}-one", 1)
    options = {**options, "topic": f"{topic}-one", "transaction.timeout.ms": str(TIMEOUT_MS)}
    parsed = SinkOptions.parse(options)
    source = random.Random(0)
    rows = [source.randbytes(ROW_SIZE // 2).hex() for _ in range(REPAIRED_ROWS)]
    # Without keys: their hashes would take a busy machine longer than the time-out.
    batch = pyarrow.RecordBatch.from_pydict({"value": [row.encode() for row in rows]})
    task = TaskOf("query", 0, "run")
    columns = SinkColumns(parsed.topic, "", "")
    reports = [write_transaction([batch], columns, parsed, plan_batch(parsed, log), task)[1]]

    async def killed(*_: object) -> None:
        raise KafkaError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Finisher, "end", killed)
        with pytest.raises(KafkaError, match="killed"):
            commit_batch(parsed, reports, log)
    wait_until_timed_out(kafka, sink)

    slow = {**options, "kafka.client.id": f"{sink}-slow"}
    kafka.set_producer_quota(f"{sink}-slow", QUOTA)
    try:
        began = time.monotonic()
        first = start_and_kill(slow, 1, 3.0)
        second = start_and_kill(slow, 2, 4.0)
        assert first[-1] < second[0]
        capsys.readouterr()
        plan_batch(SinkOptions.parse(slow), log)
        took = time.monotonic() - began
    finally:
        kafka.set_producer_quota(f"{sink}-slow", None)
    third = [int(each) for each in re.findall(r"copied (\d+) of", capsys.readouterr().out)]
    assert second[-1] < third[0]
    assert third[-1] == REPAIRED_ROWS
    assert took > max(5 * TIMEOUT_MS, COMMITTER_TIMEOUT_MS) / 1000
    assert committed(kafka, f"{topic}-one") == Counter(rows)
    recover(kafka, topic, sink)


# Brokers


TASKS, AT_ONCE, ENDED = 60, 30, 5
"""Transactions of a batch, how many of them are on their way, and how many have ended, when the broker fails."""


def coordinator_of(kafka: Cluster, sink: str) -> int:
    async def ask() -> int:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers, timeout=20) as admin:
            return (await admin.describe_transactions([f"{sink}-committer"]))[0].coordinator

    return asyncio.run(ask())


def while_ending(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]) -> None:
    """Call ``fail`` when a few of the batch's transactions are committed; half of the others are sent afterwards."""
    end = KafkaSinkCluster._end
    begun: list[str] = []
    ended: list[str] = []
    failed = asyncio.Event()

    async def end_and_fail(
        self: KafkaSinkCluster, transactional_id: str, identity: tuple[int, int], commit: bool, version: int
    ) -> bool:
        begun.append(transactional_id)
        if len(begun) > AT_ONCE:
            await failed.wait()
        found = await end(self, transactional_id, identity, commit, version)
        ended.append(transactional_id)
        if len(ended) == ENDED:
            fail()
            failed.set()
        return found

    monkeypatch.setattr(KafkaSinkCluster, "_end", end_and_fail)


@pytest.mark.parametrize("victim", ["coordinator", "leader"])
def test_a_broker_killed_while_transactions_end_loses_and_doubles_nothing(
    three_brokers, topic, sink, monkeypatch, victim
):
    three_brokers.create_topic(topic, PARTITIONS)
    options = options_of(three_brokers.bootstrap_servers, topic, sink, **{"kafka.linger.ms": "0"})
    run_batch(options, 0, rows_of(0, 3 * TASKS))
    parsed = SinkOptions.parse(options)
    reports = write_tasks(parsed, plan_batch(parsed, log), TaskOf("query", 1, "run"), rows_of(1, 3 * TASKS), TASKS)
    node = coordinator_of(three_brokers, sink) if victim == "coordinator" else three_brokers.leader(topic, 0)
    with monkeypatch.context() as patch:
        while_ending(patch, lambda: three_brokers.kill(node))
        try:
            commit_batch(parsed, reports, log)
            run_batch(options, 2, rows_of(2, 3 * TASKS))
            assert committed(three_brokers, topic) == wanted(3, 3 * TASKS)
        finally:
            three_brokers.restart(node)
            three_brokers.wait_in_sync(topic)
    recover(three_brokers, topic, sink)


def test_a_coordinator_that_moves_while_transactions_end_loses_and_doubles_nothing(
    three_brokers, topic, sink, monkeypatch
):
    three_brokers.create_topic(topic, PARTITIONS)
    options = options_of(three_brokers.bootstrap_servers, topic, sink, **{"kafka.linger.ms": "0"})
    run_batch(options, 0, rows_of(0, 3 * TASKS))
    parsed = SinkOptions.parse(options)
    reports = write_tasks(parsed, plan_batch(parsed, log), TaskOf("query", 1, "run"), rows_of(1, 3 * TASKS), TASKS)
    node = coordinator_of(three_brokers, sink)
    moving = threading.Thread(target=three_brokers.move_leader, args=("__transaction_state", 0, node % 3 + 1))
    with monkeypatch.context() as patch:
        while_ending(patch, moving.start)
        commit_batch(parsed, reports, log)
    moving.join(60)
    assert coordinator_of(three_brokers, sink) == node % 3 + 1
    run_batch(options, 2, rows_of(2, 3 * TASKS))
    assert committed(three_brokers, topic) == wanted(3, 3 * TASKS)
    recover(three_brokers, topic, sink)


# Other sinks


def test_the_plan_waits_until_the_decision_of_a_killed_driver_of_another_sink_has_timed_out(
    kafka, topic, options, sink, tmp_path
):
    """It hides what lies behind it in the decision topic, for as long as the committer's time-out and a little more."""
    run_batch(options, 0, rows_of(0))
    kafka.create_topic(f"{topic}-other", PARTITIONS)
    other = {**options, "sink.id": f"{sink}-other", "topic": f"{topic}-other"}
    with killed_at("appended", other, 0, tmp_path):
        pass
    began = time.monotonic()
    run_batch(options, 1, rows_of(1))
    assert time.monotonic() - began > COMMITTER_TIMEOUT_MS / 2000
    assert committed(kafka, topic) == wanted(2)
    run_batch(other, 0, rows_of(0))
    assert committed(kafka, f"{topic}-other") == wanted(1)
    check_stable(kafka, topic)
