"""The group coordinator: classic consumer groups and their committed offsets, in ``__consumer_offsets``.

* ``group`` decides how a request changes one group, and never waits; ``classic_group`` has the group's state, and
  ``rebalance`` JoinGroup, with ``member``, ``members``, ``states`` and ``timers``;
* ``records`` and ``offsets`` define what is stored of groups, including pending offsets of transactions; ``commits``
  turns commits into records, and ``shard`` keeps them in the log of one partition;
* ``coordinator`` is the part that a node calls, with ``describing`` for requests that change nothing.
"""

from __future__ import annotations

from aioproducer.broker.groups.coordinator import GroupCoordinator, offsets_topic_spec

__all__ = ["GroupCoordinator", "offsets_topic_spec"]
