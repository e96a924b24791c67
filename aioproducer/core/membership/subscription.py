"""What the members of a group exchange: subscriptions and assignments (Kafka's ``ConsumerProtocol``).

The formats have the versions 0 to 3: owned partitions since 1 (KIP-429), the generation since 2, the rack since 3
(KIP-881). Members write the newest one; each version only adds fields, so that an older reader ignores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aioproducer.offsets import numbers_by_topic
from aioproducer.protocol.frames import decode_version_prefixed, encode_version_prefixed
from aioproducer.protocol.messages import consumer_protocol
from aioproducer.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from aioproducer.record import TopicPartition

PROTOCOL_TYPE = "consumer"
NEWEST_VERSION = 3
NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member tells the leader, and who it is (``ConsumerPartitionAssignor.Subscription``)."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    """The assignor's own bytes."""
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    """The generation in which the member owned them; -1 if it had none, or does not tell."""
    rack: str | None = None
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the leader tells one member (``ConsumerPartitionAssignor.Assignment``)."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, version: int = NEWEST_VERSION) -> bytes:
    """Return the bytes of a subscription, with its version before it; topics and partitions are sorted, as Kafka's."""
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=by_topic(sorted(subscription.owned_partitions)),
        generation_id=subscription.generation_id,
        rack_id=subscription.rack,
    )
    return encode_version_prefixed(message, version)


def decode_subscription(data: bytes, group_instance_id: str | None = None) -> Subscription:
    """Return the subscription of a member; of a newer version, the known fields.

    Raises:
        ProtocolError: the bytes are no subscription.
    """
    message = decode_version_prefixed(ConsumerProtocolSubscription, data)
    return Subscription(
        topics=tuple(message.topics),
        user_data=message.user_data,
        owned_partitions=tuple(flat(message.owned_partitions)),
        generation_id=max(message.generation_id, NO_GENERATION),
        rack=message.rack_id or None,
        group_instance_id=group_instance_id,
    )


def encode_assignment(assignment: Assignment, version: int = NEWEST_VERSION) -> bytes:
    """Return the bytes of an assignment, with its version before it."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=by_topic(assignment.partitions), user_data=assignment.user_data
    )
    return encode_version_prefixed(message, version)


def decode_assignment(data: bytes) -> Assignment:
    """Return the assignment of a member; of a newer version, the known fields.

    Raises:
        ProtocolError: the bytes are no assignment.
    """
    message = decode_version_prefixed(ConsumerProtocolAssignment, data)
    return Assignment(tuple(flat(message.assigned_partitions)), message.user_data)


def by_topic(partitions: Iterable[TopicPartition]) -> list[consumer_protocol.TopicPartition]:
    """Return the partitions with one entry for each topic, in the order in which topics occur first."""
    topics = numbers_by_topic(partitions).items()
    return [consumer_protocol.TopicPartition(topic=topic, partitions=of) for topic, of in topics]


def flat(topics: Sequence[consumer_protocol.TopicPartition]) -> Iterable[TopicPartition]:
    """Iterate over the partitions of the entries that ``by_topic`` returns."""
    for entry in topics:
        for partition in entry.partitions:
            yield TopicPartition(entry.topic, partition)


TopicRacks = Mapping[str, Sequence[frozenset[str]]]
"""For each topic with metadata, and each of its partitions from 0 on: the racks of the replicas, if they have any."""
