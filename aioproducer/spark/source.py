"""The data source ``aioproducer``: what Spark's driver plans with, and what its tasks run.

Spark makes a ``ProducerDataSource`` in a process of its own and asks it for a writer, which goes to the tasks, and
then to another process for ``commit`` or ``abort``. Spark imports this module to find the data source at all, in every
session on a machine where the package is installed: what is needed for writing is imported when something is written.
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

from aioproducer._common.texts import are, counted

logger = logging.getLogger("aioproducer.spark")

# What Spark calls them in a task's local properties.
_BATCH_ID, _QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"


class ProducerDataSource(DataSource):
    """``df.write.format("aioproducer")`` and ``df.writeStream.format("aioproducer")``."""

    _is_checked = False

    @classmethod
    def name(cls) -> str:
        return "aioproducer"

    def __setstate__(self, state: dict[str, object]) -> None:
        # Spark sends a data source from process to process only for a streaming query's commits and aborts. Whether
        # the cluster answers is no question any more.
        self.__dict__.update(state)
        self._is_checked = True

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The batch sink's writer, when the driver has found nothing wrong.

        Raises:
            KafkaError: options, columns, mode or cluster are not right; the text says what to do.
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
            _tell_user(error)
        return ProducerWriter(options, columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        """The streaming sink's writer, for one micro-batch.

        In output mode ``complete``, which Spark calls overwriting, the rows of every micro-batch are all sent, as
        Spark's own Kafka sink does.

        Raises:
            KafkaError: options, columns or cluster are not right; the text says what to do.
        """
        from aioproducer.errors import ConfigurationError, KafkaError
        from aioproducer.spark.checks import check_cluster_once

        try:
            try:
                # A circle of two: the streaming writer needs pyspark 4.1, and everything else that is in this file.
                from aioproducer.spark.streaming import ProducerStreamWriter
            except ImportError:
                raise ConfigurationError(
                    "The streaming sink needs pyspark 4.1 or later. With 4.0 write in foreachBatch: "
                    "lambda df, _: df.write.format('aioproducer')..."
                ) from None
            options, columns = _parse(self.options, schema)
            if not self._is_checked:
                check_cluster_once(options)
        except KafkaError as error:
            _tell_user(error)
        return ProducerStreamWriter(options, columns)

    def schema(self) -> NoReturn:
        """Asked for only by who reads."""
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


def _tell_user(error: Exception) -> NoReturn:
    """Raise an error so that a traceback, which is all that Spark shows, is short and ends in its text."""
    raise error.with_traceback(None) from None


@dataclass
class SinkCommitMessage(WriterCommitMessage):
    """What a task has written; ``query_id`` and ``batch_id`` are None in a batch job.

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
        """Log what the job has written, all of which is in the topic.

        Raises:
            ConfigurationError: Spark has let no task of this sink write.
        """
        check_all_wrote(messages)
        log_job("written", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what is in the topic of a job that has failed; nothing is taken back."""
        log_job("aborted", messages)


def write_task(batches: Iterable[pyarrow.RecordBatch], columns: SinkColumns, options: SinkOptions) -> SinkCommitMessage:
    """Send a partition's rows, and log what became of them.

    Raises:
        SparkTaskError: a row could not be delivered.
    """
    from aioproducer.spark.task import write_partition

    context = TaskContext.get()
    assert context is not None
    outcome = write_partition(batches, columns, options)
    figures = outcome.figures
    batch_id = context.getLocalProperty(_BATCH_ID)
    message = SinkCommitMessage(
        partition_id=context.partitionId(),
        attempt_number=context.attemptNumber(),
        task_attempt_id=context.taskAttemptId(),
        query_id=context.getLocalProperty(_QUERY_ID),
        batch_id=None if batch_id is None else int(batch_id),
        rows=outcome.rows,
        bytes=figures.bytes,
        batches=figures.batches,
        retries=figures.retries,
        latency_avg_ms=figures.latency_avg_ms,
        latency_max_ms=figures.latency_max_ms,
        seconds=outcome.seconds,
    )
    where = "" if message.batch_id is None else _micro_batch(message.query_id, message.batch_id)
    log(
        f"{where}partition {message.partition_id}, attempt {message.attempt_number} (task "
        f"{message.task_attempt_id}): {counted(message.rows, 'row')}, {_producer_figures([message])}, "
        f"{message.seconds:.3f} s"
    )
    return message


def check_all_wrote(messages: Sequence[WriterCommitMessage | None]) -> None:
    """See that every task to be committed was one of this sink's: a continuous query runs none, and commits anyway.

    Raises:
        ConfigurationError: one was not.
    """
    from aioproducer.errors import ConfigurationError

    if not all(isinstance(message, SinkCommitMessage) for message in messages):
        _tell_user(
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
    stored = f"{counted(rows, 'row')} of {counted(len(found), 'finished task')} {are(rows)} in the topic"
    log(f"{where}{what}; {stored}, {_producer_figures(found)}")


def _micro_batch(query_id: str | None, batch_id: int) -> str:
    return f"batch {batch_id}, " if query_id is None else f"query {query_id}, batch {batch_id}, "


def _producer_figures(messages: Sequence[SinkCommitMessage]) -> str:
    batches = sum(message.batches for message in messages)
    latency = sum(message.latency_avg_ms * message.batches for message in messages) / max(batches, 1)
    return (
        f"{counted(sum(message.bytes for message in messages), 'byte')} in {counted(batches, 'batch')}, "
        f"{counted(sum(message.retries for message in messages), 'retry')}, latency {latency:.1f} ms, at most "
        f"{max((message.latency_max_ms for message in messages), default=0):.1f} ms"
    )


def log(text: str) -> None:
    """Log at level INFO; to stderr, which Spark puts into the executor's or the driver's own, where nobody listens.

    Spark sets up no logging in its Python processes, unless ``spark.sql.pyspark.worker.logging.enabled`` is set.
    """
    if logger.hasHandlers():
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        logger.info("%s", text)
    else:
        # In one piece: Spark has its workers write without a buffer, each part by itself, and between two others.
        sys.stderr.write(f"{datetime.now():%y/%m/%d %H:%M:%S} INFO {logger.name}: {text}\n")
        sys.stderr.flush()
