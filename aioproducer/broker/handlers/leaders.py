"""The leader of a partition in responses, and the operations that a broker without an authorizer allows."""

from __future__ import annotations

from typing import Final

from aioproducer.broker.image import NO_LEADER, ClusterImage
from aioproducer.errors import FencedLeaderEpochError, NotLeaderOrFollowerError
from aioproducer.protocol.messages.leaders import LeaderIdAndEpoch, NodeEndpoint

LEADER_MOVED: Final = frozenset((NotLeaderOrFollowerError.code, FencedLeaderEpochError.code))
"""The errors that are returned with the current leader (KIP-951)."""


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


# Kafka's AclOperation: 3 READ, 4 WRITE, 5 CREATE, 6 DELETE, 7 ALTER, 8 DESCRIBE, 9 CLUSTER_ACTION, 10 DESCRIBE_CONFIGS,
# 11 ALTER_CONFIGS, 12 IDEMPOTENT_WRITE.
TOPIC_OPERATIONS: Final = _bits(3, 4, 5, 6, 7, 8, 10, 11)
"""All operations on a topic, as a broker without an authorizer returns them (Kafka's ``AclEntry``)."""
CLUSTER_OPERATIONS: Final = _bits(5, 7, 8, 9, 10, 11, 12)
"""All operations on a cluster."""


class LeaderFinder:
    """Finds leaders for one response, and collects the addresses that the response must contain."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._endpoints: dict[int, NodeEndpoint] = {}

    def find(self, topic: str, index: int) -> LeaderIdAndEpoch:
        """Return the leader of a partition, -1 and -1 if the partition is unknown."""
        state = self._image.topics.get(topic)
        if state is None or not 0 <= index < len(state.partitions):
            return LeaderIdAndEpoch()
        partition = state.partitions[index]
        node = self._image.nodes.get(partition.leader)
        if node is not None and node.is_alive:
            self._endpoints[node.node_id] = NodeEndpoint(
                node_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
        return LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)

    @property
    def endpoints(self) -> list[NodeEndpoint]:
        """The addresses of the leaders found that are alive."""
        return list(self._endpoints.values())


def has_live_leader(image: ClusterImage, leader: int) -> bool:
    """Whether clients can connect to ``leader``."""
    return leader != NO_LEADER and image.is_alive(leader)
