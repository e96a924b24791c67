"""The leader and the ISR of a partition after nodes have come or gone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from aioproducer.broker.image import NO_LEADER, PartitionState


def moved(partition: PartitionState, *, isr: list[int] | None = None, leader: int | None = None) -> PartitionState:
    """Return ``partition`` with another ISR or leader.

    The partition epoch rises with each change, the leader epoch with each new leader.
    """
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
    """Return ``partition`` with only the ``eligible`` nodes in service, or the same object if nothing changes.

    Nodes out of service leave the ISR, but the ISR never becomes empty. If all of its nodes are out of service, it
    stays as it is, because no other node has all acknowledged records. The partition then has no leader until one of
    them returns, unless ``unclean`` allows the first replica in service, which may lack records.

    A leader in service stays. Otherwise the last known leader is preferred, which may have records that are not
    replicated yet, then the first replica of the ISR.
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
