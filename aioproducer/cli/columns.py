"""Converting a row of named columns to a record: its key, value, headers and timestamp."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import NamedTuple

from aioproducer.record import HeaderPair

LATEST_TIMESTAMP = 2**63 - 1


class BadRowError(Exception):
    """A row cannot be converted to a record; the text says why."""


class Outgoing(NamedTuple):
    """A record to be sent; with ``timestamp_ms`` None its timestamp is the time of sending."""

    value: bytes | None
    key: bytes | None
    headers: tuple[HeaderPair, ...]
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a record's parts; without ``value`` the record's value is the whole row, as JSON."""

    key: str | None = None
    value: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    fixed_headers: tuple[HeaderPair, ...] = ()

    @property
    def names(self) -> list[str]:
        """The columns that every row must have."""
        return [name for name in (self.key, self.value, self.headers, self.timestamp) if name is not None]

    def missing(self, names: Container[str]) -> str | None:
        """Return the first missing name of ``self.names``. A column in base64 (``base64_name``) replaces its column."""
        for name in self.names:
            if name not in names and not (name in (self.key, self.value) and base64_name(name) in names):
                return name
        return None

    def record(self, row: Mapping[str, object], whole: bytes | None = None) -> Outgoing:
        """Return the record of a row; ``whole`` is the row as JSON, if already known.

        Raises:
            BadRowError: a column is missing, or has an invalid value.
        """
        missing = self.missing(row)
        if missing is not None:
            raise BadRowError(f"there is no {missing!r}")
        if self.value is not None:
            value = _bytes_of(row, self.value)
        else:
            value = as_json(row) if whole is None else whole
        headers = self.fixed_headers
        if self.headers is not None:
            headers = (*headers, *as_headers(row[self.headers], self.headers))
        return Outgoing(
            value,
            None if self.key is None else _bytes_of(row, self.key),
            headers,
            None if self.timestamp is None else as_timestamp(row[self.timestamp], self.timestamp),
        )


def base64_name(name: str) -> str:
    """Return the name of the field that replaces ``name`` if its bytes are not UTF-8."""
    return f"{name}_base64"


def base64_decoded(cell: object, name: str) -> bytes:
    """
    Raises:
        BadRowError: it is not base64.
    """
    try:
        if isinstance(cell, str):
            return b64decode(cell, validate=True)
    except ValueError:
        pass
    raise BadRowError(f"{name!r} is not base64: {_shortly(cell)}")


def _bytes_of(row: Mapping[str, object], name: str) -> bytes | None:
    if name in row:
        return as_bytes(row[name])
    encoded = base64_name(name)
    return base64_decoded(row[encoded], encoded)


def as_bytes(cell: object) -> bytes | None:
    """Return text as UTF-8, bytes unchanged, null as None, everything else as JSON.

    Raises:
        BadRowError: it has a value that JSON cannot represent.
    """
    if cell is None or isinstance(cell, bytes):
        return cell
    if isinstance(cell, str):
        return _utf_8(cell)
    if isinstance(cell, date | time):
        return cell.isoformat().encode()
    if isinstance(cell, Decimal):
        return str(cell).encode()
    return as_json(cell)


def as_json(value: object) -> bytes:
    """Return compact JSON in UTF-8: times as ISO 8601, decimals as text, NaN and infinities as null.

    Raises:
        BadRowError: it has bytes that are not UTF-8.
    """
    try:
        text = _ENCODER.encode(value)
    except ValueError:
        text = _ENCODER.encode(_without_nan(value))
    return _utf_8(text)


def _utf_8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadRowError("it is not UTF-8") from None


def _plain(value: object) -> object:
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise BadRowError("it has bytes that are not UTF-8: choose columns with --value and --key") from None
    return str(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _without_nan(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return value


def as_headers(cell: object, column: str) -> list[HeaderPair]:
    """Return the headers of an object (name to value), an array of pairs, or an array of ``key``/``value`` objects.

    A value may be an object with the single field ``base64``.

    Raises:
        BadRowError: it has another form.
    """
    if isinstance(cell, str):
        try:
            cell = json.loads(cell) if cell.strip() else None
        except ValueError:
            raise BadRowError(f"{column!r} is not a JSON object of headers") from None
    if cell is None:
        return []
    if isinstance(cell, Mapping):
        return [(str(name), _header_value(value)) for name, value in cell.items()]
    if isinstance(cell, Sequence) and not isinstance(cell, bytes | str):
        return [_header(each, column) for each in cell]
    raise BadRowError(f"{column!r} is not a list of headers: {_shortly(cell)}")


def _header(cell: object, column: str) -> HeaderPair:
    if isinstance(cell, Mapping) and "key" in cell:
        return str(cell["key"]), _header_value(cell.get("value"))
    if isinstance(cell, list | tuple) and len(cell) == 2:
        return str(cell[0]), _header_value(cell[1])
    raise BadRowError(f"{column!r} is not a list of headers: {_shortly(cell)}")


def _header_value(cell: object) -> bytes | None:
    if isinstance(cell, Mapping) and cell.keys() == {"base64"}:
        return base64_decoded(cell["base64"], "base64")
    return as_bytes(cell)


def as_timestamp(cell: object, column: str) -> int | None:
    """Return milliseconds since 1970, from a number of them or a time in ISO 8601 (UTC if without a zone).

    Raises:
        BadRowError: it has another form, or is before 1970.
    """
    if cell is None or cell == "":
        return None
    milliseconds = _milliseconds(cell)
    if milliseconds is None or not 0 <= milliseconds <= LATEST_TIMESTAMP:
        raise BadRowError(f"{column!r} is not a timestamp: {_shortly(cell)}")
    return milliseconds


def _milliseconds(cell: object) -> int | None:
    if isinstance(cell, bool):
        return None
    if isinstance(cell, int):
        return cell
    if isinstance(cell, float):
        return int(cell) if math.isfinite(cell) else None
    if isinstance(cell, str):
        if cell.strip().isdecimal():
            return int(cell)
        try:
            cell = datetime.fromisoformat(cell.strip())
        except ValueError:
            return None
    if isinstance(cell, datetime):
        aware = cell if cell.tzinfo is not None else cell.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)
    if isinstance(cell, date):
        return _milliseconds(datetime.combine(cell, time()))
    return None


def _shortly(cell: object) -> str:
    text = repr(cell)
    return text if len(text) <= 60 else f"{text[:57]}..."
