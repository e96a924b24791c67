"""Columns as text. What is expected here is what Spark 4.3 wrote; test_formats_like_spark.py asks Spark itself."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from aioproducer.spark.format_names import FORMATS
from aioproducer.spark.formats import SqlType, converted, obstacle

BERLIN = pyarrow.timestamp("us", "Europe/Berlin")
NEW_YEAR = datetime(2020, 1, 1, tzinfo=UTC)


def texts(format: str, values: Sequence[Any], kind: pyarrow.DataType) -> list[Any]:
    return converted(format, pyarrow.array(values, kind)).to_pylist()


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pyarrow.bool_(), True, "true"),
        (pyarrow.int8(), -1, "-1"),
        (pyarrow.int64(), 2**63 - 1, "9223372036854775807"),
        (pyarrow.float64(), 1.0, "1.0"),
        (pyarrow.float64(), -0.0, "-0.0"),
        (pyarrow.float64(), 0.001, "0.001"),
        (pyarrow.float64(), 0.0001, "1.0E-4"),
        (pyarrow.float64(), 9999999.0, "9999999.0"),
        (pyarrow.float64(), 1e7, "1.0E7"),
        (pyarrow.float64(), -12345678.9, "-1.23456789E7"),
        (pyarrow.float64(), 1e22, "1.0E22"),
        (pyarrow.float64(), 5e-324, "4.9E-324"),
        (pyarrow.float64(), 1.7976931348623157e308, "1.7976931348623157E308"),
        (pyarrow.float64(), math.nan, "NaN"),
        (pyarrow.float64(), math.inf, "Infinity"),
        (pyarrow.float64(), -math.inf, "-Infinity"),
        (pyarrow.float32(), 0.1, "0.1"),
        (pyarrow.float32(), 16777216, "1.6777216E7"),
        (pyarrow.float32(), 1.4e-45, "1.4E-45"),
        (pyarrow.float32(), 3.4028235e38, "3.4028235E38"),
        (pyarrow.decimal128(10, 2), Decimal("1.10"), "1.10"),
        (pyarrow.decimal128(38, 18), Decimal(0), "0.000000000000000000"),
        (pyarrow.decimal128(38, 18), Decimal("1E-10"), "0.000000000100000000"),
        (pyarrow.decimal128(10, 7), Decimal("-1E-7"), "-0.0000001"),
        (pyarrow.date32(), date(1, 1, 1), "0001-01-01"),
        (pyarrow.date32(), 4_000_000, "+12921-08-18"),
        (pyarrow.date32(), -800_000, "-0221-09-04"),
        (BERLIN, NEW_YEAR.replace(microsecond=123456), "2020-01-01 01:00:00.123456"),
        (BERLIN, NEW_YEAR.replace(microsecond=500000), "2020-01-01 01:00:00.5"),
        (BERLIN, NEW_YEAR, "2020-01-01 01:00:00"),
        (pyarrow.timestamp("us"), datetime(2020, 1, 1, 0, 0, 10), "2020-01-01 00:00:10"),
        (pyarrow.timestamp("us"), 327403382400000000, "+12345-01-01 00:00:00"),
        (pyarrow.time64("ns"), time(12, 13, 14, 500000), "12:13:14.5"),
        (pyarrow.time64("ns"), time(12, 13, 10), "12:13:10"),
        (pyarrow.string(), "é", "é"),
        (pyarrow.binary(), b"\xff\x00", b"\xff\x00"),
    ],
)
def test_a_string_is_what_spark_casts_to(kind: pyarrow.DataType, value: Any, expected: Any) -> None:
    assert texts("string", [None, value, None], kind) == [None, expected, None]


STRUCT = pyarrow.struct([("a", pyarrow.int32()), ("b", pyarrow.string()), ("c", pyarrow.int32())])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pyarrow.bool_(), False, "false"),
        (pyarrow.int32(), 7, "7"),
        (pyarrow.float64(), 1e7, "1.0E7"),
        (pyarrow.float64(), math.nan, '"NaN"'),
        (pyarrow.float32(), -math.inf, '"-Infinity"'),
        (pyarrow.decimal128(38, 18), Decimal("1E-10"), "1.00000000E-10"),
        (pyarrow.decimal128(38, 18), Decimal(0), "0E-18"),
        (pyarrow.decimal128(10, 2), Decimal("1.10"), "1.10"),
        (pyarrow.date32(), date(2020, 2, 2), '"2020-02-02"'),
        (BERLIN, NEW_YEAR.replace(microsecond=123456), '"2020-01-01T01:00:00.123+01:00"'),
        (BERLIN, NEW_YEAR.replace(month=7), '"2020-07-01T02:00:00.000+02:00"'),
        (BERLIN, NEW_YEAR.replace(year=1890), '"1890-01-01T00:53:28.000+00:53:28"'),
        (pyarrow.timestamp("us", "UTC"), NEW_YEAR, '"2020-01-01T00:00:00.000Z"'),
        (pyarrow.timestamp("us", "+01:30"), NEW_YEAR, '"2020-01-01T01:30:00.000+01:30"'),
        (pyarrow.timestamp("us", "GMT-8"), NEW_YEAR, '"2019-12-31T16:00:00.000-08:00"'),
        (pyarrow.timestamp("us"), -1, '"1969-12-31T23:59:59.999"'),
        (pyarrow.time64("ns"), time(12, 13, 14), '"12:13:14"'),
        (pyarrow.binary(), b"abc", '"YWJj"'),
        (pyarrow.string(), 'a"b\\c/\x01\x1f\x7f\b\t\n\f\r é \U0001f600', None),
        (pyarrow.large_string(), "plain", '"plain"'),
        (pyarrow.list_(pyarrow.int32()), [1, None], "[1,null]"),
        (pyarrow.large_list(pyarrow.int32()), [1, None], "[1,null]"),
        (pyarrow.list_(pyarrow.string()), [], "[]"),
        (pyarrow.list_(pyarrow.list_(pyarrow.bool_())), [[True], None, []], "[[true],null,[]]"),
        (pyarrow.map_(pyarrow.string(), pyarrow.float64()), [("x", 1.5), ('"', None)], '{"x":1.5,"\\"":null}'),
        (pyarrow.map_(pyarrow.date32(), pyarrow.int32()), [(date(2020, 1, 1), 2)], '{"18262":2}'),
        (pyarrow.map_(BERLIN, pyarrow.int32()), [(NEW_YEAR, 2)], '{"1577836800000000":2}'),
        (pyarrow.map_(pyarrow.float64(), pyarrow.int32()), [(1e7, 2)], '{"1.0E7":2}'),
        (pyarrow.map_(pyarrow.decimal128(5, 2), STRUCT), [(Decimal("1.10"), {})], '{"1.10":{}}'),
        (STRUCT, {"a": 1, "b": "x", "c": 2}, '{"a":1,"b":"x","c":2}'),
        (STRUCT, {"a": None, "b": "{,", "c": 2}, '{"b":"{,","c":2}'),
        (STRUCT, {"a": 1, "b": None, "c": None}, '{"a":1}'),
        (STRUCT, {"a": None, "b": None, "c": None}, "{}"),
        (pyarrow.struct([]), {}, "{}"),
        (pyarrow.struct([('a"', STRUCT)]), {'a"': {"c": 3}}, '{"a\\"":{"c":3}}'),
        (pyarrow.struct([("a", pyarrow.null()), ("b", pyarrow.int32())]), {"b": 1}, '{"b":1}'),
    ],
)
def test_json_is_what_to_json_writes(kind: pyarrow.DataType, value: Any, expected: str | None) -> None:
    found = texts("json", [value, None, value], kind)
    if expected is None:
        expected = '"a\\"b\\\\c/\\u0001\\u001F\x7f\\b\\t\\n\\f\\r é \U0001f600"'
        assert json.loads(expected) == value
    assert found == [expected, None, expected]


def test_json_of_nothing_but_nulls_and_of_no_rows() -> None:
    assert texts("json", [None, None], pyarrow.null()) == [None, None]
    assert texts("string", [None], pyarrow.null()) == [None]
    for kind in (STRUCT, pyarrow.list_(STRUCT), pyarrow.map_(pyarrow.string(), STRUCT), pyarrow.date32(), BERLIN):
        assert texts("json", [], kind) == []
        assert texts("json", [None], kind) == [None]


def test_columns_of_a_dictionary_are_read() -> None:
    column = pyarrow.array(["a", None, "b", "a"]).dictionary_encode()
    assert converted("json", column).to_pylist() == ['"a"', None, '"b"', '"a"']
    assert converted("string", column).to_pylist() == ["a", None, "b", "a"]


def test_views_are_read() -> None:
    assert converted("json", pyarrow.array(["a"], pyarrow.string_view())).to_pylist() == ['"a"']
    assert converted("json", pyarrow.array([b"a"], pyarrow.binary_view())).to_pylist() == ['"YQ=="']


def test_strings_that_are_no_utf_8_are_as_java_reads_them() -> None:
    column = pyarrow.StringArray.from_buffers(
        2, pyarrow.py_buffer(b"\0\0\0\0\2\0\0\0\3\0\0\0"), pyarrow.py_buffer(b"a\xffb")
    )
    assert converted("json", column).to_pylist() == ['"a\N{REPLACEMENT CHARACTER}"', '"b"']


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", [pyarrow.date32(), pyarrow.timestamp("us")])
def test_a_date_that_cannot_be_written_is_an_error_not_a_text(format: str, kind: pyarrow.DataType) -> None:
    number = 80_000_000 if kind == pyarrow.date32() else 2**62
    with pytest.raises(ValueError, match="beyond the year 32767 cannot be written"):
        texts(format, [0, number], kind)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Africa/Casablanca", "Australia/Lord_Howe"])
def test_summer_time_after_2037_was_an_hour_off(zone: str) -> None:
    """Arrow knows the changes of the clock that a zone's file lists, and none that its rule tells."""
    times = [
        datetime(year, month, 1, 12, tzinfo=UTC) for year in (2036, 2037, 2038, 2086, 2500, 9998) for month in (1, 7)
    ]
    expected = [str(time.astimezone(ZoneInfo(zone)).replace(tzinfo=None)) for time in times]
    assert texts("string", [*times, None], pyarrow.timestamp("us", zone)) == [*expected, None]


