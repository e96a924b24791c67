"""What happened, as lines, and the digest of the lines."""

from __future__ import annotations

import hashlib
from collections import deque

_LAST = 40
"""Lines that are kept in any case, for the report of a failure."""


class Trace:
    """Events in order. All lines are kept if ``keep`` is set; the digest covers all of them."""

    def __init__(self, *, keep: bool = False) -> None:
        self.lines: deque[str] = deque(maxlen=None if keep else _LAST)
        self.is_kept = keep
        self._hash = hashlib.sha256()

    def note(self, at: float, text: str) -> None:
        """Add an event at loop time ``at``, in seconds."""
        line = f"{at:.6f} {text}\n"
        self._hash.update(line.encode())
        self.lines.append(line)

    @property
    def digest(self) -> str:
        """Digest of the events so far, in hexadecimal."""
        return self._hash.hexdigest()
