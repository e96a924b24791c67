"""One classic group: its response to each event, and its changes."""

from __future__ import annotations

import struct

import pytest

from aioproducer.broker.groups.codes import Code
from aioproducer.broker.groups.describing import described
from aioproducer.broker.groups.group import Group
from aioproducer.broker.groups.states import GroupSettings, GroupState
from aioproducer.protocol.messages.groups import MemberIdentity

from .driving import REBALANCE_MS, SESSION_MS, WALL_MS, Driver, subscription


def test_the_first_member_becomes_leader_and_gets_its_own_assignment() -> None:
    driver = Driver()
    required = driver.join()
    assert required.code == Code.MEMBER_ID_REQUIRED
    assert required.answer.member_id == "client-1"
    assert driver.group.state is GroupState.EMPTY
    join = driver.join("client-1")
    assert not join.answers
    driver.complete_join()
    assert join.code == Code.NONE
    assert (join.answer.generation_id, join.answer.leader, join.answer.protocol_name) == (1, "client-1", "range")
    assert [member.member_id for member in join.answer.members] == ["client-1"]
    sync = driver.sync(join, {"client-1": b"all"})
    assert sync.answer.assignment == b"all"
    assert (sync.answer.protocol_type, sync.answer.protocol_name) == ("consumer", "range")
    assert driver.group.state is GroupState.STABLE
    (write,) = driver.written
    assert write.value.members[0].assignment == b"all"
    assert driver.group.subscribed_topics == {"orders"}


def test_before_version_4_no_member_id_is_required() -> None:
    driver = Driver()
    join = driver.join(version=3)
    driver.complete_join()
    assert join.code == Code.NONE
    assert join.answer.member_id == "client-1"


def test_a_pending_member_that_never_joins_is_dropped() -> None:
    driver = Driver()
    first = driver.stable(1)[0]
    pending = driver.join().answer.member_id
    assert driver.group.pending_members == {pending}
    driver.advance(SESSION_MS / 2000)
    assert driver.heartbeat(first) == Code.NONE
    driver.advance(SESSION_MS / 2000)
    assert not driver.group.pending_members
    assert driver.group.state is GroupState.STABLE
    assert driver.join(pending).code == Code.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_a_pending_member() -> None:
    driver = Driver()
    first = driver.stable(1)[0]
    second = driver.join(version=3)
    pending = driver.join().answer.member_id
    again = driver.join(first.answer.member_id)
    assert not again.answers
    assert driver.leave(MemberIdentity(member_id=pending))[0].error_code == Code.NONE
    assert again.code == second.code == Code.NONE


def test_a_pending_member_cannot_become_static() -> None:
    driver = Driver()
    pending = driver.join().answer.member_id
    assert driver.join(pending, instance_id="one").code == Code.UNKNOWN_SERVER_ERROR


def test_the_initial_rebalance_waits_longer_while_members_join() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=3000))
    joins = [driver.enter()]
    driver.advance(2)
    joins.append(driver.enter())
    driver.advance(2)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    driver.advance(2)
    assert [join.code for join in joins] == [0, 0]
    assert {join.answer.generation_id for join in joins} == {1}


def test_the_initial_rebalance_ends_with_the_rebalance_timeout() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=3000))
    joins = []
    for _ in range(9):
        joins.append(driver.enter(rebalance_ms=6000))
        driver.advance(1)
    assert joins[0].code == Code.NONE
    assert driver.group.generation_id == 1


def test_a_group_is_empty_if_all_members_leave_during_the_initial_rebalance() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=3000))
    join = driver.join(version=3)
    (member_id,) = driver.group.members
    assert driver.leave(MemberIdentity(member_id=member_id))[0].error_code == Code.NONE
    assert join.code == Code.UNKNOWN_MEMBER_ID
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    driver.advance(3)
    assert driver.group.state is GroupState.EMPTY


def test_a_new_member_makes_all_members_join_again() -> None:
    driver = Driver()
    first = driver.stable(1)[0]
    second = driver.enter()
    assert driver.heartbeat(first) == Code.REBALANCE_IN_PROGRESS
    assert driver.sync(first).code == Code.REBALANCE_IN_PROGRESS
    assert not second.answers
    again = driver.join(first.answer.member_id)
    assert again.answer.generation_id == second.answer.generation_id == 2
    assert again.answer.leader == second.answer.leader == first.answer.member_id
    assert len(again.answer.members) == 2
    assert second.answer.members == []


