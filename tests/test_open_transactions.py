"""The facts of a transaction that is left open, from its acknowledgements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer._client.open_transactions import AcknowledgedRecords, PartitionFacts
from aioproducer.errors import TransactionAbortableError
from aioproducer.record import TopicPartition


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 3)), max_size=20), st.randoms())
def test_the_facts_are_first_last_and_count_in_any_order_of_acknowledgements(batches, random):
    ends: dict[int, int] = {}
    offsets: dict[int, list[int]] = {}
    acknowledgements = []
    for partition, count, gap in batches:
        base = ends.get(partition, 0) + gap
        ends[partition] = base + count
        offsets.setdefault(partition, []).extend(range(base, base + count))
        acknowledgements.append((TopicPartition("t", partition), count, base, 1.0))
    random.shuffle(acknowledgements)
    records = AcknowledgedRecords()
    for acknowledgement in acknowledgements:
        records.on_batch_acked(*acknowledgement)
    assert records.partitions() == {
        TopicPartition("t", partition): PartitionFacts(min(of), max(of), len(of)) for partition, of in offsets.items()
    }
    records.clear()
    assert records.partitions() == {}


def test_a_duplicate_without_an_offset_has_no_facts():
    records = AcknowledgedRecords()
    records.on_batch_acked(TopicPartition("t", 0), 2, 5, 1.0)
    records.on_batch_acked(TopicPartition("t", 1), 2, None, 1.0)
    with pytest.raises(TransactionAbortableError, match=r"t-1: .* no longer knows its offset; abort"):
        records.partitions()
    records.clear()
    assert records.partitions() == {}
