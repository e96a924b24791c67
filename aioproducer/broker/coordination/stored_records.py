"""The records of a partition, read while the loop serves others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from aioproducer.broker.replicas.partition import Partition
from aioproducer.broker.yielding import LoopYielder
from aioproducer.wire.record_batch import BatchRecord, RecordBatch, iter_batches

_READ_BYTES: Final = 64 * 1024


async def stored_records(partition: Partition) -> AsyncIterator[tuple[RecordBatch, BatchRecord]]:
    """Yield every record of the partition's log, control records included, with its batch.

    The iteration ends when all of them are replicated. Kafka does not wait: a coordinator then answers by a record that
    the next one may not have, so that a partition of a transaction was forgotten.

    Raises:
        KafkaError: the log cannot be read.
    """
    log = partition.log
    yielder = LoopYielder()
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        # The start of the log may have moved since the last read.
        offset = max(offset, log.log_start_offset)
        buffers = log.read(offset, _READ_BYTES, up_to=log.log_end_offset, min_one_batch=True)
        if not buffers:
            # Compaction has left a gap at the end.
            break
        for buffer in buffers:
            for batch in iter_batches(buffer):
                for record in batch.records():
                    if record.offset >= offset:
                        yield batch, record
                    await yielder.pause()
                offset = max(offset, batch.next_offset)
        await yielder.pause()
    await _until_replicated(partition, log.log_end_offset)


async def _until_replicated(partition: Partition, end_offset: int) -> None:
    """Wait until the high watermark is not before ``end_offset``, or this node no longer leads the partition."""
    changed = asyncio.Event()
    partition.add_watcher(changed.set)
    try:
        while partition.is_leader and partition.high_watermark < end_offset:
            changed.clear()
            await changed.wait()
    finally:
        partition.remove_watcher(changed.set)
