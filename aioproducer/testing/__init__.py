"""A Kafka cluster inside the test's own process, with real sockets or none, and with injected faults.

``EmbeddedCluster`` runs in the test's event loop, ``EmbeddedClusterThread`` in a thread of its own, for blocking
clients and for fixtures that outlive a test's loop. ``docs/testing.md`` shows how to use them;
``aioproducer.testing.plugin`` has the pytest fixtures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioproducer.testing.cluster import EmbeddedCluster
    from aioproducer.testing.control import StoredRecord
    from aioproducer.testing.thread import EmbeddedClusterThread

__all__ = ["EmbeddedCluster", "EmbeddedClusterThread", "StoredRecord"]


def __getattr__(name: str) -> object:
    # pytest imports this package for its plugin, so the names below are imported only on first access.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from aioproducer.testing import cluster, control, thread

    homes: dict[str, object] = {
        "EmbeddedCluster": cluster.EmbeddedCluster,
        "EmbeddedClusterThread": thread.EmbeddedClusterThread,
        "StoredRecord": control.StoredRecord,
    }
    return homes[name]
