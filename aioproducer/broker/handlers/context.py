"""Arguments of a handler besides the request: its source, and the node that serves it.

``BrokerNode`` is the part of the broker that handlers use. Handlers depend on it instead of on the class ``Broker``,
which imports them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from aioproducer.broker.config import BrokerConfig
    from aioproducer.broker.controller.controller import Controller
    from aioproducer.broker.faults import Fault, Faults
    from aioproducer.broker.groups import GroupCoordinator
    from aioproducer.broker.handlers.fetch_session import FetchSessionCache
    from aioproducer.broker.image import ClusterImage
    from aioproducer.broker.replicas.replica_manager import ReplicaManager
    from aioproducer.broker.server.connection import ServerConnection
    from aioproducer.broker.transactions import TransactionCoordinator
    from aioproducer.errors import BrokerError
    from aioproducer.protocol import ApiKey, RequestHeader, Response


class BrokerNode(Protocol):
    """The node that serves a request."""

    node_id: int
    config: BrokerConfig
    """The current configuration; a later read may return another object."""
    controller: Controller
    faults: Faults
    replicas: ReplicaManager

    @property
    def image(self) -> ClusterImage: ...

    @property
    def groups(self) -> GroupCoordinator: ...

    @property
    def transactions(self) -> TransactionCoordinator: ...

    @property
    def requests(self) -> ServedRequests: ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""


class ServedRequests(Protocol):
    """The parts of a node's ``Requests`` that handlers use."""

    handlers: Mapping[ApiKey, Handler]
    fetch_sessions: FetchSessionCache


@dataclass(slots=True)
class RequestContext:
    """One request, without its fields."""

    broker: BrokerNode
    connection: ServerConnection
    header: RequestHeader
    version: int
    fault: Fault | None = None
    must_close: bool = False
    """Set by a handler: close the connection after the response, if there is one."""

    def error_for(self, topic: str | None = None, partition: int | None = None) -> BrokerError | None:
        """Return the error that a test has set for a partition, a topic or the whole request."""
        return None if self.fault is None else self.fault.error_for(topic, partition)


# Each handler takes its own request class; the table of handlers is keyed by the class's API.
Handle: TypeAlias = "Callable[[RequestContext, Any], Awaitable[Response | None]]"


class Handler(NamedTuple):
    """The handler of one API, and its versions."""

    versions: range
    handle: Handle
    oldest_advertised: int | None = None
    """The oldest version in ApiVersions, if it is older than the oldest that is served."""

    @property
    def advertised(self) -> tuple[int, int]:
        """The oldest and newest version in ApiVersions."""
        oldest = self.versions[0] if self.oldest_advertised is None else self.oldest_advertised
        return oldest, self.versions[-1]
