"""Arrow's columns, as ``send_many`` reads them: byte strings where they lie, everything else row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from aioproducer.core.binary_column import BinaryColumn

if TYPE_CHECKING:
    import pyarrow

# So much of a column is made into Python objects at a time.
ROWS_AT_ONCE = 1000
BYTES_AT_ONCE = 1 << 20


def is_arrow(column: Any) -> bool:
    """Whether this is an Arrow array, chunked or not; Arrow itself is not imported for the question."""
    return hasattr(column, "to_pylist") and hasattr(column, "slice")


def items(column: Any, convert: Callable[[Any], Any] | None) -> Iterable[Any]:
    """The rows of any column as Python objects; those of Arrow a few at a time, and converted."""
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
    """A row of strings as the bytes that Arrow keeps of it."""
    return value.encode() if isinstance(value, str) else value


def header_pairs(value: Any) -> Any:
    """A row of Spark's header column, a list of structs, as pairs."""
    return [(each["key"], each["value"]) if isinstance(each, Mapping) else each for each in value or ()]


def in_milliseconds(column: Any) -> Any:
    """An Arrow column of timestamps as one of integers."""
    if is_arrow(column) and str(column.type).startswith("timestamp"):
        return column.cast("timestamp[ms]", safe=False).cast("int64")
    return column


def is_binary(column: Any) -> bool:
    """Whether ``binary_columns`` can read an Arrow column."""
    from pyarrow import types

    kind = column.type
    return _is_plain(types, kind.value_type if types.is_dictionary(kind) else kind)


def _is_plain(types: Any, kind: pyarrow.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_string(kind)
        or types.is_large_binary(kind)
        or types.is_large_string(kind)
        or types.is_fixed_size_binary(kind)
    )


def binary_columns(*columns: Any) -> Iterator[tuple[BinaryColumn | None, ...]]:
    """Columns of equal length (``None`` stays ``None``) in pieces that lie in one run each; nothing is copied."""
    given = [column for column in columns if column is not None]
    if not any(hasattr(column, "chunks") for column in given):
        yield tuple(None if column is None else _binary_column(column) for column in columns)
        return
    import pyarrow

    table = pyarrow.table(given, names=[str(place) for place in range(len(given))])
    for batch in table.to_batches():
        arrays = iter(batch.columns)
        yield tuple(None if column is None else _binary_column(next(arrays)) for column in columns)


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
