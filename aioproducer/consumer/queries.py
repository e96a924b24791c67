"""What a consumer asks the cluster for its caller: a topic's partitions, and offsets by ListOffsets to each leader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from aioproducer.core.fetching.lookups import OffsetAndTimestamp, found_timestamps, timestamps_request
from aioproducer.core.metadata.cluster import NO_LEADER
from aioproducer.core.metadata.cluster_view import MetadataView
from aioproducer.errors import (
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
    broker_error,
)
from aioproducer.record import PartitionInfo, TopicPartition

if TYPE_CHECKING:
    from aioproducer.io.client import BrokerClient


FIRST_OFFSET = -2
"""Instead of a timestamp: the first record of the log."""
END_OFFSET = -1
"""Instead of a timestamp: behind the last record, or the first open transaction."""


async def partitions_for(client: BrokerClient, topic: str, timeout: float) -> list[PartitionInfo]:
    """Return a topic's partitions, ordered by number.

    Raises:
        BrokerError: the cluster has no such topic, or denies access to it.
        KafkaTimeoutError: there was no response in time, or the topic has no leaders yet.
    """
    last: KafkaError | None = None
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        try:
            if last is not None:
                # The topic is being created: the next metadata, after a backoff, may have its leaders.
                await client.renew_metadata(deadline - loop.time())
            await client.partition_count(topic, deadline - loop.time())
        except LeaderNotAvailableError as error:
            last = error
        except KafkaTimeoutError:
            if last is None:
                raise
            raise KafkaTimeoutError(
                f"The partitions of {topic} were not found within {timeout:.3g} s: {last}"
            ) from last
        else:
            return list(MetadataView(client.metadata).partitions_for(topic))


async def offsets_for_times(
    client: BrokerClient, timestamps: Mapping[TopicPartition, int], isolation_level: int, timeout: float
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Return the first record of each partition that is not older than its timestamp, None without one.

    Raises:
        KafkaError: a broker rejects the request.
        KafkaTimeoutError: not all leaders answered in time; the text contains the last error.
    """
    found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    last: KafkaError | None = None
    deadline = asyncio.get_running_loop().time() + timeout
    try:
        async with asyncio.timeout(timeout):
            for topic in {name.topic for name in timestamps}:
                await client.partition_count(topic, timeout)
            while True:
                left = {name: timestamp for name, timestamp in timestamps.items() if name not in found}
                if not left:
                    return {name: found[name] for name in timestamps}
                last = await _ask(client, left, found, isolation_level, deadline)
                if last is not None:
                    await client.renew_metadata(deadline - asyncio.get_running_loop().time())
    except TimeoutError as error:
        if last is not None:
            raise KafkaTimeoutError(f"The offsets were not found within {timeout:.3g} s: {last}") from last
        if isinstance(error, KafkaError):
            raise
        raise KafkaTimeoutError(f"The offsets were not found within {timeout:.3g} s.") from None


async def offsets_at(
    client: BrokerClient, partitions: Iterable[TopicPartition], which: int, isolation_level: int, timeout: float
) -> dict[TopicPartition, int]:
    """Return ``FIRST_OFFSET`` or ``END_OFFSET`` of each partition.

    Raises:
        KafkaError, KafkaTimeoutError: as ``offsets_for_times``.
    """
    found = await offsets_for_times(client, dict.fromkeys(partitions, which), isolation_level, timeout)
    # Every log has these two, so that None does not occur.
    return {name: each.offset for name, each in found.items() if each is not None}


async def _ask(
    client: BrokerClient,
    timestamps: Mapping[TopicPartition, int],
    found: dict[TopicPartition, OffsetAndTimestamp | None],
    isolation_level: int,
    deadline: float,
) -> KafkaError | None:
    """Ask each leader once, add to ``found``, and return an error that a retry may cure."""
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for name, timestamp in timestamps.items():
        by_leader.setdefault(client.leader(*name), {})[name] = timestamp
    last: KafkaError | None = None
    for leader, part in by_leader.items():
        if leader == NO_LEADER:
            last = _without_leader(client, next(iter(part)))
            continue
        request = timestamps_request(part, {}, isolation_level)
        left = deadline - asyncio.get_running_loop().time()
        try:
            response = await client.request(request, node_id=leader, lowest=1, timeout=left)
        except KafkaError as error:
            if not error.retriable:
                raise
            last = error
            continue
        offsets, codes = found_timestamps(response)
        found.update(offsets)
        for name, code in codes.items():
            refusal = broker_error(code)
            refusal.args = (f"Partition {name}: {refusal}",)
            if not refusal.retriable:
                raise refusal
            last = refusal
    return last


def _without_leader(client: BrokerClient, partition: TopicPartition) -> KafkaError:
    known = client.metadata.topic(partition.topic)
    if known is not None and partition.partition >= len(known.partitions):
        return UnknownTopicOrPartitionError(
            f"Topic {partition.topic} has no partition {partition.partition}: it has {len(known.partitions)}."
        )
    return LeaderNotAvailableError(f"Partition {partition} has no leader at present.")
