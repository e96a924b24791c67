"""The bytes fields of JoinGroup and SyncGroup through which members of a consumer group communicate.

A version precedes each message: see ``encode_version_prefixed``.
"""

from __future__ import annotations

from aioproducer.protocol.schema import (
    INT32,
    STRING,
    Data,
    Struct,
    array,
    binary,
    int32,
    string,
)


class TopicPartition(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[int] = array(INT32, "0+")


class ConsumerProtocolSubscription(Data, versions="0-3"):
    """A member's topics and, for cooperative rebalancing, its current partitions (KIP-429)."""

    topics: list[str] = array(STRING, "0+")
    user_data: bytes | None = binary("0+", nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = array(TopicPartition, "1+", ignorable=True)
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Data, versions="0-3"):
    """The partitions that a member reads."""

    assigned_partitions: list[TopicPartition] = array(TopicPartition, "0+")
    user_data: bytes | None = binary("0+", nullable="0+", default=None)
