"""The current leader of a partition in the responses to Produce and Fetch (KIP-951)."""

from __future__ import annotations

from aioproducer.protocol.schema import Struct, int32, string


class LeaderIdAndEpoch(Struct):
    """The current leader; both fields are -1 if the broker does not state it."""

    leader_id: int = int32("0+", default=-1)
    leader_epoch: int = int32("0+", default=-1)


class NodeEndpoint(Struct):
    """The address of a leader that the client may not know yet."""

    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("0+", nullable="0+", default=None)
