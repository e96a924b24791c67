"""Errors of a connection over RDMA: of the same types as a socket's, with the peer and what to do."""

from __future__ import annotations

import errno
from typing import Final

from aioproducer.transport.rdma.verbs import CompletionStatus, VerbsError

_STATUS_HINTS: Final[dict[int, str]] = {
    CompletionStatus.REMOTE_ACCESS_ERROR: "the peer's memory was not open to this write",
    CompletionStatus.TRANSPORT_RETRY_EXCEEDED: "the peer's card does not answer",
    CompletionStatus.WORK_REQUEST_FLUSHED: "the queue pair went into error",
}


def reset(peer: str, reason: str) -> ConnectionResetError:
    """Return the error of a connection to ``peer`` that ended without being closed."""
    return ConnectionResetError(errno.ECONNRESET, f"{peer}: {reason}")


def status_error(peer: str, status: int) -> ConnectionError:
    """Return the error of a work request that completed with ``status``, which is not success."""
    try:
        name = CompletionStatus(status).name
    except ValueError:
        name = f"status {status}"
    hint = _STATUS_HINTS.get(status)
    text = f"an RDMA work request failed with {name}"
    return reset(peer, f"{text}: {hint}" if hint else text)


def with_peer_name(peer: str, error: Exception) -> Exception:
    """Add the peer to an error of verbs. Any other error is a bug or a lack of memory, and is returned as it is."""
    if not isinstance(error, VerbsError):
        return error
    return ConnectionAbortedError(error.errno or errno.ECONNABORTED, f"{peer}: {error.strerror or error}")