def test_rules_hold_beyond_the_years_that_python_knows() -> None:
    july = round(datetime(9945, 7, 1, 10, tzinfo=UTC).timestamp()) * 1_000_000
    four_centuries = 146_097 * 86_400_000_000
    assert texts("string", [july, july + four_centuries], BERLIN) == ["9945-07-01 12:00:00", "+10345-07-01 12:00:00"]


def test_an_unknown_time_zone_says_which_and_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"time zone 'PST' of spark\.sql\.session\.timeZone is unknown.*tzdata"):
        texts("json", [0], pyarrow.timestamp("us", "PST"))


def sql_type(data_type: types.DataType) -> SqlType:
    return SqlType.of(data_type)


ATOMS = [
    types.BooleanType(),
    types.ByteType(),
    types.ShortType(),
    types.IntegerType(),
    types.LongType(),
    types.FloatType(),
    types.DoubleType(),
    types.DecimalType(10, 2),
    types.DateType(),
    types.TimestampType(),
    types.TimestampNTZType(),
    types.StringType(),
    types.StringType("UTF8_LCASE"),
    types.CharType(3),
    types.VarcharType(3),
    types.BinaryType(),
    types.NullType(),
]


@pytest.mark.parametrize("atom", ATOMS, ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_simple_types_go_in_every_format(format: str, atom: types.DataType) -> None:
    assert obstacle(format, sql_type(atom)) == ""


NESTED = types.StructType().add("a", types.ArrayType(types.MapType(types.StringType(), types.DateType())))


def test_nested_types_go_in_json_alone() -> None:
    assert obstacle("json", sql_type(NESTED)) == ""
    assert obstacle("string", sql_type(NESTED)) == "string is not for struct<a:array<map<string,date>>>"


@pytest.mark.parametrize(
    ("data_type", "text"),
    [
        (types.DayTimeIntervalType(), "json is not for interval day to second"),
        (types.VariantType(), "json is not for variant"),
        (types.ArrayType(types.VariantType()), "json is not for variant"),
        (types.MapType(types.BinaryType(), types.LongType()), "json has no way for keys of the type binary"),
        (types.StructType().add("a", types.YearMonthIntervalType()), "json is not for interval year to month"),
    ],
)
def test_what_cannot_be_written_is_known_beforehand(data_type: types.DataType, text: str) -> None:
    assert obstacle("json", sql_type(data_type)) == text


CHARACTERS = 'a{,}"\\\n:[]\x01é\U0001f600 '
PLAIN = (pyarrow.int64(), pyarrow.float64(), pyarrow.bool_(), pyarrow.string(), pyarrow.large_string(), pyarrow.null())


def text_of(random: Random) -> str:
    return "".join(random.choices(CHARACTERS, k=random.randrange(5)))


def kind_of(random: Random, depth: int) -> pyarrow.DataType:
    match random.choice(("plain", "list", "map", "struct")) if depth else "plain":
        case "list":
            return pyarrow.list_(kind_of(random, depth - 1))
        case "map":
            return pyarrow.map_(pyarrow.string(), kind_of(random, depth - 1))
        case "struct":
            names = {text_of(random) for _ in range(random.randrange(5))}
            return pyarrow.struct([(name, kind_of(random, depth - 1)) for name in sorted(names)])
    return random.choice(PLAIN)


def value_of(random: Random, kind: pyarrow.DataType) -> Any:
    if kind == pyarrow.null() or random.random() < 0.2:
        return None
    if pyarrow.types.is_list(kind):
        return [value_of(random, kind.value_type) for _ in range(random.randrange(4))]
    if pyarrow.types.is_map(kind):
        keys = {text_of(random) for _ in range(random.randrange(4))}
        return [(key, value_of(random, kind.item_type)) for key in sorted(keys)]
    if pyarrow.types.is_struct(kind):
        return {field.name: value_of(random, field.type) for field in kind}
    if kind == pyarrow.bool_():
        return random.random() < 0.5
    if kind == pyarrow.int64():
        return random.randrange(-(2**63), 2**63)
    if kind == pyarrow.float64():
        return random.choice(
            (random.uniform(-1, 1) * 10.0 ** random.randrange(-8, 12), math.nan, math.inf, -math.inf, 0.0)
        )
    return text_of(random)


def read_back(value: Any, kind: pyarrow.DataType) -> Any:
    """What JSON keeps of a value, as ``json.loads`` gives it."""
    if value is None:
        return None
    if pyarrow.types.is_struct(kind):
        return {f.name: read_back(value[f.name], f.type) for f in kind if value[f.name] is not None}
    if pyarrow.types.is_map(kind):
        return {key: read_back(each, kind.item_type) for key, each in value}
    if pyarrow.types.is_list(kind):
        return [read_back(each, kind.value_type) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


@given(st.integers(0), st.integers(0, 2), st.integers(0, 12))
@settings(max_examples=200, deadline=None)
def test_json_says_what_the_rows_are(seed: int, depth: int, count: int) -> None:
    random = Random(seed)
    kind = kind_of(random, depth)
    rows = [value_of(random, kind) for _ in range(count)]
    start = random.randrange(count // 2 + 1)
    found = converted("json", pyarrow.array(rows, kind).slice(start)).to_pylist()
    assert len(found) == len(rows) - start
    for text, row in zip(found, rows[start:], strict=True):
        if row is None:
            assert text is None
            continue
        assert json.loads(text) == read_back(row, kind)


@given(st.sampled_from((32, 64)), st.data())
@settings(max_examples=100, deadline=None)
def test_numbers_as_text_lose_nothing(width: int, data: st.DataObject) -> None:
    kind = pyarrow.float32() if width == 32 else pyarrow.float64()
    values = data.draw(st.lists(st.none() | st.floats(width=width), max_size=20))
    column = pyarrow.array(values, kind)
    found = converted("string", column).to_pylist()
    assert [text is None for text in found] == [value is None for value in values]
    numbers = [(text, value) for text, value in zip(found, values, strict=True) if value is not None]
    # Read as what they were: a number of 32 bits has the shortest text among those.
    back = pyarrow.array([float(text) for text, _ in numbers], kind).to_pylist()
    for (text, value), again in zip(numbers, back, strict=True):
        assert again == value or (math.isnan(again) and math.isnan(value))
        assert ("E" in text) == (math.isfinite(value) and value != 0 and not 1e-3 <= abs(value) < 1e7)
