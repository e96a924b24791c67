"""Blocked records: their memory charge, order and deadlines."""

from __future__ import annotations

import pytest

from aioproducer.core.waiting.pending import (
    HEADER_OVERHEAD,
    PENDING_OVERHEAD,
    PendingRecord,
    PendingRecords,
    payload_size,
)
from aioproducer.errors import BufferExhaustedError
from aioproducer.record import TopicPartition
from tests.core.accumulating import HandLoop


def make(deadline: float = 10.0, value: bytes = b"v", partition: int | None = None) -> PendingRecord:
    return PendingRecord(
        HandLoop(), "t", partition, None, value, (), 0, since=0.0, deadline=deadline, on_withdraw=lambda pending: None
    )


def test_the_payload_is_the_size_of_the_users_data() -> None:
    assert payload_size(None, None, ()) == 0
    headers = [("é", b"12"), ("n", None)]
    assert payload_size(b"abc", memoryview(b"defg"), headers) == 3 + 4 + 2 + 2 + 1 + 2 * HEADER_OVERHEAD


def test_send_rejects_a_header_name_that_utf8_cannot_encode() -> None:
    """Such a record once stayed queued, repeatedly failed to be encoded, and blocked all records behind it."""
    with pytest.raises(UnicodeEncodeError):
        payload_size(None, None, [("\ud800", None)])


def test_the_queue_charges_payload_and_overhead() -> None:
    line = PendingRecords(10_000)
    first, second = make(), make()
    line.add(first, 100)
    line.add(second, 200)
    assert line.size == 300 + 2 * PENDING_OVERHEAD
    assert line.first_number() == first.number == 1
    assert line.remove(first)
    assert not line.remove(first)
    assert line.size == 200 + PENDING_OVERHEAD
    assert line.first_number() == second.number == 2
    assert line.remove(second)
    assert line.size == 0
    assert line.first_number() == 3


def test_the_queue_is_bounded() -> None:
    line = PendingRecords(2000)
    first = make()
    line.add(first, 500)
    with pytest.raises(BufferExhaustedError, match="Await the sends, or call") as caught:
        line.add(make(), 1000)
    assert "1 send with 1012 bytes already waits" in str(caught.value)
    assert "has no room for 1000 bytes" in str(caught.value)
    assert "(buffer_memory: 2000 bytes)" in str(caught.value)
    assert len(line.records) == 1
    assert line.size == 500 + PENDING_OVERHEAD
    line.add(make(), 2000 - line.size - PENDING_OVERHEAD)
    assert line.size == 2000


def test_an_empty_queue_accepts_a_record_of_any_size() -> None:
    line = PendingRecords(1000)
    line.add(make(), 5000)
    assert line.size == 5000 + PENDING_OVERHEAD


def test_a_record_is_charged_again_after_serialization() -> None:
    line = PendingRecords(10_000)
    pending = make()
    line.add(pending, 100)
    pending.value = b"x" * 3000
    line.recharge(pending)
    assert line.size == 3000 + PENDING_OVERHEAD
    line.remove(pending)
    line.recharge(pending)
    assert line.size == 0


def test_the_oldest_expire_first() -> None:
    line = PendingRecords(100_000)
    records = [make(deadline) for deadline in (1.0, 1.0, 2.0, 3.0)]
    for pending in records:
        line.add(pending, 1)
    assert line.expired(0.999) == []
    assert line.expired(1.0) == records[:2]
    assert line.expired(99.0) == records
    assert len(line.records) == 4


def test_a_blocked_record_knows_its_topic_partition() -> None:
    assert make().where() == TopicPartition("t", -1)
    assert make(partition=3).where() == TopicPartition("t", 3)
