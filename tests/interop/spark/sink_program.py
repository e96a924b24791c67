"""One batch of the exactly-once sink without Spark: plan, tasks and commit, in a process that a test may kill.

``python -m tests.interop.spark.sink_program JSON`` prints a line for each step; ``run_batch`` does the same in this
process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow

from aioproducer.errors import KafkaError
from aioproducer.spark.columns import SinkColumns
from aioproducer.spark.exactly_once import (
    TaskOf,
    abort_batch,
    commit_batch,
    plan_batch,
    write_transaction,
)
from aioproducer.spark.options import SinkOptions
from aioproducer.spark.transactional.rules import Plan, TaskReport


def options_of(bootstrap_servers: str, topic: str, sink: str, **more: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": bootstrap_servers,
        "topic": topic,
        "delivery": "exactly-once",
        "sink.id": sink,
        "decision.topic": f"{sink}-decisions",
        **more,
    }


def write_tasks(
    options: SinkOptions, plan: Plan, task: TaskOf, rows: Sequence[str], tasks: int = 2
) -> list[TaskReport]:
    """Write the rows in this many tasks, one after the other."""
    columns = SinkColumns(options.topic, "", "")
    reports = []
    for number in range(tasks):
        values = [row.encode() for row in rows[number::tasks]]
        batch = pyarrow.RecordBatch.from_pydict(
            {"value": values, "key": values}, pyarrow.schema([("value", pyarrow.binary()), ("key", pyarrow.binary())])
        )
        reports.append(write_transaction([batch], columns, options, plan, task)[1])
    return reports


def run_batch(
    given: Mapping[str, str], batch_id: int, rows: Sequence[str], *, run_id: str = "run", tasks: int = 2
) -> list[TaskReport]:
    """Plan, write and commit a batch; abort it if that fails, as Spark does."""
    options = SinkOptions.parse(given)
    plan = plan_batch(options, log)
    reports = write_tasks(options, plan, TaskOf("query", batch_id, run_id), rows, tasks)
    log("written")
    try:
        commit_batch(options, reports, log)
    except KafkaError:
        abort_batch(options, reports, log)
        raise
    log("committed")
    return reports


def log(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    run_batch(**arguments)
