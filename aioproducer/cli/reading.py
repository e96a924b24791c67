"""Reading rows of lines, CSV, JSON lines, Parquet and Arrow piece by piece, from files and streams of any length.

All of this blocks, and runs in its own thread (``feeding``).
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from aioproducer._common.diagnosis import nearest
from aioproducer._common.texts import counted
from aioproducer.cli.columns import BadRowError, Columns, Outgoing
from aioproducer.cli.exits import CommandError, missing

if TYPE_CHECKING:
    import pyarrow

FORMATS = ("lines", "csv", "jsonl", "parquet", "arrow")
READ_BYTES = 256 * 1024
ARROW_ROWS = 1000
ARROW_BYTES = 1 << 20

_FORMAT_OF_SUFFIX = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}


class BadLine(NamedTuple):
    """A line or row that is not a record.

    ``raw`` is written to the rejects. A line that is too long comes in pieces, of which only the first has a
    ``reason``.
    """

    number: int
    reason: str
    raw: bytes


Row: TypeAlias = Outgoing | BadLine


class RawFile(Protocol):
    """A file opened without a buffer."""

    def read(self, size: int, /) -> bytes | None: ...

    def fileno(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """Options of reading. ``longest_line`` is in bytes; ``key_separator`` separates key and value in lines."""

    format: str
    columns: Columns
    longest_line: int
    delimiter: str = ","
    key_separator: bytes | None = None


def guess_format(name: str) -> str:
    """Return the format of a file by its extension; lines if that is unknown."""
    return _FORMAT_OF_SUFFIX.get(PurePath(name).suffix.lower(), "lines")


def rows(file: RawFile, reading: Reading, before_read: Callable[[int], None]) -> Iterator[Row]:
    """Yield the rows of a file; ``before_read(bytes so far)`` is called before each read that may block.

    Raises:
        CommandError: the file is not of its format, or lacks a column.
        OSError: it cannot be read.
    """
    if reading.format in ("parquet", "arrow"):
        yield from _arrow_rows(file, reading, before_read)
        return
    lines = LineReader(file, reading.longest_line, before_read)
    if reading.format == "lines":
        yield from _lines(lines, reading)
    elif reading.format == "jsonl":
        yield from _json_lines(lines, reading.columns)
    else:
        yield from CsvReader(lines, reading).rows()


class LineReader:
    """Yields lines with their ends; ``number`` is the last one's, from 1."""

    def __init__(self, file: RawFile, longest_line: int, before_read: Callable[[int], None]) -> None:
        self._file = file
        self._longest = longest_line
        self._before_read = before_read
        self._bytes_read = 0
        self.number = 0

    def __iter__(self) -> Iterator[bytes | BadLine]:
        rest = b""
        # The current line is too long, and its first piece has been returned as a bad line.
        continued = False
        while True:
            self._before_read(self._bytes_read)
            data = self._file.read(READ_BYTES)
            if data is None:
                continue
            self._bytes_read += len(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield self._line(line + b"\n", continued)
                continued = False
            if rest and (continued or len(rest) > self._longest):
                yield self._line(rest, continued)
                continued = True
                rest = b""
            if not data:
                if rest:
                    yield self._line(rest, continued)
                return

    def _line(self, line: bytes, continued: bool) -> bytes | BadLine:
        if continued:
            return BadLine(self.number, "", line)
        self.number += 1
        if len(line) - line.endswith(b"\n") > self._longest:
            return BadLine(self.number, f"it is longer than {self._longest} bytes", line)
        return line


def _without_end(line: bytes) -> bytes:
    if line.endswith(b"\n"):
        line = line[:-1]
    return line[:-1] if line.endswith(b"\r") else line


def _lines(lines: LineReader, reading: Reading) -> Iterator[Row]:
    separator = reading.key_separator
    headers = reading.columns.fixed_headers
    for line in lines:
        if isinstance(line, BadLine):
            yield line
            continue
        value = _without_end(line)
        key = None
        if separator is not None:
            key, found, value = value.partition(separator)
            if not found:
                yield BadLine(lines.number, f"there is no {separator.decode()!r} between key and value", line)
                continue
        yield Outgoing(value, key, headers, None)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _json_lines(lines: LineReader, columns: Columns) -> Iterator[Row]:
    decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
    checked = False
    for line in lines:
        if isinstance(line, BadLine):
            yield line
            continue
        text = line.strip()
        if lines.number == 1:
            text = text.removeprefix(codecs.BOM_UTF8)
        if not text:
            continue
        try:
            row = decode(text.decode())
        except UnicodeDecodeError:
            yield BadLine(lines.number, "it is not UTF-8", line)
            continue
        except (ValueError, RecursionError) as error:
            yield BadLine(lines.number, f"it is not JSON ({error})", line)
            continue
        if not isinstance(row, dict):
            if columns.names:
                yield BadLine(lines.number, "it is no JSON object, and has no fields", line)
            else:
                yield Outgoing(text, None, columns.fixed_headers, None)
            continue
        if not checked:
            checked = True
            _check_columns(columns, list(row), f"line {lines.number}", "field")
        try:
            yield columns.record(row, text)
        except BadRowError as error:
            yield BadLine(lines.number, str(error), line)


def _check_columns(columns: Columns, names: list[str], where: str, kind: str = "column") -> None:
    """
    Raises:
        CommandError: a column is missing; the text names the existing ones.
    """
    name = columns.missing(names)
    if name is not None:
        hint = nearest(name, names)
        there = ", ".join(names) if names else "none"
        raise CommandError(f"{where} has no {kind} {name!r}{f' ({hint})' if hint else ''}; it has: {there}")


class CsvReader:
    """Reads CSV by Python's ``csv``, strictly; the first row has the names of the columns.

    That row is yielded before the first bad one, without a reason, so that the rejects are a CSV file too.
    """

    def __init__(self, lines: LineReader, reading: Reading) -> None:
        self._lines = lines
        self._source = iter(lines)
        self._columns = reading.columns
        self._delimiter = reading.delimiter
        # The lines of the current row: a quoted cell may span several.
        self._raw: list[bytes] = []
        self._too_long: BadLine | None = None
        self._header_raw = b""
        csv.field_size_limit(max(csv.field_size_limit(), reading.longest_line))
        self._longest = reading.longest_line

    def _text(self) -> Iterator[str]:
        size = 0
        for line in self._source:
            if isinstance(line, BadLine):
                self._too_long = line
                raise csv.Error(line.reason)
            size = len(line) if not self._raw else size + len(line)
            self._raw.append(line)
            if size > self._longest:
                raise csv.Error(f"it is longer than {self._longest} bytes: a quote may be missing")
            yield line.decode("utf-8-sig" if self._lines.number == 1 else "utf-8", "surrogateescape")

    def rows(self) -> Iterator[Row]:
        """Yield the rows after the first."""
        header_due = True
        for row in self._all():
            if header_due and isinstance(row, BadLine):
                header_due = False
                yield BadLine(1, "", self._header_raw)
            yield row

    def _all(self) -> Iterator[Row]:
        names: list[str] | None = None
        while True:
            reader = csv.reader(self._text(), delimiter=self._delimiter, strict=True)
            try:
                for cells in reader:
                    raw = b"".join(self._raw)
                    number = self._lines.number - len(self._raw) + 1
                    self._raw.clear()
                    if not cells:
                        continue
                    if names is None:
                        names = self._header(cells)
                        self._header_raw = raw if raw.endswith(b"\n") else raw + b"\n"
                        continue
                    yield self._row(names, cells, number, raw)
                return
            except csv.Error as error:
                yield from self._bad(error)

    def _header(self, cells: list[str]) -> list[str]:
        twice = sorted({name for name in cells if cells.count(name) > 1})
        if twice:
            raise CommandError(f"the first line names the column {twice[0]!r} twice")
        _check_columns(self._columns, cells, "the first line")
        return cells

    def _row(self, names: list[str], cells: list[str], number: int, raw: bytes) -> Row:
        if len(cells) != len(names):
            return BadLine(number, f"it has {counted(len(cells), 'column')}, not {len(names)}", raw)
        try:
            return self._columns.record(dict(zip(names, cells, strict=True)))
        except BadRowError as error:
            return BadLine(number, str(error), raw)

    def _bad(self, error: csv.Error) -> Iterator[BadLine]:
        too_long, self._too_long = self._too_long, None
        if self._raw:
            number = self._lines.number - len(self._raw) + (too_long is None)
            yield BadLine(number, f"it is not CSV ({error})", b"".join(self._raw))
            self._raw.clear()
        if too_long is not None:
            yield too_long


def _arrow_rows(file: RawFile, reading: Reading, before_read: Callable[[int], None]) -> Iterator[Row]:
    number = 0
    for batch in _arrow_batches(file, reading):
        at_once = max(1, min(ARROW_ROWS, ARROW_BYTES * batch.num_rows // max(batch.nbytes, 1)))
        for start in range(0, batch.num_rows, at_once):
            before_read(_position(file))
            for row in batch.slice(start, at_once).to_pylist():
                number += 1
                try:
                    yield reading.columns.record(row)
                except BadRowError as error:
                    yield BadLine(number, str(error), repr(row).encode() + b"\n")


def _position(file: Any) -> int:  # Any: only some raw files have a position
    return int(file.tell()) if file.seekable() else 0


def _arrow_batches(file: RawFile, reading: Reading) -> Iterator[pyarrow.RecordBatch]:
    """
    Raises:
        CommandError: pyarrow is missing, or the file has another format.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise missing(error.name or "pyarrow", f"--format {reading.format}", "arrow") from None
    try:
        if reading.format == "parquet":
            if not _seekable(file):
                raise CommandError("Parquet must be read from its end: pass a file, not a pipe")
            parquet = pyarrow.parquet.ParquetFile(file)
            _check_columns(reading.columns, parquet.schema_arrow.names, "the file")
            wanted = reading.columns.names if reading.columns.value is not None else None
            yield from parquet.iter_batches(ARROW_ROWS, columns=wanted)
            return
        source = _open_arrow(pyarrow, file)
        _check_columns(reading.columns, source.schema.names, "the file")
        if isinstance(source, pyarrow.ipc.RecordBatchFileReader):
            yield from (source.get_batch(index) for index in range(source.num_record_batches))
        else:
            yield from source
    except pyarrow.ArrowException as error:
        raise CommandError(f"it cannot be read as {reading.format}: {str(error).splitlines()[0]}") from error


def _seekable(file: Any) -> bool:  # Any: see _position
    return bool(file.seekable())


def _open_arrow(pyarrow: Any, file: RawFile) -> Any:  # Any: the module has no types
    """Read Arrow's file format if ``file`` has it, otherwise its stream format."""
    if _seekable(file):
        try:
            return pyarrow.ipc.open_file(file)
        except pyarrow.ArrowInvalid:
            file.seek(0)  # type: ignore[attr-defined]  # it is seekable
    return pyarrow.ipc.open_stream(file)
