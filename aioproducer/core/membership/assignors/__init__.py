"""The assignors of Kafka; each one's results equal those of the class of its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aioproducer.core.membership.assignors.base import Assignments, Assignor, RebalanceProtocol
from aioproducer.core.membership.assignors.range import RangeAssignor
from aioproducer.core.membership.assignors.round_robin import RoundRobinAssignor
from aioproducer.core.membership.assignors.sticky import CooperativeStickyAssignor, StickyAssignor

__all__ = [
    "ASSIGNORS",
    "Assignments",
    "Assignor",
    "CooperativeStickyAssignor",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
]

ASSIGNORS: Mapping[str, Callable[[], Assignor]] = {
    RangeAssignor.name: RangeAssignor,
    RoundRobinAssignor.name: RoundRobinAssignor,
    StickyAssignor.name: StickyAssignor,
    CooperativeStickyAssignor.name: CooperativeStickyAssignor,
}
"""The assignors by the names that ``partition.assignment.strategy`` and JoinGroup have for them."""
