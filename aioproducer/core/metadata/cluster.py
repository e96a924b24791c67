"""The vocabulary of cluster metadata: a topic and its partitions, what changed in them, and which node to ask."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from aioproducer.errors import KafkaError
from aioproducer.record import Node

if TYPE_CHECKING:
    from random import Random

NO_LEADER = -1
"""In place of a node's id: the partition has no leader, or one that no list of brokers names."""

NO_EPOCH = -1
"""In place of a leader epoch: none is known."""


class PartitionMetadata(NamedTuple):
    """One partition; the replicas are node ids, in Kafka's order (the first is the preferred leader)."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]


class TopicMetadata:
    """A topic in use. ``partitions[n]`` is partition n and is replaced in place by newer metadata; only read it.

    ``topic_id`` is None where the brokers know no topic ids (Metadata before version 10). A topic that was deleted and
    created anew gets a new object. ``changes`` counts how often a partition was replaced or added,
    and ``seen`` is for the ``MetadataView``.
    """

    __slots__ = ("changes", "name", "partitions", "seen", "topic_id")

    def __init__(self, name: str, topic_id: bytes | None, partitions: list[PartitionMetadata]) -> None:
        self.name: Final = name
        self.topic_id = topic_id
        self.partitions: Final = partitions
        self.changes = 0
        self.seen: object = None


class LeaderChange(NamedTuple):
    """A partition has another leader or leader epoch than before; one seen first and led comes from ``NO_LEADER``."""

    topic: str
    partition: int
    old_leader: int
    new_leader: int
    leader_epoch: int


class PartitionsAdded(NamedTuple):
    """A topic grew: partitions ``old_count`` to ``new_count - 1`` are new."""

    topic: str
    old_count: int
    new_count: int


class MetadataChange:
    """What a response (or a leader hint, or going back to the bootstrap addresses) changed, and nothing else.

    leaders
        Every partition whose leader or leader epoch differs, those of new and re-created topics included.
    new_topics, recreated_topics, forgotten_topics
        Topics whose partitions became known; that have another topic id (their epochs and partition count are
        reset); that were not used for ``metadata_max_idle_ms``.
    lost_topics
        Topics that the cluster no longer has: they have no partitions until they come back, as ones that grew or as
        re-created ones.
    partitions_added
        Topics that grew, new ones not included.
    topic_errors
        Error code by topic, for each topic the response named an error for, whether it did before or not.
    nodes_added, nodes_removed, nodes_moved
        Nodes; ``nodes_moved`` carries the new address of nodes whose host or port changed. The bootstrap addresses
        (negative ids) count as removed with the first response.
    failure
        Why the response was no use, None if it was: nothing was learnt from it and asking again is due after a backoff.

    True if anything is in it other than an error.
    """

    __slots__ = (
        "failure",
        "forgotten_topics",
        "leaders",
        "lost_topics",
        "new_topics",
        "nodes_added",
        "nodes_moved",
        "nodes_removed",
        "partitions_added",
        "recreated_topics",
        "topic_errors",
    )

    def __init__(self) -> None:
        self.leaders: Final[list[LeaderChange]] = []
        self.new_topics: Final[list[str]] = []
        self.recreated_topics: Final[list[str]] = []
        self.forgotten_topics: Final[list[str]] = []
        self.lost_topics: Final[list[str]] = []
        self.partitions_added: Final[list[PartitionsAdded]] = []
        self.topic_errors: Final[dict[str, int]] = {}
        self.nodes_added: Final[list[Node]] = []
        self.nodes_removed: Final[list[Node]] = []
        self.nodes_moved: Final[list[Node]] = []
        self.failure: KafkaError | None = None

    def add(self, later: MetadataChange) -> None:
        """Put a change that came after this one behind it."""
        self.leaders.extend(later.leaders)
        self.new_topics.extend(later.new_topics)
        self.recreated_topics.extend(later.recreated_topics)
        self.forgotten_topics.extend(later.forgotten_topics)
        self.lost_topics.extend(later.lost_topics)
        self.partitions_added.extend(later.partitions_added)
        self.topic_errors.update(later.topic_errors)
        self.nodes_added.extend(later.nodes_added)
        self.nodes_removed.extend(later.nodes_removed)
        self.nodes_moved.extend(later.nodes_moved)
        if later.failure is not None:
            self.failure = later.failure

    def __bool__(self) -> bool:
        return bool(
            self.leaders
            or self.new_topics
            or self.recreated_topics
            or self.forgotten_topics
            or self.lost_topics
            or self.partitions_added
            or self.nodes_added
            or self.nodes_removed
            or self.nodes_moved
        )


class NodeState(Enum):
    """How far away a request to a node is."""

    READY = "ready"
    """Connected and able to take a request now: not throttled, fewer in flight than allowed."""
    CONNECTING = "connecting"
    CAN_CONNECT = "can_connect"
    """Not connected, and its reconnect backoff has passed."""
    BACKING_OFF = "backing_off"
    """Nothing can be sent to it now, nor a connection be tried."""


class NodeCandidate(NamedTuple):
    """A node that `least_loaded_node` may choose; ``last_attempt`` is when a connection was last tried, else -inf."""

    node_id: int
    state: NodeState
    in_flight: int = 0
    last_attempt: float = -math.inf


def least_loaded_node(candidates: Iterable[NodeCandidate], random: Random) -> int | None:
    """The node to ask for something that any node can answer (NetworkClient.leastLoadedNode); None if there is none.

    The ready one with the fewest requests in flight; else one that is connecting; else, of those that can be
    connected to, the one whose last attempt is the longest ago, so that a dead node is not tried again before the
    others. Equals are drawn from at random, to spread the clients of a cluster over its nodes.
    """
    best: list[int] = []
    best_rank: tuple[int, float] = (3, 0.0)
    for candidate in candidates:
        match candidate.state:
            case NodeState.READY:
                rank = (0, float(candidate.in_flight))
            case NodeState.CONNECTING:
                rank = (1, 0.0)
            case NodeState.CAN_CONNECT:
                rank = (2, candidate.last_attempt)
            case NodeState.BACKING_OFF:
                continue
        if rank < best_rank:
            best, best_rank = [candidate.node_id], rank
        elif rank == best_rank:
            best.append(candidate.node_id)
    return random.choice(best) if best else None
