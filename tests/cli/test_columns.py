"""Converting rows to records: keys, values, headers, timestamps, and rejected cells."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.cli.columns import BadRowError, Columns, Outgoing, as_bytes, as_headers, as_json, as_timestamp


def test_columns_are_chosen_by_name():
    columns = Columns("id", "body", "meta", "at", (("source", b"file"),))
    row = {"id": 7, "body": "text", "meta": {"a": "1", "b": None}, "at": 1700000000000, "rest": True}
    assert columns.record(row) == Outgoing(
        b"text", b"7", (("source", b"file"), ("a", b"1"), ("b", None)), 1700000000000
    )


def test_the_whole_row_is_the_value_if_no_column_is_chosen():
    assert Columns().record({"a": "ä", "b": None}).value == '{"a":"ä","b":null}'.encode()
    assert Columns("a").record({"a": 1}, b'{ "a": 1 }') == Outgoing(b'{ "a": 1 }', b"1", (), None)


def test_a_row_without_the_column_is_refused_and_null_is_null():
    with pytest.raises(BadRowError, match=r"^there is no 'id'$"):
        Columns("id").record({"ix": 1})
    assert Columns("id", "v").record({"id": None, "v": None}) == Outgoing(None, None, (), None)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (None, None),
        ("ü", "ü".encode()),
        (b"\xff", b"\xff"),
        (True, b"true"),
        (1.5, b"1.5"),
        ({"a": [1]}, b'{"a":[1]}'),
        (Decimal("1.50"), b"1.50"),
        (date(2026, 1, 31), b"2026-01-31"),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), b"2026-01-31T12:00:00+00:00"),
    ],
)
def test_cells_are_converted_to_bytes(cell, expected):
    assert as_bytes(cell) == expected


def test_json_has_times_decimals_and_text_bytes_and_null_for_nan():
    row = {"t": datetime(2026, 1, 31), "d": Decimal("0.1"), "b": b"x", "n": [float("nan"), {"i": float("inf")}, 1.0]}
    assert json.loads(as_json(row)) == {"t": "2026-01-31T00:00:00", "d": "0.1", "b": "x", "n": [None, {"i": None}, 1.0]}


def test_bytes_that_are_not_utf_8_are_refused():
    with pytest.raises(BadRowError, match="bytes that are not UTF-8: choose columns"):
        as_json({"b": b"\xff"})
    with pytest.raises(BadRowError, match="not UTF-8"):
        as_bytes("\udcff")


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (None, []),
        ("", []),
        ('{"a": "1"}', [("a", b"1")]),
        ([["a", "1"], ["a", None]], [("a", b"1"), ("a", None)]),
        ([{"key": "a", "value": b"1"}, {"key": "b"}], [("a", b"1"), ("b", None)]),
        ([["a", {"base64": "/wA="}]], [("a", b"\xff\0")]),
        ({"a": {"base64": ""}, "b": {"base64": "/wA=", "x": 1}}, [("a", b""), ("b", b'{"base64":"/wA=","x":1}')]),
    ],
)
def test_headers_may_have_several_forms(cell, expected):
    assert as_headers(cell, "h") == expected


def test_bytes_that_are_not_utf_8_are_read_from_the_field_in_base64():
    columns = Columns(key="k", value="v", headers="h")
    row = {"k_base64": "//4=", "v_base64": "/w==", "h": []}
    assert columns.record(row) == (b"\xff", b"\xff\xfe", (), None)
    assert columns.record({**row, "v": "text"}).value == b"text"
    with pytest.raises(BadRowError, match="there is no 'h'"):
        columns.record({"k": "", "v": "", "h_base64": ""})


@pytest.mark.parametrize("cell", ["=", "%%%%", 7, None])
def test_invalid_base64_is_refused(cell):
    with pytest.raises(BadRowError, match="'v_base64' is not base64"):
        Columns(value="v").record({"v_base64": cell})
    with pytest.raises(BadRowError, match="'base64' is not base64"):
        as_headers({"a": {"base64": cell}}, "h")


@pytest.mark.parametrize("cell", ["nope", 7, [["a"]], [3], b"x"])
def test_invalid_headers_are_refused(cell):
    with pytest.raises(BadRowError, match="'h'"):
        as_headers(cell, "h")


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (None, None),
        ("", None),
        (17, 17),
        (17.9, 17),
        (" 17 ", 17),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-02", 86_400_000),
        (date(1970, 1, 2), 86_400_000),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
    ],
)
def test_timestamps_may_have_several_forms(cell, expected):
    assert as_timestamp(cell, "t") == expected


@pytest.mark.parametrize("cell", [True, -1, 2**63, "soon", float("nan"), [1], "1969-12-31T23:59:59Z"])
def test_an_invalid_timestamp_is_refused(cell):
    with pytest.raises(BadRowError, match="'t' is not a timestamp"):
        as_timestamp(cell, "t")


@settings(max_examples=100)
@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())))
def test_the_json_of_a_row_is_read_back(row):
    try:
        assert json.loads(as_json(row)) == row
    except BadRowError:
        assert any(0xD800 <= ord(each) < 0xE000 for each in str(row))
