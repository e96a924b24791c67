"""A sink that counts the rows it gets and drops them; Spark's workers import it by this name.

Each task says in a file how many it has got so far, for whoever wants to keep step with them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


COUNT_BYTES = 8
"""Of each task's count in the file, at its partition's place, in the byte order of this machine."""


def rows_so_far(counts: int) -> int:
    """How many rows all tasks have got, by the open file of their counts."""
    return sum(memoryview(os.pread(counts, 2**16, 0)).cast("q"))


class NullDataSource(DataSource):
    """``format("bench-null")``; the option ``rows`` says how many have to come, ``counts`` which file to count in."""

    @classmethod
    def name(cls) -> str:
        return "bench-null"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return NullWriter(int(self.options["rows"]), self.options["counts"])


@dataclass
class Counted(WriterCommitMessage):
    """The rows of one task."""

    rows: int


class NullWriter(DataSourceArrowWriter):
    """Counts."""

    def __init__(self, expected: int, counts: str) -> None:
        self._expected = expected
        self._counts = counts

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Counted:
        context = TaskContext.get()
        assert context is not None
        place = context.partitionId() * COUNT_BYTES
        rows = 0
        counts = os.open(self._counts, os.O_WRONLY)
        try:
            for batch in iterator:
                rows += batch.num_rows
                os.pwrite(counts, rows.to_bytes(COUNT_BYTES, sys.byteorder), place)
        finally:
            os.close(counts)
        return Counted(rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        found = sum(message.rows for message in messages if isinstance(message, Counted))
        if found != self._expected:
            raise RuntimeError(f"{found} of {self._expected} rows came")
