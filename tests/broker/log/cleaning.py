"""Rounds of cleaning for tests, and what must hold of a log before and after one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from aioproducer.broker.log import Log, LogConfig
from aioproducer.broker.log.cleaner.offset_map import OffsetMap
from aioproducer.broker.log.cleaner.selection import Cleanable
from aioproducer.broker.log.cleaner.steps import Steps
from aioproducer.broker.log.cleaning import Cleaning, cleanable
from aioproducer.wire.record_batch import RecordBatch
from tests.broker.log.building import NOW, stored

T = TypeVar("T")

COMPACTED = LogConfig(
    segment_bytes=600,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=1000,
    min_cleanable_dirty_ratio=0.0,
    transaction_partition_verification_enable=False,
)


def run_steps(steps: Steps[T]) -> T:
    """Run ``steps`` to their end in one go."""
    try:
        work = next(steps)
        while True:
            if work is None:
                work = next(steps)
                continue
            try:
                result = work.run()
            except BaseException as error:
                work = steps.throw(error)
            else:
                work = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


def clean(log: Log, now_ms: int = NOW, *, high_watermark: int | None = None, keys: int | None = None) -> Cleanable:
    """Run a round in one go, with room for ``keys`` keys in the offset map; returns what it was about."""
    part = cleanable(log, now_ms, log.log_end_offset if high_watermark is None else high_watermark)
    if part.is_due:
        memory = 1_000_000 if keys is None else (keys + 1) * 24
        offsets = OffsetMap(memory, 1.0, part.end_offset - part.first_dirty_offset)
        try:
            log.cleaned_to = run_steps(Cleaning(log, part, offsets, now_ms).steps())
        finally:
            offsets.close()
    return part


class Row(NamedTuple):
    """A record as a reader sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def rows(log: Log, *, committed: bool = False) -> list[Row]:
    """Every record that readers see, from the start to the end; with ``committed`` up to the last stable offset."""
    end = log.last_stable_offset(log.log_end_offset) if committed else log.log_end_offset
    found: list[Row] = []
    for batch in stored(log):
        if batch.is_control or (committed and (batch.last_offset >= end or is_aborted(log, batch))):
            continue
        found += [Row(each.offset, each.timestamp, each.key, each.value, each.headers) for each in batch.records()]
    return found


def is_aborted(log: Log, batch: RecordBatch) -> bool:
    """Whether the index of aborted transactions says so of a batch."""
    return batch.is_transactional and any(
        each.producer_id == batch.producer_id and each.first_offset <= batch.base_offset < each.last_offset
        for each in log.aborted_between(batch.base_offset, batch.next_offset)
    )


def latest(records: Sequence[Row]) -> dict[bytes | None, Row]:
    """The last record of each key."""
    return {record.key: record for record in records}
