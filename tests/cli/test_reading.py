"""Reading files of every format in pieces; bad lines are reported with their number and unchanged content."""

from __future__ import annotations

import io
import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.cli.columns import Columns, Outgoing
from aioproducer.cli.exits import CommandError
from aioproducer.cli.reading import BadLine, LineReader, Reading, guess_format, rows
from aioproducer.cli.writing import DEFAULT_FIELDS, JsonLinesWriter
from aioproducer.consumer import ConsumerRecord


class Pieces(io.RawIOBase):
    """A file that returns given pieces at each read, as a pipe does."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def read(self, size: int = -1, /) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def seekable(self) -> bool:
        return False


def read(data, format_="lines", columns=None, *, longest=1000, **options):
    file = Pieces(*data) if isinstance(data, tuple) else data if hasattr(data, "read") else io.BytesIO(data)
    return list(rows(file, Reading(format_, columns or Columns(), longest, **options), lambda _: None))


def values(found):
    return [each.value for each in found if isinstance(each, Outgoing)]


def bad(found):
    return [each for each in found if isinstance(each, BadLine) and each.reason]


def rejects(found):
    return b"".join(each.raw for each in found if isinstance(each, BadLine))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.csv", "csv"),
        ("a.TSV", "csv"),
        ("a.b.ndjson", "jsonl"),
        ("x/y.parquet", "parquet"),
        ("a.feather", "arrow"),
        ("-", "lines"),
        ("access.log", "lines"),
    ],
)
def test_the_format_is_derived_from_the_name(name, expected):
    assert guess_format(name) == expected


def test_lines_may_end_with_either_line_end_or_none():
    assert values(read(b"a\r\nb\n\nc")) == [b"a", b"b", b"", b"c"]
    assert values(read(b"")) == []


def test_the_key_of_a_line_is_before_the_separator():
    found = read(b"k\tv\tw\nnone\n", key_separator=b"\t")
    assert found == [
        Outgoing(b"v\tw", b"k", (), None),
        BadLine(2, "there is no '\\t' between key and value", b"none\n"),
    ]


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=12)), st.integers(min_value=1, max_value=8))
def test_lines_do_not_depend_on_the_pieces_of_the_file(pieces, longest):
    """All bytes are returned in order, and the limit of a line does not depend on the pieces."""

    def lines(*given_pieces):
        return list(LineReader(Pieces(*given_pieces), longest, lambda _: None))

    def shown(found):
        joined: list[tuple[bool, bytes]] = []
        for each in found:
            if isinstance(each, bytes):
                joined.append((False, each))
            elif each.reason:
                joined.append((True, each.raw))
            else:
                joined[-1] = (True, joined[-1][1] + each.raw)
        return joined

    pieces = [piece for piece in pieces if piece]
    whole = b"".join(pieces)
    assert shown(lines(*pieces)) == shown(lines(whole))
    assert b"".join(raw for _, raw in shown(lines(*pieces))) == whole
    assert all(is_bad == (len(raw.removesuffix(b"\n")) > longest) for is_bad, raw in shown(lines(whole)))


def test_a_line_that_is_too_long_is_reported_once_and_does_not_fill_memory():
    found = read((b"ok\n", b"x" * 30, b"x" * 30, b"x\nnext\n"), longest=10)
    assert values(found) == [b"ok", b"next"]
    assert [(each.number, each.reason) for each in bad(found)] == [(2, "it is longer than 10 bytes")]
    assert rejects(found) == b"x" * 61 + b"\n"


def test_each_read_is_announced_with_the_bytes_so_far():
    announced = []
    list(rows(Pieces(b"a\n", b"bc\n"), Reading("lines", Columns(), 10), announced.append))
    assert announced == [0, 2, 5]


def test_json_lines_keep_the_line_unchanged():
    found = read(b'{"id": 1,  "x": null}\n\n  {"id":"b"}  \n', "jsonl", Columns(key="id"))
    assert found == [
        Outgoing(b'{"id": 1,  "x": null}', b"1", (), None),
        Outgoing(b'{"id":"b"}', b"b", (), None),
    ]
    assert values(read(b"[1]\n7\n", "jsonl")) == [b"[1]", b"7"]


def test_json_lines_may_begin_with_a_byte_order_mark():
    """The first line was once rejected because of it."""
    assert read(b'\xef\xbb\xbf{"id":1}\n{"id":2}\n', "jsonl", Columns(key="id")) == [
        Outgoing(b'{"id":1}', b"1", (), None),
        Outgoing(b'{"id":2}', b"2", (), None),
    ]


def test_json_lines_with_bytes_in_base64_are_read_back():
    """Values were once missing, and header values changed."""
    records = [
        ConsumerRecord("t", 0, 0, 5, b"k", b"\xff\xfe", (("h", b"\xff\0"), ("h", None))),
        ConsumerRecord("t", 0, 1, 6, b"\xff", None, ()),
    ]
    file = io.BytesIO()
    JsonLinesWriter(file, DEFAULT_FIELDS).write(records)
    columns = Columns(key="key", value="value", headers="headers", timestamp="timestamp")
    assert read(file.getvalue(), "jsonl", columns) == [
        Outgoing(record.value, record.key, record.headers, record.timestamp_ms) for record in records
    ]


def test_bad_json_lines_have_a_reason():
    data = b'{"id":1}\nno\n[1]\n{"id":NaN}\n"\xff"\n{"x":1}\n' + b"[" * 900_000 + b"\n"
    found = bad(read(data, "jsonl", Columns(key="id"), longest=1_000_000))
    assert [each.number for each in found] == [2, 3, 4, 5, 6, 7]
    assert [each.reason.split(" (")[0] for each in found] == [
        "it is not JSON",
        "it is no JSON object, and has no fields",
        "it is not JSON",
        "it is not UTF-8",
        "there is no 'id'",
        "it is not JSON",
    ]
    assert found[0].raw == b"no\n"


def test_a_field_missing_in_the_first_object_is_an_error_of_the_command():
    with pytest.raises(
        CommandError, match=r"line 2 has no field 'carier' \(did you mean 'carrier'\?\); it has: carrier, x"
    ):
        read(b'\n{"carrier":1,"x":2}\n', "jsonl", Columns(key="carier"))


def test_csv_rows_are_objects_of_text():
    found = read(b'\xef\xbb\xbfid,text\r\n1,"a ""b""\nc"\n\n2,\xc3\xa4\n', "csv", Columns(key="id"))
    assert [(each.key, json.loads(each.value)) for each in found] == [
        (b"1", {"id": "1", "text": 'a "b"\nc'}),
        (b"2", {"id": "2", "text": "ä"}),
    ]
    assert values(read(b"a\tb\n1\t2\n", "csv", Columns(value="b"), delimiter="\t")) == [b"2"]


def test_bad_csv_rows_are_reported_with_all_their_lines():
    data = b'a,b\n1,2\n1\n"x\ny",2,3\n"q"z,1\n\xff,1\n5,6\n"open,7\n8'
    found = read(data, "csv", Columns(value="a"))
    assert values(found) == [b"1", b"5"]
    # With the header row, so that the rejects can be corrected and read again.
    assert rejects(found) == b'a,b\n1\n"x\ny",2,3\n"q"z,1\n\xff,1\n"open,7\n8'
    assert [(each.number, each.raw) for each in bad(found)] == [
        (3, b"1\n"),
        (4, b'"x\ny",2,3\n'),
        (6, b'"q"z,1\n'),
        (7, b"\xff,1\n"),
        (9, b'"open,7\n8'),
    ]
    assert [each.reason.split(" (")[0] for each in bad(found)] == [
        "it has 1 column, not 2",
        "it has 3 columns, not 2",
        "it is not CSV",
        "it is not UTF-8",
        "it is not CSV",
    ]


def test_a_missing_quote_does_not_consume_the_rest_of_a_csv_file():
    data = b'a\n"open\n' + b"x\n" * 20 + b"\n1\n"
    found = read(data, "csv", Columns(value="a"), longest=20)
    assert bad(found)[0].reason == "it is not CSV (it is longer than 20 bytes: a quote may be missing)"
    assert values(found)[-1] == b"1"
    # Also if single lines are too long.
    found = read(b"a\n1\n" + b"y" * 50 + b"\n2\n", "csv", Columns(value="a"), longest=20)
    assert (values(found), [(each.number, each.raw) for each in bad(found)]) == (
        [b"1", b"2"],
        [(3, b"y" * 50 + b"\n")],
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a,b,a\n", "names the column 'a' twice"),
        (b"carrier,x\n", r"the first line has no column 'carier' \(did you mean 'carrier'\?\); it has: carrier, x"),
    ],
)
def test_an_invalid_first_line_of_csv_is_an_error(data, text):
    with pytest.raises(CommandError, match=text):
        read(data, "csv", Columns(key="carier"))


TABLE = pyarrow.table({"id": [1, 2], "body": [b"x", None], "h": [[{"key": "a", "value": b"1"}], None]})


def _parquet() -> io.BytesIO:
    file = io.BytesIO()
    pyarrow.parquet.write_table(TABLE, file)
    file.seek(0)
    return file


def _arrow(new) -> io.BytesIO:
    file = io.BytesIO()
    with new(file, TABLE.schema) as writer:
        writer.write_table(TABLE)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("format_", "file"),
    [
        ("parquet", _parquet),
        ("arrow", lambda: _arrow(pyarrow.ipc.new_file)),
        ("arrow", lambda: _arrow(pyarrow.ipc.new_stream)),
    ],
    ids=["parquet", "arrow file", "arrow stream"],
)
def test_arrow_columns_become_records(format_, file):
    assert read(file(), format_, Columns("id", "body", "h")) == [
        Outgoing(b"x", b"1", (("a", b"1"),), None),
        Outgoing(None, b"2", (), None),
    ]
    with pytest.raises(CommandError, match="the file has no column 'bod'"):
        read(file(), format_, Columns(value="bod"))


def test_arrow_rows_that_are_no_record_are_reported():
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"id": ["1", "x"], "b": [b"\xff", b"ok"]}), file)
    (first, second) = read(file, "parquet")
    assert first.reason.startswith("it has bytes that are not UTF-8")
    assert (first.number, second.value) == (1, b'{"id":"x","b":"ok"}')
    assert bad(read(file, "parquet", Columns(value="b", timestamp="id")))[0].reason == "'id' is not a timestamp: 'x'"


def test_an_arrow_stream_is_read_from_a_pipe_and_parquet_is_not():
    data = _arrow(pyarrow.ipc.new_stream).getvalue()
    with pytest.raises(CommandError, match="Parquet must be read from its end: pass a file, not a pipe"):
        read((data,), "parquet")


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_a_file_of_another_format_is_an_error(format_):
    with pytest.raises(CommandError, match=f"it cannot be read as {format_}: "):
        read(b"a,b\n1,2\n" * 20, format_)


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_without_pyarrow_the_extra_is_named(format_, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(CommandError, match=rf"--format {format_} needs pyarrow.*pip install 'aioproducer\[arrow\]'"):
        read(b"", format_)
