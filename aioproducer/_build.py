"""The list of compiled modules, and the kind of build that runs.

The hot modules are ordinary typed Python. A ``.pxd`` file beside each holds the C types that Cython compiles it with.
Without a C compiler the sources run instead: everything works, but more slowly. With ``AIOPRODUCER_PURE=1`` in the
environment, Python runs the sources even if compiled modules are installed.
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
    "aioproducer.consumer.iteration",
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
    "aioproducer.core.fetching.buffer",
    "aioproducer.core.fetching.columns",
    "aioproducer.core.fetching.memory",
    "aioproducer.core.fetching.partition",
    "aioproducer.core.fetching.records",
    "aioproducer.core.fetching.turns",
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
    "aioproducer.io.outcome_reporter",
    "aioproducer.io.produce",
    "aioproducer.io.sender",
    "aioproducer.interceptors",
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
    "install the package on this machine, for instance as an environment in an archive (docs/spark.md): Python cannot "
    "load compiled modules from a zip file"
)

# The processes in which the warning was taken, by id: a forked child inherits the entries but has another id.
_warned: dict[int, object] = {}


def is_pure_wanted() -> bool:
    """Return whether the environment asks for the uncompiled modules."""
    return os.environ.get(PURE_VARIABLE, "0") not in ("", "0")


class SourceFinder:
    """Finds the source of a compiled module, which Python's own finder would pass over."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in COMPILED_MODULES:
            return None
        source = os.path.join(os.path.dirname(__file__), *name.split(".")[1:]) + ".py"
        if not os.path.isfile(source):
            # The package is in a zip file, from which no compiled module loads: Python's finder takes the source.
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location(name, source)


def prefer_sources() -> None:
    """Make modules of this package that are imported from now on run uncompiled."""
    if SourceFinder not in sys.meta_path:
        sys.meta_path.insert(0, SourceFinder)


def take_uncompiled_warning() -> str | None:
    """Return the warning about an uncompiled build that was not asked for, once in each process; else None.

    Only an uncompiled producer calls it.
    """
    mine = object()
    # Several threads may create producers at the same time.
    if is_pure_wanted() or _warned.setdefault(os.getpid(), mine) is not mine:
        return None
    cure = _REINSTALL if os.path.isfile(__file__) else _OUT_OF_ZIP
    return (
        "aioproducer runs uncompiled in this process, which takes 3.5 to 8 times the CPU. To run it compiled, "
        f"{cure}. {PURE_VARIABLE}=1 in the environment accepts the uncompiled build and silences this warning."
    )
