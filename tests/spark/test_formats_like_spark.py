"""``key_format`` and ``value_format`` write what Spark's own ``to_json`` and ``CAST`` write of the same rows."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow
import pytest

from aioproducer.spark.formats import SqlType, converted, obstacle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.interop

PLAIN = (
    "true",
    "cast(-1 as tinyint)",
    "cast(300 as smallint)",
    "2147483647",
    "-9223372036854775808",
    "1.5d",
    "-0.0d",
    "1e-3d",
    "1e-4d",
    "9999999d",
    "1e7d",
    "12345678.9d",
    "1e22d",
    "4.9e-324d",
    "1.7976931348623157e308d",
    "double('NaN')",
    "double('Infinity')",
    "-double('Infinity')",
    "cast(0.1 as float)",
    "cast(1e10 as float)",
    "cast(16777216 as float)",
    "cast(1.4e-45 as float)",
    "cast(3.4028235e38 as float)",
    "cast('NaN' as float)",
    "cast(1.10 as decimal(10,2))",
    "cast(100 as decimal(10,0))",
    "cast(0 as decimal(38,18))",
    "cast('1e-10' as decimal(38,18))",
    "cast('-0.0000001' as decimal(10,7))",
    "cast('0.000001' as decimal(10,7))",
    "cast('12345678901234567890.123456789012345678' as decimal(38,18))",
    "date'2020-02-02'",
    "date'0001-01-01'",
    "date'1500-03-01'",
    "date'9999-12-31'",
    "date'12345-01-01'",
    "date'-0044-03-15'",
    "timestamp'2020-01-01 00:00:00.123456'",
    "timestamp'2020-07-01 00:00:10'",
    "timestamp'2020-07-01 00:00:00.5'",
    "timestamp'2020-07-01 00:00:00.000001'",
    "timestamp'1969-12-31 23:59:59.999999'",
    "timestamp'1890-01-01 00:00:00'",
    "timestamp'0001-01-02 00:00:00'",
    "timestamp'2037-07-01 00:00:00'",
    "timestamp'2040-07-01 00:00:00.5'",
    "timestamp'2040-12-01 00:00:00'",
    "timestamp'9998-07-01 12:00:00'",
    "timestamp'12345-01-01 00:00:00'",
    "timestamp'12345-07-01 00:00:00'",
    "timestamp_ntz'2020-01-01 00:00:00.123456'",
    "timestamp_ntz'1969-12-31 23:59:59.999999'",
    "timestamp_ntz'0001-07-01 00:00:00.12'",
    "cast('abc' as binary)",
    "X''",
    "'plain'",
    "''",
    r"""'a"b\\c/\u0001\u001f\u007f\b\t\n\r\f é \U0001f600 \u2028'""",
    "cast(null as int)",
    "null",
)
NESTED = (
    "X'FF00E4'",
    "cast(array() as array<int>)",
    "array(1, null)",
    "array(array(1), null, cast(array() as array<int>))",
    "array(cast('a' as binary), null)",
    "array(named_struct('a', null))",
    "array(double('NaN'), 1e7d)",
    "cast(map() as map<string,int>)",
    "map('x', 1.5d, 'y', null)",
    "map('a', named_struct('x', null))",
    """map('q"', array(map('z', date'2020-01-01')))""",
    "map(1, 2)",
    "map(true, 2)",
    "map(1.5d, 2, 1e7d, 3)",
    "map(cast(0.1 as float), 2)",
    "map(cast(1.10 as decimal(5,2)), 2)",
    "map(cast('1e-10' as decimal(38,18)), 2)",
    "map(date'2020-01-01', 2)",
    "map(timestamp'2020-01-01 00:00:00.5', 2)",
    "map(timestamp_ntz'2020-01-01 00:00:00', 2)",
    "named_struct('a', null, 'b', 1)",
    "named_struct('a', null, 'b', null)",
    "named_struct('b', named_struct('a', null))",
    """named_struct('q"\\n', 1, '', 2, 'é', timestamp'2020-01-01 00:00:00')""",
    "cast(null as struct<a:int>)",
    "cast(null as array<int>)",
    "cast(null as map<string,int>)",
)


@pytest.fixture(params=["Europe/Berlin", "UTC", "+05:30"])
def zoned(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def columns_of(frame: DataFrame, file: Path) -> pyarrow.RecordBatch:
    """The rows as Spark hands them to an Arrow writer, in one batch."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    # Classes of a function go to Spark's workers by value: those need not find this module.
    class IntoFile(DataSourceArrowWriter):
        def __init__(self, file: str) -> None:
            self.file = file

        def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
            import pyarrow

            (batch,) = iterator
            with pyarrow.ipc.new_file(self.file, batch.schema) as stream:
                stream.write_batch(batch)
            return WriterCommitMessage()

    class Files(DataSource):
        @classmethod
        def name(cls) -> str:
            return "arrow_file_of_a_test"

        def writer(self, schema: StructType, overwrite: bool) -> IntoFile:
            return IntoFile(self.options["file"])

    frame.sparkSession.dataSource.register(Files)
    frame.write.format(Files.name()).option("file", str(file)).mode("append").save()
    with pyarrow.ipc.open_file(str(file)) as stream:
        assert stream.num_record_batches == 1
        return stream.get_batch(0)


