"""Who decides for the whole cluster: one queue of events, no waiting, no threads.

An event is decided from the image alone and calls nobody while it is, so events never overlap. Its changes are written
to the journal, then become true in the image, then every node that is attached is told. Whoever is told may raise the
next event: that one is decided at once, and its telling waits until all have heard the one before, so that all nodes
hear all events in the same order.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from aioproducer.broker.config import BrokerConfig, log_config, validate_topic_configs
from aioproducer.broker.controller import topic_rules
from aioproducer.broker.controller.changes import (
    Change,
    Features,
    NodeConfigs,
    ProducerIds,
    Told,
    TopicConfigs,
    TopicRemoval,
    apply,
)
from aioproducer.broker.controller.election import elected, moved
from aioproducer.broker.controller.journal import Journal
from aioproducer.broker.controller.placement import place
from aioproducer.broker.image import (
    CLUSTER_DEFAULT,
    NO_LEADER,
    SUPPORTED_FEATURES,
    BrokerRegistration,
    ClusterImage,
    PartitionState,
    TopicState,
)
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
    InvalidUpdateVersionError,
    NotControllerError,
    PolicyViolationError,
    PreferredLeaderNotAvailableError,
    TopicExistsError,
)

logger = logging.getLogger(__name__)

PRODUCER_ID_BLOCK = 1000
"""Producer ids are written down this many at a time, as Kafka does (ProducerIdsBlock)."""

MAX_CHANGES = 10_000
"""Of one event (Kafka's MAX_RECORDS_PER_USER_OP): a topic, its configurations and its partitions."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to be made. -1 stands for the cluster's default, and is required beside ``assignments``."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] | None = None
    """The replicas of each partition, the preferred leader first."""
    configs: Mapping[str, str | None] = field(default_factory=dict)


class Listener(Protocol):
    """A node, as the controller sees it."""

    def apply(self, changed: list[PartitionState], removed: list[PartitionState]) -> None:
        """These partitions are new or different, those are deleted."""

    def configs_changed(self, topics: Sequence[str] | None) -> None:
        """Configurations of these topics have changed; ``None``: those of nodes have, which concerns every topic."""


class Controller:
    """Changes the image, and says so. Every method may raise ``KafkaStorageError``: the journal cannot be written."""

    def __init__(self, image: ClusterImage, journal: Journal, config: BrokerConfig) -> None:
        """``config``: the cluster's own, from which its defaults for topics come."""
        self.image = image
        self._static_config = config
        self._configure()
        self._journal = journal
        self._listeners: list[Listener] = []
        self._untold: deque[tuple[list[Listener], Told]] = deque()
        self._telling = False
        self._placed = len(image.partitions())
        self._next_producer_id = image.next_producer_id

    # Life

    def begin(self, num_nodes: int, features: Mapping[str, int] | None = None) -> None:
        """After the image was loaded: nodes 1 to ``num_nodes`` are going to be there, and none of them is yet.

        Partitions have no leader until their nodes come. Features keep the levels that the image has, or get those in
        ``features``; a feature without a level gets its highest. The journal is compacted.

        Raises:
            ConfigurationError: partitions are on other nodes.
            OSError: the journal cannot be written.
        """
        homeless = {
            node_id: partition
            for partition in self.image.partitions()
            for node_id in partition.replicas
            if node_id > num_nodes
        }
        if homeless:
            example = next(iter(homeless.values()))
            raise ConfigurationError(
                f"the cluster has partitions on nodes {sorted(homeless)} (such as {example.topic}-{example.index} on "
                f"{example.replicas}), and cannot start with {num_nodes} node(s): start it with at least "
                f"{max(homeless)}, or with another folder"
            )
        for node_id in [node_id for node_id in self.image.nodes if node_id > num_nodes]:
            del self.image.nodes[node_id]
        nodes = [replace(node, is_alive=False, is_stopping=False) for node in self.image.nodes.values()]
        led = [partition for partition in self.image.partitions() if partition.leader != NO_LEADER]
        newest = {name: levels[-1] for name, levels in SUPPORTED_FEATURES.items()}
        chosen = self._feature_changes({**newest, **self.image.features, **(features or {})})
        apply(self.image, [*nodes, *(moved(partition, leader=NO_LEADER) for partition in led), *chosen])
        self._journal.compact(self.image)

    def update_features(self, levels: Mapping[str, int]) -> None:
        """Set the levels of features (Kafka's UpdateFeatures); those not named keep theirs.

        Raises:
            ConfigurationError: there is no such feature or level.
        """
        self._commit(self._feature_changes({**self.image.features, **levels}))

    def _feature_changes(self, levels: dict[str, int]) -> list[Change]:
        for name, level in levels.items():
            known = SUPPORTED_FEATURES.get(name)
            if known is None:
                raise ConfigurationError(f"there is no feature {name!r}; there are {', '.join(SUPPORTED_FEATURES)}")
            if level not in known:
                raise ConfigurationError(f"{name} has levels from {known[0]} to {known[-1]}, not {level}")
        return [] if levels == self.image.features else [Features(levels, self.image.features_epoch + 1)]

    def attach(self, listener: Listener) -> None:
        """Tell ``listener`` of every event that comes after."""
        self._listeners.append(listener)

    def detach(self, listener: Listener) -> None:
        """Tell it no more, not even of what others have still to hear."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _configure(self) -> None:
        """What is configured for the whole cluster, as it was given and as it was altered since."""
        self.config = self._static_config.with_dynamic(self.image.node_configs.get(CLUSTER_DEFAULT, {}), {})

    # Nodes

    def register(self, *nodes: BrokerRegistration) -> None:
        """These nodes are in service (their ``is_alive``, ``is_stopping`` and ``epoch`` are decided here).

        Partitions without a leader get one where a node of their ISR is among them: all at once, so that a cluster that
        starts again has the leaders that it had.
        """
        epoch = max((node.epoch for node in self.image.nodes.values()), default=-1)
        registered = [
            replace(node, is_alive=True, is_stopping=False, epoch=epoch + number)
            for number, node in enumerate(nodes, start=1)
        ]
        eligible = self.image.eligible_nodes() | {node.node_id for node in nodes}
        leaderless = [partition for partition in self.image.partitions() if partition.leader == NO_LEADER]
        self._commit([*registered, *self._elections(leaderless, eligible)])

    def begin_shutdown(self, *node_ids: int) -> None:
        """These nodes are about to stop: others lead what they lead, and they leave the ISRs (KIP-841).

        They stay alive, so that clients that come to them hear where the leaders are.

        Raises:
            BrokerIdNotRegisteredError: a node is unknown.
        """
        self._remove(node_ids, {"is_stopping": True})

    def fence(self, *node_ids: int) -> None:
        """These nodes have died, or have stopped: others lead what they led.

        Where all of an ISR is lost at once it stays as it is; where nodes die one after the other the last one stays.

        Raises:
            BrokerIdNotRegisteredError: a node is unknown.
        """
        self._remove(node_ids, {"is_alive": False, "is_stopping": False})

    def _remove(self, node_ids: Iterable[int], marks: Mapping[str, bool]) -> None:
        gone = set(node_ids)
        states = [self._node(node_id) for node_id in gone]
        remaining = self.image.eligible_nodes() - gone
        concerned = [
            partition
            for partition in self.image.partitions()
            if partition.leader in gone or not gone.isdisjoint(partition.isr)
        ]
        changed = [
            replace(
                state,
                is_alive=marks.get("is_alive", state.is_alive),
                is_stopping=marks["is_stopping"],
            )
            for state in states
            if state.is_alive
        ]
        self._commit([*changed, *self._elections(concerned, remaining)])

    def _node(self, node_id: int) -> BrokerRegistration:
        node = self.image.nodes.get(node_id)
        if node is None:
            raise BrokerIdNotRegisteredError(f"Broker {node_id} is not registered.")
        return node

    def _elections(self, partitions: Iterable[PartitionState], eligible: set[int]) -> list[PartitionState]:
        changed = []
        unclean: dict[bytes, bool] = {}
        for partition in partitions:
            topic_id = partition.topic_id
            if topic_id not in unclean:
                configs = self.image.topics_by_id[topic_id].configs
                unclean[topic_id] = log_config(self.config, configs).unclean_leader_election_enable
            after = elected(partition, eligible, unclean=unclean[topic_id])
            if after is not partition:
                changed.append(after)
        return changed

    # Topics

    def create_topic(self, spec: TopicSpec, *, validate_only: bool = False) -> TopicState:
        """Make a topic; with ``validate_only`` only say what it would be.

        Raises:
            InvalidTopicError, TopicExistsError, InvalidConfigurationError, InvalidRequestError,
            InvalidPartitionsError, InvalidReplicationFactorError, InvalidReplicaAssignmentError,
            PolicyViolationError: as Kafka does.
        """
        topic_rules.check_name(spec.name)
        if spec.name in self.image.topics:
            raise TopicExistsError(f"Topic '{spec.name}' already exists.")
        topic_rules.check_collision(spec.name, self.image.topics)
        unset = [key for key, value in spec.configs.items() if value is None]
        if unset:
            raise InvalidConfigurationError(f"Null value not supported for topic configs: {','.join(unset)}")
        configs = {key: value for key, value in spec.configs.items() if value is not None}
        validate_topic_configs(configs, self.config)
        topic_id = _new_topic_id()
        assignments = self._assignments(spec)
        eligible = self.image.eligible_nodes()
        partitions = [
            _new_partition(spec.name, topic_id, index, replicas, eligible) for index, replicas in enumerate(assignments)
        ]
        topic = TopicState(spec.name, topic_id, partitions, configs)
        if not validate_only:
            self._placed += len(partitions) if spec.assignments is None else 0
            self._commit([topic])
        return topic

    def _assignments(self, spec: TopicSpec) -> list[list[int]]:
        if spec.assignments:
            if spec.replication_factor != -1:
                raise InvalidRequestError(
                    "A manual partition assignment was specified, but replication factor was not set to -1."
                )
            if spec.num_partitions != -1:
                raise InvalidRequestError(
                    "A manual partition assignment was specified, but numPartitions was not set to -1."
                )
            _check_size(len(spec.assignments) + len(spec.configs) + 1)
            return topic_rules.ordered_assignments(
                spec.assignments, self.image.nodes.keys(), self.image.eligible_nodes()
            )
        if spec.replication_factor < -1 or spec.replication_factor == 0:
            raise InvalidReplicationFactorError(
                "Replication factor must be larger than 0, or -1 to use the default value."
            )
        if spec.num_partitions < -1 or spec.num_partitions == 0:
            raise InvalidPartitionsError("Number of partitions was set to an invalid non-positive value.")
        num_partitions = self.config.num_partitions if spec.num_partitions == -1 else spec.num_partitions
        _check_size(num_partitions + len(spec.configs) + 1)
        replication_factor = spec.replication_factor
        if replication_factor == -1:
            replication_factor = self.config.default_replication_factor
        return self._place(num_partitions, replication_factor)

    def _place(self, num_partitions: int, replication_factor: int) -> list[list[int]]:
        return place(
            self.image.nodes.values(),
            self.image.eligible_nodes(),
            start=self._placed,
            num_partitions=num_partitions,
            replication_factor=replication_factor,
        )

    def delete_topic(self, name: str) -> TopicState:
        """Delete a topic; returns what it was.

        Raises:
            UnknownTopicOrPartitionError: there is none of that name.
        """
        topic = self.image.topic(name)
        self._commit([TopicRemoval(topic.topic_id)])
        return topic

    def create_partitions(
        self,
        name: str,
        total: int,
        assignments: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> list[PartitionState]:
        """Give a topic more partitions, ``total`` in all; returns the new ones.

        Raises:
            UnknownTopicOrPartitionError, InvalidPartitionsError, InvalidReplicaAssignmentError,
            InvalidReplicationFactorError, PolicyViolationError: as Kafka does.
        """
        topic = self.image.topic(name)
        present = len(topic.partitions)
        topic_rules.check_new_total(name, present, total)
        additional = total - present
        if assignments is not None and len(assignments) != additional:
            raise InvalidReplicaAssignmentError(
                f"Attempted to add {additional} additional partition(s), but only {len(assignments)} assignment(s) "
                "were specified."
            )
        _check_size(additional)
        replication_factor = len(topic.partitions[0].replicas)
        eligible = self.image.eligible_nodes()
        if assignments is None:
            replica_lists = self._place(additional, replication_factor)
        else:
            replica_lists = [list(replicas) for replicas in assignments]
            for index, replicas in enumerate(replica_lists, start=present):
                topic_rules.check_replicas(replicas, self.image.nodes.keys(), replication_factor)
                topic_rules.check_in_service(index, replicas, eligible)
        partitions = [
            _new_partition(name, topic.topic_id, index, replicas, eligible)
            for index, replicas in enumerate(replica_lists, start=present)
        ]
        if not validate_only:
            self._placed += additional if assignments is None else 0
            self._commit(partitions)
        return partitions

    # Configurations

    def alter_topic_configs(
        self, name: str, configs: Mapping[str, str | None], *, validate_only: bool = False
    ) -> TopicState:
        """Set some of a topic's configurations; ``None`` takes one away. The whole that results is checked.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            InvalidConfigurationError: a key or value is wrong.
        """
        topic = self.image.topic(name)
        after = merged(topic.configs, configs)
        validate_topic_configs(after, self.config)
        if not validate_only and after != topic.configs:
            self._commit([TopicConfigs(topic.topic_id, after)])
            self._elect_leaderless(topic.partitions)
        return topic

    def alter_node_configs(
        self, node_id: int | None, configs: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set some of a node's configurations, or (``None``) of those that all nodes have; ``None`` takes one away.

        Raises:
            InvalidConfigurationError: a key or value is wrong.
        """
        node = CLUSTER_DEFAULT if node_id is None else str(node_id)
        before = self.image.node_configs.get(node, {})
        after = merged(before, configs)
        configs_of_all = after if node_id is None else self.image.node_configs.get(CLUSTER_DEFAULT, {})
        try:
            self._static_config.with_dynamic(configs_of_all, after)
        except ConfigurationError as error:
            raise InvalidConfigurationError(str(error)) from error
        if not validate_only and after != before:
            self._commit([NodeConfigs(node, after)])
            self._elect_leaderless(self.image.partitions())

    def _elect_leaderless(self, partitions: Iterable[PartitionState]) -> None:
        """What was set may allow a leader where there was none (unclean.leader.election.enable)."""
        leaderless = [partition for partition in partitions if partition.leader == NO_LEADER]
        self._commit(self._elections(leaderless, self.image.eligible_nodes()))

    # Producers

    def allocate_producer_id(self) -> int:
        """A producer id that nobody ever had: after a crash the rest of a block is left out."""
        if self._next_producer_id == self.image.next_producer_id:
            self._commit([ProducerIds(self._next_producer_id + PRODUCER_ID_BLOCK)])
        producer_id = self._next_producer_id
        self._next_producer_id += 1
        return producer_id

    # Partitions

    def alter_partition(
        self,
        node_id: int,
        topic: str,
        index: int,
        leader_epoch: int,
        partition_epoch: int,
        new_isr: Sequence[int],
    ) -> PartitionState:
        """The leader ``node_id`` says who is in sync with it (KIP-497); returns what is true after that.

        Raises:
            UnknownTopicOrPartitionError: there is no such partition.
            NotControllerError: an epoch is one that this controller has not come to.
            FencedLeaderEpochError: the leader epoch is over.
            InvalidRequestError: the node does not lead the partition, or the ISR is not one that it may have.
            InvalidUpdateVersionError: the partition has changed since; look and try again.
            IneligibleReplicaError: a member of the ISR is not in service (KIP-841).
        """
        partition = self.image.partition(topic, index)
        name = f"{topic}-{index}"
        if leader_epoch > partition.leader_epoch or partition_epoch > partition.partition_epoch:
            raise NotControllerError(
                f"{name} is at leader epoch {partition.leader_epoch} and partition epoch {partition.partition_epoch}; "
                f"node {node_id} speaks of {leader_epoch} and {partition_epoch}."
            )
        if leader_epoch < partition.leader_epoch:
            raise FencedLeaderEpochError(f"{name} is at leader epoch {partition.leader_epoch}, not {leader_epoch}.")
        if node_id != partition.leader:
            raise InvalidRequestError(f"{name} is led by {partition.leader}, not by {node_id}.")
        if partition_epoch < partition.partition_epoch:
            raise InvalidUpdateVersionError(
                f"{name} is at partition epoch {partition.partition_epoch}, not {partition_epoch}."
            )
        isr = list(new_isr)
        if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas) or node_id not in isr:
            raise InvalidRequestError(
                f"{isr} cannot be the ISR of {name}: its replicas are {partition.replicas}, its leader is {node_id}."
            )
        ineligible = sorted(set(isr) - self.image.eligible_nodes())
        if ineligible:
            raise IneligibleReplicaError(f"Not in service, so not in the ISR of {name}: {ineligible}.")
        if isr == partition.isr:
            return partition
        changed = moved(partition, isr=isr)
        self._commit([changed])
        return changed

    def elect_leader(self, topic: str, index: int, node_id: int | None = None) -> PartitionState:
        """Have ``node_id`` (else: the first replica) lead a partition. The ISR stays as it is.

        Raises:
            UnknownTopicOrPartitionError: there is no such partition.
            InvalidReplicaAssignmentError: the node has no replica of it.
            ElectionNotNeededError: it leads already.
            PreferredLeaderNotAvailableError: it is not in service or not in the ISR, so it may lack records.
        """
        partition = self.image.partition(topic, index)
        target = partition.replicas[0] if node_id is None else node_id
        if target not in partition.replicas:
            raise InvalidReplicaAssignmentError(
                f"Node {target} has no replica of {topic}-{index}: its replicas are {partition.replicas}."
            )
        if target == partition.leader:
            raise ElectionNotNeededError(f"Node {target} leads {topic}-{index} already.")
        if target not in partition.isr or target not in self.image.eligible_nodes():
            raise PreferredLeaderNotAvailableError(
                f"Node {target} cannot lead {topic}-{index}: it is not both in service and in the ISR {partition.isr}."
            )
        changed = moved(partition, leader=target)
        self._commit([changed])
        return changed

    def elect_unclean(self, topic: str, index: int) -> PartitionState:
        """Have any replica in service lead a partition that has no leader, whatever it may lack.

        Raises:
            UnknownTopicOrPartitionError: there is no such partition.
            ElectionNotNeededError: it has a leader.
            EligibleLeadersNotAvailableError: no replica is in service.
        """
        partition = self.image.partition(topic, index)
        if partition.leader != NO_LEADER:
            raise ElectionNotNeededError(f"{topic}-{index} has the leader {partition.leader}.")
        changed = elected(partition, self.image.eligible_nodes(), unclean=True)
        if changed is partition:
            raise EligibleLeadersNotAvailableError(f"No replica of {topic}-{index} is in service.")
        self._commit([changed])
        return changed

    # Events

    def _commit(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        self._journal.append(changes)
        told = apply(self.image, changes)
        if told.node_configs:
            self._configure()
        self._untold.append((list(self._listeners), told))
        if not self._telling:
            self._telling = True
            try:
                while self._untold:
                    self._tell(*self._untold.popleft())
            finally:
                self._telling = False

    def _tell(self, listeners: Iterable[Listener], told: Told) -> None:
        for listener in listeners:
            if listener not in self._listeners:
                continue
            try:
                if told.node_configs:
                    listener.configs_changed(None)
                elif told.topic_configs:
                    listener.configs_changed(told.topic_configs)
                if told.changed or told.removed:
                    listener.apply(told.changed, told.removed)
            except Exception:
                # One node's trouble (a full disk) is not the others': they must hear of the event all the same.
                logger.exception("%r could not follow a change of the cluster", listener)


def _new_topic_id() -> bytes:
    """A random UUID of version 4; Kafka's reserved ids (zero and one) are none."""
    topic_id = bytearray(os.urandom(16))
    topic_id[6] = topic_id[6] & 0x0F | 0x40
    topic_id[8] = topic_id[8] & 0x3F | 0x80
    return bytes(topic_id)


def _new_partition(name: str, topic_id: bytes, index: int, replicas: list[int], eligible: set[int]) -> PartitionState:
    isr = [node_id for node_id in replicas if node_id in eligible]
    return PartitionState(name, topic_id, index, replicas, isr, isr[0], leader_epoch=0, partition_epoch=0)


def _check_size(changes: int) -> None:
    if changes > MAX_CHANGES:
        raise PolicyViolationError("Unable to perform excessively large batch operation.")


def merged(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Configurations after ``changes``, of which ``None`` takes a key away."""
    after = {**before, **changes}
    return {key: value for key, value in after.items() if value is not None}
