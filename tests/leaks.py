"""Counting live objects of a producer's classes: after it is closed there must be as many as before."""

from __future__ import annotations

import gc
from collections import Counter

# Classes of a cluster in this process, which keeps state of every producer.
_CLUSTER = ("aioproducer.broker.", "aioproducer.testing.")


def own_objects(*, without: tuple[str, ...] = ()) -> Counter[str]:
    """Return the numbers of instances of this package's classes that the collector tracks, by name.

    Args:
        without: modules with classes that are not counted, in addition to those of the embedded cluster.
    """
    gc.collect()
    counts = Counter(map(type, gc.get_objects()))
    own = [kind for kind in counts if str(kind.__module__).startswith("aioproducer.")]
    return Counter(
        {kind.__qualname__: counts[kind] for kind in own if not kind.__module__.startswith((*_CLUSTER, *without))}
    )
