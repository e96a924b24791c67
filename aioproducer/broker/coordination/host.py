"""The node of a coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aioproducer.broker.config import BrokerConfig
    from aioproducer.broker.controller.controller import Controller
    from aioproducer.broker.image import ClusterImage
    from aioproducer.broker.replicas.replica_manager import ReplicaManager


class CoordinatorHost(Protocol):
    """What a coordinator needs from its node."""

    node_id: int
    config: BrokerConfig
    """The current configuration; a later read may return another object."""
    controller: Controller
    replicas: ReplicaManager

    @property
    def image(self) -> ClusterImage: ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
