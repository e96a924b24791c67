"""Compiled. Appends columns of records to open batches: the lists of ``send_many``, and the Arrow arrays of Spark.

Each record goes into the batch that ``RecordAccumulator.append`` would choose. The work that is the same for all
records is done once.

No Python form: ``append_arrow_rows`` appends rows by their addresses, and ``append_rows`` appends lists of bytes by
``ProducerBatch.append_run``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aioproducer.core.batching.accumulator import RecordAccumulator
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.batching.partition_queue import TopicQueues
from aioproducer.core.columns.binary_column import BinaryColumn
from aioproducer.core.columns.record_columns import HeaderColumn, TimestampColumn
from aioproducer.wire.murmur2 import partition_for_key
from aioproducer.wire.record_batch import Buffer

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if not cython.compiled:
    # The compiled module imports it by its .pxd file.
    from aioproducer.wire.murmur2 import partition_for_key_at

# The limits of one call, which takes some tenths of a millisecond.
COLUMN_RECORDS = 4096
COLUMN_BYTES = 512 * 1024
# A new batch counts as this many bytes: opening it takes as long as appending them.
COLUMN_BATCH_BYTES = 16 * 1024


def append_rows(
    accumulator: RecordAccumulator,
    topic_name: str,
    partition: int | None,
    keys: Sequence[Buffer | None] | BinaryColumn | None,
    values: Sequence[Buffer | None] | BinaryColumn,
    first: int,
    timestamp_ms: int,
    now: float,
    touched: list[ProducerBatch],
    timestamps: TimestampColumn | None = None,
    headers: HeaderColumn | None = None,
) -> int:
    """Append records to open batches from row ``first`` on, as ``append`` would one by one; return the next row.

    The call ends before a record that has to wait or may be wrong, and after ``COLUMN_BYTES``, so that it is short.

    Args:
        timestamp_ms: the timestamp of records that have none.
        touched: receives the batches with appended records. The ``column_start`` of each is the index of the first of
            them; the others follow it.
        timestamps, headers: with either, all columns are Arrow's.
    """
    topic = accumulator.plain_topic(topic_name, partition)
    if topic is None:
        return first
    if isinstance(values, BinaryColumn):
        assert keys is None or isinstance(keys, BinaryColumn)
        return append_arrow_rows(
            accumulator, topic, partition, keys, values, timestamps, headers, first, timestamp_ms, now, touched
        )
    stop = min(len(values), first + COLUMN_RECORDS)
    partitions = topic.partitions
    by_key = keys is not None and partition is None and not accumulator.settings.ignore_keys
    number = _keyless_partition(topic, partition)
    room = COLUMN_BYTES
    row = first
    key = None
    while row < stop and room > 0:
        if cython.compiled and keys is None and type(values) is list:
            queue = partitions[number]
            batch = None if queue is None else queue.open_batch
            if batch is not None:
                before = batch.position
                index = batch.record_count
                run_end = batch.append_run(timestamp_ms, values, row, stop, room)
                if run_end > row:
                    row = run_end
                    room -= batch.position - before
                    if batch.column_start < 0:
                        batch.column_start = index
                        touched.append(batch)
                    continue
        value = values[row]
        if keys is not None:
            key = keys[row]
            if by_key:
                if key is None:
                    number = topic.sticky.partition  # type: ignore[union-attr]
                else:
                    number = partition_for_key(key, len(partitions))
        queue = partitions[number]
        batch = None if queue is None else queue.open_batch
        if batch is not None:
            before = batch.position
        if batch is None or (index := batch.append(key, value, (), timestamp_ms)) < 0:
            delivery = accumulator.append_to_new_batch(topic, partition, key, value, (), timestamp_ms, now)
            if delivery is None:
                break
            assert isinstance(delivery._group, ProducerBatch)
            batch = delivery._group
            index = delivery._index
            before = batch.position - COLUMN_BATCH_BYTES - (0 if value is None else len(value))
            number = _keyless_partition(topic, partition)
        room -= batch.position - before
        if batch.column_start < 0:
            batch.column_start = index
            touched.append(batch)
        row += 1
    return row


def _keyless_partition(topic: TopicQueues, partition: int | None) -> int:
    """Return the partition of records without a key: the caller's, or else the sticky one."""
    if partition is not None:
        return partition
    sticky: int = topic.sticky.partition  # type: ignore[union-attr]  # set with the partitions
    return sticky


# Compiled only


def append_arrow_rows(
    accumulator: RecordAccumulator,
    topic: TopicQueues,
    partition: int | None,
    keys: BinaryColumn | None,
    values: BinaryColumn,
    timestamps: TimestampColumn | None,
    headers: HeaderColumn | None,
    first: int,
    default_ms: int,
    now: float,
    touched: list[ProducerBatch],
) -> int:
    """Append rows from Arrow's buffers, as ``append_rows``; a null timestamp stands for ``default_ms``."""
    stop = min(values.length, first + COLUMN_RECORDS)
    partitions = topic.partitions
    by_key = keys is not None and partition is None and not accumulator.settings.ignore_keys
    number = _keyless_partition(topic, partition)
    sticky = number
    room = COLUMN_BYTES
    row = first
    before = index = 0
    key = cython.NULL
    key_size = -1
    timestamp_ms = default_ms
    headers_size = 1
    value_data = cython.cast(cython.p_uchar, values.data)
    while row < stop and room > 0:
        if values.plain_offsets != cython.NULL:
            begin = values.plain_offsets[row]
            value = value_data + begin
            value_size = values.plain_offsets[row + 1] - begin
        else:
            value = values.find(row)
            value_size = values.found_size
        if keys is not None:
            if keys.plain_offsets != cython.NULL:
                begin = keys.plain_offsets[row]
                key = cython.cast(cython.p_uchar, keys.data) + begin
                key_size = keys.plain_offsets[row + 1] - begin
            else:
                key = keys.find(row)
                key_size = keys.found_size
            if by_key:
                number = sticky if key_size < 0 else partition_for_key_at(key, key_size, len(partitions))
        if timestamps is not None:
            timestamp_ms = timestamps.find(row, default_ms)
            if timestamp_ms < 0:
                break
        if headers is not None:
            headers_size = headers.size_of(row)
            if not headers_size:
                break
        queue = partitions[number]
        batch = None if queue is None else queue.open_batch
        if batch is not None:
            before = batch.position
        if (
            batch is None
            or (index := batch.append_at(key, key_size, value, value_size, headers_size, timestamp_ms)) < 0
        ):
            key_bytes = None if keys is None else keys.bytes_of(row)
            value_bytes = values.bytes_of(row)
            pairs: Any = () if headers is None else headers[row]
            delivery = accumulator.append_to_new_batch(
                topic, partition, key_bytes, value_bytes, pairs, timestamp_ms, now
            )
            if delivery is None:
                break
            assert isinstance(delivery._group, ProducerBatch)
            batch = delivery._group
            index = delivery._index
            before = batch.position - COLUMN_BATCH_BYTES - max(value_size, 0)
            number = _keyless_partition(topic, partition)
            sticky = number
        elif headers is not None and headers_size > 1:
            headers.write(batch.address + batch.position - headers_size, row)
        room -= batch.position - before
        if batch.column_start < 0:
            batch.column_start = index
            touched.append(batch)
        row += 1
    return row
