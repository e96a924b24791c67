"""Metadata of many topics: requested in several requests, and applied in steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aioproducer.core.metadata.cluster import NO_LEADER, MetadataChange
from aioproducer.core.metadata.cluster_metadata import TOPICS_CHECKED_PER_REQUEST, TOPICS_PER_REQUEST, ClusterMetadata
from aioproducer.core.metadata.metadata_merger import PARTITIONS_PER_STEP
from aioproducer.errors import NetworkError, ProtocolError
from aioproducer.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from aioproducer.record import Node
from tests.core.metadata.test_cluster_metadata import NEWEST, broker, make_metadata, names, partition, response, topic

MANY = 2 * TOPICS_PER_REQUEST + 10


def many_topics(count: int = MANY) -> tuple[ClusterMetadata, list[str]]:
    metadata = make_metadata()
    wanted = [f"topic-{number:05}" for number in range(count)]
    for name in wanted:
        metadata.add_topic(name, 0.0)
    return metadata, wanted


def answer_all(metadata: ClusterMetadata, asked: list[str | None], now: float, leader: int = 1) -> MetadataChange:
    return metadata.handle_response(
        response(*(topic(name, partition(0, leader)) for name in asked)), now, version=NEWEST
    )


def ask_all(metadata: ClusterMetadata, now: float) -> None:
    """A full update with all of its parts."""
    for _ in range(3):
        assert metadata.next_update_delay(now) == 0
        answer_all(metadata, names(metadata.build_request(now)), now)


def test_full_update_of_many_topics_takes_several_requests_in_sequence() -> None:
    metadata, wanted = many_topics()
    version = metadata.version
    asked: list[str | None] = []
    for size in (TOPICS_PER_REQUEST, TOPICS_PER_REQUEST, 10):
        assert metadata.next_update_delay(0.0) == 0
        assert metadata.version == version
        part = names(metadata.build_request(0.0))
        assert len(part) == size
        asked += part
        answer_all(metadata, part, 0.0)
    assert asked == wanted
    assert metadata.version == version + 1
    assert all(metadata.leader(name, 0) == 1 for name in wanted)
    # Nothing more until it is too old.
    assert metadata.next_update_delay(1.0) == pytest.approx(299.0)


def test_new_topics_are_requested_before_the_rest_of_a_full_update() -> None:
    metadata, wanted = many_topics()
    ask_all(metadata, 0.0)
    metadata.request_update(10.0, "test")
    answer_all(metadata, names(metadata.build_request(10.0)), 10.0)
    metadata.add_topic("a-new-one", 10.0)
    second = names(metadata.build_request(10.0))
    assert second == ["a-new-one", *wanted[TOPICS_PER_REQUEST : 2 * TOPICS_PER_REQUEST - 1]]
    answer_all(metadata, second, 10.0)
    assert names(metadata.build_request(10.0)) == wanted[2 * TOPICS_PER_REQUEST - 1 :]


def test_a_failed_part_restarts_the_full_update() -> None:
    metadata, wanted = many_topics()
    ask_all(metadata, 0.0)
    metadata.request_update(10.0, "test")
    answer_all(metadata, names(metadata.build_request(10.0)), 10.0)
    metadata.build_request(10.0)
    metadata.handle_failure(NetworkError("gone"), 10.0)
    assert 0 < metadata.next_update_delay(10.0) <= 0.12
    asked: list[str | None] = []
    for _ in range(3):
        part = names(metadata.build_request(11.0))
        asked += part
        answer_all(metadata, part, 11.0)
    assert sorted(name or "" for name in asked) == wanted
    assert metadata.next_update_delay(12.0) == pytest.approx(299.0)


def test_the_parts_of_an_update_count_as_one_update_for_the_backoff() -> None:
    metadata, _ = many_topics()
    now = 0.0
    ask_all(metadata, now)
    delays = []
    for _ in range(3):
        now += 10
        metadata.request_update(now, "test")
        ask_all(metadata, now)
        metadata.request_update(now, "test")
        delays.append(metadata.next_update_delay(now))
    # Responses without news: 100 ms after the first, then about twice that each time.
    assert 0.15 < delays[0] < 0.25 < delays[1] < 0.5 < delays[2] < 1


def test_many_new_topics_take_several_requests() -> None:
    metadata = make_metadata()
    answer_all(metadata, names(metadata.build_request(0.0)), 0.0)
    wanted = [f"topic-{number:05}" for number in range(TOPICS_PER_REQUEST + 1)]
    for name in wanted:
        metadata.add_topic(name, 0.0)
    assert names(metadata.build_request(0.0)) == wanted[:TOPICS_PER_REQUEST]
    answer_all(metadata, list(wanted[:TOPICS_PER_REQUEST]), 0.0)
    assert names(metadata.build_request(0.0)) == wanted[TOPICS_PER_REQUEST:]


def test_every_topic_is_requested_while_new_ones_keep_arriving() -> None:
    metadata, wanted = many_topics()
    ask_all(metadata, 0.0)
    metadata.request_update(10.0, "test")
    asked: list[str | None] = []
    for number in range(4):
        for each in range(TOPICS_PER_REQUEST // 2):
            metadata.add_topic(f"new-{number}-{each}", 10.0)
        part = names(metadata.build_request(10.0))
        assert len(part) <= TOPICS_PER_REQUEST
        answer_all(metadata, part, 10.0)
        asked += part
    assert set(wanted) - set(asked) == set(wanted[400:])
    while metadata.next_update_delay(10.0) == 0:
        part = names(metadata.build_request(10.0))
        answer_all(metadata, part, 10.0)
        asked += part
    assert len(asked) == len(set(asked)) == MANY + 2 * TOPICS_PER_REQUEST


def test_forgotten_topics_are_skipped_a_bounded_number_at_a_time() -> None:
    """Each update once copied the names of 100,000 topics in one pass of the loop."""
    count = 2 * TOPICS_CHECKED_PER_REQUEST
    metadata, wanted = many_topics(count)
    while metadata.next_update_delay(0.0) == 0:
        answer_all(metadata, names(metadata.build_request(0.0)), 0.0)
    idle = 301.0
    metadata.touch(wanted[-1], idle)
    while metadata.next_update_delay(idle) == 0:
        answer_all(metadata, names(metadata.build_request(idle)), idle)
    assert list(metadata.topics_in_use) == wanted[-1:]
    metadata.request_update(idle + 10, "test")
    sizes = []
    while metadata.next_update_delay(idle + 10) == 0:
        part = names(metadata.build_request(idle + 10))
        answer_all(metadata, part, idle + 10)
        sizes.append(len(part))
    assert sizes == [0, 1]
    metadata.request_update(idle + 20, "test")
    assert names(metadata.build_request(idle + 20)) == wanted[-1:]


def test_after_a_failed_update_the_topics_not_requested_yet_come_first() -> None:
    metadata = make_metadata()
    answer_all(metadata, names(metadata.build_request(0.0)), 0.0)
    wanted = [f"topic-{number:05}" for number in range(2 * TOPICS_PER_REQUEST)]
    for name in wanted:
        metadata.add_topic(name, 0.0)
    metadata.build_request(0.0)
    metadata.handle_failure(NetworkError("gone"), 0.0)
    assert names(metadata.build_request(1.0)) == wanted[TOPICS_PER_REQUEST:]
    answer_all(metadata, list(wanted[TOPICS_PER_REQUEST:]), 1.0)
    assert names(metadata.build_request(1.0)) == wanted[:TOPICS_PER_REQUEST]


def begin(metadata: ClusterMetadata, answered: MetadataResponse, now: float = 0.0) -> Iterator[MetadataChange]:
    """Apply a response with topics that are read later, followed by the fields after them."""
    error_code, answered.error_code = answered.error_code, 0

    def topics() -> Iterator[MetadataResponseTopic | None]:
        yield None
        yield from answered.topics
        answered.error_code = error_code

    return metadata.apply_response(answered, topics(), now, version=NEWEST)


def test_each_step_is_small_and_steps_do_not_overlap() -> None:
    metadata, wanted = many_topics(100)
    metadata.build_request(0.0)
    seen: list[tuple[str, int]] = []
    steps = 0
    answered = response(*(topic(name, *(partition(index, 1) for index in range(4))) for name in wanted))
    for change in begin(metadata, answered):
        steps += 1
        seen += [(leader.topic, leader.partition) for leader in change.leaders]
        assert len(change.leaders) <= PARTITIONS_PER_STEP + 3
        # A topic's leaders arrive with the topic, and are known nodes.
        assert {leader.topic for leader in change.leaders} == set(change.new_topics)
        assert all(metadata.node(leader.new_leader) for leader in change.leaders)
    assert seen == [(name, index) for name in wanted for index in range(4)]
    assert steps >= 400 // (PARTITIONS_PER_STEP + 3)


def test_a_topic_becomes_known_with_all_its_partitions_at_once() -> None:
    metadata, _ = many_topics(1)
    metadata.build_request(0.0)
    count = 10 * PARTITIONS_PER_STEP
    reported = 0
    for change in begin(metadata, response(topic("topic-00000", *(partition(index, 1) for index in range(count))))):
        reported += len(change.leaders)
        known = metadata.topic("topic-00000")
        assert reported == (0 if known is None else count)
        assert metadata.update_in_flight == (known is None)
    assert reported == count


def test_the_request_stays_in_flight_and_the_version_rises_only_with_the_last_step() -> None:
    metadata, wanted = many_topics(50)
    metadata.build_request(0.0)
    version = metadata.version
    steps = begin(metadata, response(*(topic(name, partition(0, 1)) for name in wanted)))
    next(steps)
    assert metadata.update_in_flight
    assert metadata.version == version
    metadata.add_topic("later", 0.0)
    for _ in steps:
        pass
    assert not metadata.update_in_flight
    assert metadata.version == version + 1
    assert names(metadata.build_request(0.0)) == ["later"]


def test_a_leader_hint_between_steps_is_not_undone_by_an_older_response() -> None:
    metadata, wanted = many_topics(50)
    answer_all(metadata, names(metadata.build_request(0.0)), 0.0)
    metadata.request_update(20.0, "test")
    metadata.build_request(20.0)
    steps = begin(metadata, response(*(topic(name, partition(0, 1)) for name in wanted)), 20.0)
    next(steps)
    metadata.apply_leader_hints(wanted[-1], 0, 3, 5, [Node(3, "three", 9092)], 20.0)
    for _ in steps:
        assert metadata.leader(wanted[-1], 0) in (3, NO_LEADER)
    # The response lists no node 3: its partition has no leader, which is requested.
    assert metadata.leader(wanted[-1], 0) == NO_LEADER
    assert metadata.next_update_delay(22.0) == 0


def test_rebootstrapping_between_steps_ends_them() -> None:
    metadata, wanted = many_topics(50)
    answer_all(metadata, names(metadata.build_request(0.0)), 0.0)
    metadata.request_update(20.0, "test")
    metadata.build_request(20.0)
    steps = begin(metadata, response(*(topic(name, partition(0, 2, epoch=9)) for name in wanted)), 20.0)
    next(steps)
    metadata.rebootstrap(20.0)
    assert list(steps) == []
    assert all(metadata.leader(name, 0) == NO_LEADER for name in wanted)
    assert not metadata.update_in_flight


def test_an_error_after_the_topics_fails_the_update() -> None:
    metadata, wanted = many_topics(3)
    metadata.build_request(0.0)
    version = metadata.version
    failure = [change.failure for change in begin(metadata, response(*map(topic, wanted), brokers=[], error=129))][-1]
    assert failure is not None
    assert getattr(failure, "code", None) == 129
    assert metadata.version == version
    assert not metadata.update_in_flight
    metadata.build_request(1.0)
    last = list(begin(metadata, response(topic(wanted[0], partition(0, 1)), error=41), 1.0))[-1]
    assert getattr(last.failure, "code", None) == 41
    assert metadata.next_update_delay(1.0) > 0


def test_an_exception_while_reading_topics_propagates_and_the_request_can_still_fail() -> None:
    metadata, wanted = many_topics(2)
    metadata.build_request(0.0)

    def topics() -> Iterator[MetadataResponseTopic]:
        yield topic(wanted[0], partition(0, 1))
        raise ProtocolError("cut off")

    with pytest.raises(ProtocolError, match="cut off"):
        list(metadata.apply_response(response(), topics(), 0.0, version=NEWEST))
    assert metadata.update_in_flight
    metadata.handle_failure(ProtocolError("cut off"), 0.0)
    assert metadata.next_update_delay(0.0) > 0


def test_leaders_of_a_removed_node_are_dropped_in_steps() -> None:
    metadata, wanted = many_topics(100)
    answer_all(metadata, names(metadata.build_request(0.0)), 0.0, leader=2)
    metadata.request_update(20.0, "test")
    metadata.build_request(20.0)
    changes = list(begin(metadata, response(brokers=[broker(1)]), 20.0))
    assert sum(len(change.leaders) for change in changes) == 100
    assert max(len(change.leaders) for change in changes) <= PARTITIONS_PER_STEP
    assert [node.id for change in changes for node in change.nodes_removed] == [2]
    assert all(metadata.leader(name, 0) == NO_LEADER for name in wanted)


def test_a_response_without_changes_keeps_the_existing_objects() -> None:
    metadata, wanted = many_topics(3)
    answer_all(metadata, names(metadata.build_request(0.0)), 0.0)
    known = metadata.topic(wanted[0])
    assert known is not None
    before = known.partitions[0]
    metadata.request_update(20.0, "test")
    metadata.build_request(20.0)
    assert not answer_all(metadata, list(wanted), 20.0)
    assert metadata.topic(wanted[0]) is known
    assert known.partitions[0] is before


def test_an_endless_supply_of_new_topics_leaves_known_topics_half_of_each_request() -> None:
    """New topics once filled every request, and known topics were never requested again."""
    metadata, wanted = many_topics()
    now = 0.0
    ask_all(metadata, now)
    now += 1
    metadata.request_update(now, "test")
    still_to_ask = set(wanted)
    for turn in range(MANY // (TOPICS_PER_REQUEST // 2) + 1):
        for number in range(TOPICS_PER_REQUEST):
            metadata.add_topic(f"new-{turn}-{number}", now)
        asked = names(metadata.build_request(now))
        assert len(asked) == TOPICS_PER_REQUEST
        still_to_ask.difference_update(name for name in asked if name is not None)
        answer_all(metadata, asked, now)
    assert not still_to_ask


def test_dropping_leaders_visits_unknown_topics_in_steps() -> None:
    """All of them were once visited in one step."""
    metadata = make_metadata()
    metadata.add_topic("known", 0.0)
    answer_all(metadata, names(metadata.build_request(0.0)), 0.0)
    for number in range(10 * PARTITIONS_PER_STEP * PARTITIONS_PER_STEP):
        metadata.add_topic(f"unknown-{number}", 0.0)
    steps = list(metadata.rebootstrap_in_steps(1.0))
    assert len(steps) >= 10
    assert [leader.new_leader for step in steps for leader in step.leaders] == [NO_LEADER]
