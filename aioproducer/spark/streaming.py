"""The streaming sink's writer; importing it takes pyspark 4.1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from aioproducer.spark.source import ExactlyOnce, SinkCommitMessage, check_all_wrote, log_job, write_task

if TYPE_CHECKING:
    import pyarrow

    from aioproducer.spark.columns import SinkColumns
    from aioproducer.spark.options import SinkOptions


class ProducerStreamWriter(DataSourceStreamArrowWriter):
    """The streaming sink, for one micro-batch: at least once."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> SinkCommitMessage:
        """Send a partition's rows of the micro-batch.

        Raises:
            SparkTaskError: a row could not be delivered.
        """
        return write_task(iterator, self._columns, self._options)

    # A query's progress in Spark has only sink.numOutputRows of a sink in Python: the other statistics are logged.

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log the rows of the micro-batch, all of which are in the topic.

        Raises:
            ConfigurationError: Spark has not run the tasks of this sink.
        """
        check_all_wrote(messages)
        log_job("written", messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log the rows that a failed micro-batch has left in the topic; none is removed."""
        log_job("aborted", messages, batchId)


class ExactlyOnceStreamWriter(ExactlyOnce, DataSourceStreamArrowWriter):
    """The streaming sink, for one micro-batch: exactly once for readers of committed records."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> SinkCommitMessage:
        return ExactlyOnce.write(self, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Decide the micro-batch, and commit the transactions of its tasks.

        Raises:
            KafkaError: the query fails, and its next start finds out whether the micro-batch is decided.
        """
        self._commit(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Abort the transactions of a micro-batch that is certainly not decided."""
        self._abort(messages, batchId)
