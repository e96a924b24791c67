"""Fetch responses of one partition: which batches are read, and where the next fetch starts."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from aioproducer.consumer.fetching import FetchLimits, Progress, fetch_request, take
from aioproducer.core.requests.retry import Attempts, ExponentialBackoff
from aioproducer.errors import ProtocolError
from aioproducer.protocol.messages.fetch import AbortedTransaction, PartitionData
from aioproducer.wire.control_batch import ControlRecordType, encode_control_batch
from aioproducer.wire.record_batch import SimpleRecord, encode_batch


def progress_at(position, stop=None):
    return Progress(0, position, stop, Attempts(ExponentialBackoff(100, 1000, jitter=0), Random(0)), explicit=False)


def batch(base_offset, count=5, **options):
    return b"".join(encode_batch([SimpleRecord(0, b"k", b"v")] * count, base_offset=base_offset, **options))


def answer(*batches):
    return PartitionData(records=memoryview(b"".join(batches)))


def found(progress, *batches):
    return [(each.batch.base_offset, each.first) for each in take(progress, answer(*batches))]


def test_the_first_batch_may_start_before_the_position_and_the_last_may_be_truncated():
    progress = progress_at(3)
    assert found(progress, batch(0), batch(5), batch(10)[:-1]) == [(0, 3), (5, 5)]
    assert progress.position == 10


def test_batches_after_the_stop_offset_are_not_checked():
    progress = progress_at(0, stop=5)
    assert found(progress, batch(0), b"\0" * 8 + batch(5)[8:17] + b"garbage" * 20) == [(0, 0)]
    assert progress.finished


def test_records_before_the_position_are_not_returned_again():
    progress = progress_at(5)
    assert found(progress, batch(0), batch(5)) == [(5, 5)]


def test_control_batches_and_gaps_of_compaction_only_move_the_position():
    progress = progress_at(0)
    assert found(progress, batch(0, 1, control=True), batch(40)) == [(40, 1)]
    assert progress.position == 45


def of(producer_id, base_offset, count=2):
    return batch(base_offset, count, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def marker(producer_id, offset, control_type):
    return encode_control_batch(
        control_type, coordinator_epoch=0, producer_id=producer_id, producer_epoch=0, timestamp=0, base_offset=offset
    )


LOG = (
    of(1, 0),
    of(2, 2),
    batch(4, 1),
    marker(1, 5, ControlRecordType.ABORT),
    of(1, 6),
    of(2, 8, 1),
    marker(1, 9, ControlRecordType.COMMIT),
    marker(2, 10, ControlRecordType.ABORT),
    of(1, 11),
    marker(1, 13, ControlRecordType.ABORT),
    of(1, 14),
)


@pytest.mark.parametrize("order", list(permutations([(1, 0), (2, 2), (1, 11)])))
@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_batches_of_aborted_transactions_are_dropped_however_the_broker_lists_them(order, start):
    progress = progress_at(start)
    data = answer(*LOG)
    data.aborted_transactions = [
        AbortedTransaction(producer_id=producer_id, first_offset=first) for producer_id, first in order
    ]
    assert [each.batch.base_offset for each in take(progress, data)] == [4, 6, 14]
    assert progress.position == 16


@pytest.mark.parametrize("aborted", [None, []])
def test_without_aborted_transactions_every_batch_is_read(aborted):
    progress = progress_at(0)
    data = answer(*LOG)
    data.aborted_transactions = aborted
    assert [each.batch.base_offset for each in take(progress, data)] == [0, 2, 4, 6, 8, 11, 14]


@pytest.mark.parametrize(("level", "number"), [("read_uncommitted", 0), ("read_committed", 1)])
def test_the_isolation_level_is_sent(level, number):
    request, _ = fetch_request("a", None, [progress_at(0)], FetchLimits(1, 2, 3), level)
    assert request.isolation_level == number


def test_empty_data_gives_no_records():
    progress = progress_at(7)
    assert list(take(progress, PartitionData(records=None))) == []
    assert found(progress) == []
    assert progress.position == 7


def test_a_corrupt_batch_does_not_move_the_position():
    progress = progress_at(0)
    torn = bytearray(batch(0))
    torn[-1] ^= 1
    with pytest.raises(ProtocolError, match="corrupt"):
        list(take(progress, answer(bytes(torn))))
    assert progress.position == 0


def test_failures_count_from_the_first_until_something_succeeds():
    progress = progress_at(0)
    assert [progress.failed(10.0), progress.failed(13.0)] == [0.0, 3.0]
    assert progress.attempts.delay(13.0) == pytest.approx(0.2)
    progress.succeeded()
    assert progress.attempts.delay(13.0) == 0
    assert progress.failed(20.0) == 0.0


@pytest.mark.parametrize(("topic_id", "highest"), [(b"i" * 16, 18), (None, 12)])
def test_topics_are_requested_by_id_if_it_is_known(topic_id, highest):
    request, version = fetch_request("a", topic_id, [progress_at(7)], FetchLimits(500, 1000, 100))
    assert version == highest
    (topic,) = request.topics
    assert (topic.topic, topic.topic_id) == ("a", topic_id or bytes(16))
    assert [(each.partition, each.fetch_offset, each.partition_max_bytes) for each in topic.partitions] == [(0, 7, 100)]
    assert (request.max_wait_ms, request.max_bytes, request.min_bytes) == (500, 1000, 1)
