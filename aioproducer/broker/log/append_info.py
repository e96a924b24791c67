"""The result of an append."""

from __future__ import annotations

from typing import NamedTuple


class AppendInfo(NamedTuple):
    """The offsets and timestamps of an appended batch."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    """Milliseconds, -1 if the records have none."""
    log_append_time_ms: int
    """The value for a Produce response: -1 unless the topic stamps append times; of a duplicate, the original's."""
    log_start_offset: int
    is_duplicate: bool
    """Whether the batch is a duplicate. Nothing was written, and the offsets are those of the original."""
    size: int
    """Bytes written."""
