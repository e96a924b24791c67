"""The sink's columns: what a DataFrame must have, and how its Arrow batches become what a producer sends."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from aioproducer._client.arrow import in_milliseconds, is_binary
from aioproducer._common.diagnosis import nearest
from aioproducer._common.texts import counted
from aioproducer.errors import ConfigurationError
from aioproducer.spark.format_names import FORMATS, JSON
from aioproducer.spark.formats import SqlType, converted, decoded, obstacle
from aioproducer.spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

# Each column with the types that it may have, as SQL names them; the order is that of error messages.
_COLUMNS: Final = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("timestamp", "bigint"),
}
_MEANINGS: Final = {"timestamp": " (bigint: milliseconds since 1970)"}
# Remedies for columns of another type.
_CURES: Final = {
    "topic": "cast it: .withColumn('topic', col('topic').cast('string'))",
    "headers": "name the fields key and value, in this order, and cast them",
    "partition": "cast it: .withColumn('partition', col('partition').cast('int'))",
    "timestamp": (
        "cast it: .withColumn('timestamp', col('timestamp').cast('timestamp')), which takes a timestamp_ntz as one of "
        "the session's time zone, and a number as seconds"
    ),
}
# What Spark's Kafka source gives beside what its sink takes.
CONVERTED_AT_ONCE: Final = 1000
"""Rows that are made text of together."""

_OF_THE_SOURCE: Final = ("offset", "timestampType")


class Piece(NamedTuple):
    """Rows of one topic, and of one value of the column ``partition``, as ``ColumnsSender.send`` takes them."""

    topic: str
    values: pyarrow.Array
    keys: pyarrow.Array | None
    partition: int | None
    timestamps_ms: pyarrow.Array | None
    headers: pyarrow.Array | None


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of a write, checked; a batch of theirs in ``pieces``.

    topic
        Topic of all rows; ``None`` if the column names it.
    key_format, value_format
        Formats that the columns are converted to; ``""`` if they are strings or binary.
    """

    topic: str | None
    key_format: str
    value_format: str

    @classmethod
    def of_schema(cls, schema: StructType, options: SinkOptions) -> Self:
        """Check what will be written, before any of it is.

        Columns are found by their names as they are spelt, upper and lower case apart, as Spark's Kafka sink does it
        whatever ``spark.sql.caseSensitive`` says.

        Raises:
            ConfigurationError: a column is missing, is none of the sink's, or is of another type; the text says what to
                do.
        """
        columns: dict[str, SqlType] = {}
        for field in schema.fields:
            if field.name in columns:
                raise ConfigurationError(f"there are two columns {field.name!r}: drop or rename one")
            columns[field.name] = SqlType.of(field.dataType)
        unknown = [name for name in columns if name not in _COLUMNS]
        if unknown:
            raise ConfigurationError(_unknown(unknown, columns))
        if "value" not in columns:
            raise ConfigurationError(
                "the column value is missing: name one so, or make one of several: "
                ".select(to_json(struct('*')).alias('value'))"
            )
        if options.topic is None and "topic" not in columns:
            raise ConfigurationError(
                'there is no topic: give the option topic, as .option("topic", "clicks"), or a column topic'
            )
        if options.key_format and "key" not in columns:
            raise ConfigurationError("the option key_format is given, but there is no column key")
        formats = {"key": options.key_format, "value": options.value_format}
        for name, sql_type in columns.items():
            _check_type(name, sql_type, formats.get(name, ""))
        return cls(options.topic, options.key_format, options.value_format)

    def parts(self, batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
        """Return the batch, in parts if it is converted: the text may be hundreds of times larger than the values."""
        step = CONVERTED_AT_ONCE if self.key_format or self.value_format else max(batch.num_rows, 1)
        for first in range(0, batch.num_rows, step):
            yield batch.slice(first, step)

    def size(self, batch: pyarrow.RecordBatch, pieces: Sequence[Piece]) -> int:
        """About how many bytes ``pieces``, which were made of ``batch``, keep in memory."""
        size = int(batch.nbytes)
        if not (self.key_format or self.value_format):
            return size
        columns = [column for piece in pieces for column in (piece.values, piece.keys)]
        return max(size, sum(int(column.nbytes) for column in columns if column is not None))

    def pieces(self, batch: pyarrow.RecordBatch) -> Iterator[Piece]:
        """The rows of a batch by topic and partition; rows of the same are in the batch's order.

        With one topic and no partitions, the columns are passed on without a copy.

        Raises:
            ValueError: a row has no topic, or a date or timestamp cannot be written in the format asked for.
        """
        if not batch.num_rows:
            return
        values = _bytes(_column(batch, "value"), self.value_format)
        keys = _given(_column(batch, "key"))
        timestamps = _given(_decoded_column(batch, "timestamp"))
        rows = _Rows(
            values,
            None if keys is None else _bytes(keys, self.key_format),
            None if timestamps is None else in_milliseconds(timestamps),
            _given(_decoded_column(batch, "headers")),
        )
        topics = None if self.topic is not None else _decoded_column(batch, "topic")
        partitions = _given(_decoded_column(batch, "partition"))
        if topics is None and partitions is None:
            yield rows.piece(self.topic, None)
            return
        yield from _grouped(rows, self.topic, topics, partitions)


class _Rows(NamedTuple):
    values: Any
    keys: Any
    timestamps_ms: Any
    headers: Any

    def each(self, method: str, *arguments: Any) -> _Rows:
        return _Rows(*[None if column is None else getattr(column, method)(*arguments) for column in self])

    def piece(self, topic: str | None, partition: int | None) -> Piece:
        assert topic is not None
        return Piece(topic, self.values, self.keys, partition, self.timestamps_ms, self.headers)


# A place is a topic's number times this, and the partition in what is below; a null partition is one below the lowest.
_PLACES: Final = 1 << 33
_LOWEST: Final = 1 << 31


def _grouped(
    rows: _Rows, topic: str | None, topics: pyarrow.Array | None, partitions: pyarrow.Array | None
) -> Iterator[Piece]:
    """The pieces, in the order in which their first rows come."""
    import pyarrow.compute as pc

    names: Sequence[str | None] = [topic]
    places: Any = None
    if topics is not None:
        if topics.null_count:
            raise ValueError(
                f"null topic present in the data, in {topics.null_count} of {counted(len(topics), 'row')} of a batch: "
                "give every row a topic, or all of them one by the option topic"
            )
        numbered = topics.dictionary_encode()
        names = numbered.dictionary.to_pylist()
        places = pc.multiply(numbered.indices.cast("int64"), _PLACES)
    if partitions is not None:
        lower = pc.fill_null(pc.add(partitions.cast("int32").cast("int64"), _LOWEST + 1), 0)
        places = lower if places is None else pc.add(places, lower)
    groups = places.dictionary_encode()
    # In the order of the groups' numbers, which are dense: Arrow counts them instead of comparing.
    if len(groups.dictionary) > 1 and not _ascends(groups.indices):
        rows = rows.each("take", pc.array_sort_indices(groups.indices))
    counts = pc.value_counts(groups.indices).field(1)
    start = 0
    for group, count in zip(groups.dictionary.to_pylist(), counts.to_pylist(), strict=True):
        place, below = divmod(group, _PLACES)
        partition = below - _LOWEST - 1 if partitions is not None and below else None
        whole = count == len(places)
        yield (rows if whole else rows.each("slice", start, count)).piece(names[place], partition)
        start += count


def _ascends(numbers: pyarrow.Array) -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(pc.less_equal(numbers.slice(0, len(numbers) - 1), numbers.slice(1))).as_py())


