"""The group coordinator: classic consumer groups and the offsets they keep, in ``__consumer_offsets``.

* ``group`` decides what a request changes of one group, and never waits; ``classic_group`` is the state that it
  changes and ``rebalance`` has JoinGroup, with ``member``, ``roster``, ``states`` and ``timers``;
* ``records`` and ``offsets`` are what is kept of groups, pending offsets of transactions included; ``commits`` makes
  records of what is committed, and ``shard`` keeps them in one partition's log;
* ``coordinator`` is what a node asks.
"""

from __future__ import annotations

from aioproducer.broker.groups.coordinator import GroupCoordinator, offsets_topic_spec

__all__ = ["GroupCoordinator", "offsets_topic_spec"]
