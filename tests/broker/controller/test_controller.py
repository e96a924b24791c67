"""The controller's decisions, one by one."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from aioproducer.broker.config import BrokerConfig
from aioproducer.broker.controller.changes import Change
from aioproducer.broker.controller.controller import MAX_CHANGES, PRODUCER_ID_BLOCK, Controller, TopicSpec
from aioproducer.broker.controller.journal import Journal
from aioproducer.broker.image import NO_LEADER, BrokerRegistration, PartitionState
from aioproducer.broker.log import MemoryStorage
from aioproducer.errors import (
    BrokerIdNotRegisteredError,
    ConfigurationError,
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    InvalidUpdateVersionError,
    KafkaError,
    KafkaStorageError,
    NotControllerError,
    PolicyViolationError,
    PreferredLeaderNotAvailableError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)


class Follower:
    """A node as the controller sees it; keeps its notifications."""

    def __init__(self) -> None:
        self.events: list[tuple[list[PartitionState], list[PartitionState]]] = []
        self.configs: list[Sequence[str] | None] = []

    def apply(self, changed: list[PartitionState], removed: list[PartitionState]) -> None:
        self.events.append((changed, removed))

    def configs_changed(self, topics: Sequence[str] | None) -> None:
        self.configs.append(topics)


def _node(node_id: int) -> BrokerRegistration:
    return BrokerRegistration(node_id, "127.0.0.1", 9090 + node_id, None, is_alive=False, epoch=-1)


def _controller(
    nodes: int = 3, properties: Mapping[str, object] | None = None, storage: MemoryStorage | None = None
) -> Controller:
    journal = Journal(storage or MemoryStorage())
    controller = Controller(journal.load("cluster"), journal, BrokerConfig(properties or {}))
    controller.begin(nodes)
    if nodes:
        controller.register(*(_node(node_id) for node_id in range(1, nodes + 1)))
    return controller


@pytest.fixture
def controller() -> Controller:
    return _controller()


def _on(*replicas: int, configs: Mapping[str, str] | None = None) -> TopicSpec:
    """A topic of one partition."""
    return TopicSpec("t", assignments={0: list(replicas)}, configs=dict(configs or {}))


def _state(controller: Controller) -> PartitionState:
    return controller.image.partition("t", 0)


# Topics


def test_a_new_topic_has_an_id_leaders_and_isrs(controller: Controller) -> None:
    topic = controller.create_topic(TopicSpec("t", 3, 2, configs={"retention.ms": "5"}))
    assert controller.image.topic("t") is topic
    assert controller.image.topic_by_id(topic.topic_id) is topic
    assert len(topic.topic_id) == 16
    assert topic.configs == {"retention.ms": "5"}
    assert not topic.is_internal
    assert [partition.replicas for partition in topic.partitions] == [[1, 2], [2, 3], [3, 1]]
    for index, partition in enumerate(topic.partitions):
        assert partition == PartitionState(
            "t", topic.topic_id, index, partition.replicas, partition.replicas, partition.replicas[0], 0, 0
        )


def test_defaults_come_from_the_cluster() -> None:
    controller = _controller(properties={"num.partitions": 4, "default.replication.factor": 3})
    topic = controller.create_topic(TopicSpec("t"))
    assert len(topic.partitions) == 4
    assert all(len(partition.replicas) == 3 for partition in topic.partitions)
    assert controller.create_topic(TopicSpec("__consumer_offsets")).is_internal


def test_leaders_of_a_new_topic_follow_those_of_the_previous_one(controller: Controller) -> None:
    leaders = [controller.create_topic(TopicSpec(name)).partitions[0].leader for name in "abcd"]
    assert leaders == [1, 2, 3, 1]


def test_validate_only_changes_nothing(controller: Controller) -> None:
    topic = controller.create_topic(TopicSpec("t", 2), validate_only=True)
    assert len(topic.partitions) == 2
    assert not controller.image.topics
    with pytest.raises(InvalidPartitionsError):
        controller.create_topic(TopicSpec("t", 0), validate_only=True)


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        (TopicSpec("a/b"), InvalidTopicError, "Topic name is invalid: 'a/b' contains one or more characters"),
        (TopicSpec("here.it_is"), InvalidTopicError, "Topic 'here.it_is' collides with existing topic: here_it.is"),
        (TopicSpec("here_it.is"), TopicExistsError, "Topic 'here_it.is' already exists."),
        (TopicSpec("x", 0), InvalidPartitionsError, "Number of partitions was set to an invalid non-positive value."),
        (
            TopicSpec("x", 1, 0),
            InvalidReplicationFactorError,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (TopicSpec("x", 1, 4), InvalidReplicationFactorError, "cannot be reached because only 3 broker(s)"),
        (
            TopicSpec("x", configs={"retention.ms": None, "segment.ms": None}),
            InvalidConfigurationError,
            "Null value not supported for topic configs: retention.ms,segment.ms",
        ),
        (TopicSpec("x", configs={"no.such": "1"}), InvalidConfigurationError, "no.such"),
        (TopicSpec("x", 2**31 - 1), PolicyViolationError, "Unable to perform excessively large batch operation."),
        (TopicSpec("x", MAX_CHANGES), PolicyViolationError, "Unable to perform excessively large batch operation."),
        (TopicSpec("x", 1, -1, {0: [1]}), InvalidRequestError, "numPartitions was not set to -1"),
        (TopicSpec("x", -1, 1, {0: [1]}), InvalidRequestError, "replication factor was not set to -1"),
        (TopicSpec("x", assignments={0: []}), InvalidReplicaAssignmentError, "includes an empty replica list"),
        (TopicSpec("x", assignments={0: [1, 1]}), InvalidReplicaAssignmentError, "includes the broker 1 more than"),
        (TopicSpec("x", assignments={0: [9]}), InvalidReplicaAssignmentError, "includes broker 9, but no such broker"),
        (TopicSpec("x", assignments={1: [1]}), InvalidReplicaAssignmentError, "consecutive 0-based integer sequence"),
        (
            TopicSpec("x", assignments={0: [1, 2], 1: [1]}),
            InvalidReplicaAssignmentError,
            "a partition with 1 replica(s), but this is not consistent with previous partitions, which have 2",
        ),
    ],
)
def test_invalid_topics_are_rejected(
    controller: Controller, spec: TopicSpec, error: type[KafkaError], text: str
) -> None:
    controller.create_topic(TopicSpec("here_it.is"))
    before = dict(controller.image.topics)
    with pytest.raises(error, match=re.escape(text)):
        controller.create_topic(spec)
    assert controller.image.topics == before


def test_an_assignment_needs_one_node_in_service(controller: Controller) -> None:
    controller.fence(1)
    topic = controller.create_topic(_on(1, 2))
    assert (topic.partitions[0].isr, topic.partitions[0].leader) == ([2], 2)
    with pytest.raises(InvalidReplicaAssignmentError, match="for partition 0 are fenced or in controlled shutdown"):
        controller.create_topic(TopicSpec("x", assignments={0: [1]}))


def test_a_cluster_without_nodes_creates_no_topic() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="only 0 broker"):
        _controller(0).create_topic(TopicSpec("t"))


def test_a_deleted_topic_is_unknown(controller: Controller) -> None:
    topic = controller.create_topic(TopicSpec("t", 2))
    follower = Follower()
    controller.attach(follower)
    assert controller.delete_topic("t") is topic
    assert follower.events == [([], topic.partitions)]
    with pytest.raises(UnknownTopicOrPartitionError):
        controller.image.topic("t")
    with pytest.raises(UnknownTopicIdError):
        controller.image.topic_by_id(topic.topic_id)
    with pytest.raises(UnknownTopicOrPartitionError):
        controller.delete_topic("t")
    assert controller.create_topic(TopicSpec("t")).topic_id != topic.topic_id


def test_a_topic_gets_more_partitions(controller: Controller) -> None:
    topic = controller.create_topic(TopicSpec("t", 1, 2))
    assert [state.replicas for state in controller.create_partitions("t", 3, validate_only=True)] == [[2, 3], [3, 1]]
    assert len(topic.partitions) == 1
    added = controller.create_partitions("t", 3)
    assert topic.partitions[1:] == added
    controller.create_partitions("t", 4, [[3, 2]])
    assert controller.image.partition("t", 3).replicas == [3, 2]


@pytest.mark.parametrize(
    ("total", "assignments", "error", "text"),
    [
        (2, None, InvalidPartitionsError, "Topic already has 2 partition(s)."),
        (1, None, InvalidPartitionsError, "The topic t currently has 2 partition(s); 1 would not be an increase."),
        (
            4,
            [[1]],
            InvalidReplicaAssignmentError,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (3, [[1, 2]], InvalidReplicaAssignmentError, "which have 1 replica(s)"),
        (3, [[3]], InvalidReplicaAssignmentError, "for partition 2 are fenced"),
        (2**31 - 1, None, PolicyViolationError, "excessively large"),
    ],
)
def test_invalid_new_partitions_are_rejected(
    controller: Controller, total: int, assignments: list[list[int]] | None, error: type[KafkaError], text: str
) -> None:
    controller.create_topic(TopicSpec("t", 2, 1))
    controller.fence(3)
    with pytest.raises(error, match=re.escape(text)):
        controller.create_partitions("t", total, assignments)
    assert len(controller.image.topic("t").partitions) == 2


# Nodes and elections


def test_a_leaders_death_moves_the_leadership_to_the_isr_in_replica_order(controller: Controller) -> None:
    controller.create_topic(_on(1, 2, 3))
    controller.fence(1)
    state = _state(controller)
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (2, [2, 3], 1, 1)
    assert controller.image.controller_id == 2
    controller.fence(3)
    state = _state(controller)
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (2, [2], 1, 2)


def test_the_last_node_of_an_isr_stays_in_it(controller: Controller) -> None:
    controller.create_topic(_on(1, 2))
    controller.fence(1)
    controller.fence(2)
    state = _state(controller)
    assert (state.leader, state.isr, state.last_known_leader) == (NO_LEADER, [2], 2)
    controller.register(_node(1))
    assert _state(controller) is state, "a node outside of the ISR may lack acknowledged records"
    controller.register(_node(2))
    state = _state(controller)
    assert (state.leader, state.isr, state.leader_epoch, state.last_known_leader) == (2, [2], 3, NO_LEADER)


def test_an_isr_that_is_lost_at_once_returns_unchanged(controller: Controller) -> None:
    controller.create_topic(_on(1, 2, 3))
    controller.elect_leader("t", 0, 3)
    controller.fence(1, 2, 3)
    state = _state(controller)
    assert (state.leader, state.isr) == (NO_LEADER, [1, 2, 3])
    assert controller.image.controller_id == -1
    controller.register(_node(1), _node(2), _node(3))
    state = _state(controller)
    assert (state.leader, state.isr, state.leader_epoch) == (3, [1, 2, 3], 3)


def test_the_first_returning_node_of_a_lost_isr_leads_alone(controller: Controller) -> None:
    controller.create_topic(_on(1, 2, 3))
    controller.fence(1, 2, 3)
    controller.register(_node(2))
    state = _state(controller)
    assert (state.leader, state.isr) == (2, [2])


def test_an_unclean_election_needs_its_configuration() -> None:
    for properties, configs, leads in (
        ({}, {}, NO_LEADER),
        ({}, {"unclean.leader.election.enable": "true"}, 2),
        ({"unclean.leader.election.enable": True}, {}, 2),
        ({"unclean.leader.election.enable": True}, {"unclean.leader.election.enable": "false"}, NO_LEADER),
    ):
        controller = _controller(properties=properties)
        controller.create_topic(_on(1, 2, configs=configs))
        controller.alter_partition(1, "t", 0, 0, 0, [1])
        controller.fence(1)
        state = _state(controller)
        assert state.leader == leads
        assert state.isr == ([2] if leads == 2 else [1])


def test_an_unclean_election_happens_when_it_is_configured_later(controller: Controller) -> None:
    controller.create_topic(_on(1, 2))
    controller.alter_partition(1, "t", 0, 0, 0, [1])
    controller.fence(1)
    controller.alter_topic_configs("t", {"unclean.leader.election.enable": "true"})
    assert (_state(controller).leader, _state(controller).isr) == (2, [2])


def test_controlled_shutdown_moves_leaders_while_the_node_is_still_there(controller: Controller) -> None:
    controller.create_topic(_on(1, 2))
    controller.begin_shutdown(1)
    state = _state(controller)
    assert (state.leader, state.isr) == (2, [2])
    assert [node.node_id for node in controller.image.alive_nodes()] == [1, 2, 3]
    assert controller.image.eligible_nodes() == {2, 3}
    with pytest.raises(IneligibleReplicaError, match=re.escape("Not in service, so not in the ISR of t-0: [1].")):
        controller.alter_partition(2, "t", 0, state.leader_epoch, state.partition_epoch, [1, 2])
    controller.fence(1)
    assert [node.node_id for node in controller.image.alive_nodes()] == [2, 3]
    assert _state(controller) is state
    controller.register(_node(1))
    assert controller.image.eligible_nodes() == {1, 2, 3}


def test_each_registration_has_a_higher_epoch(controller: Controller) -> None:
    before = controller.image.nodes[1].epoch
    controller.fence(1)
    controller.register(replace(_node(1), port=5))
    assert controller.image.nodes[1].epoch > max(before, controller.image.nodes[3].epoch)
    assert controller.image.nodes[1].port == 5


def test_unknown_nodes_are_rejected(controller: Controller) -> None:
    with pytest.raises(BrokerIdNotRegisteredError, match="Broker 7 is not registered"):
        controller.fence(7)
    controller.fence(1)
    before = controller.image.nodes[1]
    controller.fence(1)
    assert controller.image.nodes[1] is before


def test_elect_leader_moves_the_leadership_within_the_isr(controller: Controller) -> None:
    controller.create_topic(_on(1, 2, 3))
    state = controller.elect_leader("t", 0, 3)
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (3, [1, 2, 3], 1, 1)
    assert controller.elect_leader("t", 0).leader == 1
    with pytest.raises(ElectionNotNeededError, match="Node 1 leads t-0 already"):
        controller.elect_leader("t", 0, 1)
    with pytest.raises(InvalidReplicaAssignmentError, match="Node 4 has no replica of t-0"):
        controller.elect_leader("t", 0, 4)
    with pytest.raises(UnknownTopicOrPartitionError):
        controller.elect_leader("t", 1, 1)
    controller.alter_partition(1, "t", 0, 2, 2, [1, 2])
    controller.fence(2)
    for node_id in (2, 3):
        with pytest.raises(PreferredLeaderNotAvailableError, match="not both in service and in the ISR"):
            controller.elect_leader("t", 0, node_id)


def test_elect_unclean_makes_any_replica_in_service_the_leader(controller: Controller) -> None:
    controller.create_topic(_on(1, 2))
    with pytest.raises(ElectionNotNeededError):
        controller.elect_unclean("t", 0)
    controller.alter_partition(1, "t", 0, 0, 0, [1])
    controller.fence(1, 2)
    with pytest.raises(EligibleLeadersNotAvailableError):
        controller.elect_unclean("t", 0)
    controller.register(_node(2))
    state = controller.elect_unclean("t", 0)
    assert (state.leader, state.isr) == (2, [2])


# AlterPartition (KIP-497)


def test_alter_partition_changes_the_isr(controller: Controller) -> None:
    controller.create_topic(_on(1, 2, 3))
    state = controller.alter_partition(1, "t", 0, 0, 0, [1, 3])
    assert (state.isr, state.leader, state.leader_epoch, state.partition_epoch) == ([1, 3], 1, 0, 1)
    assert controller.alter_partition(1, "t", 0, 0, 1, [1, 3]) is state
    assert controller.alter_partition(1, "t", 0, 0, 1, [1, 3, 2]).partition_epoch == 2


@pytest.mark.parametrize(
    ("node_id", "leader_epoch", "partition_epoch", "isr", "error"),
    [
        (2, 2, 2, [2], NotControllerError),
        (2, 1, 3, [2], NotControllerError),
        (2, 0, 2, [2], FencedLeaderEpochError),
        (3, 1, 2, [3], InvalidRequestError),
        (2, 1, 1, [2], InvalidUpdateVersionError),
        (2, 1, 2, [2, 4], InvalidRequestError),
        (2, 1, 2, [2, 2], InvalidRequestError),
        (2, 1, 2, [3], InvalidRequestError),
        (2, 1, 2, [], InvalidRequestError),
        (2, 1, 2, [2, 1], IneligibleReplicaError),
    ],
)
def test_invalid_isrs_are_rejected(
    controller: Controller,
    node_id: int,
    leader_epoch: int,
    partition_epoch: int,
    isr: list[int],
    error: type[KafkaError],
) -> None:
    controller.create_topic(_on(1, 2, 3))
    controller.fence(1)
    controller.alter_partition(2, "t", 0, 1, 1, [2])
    before = _state(controller)
    with pytest.raises(error):
        controller.alter_partition(node_id, "t", 0, leader_epoch, partition_epoch, isr)
    assert _state(controller) is before


def test_alter_partition_of_an_unknown_partition_is_an_error(controller: Controller) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        controller.alter_partition(1, "t", 0, 0, 0, [1])


# Configurations


def test_topic_configs_are_set_and_removed(controller: Controller) -> None:
    controller.create_topic(TopicSpec("t", configs={"retention.ms": "5"}))
    follower = Follower()
    controller.attach(follower)
    controller.alter_topic_configs("t", {"segment.ms": "7"}, validate_only=True)
    assert controller.image.topic("t").configs == {"retention.ms": "5"}
    controller.alter_topic_configs("t", {"segment.ms": "7", "retention.ms": None})
    assert controller.image.topic("t").configs == {"segment.ms": "7"}
    controller.alter_topic_configs("t", {"segment.ms": "7"})
    assert follower.configs == [["t"]]
    with pytest.raises(InvalidConfigurationError):
        controller.alter_topic_configs("t", {"segment.ms": "never"})
    with pytest.raises(UnknownTopicOrPartitionError):
        controller.alter_topic_configs("x", {})


def test_node_configs_are_set_and_removed(controller: Controller) -> None:
    follower = Follower()
    controller.attach(follower)
    controller.alter_node_configs(None, {"min.insync.replicas": "2"})
    controller.alter_node_configs(2, {"message.max.bytes": "1000"})
    controller.alter_node_configs(2, {"message.max.bytes": "2000"}, validate_only=True)
    assert controller.image.node_configs == {"": {"min.insync.replicas": "2"}, "2": {"message.max.bytes": "1000"}}
    assert controller.config.min_insync_replicas == 2
    assert follower.configs == [None, None]
    controller.alter_node_configs(None, {"min.insync.replicas": None})
    assert controller.config.min_insync_replicas == 1
    with pytest.raises(InvalidConfigurationError, match=r"message\.max\.bytes"):
        controller.alter_node_configs(2, {"message.max.bytes": "many"})


# Producer ids


def test_producer_ids_count_from_zero_and_are_unique() -> None:
    storage = MemoryStorage()
    controller = _controller(storage=storage)
    first = [controller.allocate_producer_id() for _ in range(PRODUCER_ID_BLOCK + 1)]
    assert first == list(range(PRODUCER_ID_BLOCK + 1))
    # As after a SIGKILL: the journal was not closed.
    second = [_controller(storage=storage).allocate_producer_id() for _ in range(3)]
    assert len({*first, *second}) == len(first) + len(second)


# Events


def test_all_listeners_receive_all_events_in_the_same_order(controller: Controller) -> None:
    controller.create_topic(_on(1, 2))
    heard: dict[str, list[tuple[int, list[int]]]] = {"a": [], "b": []}

    class Shrinking(Follower):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def apply(self, changed: list[PartitionState], removed: list[PartitionState]) -> None:
            heard[self.name] += [(state.partition_epoch, state.isr) for state in changed]
            state = changed[0]
            if self.name == "a" and state.leader == 2:
                after = controller.alter_partition(2, "t", 0, state.leader_epoch, state.partition_epoch, [2])
                assert after.isr == [2], "decided at once"
                assert _state(controller) is after

    controller.attach(Shrinking("a"))
    controller.attach(Shrinking("b"))
    # The third event of all is refused, because nothing changes any more.
    controller.elect_leader("t", 0, 2)
    assert heard["a"] == heard["b"] == [(1, [1, 2]), (2, [2])]


def test_a_detached_listener_is_no_longer_notified(controller: Controller) -> None:
    quitter, follower = Follower(), Follower()

    class Killer(Follower):
        def apply(self, changed: list[PartitionState], removed: list[PartitionState]) -> None:
            controller.detach(quitter)

    controller.attach(Killer())
    controller.attach(quitter)
    controller.attach(follower)
    controller.create_topic(TopicSpec("t"))
    assert not quitter.events
    assert len(follower.events) == 1
    controller.detach(quitter)


def test_an_error_of_one_listener_does_not_affect_the_others(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Follower):
        def apply(self, changed: list[PartitionState], removed: list[PartitionState]) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    follower = Follower()
    controller.attach(Broken())
    controller.attach(follower)
    controller.create_topic(TopicSpec("t"))
    assert len(follower.events) == 1
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "could not follow a change of the cluster" in record.getMessage()
    assert "No space left" in caplog.text


def test_an_event_that_cannot_be_written_does_not_happen() -> None:
    class Breaking(Journal):
        broken = False

        def append(self, changes: Sequence[Change]) -> None:
            if self.broken:
                raise KafkaStorageError("full")
            super().append(changes)

    journal = Breaking(MemoryStorage())
    controller = Controller(journal.load("cluster"), journal, BrokerConfig())
    controller.begin(1)
    controller.register(_node(1))
    follower = Follower()
    controller.attach(follower)
    journal.broken = True
    with pytest.raises(KafkaStorageError):
        controller.create_topic(TopicSpec("t"))
    with pytest.raises(KafkaStorageError):
        controller.allocate_producer_id()
    journal.broken = False
    assert not controller.image.topics
    assert not follower.events
    assert controller.allocate_producer_id() == 0
    assert controller.create_topic(TopicSpec("t")).partitions[0].leader == 1


# Restart


@pytest.fixture
def storage() -> Iterator[MemoryStorage]:
    return MemoryStorage()


def test_leaders_and_isrs_are_the_same_after_a_restart(storage: MemoryStorage) -> None:
    controller = _controller(storage=storage)
    controller.create_topic(_on(1, 2, 3))
    controller.elect_leader("t", 0, 2)
    controller.alter_partition(2, "t", 0, 1, 1, [2, 3])
    again = _restarted(storage, 4)
    state = _state(again)
    assert (state.leader, state.isr, state.leader_epoch) == (NO_LEADER, [2, 3], 2)
    assert not again.image.alive_nodes()
    again.register(*(_node(node_id) for node_id in (1, 2, 3, 4)))
    state = _state(again)
    assert (state.leader, state.isr, state.leader_epoch) == (2, [2, 3], 3)
    assert len(again.image.alive_nodes()) == 4


def _restarted(storage: MemoryStorage, nodes: int) -> Controller:
    journal = Journal(storage)
    controller = Controller(journal.load("other"), journal, BrokerConfig())
    controller.begin(nodes)
    assert controller.image.cluster_id == "cluster"
    return controller


def test_a_cluster_shrinks_only_if_the_removed_nodes_are_empty(storage: MemoryStorage) -> None:
    controller = _controller(storage=storage)
    controller.create_topic(_on(1, 2))
    again = _restarted(storage, 2)
    assert sorted(again.image.nodes) == [1, 2]
    with pytest.raises(
        ConfigurationError,
        match=re.escape("partitions on nodes [2] (such as t-0 on [1, 2]), and cannot start with 1 node(s)"),
    ):
        _restarted(storage, 1)
