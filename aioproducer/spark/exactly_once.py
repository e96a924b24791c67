"""Exactly-once delivery of one batch, in the driver's processes and in the tasks, without Spark's classes."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from aioproducer._common.texts import counted
from aioproducer.errors import KafkaError, error_class
from aioproducer.spark import preparation
from aioproducer.spark.executor import Executor
from aioproducer.spark.preparation import naming_permissions, timeout_error
from aioproducer.spark.sink_cluster import KafkaSinkCluster
from aioproducer.spark.statistics import SendStatistics
from aioproducer.spark.task import GRACE, PartitionSender, TaskOutcome, send_all
from aioproducer.spark.transactional.decisions import Handle, RowRange
from aioproducer.spark.transactional.flows import Committer, Planner
from aioproducer.spark.transactional.rules import Plan, Slots, TaskReport, task_id
from aioproducer.spark.transactional.table import DecisionTable

if TYPE_CHECKING:
    import pyarrow

    from aioproducer._client.open_transactions import OpenTransaction
    from aioproducer.producer import Producer
    from aioproducer.spark.columns import SinkColumns
    from aioproducer.spark.options import ExactlyOnceOptions, SinkOptions

logger = logging.getLogger("aioproducer.spark")

# Limit of each call of the driver to the cluster, retries included, in seconds: a broker may be restarting.
CALL_TIMEOUT = 60.0
# Each task of a micro-batch in a process has a transactional id, and with it a producer, of its own. These many stay
# connected for the next micro-batch; a process that runs more tasks in a row closes the others.
KEPT_PRODUCERS = 4
# How long the end of a task may take besides its rows, in seconds.
BEGIN_MARGIN = 10.0

_InvalidTimeoutError = error_class(50)

# The decisions that this process has read: it plans each micro-batch of a query.
_tables: dict[tuple[str, ...], DecisionTable] = {}

Log = Callable[[str], None]


def exactly_once_of(options: SinkOptions) -> ExactlyOnceOptions:
    assert options.exactly_once is not None
    return options.exactly_once


def plan_batch(options: SinkOptions, log: Log, write: str | None = None) -> Plan:
    """Take over the sink, finish its decided batch, abort all other transactions, and return the next batch's plan.

    Args:
        write: the key of a batch job; see ``Planner.plan``.

    Raises:
        KafkaError: the cluster refuses, or a decided batch cannot be finished; nothing was written.
    """
    executor = Executor.current()
    return executor.run(_plan(executor, options, log, write))


def commit_batch(options: SinkOptions, reports: Sequence[TaskReport], log: Log) -> None:
    """Decide a batch, and finish it; see ``Committer.commit``.

    Raises:
        KafkaError: the batch is not decided, or is to be finished by the next plan.
    """
    executor = Executor.current()
    executor.run(_commit(executor, options, reports, log))


def abort_batch(options: SinkOptions, reports: Sequence[TaskReport], log: Log) -> bool:
    """Abort the transactions of a batch that is certainly not decided; return whether that was certain.

    Raises:
        KafkaError: the cluster does not answer; the next plan ends the transactions.
    """
    executor = Executor.current()
    return executor.run(_abort(executor, options, reports, log))


@asynccontextmanager
async def _connected(executor: Executor, options: SinkOptions) -> AsyncIterator[KafkaSinkCluster]:
    """Connect to the sink's cluster, for one caller at a time. After an error the next caller gets new connections."""
    own = exactly_once_of(options)
    key = (options.config, own.sink, own.decision_topic)
    kept = executor.take_connected(key)
    if kept is None:
        cluster = KafkaSinkCluster(dict(options.config), own.sink, own.decision_topic, CALL_TIMEOUT)
        await cluster.start()
    else:
        assert isinstance(kept, KafkaSinkCluster)
        cluster = kept
    try:
        yield cluster
    except BaseException:
        await cluster.close()
        raise
    executor.keep_connected(key, cluster)


async def _plan(executor: Executor, options: SinkOptions, log: Log, write: str | None) -> Plan:
    own = exactly_once_of(options)
    async with _connected(executor, options) as cluster:
        topic_id = await preparation.prepare(cluster, options)
        table_key = (
            dict(options.config)["bootstrap.servers"],
            own.sink,
            own.decision_topic,
            "" if topic_id is None else topic_id.hex(),
        )
        # If planning fails, the next plan reads from the beginning.
        table = _tables.pop(table_key, None) if topic_id is not None else None
        if table is None:
            table = DecisionTable(own.sink)
        with naming_permissions(options):
            plan = await Planner(cluster, table, log).plan(write)
        _tables[table_key] = table
        return plan


async def _commit(executor: Executor, options: SinkOptions, reports: Sequence[TaskReport], log: Log) -> None:
    async with _connected(executor, options) as cluster:
        with naming_permissions(options):
            await Committer(cluster, log, lambda: uuid.uuid4().hex).commit(reports)


async def _abort(executor: Executor, options: SinkOptions, reports: Sequence[TaskReport], log: Log) -> bool:
    async with _connected(executor, options) as cluster:
        return await Committer(cluster, log, lambda: uuid.uuid4().hex).abort(reports)


