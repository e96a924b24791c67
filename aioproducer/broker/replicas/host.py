"""The node that holds replicas, as the room of the replicas uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from aioproducer.broker.config import BrokerConfig
    from aioproducer.broker.controller.controller import Controller
    from aioproducer.broker.image import BrokerRegistration, ClusterImage
    from aioproducer.broker.log import LogConfig, LogManager
    from aioproducer.broker.server.peer import PeerClient

PartitionKey: TypeAlias = tuple[str, int]
"""A topic's name and a partition's index."""


class ReplicaHost(Protocol):
    """What ``ReplicaManager`` and its parts need of their node."""

    node_id: int
    config: BrokerConfig
    """The configuration at this moment; a later read may return another object."""
    controller: Controller
    logs: LogManager

    @property
    def image(self) -> ClusterImage: ...

    def log_config(self, topic: str) -> LogConfig:
        """Return the log configuration that results from the topic's keys and the node's."""

    def peer_client(self, node: BrokerRegistration) -> PeerClient:
        """Return a new connection to another node; it connects when it is first used."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
