"""What connections over RDMA have done, counted."""

from __future__ import annotations


class Counters:
    """What the connections of one connector or listener have done so far.

    bytes_sent
        Of everything that was written.
    bytes_copied
        Of those: copied into a send ring on their way.
    writes_posted
        Those with credits alone included.
    completions
        Taken, of writes and of receives.
    signals
        Writes that asked for a completion.
    """

    def __init__(self) -> None:
        self.bytes_sent = 0
        self.bytes_copied = 0
        self.writes_posted = 0
        self.completions = 0
        self.signals = 0
