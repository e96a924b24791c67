"""The consumer's metrics, under Kafka's names.

As the producer's (``aioproducer.metrics``): sensors record values per request, wait or call of the rebalance listener,
and the tables map each name to a sensor and a measure. Times are milliseconds unless a name says otherwise.
"""

from __future__ import annotations

import math

from aioproducer.metrics import (
    CONNECTION_METRICS,
    CONNECTIONS_LEFT_OUT,
    ConnectionMetrics,
    MetricSpec,
    NodeMetrics,
    Sensor,
    average_and_maximum,
    event_meter,
    maximum,
    measure,
    meter,
    total,
)
from aioproducer.protocol import ApiKey
from aioproducer.record import TopicPartition


def _per_hour(sensor: Sensor, now: float) -> float:
    """Return the number of recent values per hour."""
    return sensor.event_rate(now) * 3600


def _rebalances(name: str, sensor: str, meaning: str) -> tuple[MetricSpec, MetricSpec]:
    return (
        MetricSpec(f"{name}-rate-per-hour", sensor, _per_hour, f"{meaning}, per hour."),
        MetricSpec(f"{name}-total", sensor, Sensor.number_of_values, f"{meaning}, in total."),
    )


CONSUMER_METRICS: tuple[MetricSpec, ...] = (
    *meter("bytes-consumed", "fetch_size", "Bytes of record batches received"),
    *meter("records-consumed", "records_consumed", "Records returned to the caller"),
    *event_meter("fetch", "fetch_latency", "Fetch requests answered"),
    *average_and_maximum("fetch-latency", "fetch_latency", "time in ms from a Fetch request to its response"),
    *average_and_maximum("fetch-size", "fetch_size", "size in bytes of the record batches of a Fetch response"),
    *average_and_maximum("fetch-throttle-time", "fetch_throttle", "time in ms that a broker throttled a Fetch request"),
    *event_meter("commit", "commit_latency", "OffsetCommit requests answered"),
    *average_and_maximum("commit-latency", "commit_latency", "time in ms from an OffsetCommit request to its response"),
    *event_meter("heartbeat", "heartbeat_latency", "Heartbeats answered"),
    maximum("heartbeat-response-time", "heartbeat_latency", "time in ms from a heartbeat to its response"),
    *event_meter("join", "join_time", "JoinGroup requests that were accepted"),
    *average_and_maximum("join-time", "join_time", "time in ms from a JoinGroup request to its response"),
    *event_meter("sync", "sync_time", "SyncGroup requests that were accepted"),
    *average_and_maximum("sync-time", "sync_time", "time in ms from a SyncGroup request to its response"),
    *_rebalances("rebalance", "rebalance_latency", "Rebalances that ended with an assignment"),
    *_rebalances("failed-rebalance", "failed_rebalance", "Rebalances that ended without an assignment"),
    *average_and_maximum(
        "rebalance-latency", "rebalance_latency", "time in ms from the beginning of a rebalance to the assignment"
    ),
    total("rebalance-latency", "rebalance_latency", "Milliseconds of all rebalances that ended with an assignment."),
    *average_and_maximum("partition-revoked-latency", "revoked_latency", "time in ms that on_revoked took"),
    *average_and_maximum("partition-assigned-latency", "assigned_latency", "time in ms that on_assigned took"),
    *average_and_maximum("partition-lost-latency", "lost_latency", "time in ms that on_lost took"),
    total("commit-sync-time-ns", "commit_wait", "Nanoseconds spent in commit()."),
    total("committed-time-ns", "committed_wait", "Nanoseconds spent in committed()."),
    *CONNECTION_METRICS,
)
"""Kafka's groups ``consumer-metrics``, ``consumer-fetch-manager-metrics`` and ``consumer-coordinator-metrics``."""

CONSUMER_GAUGES: dict[str, str] = {
    "connection-count": "Open connections.",
    "assigned-partitions": "Assigned partitions.",
    "records-lag-max": "The largest lag of the assigned partitions now; NaN if none is known.",
    "records-lead-min": "The smallest lead of the assigned partitions now; NaN if none is known.",
    "last-poll-seconds-ago": "Seconds since records were last requested, 0 now, -1 before and without a group.",
    "last-heartbeat-seconds-ago": "Seconds since the last heartbeat was sent, -1 before.",
    "last-rebalance-seconds-ago": "Seconds since the last rebalance ended with an assignment, -1 before.",
}
"""The gauges among them, by name, with their meaning."""

PARTITION_GAUGES: dict[str, str] = {
    "records-lag": "Offsets from the position to the end, with read_committed to the first open transaction, or NaN.",
    "records-lead": "Offsets from the beginning of the log to the position, or NaN.",
    "preferred-read-replica": "The broker that the partition is read from if it is not the leader, or -1 (KIP-392).",
}
"""Gauges of one partition, in Kafka's group ``consumer-fetch-manager-metrics``."""

_ONLY_NOW = "a partition has its values of this moment: their maxima and averages are the reader's"
_PER_RECORD = "an iteration asks for every record: the measurement would cost more than the record"

