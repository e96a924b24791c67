"""Which part of a log is cleaned, whether it is due, and which segments become one (``LogCleanerManager``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aioproducer.broker.log.config import LogConfig
from aioproducer.wire.varint import INT32_MAX


class SegmentFacts(NamedTuple):
    """What the selection needs to know of a segment."""

    base_offset: int
    size: int
    """Bytes of the log file."""
    index_size: int
    """Bytes of the offset index."""
    time_index_size: int
    """Bytes of the time index."""
    max_timestamp: int
    """Milliseconds, -1 if the records have none."""
    first_timestamp: int
    """The greatest timestamp of the first batch, in milliseconds; -1 for an empty segment or without timestamps."""


class Cleanable(NamedTuple):
    """The part of a log that can be cleaned."""

    first_dirty_offset: int
    """The records from here on were never cleaned."""
    end_offset: int
    """The base offset of the first segment that stays as it is."""
    ratio: float
    """The part of the bytes below ``end_offset`` that is dirty; 0 for an empty log."""
    is_due: bool
    """Whether the log is to be cleaned now."""
    is_checkpoint_invalid: bool
    """Whether the checkpoint lies outside the log; it must be replaced by ``first_dirty_offset``."""


def cleanable_part(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    now_ms: int,
    *,
    checkpoint: int | None,
    log_start_offset: int,
    log_end_offset: int,
    last_stable_offset: int,
) -> Cleanable:
    """Return the part of a log that can be cleaned, and whether that is due.

    The active segment stays as it is, and so do segments with offsets from the last stable offset on, and those with
    records that are younger than ``min.compaction.lag.ms``. Cleaning is due if the dirty part is larger than
    ``min.cleanable.dirty.ratio``, or if it holds records older than ``max.compaction.lag.ms``.

    Args:
        segments: the oldest first; the last one is the active one.
        checkpoint: where the last cleaning ended, if there was one.
    """
    is_invalid = checkpoint is not None and not log_start_offset <= checkpoint <= log_end_offset
    first_dirty = log_start_offset if checkpoint is None or is_invalid else checkpoint
    active = segments[-1].base_offset
    dirty = _from(segments[:-1], first_dirty, active)
    limit = min(last_stable_offset, active)
    if config.min_compaction_lag_ms > 0:
        youngest = now_ms - config.min_compaction_lag_ms
        limit = min([limit, *(each.base_offset for each in dirty if each.max_timestamp > youngest)])
    limit = max(first_dirty, limit)
    uncleanable = _from(segments[:-1], limit, active)
    end = uncleanable[0].base_offset if uncleanable else active
    dirty_bytes = sum(each.size for each in _from(segments, min(first_dirty, end), end))
    clean_bytes = sum(each.size for each in segments if each.base_offset < first_dirty)
    total = dirty_bytes + clean_bytes
    ratio = dirty_bytes / total if total else 0.0
    oldest = min((each.first_timestamp for each in dirty if each.first_timestamp > 0), default=now_ms)
    is_too_old = oldest < now_ms - config.max_compaction_lag_ms
    is_due = bool(total) and ((is_too_old and dirty_bytes > 0) or ratio > config.min_cleanable_dirty_ratio)
    return Cleanable(first_dirty, end, ratio, is_due, is_invalid)


def _from(segments: Sequence[SegmentFacts], start: int, end: int) -> list[SegmentFacts]:
    """Return the segments that begin below ``end``, from the one that holds ``start`` on; none unless start < end."""
    if start >= end:
        return []
    first = max((index for index, each in enumerate(segments) if each.base_offset <= start), default=0)
    return [each for each in segments[first:] if each.base_offset < end]


def group_segments(segments: Sequence[SegmentFacts], config: LogConfig, end_offset: int) -> list[tuple[int, int]]:
    """Divide segments that are cleaned into groups, each of which becomes one segment (``groupSegmentsBySize``).

    A group fits ``segment.bytes`` and ``segment.index.bytes`` even if nothing is dropped, and its offsets fit 31 bits.

    Args:
        segments: the oldest first.
        end_offset: the base offset of the first segment that is not cleaned.

    Returns:
        The first index of each group, and the index behind its last.
    """
    groups: list[tuple[int, int]] = []
    start = 0
    while start < len(segments):
        log_size, index_size, time_index_size = segments[start][1:4]
        stop = start + 1
        while stop < len(segments):
            each = segments[stop]
            last = (segments[stop + 1].base_offset if stop + 1 < len(segments) else end_offset) - 1
            log_size += each.size
            index_size += each.index_size
            time_index_size += each.time_index_size
            if (
                log_size > config.segment_bytes
                or index_size > config.segment_index_bytes
                or time_index_size > config.segment_index_bytes
                or (each.size and last - segments[start].base_offset > INT32_MAX)
            ):
                break
            stop += 1
        groups.append((start, stop))
        start = stop
    return groups
