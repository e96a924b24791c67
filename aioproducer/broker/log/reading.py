"""Finding batches and records across the segments of a log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from aioproducer.broker.log.segment import Segment
from aioproducer.broker.log.transaction_index import AbortedTransaction
from aioproducer.broker.log.validation import MAX_DECOMPRESSED_BYTES
from aioproducer.compression.base import Buffer

MAX_READ_BYTES = 8 * 1024 * 1024
"""Maximum bytes of one read, unless a single batch is larger. From the page cache they block the loop for less than
5 ms."""


class TimestampOffset(NamedTuple):
    """A record that was found by its timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


def read_batches(
    segments: Sequence[Segment],
    bases: Sequence[int],
    offset: int,
    max_bytes: int,
    *,
    up_to: int,
    log_end_offset: int,
    min_one_batch: bool,
) -> tuple[list[Buffer], int]:
    """Return whole batches of the first segment with any from ``offset`` on, and their end; see ``Log.read``."""
    max_bytes = min(max_bytes, MAX_READ_BYTES)
    for index in range(max(0, bisect_right(bases, offset) - 1), len(segments)):
        end = bases[index + 1] if index + 1 < len(bases) else log_end_offset
        found = segments[index].read(offset, max_bytes, up_to, end, min_one_batch)
        if found is not None:
            return found
    return [], offset


def find_aborted(
    segments: Sequence[Segment], bases: Sequence[int], offset: int, up_to: int
) -> list[AbortedTransaction]:
    """Return the aborted transactions with records from ``offset`` on and below ``up_to``, ordered by markers."""
    found: list[AbortedTransaction] = []
    for index in range(max(0, bisect_right(bases, offset) - 1), len(segments)):
        if segments[index].transaction_index.collect(offset, up_to, found):
            break
    return found


def find_timestamp(segments: Sequence[Segment], timestamp: int, from_offset: int) -> TimestampOffset | None:
    """Return the first record from ``from_offset`` on that is not older than ``timestamp``."""
    for segment in segments:
        if segment.max_timestamp >= timestamp:
            found = segment.find_timestamp(timestamp, from_offset, MAX_DECOMPRESSED_BYTES)
            if found is not None:
                return TimestampOffset(found[0].timestamp, found[0].offset, found[1])
    return None


def find_max_timestamp(segments: Sequence[Segment]) -> TimestampOffset | None:
    """Return the first record with the greatest timestamp; ``None`` if no record has one."""
    newest = max(segments, key=lambda segment: segment.max_timestamp)
    if newest.max_timestamp < 0:
        return None
    found = newest.find_max_timestamp(MAX_DECOMPRESSED_BYTES)
    return None if found is None else TimestampOffset(found[0].timestamp, found[0].offset, found[1])
