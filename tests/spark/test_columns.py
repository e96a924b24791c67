"""The sink's columns: what a schema must be, and what becomes of a batch."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from aioproducer._client.arrow import is_binary
from aioproducer.errors import ConfigurationError
from aioproducer.spark.columns import Piece, SinkColumns
from aioproducer.spark.options import SinkOptions

HEADERS = spark.ArrayType(
    spark.StructType([spark.StructField("key", spark.StringType()), spark.StructField("value", spark.BinaryType())])
)
ALL = {
    "key": spark.StringType(),
    "value": spark.BinaryType(),
    "topic": spark.StringType(),
    "headers": HEADERS,
    "partition": spark.IntegerType(),
    "timestamp": spark.TimestampType(),
}


def options(**own: str) -> SinkOptions:
    return SinkOptions.parse({"kafka.bootstrap.servers": "host:9092", **own})


def schema(**columns: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, data_type) for name, data_type in columns.items()])


def of(columns: dict[str, spark.DataType], **own: str) -> SinkColumns:
    return SinkColumns.of_schema(schema(**columns), options(**own))


def refusal(columns: dict[str, spark.DataType], **own: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        of(columns, **own)
    return str(caught.value)


def test_all_columns() -> None:
    assert of(ALL) == SinkColumns(None, "", "")
    assert of(ALL, topic="clicks").topic == "clicks"
    assert of({**ALL, "timestamp": spark.LongType()}) == of(ALL)


def test_a_batch_that_becomes_text_is_converted_in_parts_and_counted_as_text() -> None:
    """What waited was counted as what it was made of: a hundredth of the memory that it took."""
    flags = pyarrow.array([bool(number % 2) for number in range(2500)])
    value = pyarrow.StructArray.from_arrays([flags] * 50, [f"is_some_property_{number:03}" for number in range(50)])
    batch = pyarrow.record_batch({"value": value})
    sink = SinkColumns("clicks", "", "json")
    parts = list(sink.parts(batch))
    assert [part.num_rows for part in parts] == [1000, 1000, 500]
    pieces = [list(sink.pieces(part)) for part in parts]
    assert sink.size(parts[0], pieces[0]) > 1000 * 50 * 25 > 100 * parts[0].nbytes
    plain = SinkColumns("clicks", "", "")
    (whole,) = plain.parts(pyarrow.record_batch({"value": pyarrow.array([b"v"] * 2500)}))
    assert whole.num_rows == 2500
    assert plain.size(whole, list(plain.pieces(whole))) == whole.nbytes
    assert not list(plain.parts(whole.slice(0, 0)))


def test_value_alone_is_enough_where_the_topic_is_an_option() -> None:
    assert of({"value": spark.StringType()}, topic="clicks") == SinkColumns("clicks", "", "")


@pytest.mark.parametrize("text", [spark.CharType(3), spark.VarcharType(3), spark.StringType("UTF8_LCASE")], ids=str)
def test_a_string_may_have_a_length_or_a_collation(text: spark.DataType) -> None:
    assert of({"key": text, "value": text, "topic": text}) == SinkColumns(None, "", "")


def test_nullability_does_not_matter() -> None:
    pair = spark.StructType(
        [spark.StructField("key", spark.StringType(), False), spark.StructField("value", spark.BinaryType(), False)]
    )
    assert of({**ALL, "headers": spark.ArrayType(pair, False)}) == of(ALL)


def test_it_pickles() -> None:
    columns = of(ALL, value_format="json")
    assert pickle.loads(pickle.dumps(columns)) == columns


NUMBERS = spark.ArrayType(spark.LongType())


@pytest.mark.parametrize(
    ("columns", "own", "text"),
    [
        ({"key": spark.StringType()}, {"topic": "t"}, "the column value is missing"),
        ({"value": spark.StringType()}, {}, '.option("topic", "clicks"), or a column topic'),
        (
            {**ALL, "offset": spark.LongType(), "timestampType": spark.IntegerType()},
            {},
            ".drop('offset', 'timestampTyp",
        ),
        ({"Value": spark.StringType()}, {"topic": "t"}, "for 'Value' did you mean 'value'? (upper and lower case mat"),
        (
            {**ALL, "header": HEADERS},
            {},
            "no column 'header': its columns are key, value, topic, headers, partition, t",
        ),
        (
            {"a": spark.LongType(), "b": spark.LongType()},
            {"topic": "t"},
            ".select(to_json(struct('*')).alias('value'))",
        ),
        ({**ALL, "value": spark.LongType()}, {}, "the column value must be string or binary, not bigint: convert it"),
        (
            {**ALL, "value": spark.LongType()},
            {},
            '.option("value_format", "json") or .option("value_format", "string")',
        ),
        (
            {**ALL, "key": NUMBERS},
            {},
            'not array<bigint>: convert it in the query, or with .option("key_format", "json")',
        ),
        ({**ALL, "value": spark.NullType()}, {}, ".withColumn('value', lit(None).cast('binary'))"),
        ({**ALL, "value": spark.VariantType()}, {}, "not variant: cast it to string in the query"),
        ({**ALL, "topic": spark.BinaryType()}, {}, "the column topic must be string, not binary: cast it"),
        ({**ALL, "topic": spark.BinaryType()}, {"topic": "t"}, "the column topic must be string, not binary: cast it"),
        ({**ALL, "partition": spark.LongType()}, {}, "the column partition must be int, not bigint: cast it"),
        ({**ALL, "headers": NUMBERS}, {}, "must be array<struct<key:string,value:binary>>, not array<bigint>"),
        (
            {**ALL, "timestamp": spark.DoubleType()},
            {},
            "timestamp or bigint (bigint: milliseconds since 1970), not dou",
        ),
        ({**ALL, "timestamp": spark.TimestampNTZType()}, {}, "not timestamp_ntz: cast it"),
        ({"value": spark.StringType()}, {"topic": "t", "key_format": "json"}, "there is no column key"),
        (
            {**ALL, "value": NUMBERS},
            {"value_format": "string"},
            "string is not for array<bigint>; use value_format=json",
        ),
        (
            {**ALL, "key": spark.VariantType()},
            {"key_format": "json"},
            "json is not for variant; convert it to string in the query, and",
        ),
    ],
)
def test_a_wrong_schema_is_refused_with_what_to_do(
    columns: dict[str, spark.DataType], own: dict[str, str], text: str
) -> None:
    assert text in refusal(columns, **own)


def test_two_columns_of_one_name_are_refused() -> None:
    twice = spark.StructType([spark.StructField("value", spark.StringType())] * 2)
    with pytest.raises(ConfigurationError, match="two columns 'value'"):
        SinkColumns.of_schema(twice, options(topic="t"))


def test_a_constant_topic_passes_columns_on_as_they_lie() -> None:
    batch = pyarrow.record_batch({"key": pyarrow.array([b"a", None]), "value": pyarrow.array(["x", "y"])}).slice(1)
    (piece,) = SinkColumns("clicks", "", "").pieces(batch)
    assert (piece.topic, piece.partition, piece.timestamps_ms, piece.headers) == ("clicks", None, None, None)
    assert piece.keys is None, "nothing but nulls"
    assert piece.values.to_pylist() == ["y"]
    assert piece.values.buffers()[2].address == batch.column("value").buffers()[2].address


def test_the_topic_option_is_stronger_than_the_column() -> None:
    batch = pyarrow.record_batch({"value": ["x", "y"], "topic": ["a", None]})
    (piece,) = SinkColumns("clicks", "", "").pieces(batch)
    assert piece.topic == "clicks"
    assert len(piece.values) == 2


def test_an_empty_batch_has_no_pieces() -> None:
    empty = pyarrow.record_batch({"value": pyarrow.array([], pyarrow.string()), "topic": pyarrow.array([], "string")})
    assert list(SinkColumns(None, "", "").pieces(empty)) == []
    assert list(SinkColumns("t", "", "").pieces(empty)) == []


@pytest.mark.parametrize("encoded", [False, True])
def test_a_row_without_a_topic_is_an_error(encoded: bool) -> None:
    topics = pyarrow.array(["a", None, "b"])
    if encoded:
        # The null is in the dictionary, where null_count does not see it.
        topics = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, 1, 2], pyarrow.int32()), topics)
    batch = pyarrow.record_batch({"value": ["x", "y", "z"], "topic": topics})
    with pytest.raises(ValueError, match="null topic present in the data, in 1 of 3 rows of a batch"):
        list(SinkColumns(None, "", "").pieces(batch))


def test_a_dictionary_may_have_a_topic_twice() -> None:
    indices = pyarrow.array([0, 1, 0], pyarrow.int32())
    topics = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(["a", "a"]))
    (piece,) = SinkColumns(None, "", "").pieces(pyarrow.record_batch({"value": ["x", "y", "z"], "topic": topics}))
    assert piece.values.to_pylist() == ["x", "y", "z"]


def test_what_the_producer_will_refuse_is_passed_on_with_its_topic() -> None:
    batch = pyarrow.record_batch(
        {"value": ["x", "y"], "topic": ["", "a"], "partition": pyarrow.array([-(2**31), -1], pyarrow.int32())}
    )
    pieces = list(SinkColumns(None, "", "").pieces(batch))
    assert [(piece.topic, piece.partition) for piece in pieces] == [("", -(2**31)), ("a", -1)]


def test_timestamps_are_milliseconds_of_utc() -> None:
    moment = datetime(2020, 1, 1, 0, 0, 0, 123999, UTC)
    for zone in ("UTC", "Europe/Berlin"):
        column = pyarrow.array([moment, None], pyarrow.timestamp("us", zone))
        (piece,) = SinkColumns("t", "", "").pieces(pyarrow.record_batch({"value": ["x", "y"], "timestamp": column}))
        assert piece.timestamps_ms.to_pylist() == [1577836800123, None]
    numbers = pyarrow.record_batch({"value": ["x"], "timestamp": pyarrow.array([5], pyarrow.int64())})
    (piece,) = SinkColumns("t", "", "").pieces(numbers)
    assert piece.timestamps_ms.to_pylist() == [5]


def test_formats_are_applied() -> None:
    batch = pyarrow.record_batch(
        {"key": pyarrow.array([1, None]), "value": pyarrow.array([{"a": 1}, None]), "topic": ["b", "a"]}
    )
    pieces = list(SinkColumns(None, "string", "json").pieces(batch))
    assert [(piece.topic, rows(piece)) for piece in pieces] == [
        ("b", [(b'{"a":1}', b"1", None, None)]),
        ("a", [(None, None, None, None)]),
    ]


# What Arrow has for strings and bytes, and the sink may be given.
BYTES = (
    pyarrow.string(),
    pyarrow.binary(),
    pyarrow.large_string(),
    pyarrow.large_binary(),
    pyarrow.string_view(),
    pyarrow.binary_view(),
    pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    pyarrow.dictionary(pyarrow.int8(), pyarrow.large_binary()),
)
TOPICS = (pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int8(), pyarrow.string()))
OTHERS = tuple(name for name in ALL if name != "value")
HEADER_COLUMNS = (
    pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])),
    pyarrow.list_(pyarrow.struct([("key", pyarrow.large_string()), ("value", pyarrow.large_binary())])),
)


def row_of(random: Random, number: int) -> dict[str, Any]:
    """A row that differs from others by its value, unless it has none."""
    return {
        "value": random.choice((str(number), str(number), "", None)),
        "key": random.choice((f"key {number}", "", None)),
        "topic": random.choice(("a", "b", "c", "")),
        "partition": random.choice((-(2**31), -1, 0, 1, 2**31 - 1, None)),
        "timestamp": random.choice((number, 2**40, None)),
        "headers": random.choice(([{"key": "h", "value": b"v"}, {"key": "", "value": None}], [], None)),
    }


def column(data: st.DataObject, values: Iterable[Any], kinds: Iterable[pyarrow.DataType]) -> pyarrow.Array:
    kind = data.draw(st.sampled_from(tuple(kinds)))
    given_values = list(values)
    if pyarrow.types.is_dictionary(kind):
        return pyarrow.array(given_values, kind.value_type).dictionary_encode().cast(kind)
    return pyarrow.array(given_values, kind)


def encoded(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def rows(piece: Piece) -> list[tuple[Any, ...]]:
    columns = (piece.values, piece.keys, piece.timestamps_ms, piece.headers)
    nothing = [None] * len(piece.values)
    lists = [nothing if each is None else [encoded(value) for value in each.to_pylist()] for each in columns]
    return list(zip(*lists, strict=True))


def test_rows_of_a_topic_and_partition_come_together_in_their_order() -> None:
    batch = pyarrow.record_batch(
        {
            "value": ["1", "2", "3", "4", "5", "6"],
            "topic": ["b", "a", "b", "b", "a", "b"],
            "partition": pyarrow.array([1, None, 0, 1, None, None], pyarrow.int32()),
        }
    )
    pieces = SinkColumns(None, "", "").pieces(batch)
    assert [(piece.topic, piece.partition, piece.values.to_pylist()) for piece in pieces] == [
        ("b", 1, ["1", "4"]),
        ("a", None, ["2", "5"]),
        ("b", 0, ["3"]),
        ("b", None, ["6"]),
    ]


def test_rows_that_lie_together_are_not_copied() -> None:
    batch = pyarrow.record_batch({"value": ["1", "2", "3"], "topic": ["b", "a", "a"]})
    pieces = list(SinkColumns(None, "", "").pieces(batch))
    assert [(piece.topic, piece.values.to_pylist()) for piece in pieces] == [("b", ["1"]), ("a", ["2", "3"])]
    assert {piece.values.buffers()[2].address for piece in pieces} == {batch.column("value").buffers()[2].address}


@given(st.integers(0), st.integers(0, 60), st.sets(st.sampled_from(OTHERS)), st.data())
@settings(max_examples=120, deadline=None)
def test_pieces_are_exactly_the_rows_in_order(seed: int, count: int, names: set[str], data: st.DataObject) -> None:
    random = Random(seed)
    given_rows = [row_of(random, number) for number in range(count)]
    kinds: dict[str, tuple[pyarrow.DataType, ...]] = {
        "value": BYTES,
        "key": BYTES,
        "topic": TOPICS,
        "partition": (pyarrow.int32(), pyarrow.dictionary(pyarrow.int8(), pyarrow.int32())),
        "timestamp": (pyarrow.int64(), pyarrow.timestamp("ms", "UTC")),
        "headers": HEADER_COLUMNS,
    }
    present = {"value", *names}
    table = pyarrow.table({name: column(data, (row[name] for row in given_rows), kinds[name]) for name in present})
    start = data.draw(st.integers(0, count // 2))
    constant = None if "topic" in present else "constant"

    expected: dict[tuple[str, int | None], list[tuple[Any, ...]]] = defaultdict(list)
    for row in given_rows[start:]:
        had = {name: row[name] if name in present else None for name in ALL}
        place = (constant or had["topic"], had["partition"])
        expected[place].append((encoded(had["value"]), encoded(had["key"]), had["timestamp"], had["headers"]))

    found: dict[tuple[str, int | None], list[tuple[Any, ...]]] = defaultdict(list)
    for batch in table.slice(start).to_batches(max_chunksize=data.draw(st.sampled_from((7, 100)))):
        pieces = list(SinkColumns(constant, "", "").pieces(batch))
        places = [(piece.topic, piece.partition) for piece in pieces]
        assert len(set(places)) == len(places), "one piece for each topic and partition"
        for place, piece in zip(places, pieces, strict=True):
            assert is_binary(piece.values)
            assert piece.keys is None or is_binary(piece.keys)
            found[place] += rows(piece)
    assert found == expected
