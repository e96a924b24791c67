"""The gauges of a consumer's metrics, read from its partitions, its group and its connections."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioproducer.consumer.connections import Clients
    from aioproducer.consumer.membership import Membership
    from aioproducer.consumer_metrics import ConsumerMetrics
    from aioproducer.core.fetching.fetcher import Fetcher
    from aioproducer.core.fetching.partition import AssignedPartition
    from aioproducer.record import TopicPartition


def read_partitions(fetcher: Fetcher, now: float) -> dict[TopicPartition, dict[str, float]]:
    """Return the gauges of ``PARTITION_GAUGES``, of every assigned partition."""
    is_committed = fetcher.settings.is_committed
    return {name: _read_partition(each, is_committed, now) for name, each in fetcher.partitions.items()}


def _read_partition(partition: AssignedPartition, is_committed: bool, now: float) -> dict[str, float]:
    lag, lead = partition.lag(is_committed=is_committed), partition.lead()
    return {
        "records-lag": math.nan if lag is None else float(lag),
        "records-lead": math.nan if lead is None else float(lead),
        "preferred-read-replica": float(partition.read_replica) if now < partition.read_replica_until else -1.0,
    }


def read_gauges(
    clients: Clients,
    membership: Membership | None,
    metrics: ConsumerMetrics,
    partitions: dict[TopicPartition, dict[str, float]],
    now: float,
) -> dict[str, float]:
    """Return the gauges of ``CONSUMER_GAUGES``; ``partitions`` are those of ``read_partitions``."""
    lags = [each["records-lag"] for each in partitions.values() if not math.isnan(each["records-lag"])]
    leads = [each["records-lead"] for each in partitions.values() if not math.isnan(each["records-lead"])]
    return {
        "connection-count": float(sum(client.connection_count for client in clients)),
        "assigned-partitions": float(len(partitions)),
        "records-lag-max": max(lags, default=math.nan),
        "records-lead-min": min(leads, default=math.nan),
        "last-poll-seconds-ago": _seconds_since(_polled_at(membership, now), now),
        "last-heartbeat-seconds-ago": _seconds_since(metrics.heartbeat_at, now),
        "last-rebalance-seconds-ago": _seconds_since(metrics.rebalanced_at, now),
    }


def _polled_at(membership: Membership | None, now: float) -> float:
    if membership is None:
        return -math.inf
    return now if membership.is_waiting else membership.polled_at


def _seconds_since(then: float, now: float) -> float:
    return -1.0 if then == -math.inf else now - then
