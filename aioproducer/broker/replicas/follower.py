"""The state of a follower at its leader (Kafka's ``kafka.cluster.Replica``)."""

from __future__ import annotations

import math
from dataclasses import dataclass

UNKNOWN_OFFSET = -1


@dataclass(slots=True)
class Follower:
    """The state of one follower. Times are those of ``PartitionHost.now``."""

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    last_fetch_leader_end: int = UNKNOWN_OFFSET
    """The end of the leader's log at the follower's last Fetch."""
    last_fetch_time: float = -math.inf
    last_caught_up_time: float = -math.inf
    """The latest time at which the follower had the leader's whole log."""
    broker_epoch: int | None = None
    """The broker epoch in its last Fetch (KIP-903); -1 if that had none, ``None`` before the first Fetch."""

    def fetched(self, offset: int, log_start_offset: int, now: float, leader_end: int, broker_epoch: int) -> None:
        """Record a Fetch from ``offset`` on, received while the leader's log ended at ``leader_end``.

        A follower that fetches from the leader's end has caught up now. One that fetches from the leader's end at its
        previous Fetch had caught up then. Without this rule, a follower of a partition with constant writes would never
        count as caught up.
        """
        if offset >= leader_end:
            self.last_caught_up_time = max(self.last_caught_up_time, now)
        elif offset >= self.last_fetch_leader_end:
            self.last_caught_up_time = max(self.last_caught_up_time, self.last_fetch_time)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.last_fetch_leader_end = max(leader_end, self.last_fetch_leader_end)
        self.last_fetch_time = now
        self.broker_epoch = broker_epoch

    def is_caught_up(self, leader_end: int, now: float, lag_time_max: float) -> bool:
        """Return whether the follower has the whole log, or had it within the last ``lag_time_max`` seconds."""
        return self.log_end_offset == leader_end or now - self.last_caught_up_time <= lag_time_max
