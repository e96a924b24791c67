"""Columns of records into open batches: what ``send_many`` takes lists for, and Spark Arrow's arrays.

Each record goes where ``RecordAccumulator.append`` would put it; what is saved is all that is the same for the next.
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

if TYPE_CHECKING:
    import cython
else:
    from aioproducer._common.uncompiled import cython

if not cython.compiled:
    # The compiled module has it from its .pxd file.
    from aioproducer.wire.murmur2 import partition_for_key_at

# What one call takes at most: some tenths of a millisecond.
COLUMN_RECORDS = 4096
COLUMN_BYTES = 512 * 1024
# What opening a batch counts for among these: it takes as long as so many bytes of records.
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
    """Put records into open batches from place ``first`` of the columns on, as ``append`` would one by one.

    Ends in front of a record that has to wait or may be wrong, and after ``COLUMN_BYTES`` so that no call takes
    long; returns the place behind the last record it took. ``touched`` gets the batches that records went
    into, each with the index of the first of them as its ``column_start``; the others follow it.

    ``timestamp_ms`` is of records that have none; with ``timestamps`` or ``headers`` all columns are Arrow's.
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
    place = topic.sticky.partition if partition is None else partition  # type: ignore[union-attr]
    room = COLUMN_BYTES
    here = first
    key = None
    while here < stop and room > 0:
        if cython.compiled and keys is None and type(values) is list:  # compiled only
            batch = partitions[place].open_batch
            if batch is not None:
                before = batch.position
                index = batch.record_count
                behind = batch.append_run(timestamp_ms, values, here, stop, room)
                if behind > here:
                    here = behind
                    room -= batch.position - before
                    if batch.column_start < 0:
                        batch.column_start = index
                        touched.append(batch)
                    continue
        value = values[here]
        if keys is not None:
            key = keys[here]
            if by_key:
                if key is None:
                    place = topic.sticky.partition  # type: ignore[union-attr]
                else:
                    place = partition_for_key(key, len(partitions))
        queue = partitions[place]
        batch = queue.open_batch
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
            place = topic.sticky.partition if partition is None else partition  # type: ignore[union-attr]
        room -= batch.position - before
        if batch.column_start < 0:
            batch.column_start = index
            touched.append(batch)
        here += 1
    return here


def append_arrow_rows(  # compiled only
    accumulator: RecordAccumulator,
    topic: TopicQueues,
    partition: int | None,
    keys: BinaryColumn | None,
    values: BinaryColumn,
    timestamps: TimestampColumn | None,
    headers: HeaderColumn | None,
    first: int,
    otherwise_ms: int,
    now: float,
    touched: list[ProducerBatch],
) -> int:
    """As ``append_rows``, of Arrow's rows, straight from where they lie; ``otherwise_ms`` for null timestamps."""
    stop = min(values.length, first + COLUMN_RECORDS)
    partitions = topic.partitions
    by_key = keys is not None and partition is None and not accumulator.settings.ignore_keys
    place = topic.sticky.partition if partition is None else partition  # type: ignore[union-attr]
    sticky = place
    room = COLUMN_BYTES
    here = first
    key = cython.NULL
    key_size = -1
    timestamp_ms = otherwise_ms
    headers_size = 1
    value_data = cython.cast(cython.p_uchar, values.data)
    while here < stop and room > 0:
        if values.plain_offsets != cython.NULL:
            begin = values.plain_offsets[here]
            value = value_data + begin
            value_size = values.plain_offsets[here + 1] - begin
        else:
            value = values.find(here)
            value_size = values.found_size
        if keys is not None:
            if keys.plain_offsets != cython.NULL:
                begin = keys.plain_offsets[here]
                key = cython.cast(cython.p_uchar, keys.data) + begin
                key_size = keys.plain_offsets[here + 1] - begin
            else:
                key = keys.find(here)
                key_size = keys.found_size
            if by_key:
                place = sticky if key_size < 0 else partition_for_key_at(key, key_size, len(partitions))
        if timestamps is not None:
            timestamp_ms = timestamps.find(here, otherwise_ms)
            if timestamp_ms < 0:
                break
        if headers is not None:
            headers_size = headers.size_of(here)
            if not headers_size:
                break
        queue = partitions[place]
        batch = queue.open_batch
        if batch is not None:
            before = batch.position
        if (
            batch is None
            or (index := batch.append_at(key, key_size, value, value_size, headers_size, timestamp_ms)) < 0
        ):
            key_bytes = None if keys is None else keys.bytes_of(here)
            value_bytes = values.bytes_of(here)
            pairs: Any = () if headers is None else headers[here]
            delivery = accumulator.append_to_new_batch(
                topic, partition, key_bytes, value_bytes, pairs, timestamp_ms, now
            )
            if delivery is None:
                break
            assert isinstance(delivery._group, ProducerBatch)
            batch = delivery._group
            index = delivery._index
            before = batch.position - COLUMN_BATCH_BYTES - max(value_size, 0)
            place = topic.sticky.partition if partition is None else partition  # type: ignore[union-attr]
            sticky = place
        elif headers is not None and headers_size > 1:
            headers.write(batch.address + batch.position - headers_size, here)
        room -= batch.position - before
        if batch.column_start < 0:
            batch.column_start = index
            touched.append(batch)
        here += 1
    return here
