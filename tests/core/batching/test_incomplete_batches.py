"""The list of batches without an outcome, against a dict that keeps its order."""

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
