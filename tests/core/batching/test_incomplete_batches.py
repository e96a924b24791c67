"""The list of batches without an outcome, compared with a dict in the same order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioproducer.core.batching.batch import ProducerBatch, new_batch
from aioproducer.core.batching.incomplete_batches import IncompleteBatches
from aioproducer.record import TopicPartition
from tests.core.accumulating import Bench


@given(st.lists(st.integers(0, 6)))
def test_batches_keep_their_order_as_others_are_removed(places: list[int]) -> None:
    bench = Bench()
    made = [new_batch(bench.loop, bench.queue(), TopicPartition("t", 0), number, 0.0, 1000) for number in range(7)]
    found, wanted = IncompleteBatches(), dict[ProducerBatch, None]()
    for place in places:
        batch = made[place]
        if batch in wanted:
            del wanted[batch]
            found.discard(batch)
        else:
            wanted[batch] = None
            found.add(batch)
        absent = [each for each in made if each not in wanted]
        for each in absent:
            # Again: nothing happens.
            found.discard(each)
        assert list(found) == list(wanted)
        assert found.count == len(wanted)
        assert found.oldest is next(iter(wanted), None)
        assert found.newest is (list(wanted)[-1] if wanted else None)
        assert all(each.older is None and each.newer is None for each in absent)


@given(
    st.sets(st.integers(0, 11)), st.integers(0, 12), st.integers(-1, 12), st.integers(1, 5), st.sets(st.integers(0, 11))
)
def test_a_range_is_read_in_parts_while_batches_leave_it(
    removed: set[int], first: int, last: int, limit: int, removed_later: set[int]
) -> None:
    bench = Bench()
    made = [new_batch(bench.loop, bench.queue(), TopicPartition("t", 0), number, 0.0, 1000) for number in range(12)]
    incomplete = IncompleteBatches()
    for batch in made:
        incomplete.add(batch)
    for number in removed:
        incomplete.discard(made[number])
    found: list[int] = []
    start: ProducerBatch | None = None
    later = sorted(removed_later)
    while True:
        part, start = incomplete.between(first, last, limit, start)
        assert len(part) <= limit
        found += [batch.number for batch in part]
        for batch in part:
            incomplete.discard(batch)
        if start is None:
            break
        first = start.number
        if later:
            incomplete.discard(made[later.pop()])
    gone = removed | removed_later
    assert found == sorted(set(found))
    assert set(found) >= {n for n in range(12) if n >= min([first, *found], default=first) and n <= last} - gone
    assert all(number <= last and number not in removed for number in found)