def test_a_member_that_does_not_join_again_in_time_is_removed() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    again = driver.join(leader.answer.member_id)
    for _ in range(REBALANCE_MS // 5000):
        driver.advance(5)
        driver.heartbeat(follower)
    assert again.code == Code.NONE
    assert [member.member_id for member in again.answer.members] == [leader.answer.member_id]
    assert driver.heartbeat(follower) == Code.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_join_is_replaced() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    again = driver.join(follower.answer.member_id, metadata=subscription("payments"))
    driver.advance(SESSION_MS / 1000)
    assert again.answer.leader == follower.answer.member_id
    assert len(again.answer.members) == 1
    assert driver.group.subscribed_topics == {"payments"}
    assert driver.heartbeat(leader) == Code.UNKNOWN_MEMBER_ID


def test_a_session_expires_unless_heartbeats_extend_it() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    driver.advance(SESSION_MS / 1000 - 1)
    assert driver.heartbeat(leader) == Code.NONE
    driver.advance(2)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert driver.heartbeat(follower) == Code.UNKNOWN_MEMBER_ID
    driver.advance(SESSION_MS / 1000)
    assert driver.group.state is GroupState.EMPTY
    assert driver.group.generation_id == 2
    assert driver.written[-1].value.members == []


def test_new_members_do_not_wait_for_ever() -> None:
    """Their clients may have ended, as nothing was received from them since."""
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=0, new_member_join_timeout_ms=5000))
    driver.stable(1, session_ms=60_000, rebalance_ms=60_000)
    new = driver.enter()
    driver.advance(5)
    assert new.code == Code.UNKNOWN_MEMBER_ID
    assert new.answer.member_id == ""


def test_a_member_that_waits_for_a_rebalance_is_alive() -> None:
    driver = Driver()
    leader, follower = driver.stable(2, session_ms=6000)
    waiting = driver.join(leader.answer.member_id)
    for _ in range(5):
        driver.advance(5)
        assert driver.heartbeat(follower) == Code.REBALANCE_IN_PROGRESS
    assert not waiting.answers


def test_a_leader_that_never_syncs_is_removed() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    joins = [driver.join(join.answer.member_id, metadata=subscription("a")) for join in (leader, follower)]
    waiting = driver.sync(joins[1])
    for _ in range(REBALANCE_MS // 5000):
        assert not waiting.answers
        assert driver.heartbeat(joins[0]) == Code.NONE
        driver.advance(5)
    assert waiting.code == Code.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(joins[0]) == Code.UNKNOWN_MEMBER_ID
    alone = driver.join(follower.answer.member_id)
    assert alone.answer.leader == follower.answer.member_id


def test_followers_that_never_sync_are_removed() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    joins = [driver.join(join.answer.member_id, metadata=subscription("a")) for join in (leader, follower)]
    assert driver.sync(joins[0]).code == Code.NONE
    assert driver.group.state is GroupState.STABLE
    for _ in range(REBALANCE_MS // 5000):
        driver.advance(5)
        driver.heartbeat(joins[0])
        driver.heartbeat(joins[1])
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert list(driver.group.members) == [leader.answer.member_id]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"generation_id": 7}, Code.ILLEGAL_GENERATION),
        ({"member_id": "nobody"}, Code.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "one"}, Code.UNKNOWN_MEMBER_ID),
        ({"protocol_type": None, "protocol_name": None}, Code.NONE),
    ],
)
def test_sync_is_for_members_of_this_generation(changes: dict[str, object], code: int) -> None:
    driver = Driver()
    (member,) = driver.stable(1)
    assert driver.sync(member, **changes).code == code


def test_a_sync_of_an_empty_group_has_an_unknown_member() -> None:
    driver = Driver()
    (member,) = driver.stable(1)
    assert driver.leave_as(member) == Code.NONE
    assert driver.sync(member).code == Code.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(member) == Code.UNKNOWN_MEMBER_ID
    assert driver.leave_as(member) == Code.UNKNOWN_MEMBER_ID


def test_a_repeated_join_or_sync_replaces_the_first() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    first = driver.join(leader.answer.member_id)
    second = driver.join(leader.answer.member_id)
    assert first.code == Code.REBALANCE_IN_PROGRESS
    driver.join(follower.answer.member_id)
    assert second.code == Code.NONE
    later = driver.join(follower.answer.member_id)
    assert later.answer.generation_id == second.answer.generation_id
    waits = driver.sync(later)
    again = driver.sync(later)
    assert waits.code == Code.REBALANCE_IN_PROGRESS
    driver.sync(second, {follower.answer.member_id: b"mine"})
    assert again.answer.assignment == b"mine"


