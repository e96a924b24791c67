"""What is alive of the classes that a producer is made of: as much after it is closed as before it was made."""

from __future__ import annotations

import gc
from collections import Counter

# What a cluster of this process keeps of every producer is its own.
_CLUSTER = ("aioproducer.broker.", "aioproducer.testing.")


def own_objects(*, without: tuple[str, ...] = ()) -> Counter[str]:
    """How many instances of this package's classes the collector knows, by name.

    Args:
        without: modules whose classes are not counted, besides those of the embedded cluster.
    """
    gc.collect()
    counts = Counter(map(type, gc.get_objects()))
    own = [kind for kind in counts if str(kind.__module__).startswith("aioproducer.")]
    return Counter(
        {kind.__qualname__: counts[kind] for kind in own if not kind.__module__.startswith((*_CLUSTER, *without))}
    )
