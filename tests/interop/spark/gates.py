"""Rows that wait in the middle of each task, so that what a test does then is in the middle of them."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import psutil
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import udf

from tests.interop.spark.driver import eventually
from tests.interop.spark.rows import messages
from tests.kafka.cluster import KafkaCluster
from tests.kafka.in_process import InProcessCluster

TASKS = 2
ROWS = 4000
OF_TASK = ROWS // TASKS
# How many rows a task passes on before the gate.
HALF = OF_TASK // 2
BATCH = 100
# Spark's processes pass on what they have when it is 64 KiB.
SIZE = 2000

Cluster = KafkaCluster | InProcessCluster


class Gate(NamedTuple):
    """Where tasks wait in the middle, until the file is there.

    Where ``fail`` says how, only the first attempt of the last task waits, and fails then.
    """

    path: Path
    fail: str = ""

    def open(self) -> None:
        self.path.touch()

    def column(self, name: str) -> Column:
        """That column as it is, when its row has come through the gate."""
        path, fail = self
        seen: Counter[int] = Counter()

        def pass_on(value: str) -> str:
            context = TaskContext.get()
            assert context is not None
            attempt = context.taskAttemptId()
            waits = not fail or (context.attemptNumber() == 0 and context.partitionId() == TASKS - 1)
            if waits and seen[attempt] == HALF:
                deadline = time.monotonic() + 90
                while not path.exists():
                    assert time.monotonic() < deadline, "the gate stayed shut"
                    time.sleep(0.01)
                if fail == "SIGKILL":
                    os.kill(os.getpid(), signal.SIGKILL)
                assert not fail, "this task fails once"
            seen[attempt] += 1
            return value

        # By Arrow it would want pandas.
        return udf(pass_on, "string", useArrow=False).asNondeterministic()(name)


class SlowRow(NamedTuple):
    """A row at which its task waits until the file ``go`` is in the folder; attempts tell there that they wait.

    With ``first_only`` the first attempt alone is slow: another one, which Spark starts beside it, goes on at once.
    """

    folder: Path
    number: int
    first_only: bool = False

    def waiting(self, attempt: int) -> Path:
        """The file that tells that this attempt has come to the row: its process, and that of the first if it runs."""
        return self.folder / f"waiting-{attempt}"

    def tell(self, attempt: int) -> None:
        processes = [str(os.getpid())]
        first = self.waiting(0)
        if attempt and first.exists() and psutil.pid_exists(int(first.read_text())):
            processes.append(first.read_text())
        told = self.folder / f"telling-{attempt}"
        told.write_text(" ".join(processes))
        told.rename(self.waiting(attempt))

    @property
    def go(self) -> Path:
        return self.folder / "go"

    def column(self, name: str) -> Column:
        """That column as it is, a number in each row."""
        slow = self

        def pass_on(value: str) -> str:
            if int(value) == slow.number:
                context = TaskContext.get()
                assert context is not None
                slow.tell(context.attemptNumber())
                deadline = time.monotonic() + 90
                while not (slow.go.exists() or (slow.first_only and context.attemptNumber() > 0)):
                    assert time.monotonic() < deadline, "the row was never let go"
                    time.sleep(0.01)
            return value

        # By Arrow it would want pandas.
        return udf(pass_on, "string", useArrow=False).asNondeterministic()(name)


def gated(spark: SparkSession, gate: Gate) -> DataFrame:
    """A row for each number, in small batches."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH))
    numbers = spark.range(0, ROWS, 1, TASKS).selectExpr(f"rpad(id, {SIZE}, ' ') as value")
    return numbers.select(gate.column("value").alias("value"))


def write(spark: SparkSession, bootstrap_servers: str, topic: str, gate: Gate, options: dict[str, str]) -> None:
    writer = gated(spark, gate).write.format("aioproducer")
    writer = writer.option("kafka.bootstrap.servers", bootstrap_servers).option("topic", topic)
    writer.option("kafka.linger.ms", 0).options(**options).mode("append").save()


def stored(cluster: Cluster, topic: str) -> Counter[int]:
    """How often each number is there, as confluent-kafka finds it."""
    return Counter(int(message.value() or b"-1") for message in messages(cluster.bootstrap_servers, [topic]))


def twice(found: Counter[int], tasks: set[int]) -> int:
    """How many records there are too many, when none is missing; only rows of these tasks may be there again."""
    assert set(found) == set(range(ROWS)), f"{len(set(range(ROWS)) - set(found))} rows are lost"
    again = tasks_of(found)
    assert again <= tasks, f"rows of the tasks {again} are there more than once"
    return found.total() - ROWS


def tasks_of(found: Counter[int]) -> set[int]:
    """The tasks of which rows are there more than once."""
    return {number // OF_TASK for number, times in found.items() if times > 1}


def wait_for_rows(cluster: Cluster, topic: str, count: int) -> None:
    eventually(lambda: stored(cluster, topic).total() >= count, f"{count} rows in {topic}", 120)
