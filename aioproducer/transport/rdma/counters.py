"""Compiled. Counters of connections over RDMA."""

from __future__ import annotations


class Counters:
    """Totals over the connections of one connector or listener so far.

    bytes_sent
        All written bytes.
    bytes_copied
        Bytes of those that were copied into a send ring.
    writes_posted
        Posted writes, including those with only credits.
    completions
        Handled completions, of writes and of receives.
    signals
        Writes that requested a completion.
    """

    def __init__(self) -> None:
        self.bytes_sent = 0
        self.bytes_copied = 0
        self.writes_posted = 0
        self.completions = 0
        self.signals = 0
