"""Rules over what the members of consumer groups were given and have committed. Each function is one rule."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.simulation.embedded.history import GroupHistory, Tenure
from tests.simulation.embedded.story import RESULTS

if TYPE_CHECKING:
    from aioproducer.testing import StoredRecord
    from tests.simulation.embedded.checkers import Evidence

Place = tuple[str, int]


def _log(evidence: Evidence, group: GroupHistory, place: Place) -> list[StoredRecord]:
    """The records of a partition that the members of a group are given."""
    return (evidence.committed if group.committed else evidence.records)[place]


def _places(evidence: Evidence, group: GroupHistory) -> list[Place]:
    return [place for place in evidence.records if place[0] in group.topics]


def _processing(evidence: Evidence) -> Iterator[GroupHistory]:
    return (group for group in evidence.history.groups if not group.transforms)


def groups_see_every_record(evidence: Evidence) -> Iterator[str]:
    """Unseen: each record is processed by a member of each group."""
    for group in _processing(evidence):
        for place in _places(evidence, group):
            seen = {offset for _, offset in group.processed.get(place, [])}
            unseen = [record.offset for record in _log(evidence, group, place) if record.offset not in seen]
            if unseen:
                yield f"{group.name} has not seen {len(unseen)} records of {place}, the first at {unseen[0]}"


def groups_skip_nothing(evidence: Evidence) -> Iterator[str]:
    """Skipped: a record is processed when all before it in the partition were, by this member or by others."""
    for group in _processing(evidence):
        for place, processed in group.processed.items():
            log = iter(_log(evidence, group, place))
            reached = -1
            for at, offset in processed:
                if offset > reached:
                    expected = next(log, None)
                    if expected is None or expected.offset != offset:
                        yield f"{group.name} has processed {offset} of {place} at {at:.3f}, but not {expected}"
                        break
                    reached = offset


def members_read_in_order(evidence: Evidence) -> Iterator[str]:
    """Non-monotonic: between two seeks a member is given the records of a partition as the log has them."""
    for group in evidence.history.groups:
        for tenure in group.tenures:
            log = [(record.offset, record.value) for record in _log(evidence, group, tenure.place)]
            for run in tenure.runs:
                if run:
                    start = bisect.bisect_left(log, (run[0][0], b""))
                    if log[start : start + len(run)] != run:
                        yield f"{tenure.member} was given {_first_difference(run, log[start:])} of {tenure.place}"


def _first_difference(run: list[tuple[int, bytes | None]], log: list[tuple[int, bytes | None]]) -> str:
    pairs = zip(run, [*log, None], strict=False)
    return next(f"{given}, where the log has {kept}" for given, kept in pairs if given != kept)


def committed_records_are_not_read_again(evidence: Evidence) -> Iterator[str]:
    """Twice: a tenure begins at what the group had accepted before, or behind it.

    A commit without an answer may arrive late and set the offset back, as in Kafka.
    """
    for group in evidence.history.groups:
        if not group.commits_itself or group.transforms:
            continue
        for tenure in group.tenures:
            if tenure.runs[0]:
                first, least = tenure.runs[0][0][0], _least_start(group, tenure)
                if first < least:
                    yield f"{tenure.member} was given {first} of {tenure.place}, of which {least} was committed"


def _least_start(group: GroupHistory, tenure: Tenure) -> int:
    accepted, unknown = 0, []
    for commit in group.commits:
        offset = commit.offsets.get(tenure.place)
        if offset is not None and commit.began_at < tenure.began_at:
            if commit.outcome == "accepted" and commit.ended_at < tenure.began_at:
                accepted = offset
            elif commit.outcome != "refused":
                unknown.append(offset)
    return min([accepted, *unknown])


def commits_come_from_the_owner(evidence: Evidence) -> Iterator[str]:
    """Fenced: the group accepts offsets of a partition from its member in the latest generation, and from no other.

    A member that does not know yet that it is out of the group may take over what an older generation gave it.
    """
    for group in evidence.history.groups:
        by_place: defaultdict[Place, list[Tenure]] = defaultdict(list)
        for tenure in group.tenures:
            by_place[tenure.place].append(tenure)
        for commit in group.commits:
            if commit.outcome != "accepted":
                continue
            for place in commit.offsets:
                before = [each for each in by_place[place] if each.began_at < commit.began_at]
                if not before:
                    continue
                owner = max(before, key=lambda each: each.generation)
                if owner.member != commit.member:
                    yield (
                        f"{group.name} has accepted offsets of {place} from {commit.member} at {commit.ended_at:.3f}; "
                        f"{owner.member} has it since {owner.began_at:.3f}, in generation {owner.generation}"
                    )


def committed_is_processed(evidence: Evidence) -> Iterator[str]:
    """Inconsistent offsets: the group's offset is not behind a record that no member has processed by then."""
    for group in _processing(evidence):
        processed_at: dict[Place, dict[int, float]] = {}
        for place, processed in group.processed.items():
            times = processed_at.setdefault(place, {})
            for at, offset in processed:
                times.setdefault(offset, at)
        for at, offsets in group.samples:
            for place, offset in offsets.items():
                times = processed_at.get(place, {})
                missing = next(
                    (
                        record.offset
                        for record in _log(evidence, group, place)
                        if record.offset < offset and not times.get(record.offset, at + 1) <= at
                    ),
                    None,
                )
                if missing is not None:
                    yield f"{group.name} has offset {offset} of {place} at {at:.3f}, and has not processed {missing}"
                    return


def each_record_is_transformed_once(evidence: Evidence) -> Iterator[str]:
    """Exactly once: the committed results of a partition are those of its records, each once, in their order."""
    for group in evidence.history.groups:
        if not group.transforms:
            continue
        results: defaultdict[Place, list[int]] = defaultdict(list)
        for (topic, _), records in evidence.committed.items():
            if topic == RESULTS:
                for record in records:
                    place, offset = group.origins[record.value or b""]
                    results[place].append(offset)
        for place in _places(evidence, group):
            expected = [record.offset for record in _log(evidence, group, place)]
            found = results[place]
            if found == expected:
                continue
            twice = [offset for offset in sorted(set(found)) if found.count(offset) > 1]
            lost = sorted(set(expected).difference(found))
            disorder = [pair for pair in pairwise(found) if pair[0] > pair[1]]
            yield f"{place}: transformed twice {twice[:5]}, not {lost[:5]}, out of order {disorder[:3]}"


ALL: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    groups_see_every_record,
    groups_skip_nothing,
    members_read_in_order,
    committed_records_are_not_read_again,
    commits_come_from_the_owner,
    committed_is_processed,
    each_record_is_transformed_once,
)
