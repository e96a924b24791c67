"""What replicas, and each of their parts, need of the node that holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from aioproducer.broker.config import BrokerConfig
    from aioproducer.broker.controller.controller import Controller
    from aioproducer.broker.image import BrokerRegistration, ClusterImage, PartitionState
    from aioproducer.broker.log import LogConfig, LogManager
    from aioproducer.broker.replicas.partition import Partition
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


class CleanerHost(Protocol):
    """What a log cleaner needs of the replicas whose logs it cleans."""

    broker: ReplicaHost
    partitions: dict[PartitionKey, Partition]

    @property
    def node_id(self) -> int: ...

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    def give_back(self) -> None:
        """Have the memory of deleted segments freed, a piece in each turn of the loop."""


class PartitionHost(Protocol):
    """What a partition needs of the node it is on."""

    @property
    def node_id(self) -> int: ...

    @property
    def lag_time_max(self) -> float:
        """Seconds after which a follower that has not caught up leaves the ISR (replica.lag.time.max.ms)."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    def eligible_epoch(self, node_id: int) -> int | None:
        """Return the broker epoch of a node that may be in an ISR; ``None`` if it is fenced, stopping or unknown."""

    def alter_isr(self, state: PartitionState, isr: list[int]) -> PartitionState:
        """Propose another ISR of a partition to the controller (KIP-497); raises ``KafkaError`` if it is rejected."""

    def flush_soon(self, partition: Partition) -> None:
        """Flush the partition's log without blocking the loop, then call ``flushed`` or ``flush_failed``.

        Unless flush.messages requires more, this flushes only the closed segments, and calls neither.
        """