def select(spark: SparkSession, expressions: tuple[str, ...]) -> DataFrame:
    # From a table, so that nothing is folded, and with rows that are null.
    listed = ", ".join(f"if(id = 0, {expression}, null) as c{n}" for n, expression in enumerate(expressions))
    return spark.sql(f"select {listed} from range(0, 2, 1, 1)")


def rows_by_column(frame: DataFrame) -> list[list[str | None]]:
    return [list(column) for column in zip(*frame.collect(), strict=True)]


def test_string_is_what_cast_gives(zoned: SparkSession, tmp_path: Path) -> None:
    frame = select(zoned, PLAIN)
    batch = columns_of(frame, tmp_path / "batch")
    theirs = rows_by_column(frame.selectExpr(*[f"cast({c} as string)" for c in frame.columns]))
    for expression, field, column, expected in zip(PLAIN, frame.schema, batch.columns, theirs, strict=True):
        assert obstacle("string", SqlType.of(field.dataType)) == ""
        found = [each.decode() if isinstance(each, bytes) else each for each in converted("string", column).to_pylist()]
        assert found == expected, expression


def test_json_is_what_to_json_gives(zoned: SparkSession, tmp_path: Path) -> None:
    expressions = PLAIN + NESTED
    frame = select(zoned, expressions)
    batch = columns_of(frame, tmp_path / "batch")
    # to_json takes no plain values; in an array it writes them, and nulls.
    wrapped = [f"to_json(array({c}))" for c in frame.columns]
    theirs = rows_by_column(frame.selectExpr(*wrapped))
    for expression, field, column, expected in zip(expressions, frame.schema, batch.columns, theirs, strict=True):
        assert obstacle("json", SqlType.of(field.dataType)) == ""
        found = [f"[{'null' if each is None else each}]" for each in converted("json", column).to_pylist()]
        assert found == expected, expression


def test_json_of_a_whole_row(spark: SparkSession, tmp_path: Path) -> None:
    frame = select(spark, PLAIN + NESTED).selectExpr("struct(*) as value", "to_json(struct(*)) as json")
    batch = columns_of(frame, tmp_path / "batch")
    assert converted("json", batch.column("value")).to_pylist() == batch.column("json").to_pylist()


def test_any_number_with_an_exponent_where_spark_has_one(spark: SparkSession, tmp_path: Path) -> None:
    """Java before 19 writes some numbers with more digits than they need, so these are compared as numbers."""
    random = Random(7)
    numbers = [struct.unpack("<d", random.randbytes(8))[0] for _ in range(500)]
    numbers += [random.uniform(-1, 1) * 10.0 ** random.randrange(-8, 12) for _ in range(500)]
    frame = spark.createDataFrame([(each,) for each in numbers], "n double").coalesce(1)
    batch = columns_of(frame.selectExpr("n", "cast(n as string) as text"), tmp_path / "batch")
    ours = converted("string", batch.column("n")).to_pylist()
    theirs = batch.column("text").to_pylist()
    assert len(ours) == len(numbers)
    for mine, other in zip(ours, theirs, strict=True):
        assert ("E" in mine) == ("E" in other)
        assert float(mine) == float(other) or mine == other == "NaN"
        assert len(mine) <= len(other)
