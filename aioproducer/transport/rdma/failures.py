"""What is said of a connection over RDMA that fails: errors as sockets have them, with the peer and what to do."""

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
    """The connection to ``peer`` has ended, and not by its closing."""
    return ConnectionResetError(errno.ECONNRESET, f"{peer}: {reason}")


def status_error(peer: str, status: int) -> ConnectionError:
    """A work request came back with ``status``, which is not success."""
    try:
        name = CompletionStatus(status).name
    except ValueError:
        name = f"status {status}"
    hint = _STATUS_HINTS.get(status)
    text = f"an RDMA work request failed with {name}"
    return reset(peer, f"{text}: {hint}" if hint else text)


def named(peer: str, error: Exception) -> Exception:
    """Where it happened is for the verbs' errors to say; any other is a bug, or the end of the memory."""
    if not isinstance(error, VerbsError):
        return error
    return ConnectionAbortedError(error.errno or errno.ECONNABORTED, f"{peer}: {error.strerror or error}")
