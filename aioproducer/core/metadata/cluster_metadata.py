"""Compiled. Metadata of the cluster: its nodes, and the topics in use with their leaders, leader epochs and ids.

``ClusterMetadata`` decides when to request metadata and applies the response; its owner picks a node, sends and waits.

* It holds only topics that records are sent to (KIP-526).
* It never replaces a leader by one of an older epoch unless the topic was re-created (KIP-516).
* It adopts the leader that a produce response names (KIP-951).
* It returns to the bootstrap addresses when no known node can be reached (KIP-899, KIP-1102).

Every leader is a known node or ``NO_LEADER``. Partitions of a topic are always 0 to n-1 without a gap.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from aioproducer._common.texts import printable
from aioproducer.core.metadata.cluster import (
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
from aioproducer.core.metadata.metadata_merger import (
    PARTITIONS_PER_STEP,
    REFUSED_TOPIC_CODES,
    MetadataMerger,
    TopicInUse,
    set_partition,
)
from aioproducer.core.requests.retry import Attempts, ExponentialBackoff
from aioproducer.error_codes import INVALID_TOPIC_EXCEPTION, REBOOTSTRAP_REQUIRED
from aioproducer.errors import KafkaError, broker_error
from aioproducer.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from aioproducer.record import Node

if TYPE_CHECKING:
    from random import Random

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

TOPICS_CHECKED_PER_REQUEST = 1000
"""Topics to consider for a request, forgotten ones included: after as many forgotten topics, it contains none."""

TOPICS_PER_REQUEST = 200
"""Larger updates take several requests: one for thousands of topics would delay the loop and the broker."""


class _InFlight(NamedTuple):
    full: bool
    # In the order of the request.
    topics: dict[str, None]
    # Whether it is the last request of a full update.
    last: bool


class ClusterMetadata:
    """Metadata of the cluster. Times are monotonic seconds, passed as ``now``.

    ``bootstrap`` lists the configured addresses as (host, port): nodes -1, -2, ... until the first response. The other
    arguments are the configuration keys of the same names; backoffs and ages are in milliseconds.
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
        """Number of applied responses: a caller that needs an update waits until it is higher."""
        self.cluster_id: str | None = None
        self.controller_id: int = -1
        self.last_error: KafkaError | None = None
        """Error of the latest attempt, None after a success. For error messages."""
        self.last_update: float | None = None
        """When the latest response was applied, full or partial."""
        self.update_reason: str = "no metadata yet"
        """Reason of the latest request for a full update; for the log."""
        self.update_requested_at: float | None = None
        """When that update was requested; None before the first request."""

        self._nodes: dict[int, Node] = self._bootstrap
        self._topics: dict[str, TopicInUse] = {}
        self._new_topics: dict[str, None] = {}
        self._in_flight: _InFlight | None = None
        self._full_update_requested: bool = True
        # Topics that were requested before, in the order in which full updates request them. It rotates: copying a
        # hundred thousand topics would delay the loop for milliseconds. A forgotten topic is dropped at its turn.
        self._request_order: deque[TopicInUse] = deque()
        # How many of those, and of the new topics, a full update in progress still has to request, and whether its
        # responses so far changed anything.
        self._topics_left: int = 0
        self._new_topics_left: int = 0
        self._full_update_changed: bool = False
        self._last_full_update: float = -math.inf
        self._latest_reason_at: float = -math.inf
        self._attempt_started: float | None = None
        # Nodes that failed to answer this attempt, or that it could not connect to.
        self._failed_nodes: set[int] = set()
        self._rebootstrap_required: bool = False
        backoff = ExponentialBackoff(retry_backoff_ms, retry_backoff_max_ms)
        self._failed = Attempts(backoff, random)
        # Responses without a change back off as failures do (KIP-580): a partition without a leader for an hour must
        # not be requested ten times a second.
        self._fruitless = Attempts(backoff, random)
        # If the bootstrap addresses list brokers that cannot be reached, another rebootstrap would not help.
        self._rebootstraps = Attempts(backoff, random)

    @property
    def nodes(self) -> Mapping[int, Node]:
        """Known nodes by id: bootstrap addresses (negative ids) or the brokers of the latest response."""
        return MappingProxyType(self._nodes)

    @property
    def bootstrapped(self) -> bool:
        """Whether nodes are known from the cluster itself and not only from the configuration."""
        return self._nodes is not self._bootstrap

    @property
    def topics_in_use(self) -> Iterable[str]:
        """Names of the topics that a full update requests."""
        return self._topics.keys()

    def node(self, node_id: int) -> Node | None:
        """Return the node with this id, None if no response listed it."""
        return self._nodes.get(node_id)

    def topic(self, name: str) -> TopicMetadata | None:
        """Return a topic in use if its partitions are known, else None. It does not count as use."""
        in_use = self._topics.get(name)
        if in_use is None:
            return None
        metadata = in_use.metadata
        return metadata if metadata is not None and metadata.partitions else None

    def topic_error(self, name: str) -> int:
        """Return the topic's error code in the latest response about it; 0 for none."""
        in_use = self._topics.get(name)
        return 0 if in_use is None else in_use.error_code

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of the node that leads the partition, always a known one, or ``NO_LEADER``."""
        metadata = self.topic(topic)
        if metadata is None or not 0 <= partition < len(metadata.partitions):
            return NO_LEADER
        return metadata.partitions[partition].leader

    def add_topic(self, name: str, now: float) -> TopicMetadata | None:
        """Mark ``name`` as used now and return it if records can be appended to it.

        Return None if its partitions are not known or the cluster rejects it. An update is requested then: at once
        for a new topic, with a backoff after an earlier response without its partitions (`topic_error`). A topic with
        an invalid name is not requested again.
        """
        in_use = self._topics.get(name)
        if in_use is None:
            self._topics[name] = TopicInUse(name, now)
            self._new_topics[name] = None
            self._fruitless.failures = 0
            return None
        in_use.last_used = now
        if in_use.error_code not in REFUSED_TOPIC_CODES and (metadata := self.topic(name)) is not None:
            return metadata
        requested = name in self._new_topics or (self._in_flight is not None and name in self._in_flight.topics)
        if not requested and in_use.error_code != INVALID_TOPIC_EXCEPTION:
            self.request_update(now, f"partitions of topic {name} are not known")
        return None

    def touch(self, name: str, now: float) -> None:
        """Mark a topic as used now, so that it is not forgotten; a topic that is not in use is ignored."""
        in_use = self._topics.get(name)
        if in_use is not None:
            in_use.last_used = now

    def retain_topics(self, names: Collection[str]) -> None:
        """Forget all topics but these: nothing reads them any longer, and requests would create them again."""
        for name in [name for name in self._topics if name not in names]:
            del self._topics[name]
            self._new_topics.pop(name, None)
        self._new_topics_left = min(self._new_topics_left, len(self._new_topics))

    def allow_topic_creation(self, *, allowed: bool) -> None:
        """Set whether later requests let brokers create missing topics."""
        self._allow_auto_topic_creation = allowed

    def request_update(self, now: float, reason: str) -> int:
        """Request a full update as soon as the backoff allows; return the `version` that it will exceed.

        If a request is in flight, another is due after it: its response may be older than the reason.
        """
        self._latest_reason_at = now
        if not self._full_update_requested:
            self._full_update_requested = True
            self.update_reason = reason
            self.update_requested_at = now
        return self.version

    def request_partial_update(self, topic: str) -> int:
        """Request one topic in use at once, without the others; return the `version` that it will exceed."""
        if topic in self._topics:
            self._new_topics[topic] = None
        return self.version

    @property
    def topics_in_flight(self) -> Collection[str]:
        """Topics in the request in flight."""
        return () if self._in_flight is None else self._in_flight.topics

    @property
    def update_in_flight(self) -> bool:
        """Whether a request was built and is neither answered nor failed."""
        return self._in_flight is not None

    def accepts_since(self, now: float) -> float:
        """Return from which time on another producer's request has the same answer as the one that is due.

        Infinity if only a request of this producer's own will do: by age, for a topic that was requested before, after
        a failure, or if an update takes several requests.
        """
        if (
            self.last_error is not None
            or self._rebootstrap_required
            or len(self._topics) > TOPICS_PER_REQUEST
            or any(self._topics[name].was_requested for name in self._new_topics)
        ):
            return math.inf
        if self._full_update_requested and self._latest_reason_at > -math.inf:
            return self._latest_reason_at
        if self.last_update is not None and now >= self._last_full_update + self._max_age:
            return math.inf
        return now - self._max_age

    def limit_age(self, requested_at: float) -> None:
        """Let the age of metadata that was just applied count from ``requested_at``, when it was requested."""
        self._last_full_update = min(self._last_full_update, requested_at)

    def next_update_delay(self, now: float) -> float:
        """Return the seconds until a request is due: 0 for now, infinity while one is in flight.

        New topics are requested at once, all others ``retry_backoff_ms`` (growing) after the last response. After a
        failure every request waits for the backoff. The caller chooses another node than the one that failed
        (`least_loaded_node`).
        """
        if self._in_flight is not None:
            return math.inf
        if self._new_topics or self._topics_left:
            return self._failed.delay(now)
        due = now if self._full_update_requested else self._last_full_update + self._max_age
        return max(due, self._failed.retry_at, self._fruitless.retry_at, now) - now

    def begin_attempt(self, now: float) -> None:
        """Begin an attempt, unless one is in progress: an update is due, and the caller looks for a node.

        ``metadata_recovery_rebootstrap_trigger_ms`` counts from its begin. A success ends the attempt.
        """
        if self._attempt_started is None:
            self._attempt_started = now
            self._failed_nodes.clear()

    @property
    def failed_nodes(self) -> Collection[int]:
        """Nodes that `node_failed` has added since this attempt began; read-only."""
        return self._failed_nodes

    def node_failed(self, node_id: int) -> None:
        """Record that connecting to a node failed, or that it answered the request with an error or not at all."""
        if self._attempt_started is not None:
            self._failed_nodes.add(node_id)

    def build_request(self, now: float) -> MetadataRequest:
        """Return the request to send now. It is in flight until its response or failure is passed in.

        It is partial (only new topics) unless a full update was requested and its backoff has passed, or metadata is
        older than ``metadata_max_age_ms``. More than ``TOPICS_PER_REQUEST`` topics take several requests, new topics
        first.

        Raises:
            RuntimeError: a request is in flight already.
        """
        if self._in_flight is not None:
            raise RuntimeError("a metadata request is already in flight")
        full = bool(self._topics_left or self._new_topics_left)
        if not full:
            expired = now >= self._last_full_update + self._max_age
            full = expired or not self._new_topics or (self._full_update_requested and now >= self._fruitless.retry_at)
            if expired:
                self._fruitless.failures = 0
            if full:
                self._full_update_requested = False
                self._topics_left = len(self._request_order)
                self._new_topics_left = len(self._new_topics)
        names = self._next_names(full)
        self._in_flight = _InFlight(full, names, not (self._topics_left or self._new_topics_left))
        self.begin_attempt(now)
        return MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in sorted(names)],
            allow_auto_topic_creation=self._allow_auto_topic_creation,
        )

    def _next_names(self, full: bool) -> dict[str, None]:
        """Return the topics of the next request: new ones, and in a full update the others that are left.

        In a full update the others have at least half of the request: new topics could arrive as fast as they are
        requested.
        """
        names = self._add_new_names({}, TOPICS_PER_REQUEST // (2 if full and self._topics_left else 1))
        checks = TOPICS_CHECKED_PER_REQUEST if full else 0
        while checks and self._topics_left and len(names) < TOPICS_PER_REQUEST:
            checks -= 1
            self._topics_left -= 1
            in_use = self._request_order.popleft()
            if self._topics.get(in_use.name) is in_use:
                self._request_order.append(in_use)
                names[in_use.name] = None
        return self._add_new_names(names, TOPICS_PER_REQUEST - len(names))

    def _add_new_names(self, names: dict[str, None], most: int) -> dict[str, None]:
        """Add at most ``most`` new topics to ``names``; from then on full updates request them."""
        new = list(islice(self._new_topics, max(most, 0)))
        self._new_topics_left = max(self._new_topics_left - len(new), 0)
        for name in new:
            names[name] = None
            del self._new_topics[name]
            in_use = self._topics[name]
            if not in_use.was_requested:
                in_use.was_requested = True
                self._request_order.append(in_use)
        return names

    def handle_failure(self, error: KafkaError, now: float) -> None:
        """End the request in flight, if any, without a usable response; it is due again after a backoff.

        Also called if no node could receive the request.
        """
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None:
            self._full_update_requested |= in_flight.full
            if in_flight.full:
                self._topics_left = self._new_topics_left = 0
            else:
                # Topics that were forgotten in the meantime would be requested without need. The others are requested
                # again after those that were never requested.
                for name in in_flight.topics:
                    if name in self._topics:
                        self._new_topics[name] = None
        self.begin_attempt(now)
        self.last_error = error
        self._failed.failed(now)

    def handle_response(self, response: MetadataResponse, now: float, *, version: int) -> MetadataChange:
        """Run all steps of `apply_response` at once; return their changes."""
        change = MetadataChange()
        for step in self.apply_response(response, response.topics, now, version=version):
            change.add(step)
        return change

    def apply_response(
        self, response: MetadataResponse, topics: Iterable[MetadataResponseTopic | None], now: float, *, version: int
    ) -> Iterator[MetadataChange]:
        """Apply the response to the request in flight, step by step; ``version`` is its Metadata version.

        Each step merges about ``PARTITIONS_PER_STEP`` partitions and yields its changes. Between steps everything may
        be called except another ``apply_response``. The request is in flight until the last step, which increases
        `version`.

        ``topics`` yields the topics of the response. ``response`` itself need not hold them, nor the fields after them
        before ``topics`` has ended. ``None`` counts as a step too. Its exceptions pass through; the caller passes them
        to `handle_failure`.

        No content of a response raises. One with a top-level error or without brokers (of a broker that has just
        started) is a failed update. A response to a request that `rebootstrap` has dropped is ignored.
        """
        in_flight = self._in_flight
        if in_flight is None:
            return
        change = MetadataChange()
        nodes = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
            if broker.node_id >= 0
        }
        if not nodes:
            # The error code follows the topics.
            for _ in topics:
                yield change
                if self._in_flight is not in_flight:
                    return
        change.failure = self._rejection_reason(response, nodes, in_flight, now)
        if change.failure is not None:
            self.handle_failure(change.failure, now)
            yield change
            return

        other_cluster = self._is_other_cluster(response)
        if response.cluster_id is not None:
            self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        if in_flight.full:
            self._forget_idle_topics(now, in_flight.topics, change)
        self._add_nodes(nodes, change)
        merger = MetadataMerger(
            nodes,
            version,
            other_cluster=other_cluster,
            request_again=lambda reason: self.request_update(now, reason),
            change=change,
        )
        answered: set[str] = set()
        in_step = 0
        news = False
        for data in topics:
            in_use = None if data is None or data.name is None else self._topics.get(data.name)
            if data is None or data.name is None or in_use is None:
                counts: Iterable[int] = (PARTITIONS_PER_STEP,) if data is None else (1,)
            else:
                answered.add(data.name)
                counts = merger.merge_topic(data, data.name, in_use)
            for count in counts:
                in_step += max(count, 1)
                if in_step >= PARTITIONS_PER_STEP:
                    in_step = 0
                    change = merger.pop_change()
                    news = news or bool(change)
                    yield change
                    if self._in_flight is not in_flight:
                        return
        if any(name in self._topics for name in in_flight.topics.keys() - answered):
            self.request_update(now, "the last response lacked requested topics")
        change = yield from self._remove_nodes(nodes, now, merger.pop_change())
        news = news or bool(change)
        if self._in_flight is not in_flight:
            return
        change.failure = self._rejection_reason(response, nodes, in_flight, now)
        if change.failure is not None:
            self.handle_failure(change.failure, now)
            yield change
            return
        self._in_flight = None
        self._succeeded(in_flight, news, now)
        yield change

    def _succeeded(self, in_flight: _InFlight, news: bool, now: float) -> None:
        self._attempt_started = None
        self._rebootstrap_required = False
        self.last_error = None
        self.last_update = now
        self._failed.succeeded()
        if in_flight.full:
            self._full_update_changed |= news
            if not in_flight.last:
                return
            news, self._full_update_changed = self._full_update_changed, False
            self._last_full_update = now
        if news:
            self._fruitless.succeeded()
        self._fruitless.failed(now)
        self.version += 1

    def apply_leader_hints(
        self,
        topic: str,
        partition: int,
        leader_id: int,
        leader_epoch: int,
        node_endpoints: Iterable[Node],
        now: float,
    ) -> MetadataChange:
        """Adopt the current leader that a produce response names beside its error (KIP-951); return the changes.

        Only a newer epoch counts, and only a leader with an address that is known or among ``node_endpoints``.
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
        set_partition(metadata, old._replace(leader=leader_id, leader_epoch=leader_epoch), change.leaders, old)
        return change

    def require_rebootstrap(self) -> None:
        """Record that a broker answered REBOOTSTRAP_REQUIRED: it is not the expected one (KIP-1102, KIP-1242)."""
        self._rebootstrap_required = True

    def needs_rebootstrap(
        self,
        now: float,
        *,
        node_available: bool,
        ready: Iterable[int] = (),
        connecting: Iterable[int] = (),
        connecting_timeout: float = 0.0,
    ) -> bool:
        """Return whether to forget the known nodes and return to the bootstrap addresses.

        True with ``metadata_recovery_strategy=rebootstrap`` if no node is available, if a broker requires it, or if
        an attempt has failed for ``metadata_recovery_rebootstrap_trigger_ms`` (KIP-1102). False while only the
        bootstrap addresses are known. After a rebootstrap it is False until a backoff has passed or a broker that the
        bootstrap addresses listed is reached.

        The trigger alone drops no node that this attempt has not tried yet. A trigger shorter than connecting takes
        would otherwise close each connection to a healthy cluster before its first use.

        Args:
            node_available: the caller could send to or connect to at least one known node.
            ready: ids of nodes that take a request as soon as they have a free slot.
            connecting: ids of nodes with a connection attempt in progress.
            connecting_timeout: seconds that connecting may take; the attempt waits at most as long past the trigger.
        """
        if not self._may_rebootstrap or not self.bootstrapped or self._rebootstraps.delay(now) > 0:
            return False
        if self._rebootstrap_required or not node_available:
            return True
        if self._attempt_started is None:
            return False
        late = now - self._attempt_started - self._rebootstrap_trigger
        if late <= 0 or not self._failed_nodes.issuperset(ready):
            return False
        return late > connecting_timeout or self._failed_nodes.issuperset(connecting)

    def rebootstrap(self, now: float) -> MetadataChange:
        """Replace all known nodes by the bootstrap addresses; the topics stay, without leaders. An update is due.

        The caller closes the connections to the removed nodes. A request in flight on one of them is dropped: its
        outcome need not be passed in, and must not be after another request was built.
        """
        change = MetadataChange()
        for step in self.rebootstrap_in_steps(now):
            change.add(step)
        return change

    def rebootstrap_in_steps(self, now: float) -> Iterator[MetadataChange]:
        """As `rebootstrap`, but the topics lose their leaders in steps; each yields its changes.

        Everything else has happened when this returns, and at least one step is left.
        """
        change = MetadataChange()
        self._in_flight = None
        self._add_nodes(self._bootstrap, change)
        gone = self._forget_nodes(self._bootstrap, change)
        self._topics_left = self._new_topics_left = 0
        self.request_update(now, "returning to the bootstrap addresses")
        self._rebootstrap_required = False
        self._attempt_started = now
        self._failed.succeeded()
        self._fruitless.succeeded()
        self._rebootstraps.failed(now)
        return _all_steps(self._remove_leaders(gone, now, change))

    def broker_reached(self) -> None:
        """Record that a listed broker is usable: the next time that none is, a rebootstrap needs no backoff."""
        self._rebootstraps.succeeded()

    @property
    def rebootstraps(self) -> int:
        """Rebootstraps in a row after which no broker that the bootstrap addresses listed was reached."""
        return self._rebootstraps.failures

    def _rejection_reason(
        self, response: MetadataResponse, nodes: Mapping[int, Node], in_flight: _InFlight, now: float
    ) -> KafkaError | None:
        if response.error_code:
            if response.error_code == REBOOTSTRAP_REQUIRED:
                self._rebootstrap_required = True
            return broker_error(response.error_code)
        if not nodes:
            return KafkaError("The broker's metadata lists no brokers: the broker is starting.")
        if self._is_other_cluster(response) and not in_flight.full:
            self.request_update(now, "the cluster id changed")
            return KafkaError(
                f"The cluster id changed from {printable(str(self.cluster_id))} to "
                f"{printable(str(response.cluster_id))}: all topics are requested again."
            )
        return None

    def _is_other_cluster(self, response: MetadataResponse) -> bool:
        return self.cluster_id is not None and response.cluster_id not in (None, self.cluster_id)

    def _forget_idle_topics(self, now: float, asked: Collection[str], change: MetadataChange) -> None:
        for name in asked:
            in_use = self._topics.get(name)
            if in_use is not None and now - in_use.last_used >= self._max_idle:
                del self._topics[name]
                self._new_topics.pop(name, None)
                change.forgotten_topics.append(name)

    def _add_nodes(self, nodes: dict[int, Node], change: MetadataChange) -> None:
        """Add ``nodes`` as possible leaders; those known before remain until `_remove_nodes`."""
        old = self._nodes
        for node_id, node in nodes.items():
            known = old.get(node_id)
            if known is None:
                change.nodes_added.append(node)
            elif (known.host, known.port) != (node.host, node.port):
                change.nodes_moved.append(node)
        self._nodes = {**old, **nodes}

    def _remove_nodes(
        self, nodes: dict[int, Node], now: float, change: MetadataChange
    ) -> Generator[MetadataChange, None, MetadataChange]:
        """Forget all other nodes, and in steps the leaders among them; return the changes of the last step."""
        return (yield from self._remove_leaders(self._forget_nodes(nodes, change), now, change))

    def _forget_nodes(self, nodes: dict[int, Node], change: MetadataChange) -> set[int]:
        """Replace the known nodes by ``nodes``; return the ids of the removed brokers."""
        removed = [node for node_id, node in self._nodes.items() if node_id not in nodes]
        self._nodes = nodes
        change.nodes_removed.extend(removed)
        return {node.id for node in removed if node.id >= 0}

    def _remove_leaders(
        self, gone: set[int], now: float, change: MetadataChange
    ) -> Generator[MetadataChange, None, MetadataChange]:
        """Leave the partitions of the removed leaders without a leader; return the changes of the last step."""
        work = 0
        for in_use in list(self._topics.values()) if gone else ():
            work += 1
            metadata = in_use.metadata
            for partition in (None,) if metadata is None else tuple(metadata.partitions):
                work += 1
                if metadata is not None and partition is not None and partition.leader in gone:
                    work += PARTITIONS_PER_STEP
                    set_partition(metadata, partition._replace(leader=NO_LEADER), change.leaders, partition)
                    self.request_update(now, f"the leader of {metadata.name}-{partition.partition} is gone")
                if work >= PARTITIONS_PER_STEP * PARTITIONS_PER_STEP:
                    work = 0
                    yield change
                    change = MetadataChange()
        return change


def _all_steps(steps: Generator[MetadataChange, None, MetadataChange]) -> Iterator[MetadataChange]:
    yield (yield from steps)
