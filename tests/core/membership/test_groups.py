"""Groups of several members against the embedded broker's coordinator: what holds whatever happens to them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.core.membership.events import EventKind, LeaveOperation
from aioproducer.core.membership.states import FENCED, STABLE, UNJOINED
from aioproducer.offsets import OffsetAndMetadata
from aioproducer.record import TopicPartition

from .simulated import POLL_INTERVAL_MS, SESSION_MS, SimulatedMember, World

TOPICS = {"orders": 7, "clicks": 4, "views": 3}
NAMES = ("range", "roundrobin", "sticky", "cooperative-sticky")
# A killed member is noticed after its session, while the others wait for it in the rebalance, and a member whose
# application is silent after the poll interval. Two rebalances follow with a cooperative assignor.
BOUND = (SESSION_MS + 2 * POLL_INTERVAL_MS) / 1000 + 10
FAULTS = (
    "join",
    "leave",
    "kill",
    "pause",
    "disconnect",
    "move",
    "load",
    "silence",
    "subscribe",
    "partitions",
    "commit",
)


def settle(world: World, seconds: float = BOUND) -> None:
    """Wait until each partition has its owner, and check that it stays so."""
    world.run_until(world.is_settled, seconds)
    generation_id = world.group.generation_id
    world.run(2 * SESSION_MS / 1000)
    assert world.is_settled()
    assert world.group.generation_id == generation_id


class Story:
    """Random faults, one after the other."""

    def __init__(self, seed: int, assignor: str, *, has_static: bool) -> None:
        self._random = Random(seed)
        self._assignor = assignor
        self._has_static = has_static
        self._instances = 0
        self._has_new_partitions = False
        self.world = World(self._random, TOPICS)
        self._join()

    def step(self, fault: str) -> None:
        world, random = self.world, self._random
        members = world.alive
        victim = random.choice(members) if members else None
        match fault, victim:
            case "join", _:
                self._join()
            case "move", _:
                world.move_coordinator()
            case "load", _:
                world.is_loading = True
                world.after(random.uniform(0.1, 3), self._loaded)
            case "partitions", SimulatedMember():
                world.topics["clicks"] += 1
                self._has_new_partitions = True
                for member in members:
                    member.refresh_metadata()
            case "leave", SimulatedMember():
                victim.leave(random.choice(list(LeaveOperation)))
            case "kill", SimulatedMember():
                victim.kill()
            case "pause", SimulatedMember():
                victim.pause(random.choice((1.0, SESSION_MS / 1000 + 2, POLL_INTERVAL_MS / 1000 + 8)))
            case "disconnect", SimulatedMember():
                victim.disconnect()
            case "silence", SimulatedMember():
                victim.is_polling = False
                world.after(random.uniform(1, 20), lambda: self._speak(victim))
            case "subscribe", SimulatedMember():
                victim.membership.subscribe(self._topics())
                victim.pump()
            case "commit", SimulatedMember():
                victim.commit(random.randint(0, 100))
            case _:
                pass
        world.run(random.choice((0.01, 0.3, 2.0, 8.0)))

    def end(self) -> None:
        """Let the effects of the last fault end; there is a member in any case."""
        world = self.world
        if not world.alive:
            world.add(self._assignor, sorted(TOPICS))
        world.run(25)
        if self._has_static and self._has_new_partitions:
            # A static leader that returns does not notice what has changed while it was away (KIP-814).
            for member in world.alive:
                if member.is_leader:
                    member.membership.request_rejoin("new partitions")
                    member.pump()

    def _loaded(self) -> None:
        self.world.is_loading = False

    def _speak(self, member: SimulatedMember) -> None:
        member.is_polling = True

    def _topics(self) -> list[str]:
        return self._random.sample(sorted(TOPICS), self._random.randint(1, len(TOPICS)))

    def _join(self) -> None:
        if len(self.world.alive) < 6:
            instance_id = None
            if self._has_static and self._random.random() < 0.5:
                self._instances += 1
                instance_id = f"instance-{self._instances}"
            self.world.add(self._assignor, self._topics(), instance_id=instance_id)


@pytest.mark.parametrize("assignor", NAMES)
# The same stories in each run: whole groups are explored by hand, with more examples.
@settings(max_examples=40, derandomize=True)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(FAULTS), min_size=1, max_size=14), st.booleans())
def test_each_partition_has_one_owner_after_any_faults(
    assignor: str, seed: int, faults: list[str], has_static: bool
) -> None:
    story = Story(seed, assignor, has_static=has_static)
    for fault in faults:
        story.step(fault)
    story.end()
    settle(story.world)


@pytest.mark.parametrize("assignor", NAMES)
def test_members_share_the_partitions(assignor: str) -> None:
    world = World(Random(1), TOPICS)
    members = [world.add(assignor, sorted(TOPICS)) for _ in range(4)]
    settle(world, 10)
    assert all(member.membership.assignment for member in members)
    assert all(member.events[-1] is EventKind.ASSIGNED for member in members)


def test_eager_members_give_up_everything_in_a_rebalance() -> None:
    world = World(Random(2), TOPICS)
    first = world.add("range", ["orders"])
    settle(world, 10)
    assert first.events == [EventKind.ASSIGNED]
    second = world.add("range", ["orders"])
    settle(world, 10)
    assert first.events == [EventKind.ASSIGNED, EventKind.REVOKED, EventKind.ASSIGNED]
    assert second.events == [EventKind.ASSIGNED]


def test_cooperative_members_read_on_during_a_rebalance() -> None:
    world = World(Random(3), {"orders": 6})
    first = world.add("cooperative-sticky", ["orders"])
    settle(world, 10)
    world.add("cooperative-sticky", ["orders"])
    fewest = 6

    def is_settled() -> bool:
        nonlocal fewest
        fewest = min(fewest, len(first.membership.assignment))
        return world.is_settled()

    world.run_until(is_settled, 20)
    assert fewest == 3
    assert EventKind.LOST not in first.events


def test_member_that_is_paused_beyond_its_session_loses_its_partitions_and_comes_back() -> None:
    world = World(Random(4), TOPICS)
    first, second = world.add("range", ["orders"]), world.add("range", ["orders"])
    settle(world, 10)
    first.pause(SESSION_MS / 1000 + 3)
    world.run_until(lambda: len(second.membership.assignment) == TOPICS["orders"], SESSION_MS / 1000 + 5)
    settle(world)
    assert EventKind.LOST in first.events
    assert len(first.membership.assignment) in (3, 4)


def test_member_whose_application_is_silent_leaves_and_joins_again_when_it_asks() -> None:
    world = World(Random(5), TOPICS)
    first, second = world.add("range", ["orders"]), world.add("range", ["orders"])
    settle(world, 10)
    first.is_polling = False
    world.run(POLL_INTERVAL_MS / 1000 + 3)
    assert first.membership.state is UNJOINED
    assert len(second.membership.assignment) == TOPICS["orders"]
    first.is_polling = True
    settle(world)
    assert first.membership.state is STABLE


def test_static_member_that_restarts_keeps_its_partitions_without_a_rebalance() -> None:
    world = World(Random(6), TOPICS)
    first = world.add("range", ["orders"], instance_id="a")
    world.add("range", ["orders"], instance_id="b")
    settle(world, 10)
    generation_id, before = world.group.generation_id, first.membership.assignment
    first.leave()
    world.run(2)
    assert not first.is_alive
    again = world.add("range", ["orders"], instance_id="a")
    settle(world, 10)
    assert world.group.generation_id == generation_id
    assert again.membership.assignment == before


def test_static_member_is_fenced_by_another_one_with_its_instance_id() -> None:
    world = World(Random(7), TOPICS)
    first = world.add("range", ["orders"], instance_id="a")
    settle(world, 10)
    world.add("range", ["orders"], instance_id="a")
    world.run(5)
    assert first.membership.state is FENCED
    assert not first.membership.assignment
    assert first.events[-1] is EventKind.LOST
    first.kill()
    settle(world)


def test_leave_group_makes_a_static_member_leave() -> None:
    world = World(Random(8), TOPICS)
    first = world.add("range", ["orders"], instance_id="a")
    second = world.add("range", ["orders"])
    settle(world, 10)
    first.leave(LeaveOperation.LEAVE_GROUP)
    world.run_until(lambda: len(second.membership.assignment) == TOPICS["orders"], 5)


def test_remain_in_group_lets_the_group_wait_for_the_session() -> None:
    world = World(Random(9), TOPICS)
    first, second = world.add("range", ["orders"]), world.add("range", ["orders"])
    settle(world, 10)
    result = first.leave(LeaveOperation.REMAIN_IN_GROUP)
    world.run(2)
    assert result.done
    assert len(second.membership.assignment) < TOPICS["orders"]
    settle(world)


def test_new_partitions_are_assigned_when_the_leader_sees_them() -> None:
    world = World(Random(10), {"orders": 3})
    members = [world.add("range", ["orders"]) for _ in range(2)]
    settle(world, 10)
    world.topics["orders"] = 5
    for member in members:
        member.refresh_metadata()
    settle(world, 10)


def test_commit_during_a_revocation_is_accepted() -> None:
    world = World(Random(11), {"orders": 2})
    first = world.add("range", ["orders"])
    settle(world, 10)
    first.is_polling = False
    world.add("range", ["orders"])
    world.run_until(lambda: first.membership.event is not None, 5)
    assert first.membership.assignment == frozenset()
    offsets = {TopicPartition("orders", 0): OffsetAndMetadata(5)}
    result = first.membership.commit(offsets, world.now + 5)
    first.pump()
    world.run(1)
    assert result.done
    assert result.error is None
    assert world.committed == {TopicPartition("orders", 0): 5}
    first.is_polling = True
    settle(world)
