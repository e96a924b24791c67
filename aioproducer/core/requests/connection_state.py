"""The states of a connection to a broker, and what moves it from one to the next."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class ConnectionState(Enum):
    """How far a connection is. It only ever moves down this list."""

    CONNECTING = "connecting"
    """There is no transport yet."""
    CHECKING_API_VERSIONS = "checking API versions"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    CLOSED = "closed"
    """Poisoned, for whatever reason; of no use any more."""


class ConnectionEvent(Enum):
    """What moves it on."""

    STARTED = "started"
    VERSIONS_REFUSED = "versions refused"
    VERSIONS_KNOWN = "versions known"
    AUTHENTICATION_REQUIRED = "credentials wanted"
    AUTHENTICATED = "authenticated"
    POISONED = "poisoned"


NEXT_STATE: Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    (ConnectionState.CONNECTING, ConnectionEvent.STARTED): ConnectionState.CHECKING_API_VERSIONS,
    (ConnectionState.CHECKING_API_VERSIONS, ConnectionEvent.VERSIONS_REFUSED): ConnectionState.CHECKING_API_VERSIONS,
    (ConnectionState.CHECKING_API_VERSIONS, ConnectionEvent.VERSIONS_KNOWN): ConnectionState.READY,
    (ConnectionState.CHECKING_API_VERSIONS, ConnectionEvent.AUTHENTICATION_REQUIRED): ConnectionState.AUTHENTICATING,
    (ConnectionState.AUTHENTICATING, ConnectionEvent.AUTHENTICATED): ConnectionState.READY,
    (ConnectionState.CONNECTING, ConnectionEvent.POISONED): ConnectionState.CLOSED,
    (ConnectionState.CHECKING_API_VERSIONS, ConnectionEvent.POISONED): ConnectionState.CLOSED,
    (ConnectionState.AUTHENTICATING, ConnectionEvent.POISONED): ConnectionState.CLOSED,
    (ConnectionState.READY, ConnectionEvent.POISONED): ConnectionState.CLOSED,
}
"""Which event is possible in which state, and what comes of it. One that is not listed is the caller's mistake."""
