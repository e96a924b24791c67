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
    since_ms: int | None = None
    """With BY_DURATION, after ``begun``: the least timestamp, in milliseconds since 1970."""

    def begun(self, wall_ms: int) -> OffsetReset:
        """Return the policy of a lookup that begins now; ``wall_ms`` is the time in milliseconds since 1970.

        With BY_DURATION the time counts from the first lookup: a later one, made when no record was young enough,
        returns the first record since then. Java computes it again, and may skip records with a short duration.
        """
        if self.kind is not ResetKind.BY_DURATION or self.since_ms is not None:
            return self
        return self._replace(since_ms=max(wall_ms - self.duration_ms, 0))

    @property
    def timestamp(self) -> int:
        """The timestamp for ListOffsets.

        Raises:
            AssertionError: the policy is NONE, which looks up nothing.
        """
        match self.kind:
            case ResetKind.EARLIEST:
                return EARLIEST_TIMESTAMP
            case ResetKind.LATEST:
                return LATEST_TIMESTAMP
            case ResetKind.BY_DURATION:
                assert self.since_ms is not None
                return self.since_ms
            case ResetKind.NONE:
                raise AssertionError("auto.offset.reset=none looks up no offset")


EARLIEST = OffsetReset(ResetKind.EARLIEST)
LATEST = OffsetReset(ResetKind.LATEST)
NONE = OffsetReset(ResetKind.NONE)
