"""The types of cluster metadata: topics, partitions, changes of both, and candidates for the least loaded node."""

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
"""In place of a node's id: the partition has no leader, or one that is not among the listed brokers."""

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
    """A topic in use. ``partitions[n]`` is partition n; newer metadata replaces it in place. Read-only for others.

    ``topic_id`` is None if the brokers have no topic ids (Metadata before version 10). A topic that was deleted and
    created again gets a new object. ``changes`` counts replaced and added partitions; ``seen`` is for the
    ``MetadataView``.
    """

    __slots__ = ("changes", "name", "partitions", "seen", "topic_id")

    def __init__(self, name: str, topic_id: bytes | None, partitions: list[PartitionMetadata]) -> None:
        self.name: Final = name
        self.topic_id = topic_id
        self.partitions: Final = partitions
        self.changes = 0
        self.seen: object = None


class LeaderChange(NamedTuple):
    """A partition has another leader or leader epoch; the old leader of a new partition is ``NO_LEADER``."""

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
    """The changes by a response, a leader hint or a rebootstrap.

    leaders
        Every partition with another leader or leader epoch, including those of new and re-created topics.
    new_topics, recreated_topics, forgotten_topics
        Topics that have known partitions now; that have another topic id (their epochs and partition count are
        reset); that were not used for ``metadata_max_idle_ms``.
    lost_topics
        Topics that the cluster no longer has. They have no partitions until they reappear, as topics that grew or as
        re-created topics.
    partitions_added
        Topics that grew, without new ones.
    topic_errors
        Error code of each topic that has one in the response, whether it is new or not.
    nodes_added, nodes_removed, nodes_moved
        Nodes; ``nodes_moved`` holds the new address of nodes with another host or port. The bootstrap addresses
        (negative ids) count as removed with the first response.
    failure
        Why the response was unusable, else None. It changed nothing then, and another request is due after a backoff.

    True if it contains a change other than an error.
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
        """Append a later change to this one."""
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
    """Whether a request can be sent to a node."""

    READY = "ready"
    """Connected and able to take a request now: not throttled, fewer in flight than allowed."""
    CONNECTING = "connecting"
    CAN_CONNECT = "can_connect"
    """Not connected, and its reconnect backoff has passed."""
    BACKING_OFF = "backing_off"
    """It accepts no request now, and connecting must wait."""


class NodeCandidate(NamedTuple):
    """A node that `least_loaded_node` may choose; ``last_attempt`` is when a connection was last tried, else -inf."""

    node_id: int
    state: NodeState
    in_flight: int = 0
    last_attempt: float = -math.inf


def least_loaded_node(candidates: Iterable[NodeCandidate], random: Random) -> int | None:
    """Return the node for a request that any node can answer (NetworkClient.leastLoadedNode), None without any.

    It is the ready node with the fewest requests in flight, else one that is connecting. Else it is the node that can
    be connected to with the oldest last attempt, so that a dead node is not tried again before the others. The choice
    among equals is random, to spread the clients of a cluster over its nodes.
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