def _column(batch: pyarrow.RecordBatch, name: str) -> Any:
    place = batch.schema.get_field_index(name)
    return None if place < 0 else batch.column(place)


def _decoded_column(batch: pyarrow.RecordBatch, name: str) -> Any:
    column = _column(batch, name)
    return None if column is None else decoded(column)


def _given(column: Any) -> Any:
    """Return the column, or ``None`` if all rows are null."""
    return None if column is None or column.null_count == len(column) else column


def _bytes(column: Any, format: str) -> Any:
    """Return the column in a form that ``send_many`` reads without a copy."""
    if format:
        column = converted(format, column)
    return column if is_binary(column) else column.cast("large_binary")


def _check_type(name: str, sql_type: SqlType, format: str) -> None:
    """
    Raises:
        ConfigurationError: the column ``name`` cannot be of this type.
    """
    if format:
        problem = obstacle(format, sql_type)
        if problem:
            cure = f"convert it to string in the query, and drop the option {name}_format"
            if not obstacle(JSON, sql_type):
                cure = f"use {name}_format={JSON}"
            raise ConfigurationError(f"the column {name} ({sql_type.text}) cannot be written: {problem}; {cure}")
        return
    allowed = _COLUMNS[name]
    if _bare(sql_type) in allowed:
        return
    wanted = " or ".join(allowed) + _MEANINGS.get(name, "")
    cure = _CURES.get(name) or _format_cure(name, sql_type)
    raise ConfigurationError(f"the column {name} must be {wanted}, not {sql_type.text}: {cure}")


def _bare(sql_type: SqlType) -> str:
    """The type's text, for strings without their length or collation."""
    return "string" if sql_type.name in ("string", "char", "varchar") else sql_type.text


def _format_cure(name: str, sql_type: SqlType) -> str:
    if sql_type.name == "void":
        return f".withColumn('{name}', lit(None).cast('binary')) has nothing but nulls as well"
    helps = [format for format in FORMATS if not obstacle(format, sql_type)]
    if not helps:
        return "cast it to string in the query"
    options = " or ".join(f'.option("{name}_format", "{format}")' for format in helps)
    return f"convert it in the query, or with {options}"


def _unknown(names: Sequence[str], columns: Container[str]) -> str:
    shown = ", ".join(f"{name!r}" for name in names)
    text = f"the sink has no column {shown}: its columns are {', '.join(_COLUMNS)}"
    hints = {name: nearest(name.lower(), list(_COLUMNS)) for name in names if name not in _OF_THE_SOURCE}
    meant = [f"for {name!r} {hint}" for name, hint in hints.items() if hint]
    if meant:
        return f"{text}; {', '.join(meant)} (upper and lower case matter)"
    if "value" in columns:
        dropped = ", ".join(f"'{name}'" for name in names)
        return f"{text}; .drop({dropped}) before writing"
    return f"{text}; to write all of them as JSON: .select(to_json(struct('*')).alias('value'))"
