"""Records as an Arrow record batch, for ``poll_arrow``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from aioproducer.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow

    from aioproducer.core.fetching.records import ConsumerRecord


def record_batch(runs: Iterable[Sequence[ConsumerRecord]]) -> pyarrow.RecordBatch:
    """Return the records of all ``runs`` as the rows of one batch.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigurationError("poll_arrow needs the Python package 'pyarrow': pip install pyarrow") from error
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
    rows = [record for run in runs for record in run]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    topics, partitions, offsets, timestamps, keys, values, headers, epochs = columns
    return pyarrow.record_batch(
        [
            pyarrow.array(topics, pyarrow.string()).dictionary_encode(),
            pyarrow.array(partitions, pyarrow.int32()),
            pyarrow.array(offsets, pyarrow.int64()),
            pyarrow.array(timestamps, pyarrow.int64()).cast(pyarrow.timestamp("ms", tz="UTC")),
            pyarrow.array(keys, pyarrow.binary()),
            pyarrow.array(values, pyarrow.binary()),
            pyarrow.array(
                [[{"key": key, "value": value} for key, value in each] for each in headers], pyarrow.list_(header)
            ),
            pyarrow.array(epochs, pyarrow.int32()),
        ],
        schema=schema,
    )
