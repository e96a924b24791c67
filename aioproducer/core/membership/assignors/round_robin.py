"""The round-robin assignor: the partitions of all topics go to one member after the other."""

from __future__ import annotations

from collections.abc import Mapping

from aioproducer.core.membership.assignors.base import Assignments, Assignor, sorted_members
from aioproducer.core.membership.subscription import Subscription, TopicRacks
from aioproducer.record import TopicPartition


class RoundRobinAssignor(Assignor):
    """One partition after the other to the next member that is subscribed to its topic (``RoundRobinAssignor``)."""

    name = "roundrobin"

    def _assign(self, topics: TopicRacks, members: Mapping[str, Subscription]) -> Assignments:
        order = sorted_members(members)
        assignments: Assignments = {member_id: [] for member_id in members}
        turn = 0
        for topic in sorted(topics):
            for partition in range(len(topics[topic])):
                while topic not in members[order[turn]].topics:
                    turn = (turn + 1) % len(order)
                assignments[order[turn]].append(TopicPartition(topic, partition))
                turn = (turn + 1) % len(order)
        return assignments
