"""The decisions for the whole cluster: one queue of events, no waiting, no threads.

An event is decided from the image alone and calls no listener meanwhile, so events never overlap. Its changes are
written to the journal, then applied to the image, then every attached node is notified. A notified node may cause the
next event. That event is decided at once, but its notifications wait until all nodes have those of the event before.
Therefore all nodes receive all events in the same order.
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
    Notification,
    ProducerIds,
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
"""Number of producer ids that one journal entry allocates (Kafka's ProducerIdsBlock)."""

MAX_CHANGES = 10_000
"""Maximum changes of one event (Kafka's MAX_RECORDS_PER_USER_OP): a topic, its configurations and its partitions."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create. -1 stands for the cluster's default, and is required beside ``assignments``."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] | None = None
    """The replicas of each partition, the preferred leader first."""
    configs: Mapping[str, str | None] = field(default_factory=dict)


class Listener(Protocol):
    """A node, as the controller sees it."""

    def apply(self, changed: list[PartitionState], removed: list[PartitionState]) -> None:
        """Follow an event: partitions that are new or changed, and partitions that are deleted."""

    def configs_changed(self, topics: Sequence[str] | None) -> None:
        """Reload the configurations of ``topics``; ``None`` if those of nodes changed, which affects every topic."""


class Controller:
    """Changes the image and notifies the nodes.

    Every method that changes something may raise ``KafkaStorageError``: the journal cannot be written.
    """

    def __init__(self, image: ClusterImage, journal: Journal, config: BrokerConfig) -> None:
        """``config``: the configuration of the whole cluster, with the defaults of topics."""
        self.image = image
        self._static_config = config
        self._configure()
        self._journal = journal
        self._listeners: list[Listener] = []
        self._pending_notifications: deque[tuple[list[Listener], Notification]] = deque()
        self._is_notifying = False
        self._placed = len(image.partitions())
        self._next_producer_id = image.next_producer_id

    # Life

    def begin(self, num_nodes: int, features: Mapping[str, int] | None = None) -> None:
        """Begin with the loaded image and nodes 1 to ``num_nodes``, none of which runs yet.

        Partitions have no leader until their nodes register. Features keep the levels of the image, or get those in
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
        """Notify ``listener`` of every later event."""
        self._listeners.append(listener)

    def detach(self, listener: Listener) -> None:
        """Notify ``listener`` no longer, also not of events whose notifications are pending."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _configure(self) -> None:
        """Compute the configuration of the whole cluster: the given one with the later alterations."""
        self.config = self._static_config.with_dynamic(self.image.node_configs.get(CLUSTER_DEFAULT, {}), {})

    # Nodes

    def register(self, *nodes: BrokerRegistration) -> None:
        """Put nodes into service; ``is_alive``, ``is_stopping`` and ``epoch`` are set here.

        A partition without a leader gets one if a node of its ISR is among them. All nodes are registered at once, so
        that a restarted cluster has the same leaders as before.
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
        """Prepare nodes for their shutdown: their partitions get other leaders, and they leave the ISRs (KIP-841).

        They stay alive, so that they can answer clients with the new leaders.

        Raises:
            BrokerIdNotRegisteredError: a node is unknown.
        """
        self._remove(node_ids, {"is_stopping": True})

    def fence(self, *node_ids: int) -> None:
        """Remove dead or stopped nodes from service: their partitions get other leaders.

        An ISR never becomes empty. If all of its nodes are lost at once, it stays as it is; if they die one after the
        other, the last one stays in it.

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
        """Create a topic; with ``validate_only`` only return what would be created.

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
        """Delete a topic and return its last state.

        Raises:
            UnknownTopicOrPartitionError: no topic has that name.
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
        """Add partitions to a topic until it has ``total``; return the new ones.

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
        """Set some of a topic's configurations; ``None`` removes one. All resulting configurations are checked.

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
        """Set some configurations of a node (of all nodes for ``None``); a value of ``None`` removes one.

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
        """Elect leaders that new configurations allow (unclean.leader.election.enable)."""
        leaderless = [partition for partition in partitions if partition.leader == NO_LEADER]
        self._commit(self._elections(leaderless, self.image.eligible_nodes()))

    # Producers

    def allocate_producer_id(self) -> int:
        """Return an unused producer id. After a crash the rest of a block is skipped."""
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
        """Set the ISR that the leader ``node_id`` proposes (KIP-497); return the resulting state.

        Raises:
            UnknownTopicOrPartitionError: there is no such partition.
            NotControllerError: an epoch is newer than the controller's.
            FencedLeaderEpochError: the leader epoch is older than the current one.
            InvalidRequestError: the node does not lead the partition, or the ISR contains nodes without a replica,
                nodes twice, or not the leader.
            InvalidUpdateVersionError: the partition has changed since; read its state and try again.
            IneligibleReplicaError: a member of the ISR is not in service (KIP-841).
        """
        partition = self.image.partition(topic, index)
        name = f"{topic}-{index}"
        if leader_epoch > partition.leader_epoch or partition_epoch > partition.partition_epoch:
            raise NotControllerError(
                f"{name} is at leader epoch {partition.leader_epoch} and partition epoch {partition.partition_epoch}; "
                f"node {node_id} sent {leader_epoch} and {partition_epoch}."
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
        """Make ``node_id`` the leader of a partition, by default its first replica. The ISR stays as it is.

        Raises:
            UnknownTopicOrPartitionError: there is no such partition.
            InvalidReplicaAssignmentError: the node has no replica of it.
            ElectionNotNeededError: the node is the leader already.
            PreferredLeaderNotAvailableError: the node is not in service or not in the ISR, so it may lack records.
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
        """Make any replica in service the leader of a partition without one, even if it lacks records.

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
        notification = apply(self.image, changes)
        if notification.node_configs:
            self._configure()
        self._pending_notifications.append((list(self._listeners), notification))
        if not self._is_notifying:
            self._is_notifying = True
            try:
                while self._pending_notifications:
                    self._notify(*self._pending_notifications.popleft())
            finally:
                self._is_notifying = False

    def _notify(self, listeners: Iterable[Listener], notification: Notification) -> None:
        for listener in listeners:
            if listener not in self._listeners:
                continue
            try:
                if notification.node_configs:
                    listener.configs_changed(None)
                elif notification.topic_configs:
                    listener.configs_changed(notification.topic_configs)
                if notification.changed or notification.removed:
                    listener.apply(notification.changed, notification.removed)
            except Exception:
                # An error of one node, such as a full disk, must not keep the event from the others.
                logger.exception("%r could not follow a change of the cluster", listener)


def _new_topic_id() -> bytes:
    """Return a random UUID of version 4, which is never one of Kafka's reserved ids (zero and one)."""
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
    """Return configurations with ``changes`` applied; the value ``None`` removes a key."""
    after = {**before, **changes}
    return {key: value for key, value in after.items() if value is not None}
