"""Which modules are compiled, and which build this is.

The hot modules are ordinary typed Python. Beside each lies a ``.pxd`` file with the C types that Cython compiles it
with, where there is a compiler; without one they run as they are, and everything works, slower.
``AIOPRODUCER_PURE=1`` in the environment makes Python run the sources also where compiled modules are installed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__version__ = "0.1.0"

COMPILED_MODULES = (
    "aioproducer._client.hot_path",
    "aioproducer._common.views",
    "aioproducer.core.batching.accumulator",
    "aioproducer.core.batching.batch",
    "aioproducer.core.batching.batch_memory",
    "aioproducer.core.batching.buffer_pool",
    "aioproducer.core.batching.completion",
    "aioproducer.core.batching.drain_waiters",
    "aioproducer.core.batching.incomplete_batches",
    "aioproducer.core.batching.partition_queue",
    "aioproducer.core.batching.producer_state",
    "aioproducer.core.batching.ready",
    "aioproducer.core.batching.topics",
    "aioproducer.core.columns.appending",
    "aioproducer.core.columns.batch_runs",
    "aioproducer.core.columns.binary_column",
    "aioproducer.core.columns.record_columns",
    "aioproducer.core.metadata.cluster_metadata",
    "aioproducer.core.outcomes.delivery",
    "aioproducer.core.outcomes.future_type",
    "aioproducer.core.outcomes.loops",
    "aioproducer.core.requests.connection",
    "aioproducer.core.requests.retry",
    "aioproducer.core.requests.slots",
    "aioproducer.core.waiting.waiters",
    "aioproducer.io.cluster",
    "aioproducer.io.node",
    "aioproducer.io.produce",
    "aioproducer.io.sender",
    "aioproducer.metrics",
    "aioproducer.partitioner",
    "aioproducer.protocol.frames",
    "aioproducer.protocol.produce_frames",
    "aioproducer.record",
    "aioproducer.transport.buffers",
    "aioproducer.transport.rdma.answers",
    "aioproducer.transport.rdma.channel",
    "aioproducer.transport.rdma.counters",
    "aioproducer.transport.rdma.gathering",
    "aioproducer.transport.rdma.registration",
    "aioproducer.transport.rdma.ring",
    "aioproducer.transport.rdma.work_requests",
    "aioproducer.transport.socket_transport",
    "aioproducer.transport.tls_transport",
    "aioproducer.wire.crc32c",
    "aioproducer.wire.murmur2",
    "aioproducer.wire.record",
    "aioproducer.wire.record_batch",
    "aioproducer.wire.record_survey",
    "aioproducer.wire.varint",
)

PURE_VARIABLE = "AIOPRODUCER_PURE"


_REINSTALL = (
    "install a C compiler and Python's headers (Debian, Ubuntu: apt install gcc python3-dev), then the package again: "
    "pip install --force-reinstall --no-deps --no-cache-dir --no-binary aioproducer aioproducer"
)
_OUT_OF_ZIP = (
    "from a zip file nothing compiled can be loaded: install the package on this machine instead, for instance by an "
    "environment in an archive (docs/spark.md)"
)

# The processes in which the warning was taken, by their ids: a forked child has its parent's entries, and not its id.
_warned: dict[int, object] = {}


def is_pure_wanted() -> bool:
    """Whether the environment asks for the uncompiled modules."""
    return os.environ.get(PURE_VARIABLE, "0") not in ("", "0")


class SourceFinder:
    """Finds the sources of the compiled modules where Python's own finder would take the compiled ones."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in COMPILED_MODULES:
            return None
        source = os.path.join(os.path.dirname(__file__), *name.split(".")[1:]) + ".py"
        if not os.path.isfile(source):
            # In a zip file, from which nothing compiled can be loaded: Python's own finder takes the source.
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location(name, source)


def prefer_sources() -> None:
    """Let modules of this package that are imported from now on run uncompiled."""
    if SourceFinder not in sys.meta_path:
        sys.meta_path.insert(0, SourceFinder)


def take_uncompiled_warning() -> str | None:
    """What to warn of where this is the uncompiled build and nobody asked for it; to one caller in each process.

    The caller knows that it is uncompiled.
    """
    mine = object()
    # Threads may make their producers side by side.
    if is_pure_wanted() or _warned.setdefault(os.getpid(), mine) is not mine:
        return None
    cure = _REINSTALL if os.path.isfile(__file__) else _OUT_OF_ZIP
    return (
        "aioproducer runs uncompiled in this process, which takes 3.5 to 8 times the CPU. To have it compiled, "
        f"{cure}. {PURE_VARIABLE}=1 in the environment accepts it as it is, without this warning."
    )
