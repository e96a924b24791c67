"""Where reading begins without a valid position: ``auto_offset_reset``, and the seeks to either end."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2


class ResetKind(Enum):
    """The policies of ``auto.offset.reset``."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    BY_DURATION = "by_duration"


class OffsetReset(NamedTuple):
    """A policy; ``duration_ms`` counts with BY_DURATION only (KIP-1106): records of the last milliseconds."""

    kind: ResetKind
    duration_ms: int = 0

    def timestamp(self, wall_ms: int) -> int:
        """Return the timestamp for ListOffsets; ``wall_ms`` is the time in milliseconds since 1970.

        Raises:
            AssertionError: the policy is NONE, which looks up nothing.
        """
        match self.kind:
            case ResetKind.EARLIEST:
                return EARLIEST_TIMESTAMP
            case ResetKind.LATEST:
                return LATEST_TIMESTAMP
            case ResetKind.BY_DURATION:
                return max(wall_ms - self.duration_ms, 0)
            case ResetKind.NONE:
                raise AssertionError("auto.offset.reset=none looks up no offset")


EARLIEST = OffsetReset(ResetKind.EARLIEST)
LATEST = OffsetReset(ResetKind.LATEST)
NONE = OffsetReset(ResetKind.NONE)