def test_a_follower_that_joins_again_unchanged_gets_its_generation() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    again = driver.join(follower.answer.member_id)
    assert again.answer.generation_id == follower.answer.generation_id
    assert again.answer.members == []
    assert driver.group.state is GroupState.STABLE
    driver.join(leader.answer.member_id)
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_the_assignor_that_most_members_prefer_is_chosen() -> None:
    driver = Driver()
    joins = [
        driver.enter(names=("range", "sticky", "mine")),
        driver.enter(names=("sticky", "range", "sticky")),
        driver.enter(names=("sticky", "range")),
    ]
    assert driver.enter_refused(names=("other",)) == Code.INCONSISTENT_GROUP_PROTOCOL
    assert driver.enter_refused(names=("mine",)) == Code.INCONSISTENT_GROUP_PROTOCOL
    assert driver.enter_refused(protocol_type="connect") == Code.INCONSISTENT_GROUP_PROTOCOL
    driver.complete_join()
    assert {join.answer.protocol_name for join in joins} == {"sticky"}


@pytest.mark.parametrize(("names", "protocol_type"), [((), "consumer"), (("range",), "")])
def test_an_empty_group_requires_a_protocol(names: tuple[str, ...], protocol_type: str) -> None:
    driver = Driver()
    join = driver.join(names=names, protocol_type=protocol_type)
    assert join.code == Code.INCONSISTENT_GROUP_PROTOCOL


