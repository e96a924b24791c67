"""Who leads a partition, and who is in sync with it, after something has happened to nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from aioproducer.broker.image import NO_LEADER, PartitionState


def moved(partition: PartitionState, *, isr: list[int] | None = None, leader: int | None = None) -> PartitionState:
    """``partition`` with another ISR or leader: the leader epoch tells leaders apart, the partition epoch changes."""
    leader = partition.leader if leader is None else leader
    last_known_leader = NO_LEADER
    if leader == NO_LEADER:
        last_known_leader = partition.last_known_leader if partition.leader == NO_LEADER else partition.leader
    return replace(
        partition,
        isr=partition.isr if isr is None else isr,
        leader=leader,
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        partition_epoch=partition.partition_epoch + 1,
        last_known_leader=last_known_leader,
    )


def elected(partition: PartitionState, eligible: Collection[int], *, unclean: bool) -> PartitionState:
    """``partition`` as it must be when only the ``eligible`` nodes are in service; itself where nothing changes.

    Nodes out of service leave the ISR, but the ISR never becomes empty: when all of it is out of service it stays as it
    is, because what is acknowledged is nowhere else, and there is no leader until one of it comes back; unless
    ``unclean`` lets the first replica in service lead, whatever it may lack. A leader stays; otherwise the
    last one that was known (it has what may not be replicated yet) or the first replica of the ISR leads.
    """
    isr = [node_id for node_id in partition.isr if node_id in eligible]
    if isr:
        if partition.leader in isr:
            leader = partition.leader
        elif partition.leader == NO_LEADER and partition.last_known_leader in isr:
            leader = partition.last_known_leader
        else:
            leader = next(node_id for node_id in partition.replicas if node_id in isr)
    else:
        survivors = [node_id for node_id in partition.replicas if node_id in eligible] if unclean else []
        leader = survivors[0] if survivors else NO_LEADER
        isr = survivors[:1] or partition.isr
    if leader == partition.leader and isr == partition.isr:
        return partition
    return moved(partition, isr=isr, leader=leader)