# Tasks


@dataclass(frozen=True, slots=True)
class TaskOf:
    """The batch of a task: the id of the query or write, the micro-batch, and the query's run."""

    key: str
    batch_id: int | None
    run_id: str


class _Process:
    """The slots of this process by sink, created after a fork, like the executor."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.slots: dict[str, Slots] = {}


_processes: WeakKeyDictionary[Executor, _Process] = WeakKeyDictionary()


class TaskTransaction:
    """The transaction of one task, on the executor's loop, which stays open at its end."""

    def __init__(self, executor: Executor, options: SinkOptions, plan: Plan) -> None:
        process = _processes.get(executor)
        if process is None:
            process = _processes[executor] = _Process()
        self._executor = executor
        self._options = options
        self._own = exactly_once_of(options)
        self._slots = process.slots.setdefault(self._own.sink, Slots())
        self._slot = self._slots.take(plan.token)
        self._transactional_id = task_id(self._own.sink, process.name, self._slot)
        self._producer: Producer | None = None
        self._deadline_ms = 0

    async def begin(self) -> PartitionSender:
        """
        Raises:
            KafkaError: no transaction could be begun.
        """
        config = {
            **dict(self._options.config),
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": str(self._own.timeout_ms),
        }
        self._producer = producer = await self._executor.producer(config)
        calls = producer._transactional_calls()
        calls.gather_facts()
        self._deadline_ms = time.time_ns() // 1_000_000 + self._own.timeout_ms
        try:
            with naming_permissions(self._options):
                await calls.begin()
        except _InvalidTimeoutError:
            raise timeout_error(self._own, "less") from None
        return PartitionSender(producer)

    async def leave_open(self) -> Handle:
        """
        Raises:
            KafkaError: the transaction has failed.
        """
        assert self._producer is not None
        handle = _handle(await self._producer._transactional_calls().leave_open(), self._deadline_ms)
        self._slots.release(self._slot)
        if self._slot >= KEPT_PRODUCERS:
            # The transaction stays open; a later task of this slot takes some milliseconds to connect.
            self._executor.discard(self._producer)
        return handle

    async def fail(self) -> None:
        """Close the producer, which aborts the transaction; the slot is not used again."""
        if self._producer is not None:
            self._executor.discard(self._producer, self._producer.config.transaction_abort_grace_ms / 1000)


def _handle(found: OpenTransaction, deadline_ms: int) -> Handle:
    return Handle(
        found.transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.transaction_version,
        deadline_ms,
        tuple(
            RowRange(
                where.topic,
                where.partition,
                found.topic_ids.get(where.topic, b"").hex(),
                facts.first_offset,
                facts.last_offset,
                facts.record_count,
            )
            for where, facts in sorted(found.partitions.items())
        ),
    )


def write_transaction(
    batches: Iterable[pyarrow.RecordBatch], columns: SinkColumns, options: SinkOptions, plan: Plan, task: TaskOf
) -> tuple[TaskOutcome, TaskReport]:
    """Send a partition's rows in a transaction that is left open; or count them only, if the batch is decided already.

    Raises:
        ExactlyOnceError: this run or batch must not write; nothing was.
        SparkTaskError: a row could not be delivered; the transaction is aborted.
        KafkaError: the transaction has failed.
    """
    began = time.perf_counter()
    if not plan.writes(task.key, task.batch_id, task.run_id):
        rows = sum(batch.num_rows for batch in batches)
        report = TaskReport(plan, task.key, task.batch_id, task.run_id, rows, True, None)
        return TaskOutcome(rows, time.perf_counter() - began, SendStatistics()), report
    with_rows = (batch for batch in batches if batch.num_rows)
    first = next(with_rows, None)
    if first is None:
        report = TaskReport(plan, task.key, task.batch_id, task.run_id, 0, False, None)
        return TaskOutcome(0, time.perf_counter() - began, SendStatistics()), report
    executor = Executor.current()
    transaction = executor.run(_made(executor, options, plan))
    try:
        sender = executor.run(transaction.begin())
        outcome = send_all(executor, sender, chain([first], with_rows), columns, options)
        handle = executor.run(transaction.leave_open(), BEGIN_MARGIN)
        if handle.rows != outcome.rows:
            raise KafkaError(
                f"{counted(outcome.rows, 'row')} of this task were acknowledged, and its transaction has {handle.rows}"
            )
    except BaseException:
        _fail(executor, transaction)
        raise
    return outcome, TaskReport(plan, task.key, task.batch_id, task.run_id, outcome.rows, False, handle)


def _fail(executor: Executor, transaction: TaskTransaction) -> None:
    try:
        executor.run(transaction.fail(), GRACE)
    except Exception as error:
        # The task fails with the error before this one. The next plan aborts the transaction.
        logger.warning("the producer of a task that failed was not closed: %r", error)


async def _made(executor: Executor, options: SinkOptions, plan: Plan) -> TaskTransaction:
    return TaskTransaction(executor, options, plan)
