"""What is known of the cluster: its nodes, and the topics in use with their leaders, leader epochs and ids.

``ClusterMetadata`` decides when to ask and what to make of an answer; somebody else picks a node, sends and waits. It
knows only topics that somebody sends to (KIP-526), never believes an older leader epoch over a newer one unless the
topic was deleted and created anew (KIP-516), learns a new leader from a produce response (KIP-951), and goes back to
the bootstrap addresses when nothing it knows can be reached (KIP-899, KIP-1102).

Every leader it names is a node it knows, or ``NO_LEADER``. Partitions of a topic are always 0 to n-1 without a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from aioproducer.core.cluster import (
    NO_EPOCH,
    NO_LEADER,
    LeaderChange,
    MetadataChange,
    NodeCandidate,
    NodeState,
    PartitionMetadata,
    PartitionsAdded,
    TopicMetadata,
    least_loaded_node,
)
from aioproducer.core.retry import Attempts, ExponentialBackoff
from aioproducer.errors import KafkaError, broker_error
from aioproducer.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aioproducer.record import Node

__all__ = [
    "NO_EPOCH",
    "NO_LEADER",
    "REFUSED_TOPIC_CODES",
    "ClusterMetadata",
    "LeaderChange",
    "MetadataChange",
    "NodeCandidate",
    "NodeState",
    "PartitionMetadata",
    "PartitionsAdded",
    "TopicMetadata",
    "least_loaded_node",
]

RELIABLE_EPOCHS_FROM_VERSION = 9
"""Metadata before this version may carry leader epochs that brokers never updated (KAFKA-9212): not believed."""

_INVALID_TOPIC = 17
_TOPIC_AUTHORIZATION_FAILED = 29
REBOOTSTRAP_REQUIRED = 129
_ZERO_TOPIC_ID = bytes(16)

REFUSED_TOPIC_CODES = frozenset((_INVALID_TOPIC, _TOPIC_AUTHORIZATION_FAILED))
"""Topic errors that asking again does not cure; every other one may pass (KafkaProducer treats just these as final)."""


@dataclass(slots=True)
class _TopicInUse:
    last_used: float
    metadata: TopicMetadata | None = None
    error_code: int = 0


class _InFlight(NamedTuple):
    full: bool
    topics: frozenset[str]


class ClusterMetadata:
    """The cluster as this producer knows it. Times are monotonic seconds passed in as ``now``.

    ``bootstrap`` are the configured addresses as (host, port): nodes -1, -2, ... until the first response. The other
    arguments are the configuration keys of the same names; backoffs and ages in milliseconds.
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        random: Random,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 1000,
        metadata_max_age_ms: float = 300_000,
        metadata_max_idle_ms: float = 300_000,
        metadata_recovery_strategy: str = "rebootstrap",
        metadata_recovery_rebootstrap_trigger_ms: float = 300_000,
        allow_auto_topic_creation: bool = True,
    ) -> None:
        if not bootstrap:
            raise ValueError("at least one bootstrap address is needed")
        self._bootstrap: dict[int, Node] = {
            -position: Node(-position, host, port) for position, (host, port) in enumerate(bootstrap, start=1)
        }
        self._max_age: float = metadata_max_age_ms / 1000
        self._max_idle: float = metadata_max_idle_ms / 1000
        self._may_rebootstrap: bool = metadata_recovery_strategy.lower() == "rebootstrap"
        self._rebootstrap_trigger: float = metadata_recovery_rebootstrap_trigger_ms / 1000
        self._allow_auto_topic_creation: bool = allow_auto_topic_creation

        self.version: int = 0
        """Counts the responses taken in: whoever waits for news remembers it and waits until it is higher."""
        self.cluster_id: str | None = None
        self.controller_id: int = -1
        self.last_error: KafkaError | None = None
        """Why the latest attempt failed; None after a success. For messages to people who wait."""
        self.last_update: float | None = None
        """When the latest response was taken in, full or partial."""
        self.update_reason: str = "no metadata yet"
        """Why a full update was last asked for; for the log."""
        self.update_requested_at: float | None = None
        """When that was; None before anybody asked."""

        self._nodes: dict[int, Node] = self._bootstrap
        self._topics: dict[str, _TopicInUse] = {}
        self._new_topics: dict[str, None] = {}
        self._in_flight: _InFlight | None = None
        self._full_update_wanted: bool = True
        self._last_full_update: float = -math.inf
        self._attempt_started: float | None = None
        self._rebootstrap_required: bool = False
        backoff = ExponentialBackoff(retry_backoff_ms, retry_backoff_max_ms)
        self._failed = Attempts(backoff, random)
        # Answers that tell nothing new back off like failures do (KIP-580): a partition without a leader for an hour
        # must not be asked for ten times a second.
        self._fruitless = Attempts(backoff, random)

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The known nodes by id: bootstrap addresses (negative ids) or the brokers of the latest response."""
        return MappingProxyType(self._nodes)

    @property
    def bootstrapped(self) -> bool:
        """Whether nodes are known from the cluster itself and not only from the configuration."""
        return self._nodes is not self._bootstrap

    @property
    def topics_in_use(self) -> Iterable[str]:
        """The names of the topics that a full update asks for."""
        return self._topics.keys()

    def node(self, node_id: int) -> Node | None:
        """The node with this id, None when no response named it."""
        return self._nodes.get(node_id)

    def topic(self, name: str) -> TopicMetadata | None:
        """A topic in use whose partitions are known, else None. Does not count as use."""
        in_use = self._topics.get(name)
        return None if in_use is None else in_use.metadata

    def topic_error(self, name: str) -> int:
        """The error code that the latest response about this topic carried; 0 for none."""
        in_use = self._topics.get(name)
        return 0 if in_use is None else in_use.error_code

    def leader(self, topic: str, partition: int) -> int:
        """The id of the node that leads this partition, or ``NO_LEADER``; the node is always a known one."""
        metadata = self.topic(topic)
        if metadata is None or not 0 <= partition < len(metadata.partitions):
            return NO_LEADER
        return metadata.partitions[partition].leader

    def add_topic(self, name: str, now: float) -> TopicMetadata | None:
        """Mark ``name`` as used now and return it if records can be appended to it.

        None: its partitions are not known (or the cluster refuses it), and news is asked for: at once for a topic
        not seen before, with a backoff for one that an earlier response had nothing good to say of (`topic_error`).
        A topic with an invalid name is not asked for again by this.
        """
        in_use = self._topics.get(name)
        if in_use is None:
            self._topics[name] = _TopicInUse(now)
            self._new_topics[name] = None
            self._fruitless.failures = 0
            return None
        in_use.last_used = now
        if in_use.metadata is not None and in_use.error_code not in REFUSED_TOPIC_CODES:
            return in_use.metadata
        asked = name in self._new_topics or (self._in_flight is not None and name in self._in_flight.topics)
        if not asked and in_use.error_code != _INVALID_TOPIC:
            self.request_update(now, f"partitions of topic {name} are not known")
        return None

    def touch(self, name: str, now: float) -> None:
        """Mark a topic as used now, so that it is not forgotten; nothing for one that is not in use."""
        in_use = self._topics.get(name)
        if in_use is not None:
            in_use.last_used = now

    def request_update(self, now: float, reason: str) -> int:
        """Ask for a full update as soon as the backoff allows; return the `version` that it will exceed.

        Asked while a request is in flight it is due again after that: the answer under way may be older than the
        reason for asking.
        """
        if not self._full_update_wanted:
            self._full_update_wanted = True
            self.update_reason = reason
            self.update_requested_at = now
        return self.version

    def request_partial_update(self, topic: str) -> int:
        """Ask for one topic in use at once, without the rest; return the `version` that it will exceed."""
        if topic in self._topics:
            self._new_topics[topic] = None
        return self.version

    @property
    def update_in_flight(self) -> bool:
        """Whether a request was built and is neither answered nor failed."""
        return self._in_flight is not None

    def next_update_delay(self, now: float) -> float:
        """Seconds until a request is due: 0 for now, infinity while one is in flight.

        New topics are asked for at once, everything else ``retry_backoff_ms`` (growing) after the last response;
        after a failure all of it waits for the backoff. A node to ask other than the one that failed is the
        caller's choice (`least_loaded_node`).
        """
        if self._in_flight is not None:
            return math.inf
        if self._new_topics:
            return self._failed.delay(now)
        due = now if self._full_update_wanted else self._last_full_update + self._max_age
        return max(due, self._failed.retry_at, self._fruitless.retry_at, now) - now

    def begin_attempt(self, now: float) -> None:
        """An update is due and a node is looked for: ``metadata_recovery_rebootstrap_trigger_ms`` runs from the first.

        A success ends the attempt.
        """
        if self._attempt_started is None:
            self._attempt_started = now

    def build_request(self, now: float) -> MetadataRequest:
        """The request to send now; from here on it is in flight, until its response or failure is handed in.

        Partial (only new topics) unless a full update is wanted and its backoff has passed, or metadata is older than
        ``metadata_max_age_ms``.

        Raises:
            RuntimeError: a request is in flight already.
        """
        if self._in_flight is not None:
            raise RuntimeError("a metadata request is already in flight")
        expired = now >= self._last_full_update + self._max_age
        full = expired or not self._new_topics or (self._full_update_wanted and now >= self._fruitless.retry_at)
        if expired:
            self._fruitless.failures = 0
        names = frozenset(self._topics if full else self._new_topics)
        self._in_flight = _InFlight(full, names)
        self._new_topics = {}
        if full:
            self._full_update_wanted = False
        self.begin_attempt(now)
        return MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in sorted(names)],
            allow_auto_topic_creation=self._allow_auto_topic_creation,
        )

    def handle_failure(self, error: KafkaError, now: float) -> None:
        """The request in flight got no usable answer, or there was no node to ask; it is due again after a backoff."""
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None:
            self._full_update_wanted |= in_flight.full
            if not in_flight.full:
                # Topics that were forgotten meanwhile would be asked for without anybody's need.
                self._new_topics = {name: None for name in in_flight.topics if name in self._topics} | self._new_topics
        self.begin_attempt(now)
        self.last_error = error
        self._failed.failed(now)

    def handle_response(self, response: MetadataResponse, now: float, *, version: int) -> MetadataChange:
        """Take in the answer to the request in flight; ``version`` is the Metadata version it came in.

        Never raises for what a response says. One with a top-level error or without brokers (a broker that has just
        started) is a failed update. An answer to a request that `rebootstrap` has given up is ignored.
        """
        change = MetadataChange()
        in_flight = self._in_flight
        if in_flight is None:
            return change
        nodes = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
            if broker.node_id >= 0
        }
        change.failure = self._reason_to_disbelieve(response, nodes, in_flight, now)
        if change.failure is not None:
            self.handle_failure(change.failure, now)
            return change

        other_cluster = self._is_other_cluster(response)
        if response.cluster_id is not None:
            self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        if in_flight.full:
            self._forget_idle_topics(now, in_flight.topics, change)
        answered: set[str] = set()
        for data in response.topics:
            in_use = None if data.name is None else self._topics.get(data.name)
            if data.name is None or in_use is None:
                continue
            answered.add(data.name)
            self._take_topic(data, data.name, in_use, nodes, version, other_cluster, now, change)
        unanswered = in_flight.topics - answered
        if any(name in self._topics for name in unanswered):
            self.request_update(now, "the last response left out topics it was asked for")
        self._replace_nodes(nodes, now, change)

        self._in_flight = None
        self._attempt_started = None
        self._rebootstrap_required = False
        self.last_error = None
        self.last_update = now
        if in_flight.full:
            self._last_full_update = now
        self._failed.succeeded()
        if change:
            self._fruitless.succeeded()
        self._fruitless.failed(now)
        self.version += 1
        return change

    def apply_leader_hints(
        self,
        topic: str,
        partition: int,
        leader_id: int,
        leader_epoch: int,
        node_endpoints: Iterable[Node],
        now: float,
    ) -> MetadataChange:
        """Adopt the current leader that a produce response named beside its error (KIP-951); True if it was news.

        Only a newer epoch counts, and only a leader whose address is known or among ``node_endpoints``.
        """
        change = MetadataChange()
        metadata = self.topic(topic)
        if metadata is None or not 0 <= partition < len(metadata.partitions):
            return change
        old = metadata.partitions[partition]
        endpoint = next((node for node in node_endpoints if node.id == leader_id), self._nodes.get(leader_id))
        if leader_id < 0 or endpoint is None or leader_epoch <= old.leader_epoch:
            return change
        known = self._nodes.get(leader_id)
        if known is None:
            self._nodes = {**self._nodes, leader_id: endpoint}
            change.nodes_added.append(endpoint)
        elif known != endpoint:
            self._nodes = {**self._nodes, leader_id: endpoint}
            if (known.host, known.port) != (endpoint.host, endpoint.port):
                change.nodes_moved.append(endpoint)
        self._set_partition(metadata, old._replace(leader=leader_id, leader_epoch=leader_epoch), change, old)
        return change

    def require_rebootstrap(self) -> None:
        """A broker answered ApiVersions with REBOOTSTRAP_REQUIRED: it is not the one meant (KIP-1102, KIP-1242)."""
        self._rebootstrap_required = True

    def needs_rebootstrap(self, now: float, *, node_available: bool) -> bool:
        """Whether to forget the known nodes and go back to the bootstrap addresses.

        ``node_available``: the caller could send to or connect to at least one known node. True with
        ``metadata_recovery_strategy=rebootstrap`` when it could not, when a broker demanded it, or when attempts have
        failed for ``metadata_recovery_rebootstrap_trigger_ms``. Never while the bootstrap addresses are all there is.
        """
        if not self._may_rebootstrap or not self.bootstrapped:
            return False
        if self._rebootstrap_required or not node_available:
            return True
        return self._attempt_started is not None and now - self._attempt_started > self._rebootstrap_trigger

    def rebootstrap(self, now: float) -> MetadataChange:
        """Drop all known nodes for the bootstrap addresses; the topics stay, without leaders. An update is due at once.

        The caller closes the connections to the nodes removed. A request in flight on one of them is given up: what
        becomes of it need not be handed in, and must not be once another request was built.
        """
        change = MetadataChange()
        self._in_flight = None
        self._replace_nodes(self._bootstrap, now, change)
        self._new_topics = {}
        self.request_update(now, "going back to the bootstrap addresses")
        self._rebootstrap_required = False
        self._attempt_started = now
        self._failed.succeeded()
        self._fruitless.succeeded()
        return change

    def _reason_to_disbelieve(
        self, response: MetadataResponse, nodes: Mapping[int, Node], in_flight: _InFlight, now: float
    ) -> KafkaError | None:
        if response.error_code:
            if response.error_code == REBOOTSTRAP_REQUIRED:
                self._rebootstrap_required = True
            return broker_error(response.error_code)
        if not nodes:
            return KafkaError("The broker's metadata lists no brokers: it is starting, and will know more in a moment.")
        if self._is_other_cluster(response) and not in_flight.full:
            self.request_update(now, "the cluster id changed")
            return KafkaError(
                f"The brokers now belong to cluster {response.cluster_id}, before to {self.cluster_id}: "
                "all topics are asked for anew."
            )
        return None

    def _is_other_cluster(self, response: MetadataResponse) -> bool:
        return self.cluster_id is not None and response.cluster_id not in (None, self.cluster_id)

    def _forget_idle_topics(self, now: float, asked: frozenset[str], change: MetadataChange) -> None:
        for name in asked:
            in_use = self._topics.get(name)
            if in_use is not None and now - in_use.last_used >= self._max_idle:
                del self._topics[name]
                self._new_topics.pop(name, None)
                change.forgotten_topics.append(name)

    def _take_topic(
        self,
        data: MetadataResponseTopic,
        name: str,
        in_use: _TopicInUse,
        nodes: Mapping[int, Node],
        version: int,
        other_cluster: bool,
        now: float,
        change: MetadataChange,
    ) -> None:
        in_use.error_code = data.error_code
        if data.error_code:
            change.topic_errors[name] = data.error_code
            if data.error_code not in REFUSED_TOPIC_CODES:
                self.request_update(now, f"topic {name} has error {broker_error(data.error_code).error_name}")
            return
        topic_id = None if data.topic_id == _ZERO_TOPIC_ID else data.topic_id
        partitions = sorted(data.partitions, key=_partition_index)
        old = in_use.metadata
        metadata = old
        if metadata is None or other_cluster or _was_recreated(metadata, topic_id, partitions):
            metadata = TopicMetadata(name, topic_id, [])
        elif topic_id is not None:
            metadata.topic_id = topic_id

        old_count = len(metadata.partitions)
        for partition in partitions:
            if partition.partition_index > len(metadata.partitions):
                self.request_update(now, f"topic {name} misses partition {len(metadata.partitions)}")
                break
            if partition.partition_index >= 0:
                before = (
                    None
                    if old is None or partition.partition_index >= len(old.partitions)
                    else (old.partitions[partition.partition_index])
                )
                self._take_partition(metadata, partition, before, nodes, version, now, change)
        new_count = len(metadata.partitions)
        if not new_count:
            self.request_update(now, f"topic {name} has no partitions yet")
            return
        in_use.metadata = metadata
        if old is None:
            change.new_topics.append(name)
        elif metadata is not old:
            change.recreated_topics.append(name)
        elif new_count > old_count:
            change.partitions_added.append(PartitionsAdded(name, old_count, new_count))

    def _take_partition(
        self,
        metadata: TopicMetadata,
        data: MetadataResponsePartition,
        before_recreation: PartitionMetadata | None,
        nodes: Mapping[int, Node],
        version: int,
        now: float,
        change: MetadataChange,
    ) -> None:
        index = data.partition_index
        old = metadata.partitions[index] if index < len(metadata.partitions) else None
        leader = data.leader_id if data.leader_id in nodes else NO_LEADER
        epoch = data.leader_epoch if version >= RELIABLE_EPOCHS_FROM_VERSION else NO_EPOCH
        if leader == NO_LEADER or data.error_code:
            self.request_update(now, f"partition {metadata.name}-{index} has no leader or an error")
        if old is not None:
            if NO_EPOCH < epoch < old.leader_epoch:
                return
            # A broker that sees no leader where we know one of the same epoch has lost sight of it, no more: as long
            # as the node is listed, trying it costs less than waiting for everybody to agree.
            if leader == NO_LEADER and old.leader in nodes and epoch <= old.leader_epoch:
                return
        new = PartitionMetadata(
            index,
            leader,
            epoch if old is None else max(epoch, old.leader_epoch),
            tuple(data.replica_nodes),
            tuple(data.isr_nodes),
            tuple(data.offline_replicas),
        )
        self._set_partition(metadata, new, change, old if old is not None else before_recreation)

    def _set_partition(
        self,
        metadata: TopicMetadata,
        new: PartitionMetadata,
        change: MetadataChange,
        old: PartitionMetadata | None,
    ) -> None:
        if new.partition < len(metadata.partitions):
            metadata.partitions[new.partition] = new
        else:
            metadata.partitions.append(new)
        old_leader = NO_LEADER if old is None else old.leader
        old_epoch = new.leader_epoch if old is None else old.leader_epoch
        if old_leader != new.leader or old_epoch != new.leader_epoch:
            change.leaders.append(LeaderChange(metadata.name, new.partition, old_leader, new.leader, new.leader_epoch))

    def _replace_nodes(self, nodes: dict[int, Node], now: float, change: MetadataChange) -> None:
        old, self._nodes = self._nodes, nodes
        for node_id, node in nodes.items():
            known = old.get(node_id)
            if known is None:
                change.nodes_added.append(node)
            elif (known.host, known.port) != (node.host, node.port):
                change.nodes_moved.append(node)
        change.nodes_removed.extend(node for node_id, node in old.items() if node_id not in nodes)
        if change.nodes_removed:
            self._drop_leaders_not_in(nodes, now, change)

    def _drop_leaders_not_in(self, nodes: Mapping[int, Node], now: float, change: MetadataChange) -> None:
        for in_use in self._topics.values():
            if in_use.metadata is None:
                continue
            for partition in in_use.metadata.partitions:
                if partition.leader != NO_LEADER and partition.leader not in nodes:
                    self._set_partition(in_use.metadata, partition._replace(leader=NO_LEADER), change, partition)
                    self.request_update(now, f"the leader of {in_use.metadata.name}-{partition.partition} is gone")


def _partition_index(partition: MetadataResponsePartition) -> int:
    return partition.partition_index


def _was_recreated(
    known: TopicMetadata, topic_id: bytes | None, partitions: Sequence[MetadataResponsePartition]
) -> bool:
    """Whether the topic was deleted and created anew: another id, or without ids fewer partitions than it had."""
    if topic_id is not None and known.topic_id is not None:
        return topic_id != known.topic_id
    if topic_id is not None or known.topic_id is not None:
        return False
    indexes = {partition.partition_index for partition in partitions}
    return 0 < len(indexes) < len(known.partitions) and indexes == set(range(len(indexes)))
