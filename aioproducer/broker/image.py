"""The state of a cluster: its topics, partitions, nodes and configurations, as the controller decided them.

A cluster of the embedded broker has one image, which all its nodes share. Only the controller changes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aioproducer.errors import UnknownTopicIdError, UnknownTopicOrPartitionError

NO_LEADER = -1
"""The leader of a partition that has none at present."""

CLUSTER_DEFAULT = ""
"""Key in ``ClusterImage.node_configs`` of the configurations for all nodes without their own."""

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset((GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC))
"""Topics that belong to the brokers themselves (Kafka's Topic.INTERNAL_TOPICS)."""


TRANSACTION_VERSION = "transaction.version"
"""The feature that selects the generation of transactions: 2 has a new producer epoch for each one (KIP-890)."""

SUPPORTED_FEATURES = {TRANSACTION_VERSION: range(3)}
"""The supported levels of each feature; a new cluster has the highest."""


@dataclass(slots=True)
class PartitionState:
    """The replicas, leader and ISR of a partition.

    The controller never changes a published object: every change is a new object with a higher ``partition_epoch``, so
    a reference to an old one keeps the old state.
    """

    topic: str
    topic_id: bytes
    index: int
    replicas: list[int]
    isr: list[int]
    leader: int
    """A node id, or ``NO_LEADER``."""
    leader_epoch: int
    partition_epoch: int
    last_known_leader: int = NO_LEADER
    """The last leader, while there is none."""


@dataclass(slots=True)
class TopicState:
    """A topic, its partitions by index, and the configurations that were set for it."""

    name: str
    topic_id: bytes
    partitions: list[PartitionState]
    configs: dict[str, str]

    @property
    def is_internal(self) -> bool:
        """Whether the topic belongs to the brokers themselves, as ``__consumer_offsets`` does."""
        return self.name in INTERNAL_TOPICS


@dataclass(slots=True)
class BrokerRegistration:
    """A node as the controller knows it: its address, and whether it is alive (Kafka's ``BrokerRegistration``)."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_alive: bool
    epoch: int
    """Kafka's broker epoch: it rises each time that the node registers."""
    is_stopping: bool = False
    """In controlled shutdown: clients still see the node, but it leads no partition and is in no ISR."""

    @property
    def is_eligible(self) -> bool:
        """Whether the node may lead partitions and be in their ISRs."""
        return self.is_alive and not self.is_stopping


@dataclass(slots=True)
class ClusterImage:
    """All decisions of the controller."""

    cluster_id: str
    controller_id: int = -1
    """The node that metadata names as the controller; -1 if no node is alive."""
    topics: dict[str, TopicState] = field(default_factory=dict)
    topics_by_id: dict[bytes, TopicState] = field(default_factory=dict)
    nodes: dict[int, BrokerRegistration] = field(default_factory=dict)
    node_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Dynamic configurations by node id in decimal, and by ``CLUSTER_DEFAULT`` for all nodes."""
    next_producer_id: int = 0
    """The first producer id that is in no allocated block."""
    features: dict[str, int] = field(default_factory=dict)
    """The level of each feature (KIP-584); empty before a cluster's first start."""
    features_epoch: int = -1
    """Rises with each change of ``features``."""

    @property
    def transaction_version(self) -> int:
        """The level of ``transaction.version``, 0 if it is not set."""
        return self.features.get(TRANSACTION_VERSION, 0)

    def topic(self, name: str) -> TopicState:
        """Return the topic with that name.

        Raises:
            UnknownTopicOrPartitionError: there is none.
        """
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError("This server does not host this topic-partition.")
        return topic

    def topic_by_id(self, topic_id: bytes) -> TopicState:
        """Return the topic with that id (KIP-516).

        Raises:
            UnknownTopicIdError: there is none, or it was deleted.
        """
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicIdError("This server does not host this topic ID.")
        return topic

    def partition(self, name: str, index: int) -> PartitionState:
        """Return the state of a partition.

        Raises:
            UnknownTopicOrPartitionError: the topic is unknown, or has no such partition.
        """
        partitions = self.topic(name).partitions
        if not 0 <= index < len(partitions):
            raise UnknownTopicOrPartitionError("This server does not host this topic-partition.")
        return partitions[index]

    def alive_nodes(self) -> list[BrokerRegistration]:
        """Return the nodes that are alive, by their ids."""
        return [node for _, node in sorted(self.nodes.items()) if node.is_alive]

    def is_alive(self, node_id: int) -> bool:
        """Whether the node is known and alive."""
        node = self.nodes.get(node_id)
        return node is not None and node.is_alive

    def eligible_nodes(self) -> set[int]:
        """Return the ids of the nodes that may lead partitions and be in ISRs."""
        return {node.node_id for node in self.nodes.values() if node.is_eligible}

    def partitions(self) -> list[PartitionState]:
        """Return every partition of every topic."""
        return [partition for topic in self.topics.values() for partition in topic.partitions]
