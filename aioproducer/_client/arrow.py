"""Readers of Arrow columns for ``send_many``: in place, or row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from aioproducer.core.columns.binary_column import BinaryColumn
from aioproducer.core.columns.record_columns import HeaderColumn, TimestampColumn

if TYPE_CHECKING:
    import pyarrow

# Limits of the part of a column that is converted to Python objects at a time, in rows and bytes.
ROWS_AT_ONCE = 1000
BYTES_AT_ONCE = 1 << 20


def is_arrow(column: Any) -> bool:
    """Return whether this is an Arrow array, chunked or not; the check does not import Arrow."""
    return hasattr(column, "to_pylist") and hasattr(column, "slice")


def items(column: Any, convert: Callable[[Any], Any] | None) -> Iterable[Any]:
    """Return the rows of any column as Python objects; Arrow's are read in pieces and passed through ``convert``."""
    if not is_arrow(column):
        return column  # type: ignore[no-any-return]  # any sequence
    rows = _rows(column)
    return rows if convert is None else map(convert, rows)


def _rows(column: Any) -> Iterator[Any]:
    for chunk in getattr(column, "chunks", (column,)):
        count = len(chunk)
        at_once = max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE * count // max(chunk.nbytes, 1)))
        for start in range(0, count, at_once):
            yield from chunk.slice(start, at_once).to_pylist()


def encoded(value: Any) -> Any:
    """Return a str as the bytes that Arrow stores for it; any other row unchanged."""
    return value.encode() if isinstance(value, str) else value


def header_pairs(value: Any) -> Any:
    """Return a row of Spark's header column, a list of structs, as pairs."""
    return [(each["key"], each["value"]) if isinstance(each, Mapping) else each for each in value or ()]


def in_milliseconds(column: Any) -> Any:
    """Return an Arrow column of timestamps as integers in milliseconds; any other column unchanged."""
    if is_arrow(column) and str(column.type).startswith("timestamp"):
        return column.cast("timestamp[ms]", safe=False).cast("int64")
    return column


def is_binary(column: Any) -> bool:
    """Return whether keys or values in this Arrow column can be read in place."""
    from pyarrow import types

    return _is_plain(types, _decoded_type(types, column.type))


def _decoded_type(types: Any, kind: Any) -> Any:
    return kind.value_type if types.is_dictionary(kind) else kind


def _is_plain(types: Any, kind: pyarrow.DataType) -> bool:
    return _is_text(types, kind) or _is_bytes(types, kind)


def _is_text(types: Any, kind: pyarrow.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_bytes(types: Any, kind: pyarrow.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def can_be_read_in_place(values: Any, keys: Any, timestamps_ms: Any, headers: Any) -> bool:
    """Return whether ``record_columns`` can read these columns: all are Arrow's and consist of plain buffers."""
    given = [column for column in (values, keys, timestamps_ms, headers) if column is not None]
    return (
        all(is_arrow(column) for column in given)
        and is_binary(values)
        and (keys is None or is_binary(keys))
        and (timestamps_ms is None or str(timestamps_ms.type) == "int64")
        and (headers is None or _are_headers(headers))
    )


def _are_headers(column: Any) -> bool:
    from pyarrow import types

    kind = column.type
    if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_struct(kind.value_type):
        return False
    fields = {field.name: _decoded_type(types, field.type) for field in kind.value_type}
    if len(fields) != kind.value_type.num_fields or fields.keys() != {"key", "value"}:
        return False
    if not _is_text(types, fields["key"]) or not _is_bytes(types, fields["value"]):
        return False
    # A null instead of a whole header: `send` raises the error.
    return not any(chunk.values.null_count for chunk in getattr(column, "chunks", (column,)))


def record_columns(
    values: Any, keys: Any = None, timestamps_ms: Any = None, headers: Any = None
) -> Iterator[tuple[BinaryColumn, BinaryColumn | None, TimestampColumn | None, HeaderColumn | None]]:
    """Yield columns of equal length (``None`` stays ``None``) in contiguous pieces, without copies."""
    columns = (values, keys, timestamps_ms, headers)
    given = [column for column in columns if column is not None]
    if not any(hasattr(column, "chunks") for column in given):
        yield _read_in_place(*columns)
        return
    import pyarrow

    table = pyarrow.table(given, names=[str(index) for index in range(len(given))])
    for batch in table.to_batches():
        arrays = iter(batch.columns)
        yield _read_in_place(*[None if column is None else next(arrays) for column in columns])


def _read_in_place(
    values: Any, keys: Any, timestamps_ms: Any, headers: Any
) -> tuple[BinaryColumn, BinaryColumn | None, TimestampColumn | None, HeaderColumn | None]:
    return (
        _binary_column(values),
        None if keys is None else _binary_column(keys),
        None if timestamps_ms is None else _timestamp_column(timestamps_ms),
        None if headers is None else _header_column(headers),
    )


def _timestamp_column(array: Any) -> TimestampColumn:
    return TimestampColumn(
        length=len(array),
        first=array.offset,
        numbers=_address(array.buffers()[1]),
        validity=_validity(array),
        owner=array,
    )


def _header_column(array: Any) -> HeaderColumn:
    # The offsets of a slice belong to its rows, but they count in the whole array of values.
    offsets, structs = array.offsets, array.values
    size = offsets.type.bit_width // 8
    return HeaderColumn(
        length=len(array),
        first=array.offset,
        offsets=_address(offsets.buffers()[1]) + offsets.offset * size,
        offset_size=size,
        validity=_validity(array),
        keys=_binary_column(structs.field("key")),
        values=_binary_column(structs.field("value")),
        owner=(array, offsets),
    )


def _binary_column(array: Any) -> BinaryColumn:
    from pyarrow import types

    if not types.is_dictionary(array.type):
        return BinaryColumn(length=len(array), validity=_validity(array), owner=array, **_layout(array))
    indices, dictionary = array.indices, array.dictionary
    if types.is_unsigned_integer(indices.type):
        indices = indices.cast("int64")
    return BinaryColumn(
        length=len(array),
        validity=_validity(indices),
        indices=_address(indices.buffers()[1]),
        index_size=indices.type.bit_width // 8,
        first_index=indices.offset,
        dictionary_validity=_validity(dictionary),
        owner=(indices, dictionary),
        **_layout(dictionary),
    )


def _layout(array: Any) -> dict[str, int]:
    from pyarrow import types

    kind = array.type
    if types.is_fixed_size_binary(kind):
        data = _address(array.buffers()[1])
        return {"first": array.offset, "offsets": 0, "offset_size": 0, "row_size": kind.byte_width, "data": data}
    _, offsets, data = array.buffers()
    size = 8 if types.is_large_binary(kind) or types.is_large_string(kind) else 4
    return {
        "first": array.offset,
        "offsets": _address(offsets),
        "offset_size": size,
        "row_size": 0,
        "data": _address(data),
    }


def _validity(array: Any) -> int:
    return _address(array.buffers()[0]) if array.null_count else 0


def _address(buffer: Any) -> int:
    return 0 if buffer is None else buffer.address
