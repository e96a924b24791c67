"""The data source ``aioproducer``, for the processes of Spark's driver and for its tasks.

Spark creates a ``ProducerDataSource`` in a separate process, and calls it for a writer. The writer goes to the tasks,
and to another process for ``commit`` or ``abort``. Every Spark session on a machine with this package imports this
module to find the data source: modules for writing are imported by the first write.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NoReturn

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from aioproducer.spark.columns import SinkColumns
    from aioproducer.spark.options import SinkOptions
    from aioproducer.spark.task import TaskOutcome
    from aioproducer.spark.transactional.rules import Plan, TaskReport

from aioproducer._common.texts import are, counted

logger = logging.getLogger("aioproducer.spark")

# What Spark calls them in a task's local properties.
_BATCH_ID, _QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
# Of a streaming query it is the id of its run.
_RUN_ID = "spark.jobGroup.id"


class ProducerDataSource(DataSource):
    """``df.write.format("aioproducer")`` and ``df.writeStream.format("aioproducer")``."""

    _is_checked = False

    @classmethod
    def name(cls) -> str:
        return "aioproducer"

    def __setstate__(self, state: dict[str, object]) -> None:
        # Spark pickles a data source only for a streaming query's commits and aborts. The cluster was checked before.
        self.__dict__.update(state)
        self._is_checked = True

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the batch sink's writer after the driver's checks.

        Raises:
            KafkaError: options, columns, mode or cluster are wrong; the text contains the remedy.
        """
        from aioproducer.errors import ConfigurationError, KafkaError
        from aioproducer.spark.checks import check_cluster

        try:
            if overwrite:
                raise ConfigurationError(
                    "The sink only appends, since records in a topic cannot be overwritten: write with "
                    ".mode('append'), and delete the topic before if its records have to go."
                )
            options, columns = _parse(self.options, schema)
            check_cluster(options)
        except KafkaError as error:
            _raise_short(error)
        if options.exactly_once is not None:
            return ExactlyOnceWriter(options, columns)
        return ProducerWriter(options, columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        """Return the streaming sink's writer for one micro-batch.

        In output mode ``complete``, which Spark calls overwriting, each micro-batch sends all rows of the result, as
        with Spark's own Kafka sink.

        Raises:
            KafkaError: options, columns or cluster are wrong; the text contains the remedy.
        """
        from aioproducer.errors import ConfigurationError, KafkaError
        from aioproducer.spark.checks import check_cluster_once

        try:
            try:
                # A circle of two: the streaming writer needs pyspark 4.1, and everything else that is in this file.
                from aioproducer.spark.streaming import ExactlyOnceStreamWriter, ProducerStreamWriter
            except ImportError:
                raise ConfigurationError(
                    "The streaming sink needs pyspark 4.1 or later. With 4.0 write in foreachBatch: "
                    "lambda df, _: df.write.format('aioproducer')..."
                ) from None
            options, columns = _parse(self.options, schema)
            own = options.exactly_once
            if own is not None and (own.write_id is not None or own.micro_batch is not None):
                raise ConfigurationError("The option write.id is for a batch: a query has an id of its own. Drop it.")
            if not self._is_checked:
                check_cluster_once(options)
        except KafkaError as error:
            _raise_short(error)
        if own is not None:
            return ExactlyOnceStreamWriter(options, columns)
        return ProducerStreamWriter(options, columns)

    def schema(self) -> NoReturn:
        """Reject a read, for which alone Spark calls this."""
        _refuse_to_read()

    def reader(self, schema: StructType) -> DataSourceReader:
        _refuse_to_read()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        _refuse_to_read()


def _refuse_to_read() -> NoReturn:
    from aioproducer.errors import ConfigurationError

    raise ConfigurationError("The format 'aioproducer' only writes: read topics with Spark's own format 'kafka'.")


def _parse(options: Mapping[str, str], schema: StructType) -> tuple[SinkOptions, SinkColumns]:
    from aioproducer.spark.columns import SinkColumns
    from aioproducer.spark.options import SinkOptions

    parsed = SinkOptions.parse(options)
    return parsed, SinkColumns.of_schema(schema, parsed)


def _raise_short(error: Exception) -> NoReturn:
    """Raise an error with a short traceback: Spark shows nothing else, and the text must stand at its end."""
    raise error.with_traceback(None) from None


@dataclass
class SinkCommitMessage(WriterCommitMessage):
    """Summary of a task's rows; ``query_id`` and ``batch_id`` are None in a batch job.

    Times named ``_ms`` are milliseconds, from a batch's first row to its acknowledgement. Bytes are those of record
    batches, compressed, retries included; retries are rows.
    """

    partition_id: int
    attempt_number: int
    task_attempt_id: int
    query_id: str | None
    batch_id: int | None
    rows: int
    bytes: int
    batches: int
    retries: int
    latency_avg_ms: float
    latency_max_ms: float
    seconds: float
    report: TaskReport | None = None
    """What the task of an exactly-once sink has done."""


class ProducerWriter(DataSourceArrowWriter):
    """The batch sink."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> SinkCommitMessage:
        """Send a partition's rows.

        Raises:
            SparkTaskError: a row could not be delivered.
        """
        return write_task(iterator, self._columns, self._options)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the rows of the job, all of which are in the topic.

        Raises:
            ConfigurationError: Spark has not run the tasks of this sink.
        """
        check_all_wrote(messages)
        log_job("written", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the rows that a failed job has left in the topic; none is removed."""
        log_job("aborted", messages)


def write_task(batches: Iterable[pyarrow.RecordBatch], columns: SinkColumns, options: SinkOptions) -> SinkCommitMessage:
    """Send a partition's rows, and log the result.

    Raises:
        SparkTaskError: a row could not be delivered.
    """
    from aioproducer.spark.task import write_partition

    return _message(write_partition(batches, columns, options), None)


def _message(outcome: TaskOutcome, report: TaskReport | None) -> SinkCommitMessage:
    """Return what a task sends to the driver, and log it."""
    context = TaskContext.get()
    assert context is not None
    statistics = outcome.statistics
    batch_id = context.getLocalProperty(_BATCH_ID)
    message = SinkCommitMessage(
        partition_id=context.partitionId(),
        attempt_number=context.attemptNumber(),
        task_attempt_id=context.taskAttemptId(),
        query_id=context.getLocalProperty(_QUERY_ID),
        batch_id=None if batch_id is None else int(batch_id),
        rows=outcome.rows,
        bytes=statistics.bytes,
        batches=statistics.batches,
        retries=statistics.retries,
        latency_avg_ms=statistics.latency_avg_ms,
        latency_max_ms=statistics.latency_max_ms,
        seconds=outcome.seconds,
        report=report,
    )
    where = "" if message.batch_id is None else _micro_batch(message.query_id, message.batch_id)
    skipped = ", not written again: the batch is decided" if report is not None and report.skipped else ""
    log(
        f"{where}partition {message.partition_id}, attempt {message.attempt_number} (task "
        f"{message.task_attempt_id}): {counted(message.rows, 'row')}, {_statistics_text([message])}, "
        f"{message.seconds:.3f} s{skipped}"
    )
    return message


class ExactlyOnce:
    """A writer for tasks that leave their transactions open; ``commit`` decides about them.

    The batch is planned when the writer is pickled for the tasks. The process that commits makes a writer as well, and
    must not plan: that would fence its own commit.
    """

    _options: SinkOptions
    _columns: SinkColumns
    _plan: Plan | None = None
    # Of a batch job.
    _write: str | None = None

    def __getstate__(self) -> dict[str, object]:
        from aioproducer.errors import KafkaError
        from aioproducer.spark.exactly_once import plan_batch

        if self._plan is None:
            try:
                self._plan = plan_batch(self._options, log, self._write)
            except KafkaError as error:
                _raise_short(error)
        return self.__dict__.copy()

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> SinkCommitMessage:
        """Send a partition's rows in a transaction that is left open, or count those of a batch that is decided.

        Raises:
            KafkaError: a row could not be delivered, or this run or batch must not write.
        """
        from aioproducer.errors import ConfigurationError
        from aioproducer.spark.exactly_once import TaskOf, write_transaction

        context = TaskContext.get()
        assert context is not None
        assert self._plan is not None
        run_id = context.getLocalProperty(_RUN_ID)
        if self._write is None:
            key, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
            own = self._options.exactly_once
            if key is None or batch_id is None or own is None or own.micro_batch not in (None, int(batch_id)):
                raise ConfigurationError(
                    "write_batch is for a micro-batch, with its number: call it in the function that foreachBatch was "
                    "given"
                )
            task = TaskOf(key, int(batch_id), run_id or key)
            if own.micro_batch is not None and self._plan.is_second_write(key, task.batch_id, task.run_id):
                raise ConfigurationError(
                    f"this query has written micro-batch {batch_id} to sink.id {own.sink!r} already: if the function "
                    "of foreachBatch calls write_batch twice, each call needs a name of its own"
                )
        else:
            # A job group of the user's is no run.
            task = TaskOf(self._write, None, f"{self._write} {self._plan.token.high_watermark}")
        return _message(*write_transaction(iterator, self._columns, self._options, self._plan, task))

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        from aioproducer.errors import KafkaError
        from aioproducer.spark.exactly_once import commit_batch

        check_all_wrote(messages)
        try:
            commit_batch(self._options, _reports(messages), log)
        except KafkaError as error:
            _raise_short(error)
        log_job("committed", messages, batch_id)

    def _abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        from aioproducer.errors import KafkaError
        from aioproducer.spark.exactly_once import abort_batch

        reports = _reports(messages)
        try:
            aborted = abort_batch(self._options, reports, log)
        except KafkaError as error:
            # The query fails for another reason, and the next plan ends what is open.
            log(f"transactions were not aborted: {error}")
            aborted = False
        if not aborted:
            log("the next start of the query, or 'aioproducer spark-sink recover', ends what this batch has left open")
        log_job("aborted", messages, batch_id)


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    found = [each.report for each in messages if isinstance(each, SinkCommitMessage)]
    return [each for each in found if each is not None]


class ExactlyOnceWriter(ExactlyOnce, DataSourceArrowWriter):
    """The batch sink, exactly once for readers of committed records."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        from uuid import uuid4

        from aioproducer.spark.exactly_once import exactly_once_of
        from aioproducer.spark.transactional.decisions import ONCE

        own = exactly_once_of(options)
        self._options = options
        self._columns = columns
        if own.micro_batch is None:
            self._write = f"{ONCE}{uuid4().hex}" if own.write_id is None else f"write:{own.write_id}"

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> SinkCommitMessage:
        return ExactlyOnce.write(self, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the job's rows as a whole.

        Raises:
            KafkaError: nothing is committed, or the next plan finishes it; the text says which.
        """
        self._commit(messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transactions of a job that has failed."""
        self._abort(messages, None)


def check_all_wrote(messages: Sequence[WriterCommitMessage | None]) -> None:
    """See that every task to be committed was one of this sink's: a continuous query runs none, and commits anyway.

    Raises:
        ConfigurationError: one was not.
    """
    from aioproducer.errors import ConfigurationError

    if not all(isinstance(message, SinkCommitMessage) for message in messages):
        _raise_short(
            ConfigurationError(
                "Rows were not written: Spark hands those of a continuous query to no sink in Python. Start the query "
                "with .trigger(processingTime='1 second') or .trigger(availableNow=True)."
            )
        )


def log_job(what: str, messages: Sequence[WriterCommitMessage | None], batch_id: int | None = None) -> None:
    """Log the sum of what tasks have written, for a micro-batch with the query and its ``batch_id``.

    Of a task that failed or was cancelled there is no message. Rows of it may be in the topic: its error tells.
    """
    found = [message for message in messages if isinstance(message, SinkCommitMessage)]
    if batch_id is None and found:
        # A batch of foreachBatch is a job of its own.
        batch_id = found[0].batch_id
    where = "" if batch_id is None else _micro_batch(found[0].query_id if found else None, batch_id)
    rows = sum(message.rows for message in found)
    where_rows = "in open transactions" if what == "aborted" and any(each.report for each in found) else "in the topic"
    stored = f"{counted(rows, 'row')} of {counted(len(found), 'finished task')} {are(rows)} {where_rows}"
    log(f"{where}{what}; {stored}, {_statistics_text(found)}")


def _micro_batch(query_id: str | None, batch_id: int) -> str:
    return f"batch {batch_id}, " if query_id is None else f"query {query_id}, batch {batch_id}, "


def _statistics_text(messages: Sequence[SinkCommitMessage]) -> str:
    batches = sum(message.batches for message in messages)
    latency = sum(message.latency_avg_ms * message.batches for message in messages) / max(batches, 1)
    return (
        f"{counted(sum(message.bytes for message in messages), 'byte')} in {counted(batches, 'batch')}, "
        f"{counted(sum(message.retries for message in messages), 'retry')}, latency {latency:.1f} ms, at most "
        f"{max((message.latency_max_ms for message in messages), default=0):.1f} ms"
    )


def log(text: str) -> None:
    """Log at level INFO, or write to stderr if no handler is configured.

    Spark appends that stderr to the executor's or the driver's. It configures logging in its Python processes only if
    ``spark.sql.pyspark.worker.logging.enabled`` is set.
    """
    if logger.hasHandlers():
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        logger.info("%s", text)
    else:
        # In one call: stderr of Spark's workers is unbuffered, and other lines could come between two parts.
        sys.stderr.write(f"{datetime.now():%y/%m/%d %H:%M:%S} INFO {logger.name}: {text}\n")
        sys.stderr.flush()
