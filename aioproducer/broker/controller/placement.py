"""The nodes of a new partition's replicas: round robin, leaders from a rotating start, in different racks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import zip_longest

from aioproducer.broker.image import BrokerRegistration
from aioproducer.errors import InvalidReplicationFactorError


def _by_rack_in_turn(nodes: Iterable[BrokerRegistration]) -> list[BrokerRegistration]:
    """Return the nodes in an order in which neighbours are in different racks, as far as possible."""
    racks: dict[str, list[BrokerRegistration]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node.node_id):
        racks[node.rack or ""].append(node)
    rounds = zip_longest(*(racks[rack] for rack in sorted(racks)))
    return [node for one_of_each in rounds for node in one_of_each if node is not None]


def place(
    nodes: Iterable[BrokerRegistration],
    eligible: Collection[int],
    *,
    start: int,
    num_partitions: int,
    replication_factor: int,
) -> list[list[int]]:
    """Return the replicas of ``num_partitions`` new partitions, the preferred leader of each first.

    Leaders rotate over the ``eligible`` nodes (alive and not shutting down), beginning with the ``start``-th. Followers
    are on the nodes after the leader, shifted by one in each round. Otherwise all partitions of a node would move to
    the same neighbour when it dies. Racks without a replica are preferred. A node that is not eligible is used only if
    there are too few others.

    Raises:
        InvalidReplicationFactorError: there are fewer nodes than replicas, or no node is eligible.
    """
    in_turn = _by_rack_in_turn(nodes)
    if replication_factor > len(in_turn):
        raise InvalidReplicationFactorError(
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(in_turn)} broker(s) are registered."
        )
    leaders = [node for node in in_turn if node.node_id in eligible]
    if not leaders:
        raise InvalidReplicationFactorError(
            f"Unable to replicate the partition {replication_factor} time(s): All brokers are currently fenced or in "
            "controlled shutdown."
        )
    placed = []
    for number in range(start, start + num_partitions):
        leader = leaders[number % len(leaders)]
        position = in_turn.index(leader)
        others = in_turn[position + 1 :] + in_turn[:position]
        shift = number // len(leaders) % len(others) if others else 0
        others = others[shift:] + others[:shift]
        chosen = [leader]
        while len(chosen) < replication_factor:
            racks = [node.rack for node in chosen]
            best = min(others, key=lambda node: (node.node_id not in eligible, racks.count(node.rack)))
            others.remove(best)
            chosen.append(best)
        placed.append([node.node_id for node in chosen])
    return placed
