"""What an append answers."""

from __future__ import annotations

from typing import NamedTuple


class AppendInfo(NamedTuple):
    """Where a batch went."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    """Milliseconds, -1 if the records have none."""
    log_append_time_ms: int
    """What Produce answers: -1 unless the topic stamps the append's time; of a duplicate, the original's timestamp."""
    log_start_offset: int
    is_duplicate: bool
    """Nothing was written: the offsets are those of the batch that is there."""
    size: int
    """Bytes written."""
