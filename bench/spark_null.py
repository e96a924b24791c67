"""A sink that counts the rows it gets and drops them; Spark's workers import it by this name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


class NullDataSource(DataSource):
    """``format("bench-null")``; the option ``rows`` says how many have to come."""

    @classmethod
    def name(cls) -> str:
        return "bench-null"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return NullWriter(int(self.options["rows"]))


@dataclass
class Counted(WriterCommitMessage):
    """The rows of one task."""

    rows: int


class NullWriter(DataSourceArrowWriter):
    """Counts."""

    def __init__(self, expected: int) -> None:
        self._expected = expected

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Counted:
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        found = sum(message.rows for message in messages if isinstance(message, Counted))
        if found != self._expected:
            raise RuntimeError(f"{found} of {self._expected} rows came")
