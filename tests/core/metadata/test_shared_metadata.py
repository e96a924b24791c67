"""SharedMetadata: the requests of one producer that another producer's response answers."""

from __future__ import annotations

import math
from random import Random

from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.core.metadata.shared_metadata import SharedAnswer, SharedMetadata
from aioproducer.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from aioproducer.errors import broker_error
from aioproducer.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

VERSION = 13


def topic(name: str | None, leader: int = 1, error: int = 0) -> MetadataResponseTopic:
    partition = MetadataResponsePartition(partition_index=0, leader_id=leader, replica_nodes=[1], isr_nodes=[1])
    partitions = [] if error else [partition]
    return MetadataResponseTopic(name=name, topic_id=bytes(15) + b"\x01", error_code=error, partitions=partitions)


def response(cluster: str = "one") -> MetadataResponse:
    brokers = [MetadataResponseBroker(node_id=1, host="broker", port=9092)]
    return MetadataResponse(brokers=brokers, cluster_id=cluster)


def metadata_of(*topics: str) -> ClusterMetadata:
    metadata = ClusterMetadata([("seed", 9092)], random=Random(1), metadata_max_age_ms=100_000)
    for name in topics:
        metadata.add_topic(name, 0.0)
    return metadata


def apply(metadata: ClusterMetadata, answer: SharedAnswer, now: float) -> None:
    """Apply another producer's response, as the cluster does."""
    metadata.build_request(now)
    change = metadata.handle_response(
        MetadataResponse(brokers=answer.response.brokers, topics=answer.topics), now, version=answer.version
    )
    assert change.failure is None
    metadata.limit_age(answer.requested_at)


class TestAnswers:
    def test_nothing_is_known_before_the_first_response(self) -> None:
        assert SharedMetadata(100).answer([], -math.inf) is None

    def test_a_response_without_topics_answers_a_request_without_topics(self) -> None:
        shared = SharedMetadata(100)
        shared.store(response(), [], VERSION, 5)
        answer = shared.answer([], 5)
        assert answer is not None
        assert (answer.requested_at, answer.topics, answer.version) == (5, [], VERSION)
        assert shared.answer(["t"], 5) is None

    def test_every_topic_and_the_brokers_are_as_new_as_requested(self) -> None:
        shared = SharedMetadata(100)
        shared.store(response(), [topic("old")], VERSION, 5)
        shared.store(response(), [topic("new")], VERSION, 8)
        answer = shared.answer(["old", "new"], 5)
        assert answer is not None
        assert ([each.name for each in answer.topics], answer.requested_at) == (["old", "new"], 5)
        assert shared.answer(["old", "new"], 6) is None
        assert shared.answer(["new"], 8) is not None
        assert shared.answer(["new"], 8.1) is None

    def test_a_topic_with_an_error_is_requested_again(self) -> None:
        shared = SharedMetadata(100)
        shared.store(response(), [topic("t"), topic(None)], VERSION, 1)
        assert shared.answer(["t"], 0) is not None
        shared.store(response(), [topic("t", error=UNKNOWN_TOPIC_OR_PARTITION)], VERSION, 2)
        assert shared.answer(["t"], 0) is None

    def test_topics_of_another_version_or_cluster_are_dropped(self) -> None:
        for newer, version in ((response("two"), VERSION), (response(), 9)):
            shared = SharedMetadata(100)
            shared.store(response(), [topic("t")], VERSION, 1)
            shared.store(newer, [], version, 2)
            assert shared.answer(["t"], 0) is None

    def test_topics_that_no_response_names_are_dropped_after_their_age(self) -> None:
        shared = SharedMetadata(100)
        shared.store(response(), [topic("t")], VERSION, 1)
        shared.store(response(), [], VERSION, 101)
        shared.store(response(), [], VERSION, 202)
        assert shared.answer(["t"], -math.inf) is None

    def test_nothing_is_left_after_clear(self) -> None:
        shared = SharedMetadata(100)
        shared.store(response(), [topic("t")], VERSION, 1)
        shared.clear()
        assert shared.answer([], -math.inf) is None


class TestRequests:
    def test_the_first_request_takes_an_answer_that_is_not_too_old(self) -> None:
        shared, metadata = SharedMetadata(100), metadata_of("t")
        shared.store(response(), [topic("t")], VERSION, 1)
        assert shared.answer(["t"], metadata.accepts_since(102)) is None
        answer = shared.answer(["t"], metadata.accepts_since(50))
        assert answer is not None
        apply(metadata, answer, 50)
        assert metadata.bootstrapped
        assert metadata.leader("t", 0) == 1

    def test_age_counts_from_the_other_producer_s_request_and_ends_by_a_request_of_its_own(self) -> None:
        shared, metadata = SharedMetadata(100), metadata_of("t")
        shared.store(response(), [topic("t")], VERSION, 1)
        answer = shared.answer(["t"], metadata.accepts_since(50))
        assert answer is not None
        apply(metadata, answer, 50)
        assert metadata.next_update_delay(50) == 51
        shared.store(response(), [topic("t")], VERSION, 100)
        assert metadata.next_update_delay(101) == 0
        assert metadata.accepts_since(101) == math.inf

    def test_a_requested_update_takes_only_answers_to_later_requests(self) -> None:
        shared, metadata = SharedMetadata(100), metadata_of("t")
        shared.store(response(), [topic("t")], VERSION, 1)
        answer = shared.answer(["t"], metadata.accepts_since(2))
        assert answer is not None
        apply(metadata, answer, 2)
        metadata.request_update(10, "a partition has moved")
        assert shared.answer(["t"], metadata.accepts_since(11)) is None
        shared.store(response(), [topic("t", leader=1)], VERSION, 10.5)
        assert shared.answer(["t"], metadata.accepts_since(11)) is not None

    def test_a_rebootstrap_takes_only_answers_to_later_requests(self) -> None:
        shared, metadata = SharedMetadata(100), metadata_of()
        shared.store(response(), [], VERSION, 1)
        answer = shared.answer([], metadata.accepts_since(2))
        assert answer is not None
        apply(metadata, answer, 2)
        metadata.rebootstrap(10)
        assert metadata.accepts_since(11) == 10

    def test_a_topic_that_was_requested_before_is_requested_from_a_broker(self) -> None:
        shared, metadata = SharedMetadata(100), metadata_of("t")
        shared.store(response(), [topic("t")], VERSION, 1)
        answer = shared.answer(["t"], metadata.accepts_since(2))
        assert answer is not None
        apply(metadata, answer, 2)
        metadata.request_partial_update("t")
        assert metadata.accepts_since(3) == math.inf

    def test_after_a_failure_metadata_is_requested_from_a_broker(self) -> None:
        metadata = metadata_of()
        metadata.build_request(1)
        metadata.handle_failure(broker_error(UNKNOWN_TOPIC_OR_PARTITION), 2)
        assert metadata.accepts_since(3) == math.inf

    def test_the_latest_reason_counts(self) -> None:
        shared, metadata = SharedMetadata(100), metadata_of()
        shared.store(response(), [], VERSION, 1)
        answer = shared.answer([], metadata.accepts_since(2))
        assert answer is not None
        apply(metadata, answer, 2)
        metadata.request_update(10, "a partition has moved")
        metadata.request_update(12, "another partition has moved")
        assert metadata.accepts_since(13) == 12

    def test_an_update_that_takes_several_requests_is_requested_from_a_broker(self) -> None:
        assert metadata_of(*map(str, range(200))).accepts_since(1) == 1 - 100
        assert metadata_of(*map(str, range(201))).accepts_since(1) == math.inf
