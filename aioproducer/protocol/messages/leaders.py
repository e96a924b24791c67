"""Where a partition's leader has gone, as the responses to Produce and Fetch say (KIP-951)."""

from __future__ import annotations

from aioproducer.protocol.schema import Struct, int32, string


class LeaderIdAndEpoch(Struct):
    """The leader to use from now on; -1 for both where the broker does not say."""

    leader_id: int = int32("0+", default=-1)
    leader_epoch: int = int32("0+", default=-1)


class NodeEndpoint(Struct):
    """The address of a leader that the client may not know yet."""

    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("0+", nullable="0+", default=None)
