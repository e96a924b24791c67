"""ProducerBatch: appends into slabs, its bytes on the wire, its one outcome, its memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.compression import codec
from aioproducer.core.batching.batch import (
    CLOSED,
    COMPRESSING,
    DUE,
    FAILED,
    LARGEST_GROWTH,
    NEXT_STATES,
    OPEN,
    SUCCEEDED,
    ProducerBatch,
    new_batch,
)
from aioproducer.core.batching.buffer_pool import BufferPool
from aioproducer.core.batching.partition_queue import PartitionQueue
from aioproducer.core.batching.producer_state import PartitionSequences
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.errors import InvalidRecordError, KafkaError
from aioproducer.record import RecordMetadata, TopicPartition
from aioproducer.wire.record import encode_record
from aioproducer.wire.record_batch import BATCH_HEADER_SIZE, RecordBatch, encode_header
from tests.core.accumulating import HandLoop, records_of, values_of

WHERE = TopicPartition("t", 3)
HEADERS = (("name", b"value"), ("null", None))


def make_batch(size_limit: int = 1000) -> ProducerBatch:
    batch = new_batch(HandLoop(), PartitionQueue(WHERE, PartitionSequences()), WHERE, 1, 0.0, size_limit)
    batch.base_timestamp = 1000
    return batch


def fill(batch: ProducerBatch, pool: BufferPool, values: list[bytes]) -> None:
    for value in values:
        index = batch.append(None, value, (), 1000)
        if index < 0:
            batch.add_slab(pool.take(-index, batch.next_slab_size(-index)))
            assert batch.append(None, value, (), 1000) >= 0


def outcome_of(batch: ProducerBatch) -> list[BaseException | RecordMetadata | None]:
    return [
        Delivery(batch, index).exception() or Delivery(batch, index).result() for index in range(batch.record_count)
    ]


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=70)
HEADER_VALUES = st.none() | st.binary(max_size=100)


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**40), 2**40),
            st.none() | st.binary(max_size=100),
            st.none() | st.binary(max_size=100),
            st.lists(st.tuples(NAMES, HEADER_VALUES), max_size=70)
            | st.lists(st.lists(NAMES, min_size=1, max_size=1).map(lambda name: [*name, bytearray(b"v")]), max_size=3),
            st.sampled_from([tuple, list]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 4),
)
def test_a_record_is_encoded_like_the_general_encoder_or_not_at_all(records: Any, kibibytes: int) -> None:
    room = kibibytes * 1024
    batch = make_batch(1 << 16)
    batch.add_slab(BufferPool(1 << 16).take(room, room))
    written = b""
    for timestamp, key, value, headers, kind in records:
        expected = encode_record(batch.record_count, timestamp, key, value, headers)
        index = batch.append(key, value, kind(headers), 1000 + timestamp)
        if index < 0:
            assert index == -len(expected)
            assert len(written) + len(expected) > room
        else:
            written += expected
    batch.close()
    assert b"".join(batch.body or ()) == written


@pytest.mark.parametrize("headers", [[("\ud800", b"v")], [("fine", b"v"), ("\ud800", None)]])
def test_a_header_name_that_cannot_be_encoded_leaves_the_batch_unchanged(
    headers: list[tuple[str, bytes | None]],
) -> None:
    batch = make_batch()
    batch.add_slab(BufferPool(1 << 16).take(1000, 1000))
    with pytest.raises(UnicodeEncodeError):
        batch.append(b"key", b"value", headers, 1000)
    assert (batch.record_count, batch.used_size()) == (0, 0)


@given(
    values=st.lists(st.binary(max_size=300), min_size=1, max_size=5),
    timestamps=st.lists(st.integers(0, 2**63 - 1), min_size=5, max_size=5),
    producer_id=st.integers(-1, 2**63 - 1),
    producer_epoch=st.integers(-1, 2**15 - 1),
    base_sequence=st.integers(-1, 2**31 - 1),
    compressed=st.none() | st.binary(max_size=300),
)
def test_the_batch_header_equals_that_of_the_general_encoder(
    values: list[bytes],
    timestamps: list[int],
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    compressed: bytes | None,
) -> None:
    pool = BufferPool(1 << 16)
    batch = make_batch(10_000)
    batch.base_timestamp = timestamps[0]
    batch.add_slab(pool.take(4096, 4096))
    for value, timestamp_ms in zip(values, timestamps, strict=False):
        assert batch.append(None, value, (), timestamp_ms) >= 0
    batch.close()
    if compressed is not None:
        batch.set_compressed(4, compressed, pool)
    batch.set_sequence(producer_id, producer_epoch, base_sequence)
    header, *body = batch.buffers()
    assert header == encode_header(
        body,
        record_count=len(values),
        base_timestamp=timestamps[0],
        max_timestamp=max(timestamps[: len(values)]),
        attributes=0 if compressed is None else 4,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def test_records_are_read_back_as_they_were_appended() -> None:
    pool = BufferPool(1 << 16)
    batch = make_batch()
    batch.add_slab(pool.take(1000, 1000))
    assert batch.append(b"key", b"value", HEADERS, 1000) == 0
    assert batch.append(None, None, (), 999) == 1
    assert batch.append(bytearray(b"k"), memoryview(b"v"), (), 1005) == 2
    batch.close()
    batch.set_sequence(7, 2, 40)
    read = RecordBatch(b"".join(batch.buffers()))
    read.validate()
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (7, 2, 40)
    assert (read.base_timestamp, read.max_timestamp, read.record_count) == (1000, 1005, 3)
    assert [(each.timestamp, each.key, each.value, each.headers) for each in read.records()] == [
        (1000, b"key", b"value", HEADERS),
        (999, None, None, ()),
        (1005, b"k", b"v", ()),
    ]
    assert read.size_in_bytes == batch.size() == batch.uncompressed_size()
    assert repr(batch) == "<ProducerBatch t-3 #1: 3 records, sequence 40, closed>"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=40))
def test_a_chain_of_slabs_is_the_gather_list(sizes: list[int]) -> None:
    """This holds also for records larger than a slab; only the used part of a slab is sent."""
    pool = BufferPool(1 << 20)
    batch = make_batch(1 << 19)
    values = [bytes([index]) * size for index, size in enumerate(sizes)]
    fill(batch, pool, values)
    used = batch.used_size()
    batch.close()
    assert batch.body_size == used == sum(memoryview(part).nbytes for part in batch.body)
    assert len(batch.body) == len(batch.slabs)
    assert values_of(batch) == values
    held = sum(slab.size for slab in batch.slabs)
    assert held <= 2 * (used + max(sizes)) + 2048
    batch.fail(KafkaError("no"))
    batch.release_memory(pool)
    assert pool.available_memory == pool.total_memory


def test_slabs_double_up_to_a_size_and_stop_at_the_limit() -> None:
    pool = BufferPool(1 << 24)
    batch = make_batch(1 << 22)
    fill(batch, pool, [b"x" * 900] * 1000)
    sizes = [slab.size for slab in batch.slabs]
    assert sizes == sorted(sizes)
    assert max(sizes) == LARGEST_GROWTH
    small = make_batch(2000)
    fill(small, pool, [b"x" * 1000])
    assert small.next_slab_size(500) <= 1024


def test_a_record_that_does_not_fit_changes_nothing() -> None:
    pool = BufferPool(1 << 16)
    batch = make_batch()
    batch.add_slab(pool.take(1024, 1024))
    assert batch.append(None, b"x" * 100, (), 1000) == 0
    before = (batch.position, batch.record_count, batch.max_timestamp)
    assert batch.append(None, b"x" * 2000, (), 2000) < -2000
    assert (batch.position, batch.record_count, batch.max_timestamp) == before
    batch.close()
    assert batch.append(None, b"", (), 1000) < 0
    batch.close()
    assert batch.record_count == 1


def test_a_record_that_cannot_be_encoded_changes_nothing() -> None:
    batch = make_batch()
    batch.add_slab(BufferPool(1 << 16).take(1024, 1024))
    with pytest.raises(UnicodeEncodeError):
        batch.append(None, b"", (("\ud800", b""),), 1000)
    assert (batch.record_count, batch.used_size()) == (0, 0)


def test_the_first_record_always_fits_and_more_fit_up_to_the_limit() -> None:
    pool = BufferPool(1 << 16)
    batch = make_batch(100)
    assert batch.has_room_for(5000)
    assert not batch.is_full()
    batch.add_slab(pool.take(1024, 1024))
    assert batch.append(None, b"x" * 50, (), 1000) == 0
    batch.limit_room()
    assert batch.has_room_for(30)
    assert not batch.has_room_for(60)
    assert batch.append(None, b"x" * 60, (), 1000) < 0
    assert batch.append(None, b"x" * 30, (), 1000) == 1
    assert batch.used_size() <= 100
    batch.close()
    assert batch.is_full()


def test_the_header_is_rebuilt_only_if_it_changed() -> None:
    batch = make_batch()
    batch.add_slab(BufferPool(1 << 16).take(1024, 1024))
    batch.append(None, b"x", (), 1000)
    batch.close()
    first = batch.buffers()
    assert batch.buffers()[0] is first[0]
    batch.set_sequence(1, 0, 0)
    again = batch.buffers()
    assert again[0] != first[0]
    # A transport that still sends the first attempt is not disturbed.
    assert RecordBatch(b"".join(first)).producer_id == -1
    assert len(first[0]) == BATCH_HEADER_SIZE


def test_compressed_bytes_replace_the_records_and_are_charged() -> None:
    pool = BufferPool(1 << 16)
    batch = make_batch(1 << 15)
    fill(batch, pool, [b"x" * 1000] * 10)
    batch.close()
    used = codec("gzip")
    data = used.compress(batch.body)
    batch.set_compressed(used.id, data, pool)
    assert pool.available_memory == pool.total_memory - len(data)
    assert batch.size() == BATCH_HEADER_SIZE + len(data) < batch.uncompressed_size()
    assert values_of(batch) == [b"x" * 1000] * 10
    batch.succeed(0, -1)
    batch.release_memory(pool)
    batch.release_memory(pool)
    assert pool.available_memory == pool.total_memory


# Outcomes


def closed_batch(timestamps: tuple[int, ...] = (1000, 1000, 1005)) -> ProducerBatch:
    batch = make_batch()
    batch.add_slab(BufferPool(1 << 16).take(1024, 1024))
    for timestamp_ms in timestamps:
        batch.append(None, b"x", (), timestamp_ms)
    batch.close()
    return batch


def test_record_metadata_has_offsets_and_create_times() -> None:
    batch = closed_batch((1000, 1000, 1005, 1000))
    batch.succeed(10, -1)
    assert outcome_of(batch) == [
        RecordMetadata("t", 3, 10, 1000),
        RecordMetadata("t", 3, 11, 1000),
        RecordMetadata("t", 3, 12, 1005),
        RecordMetadata("t", 3, 13, 1000),
    ]


def test_log_append_time_applies_to_the_whole_batch() -> None:
    batch = closed_batch()
    batch.succeed(10, 7777)
    assert [each.timestamp_ms for each in outcome_of(batch)] == [7777] * 3


def test_an_offset_that_the_broker_no_longer_knows_is_none() -> None:
    batch = closed_batch()
    batch.succeed(-1, -1)
    assert outcome_of(batch)[2] == RecordMetadata("t", 3, None, 1005)


def test_without_acks_offsets_are_unknown() -> None:
    batch = closed_batch()
    batch.succeed(-1, -1, acknowledged=False)
    assert outcome_of(batch)[0] == RecordMetadata("t", 3, None, None)


def test_records_that_the_broker_rejects_have_their_own_errors() -> None:
    batch = closed_batch()
    assert batch.fail(InvalidRecordError("one is bad"), {1: InvalidRecordError("no key")})
    first, second, third = outcome_of(batch)
    assert isinstance(second, InvalidRecordError)
    assert str(second) == "no key"
    for other in (first, third):
        assert str(other) == "one is bad"


def test_a_failed_batch_stays_failed() -> None:
    batch = closed_batch()
    assert batch.fail(KafkaError("first"))
    assert not batch.succeed(5, -1)
    assert not batch.fail(KafkaError("second"))
    assert batch.state == FAILED
    assert [str(each) for each in outcome_of(batch)] == ["first"] * 3


@pytest.mark.parametrize("second", [lambda batch: batch.succeed(0, -1), lambda batch: batch.fail(KafkaError("no"))])
def test_any_outcome_after_success_raises(second) -> None:
    batch = closed_batch()
    assert batch.succeed(5, -1)
    with pytest.raises(AssertionError, match="succeeded> cannot become"):
        second(batch)
    assert batch.state == SUCCEEDED
    assert batch.base_offset == 5


def test_memory_is_not_released_while_it_is_read() -> None:
    pool = BufferPool(1 << 16)
    batch = make_batch()
    fill(batch, pool, [b"x"])
    batch.close()
    batch.readers = 1
    batch.fail(KafkaError("no"))
    with pytest.raises(AssertionError):
        batch.release_memory(pool)
    assert pool.available_memory < pool.total_memory
    assert values_of(batch) == [b"x"]


def test_the_parts_of_a_batch_must_hold_all_its_records() -> None:
    batch, part = closed_batch(), closed_batch((1000,))
    with pytest.raises(AssertionError):
        batch.split_into([part])


def test_an_empty_batch_has_no_used_bytes() -> None:
    batch = make_batch()
    assert batch.used_size() == 0
    batch.close()
    assert batch.used_size() == 0
    assert batch.where() == WHERE
    assert [each.timestamp for each in records_of(closed_batch())] == [1000, 1000, 1005]


# States


def in_state(state: int) -> ProducerBatch:
    """Return a batch that has reached a state only by legal transitions."""
    paths = {OPEN: [], DUE: [DUE], CLOSED: [CLOSED], COMPRESSING: [CLOSED, COMPRESSING]}
    batch = make_batch()
    for each in paths.get(state, [CLOSED, state]):
        batch.set_state(each)
    return batch


@pytest.mark.parametrize("new", NEXT_STATES)
@pytest.mark.parametrize("old", NEXT_STATES)
def test_only_the_transitions_of_the_table_are_possible(old: int, new: int) -> None:
    batch = in_state(old)
    if new in NEXT_STATES[old]:
        batch.set_state(new)
        assert batch.state == new
    else:
        with pytest.raises(AssertionError, match="cannot become"):
            batch.set_state(new)
        assert batch.state == old
