"""Fetch responses reduced to committed records, or to one producer id: batches, markers, aborted transactions."""

from __future__ import annotations

import pytest

from aioproducer.consumer.partition_log import (
    AbortedTransaction,
    TransactionMarker,
    reduce_to_committed,
    reduce_to_producer,
)
from aioproducer.errors import ProtocolError
from aioproducer.protocol.messages import fetch
from aioproducer.wire.control_batch import ControlRecordType, encode_control_batch
from aioproducer.wire.record_batch import SimpleRecord, encode_batch


def batch(base_offset, producer_id, count=2):
    records = [SimpleRecord(0, b"k", b"v")] * count
    return b"".join(
        encode_batch(
            records,
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )


def marker(base_offset, producer_id, kind=ControlRecordType.COMMIT):
    return encode_control_batch(
        kind, coordinator_epoch=4, producer_id=producer_id, producer_epoch=1, timestamp=99, base_offset=base_offset
    )


def response(*batches, aborted=None):
    return fetch.PartitionData(
        records=memoryview(b"".join(batches)),
        aborted_transactions=aborted,
        high_watermark=20,
        last_stable_offset=15,
        log_start_offset=1,
    )


def test_batches_and_markers_of_other_producers_only_move_the_position():
    data = response(batch(3, 7), batch(5, 8), marker(7, 8), marker(8, 7, ControlRecordType.ABORT), batch(9, 9))
    found = reduce_to_producer(data, 3, 7)
    assert [each.base_offset for each in found.batches] == [3]
    assert found.markers == (TransactionMarker(8, False, 1, 4, 99),)
    assert (found.next_offset, found.log_start_offset, found.last_stable_offset, found.high_watermark) == (
        11,
        1,
        15,
        20,
    )


def test_batches_before_the_offset_are_left_out():
    found = reduce_to_producer(response(batch(3, 7), marker(5, 7)), 5, 7)
    assert found.batches == ()
    assert [each.offset for each in found.markers] == [5]


def test_the_aborted_transactions_are_those_of_all_producers():
    aborted = [
        fetch.AbortedTransaction(producer_id=8, first_offset=2),
        fetch.AbortedTransaction(producer_id=7, first_offset=3),
    ]
    assert reduce_to_producer(response(aborted=aborted), 3, 7).aborted == (
        AbortedTransaction(8, 2),
        AbortedTransaction(7, 3),
    )


def test_an_empty_response_keeps_the_offset():
    found = reduce_to_producer(fetch.PartitionData(records=None), 3, 7)
    assert (found.next_offset, found.aborted, found.markers, found.batches) == (3, (), (), ())


def test_a_corrupt_batch_of_the_producer_is_an_error():
    broken = bytearray(batch(3, 7))
    broken[-1] ^= 1
    with pytest.raises(ProtocolError):
        reduce_to_producer(response(bytes(broken)), 3, 7)


def test_committed_records_are_those_of_no_aborted_transaction():
    data = response(
        batch(3, 7),
        batch(5, 8),
        marker(7, 8, ControlRecordType.ABORT),
        marker(8, 7),
        batch(9, 8, count=1),
        aborted=[fetch.AbortedTransaction(producer_id=8, first_offset=5)],
    )
    found = reduce_to_committed(data, 3)
    assert [each.offset for each in found.records] == [3, 4, 9]
    assert (found.next_offset, found.last_stable_offset) == (10, 15)


def test_markers_alone_move_the_position_of_committed_records():
    found = reduce_to_committed(response(marker(7, 8)), 7)
    assert (found.next_offset, found.records) == (8, ())


def test_without_batches_the_position_of_committed_records_stays():
    found = reduce_to_committed(fetch.PartitionData(records=None), 3)
    assert (found.next_offset, found.records) == (3, ())


def test_a_corrupt_batch_is_an_error_for_committed_records():
    broken = bytearray(batch(3, 7))
    broken[-1] ^= 1
    with pytest.raises(ProtocolError):
        reduce_to_committed(response(bytes(broken)), 3)
