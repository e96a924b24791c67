"""The contents of a Produce request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioproducer.core.batching.batch import ProducerBatch, new_batch
from aioproducer.core.batching.partition_queue import PartitionQueue
from aioproducer.core.batching.producer_state import PartitionSequences
from aioproducer.io.produce import group_by_topic
from aioproducer.record import TopicPartition
from tests.core.accumulating import HandLoop


def batch_for(where: TopicPartition) -> ProducerBatch:
    return new_batch(HandLoop(), PartitionQueue(where, PartitionSequences()), where, 1, 0.0, 1000)


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_a_request_names_a_topic_once_for_any_order_of_ready_partitions(topics: list[str]) -> None:
    """A request names a topic once, with its partitions in one list."""
    drained = [TopicPartition(topic, partition) for partition, topic in enumerate(topics)]
    batches = [batch_for(where) for where in drained]
    group_by_topic(batches)
    firsts = list(dict.fromkeys(topics))
    assert [batch.topic_partition for batch in batches] == sorted(drained, key=lambda where: firsts.index(where.topic))
