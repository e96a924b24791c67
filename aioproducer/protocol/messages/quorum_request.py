"""DescribeQuorum. The request is in a module of its own because Kafka has structs of the same names in the response."""

from __future__ import annotations

from aioproducer.protocol.messages.quorum import DescribeQuorumResponse
from aioproducer.protocol.schema import Request, Struct, array, int32, string


class PartitionData(Struct):
    """A partition to describe."""

    partition_index: int = int32("0+")


class TopicData(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class DescribeQuorumRequest(Request[DescribeQuorumResponse], api_key=55, versions="0-2", flexible="0+"):
    """Which replicas to describe: Kafka has only partition 0 of ``__cluster_metadata``."""

    topics: list[TopicData] = array(TopicData, "0+")