def test_a_full_group_accepts_no_member() -> None:
    driver = Driver(GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    leader, follower = driver.stable(2)
    assert driver.join().code == Code.GROUP_MAX_SIZE_REACHED
    waits = driver.join(leader.answer.member_id)
    pending = driver.join().answer.member_id
    again = driver.join(follower.answer.member_id)
    assert not waits.answers
    # Two ids were given to clients for one free place.
    assert driver.join(pending).code == Code.GROUP_MAX_SIZE_REACHED
    driver.advance(REBALANCE_MS / 1000)
    assert waits.code == again.code == Code.NONE


def test_a_loaded_group_that_is_too_large_loses_the_last_members() -> None:
    driver = Driver()
    joins = driver.stable(3)
    small = GroupSettings(initial_rebalance_delay_ms=0, max_size=2)
    loaded = Driver(small, group=Group.load("group", driver.group.value(), small, driver.unique))
    loaded.group.resume(loaded.moment)
    assert loaded.group.state is GroupState.PREPARING_REBALANCE
    again = [loaded.join(join.answer.member_id) for join in joins]
    assert again[2].code == Code.GROUP_MAX_SIZE_REACHED
    loaded.advance(REBALANCE_MS / 1000)
    assert again[0].code == again[1].code == Code.NONE


def test_a_leaving_member_starts_a_rebalance() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    assert driver.leave_as(leader) == Code.NONE
    again = driver.join(follower.answer.member_id)
    assert again.answer.leader == follower.answer.member_id
    responses = driver.leave(
        MemberIdentity(member_id="nobody"),
        MemberIdentity(member_id="", group_instance_id="none"),
        MemberIdentity(member_id=""),
    )
    assert {response.error_code for response in responses} == {Code.UNKNOWN_MEMBER_ID}
    assert driver.group.state is GroupState.COMPLETING_REBALANCE


def test_a_removed_member_that_waits_is_answered() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    joins = [driver.join(join.answer.member_id, metadata=subscription("a")) for join in (leader, follower)]
    waits = driver.sync(joins[1])
    assert driver.leave_as(follower) == Code.NONE
    assert waits.code == Code.UNKNOWN_MEMBER_ID


# Static members (KIP-345)


def stable_static(driver: Driver, *instance_ids: str) -> list[str]:
    joins = [driver.join(instance_id=instance_id) for instance_id in instance_ids]
    driver.complete_join()
    leader = next(join for join in joins if join.answer.member_id == join.answer.leader)
    everybody = {join.answer.member_id: (join.request.group_instance_id or "").encode() for join in joins}
    assert driver.sync(leader, everybody).code == Code.NONE
    for join in joins:
        assert driver.sync(join).answer.assignment == (join.request.group_instance_id or "").encode()
    return [join.answer.member_id for join in joins]


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("instance_id", ["one", "two"])
def test_a_static_member_rejoins_without_a_rebalance(version: int, instance_id: str) -> None:
    driver = Driver()
    ids = dict(zip(["one", "two"], stable_static(driver, "one", "two"), strict=True))
    leader_before = driver.group.leader_id
    again = driver.join(instance_id=instance_id, version=version)
    assert again.code == Code.NONE
    assert again.answer.generation_id == 1
    assert again.answer.member_id not in ids.values()
    assert driver.group.state is GroupState.STABLE
    was_leader = ids[instance_id] == leader_before
    assert again.answer.skip_assignment == (was_leader and version >= 9)
    assert len(again.answer.members) == (2 if was_leader and version >= 9 else 0)
    assert (again.answer.leader == again.answer.member_id) == (was_leader and version >= 9)
    assert driver.sync(again).answer.assignment == instance_id.encode()
    kept = {member.group_instance_id: member.member_id for member in driver.written[-1].value.members}
    assert kept[instance_id] == again.answer.member_id
    # The previous owner of the membership is fenced.
    old = MemberIdentity(member_id=ids[instance_id], group_instance_id=instance_id)
    assert driver.leave(old)[0].error_code == Code.FENCED_INSTANCE_ID
    assert driver.join(ids[instance_id], instance_id=instance_id).code == Code.FENCED_INSTANCE_ID
    assert driver.group.membership.validate_member(ids[instance_id], instance_id) == Code.FENCED_INSTANCE_ID
    assert driver.group.heartbeat(ids[instance_id], instance_id, 1, driver.moment) == Code.FENCED_INSTANCE_ID


def test_a_failed_write_of_a_replaced_static_member_restores_the_old_one() -> None:
    driver = Driver()
    (old,) = stable_static(driver, "one")
    driver.writes_at_once = False
    before = driver.group.value()
    again = driver.join(instance_id="one", metadata=subscription("payments"), session_ms=7000)
    assert not again.answers
    driver.write(Code.COORDINATOR_NOT_AVAILABLE)
    assert again.code == Code.COORDINATOR_NOT_AVAILABLE
    assert driver.group.value() == before
    assert driver.group.heartbeat(old, "one", 1, driver.moment) == Code.NONE


def test_a_static_member_replaced_twice_answers_each_once() -> None:
    driver = Driver()
    stable_static(driver, "one")
    driver.writes_at_once = False
    first, second = driver.join(instance_id="one"), driver.join(instance_id="one")
    assert first.code == Code.FENCED_INSTANCE_ID
    driver.write()
    assert not second.answers
    driver.write()
    assert second.code == Code.NONE


def test_a_static_member_that_rejoins_before_its_sync_syncs_under_its_new_id() -> None:
    driver = Driver()
    joins = [driver.join(instance_id=instance_id) for instance_id in ("one", "two")]
    driver.complete_join()
    leader, follower = sorted(joins, key=lambda join: join.answer.member_id != join.answer.leader)
    assert driver.sync(leader, {}).code == Code.NONE
    again = driver.join(instance_id=follower.request.group_instance_id)
    assert again.code == Code.NONE
    assert driver.group.pending_syncs == {again.answer.member_id}


def test_a_static_member_has_a_session_after_its_replacement_was_written() -> None:
    driver = Driver()
    stable_static(driver, "one")
    driver.writes_at_once = False
    again = driver.join(instance_id="one")
    driver.advance(SESSION_MS / 1000 + 1)
    driver.write()
    assert again.code == Code.NONE
    assert driver.timers_of(again.answer.member_id)


def test_the_replacement_of_a_static_member_may_end_during_a_rebalance() -> None:
    driver = Driver()
    one, _ = stable_static(driver, "one", "two")
    driver.writes_at_once = False
    two = driver.join(instance_id="two")
    leads = driver.join(one, instance_id="one")
    driver.write()
    assert two.answer.generation_id == leads.answer.generation_id == 2


def test_a_static_member_that_changes_the_protocol_makes_all_join_again() -> None:
    driver = Driver()
    driver.join(instance_id="one", names=("range", "sticky"))
    driver.complete_join()
    (one,) = driver.group.members
    driver.group.state = GroupState.STABLE
    again = driver.join(instance_id="one", names=("sticky",))
    assert again.answer.protocol_name == "sticky"
    assert again.answer.generation_id == 2
    assert one not in driver.group.members


def test_a_static_member_replaced_while_its_leader_assigns() -> None:
    driver = Driver()
    joins = [driver.join(instance_id=name) for name in ("one", "two")]
    driver.complete_join()
    waits = driver.sync(joins[1])
    again = driver.join(instance_id="two")
    assert waits.code == Code.FENCED_INSTANCE_ID
    assert not again.answers
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    leads = driver.join(joins[0].answer.member_id, instance_id="one")
    assert leads.answer.generation_id == again.answer.generation_id == 2


def test_a_static_member_replaced_while_it_joins() -> None:
    driver = Driver()
    one, two = stable_static(driver, "one", "two")
    first = driver.join(one, instance_id="one", metadata=subscription("a"))
    second = driver.join(instance_id="one", metadata=subscription("a"))
    assert first.code == Code.FENCED_INSTANCE_ID
    other = driver.join(two, instance_id="two", metadata=subscription("a"))
    assert second.code == other.code == Code.NONE


def test_static_members_stay_when_they_do_not_join_and_leave_with_their_session() -> None:
    driver = Driver()
    joins = [driver.join(instance_id=name, session_ms=120_000) for name in ("one", "two")]
    driver.complete_join()
    driver.sync(joins[0])
    driver.sync(joins[1])
    again = driver.join(joins[0].answer.member_id, instance_id="one", session_ms=120_000)
    driver.advance(REBALANCE_MS / 1000)
    assert len(again.answer.members) == 2
    driver.sync(again)
    driver.advance(REBALANCE_MS / 1000)
    # The member that never joined did not sync either.
    assert list(driver.group.membership.static_members) == ["one"]


def test_a_rebalance_without_joining_static_members_ends_with_their_sessions() -> None:
    driver = Driver()
    one, two = [driver.join(instance_id=name, session_ms=70_000) for name in ("one", "two")]
    driver.complete_join()
    driver.sync(one)
    driver.sync(two)
    assert driver.leave(MemberIdentity(member_id="", group_instance_id="two"))[0].error_code == Code.NONE
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    driver.advance(REBALANCE_MS / 1000)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    driver.advance(40)
    assert driver.group.state is GroupState.EMPTY


# Writes


def test_an_assignment_takes_effect_when_it_is_written() -> None:
    driver = Driver(writes_at_once=False)
    joins = [driver.enter(), driver.enter()]
    driver.complete_join()
    follower = driver.sync(joins[1])
    leader = driver.sync(joins[0], {joins[0].answer.member_id: b"a", "stranger": b"s"})
    assert not leader.answers
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    driver.write()
    assert (leader.answer.assignment, follower.answer.assignment) == (b"a", b"")
    assert driver.group.state is GroupState.STABLE


def test_a_failed_write_of_an_assignment_makes_all_members_join_again() -> None:
    driver = Driver(writes_at_once=False)
    join = driver.enter()
    driver.complete_join()
    sync = driver.sync(join, {join.answer.member_id: b"a"})
    driver.write(Code.NOT_COORDINATOR)
    assert sync.code == Code.NOT_COORDINATOR
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert driver.group.value().members[0].assignment == b""


def test_an_assignment_that_is_written_too_late_is_ignored() -> None:
    driver = Driver(writes_at_once=False)
    join = driver.enter()
    driver.complete_join()
    sync = driver.sync(join, {join.answer.member_id: b"a"})
    driver.enter()
    assert sync.code == Code.REBALANCE_IN_PROGRESS
    driver.write()
    assert driver.group.state is GroupState.PREPARING_REBALANCE


@pytest.mark.parametrize("phase", ["joining", "syncing", "writing"])
def test_waiting_requests_are_answered_when_the_group_closes(phase: str) -> None:
    driver = Driver(writes_at_once=False)
    joins = [driver.enter(), driver.enter()]
    waits = list(joins)
    if phase != "joining":
        driver.complete_join()
        waits = [driver.sync(joins[1])]
    if phase == "writing":
        waits.append(driver.sync(joins[0]))
    driver.group.close(Code.NOT_COORDINATOR)
    assert {wait.code for wait in waits} == {Code.NOT_COORDINATOR}
    assert driver.group.timers.wake_at is None
    if driver.waiting:
        driver.write()
    assert driver.group.state is GroupState.DEAD
    assert driver.join().code == Code.COORDINATOR_NOT_AVAILABLE
    if phase != "joining":
        assert driver.sync(joins[0]).code == Code.COORDINATOR_NOT_AVAILABLE
        assert driver.heartbeat(joins[0]) == Code.COORDINATOR_NOT_AVAILABLE
    assert driver.group.validate_offset_commit("", None, -1) == Code.COORDINATOR_NOT_AVAILABLE


def test_a_loaded_group_continues() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    loaded = Driver(group=Group.load("group", driver.group.value(), driver.settings, driver.unique))
    loaded.group.resume(loaded.moment)
    assert loaded.group.value() == driver.group.value()
    assert described(loaded.group) == described(driver.group)
    assert loaded.group.subscribed_topics == {"orders"}
    assert loaded.heartbeat(leader) == loaded.heartbeat(follower) == Code.NONE
    loaded.advance(SESSION_MS / 1000)
    loaded.advance(SESSION_MS / 1000)
    assert loaded.group.state is GroupState.EMPTY


def test_a_member_without_a_rebalance_timeout_blocks_nothing() -> None:
    driver = Driver()
    join = driver.enter(rebalance_ms=-5)
    driver.complete_join()
    assert join.code == Code.NONE
    assert driver.group.state is GroupState.EMPTY


# Offsets


@pytest.mark.parametrize(
    ("member", "generation", "instance_id", "code"),
    [
        ("own", 1, None, Code.NONE),
        ("own", 2, None, Code.ILLEGAL_GENERATION),
        ("own", -1, None, Code.ILLEGAL_GENERATION),
        ("nobody", 1, None, Code.UNKNOWN_MEMBER_ID),
        ("", -1, None, Code.UNKNOWN_MEMBER_ID),
        ("", -1, "one", Code.UNKNOWN_MEMBER_ID),
    ],
)
def test_members_of_the_generation_commit(member: str, generation: int, instance_id: str | None, code: int) -> None:
    driver = Driver()
    (own,) = driver.stable(1)
    member_id = own.answer.member_id if member == "own" else member
    assert driver.group.validate_offset_commit(member_id, instance_id, generation) == code


def test_commits_are_refused_while_assignments_are_awaited() -> None:
    driver = Driver()
    join = driver.enter()
    assert driver.group.validate_offset_commit("", None, -1) == Code.UNKNOWN_MEMBER_ID
    driver.complete_join()
    assert driver.group.validate_offset_commit(join.answer.member_id, None, 1) == Code.REBALANCE_IN_PROGRESS


def test_commits_keep_a_session_alive() -> None:
    driver = Driver()
    (own,) = driver.stable(1)
    for _ in range(3):
        driver.advance(SESSION_MS / 1000 - 1)
        driver.group.committed_offsets(own.answer.member_id, driver.moment)
    assert own.answer.member_id in driver.group.members
    driver.group.committed_offsets("nobody", driver.moment)


@pytest.mark.parametrize("version", [-1, 1, 3, 9])
def test_subscriptions_are_read_from_later_versions_by_version_0(version: int) -> None:
    driver = Driver()
    driver.enter(metadata=struct.pack(">h", version) + subscription("orders", version=0)[2:])
    driver.complete_join()
    assert driver.group.subscribed_topics == {"orders"}
    assert not driver.group.is_subscribed_to("anything")


def test_malformed_subscriptions_are_unknown() -> None:
    driver = Driver()
    driver.enter(metadata=b"?")
    driver.complete_join()
    assert driver.group.subscribed_topics is None
    assert driver.group.is_subscribed_to("anything")
    others = Driver()
    others.enter(protocol_type="connect")
    others.complete_join()
    assert not others.group.is_subscribed_to("anything")


def test_the_time_of_a_state_is_its_start() -> None:
    driver = Driver()
    assert driver.group.state_since_ms == WALL_MS
    (own,) = driver.stable(1)
    driver.advance(5)
    driver.leave_as(own)
    assert driver.group.state_since_ms == driver.moment.wall_ms


def test_an_assignment_of_an_earlier_generation_is_ignored() -> None:
    driver = Driver(writes_at_once=False)
    join = driver.enter()
    driver.complete_join()
    first = driver.sync(join, {join.answer.member_id: b"old"})
    again = driver.join(join.answer.member_id, metadata=subscription("payments"))
    assert first.code == Code.REBALANCE_IN_PROGRESS
    second = driver.sync(again, {join.answer.member_id: b"new"})
    driver.write()
    assert not second.answers
    driver.write()
    assert second.answer.assignment == b"new"
