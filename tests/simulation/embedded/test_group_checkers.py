"""The rules about consumer groups, over histories that a test writes: one that holds, and what each rule finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aioproducer.testing import StoredRecord
from tests.simulation.embedded import group_checkers
from tests.simulation.embedded.checkers import Evidence
from tests.simulation.embedded.history import CommitHistory, GroupHistory, History, Tenure
from tests.simulation.embedded.story import RESULTS

_PLACE = ("t", 0)
_RESULTS = (RESULTS, 0)


def _record(topic: str, offset: int) -> StoredRecord:
    return StoredRecord(topic, 0, offset, 0, None, b"%d" % offset, ())


def _tenure(member: str, began_at: float, *offsets: int, generation: int) -> Tenure:
    return Tenure(member, _PLACE, began_at, generation, [[(offset, b"%d" % offset) for offset in offsets]])


def _group(*, transforms: bool = False) -> GroupHistory:
    """Offset 2 of the partition has a marker. The member ``a`` has read two records, ``b`` the last two."""
    group = GroupHistory("g", committed=True, commits_itself=True, transforms=transforms, topics=["t"])
    group.tenures += [_tenure("a", 0.0, 0, 1, generation=1), _tenure("b", 5.0, 3, 4, generation=2)]
    group.commits.append(CommitHistory("a", {_PLACE: 2}, 3.0, 4.0, "accepted"))
    group.processed[_PLACE] = [(1.0, 0), (2.0, 1), (6.0, 3), (7.0, 4)]
    group.samples += [(4.0, {_PLACE: 2}), (8.0, {_PLACE: 5})]
    group.origins = {b"%d" % number: (_PLACE, offset) for number, offset in enumerate([0, 1, 3, 4])}
    return group


def _broken(group: GroupHistory, results: range = range(4)) -> dict[str, list[str]]:
    """What the rules find, by the name of the rule."""
    records = {
        _PLACE: [_record("t", offset) for offset in (0, 1, 3, 4)],
        _RESULTS: [_record(RESULTS, offset) for offset in results],
    }
    evidence = Evidence(History(groups=[group]), records, records, {})
    found = {check.__name__: list(check(evidence)) for check in group_checkers.ALL}
    return {name: what for name, what in found.items() if what}


@pytest.mark.parametrize("transforms", [False, True])
def test_every_rule_holds_for_a_group_that_reads_everything_once(transforms: bool) -> None:
    assert _broken(_group(transforms=transforms)) == {}


def _lose_the_last(group: GroupHistory) -> None:
    group.processed[_PLACE].pop()
    group.samples.pop()


def _skip_one(group: GroupHistory) -> None:
    group.processed[_PLACE] = [(1.0, 0), (6.0, 3), (6.5, 1), (7.0, 4)]
    group.samples.clear()


def _go_back_within_a_tenure(group: GroupHistory) -> None:
    group.tenures[1].runs[0].append((3, b"3"))


def _leave_one_out_within_a_tenure(group: GroupHistory) -> None:
    del group.tenures[0].runs[0][0]
    group.tenures[0].runs[0].append((4, b"4"))


def _begin_before_the_committed_offset(group: GroupHistory) -> None:
    group.tenures[1].runs[0].insert(0, (1, b"1"))


def _commit_after_another_member_got_the_partition(group: GroupHistory) -> None:
    group.commits.append(CommitHistory("a", {_PLACE: 2}, 5.5, 5.6, "accepted"))


def _commit_what_is_not_processed(group: GroupHistory) -> None:
    group.samples.insert(1, (6.5, {_PLACE: 5}))


@pytest.mark.parametrize(
    ("break_it", "rule"),
    [
        (_lose_the_last, "groups_see_every_record"),
        (_skip_one, "groups_skip_nothing"),
        (_go_back_within_a_tenure, "members_read_in_order"),
        (_leave_one_out_within_a_tenure, "members_read_in_order"),
        (_begin_before_the_committed_offset, "committed_records_are_not_read_again"),
        (_commit_after_another_member_got_the_partition, "commits_come_from_the_owner"),
        (_commit_what_is_not_processed, "committed_is_processed"),
    ],
)
def test_a_rule_finds_what_breaks_it(break_it: Callable[[GroupHistory], None], rule: str) -> None:
    group = _group()
    break_it(group)
    assert list(_broken(group)) == [rule]


def test_a_member_of_an_older_generation_may_take_over_partitions_late() -> None:
    group = _group()
    group.tenures.append(_tenure("c", 5.2, generation=1))
    group.commits.append(CommitHistory("b", {_PLACE: 2}, 5.5, 5.6, "accepted"))
    assert _broken(group) == {}


def test_a_commit_without_an_answer_may_set_the_offset_back() -> None:
    """Kafka accepts an OffsetCommit that comes late, behind a later one."""
    group = _group()
    _begin_before_the_committed_offset(group)
    group.commits.append(CommitHistory("a", {_PLACE: 1}, 2.0))
    assert _broken(group) == {}


@pytest.mark.parametrize("results", [range(3), range(-1, -2, -1)])
def test_a_record_without_a_committed_result_is_found(results: range) -> None:
    group = _group(transforms=True)
    group.origins[b"-1"] = (_PLACE, 0)
    assert list(_broken(group, results)) == ["each_record_is_transformed_once"]


def test_a_record_that_is_transformed_twice_is_found() -> None:
    group = _group(transforms=True)
    group.origins[b"4"] = (_PLACE, 4)
    ((what,),) = _broken(group, range(5)).values()
    assert what == "('t', 0): transformed twice [4], not [], out of order []"