CONSUMER_LEFT_OUT: dict[str, str] = {
    **CONNECTIONS_LEFT_OUT,
    "poll-idle-ratio-avg": _PER_RECORD,
    "time-between-poll-avg": _PER_RECORD,
    "time-between-poll-max": _PER_RECORD,
    "records-per-request-avg": "records are counted when they are returned: divide records-consumed by fetch",
    "records-lag-avg": _ONLY_NOW,
    "records-lead-avg": _ONLY_NOW,
}
"""Names of the Java consumer's groups that do not exist here, with the reason."""


class ConsumerMetricsSnapshot(dict[str, float]):
    """All metrics at one moment: ``snapshot["records-lag-max"]`` and so on.

    ``snapshot.partitions[TopicPartition("clicks", 0)]["records-lag"]`` is of one assigned partition.
    ``snapshot.nodes[1]["request-latency-avg"]`` is in the group ``consumer-node-metrics``, by the broker's id.
    """

    def __init__(
        self,
        values: dict[str, float],
        partitions: dict[TopicPartition, dict[str, float]],
        nodes: dict[int, dict[str, float]],
    ) -> None:
        super().__init__(values)
        self.partitions = partitions
        self.nodes = nodes


class ConsumerMetrics(ConnectionMetrics):
    """All metrics of one consumer; ``now`` is always in seconds of the loop's clock."""

    def __init__(self, num_samples: int = 2, sample_window_ms: int = 30_000) -> None:
        super().__init__(num_samples, sample_window_ms)
        self.fetch_latency = self._new_sensor()
        self.fetch_size = self._new_sensor()
        self.fetch_throttle = self._new_sensor()
        self.records_consumed = self._new_sensor()
        self.commit_latency = self._new_sensor()
        self.heartbeat_latency = self._new_sensor()
        self.join_time = self._new_sensor()
        self.sync_time = self._new_sensor()
        self.rebalance_latency = self._new_sensor()
        self.failed_rebalance = self._new_sensor()
        self.revoked_latency = self._new_sensor()
        self.assigned_latency = self._new_sensor()
        self.lost_latency = self._new_sensor()
        self.commit_wait = self._new_sensor()
        self.committed_wait = self._new_sensor()
        self.heartbeat_at = -math.inf
        """When the last heartbeat was sent."""
        self.rebalanced_at = -math.inf
        """When the last rebalance ended with an assignment."""
        self._rebalance_began: float | None = None

    def records_returned(self, count: int, since: float, now: float) -> None:
        """Record that records were returned between two times; evenly, as the moments are unknown."""
        window = self._sample_window
        windows = min(int((now - since) / window), self._num_samples)
        share = int(count * window / (now - since)) if windows else 0
        self.records_consumed.record(count - windows * share, since if windows else now)
        for back in range(windows, 0, -1):
            self.records_consumed.record(share, now - back * window)

    def fetched(self, node: NodeMetrics | None, size: int, throttle_time_ms: float, began: float, now: float) -> None:
        """Record a Fetch response: ``size`` bytes of record batches to a request of the time ``began``.

        ``node`` is None for a broker that has left the cluster meanwhile.
        """
        latency_ms = (now - began) * 1000
        self.fetch_latency.record(latency_ms, now)
        self.fetch_size.record(size, now)
        self.fetch_throttle.record(throttle_time_ms, now)
        if node is not None:
            node.latency.record(latency_ms, now)

    def group_answered(self, api_key: ApiKey, error_code: int, began: float, now: float) -> None:
        """Record the response to a request of the group's member of the time ``began``."""
        latency_ms = (now - began) * 1000
        if api_key is ApiKey.OFFSET_COMMIT:
            self.commit_latency.record(latency_ms, now)
        elif api_key is ApiKey.HEARTBEAT:
            self.heartbeat_latency.record(latency_ms, now)
        elif api_key is ApiKey.JOIN_GROUP and not error_code:
            self.join_time.record(latency_ms, now)
        elif api_key is ApiKey.SYNC_GROUP and not error_code:
            self.sync_time.record(latency_ms, now)

    def rebalance_begins(self, now: float) -> None:
        """Record that the member joins, unless it does so already."""
        if self._rebalance_began is None:
            self._rebalance_began = now

    def rebalance_ended(self, now: float, *, has_assignment: bool) -> None:
        """Record the end of a rebalance, if one has begun."""
        began, self._rebalance_began = self._rebalance_began, None
        if began is None:
            return
        if has_assignment:
            self.rebalance_latency.record((now - began) * 1000, now)
            self.rebalanced_at = now
        else:
            self.failed_rebalance.record(1, now)

    def snapshot(
        self, gauges: dict[str, float], partitions: dict[TopicPartition, dict[str, float]], now: float
    ) -> ConsumerMetricsSnapshot:
        """Return the value of every metric at ``now``, with the gauges, which the consumer reads itself."""
        return ConsumerMetricsSnapshot(
            measure(CONSUMER_METRICS, self, now) | gauges, partitions, self.measure_nodes(now)
        )
