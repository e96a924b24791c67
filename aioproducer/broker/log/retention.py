"""The segments that retention deletes (``UnifiedLog.deleteOldSegments``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aioproducer.broker.log.config import LogConfig
from aioproducer.broker.log.segment import Segment


def count_old_segments(
    segments: Sequence[Segment],
    config: LogConfig,
    now_ms: int,
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
) -> int:
    """Return the number of segments to delete, counted from the oldest.

    First segments that end at or below the log's start are deleted, then those by which the log exceeds
    ``retention.bytes``, then those with a newest record older than ``retention.ms``. Only whole segments are deleted,
    and none that reaches above ``high_watermark``. An empty active one stays.
    """

    def end_of(index: int) -> int:
        return log_end_offset if index + 1 == len(segments) else segments[index + 1].base_offset

    def count_from(count: int, goes: Callable[[int], bool]) -> int:
        while count < len(segments):
            is_empty_and_active = count + 1 == len(segments) and not segments[count].size
            if is_empty_and_active or high_watermark < end_of(count) or not goes(count):
                break
            count += 1
        return count

    count = count_from(0, lambda index: index + 1 < len(segments) and end_of(index) <= log_start_offset)
    if not config.deletes:
        return count
    if config.retention_bytes >= 0:
        excess = sum(segment.size for segment in segments[count:]) - config.retention_bytes

        def is_too_much(index: int) -> bool:
            nonlocal excess
            excess -= segments[index].size
            return excess >= 0

        count = count_from(count, is_too_much)
    if config.retention_ms >= 0:
        count = count_from(count, lambda index: now_ms - _newest(segments[index]) > config.retention_ms)
    return count


def _newest(segment: Segment) -> int:
    """Return the timestamp of the newest record; without timestamps, the time when the segment was opened."""
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
