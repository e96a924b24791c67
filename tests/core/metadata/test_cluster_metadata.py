"""ClusterMetadata: when to request an update, which responses to accept, what changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.core.metadata.cluster_metadata import (
    NO_EPOCH,
    NO_LEADER,
    ClusterMetadata,
    LeaderChange,
    MetadataChange,
    NodeCandidate,
    NodeState,
    PartitionsAdded,
    least_loaded_node,
)
from aioproducer.core.metadata.metadata_merger import PARTITIONS_PER_STEP
from aioproducer.errors import KafkaError, NetworkError, broker_error
from aioproducer.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aioproducer.record import Node

NEWEST = 13
ID_1 = bytes(15) + b"\x01"
ID_2 = bytes(15) + b"\x02"


def make_metadata(
    *,
    strategy: str = "rebootstrap",
    trigger_ms: float = 300_000,
    retry_backoff_ms: float = 100,
    allow_auto_topic_creation: bool = True,
) -> ClusterMetadata:
    return ClusterMetadata(
        [("seed-a", 9092), ("seed-b", 9093)],
        random=Random(7),
        retry_backoff_ms=retry_backoff_ms,
        retry_backoff_max_ms=1000,
        metadata_max_age_ms=300_000,
        metadata_max_idle_ms=60_000,
        metadata_recovery_strategy=strategy,
        metadata_recovery_rebootstrap_trigger_ms=trigger_ms,
        allow_auto_topic_creation=allow_auto_topic_creation,
    )


def broker(node_id: int, host: str = "", port: int = 9092, rack: str | None = None) -> MetadataResponseBroker:
    return MetadataResponseBroker(node_id=node_id, host=host or f"host-{node_id}", port=port, rack=rack)


def partition(index: int, leader: int, epoch: int = 0, error: int = 0) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        error_code=error,
        replica_nodes=[1, 2],
        isr_nodes=[1],
        offline_replicas=[2],
    )


def topic(
    name: str | None, *partitions: MetadataResponsePartition, topic_id: bytes = ID_1, error: int = 0
) -> MetadataResponseTopic:
    return MetadataResponseTopic(name=name, topic_id=topic_id, error_code=error, partitions=list(partitions))


def response(
    *topics: MetadataResponseTopic,
    brokers: Sequence[MetadataResponseBroker] = (broker(1), broker(2)),
    cluster_id: str | None = "cluster",
    error: int = 0,
) -> MetadataResponse:
    return MetadataResponse(
        brokers=list(brokers), topics=list(topics), cluster_id=cluster_id, controller_id=1, error_code=error
    )


def names(request: MetadataRequest) -> list[str | None]:
    assert request.topics is not None
    return [topic.name for topic in request.topics]


def answer(metadata: ClusterMetadata, answered: MetadataResponse, now: float, version: int = NEWEST) -> MetadataChange:
    if not metadata.update_in_flight:
        metadata.build_request(now)
    return metadata.handle_response(answered, now, version=version)


def known(*topics: MetadataResponseTopic, now: float = 0.0) -> ClusterMetadata:
    """Return metadata that has applied one full response about ``topics``."""
    metadata = make_metadata()
    for each in topics:
        assert each.name is not None
        metadata.add_topic(each.name, now)
    answer(metadata, response(*topics), now)
    return metadata


def clicks(*partitions: MetadataResponsePartition, topic_id: bytes = ID_1, error: int = 0) -> MetadataResponseTopic:
    return topic("clicks", *partitions, topic_id=topic_id, error=error)


def test_bootstrap_addresses_are_nodes_with_negative_ids_until_the_first_response() -> None:
    metadata = make_metadata()
    assert dict(metadata.nodes) == {-1: Node(-1, "seed-a", 9092), -2: Node(-2, "seed-b", 9093)}
    assert not metadata.bootstrapped
    assert metadata.next_update_delay(5.0) == 0

    request = metadata.build_request(5.0)
    assert names(request) == []
    change = metadata.handle_response(response(brokers=[broker(1, rack="r1")]), 5.1, version=NEWEST)

    assert dict(metadata.nodes) == {1: Node(1, "host-1", 9092, "r1")}
    assert metadata.bootstrapped
    assert change.nodes_added == [Node(1, "host-1", 9092, "r1")]
    assert [node.id for node in change.nodes_removed] == [-1, -2]
    assert (metadata.cluster_id, metadata.controller_id) == ("cluster", 1)
    assert (metadata.version, metadata.last_update) == (1, 5.1)
    assert metadata.node(1) == Node(1, "host-1", 9092, "r1")
    assert metadata.node(9) is None


def test_at_least_one_bootstrap_address_is_required() -> None:
    with pytest.raises(ValueError, match="bootstrap"):
        ClusterMetadata([], random=Random(1))


def test_a_requested_topic_is_known_with_its_leaders() -> None:
    metadata = make_metadata(allow_auto_topic_creation=False)
    assert metadata.add_topic("clicks", 0.0) is None
    assert metadata.leader("clicks", 0) == NO_LEADER
    request = metadata.build_request(0.0)
    assert names(request) == ["clicks"]
    assert not request.allow_auto_topic_creation

    change = metadata.handle_response(response(clicks(partition(1, 2, 5), partition(0, 1, 4))), 0.0, version=NEWEST)

    found = metadata.add_topic("clicks", 0.0)
    assert found is not None
    assert found is metadata.topic("clicks")
    assert found.topic_id == ID_1
    assert [each.partition for each in found.partitions] == [0, 1]
    assert found.partitions[1] == (1, 2, 5, (1, 2), (1,), (2,))
    assert [metadata.leader("clicks", index) for index in (-1, 0, 1, 2)] == [NO_LEADER, 1, 2, NO_LEADER]
    assert change.new_topics == ["clicks"]
    assert change.leaders == [LeaderChange("clicks", 0, -1, 1, 4), LeaderChange("clicks", 1, -1, 2, 5)]


def test_the_version_rises_with_each_response_and_nothing_else() -> None:
    metadata = make_metadata()
    seen = metadata.request_update(0.0, "a test")
    metadata.build_request(0.0)
    metadata.handle_failure(NetworkError("gone"), 0.0)
    assert metadata.version == seen
    answer(metadata, response(brokers=[]), 1.0)
    assert metadata.version == seen
    answer(metadata, response(), 2.0)
    assert metadata.version == seen + 1
    metadata.rebootstrap(3.0)
    assert metadata.version == seen + 1


def test_one_metadata_request_is_in_flight_at_a_time() -> None:
    metadata = make_metadata()
    metadata.build_request(0.0)
    assert metadata.update_in_flight
    metadata.add_topic("clicks", 0.0)
    metadata.request_update(0.0, "a test")
    assert metadata.next_update_delay(1000.0) == math.inf
    with pytest.raises(RuntimeError, match="in flight"):
        metadata.build_request(0.0)


def test_metadata_is_requested_again_when_it_is_too_old() -> None:
    metadata = known(clicks(partition(0, 1)), now=10.0)
    assert metadata.next_update_delay(10.0) == 300
    assert metadata.next_update_delay(290.0) == 20
    assert metadata.next_update_delay(400.0) == 0


def test_a_partial_update_does_not_count_as_fresh_metadata() -> None:
    metadata = known(now=10.0)
    metadata.add_topic("clicks", 100.0)
    answer(metadata, response(clicks(partition(0, 1))), 100.0)
    assert metadata.next_update_delay(100.0) == 210


def test_requested_updates_are_separated_by_the_backoff() -> None:
    metadata = known(clicks(partition(0, 1)), now=10.0)
    metadata.request_update(10.0, "NOT_LEADER_OR_FOLLOWER from clicks-0")
    assert metadata.update_reason == "NOT_LEADER_OR_FOLLOWER from clicks-0"
    assert metadata.update_requested_at == 10.0
    assert 0.08 <= metadata.next_update_delay(10.0) <= 0.12
    assert metadata.next_update_delay(10.2) == 0


def test_responses_without_news_lengthen_the_backoff() -> None:
    """KIP-580: a partition without a leader does not cause ten requests a second."""
    metadata = known(clicks(partition(0, -1, 0, error=5)))
    now, waits = 0.0, []
    for _ in range(8):
        wait = metadata.next_update_delay(now)
        waits.append(wait)
        now += wait
        answer(metadata, response(clicks(partition(0, -1, 0, error=5))), now)
    assert waits[0] < 0.13
    assert waits[-1] > 0.75
    assert max(waits) <= 1.0

    metadata.add_topic("views", now)
    answer(metadata, response(topic("views", error=3)), now)
    assert metadata.next_update_delay(now) < 0.13

    answer(metadata, response(clicks(partition(0, 1, 1))), now)
    metadata.request_update(now, "a test")
    assert metadata.next_update_delay(now) < 0.13


def test_periodic_updates_without_news_do_not_lengthen_the_backoff() -> None:
    metadata = known(clicks(partition(0, 1)))
    for turn in range(1, 8):
        metadata.touch("clicks", 300.0 * turn)
        answer(metadata, response(clicks(partition(0, 1))), 300.0 * turn)
    metadata.request_update(2100.0, "a test")
    assert metadata.next_update_delay(2100.0) < 0.13


def test_failures_back_off_and_a_success_starts_over() -> None:
    metadata = make_metadata()
    now, waits = 0.0, []
    for _ in range(6):
        metadata.build_request(now)
        metadata.handle_failure(NetworkError("gone"), now)
        waits.append(metadata.next_update_delay(now))
        now += waits[-1]
    for wait, base in zip(waits, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert base * 0.8 <= wait <= min(base * 1.2, 1.0)
    assert isinstance(metadata.last_error, NetworkError)
    answer(metadata, response(), now)
    assert metadata.last_error is None
    metadata.request_update(now, "a test")
    assert metadata.next_update_delay(now) < 0.13


def test_a_failure_without_an_available_node_backs_off() -> None:
    metadata = make_metadata()
    metadata.handle_failure(KafkaError("no node"), 0.0)
    assert metadata.next_update_delay(0.0) > 0


def test_new_topics_wait_for_the_backoff_after_a_failure() -> None:
    metadata = known()
    metadata.add_topic("clicks", 0.0)
    metadata.build_request(0.0)
    metadata.handle_failure(NetworkError("gone"), 0.0)
    metadata.add_topic("views", 0.0)
    wait = metadata.next_update_delay(0.0)
    assert wait > 0.07
    assert names(metadata.build_request(wait)) == ["clicks", "views"]


def test_a_new_topic_is_requested_at_once_and_alone() -> None:
    metadata = known(clicks(partition(0, 1)))
    assert metadata.add_topic("views", 0.0) is None
    assert metadata.next_update_delay(0.0) == 0
    assert names(metadata.build_request(0.0)) == ["views"]
    change = metadata.handle_response(response(topic("views", partition(0, 2))), 0.0, version=NEWEST)
    assert change.leaders == [LeaderChange("views", 0, -1, 2, 0)]
    assert metadata.leader("clicks", 0) == 1
    assert metadata.next_update_delay(0.0) == 300


def test_topics_added_during_a_request_are_requested_afterwards() -> None:
    metadata = make_metadata()
    metadata.add_topic("clicks", 0.0)
    metadata.build_request(0.0)
    metadata.add_topic("views", 0.0)
    metadata.handle_response(response(clicks(partition(0, 1))), 0.0, version=NEWEST)
    assert metadata.next_update_delay(0.0) == 0
    assert names(metadata.build_request(0.0)) == ["views"]


def test_an_update_requested_during_another_is_due_afterwards() -> None:
    """The response in flight may be older than the reason for the second update."""
    metadata = known(clicks(partition(0, 1)))
    metadata.request_update(1.0, "one")
    metadata.build_request(1.0)
    metadata.request_update(1.0, "two")
    metadata.handle_response(response(clicks(partition(0, 1))), 1.0, version=NEWEST)
    assert metadata.update_reason == "two"
    assert metadata.next_update_delay(2.0) == 0


def test_a_full_update_that_is_due_covers_new_topics() -> None:
    metadata = known(clicks(partition(0, 1)))
    metadata.request_update(1.0, "a test")
    metadata.add_topic("views", 1.0)
    assert names(metadata.build_request(1.0)) == ["clicks", "views"]


def test_metadata_that_is_too_old_gets_a_full_update() -> None:
    metadata = known(clicks(partition(0, 1)))
    metadata.add_topic("views", 300.0)
    assert names(metadata.build_request(300.0)) == ["clicks", "views"]


def test_a_full_update_in_backoff_does_not_delay_a_new_topic() -> None:
    metadata = known(clicks(partition(0, 1)))
    metadata.request_update(0.0, "a test")
    metadata.add_topic("views", 0.0)
    assert names(metadata.build_request(0.0)) == ["views"]
    metadata.handle_response(response(topic("views", partition(0, 1))), 0.0, version=NEWEST)
    assert metadata.next_update_delay(1.0) == 0
    assert names(metadata.build_request(1.0)) == ["clicks", "views"]


def test_one_topic_in_use_can_be_requested_alone() -> None:
    metadata = known(clicks(partition(0, 1)), topic("views", partition(0, 1)))
    metadata.request_partial_update("clicks")
    metadata.request_partial_update("never added")
    assert names(metadata.build_request(0.0)) == ["clicks"]


def test_a_failed_full_update_is_repeated_as_a_full_update() -> None:
    metadata = known(clicks(partition(0, 1)))
    metadata.request_update(1.0, "a test")
    metadata.build_request(1.0)
    metadata.add_topic("views", 1.0)
    metadata.handle_failure(NetworkError("gone"), 1.0)
    assert names(metadata.build_request(3.0)) == ["clicks", "views"]


def test_topics_missing_from_the_response_are_requested_again() -> None:
    metadata = make_metadata()
    metadata.add_topic("clicks", 0.0)
    answer(metadata, response(), 0.0)
    assert metadata.next_update_delay(1.0) == 0
    assert names(metadata.build_request(1.0)) == ["clicks"]


def test_idle_topics_are_forgotten_at_a_full_update() -> None:
    metadata = known(clicks(partition(0, 1)), topic("views", partition(0, 1)))
    metadata.touch("views", 50.0)
    metadata.add_topic("late", 59.0)
    change = answer(metadata, response(topic("late", partition(0, 1))), 61.0)
    assert not change.forgotten_topics

    metadata.request_update(62.0, "a test")
    change = answer(metadata, response(clicks(partition(0, 1)), topic("views", partition(0, 1))), 62.0)
    assert change.forgotten_topics == ["clicks"]
    assert metadata.topic("clicks") is None
    assert sorted(metadata.topics_in_use) == ["late", "views"]
    assert metadata.add_topic("clicks", 62.0) is None
    assert metadata.next_update_delay(62.0) == 0


def test_topics_that_are_not_retained_are_not_requested_again() -> None:
    """A consumer that no longer reads a topic would create it again by naming it, after it was deleted."""
    metadata = known(clicks(partition(0, 1)), topic("views", partition(0, 1)))
    metadata.add_topic("new", 1.0)
    metadata.add_topic("late", 1.0)
    metadata.retain_topics({"views", "late"})
    assert sorted(metadata.topics_in_use) == ["late", "views"]
    metadata.request_update(9.0, "a test")
    assert names(metadata.build_request(9.0)) == ["late", "views"]
    metadata.retain_topics({"late"})
    change = metadata.handle_response(
        response(topic("late", partition(0, 1)), topic("views", partition(0, 2))), 9.0, version=NEWEST
    )
    assert {each.topic for each in change.leaders} == {"late"}
    metadata.request_update(99.0, "a test")
    assert names(metadata.build_request(99.0)) == ["late"]
    assert metadata.topic("views") is None


def test_the_creation_of_topics_can_be_allowed_and_not() -> None:
    metadata = make_metadata()
    for allowed in (False, True):
        metadata.allow_topic_creation(allowed=allowed)
        metadata.add_topic(f"clicks-{allowed}", 0.0)
        assert metadata.build_request(0.0).allow_auto_topic_creation is allowed
        metadata.handle_failure(NetworkError("gone"), 0.0)


def test_touching_a_topic_that_is_not_in_use_does_nothing() -> None:
    metadata = known()
    metadata.touch("clicks", 0.0)
    assert list(metadata.topics_in_use) == []


def test_an_unused_topic_in_the_response_is_ignored() -> None:
    metadata = known()
    assert not answer(metadata, response(clicks(partition(0, 1)), topic(None, error=100)), 0.0)


def test_an_older_leader_epoch_is_ignored() -> None:
    metadata = known(clicks(partition(0, 1, 5)))
    change = answer(metadata, response(clicks(partition(0, 2, 4))), 1.0)
    assert not change
    assert metadata.leader("clicks", 0) == 1
    change = answer(metadata, response(clicks(partition(0, 2, 6))), 2.0)
    assert change.leaders == [LeaderChange("clicks", 0, 1, 2, 6)]


def test_partitions_with_the_same_replicas_share_them() -> None:
    """Each of 20,000 partitions once had three separate tuples, more than all its other metadata."""
    metadata = known(clicks(partition(0, 1), partition(1, 1), partition(2, 2)))
    first, second, third = metadata.topic("clicks").partitions
    assert first.replicas is second.replicas
    assert first.in_sync_replicas is third.in_sync_replicas
    assert (third.replicas, third.in_sync_replicas, third.offline_replicas) == ((1, 2), (1,), (2,))


def test_a_new_epoch_of_the_same_leader_is_reported() -> None:
    metadata = known(clicks(partition(0, 1, 5)))
    assert answer(metadata, response(clicks(partition(0, 1, 6))), 1.0).leaders == [LeaderChange("clicks", 0, 1, 1, 6)]


def test_leader_epochs_restart_with_another_topic_id() -> None:
    metadata = known(clicks(partition(0, 1, 5), partition(1, 1, 5)))
    before = metadata.topic("clicks")
    change = answer(metadata, response(clicks(partition(0, 2, 0), topic_id=ID_2)), 1.0)
    assert change.recreated_topics == ["clicks"]
    assert change.leaders == [LeaderChange("clicks", 0, 1, 2, 0)]
    after = metadata.topic("clicks")
    assert after is not None
    assert after is not before
    assert (after.topic_id, len(after.partitions)) == (ID_2, 1)


def test_a_recreated_topic_without_partitions_keeps_its_known_partitions() -> None:
    metadata = known(clicks(partition(0, 1, 5)))
    assert not answer(metadata, response(clicks(topic_id=ID_2)), 1.0)
    assert metadata.leader("clicks", 0) == 1
    change = answer(metadata, response(clicks(partition(0, 2, 0), topic_id=ID_2)), 2.0)
    assert change.recreated_topics == ["clicks"]


def test_a_topic_unknown_to_two_responses_in_a_row_counts_as_deleted() -> None:
    metadata = known(clicks(partition(0, 1, 5), partition(1, 2, 5)))
    gone = response(topic("clicks", error=3))
    # A single such response may come from a broker with stale metadata.
    for now in (1.0, 3.0):
        assert not answer(metadata, gone, now)
        assert metadata.leader("clicks", 0) == 1
        assert not answer(metadata, response(clicks(partition(0, 1, 5), partition(1, 2, 5))), now + 1)
    answer(metadata, gone, 5.0)
    change = answer(metadata, gone, 6.0)
    assert change.lost_topics == ["clicks"]
    assert change.leaders == [LeaderChange("clicks", 0, 1, NO_LEADER, 5), LeaderChange("clicks", 1, 2, NO_LEADER, 5)]
    assert metadata.topic("clicks") is None
    assert metadata.add_topic("clicks", 6.0) is None
    assert not answer(metadata, gone, 7.0)


def test_a_deleted_topic_returns_as_itself_or_as_a_new_topic_of_the_same_name() -> None:
    for topic_id, recreated in ((ID_1, []), (ID_2, ["clicks"])):
        metadata = known(clicks(partition(0, 1, 5), partition(1, 2, 5)))
        for now in (1.0, 2.0):
            answer(metadata, response(topic("clicks", error=3)), now)
        change = answer(metadata, response(clicks(partition(0, 2, 0), topic_id=topic_id)), 3.0)
        assert change.recreated_topics == recreated
        assert change.partitions_added == ([] if recreated else [PartitionsAdded("clicks", 0, 1)])
        assert change.leaders == [LeaderChange("clicks", 0, NO_LEADER, 2, 0)]
        assert metadata.leader("clicks", 0) == 2


def test_without_topic_ids_fewer_partitions_mean_a_recreated_topic() -> None:
    none = bytes(16)
    metadata = known(clicks(partition(0, 1, 5), partition(1, 1, 5), topic_id=none))
    found = metadata.topic("clicks")
    assert found is not None
    assert found.topic_id is None
    change = answer(metadata, response(clicks(partition(0, 1, 0), topic_id=none)), 1.0)
    assert change.recreated_topics == ["clicks"]
    assert metadata.leader("clicks", 1) == NO_LEADER


def test_with_the_same_topic_id_fewer_partitions_mean_a_stale_response() -> None:
    metadata = known(clicks(partition(0, 1, 5), partition(1, 1, 5)))
    assert not answer(metadata, response(clicks(partition(0, 1, 5))), 1.0)
    assert metadata.leader("clicks", 1) == 1


def test_a_topic_id_can_be_learned_later_and_is_kept_if_a_response_omits_it() -> None:
    metadata = known(clicks(partition(0, 1, 5), topic_id=bytes(16)))
    assert not answer(metadata, response(clicks(partition(0, 1, 5))), 1.0)
    assert not answer(metadata, response(clicks(partition(0, 1, 5), topic_id=bytes(16))), 2.0)
    found = metadata.topic("clicks")
    assert found is not None
    assert found.topic_id == ID_1


def test_leader_epochs_of_old_brokers_are_ignored() -> None:
    """KAFKA-9212: below Metadata version 9 an epoch may be out of date, so the leader is taken without it."""
    metadata = make_metadata()
    metadata.add_topic("clicks", 0.0)
    answer(metadata, response(clicks(partition(0, 1, 5))), 0.0, version=8)
    found = metadata.topic("clicks")
    assert found is not None
    assert found.partitions[0].leader_epoch == NO_EPOCH
    answer(metadata, response(clicks(partition(0, 2, 4))), 1.0, version=8)
    assert metadata.leader("clicks", 0) == 2
    answer(metadata, response(clicks(partition(0, 1, 7))), 2.0, version=9)
    answer(metadata, response(clicks(partition(0, 2, 3))), 3.0, version=8)
    assert (metadata.leader("clicks", 0), found.partitions[0].leader_epoch) == (2, 7)


def test_added_partitions_are_reported() -> None:
    metadata = known(clicks(partition(0, 1)))
    change = answer(metadata, response(clicks(partition(0, 1), partition(1, 2), partition(2, -1, error=5))), 1.0)
    assert change.partitions_added == [PartitionsAdded("clicks", 1, 3)]
    assert change.leaders == [LeaderChange("clicks", 1, -1, 2, 0)]


@pytest.mark.parametrize("error", [5, 0], ids=["LEADER_NOT_AVAILABLE", "no error"])
def test_a_partition_without_leader_keeps_its_known_leader_and_is_requested_again(error: int) -> None:
    metadata = known(clicks(partition(0, 1, 5)))
    assert not answer(metadata, response(clicks(partition(0, -1, 5, error))), 1.0)
    assert metadata.leader("clicks", 0) == 1
    assert metadata.next_update_delay(3.0) == 0


def test_a_newer_epoch_without_leader_removes_the_leader() -> None:
    metadata = known(clicks(partition(0, 1, 5)))
    change = answer(metadata, response(clicks(partition(0, -1, 6, 5))), 1.0)
    assert change.leaders == [LeaderChange("clicks", 0, 1, NO_LEADER, 6)]
    assert metadata.next_update_delay(3.0) == 0


def test_a_leader_missing_from_the_broker_list_is_ignored() -> None:
    metadata = known()
    metadata.add_topic("clicks", 0.0)
    change = answer(metadata, response(clicks(partition(0, 7))), 0.0)
    assert change.new_topics == ["clicks"]
    assert not change.leaders
    assert metadata.leader("clicks", 0) == NO_LEADER
    assert metadata.next_update_delay(1.0) == 0
    change = answer(metadata, response(clicks(partition(0, 7)), brokers=[broker(7)]), 1.0)
    assert change.leaders == [LeaderChange("clicks", 0, -1, 7, 0)]


def test_a_removed_node_loses_its_leaderships_also_in_topics_outside_the_response() -> None:
    metadata = known(clicks(partition(0, 1, 5), partition(1, 2, 5)))
    metadata.add_topic("views", 0.0)
    change = answer(metadata, response(topic("views", partition(0, 2)), brokers=[broker(2)]), 0.0)
    assert [node.id for node in change.nodes_removed] == [1]
    assert LeaderChange("clicks", 0, 1, NO_LEADER, 5) in change.leaders
    assert metadata.leader("clicks", 0) == NO_LEADER
    assert metadata.leader("clicks", 1) == 2
    assert metadata.next_update_delay(1.0) == 0
    change = answer(metadata, response(clicks(partition(0, 1, 5), partition(1, 2, 5))), 1.0)
    assert change.leaders == [LeaderChange("clicks", 0, NO_LEADER, 1, 5)]


def test_partitions_after_a_gap_are_unused_until_it_is_filled() -> None:
    metadata = make_metadata()
    metadata.add_topic("clicks", 0.0)
    answer(metadata, response(clicks(partition(0, 1), partition(2**31 - 1, 1), partition(-3, 1))), 0.0)
    found = metadata.topic("clicks")
    assert found is not None
    assert len(found.partitions) == 1
    assert metadata.next_update_delay(1.0) == 0


def test_a_topic_without_partitions_is_not_known_yet() -> None:
    metadata = make_metadata()
    metadata.add_topic("clicks", 0.0)
    assert not answer(metadata, response(clicks()), 0.0).new_topics
    assert metadata.add_topic("clicks", 0.0) is None
    assert metadata.next_update_delay(1.0) == 0


def test_for_a_partition_listed_twice_the_newer_epoch_counts() -> None:
    metadata = known(clicks(partition(0, 2, 6), partition(0, 1, 5)))
    assert metadata.leader("clicks", 0) == 2


def test_moved_and_removed_nodes_are_reported() -> None:
    metadata = known(clicks(partition(0, 1)))
    moved = [broker(1, "elsewhere"), broker(2, rack="r9"), broker(-5), broker(3)]
    change = answer(metadata, response(clicks(partition(0, 1)), brokers=moved), 1.0)
    assert change.nodes_moved == [Node(1, "elsewhere", 9092)]
    assert [node.id for node in change.nodes_added] == [3]
    assert metadata.nodes[2].rack == "r9"
    assert not change.leaders


@pytest.mark.parametrize("brokers", [[], [broker(-1)]])
def test_a_response_without_brokers_fails_the_update(brokers: list[MetadataResponseBroker]) -> None:
    metadata = known(clicks(partition(0, 1)))
    metadata.request_update(1.0, "a test")
    change = answer(metadata, response(clicks(partition(0, 2, 9)), brokers=brokers), 1.0)
    assert not change
    assert change.failure is not None
    assert "no brokers" in str(change.failure)
    assert metadata.leader("clicks", 0) == 1
    assert 0 < metadata.next_update_delay(1.0) < 0.13


def test_an_unrequested_response_is_ignored() -> None:
    metadata = make_metadata()
    assert not metadata.handle_response(response(), 0.0, version=NEWEST)
    assert not metadata.bootstrapped


def test_another_cluster_id_forgets_the_topics() -> None:
    metadata = known(clicks(partition(0, 1, 50)))
    metadata.add_topic("views", 0.0)
    change = answer(metadata, response(topic("views", partition(0, 1)), cluster_id="other"), 0.0)
    assert not change
    assert "other" in str(change.failure)
    assert names(metadata.build_request(1.0)) == ["clicks", "views"]
    change = metadata.handle_response(
        response(clicks(partition(0, 2, 3)), topic("views", partition(0, 1)), cluster_id="other"), 1.0, version=NEWEST
    )
    assert metadata.cluster_id == "other"
    assert change.recreated_topics == ["clicks"]
    assert metadata.leader("clicks", 0) == 2


@pytest.mark.parametrize("error", [17, 29])
def test_a_refused_topic_is_reported_and_not_requested_again_automatically(error: int) -> None:
    metadata = make_metadata()
    metadata.add_topic("clicks", 0.0)
    change = answer(metadata, response(clicks(error=error)), 0.0)
    assert change.topic_errors == {"clicks": error}
    assert metadata.topic_error("clicks") == error
    assert metadata.topic_error("views") == 0
    assert metadata.next_update_delay(0.0) == 300


def test_using_an_unauthorised_topic_again_requests_it_after_the_backoff() -> None:
    metadata = known(clicks(partition(0, 1)))
    answer(metadata, response(clicks(error=29)), 1.0)
    assert metadata.add_topic("clicks", 1.0) is None
    assert 0 < metadata.next_update_delay(1.0) < 1
    assert answer(metadata, response(clicks(partition(0, 1))), 3.0).topic_errors == {}
    assert metadata.add_topic("clicks", 3.0) is metadata.topic("clicks")


def test_using_a_topic_with_an_invalid_name_requests_nothing() -> None:
    metadata = make_metadata()
    metadata.add_topic("no/topic", 0.0)
    answer(metadata, response(topic("no/topic", error=17)), 0.0)
    assert metadata.add_topic("no/topic", 0.0) is None
    assert metadata.next_update_delay(0.0) == 300


@pytest.mark.parametrize("error", [3, 5, -1, 38, 12345])
def test_other_topic_errors_are_reported_and_the_topic_requested_again(error: int) -> None:
    metadata = known(clicks(partition(0, 1)))
    change = answer(metadata, response(clicks(error=error)), 1.0)
    assert change.topic_errors == {"clicks": error}
    assert metadata.leader("clicks", 0) == 1
    assert metadata.add_topic("clicks", 1.0) is metadata.topic("clicks")
    assert metadata.next_update_delay(3.0) == 0


def test_waiting_for_an_unknown_topic_keeps_the_backoff_between_requests() -> None:
    metadata = make_metadata()
    metadata.add_topic("clicks", 0.0)
    metadata.build_request(0.0)
    metadata.add_topic("clicks", 0.0)
    metadata.handle_response(response(clicks(error=3)), 0.0, version=NEWEST)
    metadata.add_topic("clicks", 0.0)
    assert metadata.next_update_delay(0.0) > 0.07


def test_a_leader_hint_with_a_newer_epoch_is_adopted() -> None:
    metadata = known(clicks(partition(0, 1, 5)))
    version = metadata.version
    change = metadata.apply_leader_hints("clicks", 0, 3, 6, [Node(3, "host-3", 9092)], 1.0)
    assert change.leaders == [LeaderChange("clicks", 0, 1, 3, 6)]
    assert change.nodes_added == [Node(3, "host-3", 9092)]
    assert metadata.leader("clicks", 0) == 3
    assert metadata.version == version
    assert not answer(metadata, response(clicks(partition(0, 1, 5)), brokers=[broker(1), broker(2), broker(3)]), 2.0)


def test_a_leader_hint_can_move_a_node() -> None:
    metadata = known(clicks(partition(0, 1, 5)))
    assert metadata.apply_leader_hints("clicks", 0, 2, 6, [Node(2, "moved", 1)], 1.0).nodes_moved == [
        Node(2, "moved", 1)
    ]
    assert metadata.apply_leader_hints("clicks", 0, 2, 7, [Node(2, "moved", 1, "r")], 1.0).nodes_moved == []
    assert metadata.nodes[2].rack == "r"


def test_a_leader_hint_needs_no_endpoint_for_a_known_node() -> None:
    metadata = known(clicks(partition(0, 1, 5)))
    change = metadata.apply_leader_hints("clicks", 0, 2, 6, [], 1.0)
    assert change.leaders == [LeaderChange("clicks", 0, 1, 2, 6)]
    assert not change.nodes_added


@pytest.mark.parametrize(
    ("name", "index", "leader", "epoch"),
    [
        ("clicks", 0, 2, 5),
        ("clicks", 0, 2, 4),
        ("clicks", 0, -1, 6),
        ("clicks", 0, 9, 6),
        ("clicks", 1, 2, 6),
        ("clicks", -1, 2, 6),
        ("views", 0, 2, 6),
    ],
)
def test_a_stale_or_useless_leader_hint_is_ignored(name: str, index: int, leader: int, epoch: int) -> None:
    metadata = known(clicks(partition(0, 1, 5)))
    assert not metadata.apply_leader_hints(name, index, leader, epoch, [], 1.0)
    assert metadata.leader("clicks", 0) == 1
    assert sorted(metadata.nodes) == [1, 2]


def test_rebootstrapping_keeps_the_topics() -> None:
    metadata = known(clicks(partition(0, 1, 5)))
    metadata.build_request(1.0)
    metadata.handle_failure(NetworkError("gone"), 1.0)
    change = metadata.rebootstrap(1.0)
    assert sorted(metadata.nodes) == [-2, -1]
    assert change.leaders == [LeaderChange("clicks", 0, 1, NO_LEADER, 5)]
    assert [node.id for node in change.nodes_removed] == [1, 2]
    assert metadata.next_update_delay(1.0) == 0
    assert names(metadata.build_request(1.0)) == ["clicks"]
    change = metadata.handle_response(response(clicks(partition(0, 2, 5))), 1.0, version=NEWEST)
    assert change.leaders == [LeaderChange("clicks", 0, NO_LEADER, 2, 5)]


def test_rebootstrapping_drops_leaders_in_steps() -> None:
    """The leaders of 2,000 partitions once took eight milliseconds of one loop pass when the only broker restarted."""
    metadata = known(clicks(*[partition(number, 1, 5) for number in range(200)]))
    metadata.build_request(1.0)
    steps = metadata.rebootstrap_in_steps(1.0)
    assert sorted(metadata.nodes) == [-2, -1]
    assert not metadata.update_in_flight
    assert metadata.next_update_delay(1.0) == 0
    assert metadata.leader("clicks", 0) == 1
    first, *others = list(steps)
    assert [node.id for node in first.nodes_removed] == [1, 2]
    changes = [change.leaders for change in (first, *others)]
    assert max(map(len, changes)) <= PARTITIONS_PER_STEP
    assert [change.partition for leaders in changes for change in leaders] == list(range(200))
    assert metadata.leader("clicks", 0) == metadata.leader("clicks", 199) == NO_LEADER


def test_rebootstrapping_abandons_the_request_in_flight() -> None:
    metadata = known()
    metadata.build_request(1.0)
    metadata.rebootstrap(1.0)
    assert not metadata.update_in_flight
    assert metadata.next_update_delay(1.0) == 0


def test_rebootstrap_when_no_node_is_available() -> None:
    metadata = known()
    assert not metadata.needs_rebootstrap(1.0, node_available=True)
    assert metadata.needs_rebootstrap(1.0, node_available=False)
    metadata.rebootstrap(1.0)
    assert not metadata.needs_rebootstrap(1.0, node_available=False)
    keeps = make_metadata(strategy="NONE")
    answer(keeps, response(), 0.0)
    keeps.require_rebootstrap()
    assert not keeps.needs_rebootstrap(1.0, node_available=False)


def test_rebootstrap_after_failing_for_the_trigger_time() -> None:
    metadata = make_metadata(trigger_ms=10_000)
    answer(metadata, response(), 0.0)
    assert not metadata.needs_rebootstrap(1000.0, node_available=True)
    metadata.build_request(1000.0)
    metadata.handle_failure(NetworkError("gone"), 1001.0)
    metadata.handle_failure(NetworkError("gone"), 1009.0)
    assert not metadata.needs_rebootstrap(1010.0, node_available=True)
    assert metadata.needs_rebootstrap(1010.1, node_available=True)
    answer(metadata, response(), 1011.0)
    assert not metadata.needs_rebootstrap(1011.0, node_available=True)


def test_rebootstrap_when_no_node_was_ever_available() -> None:
    metadata = make_metadata(trigger_ms=10_000)
    answer(metadata, response(), 0.0)
    metadata.handle_failure(KafkaError("no node could be asked"), 100.0)
    assert not metadata.needs_rebootstrap(110.0, node_available=True)
    assert metadata.needs_rebootstrap(110.1, node_available=True)


def test_rebootstrap_when_a_broker_requires_it() -> None:
    metadata = known()
    change = answer(metadata, response(error=129), 1.0)
    assert isinstance(change.failure, type(broker_error(129)))
    assert metadata.needs_rebootstrap(1.0, node_available=True)
    metadata.rebootstrap(1.0)
    assert not metadata.needs_rebootstrap(1.0, node_available=True)

    metadata = known()
    metadata.require_rebootstrap()
    assert metadata.needs_rebootstrap(1.0, node_available=True)
    change = answer(metadata, response(error=7), 1.0)
    assert change.failure is not None
    assert change.failure.retriable


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([], None),
        ([NodeCandidate(1, NodeState.BACKING_OFF)], None),
        ([NodeCandidate(1, NodeState.READY, 3), NodeCandidate(2, NodeState.READY, 1)], 2),
        ([NodeCandidate(1, NodeState.CONNECTING), NodeCandidate(2, NodeState.READY, 4)], 2),
        ([NodeCandidate(1, NodeState.CAN_CONNECT), NodeCandidate(2, NodeState.CONNECTING)], 2),
        ([NodeCandidate(1, NodeState.CAN_CONNECT, 0, 9.0), NodeCandidate(2, NodeState.CAN_CONNECT, 0, 8.0)], 2),
        ([NodeCandidate(1, NodeState.CAN_CONNECT, 0, 9.0), NodeCandidate(2, NodeState.CAN_CONNECT)], 2),
        ([NodeCandidate(1, NodeState.BACKING_OFF), NodeCandidate(2, NodeState.CAN_CONNECT, 0, 8.0)], 2),
    ],
)
def test_least_loaded_node_is_chosen(candidates: list[NodeCandidate], chosen: int | None) -> None:
    for order in (candidates, candidates[::-1]):
        assert least_loaded_node(order, Random(1)) == chosen


def test_least_loaded_node_alternates_between_equals() -> None:
    candidates = [NodeCandidate(node_id, NodeState.READY, 1) for node_id in range(3)]
    random = Random(3)
    assert {least_loaded_node(candidates, random) for _ in range(50)} == {0, 1, 2}


error_codes = st.sampled_from([0, 0, 0, 3, 5, 9, 17, 29, 999])
odd_partitions = st.builds(
    partition,
    st.sampled_from([0, 0, 1, 1, 2, 3, 7, -1, 2**31 - 1]),
    st.integers(-1, 4),
    st.integers(-1, 6),
    error_codes,
)
odd_topics = st.builds(
    lambda name, partitions, topic_id, error: topic(name, *partitions, topic_id=topic_id, error=error),
    st.sampled_from(["clicks", "views", "strange", None]),
    st.lists(odd_partitions, max_size=5),
    st.sampled_from([ID_1, ID_1, ID_1, ID_2, bytes(16)]),
    error_codes,
)
odd_responses = st.builds(
    lambda topics, brokers, cluster_id, error: response(*topics, brokers=brokers, cluster_id=cluster_id, error=error),
    st.lists(odd_topics, max_size=4),
    st.one_of(
        st.just([broker(1), broker(2), broker(3)]),
        st.lists(st.builds(broker, st.integers(-1, 4), st.sampled_from(["", "moved"])), max_size=5),
    ),
    st.sampled_from(["cluster", "cluster", None, "other"]),
    st.sampled_from([0, 0, 0, 0, 0, 129, 7]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("respond"), odd_responses, st.sampled_from([1, 8, 9, NEWEST])),
        st.tuples(st.just("add"), st.sampled_from(["clicks", "views"]), st.none()),
        st.tuples(st.just("hint"), st.tuples(st.integers(-1, 3), st.integers(-1, 5), st.integers(-1, 8)), st.none()),
        st.tuples(st.just("rebootstrap"), st.none(), st.none()),
        st.tuples(st.just("fail"), st.none(), st.none()),
    ),
    max_size=25,
)


class Follower:
    """Follows only the reported changes, as the accumulator does."""

    def __init__(self) -> None:
        self.leaders: dict[tuple[str, int], int] = {}
        self.nodes: dict[int, Node] = {}

    def follow(self, metadata: ClusterMetadata, change: MetadataChange) -> None:
        for name in change.recreated_topics:
            found = metadata.topic(name)
            assert found is not None
            count = len(found.partitions)
            self.leaders = {key: leader for key, leader in self.leaders.items() if key[0] != name or key[1] < count}
        for name in change.forgotten_topics:
            self.leaders = {key: leader for key, leader in self.leaders.items() if key[0] != name}
        for leader in change.leaders:
            assert self.leaders.get((leader.topic, leader.partition), NO_LEADER) == leader.old_leader
            self.leaders[leader.topic, leader.partition] = leader.new_leader
        for node in change.nodes_removed:
            self.nodes.pop(node.id, None)
        for node in [*change.nodes_added, *change.nodes_moved]:
            self.nodes[node.id] = node


@settings(max_examples=250, deadline=None)
@given(steps, st.integers(0, 100))
def test_metadata_stays_consistent_and_reports_every_change_for_any_responses(
    script: list[tuple[str, object, int | None]], seed: int
) -> None:
    metadata = make_metadata()
    follower = Follower()
    follower.nodes = {}
    now = 0.0
    epochs: dict[tuple[str, int], int] = {}
    random = Random(seed)
    for action, argument, version in script:
        now += random.choice([0.0, 0.05, 2.0, 70.0])
        before = metadata.version
        change = MetadataChange()
        if action == "add":
            assert isinstance(argument, str)
            found = metadata.add_topic(argument, now)
            assert found is None or found.partitions
        elif action == "hint":
            assert isinstance(argument, tuple)
            index, leader, epoch = argument
            change = metadata.apply_leader_hints("clicks", index, leader, epoch, [Node(3, "hinted", 1)], now)
        elif action == "rebootstrap":
            change = metadata.rebootstrap(now)
        elif action == "fail":
            metadata.handle_failure(NetworkError("gone"), now)
        else:
            assert isinstance(argument, MetadataResponse)
            assert version is not None
            change = answer(metadata, argument, now, version)
            assert metadata.version == before + (change.failure is None)
        assert metadata.next_update_delay(now) >= 0
        follower.follow(metadata, change)
        for name in change.recreated_topics + change.forgotten_topics + change.lost_topics:
            epochs = {key: epoch for key, epoch in epochs.items() if key[0] != name}
        for name in metadata.topics_in_use:
            found = metadata.topic(name)
            if found is None:
                assert all(leader == NO_LEADER for key, leader in follower.leaders.items() if key[0] == name)
                continue
            assert found.partitions
            for index, each in enumerate(found.partitions):
                assert each.partition == index
                assert each.leader == NO_LEADER or each.leader in metadata.nodes
                assert follower.leaders.get((name, index), NO_LEADER) == each.leader
                assert each.leader_epoch >= epochs.get((name, index), NO_EPOCH)
                epochs[name, index] = each.leader_epoch
        addresses = {node_id: (node.host, node.port) for node_id, node in metadata.nodes.items() if node_id >= 0}
        assert addresses == {
            node_id: (node.host, node.port) for node_id, node in follower.nodes.items() if node_id >= 0
        }
