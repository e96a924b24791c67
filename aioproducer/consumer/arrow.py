"""Records as an Arrow record batch, for ``poll_arrow``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aioproducer.core.fetching.columns import BinaryRows
from aioproducer.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow

    from aioproducer.core.fetching.columns import RecordColumns


def require_pyarrow() -> None:
    """Check that pyarrow can be imported, before records are taken.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("poll_arrow needs the Python package 'pyarrow': pip install pyarrow") from error


@cache
def _schema() -> Any:
    import pyarrow

    header = pyarrow.struct([pyarrow.field("key", pyarrow.string(), nullable=False), ("value", pyarrow.binary())])
    return pyarrow.schema(
        [
            pyarrow.field("topic", pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), nullable=False),
            pyarrow.field("partition", pyarrow.int32(), nullable=False),
            pyarrow.field("offset", pyarrow.int64(), nullable=False),
            pyarrow.field("timestamp_ms", pyarrow.timestamp("ms", tz="UTC"), nullable=False),
            pyarrow.field("key", pyarrow.binary()),
            pyarrow.field("value", pyarrow.binary()),
            pyarrow.field("headers", pyarrow.list_(header), nullable=False),
            pyarrow.field("leader_epoch", pyarrow.int32()),
        ]
    )


def record_batch(columns: RecordColumns) -> pyarrow.RecordBatch:
    """Return the rows as one batch, which has the memory of ``columns`` from now on."""
    import pyarrow

    schema = _schema()
    names = list(dict.fromkeys(name.topic for name, _, _ in columns.runs))
    topics = [(names.index(name.topic), rows) for name, _, rows in columns.runs]
    partitions = [(name.partition, rows) for name, _, rows in columns.runs]
    epochs = [(-1 if epoch is None else epoch, rows) for _, epoch, rows in columns.runs]
    count = columns.count
    epoch_column = _repeated(pyarrow, epochs)
    if any(epoch is None for _, epoch, _ in columns.runs):
        epoch_column = pyarrow.array([None if each < 0 else each for each in epoch_column.to_pylist()], pyarrow.int32())
    return pyarrow.RecordBatch.from_arrays(
        [
            pyarrow.DictionaryArray.from_arrays(_repeated(pyarrow, topics), _strings(pyarrow, names)),
            _repeated(pyarrow, partitions),
            pyarrow.Array.from_buffers(pyarrow.int64(), count, [None, pyarrow.py_buffer(columns.offsets)]),
            pyarrow.Array.from_buffers(schema.types[3], count, [None, pyarrow.py_buffer(columns.timestamps)]),
            _binary(pyarrow, columns.keys),
            _binary(pyarrow, columns.values),
            _headers(pyarrow, schema.types[6], columns),
            epoch_column,
        ],
        schema=schema,
    )


def _binary(pyarrow: ModuleType, rows: BinaryRows) -> Any:
    validity = pyarrow.py_buffer(rows.validity) if rows.nulls else None
    buffers = [validity, pyarrow.py_buffer(rows.ends), pyarrow.py_buffer(rows.data)]
    return pyarrow.Array.from_buffers(pyarrow.binary(), rows.count, buffers, rows.nulls)


def _headers(pyarrow: ModuleType, kind: Any, columns: RecordColumns) -> Any:
    if not columns.headers:
        ends = _repeated(pyarrow, [(0, columns.count + 1)])
        return pyarrow.ListArray.from_arrays(ends, pyarrow.nulls(0, kind.value_type))
    pairs: list[list[dict[str, object]]] = [[] for _ in range(columns.count)]
    for row, headers in columns.headers:
        pairs[row] = [{"key": key, "value": value} for key, value in headers]
    return pyarrow.array(pairs, kind)


def _strings(pyarrow: ModuleType, texts: Sequence[str]) -> Any:
    """Return an array of strings. ``pyarrow.array`` would import pandas first, where it is installed: for 0.2 s."""
    rows = BinaryRows()
    for text in texts:
        rows.append(text.encode())
    return pyarrow.Array.from_buffers(
        pyarrow.string(), rows.count, [None, pyarrow.py_buffer(rows.ends), pyarrow.py_buffer(rows.data)]
    )


def _repeated(pyarrow: ModuleType, runs: Sequence[tuple[int, int]]) -> Any:
    """Return an int32 array of runs of equal numbers, without an object for each row."""
    data = b"".join([number.to_bytes(4, sys.byteorder, signed=True) * count for number, count in runs])
    return pyarrow.Array.from_buffers(pyarrow.int32(), len(data) // 4, [None, pyarrow.py_buffer(data)])
