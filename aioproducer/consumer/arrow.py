"""Records as an Arrow record batch, for ``poll_arrow``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aioproducer.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow

    from aioproducer.core.fetching.records import ConsumerRecord


def require_pyarrow() -> None:
    """Check that pyarrow can be imported, before records are taken.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("poll_arrow needs the Python package 'pyarrow': pip install pyarrow") from error


def record_batch(runs: Iterable[Sequence[ConsumerRecord]]) -> pyarrow.RecordBatch:
    """Return the records of all ``runs`` as the rows of one batch."""
    import pyarrow

    header = pyarrow.struct([pyarrow.field("key", pyarrow.string(), nullable=False), ("value", pyarrow.binary())])
    schema = pyarrow.schema(
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
    runs = [run for run in runs if run]
    rows = [record for run in runs for record in run]
    _, _, offsets, timestamps, keys, values, headers, epochs = zip(*rows, strict=True) if rows else [()] * len(schema)
    names = list(dict.fromkeys(run[0].topic for run in runs))
    # All records of a run are of one partition: no object for each row.
    topics = [_repeated(pyarrow, names.index(run[0].topic), len(run)) for run in runs]
    partitions = [_repeated(pyarrow, run[0].partition, len(run)) for run in runs]
    none = [pyarrow.array([], pyarrow.int32())]
    if any(headers):
        pairs = [[{"key": key, "value": value} for key, value in each] for each in headers]
        header_column = pyarrow.array(pairs, pyarrow.list_(header))
    else:
        ends = _repeated(pyarrow, 0, len(rows) + 1)
        header_column = pyarrow.ListArray.from_arrays(ends, pyarrow.array([], header))
    return pyarrow.record_batch(
        [
            pyarrow.DictionaryArray.from_arrays(
                pyarrow.concat_arrays(topics or none), pyarrow.array(names, pyarrow.string())
            ),
            pyarrow.concat_arrays(partitions or none),
            pyarrow.array(offsets, pyarrow.int64()),
            pyarrow.array(timestamps, pyarrow.int64()).view(pyarrow.timestamp("ms", tz="UTC")),
            pyarrow.array(keys, pyarrow.binary()),
            pyarrow.array(values, pyarrow.binary()),
            header_column,
            pyarrow.array(epochs, pyarrow.int32()),
        ],
        schema=schema,
    )


def _repeated(pyarrow: ModuleType, number: int, count: int) -> Any:
    """Return an int32 array of equal numbers, without an object for each."""
    data = pyarrow.py_buffer(number.to_bytes(4, sys.byteorder, signed=True) * count)
    return pyarrow.Array.from_buffers(pyarrow.int32(), count, [None, data])
