"""The protocol states of one connection, from the API versions on, and the events between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class ConnectionState(Enum):
    """State of a connection. It moves down this list; only REAUTHENTICATING returns, to READY."""

    CONNECTING = "connecting"
    """``Connection.start`` was not called yet."""
    CHECKING_API_VERSIONS = "checking API versions"
    AUTHENTICATING = "authenticating"
    """The client authenticates, or asks the listener whether it requires that."""
    READY = "ready"
    REAUTHENTICATING = "authenticating again"
    """The client authenticates again before its session ends (KIP-368). Responses to earlier requests still arrive."""
    CLOSED = "closed"
    """Poisoned, for any reason; no longer usable."""


class ConnectionEvent(Enum):
    """Event that changes the state."""

    STARTED = "started"
    VERSIONS_REFUSED = "versions refused"
    VERSIONS_KNOWN = "versions known"
    AUTHENTICATION_REQUIRED = "authentication required"
    AUTHENTICATED = "authenticated"
    SESSION_ENDING = "session ending"
    POISONED = "poisoned"


NEXT_STATE: Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    (ConnectionState.CONNECTING, ConnectionEvent.STARTED): ConnectionState.CHECKING_API_VERSIONS,
    (ConnectionState.CHECKING_API_VERSIONS, ConnectionEvent.VERSIONS_REFUSED): ConnectionState.CHECKING_API_VERSIONS,
    (ConnectionState.CHECKING_API_VERSIONS, ConnectionEvent.VERSIONS_KNOWN): ConnectionState.READY,
    (ConnectionState.CHECKING_API_VERSIONS, ConnectionEvent.AUTHENTICATION_REQUIRED): ConnectionState.AUTHENTICATING,
    (ConnectionState.AUTHENTICATING, ConnectionEvent.AUTHENTICATED): ConnectionState.READY,
    (ConnectionState.READY, ConnectionEvent.SESSION_ENDING): ConnectionState.REAUTHENTICATING,
    (ConnectionState.REAUTHENTICATING, ConnectionEvent.AUTHENTICATED): ConnectionState.READY,
    (ConnectionState.CONNECTING, ConnectionEvent.POISONED): ConnectionState.CLOSED,
    (ConnectionState.CHECKING_API_VERSIONS, ConnectionEvent.POISONED): ConnectionState.CLOSED,
    (ConnectionState.AUTHENTICATING, ConnectionEvent.POISONED): ConnectionState.CLOSED,
    (ConnectionState.READY, ConnectionEvent.POISONED): ConnectionState.CLOSED,
    (ConnectionState.REAUTHENTICATING, ConnectionEvent.POISONED): ConnectionState.CLOSED,
}
"""Next state by state and possible event. An event that is not listed is an error of the caller."""
