"""Writing records as lines, CSV, JSON lines, Parquet or Arrow."""

from __future__ import annotations

import csv
import io
import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Protocol, TypeAlias

from aioproducer.cli.columns import base64_name
from aioproducer.cli.exits import CommandError, missing
from aioproducer.consumer import ConsumerRecord
from aioproducer.record import HeaderPair

FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
DEFAULT_FIELDS = ("partition", "offset", "timestamp", "key", "value", "headers")

# Maximum number of records and bytes in a row group.
GROUP_ROWS = 50_000
GROUP_BYTES = 16 * 1024 * 1024

Cell: TypeAlias = str | int | bytes | tuple[HeaderPair, ...] | None


class Writer(Protocol):
    """Writes records to a file; blocks."""

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        """Write ``records``.

        Raises:
            CommandError: the format cannot represent one of them.
            OSError: the file cannot be written.
        """

    def finish(self) -> None:
        """Write the end of the format after the last record; the file stays open."""


def _cell(record: ConsumerRecord, field: str) -> Cell:
    return record.timestamp_ms if field == "timestamp" else getattr(record, field)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


class LinesWriter:
    """Writes the fields unchanged, with a separator between them; null as an empty field."""

    def __init__(self, file: BinaryIO, fields: Sequence[str], separator: bytes) -> None:
        self._file = file
        self._fields = fields
        self._separator = separator

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        if list(self._fields) == ["value"]:
            lines = [record.value or b"" for record in records]
        else:
            join = self._separator.join
            lines = [join([_line_cell(_cell(record, field)) for field in self._fields]) for record in records]
        self._file.write(b"\n".join(lines) + b"\n")

    def finish(self) -> None:
        """Do nothing: the format has no end."""


def _line_cell(cell: Cell) -> bytes:
    if cell is None or isinstance(cell, bytes):
        return cell or b""
    return (_json_headers(cell) if isinstance(cell, tuple) else str(cell)).encode()


def _header_pairs(headers: tuple[HeaderPair, ...]) -> list[list[object]]:
    pairs: list[list[object]] = []
    for name, value in headers:
        try:
            pairs.append([name, _text(value)])
        except UnicodeDecodeError:
            pairs.append([name, {"base64": _base64(value or b"")}])
    return pairs


def _json_headers(headers: tuple[HeaderPair, ...]) -> str:
    return json.dumps(_header_pairs(headers), ensure_ascii=False, separators=(",", ":"))


class JsonLinesWriter:
    """Writes an object a line. Bytes that are not UTF-8 are written in base64, in the field ``value_base64``."""

    def __init__(self, file: BinaryIO, fields: Sequence[str]) -> None:
        self._file = file
        self._fields = fields
        self._encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        self._file.write("".join([self._encode(self._object(record)) + "\n" for record in records]).encode())

    def _object(self, record: ConsumerRecord) -> dict[str, object]:
        row: dict[str, object] = {}
        for field in self._fields:
            cell = _cell(record, field)
            if isinstance(cell, bytes):
                try:
                    row[field] = cell.decode()
                except UnicodeDecodeError:
                    row[base64_name(field)] = _base64(cell)
            else:
                row[field] = _header_pairs(cell) if isinstance(cell, tuple) else cell
        return row

    def finish(self) -> None:
        """Do nothing: the format has no end."""


class CsvWriter:
    """Writes CSV with a header row; null as an empty cell."""

    def __init__(self, file: BinaryIO, fields: Sequence[str]) -> None:
        self._file = file
        self._fields = fields
        self._header_due = True

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if self._header_due:
            self._header_due = False
            writer.writerow(self._fields)
        for record in records:
            writer.writerow([self._shown(record, field) for field in self._fields])
        self._file.write(text.getvalue().encode())

    def _shown(self, record: ConsumerRecord, field: str) -> object:
        cell = _cell(record, field)
        if isinstance(cell, tuple):
            return _json_headers(cell)
        if not isinstance(cell, bytes):
            return cell
        try:
            return cell.decode()
        except UnicodeDecodeError:
            raise CommandError(
                f"partition {record.partition}, offset {record.offset}: the {field} is not UTF-8, which CSV requires: "
                "use --format jsonl, or parquet"
            ) from None

    def finish(self) -> None:
        if self._header_due:
            self.write([])


class ArrowWriter:
    """Writes Parquet or Arrow's stream format, one row group at a time."""

    def __init__(self, file: BinaryIO, fields: Sequence[str], format_: str) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ModuleNotFoundError as error:
            raise missing(error.name or "pyarrow", f"--format {format_}", "arrow") from None
        self._pyarrow: Any = pyarrow  # Any: the module has no types
        header = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
        types: dict[str, Any] = {
            "topic": pyarrow.string(),
            "partition": pyarrow.int32(),
            "offset": pyarrow.int64(),
            "timestamp": pyarrow.timestamp("ms", tz="UTC"),
            "key": pyarrow.binary(),
            "value": pyarrow.binary(),
            "headers": pyarrow.list_(header),
        }
        self._fields = fields
        self._schema = pyarrow.schema([(field, types[field]) for field in fields])
        if format_ == "parquet":
            self._writer: Any = pyarrow.parquet.ParquetWriter(file, self._schema)
        else:
            self._writer = pyarrow.ipc.new_stream(file, self._schema)
        self._gathered: list[ConsumerRecord] = []
        self._size = 0

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        self._gathered += records
        self._size += sum(len(record.key or b"") + len(record.value or b"") for record in records)
        if len(self._gathered) >= GROUP_ROWS or self._size >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        columns = [
            self._pyarrow.array(
                [_arrow_cell(_cell(record, name)) for record in self._gathered], self._schema.field(name).type
            )
            for name in self._fields
        ]
        self._writer.write_batch(self._pyarrow.record_batch(columns, schema=self._schema))
        self._gathered = []
        self._size = 0

    def finish(self) -> None:
        if self._gathered:
            self._write_group()
        self._writer.close()


def _arrow_cell(cell: Cell) -> object:
    return [{"key": name, "value": value} for name, value in cell] if isinstance(cell, tuple) else cell


def writer_for(format_: str, file: BinaryIO, fields: Sequence[str], separator: bytes) -> Writer:
    """Return the writer of a format.

    Raises:
        CommandError: a package that it needs is not installed.
    """
    makers: dict[str, Callable[[], Writer]] = {
        "lines": lambda: LinesWriter(file, fields, separator),
        "jsonl": lambda: JsonLinesWriter(file, fields),
        "csv": lambda: CsvWriter(file, fields),
    }
    make = makers.get(format_)
    return ArrowWriter(file, fields, format_) if make is None else make()
