"""A fetcher, its metadata, and responses of brokers, for the tests of ``core.fetching``."""

from __future__ import annotations

import logging
from random import Random

from aioproducer.core.fetching.buffer import decompressed
from aioproducer.core.fetching.fetcher import Fetcher, FetcherSettings
from aioproducer.core.fetching.lookups import PositionLookups
from aioproducer.core.fetching.partition import FetchState
from aioproducer.core.fetching.reset import EARLIEST
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from aioproducer.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aioproducer.protocol.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from aioproducer.record import TopicPartition
from aioproducer.wire.record_batch import SimpleRecord, encode_batch

TOPIC_ID = b"i" * 16


def batch(base_offset, count=5, epoch=0, value=b"v", **options):
    """The bytes of a batch."""
    return b"".join(
        encode_batch(
            [SimpleRecord(0, b"k", value)] * count, base_offset=base_offset, partition_leader_epoch=epoch, **options
        )
    )


class FetchingWorld:
    """Partitions of topic ``a``, and what the brokers say of them. ``now`` is the loop's time."""

    def __init__(self, partitions=1, **settings):
        self.now = 100.0
        self.wall_ms = 1_800_000_000_000
        self.metadata = ClusterMetadata(
            [("bootstrap", 9092)], random=Random(0), retry_backoff_ms=100, retry_backoff_max_ms=100
        )
        self.settings = FetcherSettings(
            **{
                "min_bytes": 1,
                "max_wait_ms": 500,
                "max_bytes": 10_000,
                "max_partition_bytes": 1_000,
                "buffer_bytes": 20_000,
                "isolation_level": 0,
                "check_crcs": True,
                "reset": EARLIEST,
                "rack": "",
                "retry_backoff": ExponentialBackoff(100, 1000, jitter=0),
                "metadata_max_age": 300.0,
                **settings,
            }
        )
        self.fetcher = Fetcher(self.settings, self.metadata, Random(0), logging.getLogger("test"))
        self.lookups = PositionLookups(self.fetcher)
        self.names = [TopicPartition("a", index) for index in range(partitions)]
        self.leaders = dict.fromkeys(range(partitions), 1)
        self.epochs = dict.fromkeys(range(partitions), 0)
        self.topic_id = TOPIC_ID

    def update_metadata(self, error_code=0):
        """The brokers answer a Metadata request."""
        self.metadata.request_update(self.now, "test")
        self.now += 1.0
        self.metadata.build_request(self.now)
        response = MetadataResponse(cluster_id="c", controller_id=1)
        response.brokers = [MetadataResponseBroker(node_id=node, host=f"b{node}", port=9092) for node in (1, 2, 3)]
        topic = MetadataResponseTopic(name="a", topic_id=self.topic_id, error_code=error_code)
        if not error_code:
            topic.partitions = [
                MetadataResponsePartition(
                    partition_index=index,
                    leader_id=self.leaders[index],
                    leader_epoch=self.epochs[index],
                    replica_nodes=[1, 2, 3],
                    isr_nodes=[1, 2, 3],
                )
                for index in range(len(self.names))
            ]
        response.topics = [topic]
        self.metadata.handle_response(response, self.now, version=12)
        self.fetcher.metadata_applied(self.now)

    def start(self, offset=0):
        """Assign every partition at ``offset``."""
        self.fetcher.assign(self.names, self.now)
        self.update_metadata()
        for name in self.names:
            self.fetcher.initialize(name, None)
        self.reset_to(offset)
        assert self.states() == {FetchState.FETCHING}
        return self

    def states(self):
        return {each.state for each in self.fetcher.partitions.values()}

    def partition(self, index=0):
        return self.fetcher.partitions[self.names[index]]

    def reset_to(self, offset, error_code=0):
        """The leaders answer every ListOffsets that is due; returns the timestamps that were asked for."""
        asked = []
        for plan in self.lookups.due(self.now, self.wall_ms):
            response = ListOffsetsResponse()
            for topic in plan.request.topics:
                asked += [each.timestamp for each in topic.partitions]
                answers = [
                    ListOffsetsPartitionResponse(
                        partition_index=each.partition_index, offset=offset, error_code=error_code
                    )
                    for each in topic.partitions
                ]
                response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
            self.lookups.offsets_listed(plan, response, self.now)
        return asked

    def epoch_ends(self, end_offset, leader_epoch=0, error_code=0):
        """The leaders answer every OffsetForLeaderEpoch that is due; returns the epochs that were asked for."""
        asked = []
        for plan in self.lookups.due(self.now, self.wall_ms):
            response = OffsetForLeaderEpochResponse()
            for topic in plan.request.topics:
                asked += [(each.current_leader_epoch, each.leader_epoch) for each in topic.partitions]
                answers = [
                    EpochEndOffset(
                        partition=each.partition,
                        end_offset=end_offset,
                        leader_epoch=leader_epoch,
                        error_code=error_code,
                    )
                    for each in topic.partitions
                ]
                response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
            self.lookups.epochs_ended(plan, response, self.now)
        return asked

    def plan(self, node_id=1):
        """The request to a node, None if none is due."""
        if node_id not in self.fetcher.nodes_to_fetch(self.now):
            return None
        return self.fetcher.build_fetch(node_id, self.now)

    def answer(self, plan, parts=(), session_id=7, error_code=0):
        """A node answers; ``parts`` are pairs of a partition's index and its bytes, or its ``PartitionData``."""
        response = FetchResponse(session_id=session_id, error_code=error_code)
        data = []
        for index, part in parts:
            if not isinstance(part, PartitionData):
                part = PartitionData(records=memoryview(part), high_watermark=100, last_stable_offset=90)
            part.partition_index = index
            data.append(part)
        if data:
            response.responses = [FetchableTopicResponse(topic_id=self.topic_id, partitions=data)]
        return self.fetcher.fetch_answered(plan, response, self.now)

    def fetch(self, *parts, node_id=1):
        """One whole round: a request to a node, and its answer."""
        plan = self.plan(node_id)
        assert plan is not None
        self.answer(plan, parts)
        return plan

    def read(self, limit=1000):
        """The offsets that the caller gets, by partition, and the order in which the batches had their turn."""
        while (
            self.fetcher.records.ready_count() < limit and (batches := self.fetcher.records.next_batches()) is not None
        ):
            if batches.open_batch() is None:
                self.fetcher.records.finish(batches)
                continue
            if batches.reader is None:
                batches.set_body(decompressed(batches.batch))
            if not batches.raw:
                batches.read(limit - self.fetcher.records.ready_count())
            while batches.raw:
                self.fetcher.records.record_ready(batches, batches.raw[0])
            if batches.is_batch_read():
                self.fetcher.records.end_turn(batches)
        return {
            name.partition: [record.offset for record in records]
            for name, records in self.fetcher.records.take(limit).items()
        }
