"""RecordAccumulator: appending records, blocked records, compression off the loop, what it reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.compression import Buffer, codec
from aioproducer.compression.gzip import GzipCodec
from aioproducer.core.batching.batch import ProducerBatch
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.core.waiting.blocked_records import RECORDS_PER_STEP
from aioproducer.core.waiting.pending import PENDING_OVERHEAD
from aioproducer.errors import BufferExhaustedError, InvalidPartitionError, KafkaError
from aioproducer.record import TopicPartition
from aioproducer.wire.murmur2 import partition_for_key
from aioproducer.wire.record_batch import estimate_size_in_bytes_upper_bound
from tests.core.accumulating import NODE, Bench, records_of, values_of


def sent_values(bench: Bench, node: int = NODE) -> list[bytes | None]:
    """Drain all ready batches, and acknowledge them request by request."""
    values: list[bytes | None] = []
    bench.accumulator.ready.end_lingering(bench.now)
    while batches := bench.drain(node):
        for batch in batches:
            values += values_of(batch)
            bench.ack(batch)
        bench.turn()
        bench.accumulator.ready.end_lingering(bench.now)
    return values


def fill_memory(bench: Bench, topic: str = "t", partition: int = 0) -> Delivery:
    """Append one record in a batch that takes all memory."""
    return bench.send(b"x" * (bench.pool.available_memory - 100), topic=topic, partition=partition)


# Placing


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1500)), min_size=1, max_size=60),
    st.integers(0, 3000),
    st.sampled_from([2048, 8192, 1 << 18]),
)
def test_every_record_lands_in_one_batch_in_the_order_of_its_sender(sends, batch_size: int, memory: int) -> None:
    """Four callers send alternately, also when some of them wait for memory."""
    bench = Bench(topics={"t": 2}, batch_size=batch_size, memory=memory, linger=0)
    deliveries: list[tuple[bytes, Delivery]] = []
    log: dict[int, list[bytes | None]] = {0: [], 1: []}

    def serve() -> None:
        while batches := bench.drain():
            for batch in batches:
                partition_log = log[batch.topic_partition.partition]
                values = values_of(batch)
                bench.ack(batch, len(partition_log))
                partition_log += values
            bench.turn()

    for number, (caller, size) in enumerate(sends):
        value = b"%d:%d:" % (caller, number) + b"x" * size
        try:
            deliveries.append((value, bench.send(value, partition=caller % 2)))
        except BufferExhaustedError:
            serve()
    serve()
    for value, delivery in deliveries:
        where = delivery.result()
        assert log[where.partition][where.offset] == value
    assert sum(map(len, log.values())) == len(deliveries)
    for caller in range(4):
        numbers = [int(value.split(b":")[1]) for value in log[caller % 2] if value.startswith(b"%d:" % caller)]
        assert numbers == sorted(numbers)
    assert bench.all_memory_is_back()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=40), st.integers(0, 1000))
def test_a_batch_of_several_records_is_within_batch_size(sizes: list[int], batch_size: int) -> None:
    bench = Bench(batch_size=batch_size, linger=0, idempotent=False)
    for size in sizes:
        bench.send(b"x" * size)
    counts = []
    while batches := bench.drain():
        (batch,) = batches
        assert batch.size() <= batch_size or batch.record_count == 1
        counts.append(batch.record_count)
    assert sum(counts) == len(sizes)
    if batch_size == 0:
        assert set(counts) == {1}


@pytest.mark.parametrize("batch_size", [0, 54, 55, 60, 61])
def test_a_batch_size_below_the_header_size_works(batch_size: int) -> None:
    """With one byte less than a header, the remaining size was -1, C's error value, and the process crashed."""
    bench = Bench(batch_size=batch_size, linger=0)
    for value in (b"a", b"b"):
        delivery = bench.send(value)
        (batch,) = bench.drain()
        assert batch.record_count == 1
        bench.ack(batch, 0)
        assert delivery.done()


@settings(max_examples=100, deadline=None)
@given(
    st.none() | st.binary(max_size=300),
    st.none() | st.binary(max_size=3000),
    st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=50)), max_size=4),
    st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
)
def test_the_upper_bound_holds(key, value, headers, compression: str) -> None:
    """This holds also for records that a codec makes longer."""
    bench = Bench(linger=0, codec=None if compression == "none" else codec(compression))
    bench.send(value, key=key, headers=tuple(headers))
    batches = bench.drain()
    if not batches:
        bench.compress()
        batches = bench.drain()
    bound = estimate_size_in_bytes_upper_bound(
        -1 if key is None else len(key), -1 if value is None else len(value), headers, compression
    )
    assert batches[0].size() <= bound


def test_one_record_larger_than_batch_size_goes_alone() -> None:
    bench = Bench(batch_size=1000, linger=0)
    for value in (b"a", b"b" * 5000, b"c"):
        bench.send(value)
    assert [len(value) for value in sent_values(bench)] == [1, 5000, 1]
    assert bench.all_memory_is_back()


def test_records_larger_than_a_slab_have_runs_of_their_own() -> None:
    bench = Bench(batch_size=1 << 19)
    values = [bytes([index]) * size for index, size in enumerate((10, 70_000, 10, 130_000, 5))]
    for value in values:
        bench.send(value)
    bench.accumulator.ready.end_lingering(0)
    batch = bench.drain_one()
    assert values_of(batch) == values
    bench.ack(batch)
    assert bench.all_memory_is_back()


def test_20000_partitions_with_a_record_each_take_a_slab_each() -> None:
    bench = Bench(topics={"t": 20_000}, memory=1 << 25, batch_size=16384)
    for partition in range(20_000):
        bench.send(partition=partition)
    assert not bench.accumulator.blocked_records.memory_waiters
    assert bench.pool.total_memory - bench.pool.available_memory == 20_000 * 1024


def test_a_fragmented_arena_blocks_no_record() -> None:
    bench = Bench(topics={"t": 8}, memory=8192, batch_size=5000, linger=0)
    for partition in range(8):
        bench.send(partition=partition)
    batches = bench.drain()
    for batch in batches[::2]:
        bench.ack(batch)
    delivery = bench.send(b"x" * 3000, partition=0)
    assert not bench.accumulator.blocked_records.memory_waiters
    bench.ack(bench.drain_one(), 7)
    assert delivery.result().offset == 7
    for batch in batches[1::2]:
        bench.ack(batch)
    assert bench.all_memory_is_back()


def test_keys_choose_their_partition_unless_they_are_ignored() -> None:
    bench = Bench(topics={"t": 7})
    for key in (b"a", b"b", b"", bytearray(b"c")):
        for _ in range(2):
            delivery = bench.send(partition=None, key=key)
            assert delivery.topic_partition.partition == partition_for_key(key, 7)
    ignoring = Bench(topics={"t": 7}, ignore_keys=True)
    assert len({ignoring.send(partition=None, key=b"%d" % number).topic_partition for number in range(20)}) == 1


def test_a_sticky_record_is_appended_once_and_leaks_no_memory() -> None:
    bench = Bench(topics={"t": 5}, batch_size=1000, memory=1 << 20, linger=10.0)
    deliveries = [bench.send(b"%d" % number + b"x" * 300, partition=None) for number in range(200)]
    used: Counter[ProducerBatch] = Counter(delivery._group for delivery in deliveries)
    assert set(bench.accumulator.incomplete) == set(used)
    assert all(batch.record_count == count for batch, count in used.items())
    held = sum(slab.size for batch in used for slab in batch.slabs)
    assert bench.pool.available_memory + held == bench.pool.total_memory
    assert len({delivery.topic_partition for delivery in deliveries}) == 5
    assert len(sent_values(bench)) == 200
    assert bench.all_memory_is_back()


def test_a_custom_partitioner_is_called() -> None:
    bench = Bench(topics={"t": 3}, choose_partition=lambda topic, key, value: int(value))
    assert [bench.send(b"%d" % each, partition=None).topic_partition.partition for each in (2, 0, 2)] == [2, 0, 2]
    assert bench.send(b"0", partition=1).topic_partition.partition == 1


def test_a_partitioner_that_does_not_choose_defers_to_the_sticky_partitioner() -> None:
    bench = Bench(topics={"t": 3}, choose_partition=lambda topic, key, value: None)
    assert len({bench.send(partition=None, key=b"%d" % number).topic_partition for number in range(10)}) == 1


def test_an_exception_of_the_partitioner_is_raised_by_send() -> None:
    def choose(topic, key, value) -> int:
        raise ZeroDivisionError

    bench = Bench(choose_partition=choose)
    with pytest.raises(ZeroDivisionError):
        bench.send(partition=None)
    assert bench.all_memory_is_back()
    assert not bench.accumulator.has_undelivered()


# BlockedRecords


def test_records_get_memory_in_arrival_order_over_all_topics() -> None:
    bench = Bench(topics={"a": 1, "b": 1, "c": 1}, memory=8192, batch_size=100)
    fill_memory(bench, "a")
    placed: list[int] = []
    deliveries = []
    for number, (topic, size) in enumerate([("b", 3000), ("a", 10), ("c", 10), ("b", 10), ("c", 2000)]):
        deliveries.append(bench.send(b"y" * size, topic=topic))
        assert deliveries[-1].topic_partition == TopicPartition(topic, 0)
        assert len(bench.accumulator.blocked_records.memory_waiters) == number + 1
    bench.ack(bench.drain_one())
    while bench.accumulator.blocked_records.memory_waiters:
        before = len(bench.accumulator.blocked_records.memory_waiters)
        bench.accumulator.admit(bench.now, 1)
        if len(bench.accumulator.blocked_records.memory_waiters) == before:
            for batch in bench.drain():
                bench.ack(batch)
            continue
        placed += [
            number
            for number, delivery in enumerate(deliveries)
            if isinstance(delivery._group, ProducerBatch) and number not in placed
        ]
    assert placed == list(range(5))


def test_a_small_record_does_not_overtake_a_large_blocked_one() -> None:
    bench = Bench(topics={"a": 1, "b": 1}, memory=4096, batch_size=100)
    bench.send(b"x" * 1500, topic="a")
    large = bench.send(b"y" * 3000, topic="a")
    # 2 KiB are free, but the large one was first.
    small = bench.send(b"z", topic="b")
    bench.turn()
    assert bench.pool.available_memory >= 2048
    assert list(bench.accumulator.blocked_records.memory_waiters) == [large._group, small._group]


def test_a_record_that_needs_no_memory_does_not_wait() -> None:
    bench = Bench(topics={"a": 1, "b": 1}, memory=4096)
    bench.send(b"x", topic="b")
    bench.send(b"x" * 2900, topic="a")
    bench.send(b"y" * 2000, topic="a")
    assert bench.accumulator.blocked_records.memory_waiters
    delivery = bench.send(b"z", topic="b")
    assert isinstance(delivery._group, ProducerBatch)


def test_records_of_a_topic_queue_behind_its_blocked_records() -> None:
    bench = Bench(topics={"t": 2}, memory=4096)
    bench.send(b"x", partition=1)
    bench.send(b"x" * 2900, partition=0)
    waiting = [bench.send(b"y" * 2000, partition=0), bench.send(b"y", partition=1)]
    assert [delivery.done() for delivery in waiting] == [False, False]
    assert list(bench.accumulator.blocked_records.memory_waiters) == [delivery._group for delivery in waiting]
    assert [value[:1] for value in sent_values(bench)] == [b"x", b"x", b"y", b"y"]


def test_when_the_first_blocked_record_leaves_the_next_is_served() -> None:
    bench = Bench(memory=8192, batch_size=100)
    bench.send(b"x" * 3500)
    large = bench.send(b"y" * 6000)
    small = bench.send(b"z" * 1000)
    bench.turn()
    assert len(bench.accumulator.blocked_records.memory_waiters) == 2
    bench.wakes = 0
    assert large.cancel()
    assert large.withdrawn
    assert bench.wakes
    bench.turn()
    assert not bench.accumulator.blocked_records.memory_waiters
    assert isinstance(small._group, ProducerBatch)


def test_a_record_that_leaves_the_queue_leaves_no_state() -> None:
    """It leaves by its deadline, by cancel, or by failing; afterwards all memory is available."""
    bench = Bench(memory=4096, max_block=5.0, batch_size=100)
    first = fill_memory(bench)
    withdrawn, expired, failed = (bench.send(b"y" * 700) for _ in range(3))
    withdrawn.cancel()
    bench.accumulator.blocked_records.remove(failed._group)
    bench.later(5.0)
    assert expired.exception() is not None
    waiting = bench.accumulator.blocked_records.pending
    assert (waiting.size, len(waiting.records), len(bench.accumulator.blocked_records.memory_waiters)) == (0, 0, 0)
    assert bench.accumulator.topics["t"].blocked_count == 0
    bench.ack(bench.drain_one())
    assert first.done()
    assert bench.all_memory_is_back()
    assert not fill_memory(bench).done()
    assert not bench.accumulator.blocked_records.memory_waiters


def test_blocked_records_expire_in_order_and_the_next_deadline_is_known() -> None:
    bench = Bench(topics={}, max_block=5.0)
    first = bench.send(topic="a")
    bench.now = 1.0
    second = bench.send(topic="b")
    assert bench.accumulator.next_deadline() == 5.0
    bench.later(4.0)
    assert (first.done(), second.done()) == (True, False)
    assert bench.accumulator.next_deadline() == 6.0
    bench.later(1.0)
    assert second.done()
    assert bench.accumulator.next_deadline() == float("inf")
    assert not bench.accumulator.blocked_records.topics


def test_the_queue_is_bounded_and_the_error_says_what_to_do() -> None:
    bench = Bench(topics={}, memory=4096)
    bench.send(b"x" * 3000, topic="unknown")
    with pytest.raises(BufferExhaustedError, match=r"Await the sends, or call `await producer\.drain\(\)`"):
        bench.send(b"x" * 1000, topic="other")
    assert bench.accumulator.blocked_records.pending.size == 3000 + PENDING_OVERHEAD
    assert len(bench.accumulator.blocked_records.pending.records) == 1


def test_a_topic_without_metadata_does_not_delay_others() -> None:
    bench = Bench(topics={"known": 1})
    waiting = bench.send(topic="unknown")
    assert list(bench.accumulator.blocked_records.topics) == ["unknown"]
    assert isinstance(bench.send(topic="known")._group, ProducerBatch)
    assert bench.accumulator.blocked_records.records_of_topic("unknown", 10, 10) == [waiting._group]
    assert bench.accumulator.blocked_records.records_of_topic("known", 10, 10) == []
    assert bench.accumulator.blocked_records.records_of_topic("never sent to", 10, 10) == []
    bench.accumulator.set_partition_count("unknown", 1, 0)
    bench.accumulator.topics.set_leader("unknown", 0, NODE, 0)
    assert not bench.accumulator.blocked_records.topics
    bench.turn()
    assert isinstance(waiting._group, ProducerBatch)
    assert sorted(sent_values(bench)) == [b"value"] * 2


def test_a_blocked_record_is_a_copy() -> None:
    bench = Bench(topics={})
    value, key, header = bytearray(b"value"), bytearray(b"key"), bytearray(b"header")
    bench.send(memoryview(value), topic="t", partition=None, key=key, headers=[("name", header), ("null", None)])
    for each in (value, key, header):
        each[:] = b"#" * len(each)
    bench.accumulator.set_partition_count("t", 1, 0)
    bench.accumulator.topics.set_leader("t", 0, NODE, 0)
    bench.turn()
    bench.accumulator.ready.end_lingering(0)
    batch = bench.drain_one()
    (record,) = records_of(batch)
    assert (record.key, record.value, record.headers) == (b"key", b"value", (("name", b"header"), ("null", None)))


def test_a_batched_record_is_a_copy() -> None:
    bench = Bench()
    value = bytearray(b"value")
    bench.send(value)
    value[:] = b"#####"
    assert sent_values(bench) == [b"value"]


def test_admit_serves_at_most_its_limit_per_call() -> None:
    bench = Bench(topics={})
    for _ in range(5):
        bench.send(topic="t")
    bench.accumulator.set_partition_count("t", 1, 0)
    assert bench.accumulator.admit(0, 2)
    assert len(bench.accumulator.blocked_records.memory_waiters) == 3
    assert bench.accumulator.admit(0, 2)
    assert not bench.accumulator.admit(0, 2)
    assert not bench.accumulator.blocked_records.memory_waiters


def test_records_of_a_new_topic_are_unblocked_a_bounded_number_at_a_time() -> None:
    """Ten thousand records that waited for metadata once took ten milliseconds of one loop pass."""
    bench = Bench(topics={})
    values = [b"%d" % number for number in range(2 * RECORDS_PER_STEP + 7)]
    for value in values:
        bench.send(value, topic="t")
    lines = bench.accumulator.blocked_records
    bench.accumulator.set_partition_count("t", 1, 0)
    bench.accumulator.topics.set_leader("t", 0, NODE, 0)
    moved = [len(lines.memory_waiters)]
    while lines.pending.records:
        before = len(lines.memory_waiters)
        wakes = bench.wakes
        bench.accumulator.admit(0, 100)
        moved.append(len(lines.memory_waiters) + 100 - before)
        assert bench.wakes > wakes or not lines.topics
    assert max(moved) == RECORDS_PER_STEP
    assert not lines.topics
    bench.send(b"last", topic="t")
    assert sent_values(bench) == [*values, b"last"]


def test_metadata_wait_times_are_summed_a_bounded_number_at_a_time() -> None:
    """Summing all of them at once took eight milliseconds for 64 MiB of one-kilobyte records."""
    bench = Bench(topics={})
    count = 2 * RECORDS_PER_STEP + 7
    for number in range(count):
        bench.send(b"%d" % number, topic="t")
    lines = bench.accumulator.blocked_records
    bench.accumulator.set_partition_count("t", 1, 2)
    assert lines.metadata_wait == 2 * RECORDS_PER_STEP
    bench.accumulator.topics.set_leader("t", 0, NODE, 2)
    while lines.pending.records:
        # Their waiting for each other no longer depends on metadata.
        bench.accumulator.admit(5, 100)
    assert lines.metadata_wait == 2 * count


def test_waiting_for_an_unknown_partition_counts_as_metadata_wait() -> None:
    bench = Bench(topics={"t": 1})
    bench.send(b"1", partition=1)
    bench.send(b"0", partition=0)
    assert bench.accumulator.blocked_records.metadata_wait == 0
    bench.accumulator.set_partition_count("t", 2, 3)
    assert bench.accumulator.blocked_records.metadata_wait == 3


def test_a_record_for_an_unknown_partition_waits_for_it() -> None:
    bench = Bench(topics={"t": 1})
    waiting = bench.send(b"1", partition=1)
    behind = bench.send(b"0", partition=0)
    assert list(bench.accumulator.blocked_records.topics) == ["t"]
    bench.accumulator.set_partition_count("t", 2, 0)
    bench.accumulator.topics.set_leader("t", 1, NODE, 0)
    bench.turn()
    assert sorted(sent_values(bench)) == [b"0", b"1"]
    assert waiting.done()
    assert behind.done()


def test_no_batch_lingers_while_records_are_blocked_on_memory() -> None:
    bench = Bench(topics={"t": 3}, memory=3072, linger=100.0)
    for partition in range(2):
        bench.send(partition=partition)
    assert bench.drain() == []
    bench.send(b"x" * 2000, partition=2)
    assert len(bench.drain()) == 2


# The position of a record with an async serializer


def test_a_record_being_serialized_keeps_its_position() -> None:
    bench = Bench()
    accumulator = bench.accumulator
    first = accumulator.blocked_records.make_record("t", 0, None, None, (), 1000, bench.now)
    accumulator.blocked_records.add(first, 100)
    first.serialized = False
    bench.send(b"second")
    bench.turn()
    assert not bench.queue().batches
    assert accumulator.blocked_records.pending.size == 100 + len(b"second") + 2 * PENDING_OVERHEAD
    first.value = b"first"
    first.serialized = True
    accumulator.blocked_records.pending.recharge(first)
    accumulator.blocked_records.advance(accumulator.topics.ensure("t"), bench.now)
    bench.turn()
    assert sent_values(bench) == [b"first", b"second"]
    assert accumulator.blocked_records.pending.size == 0


@pytest.mark.parametrize("end", ["cancel", "expire", "fail"])
def test_when_the_record_blocking_its_topic_leaves_the_next_is_admitted(end: str) -> None:
    """The next record once waited for its deadline, or for another send of the topic."""
    bench = Bench(max_block=5.0)
    accumulator = bench.accumulator
    first = accumulator.blocked_records.make_record("t", 0, None, None, (), 1000, bench.now)
    accumulator.blocked_records.add(first, 100)
    first.serialized = False
    bench.now = 1.0
    second = bench.send(b"second")
    if end == "cancel":
        first.delivery.cancel()
    elif end == "fail":
        accumulator.blocked_records.remove(first)
        first.fail(KafkaError("the serializer failed"))
    else:
        bench.now = 5.0
    bench.turn()
    assert isinstance(second._group, ProducerBatch)
    assert not accumulator.blocked_records.topics


# Topics that change


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("left_by", ["cancel", "expiry"])
def test_send_to_an_unknown_topic_whose_queue_became_empty_blocks(key, left_by: str) -> None:
    """It once raised "'NoneType' has no attribute 'partition'", or hashed over zero partitions."""
    bench = Bench(topics={}, max_block=5.0)
    delivery = bench.send(topic="new", partition=None, key=key)
    if left_by == "cancel":
        delivery.cancel()
    else:
        bench.later(5.0)
    again = bench.send(topic="new", partition=None, key=key)
    assert not again.done()
    assert list(bench.accumulator.blocked_records.topics) == ["new"]


def test_a_blocked_record_whose_partition_disappears_delays_no_other() -> None:
    """It once raised 'list index out of range' repeatedly at the head of the queue for memory."""
    bench = Bench(topics={"t": 3, "u": 1}, memory=4096, batch_size=100)
    fill_memory(bench, "u")
    gone = bench.send(b"gone", partition=2)
    stays = bench.send(b"stays", partition=0)
    other = bench.send(b"other", topic="u")
    bench.accumulator.set_partition_count("t", 1, bench.now)
    bench.accumulator.topics.set_leader("t", 0, NODE, bench.now)
    bench.ack(bench.drain_one())
    bench.turn()
    assert isinstance(other._group, ProducerBatch)
    assert isinstance(stays._group, ProducerBatch)
    assert not gone.done()
    assert list(bench.accumulator.blocked_records.topics) == ["t"]
    assert list(bench.accumulator.topics["t"].unknown_partition_waiters) == [gone._group]
    bench.accumulator.set_partition_count("t", 3, bench.now)
    bench.accumulator.topics.set_leader("t", 2, NODE, bench.now)
    bench.turn()
    assert sorted(sent_values(bench)) == [b"gone", b"other", b"stays"]


def test_a_missing_partition_delays_only_its_own_records() -> None:
    """All records of the topic once waited behind it for max_block_ms, and failed with it."""
    bench = Bench(topics={"t": 2}, max_block=10.0)
    missing = [bench.send(b"%d" % number, partition=7) for number in range(2)]
    others = [bench.send(b"key", key=b"k", partition=None), bench.send(b"1", partition=1), bench.send(partition=None)]
    assert all(isinstance(delivery._group, ProducerBatch) for delivery in others)
    assert bench.accumulator.topics["t"].blocked_count == 0
    assert not bench.accumulator.topics["t"].is_idle()
    assert missing[0].cancel()
    assert missing[0].withdrawn
    missing.append(bench.send(b"2", partition=7))
    bench.accumulator.set_partition_count("t", 8, bench.now)
    bench.accumulator.topics.set_leader("t", 7, NODE, bench.now)
    behind = bench.send(b"3", partition=7)
    bench.turn()
    assert [delivery.topic_partition.partition for delivery in (*missing[1:], behind)] == [7, 7, 7]
    assert not bench.accumulator.blocked_records.topics
    stored = [
        record.value for batch in bench.drain() if batch.topic_partition.partition == 7 for record in records_of(batch)
    ]
    assert stored == [b"1", b"2", b"3"]
    late = bench.send(b"late", partition=9)
    bench.now += 10.0
    (expired,) = bench.accumulator.blocked_records.expired_records(bench.now)
    assert expired is late._group
    assert not bench.accumulator.blocked_records.topics
    assert not bench.accumulator.topics["t"].unknown_partition_waiters


def test_a_partition_number_beyond_the_known_count_waits_for_the_partition() -> None:
    partition = [0]
    bench = Bench(memory=4096, batch_size=100, choose_partition=lambda topic, key, value: partition[0])
    bench.send(b"x" * 3900, partition=None)
    partition[0] = 5
    delivery = bench.send(b"x" * 100, partition=None)
    bench.ack(bench.drain_one())
    bench.turn()
    assert delivery.topic_partition == TopicPartition("t", 5)
    assert list(bench.accumulator.blocked_records.topics) == ["t"]
    again = Bench(memory=4096, topics={}, choose_partition=lambda topic, key, value: 5)
    delivery = again.send(partition=None)
    again.accumulator.set_partition_count("t", 2, 0)
    again.turn()
    assert delivery.topic_partition == TopicPartition("t", 5)
    again.accumulator.set_partition_count("t", 6, 0)
    again.turn()
    assert isinstance(delivery._group, ProducerBatch)


def test_the_partitioner_is_called_once_for_a_record_that_waits() -> None:
    """The partitioner was once called twice, so a round robin over two partitions chose the same one every time."""
    asked: list[bytes] = []

    def choose(topic, key, value) -> int:
        asked.append(value)
        return len(asked) % 2

    bench = Bench(topics={"t": 2}, memory=2048, batch_size=100, choose_partition=choose)
    deliveries = [bench.send(b"%d" % number + b"x" * 150, partition=None) for number in range(3)]
    for _ in range(10):
        bench.turn()
        for batch in bench.drain():
            bench.ack(batch)
    assert [int(value[:1]) for value in asked] == [0, 1, 2]
    assert [delivery.result().partition for delivery in deliveries] == [1, 0, 1]


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), InvalidPartitionError("partition -1")])
def test_a_partitioner_error_fails_only_the_blocked_record(error: Exception) -> None:
    def choose(topic, key, value) -> int:
        if value == b"bad":
            raise error
        return 0

    bench = Bench(topics={}, choose_partition=choose)
    bad = bench.send(b"bad", topic="t", partition=None)
    good = bench.send(b"good", topic="t", partition=None)
    bench.accumulator.set_partition_count("t", 1, 0)
    bench.turn()
    assert isinstance(good._group, ProducerBatch)
    failure = bad.exception()
    assert isinstance(failure, KafkaError)
    assert failure.__traceback__ is None
    if isinstance(error, KafkaError):
        assert str(failure) == "partition -1"
    else:
        assert str(failure) == "The partitioner failed on a record for topic 't': ZeroDivisionError('by zero')"


def test_the_queue_empties_though_as_many_records_arrive_as_are_served() -> None:
    """Ten thousand coroutines, each awaiting its sends, were once queued for seconds after metadata had arrived."""
    bench = Bench(topics={}, memory=1 << 24, batch_size=1 << 20, max_request_size=1 << 21)
    sent = [b"%d" % number for number in range(1000)]
    for value in sent:
        bench.send(value)
    bench.accumulator.set_partition_count("t", 1, bench.now)
    bench.accumulator.topics.set_leader("t", 0, NODE, bench.now)
    turns = 0
    while bench.accumulator.blocked_records.memory_waiters:
        turns += 1
        assert turns < 10
        bench.accumulator.admit(bench.now, 100)
        more = [b"%d" % number for number in range(len(sent), len(sent) + 100)]
        for value in more:
            bench.send(value)
        sent += more
    assert not bench.accumulator.topics["t"].blocked_count
    assert sent_values(bench) == sent


def test_a_partitioner_that_sends_during_admission_duplicates_no_record() -> None:
    sent: list[bytes] = []

    def choose(topic: str, key: Buffer | None, value: Buffer | None) -> int:
        if bench.accumulator.blocked_records.memory_waiters and len(sent) < 20:
            sent.append(b"within %d" % len(sent))
            bench.send(sent[-1], partition=None)
        return 0

    bench = Bench(topics={}, choose_partition=choose)
    sent += [b"before", b"too"]
    for value in list(sent):
        bench.send(value, partition=None)
    bench.accumulator.set_partition_count("t", 1, bench.now)
    bench.accumulator.topics.set_leader("t", 0, NODE, bench.now)
    sent.append(b"after")
    bench.send(b"after", partition=None)
    while bench.accumulator.admit(bench.now, 3):
        pass
    assert len(sent) == 20
    assert sent_values(bench) == sent


def test_records_for_a_topic_without_partitions_are_queued() -> None:
    bench = Bench(topics={"t": 2})
    bench.send(partition=None)
    bench.accumulator.set_partition_count("t", 0, 0)
    for key in (None, b"key"):
        delivery = bench.send(partition=None, key=key)
        assert not isinstance(delivery._group, ProducerBatch)
    # Batched records go to the old leader.
    assert len(sent_values(bench)) == 1
    bench.accumulator.set_partition_count("t", 2, 0)
    bench.turn()
    assert not bench.accumulator.blocked_records.memory_waiters


def test_partitions_without_a_record_share_one_empty_queue() -> None:
    bench = Bench(topics={"t": 3})
    idle = bench.queue("t", 1).batches
    assert bench.queue("t", 2).batches is idle
    bench.send(partition=0)
    assert len(bench.queue("t", 0).batches) == 1
    assert not idle


# Compression


def test_small_batches_are_compressed_inline_and_large_ones_off_the_loop() -> None:
    bench = Bench(codec=codec("gzip"), batch_size=1 << 16, linger=0)
    bench.send(b"x" * 1000)
    batch = bench.drain_one()
    assert batch.codec_id == 1
    bench.ack(batch)
    bench.send(b"x" * 10_000)
    assert bench.drain() == []
    assert len(bench.accumulator.compression.waiting) == 1
    assert bench.drain() == []
    bench.send(b"behind it")
    assert bench.drain() == []
    bench.compress()
    assert bench.accumulator.compression.waiting == {}
    assert values_of(bench.drain_one()) == [b"x" * 10_000]
    bench.drain_one()


@pytest.mark.parametrize(
    ("name", "level", "at_once"), [("zstd", 19, False), ("zstd", None, True), ("lz4", 12, False), ("gzip", 9, True)]
)
def test_a_slow_compression_level_is_not_run_inline(name: str, level: int | None, at_once: bool) -> None:
    """The batches of one request at zstd's level 19 once blocked the loop for a quarter of a second."""
    bench = Bench(codec=codec(name), compression_level=level, linger=0)
    bench.send(b"value")
    assert len(bench.drain()) == at_once
    to_compress = bench.accumulator.compression.take_waiting()
    assert len(to_compress) == (not at_once)
    for batch in to_compress:
        assert batch.body is not None
        bench.accumulator.compressed(batch, codec(name).compress(batch.body, level), bench.now)
        assert sent_values(bench) == [b"value"]


def test_a_full_batch_is_compressed_before_its_broker_is_ready() -> None:
    bench = Bench(codec=codec("lz4"), batch_size=2000, linger=100.0)
    bench.accumulator.topics.set_leader("t", 0, -1, 0)
    bench.send(b"x" * 3000)
    assert len(bench.compress()) == 1
    bench.accumulator.topics.set_leader("t", 0, NODE, 0)
    assert values_of(bench.drain_one()) == [b"x" * 3000]


def test_a_batch_takes_more_uncompressed_bytes_if_they_compress_well() -> None:
    bench = Bench(codec=codec("gzip"), batch_size=2000, linger=0, memory=1 << 22, max_request_size=20_000)

    def largest() -> int:
        for _ in range(200):
            bench.send(b"x" * 100)
        sizes = []
        while batches := (bench.compress() and []) or bench.drain():
            for batch in batches:
                sizes.append(batch.uncompressed_size())
                bench.ack(batch)
        return max(sizes)

    assert largest() <= 2000
    for _ in range(100):
        bench.send(b"x" * 1000)
        bench.compress()
        for batch in bench.drain():
            bench.ack(batch)
    assert 2000 < largest() <= 20_000


def test_varying_compression_ratios_do_not_fragment_the_memory() -> None:
    class Varying(GzipCodec):
        """Compresses with a varying ratio, as texts do."""

        def compress(self, buffers: Sequence[Buffer], level: int | None = None) -> bytes:
            size = sum(len(buffer) for buffer in buffers)
            return bytes(int(size * random.uniform(0.4, 0.44)))

    random = Random(5)
    bench = Bench(topics={"t": 4}, codec=Varying(), batch_size=32768, memory=1 << 22, linger=0)
    waiting: list[ProducerBatch] = []
    pieces: list[int] = []
    sent = 0
    while len(pieces) < 2000:
        # A caller that is faster than the codec: the memory is always full.
        while bench.accumulator.drain_waiters.has_room():
            bench.send(b"x" * 500, partition=sent // 200 % 4)
            sent += 1
        waiting += bench.accumulator.compression.take_waiting()
        batch = waiting.pop(0)
        assert batch.body is not None
        pieces.append(len(batch.body))
        bench.accumulator.compressed(batch, bench.accumulator.settings.codec.compress(batch.body), bench.now)
        for batch in bench.drain():
            bench.ack(batch)
        bench.turn()
    # At most one slab per power of two of the size, and some more if the memory ran out.
    assert sum(pieces[-1000:]) / 1000 < 8


@pytest.mark.parametrize(("batch_size", "largest"), [(16_384, 5_000), (131_072, 5_000), (131_072, 20_000)])
def test_records_of_many_sizes_do_not_fragment_the_memory(batch_size: int, largest: int) -> None:
    """Batches of 128 KiB once had 28 slabs on average if records had 50 to 5,000 bytes."""
    random = Random(5)
    bench = Bench(topics={"t": 4}, batch_size=batch_size, memory=1 << 23, linger=0)
    pieces: list[int] = []
    sent = 0
    while len(pieces) < 2000:
        while bench.accumulator.drain_waiters.has_room():
            bench.send(b"x" * random.randint(50, largest), partition=sent // 200 % 4)
            sent += 1
        for batch in bench.drain():
            pieces.append(len(batch.slabs))
            bench.ack(batch)
        bench.turn()
    assert sum(pieces[-1000:]) / 1000 < 6


@pytest.mark.parametrize("end", ["expire", "abort"])
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_batch_that_fails_while_it_is_compressed_returns_its_memory_once(end: str, when: str) -> None:
    bench = Bench(codec=codec("gzip"), batch_size=1 << 16, linger=0, delivery_timeout=10.0)
    delivery = bench.send(b"x" * 10_000)
    assert bench.drain() == []
    taken = bench.accumulator.compression.take_waiting() if when == "while" else []
    if end == "expire":
        bench.later(10.0)
    else:
        bench.completion.fail_all(KafkaError("closed"), 0)
    assert delivery.exception() is not None
    if when == "before":
        assert bench.accumulator.compression.take_waiting() == []
    else:
        (batch,) = taken
        assert not bench.all_memory_is_back()
        # The compressor still reads what was appended.
        data = codec("gzip").compress(batch.body)
        bench.accumulator.compressed(batch, data, bench.now)
        assert batch.codec_id == 0
    assert bench.all_memory_is_back()
    assert bench.drain() == []


def test_a_batch_whose_compression_fails_can_be_failed_and_releases_its_memory() -> None:
    bench = Bench(codec=codec("gzip"), batch_size=1 << 16, linger=0)
    delivery = bench.send(b"x" * 10_000)
    bench.drain()
    (batch,) = bench.accumulator.compression.take_waiting()
    bench.accumulator.compressed(batch, None, bench.now)
    assert not delivery.done()
    bench.completion.fail(batch, KafkaError("compression failed"), bench.now)
    assert str(delivery.exception()) == "compression failed"
    assert bench.all_memory_is_back()


def test_a_compressed_batch_that_is_too_large_is_split_and_resets_the_estimate() -> None:
    bench = Bench(codec=codec("gzip"), batch_size=1 << 16, linger=0)
    bench.send(b"x" * 100)
    bench.ack(bench.drain_one())
    assert bench.accumulator.compression.ratios.estimate("t") < 1
    deliveries = [bench.send(b"%d" % number * 100) for number in range(9)]
    bench.refuse(bench.drain_one(), 10)
    assert bench.accumulator.compression.ratios.estimate("t") == 1.0
    offset = 0
    for _ in range(20):
        for batch in bench.drain():
            assert batch.codec_id == 1
            bench.ack(batch, offset)
            offset += batch.record_count
        bench.compress()
    assert [delivery.result().offset for delivery in deliveries] == list(range(9))
    assert bench.all_memory_is_back()


# Deadlines


def test_the_next_deadline_is_the_earliest_of_all() -> None:
    bench = Bench(topics={"t": 2}, linger=0.5, delivery_timeout=100.0, max_block=50.0)
    accumulator = bench.accumulator
    assert accumulator.next_deadline() == float("inf")
    bench.send(topic="unknown")
    assert accumulator.next_deadline() == 50.0
    bench.now = 1.0
    bench.send()
    assert accumulator.next_deadline() == 1.5
    bench.later(0.5)
    batch = bench.drain_one()
    assert accumulator.next_deadline() == 50.0
    bench.refuse(batch, 19)
    assert accumulator.next_deadline() == 1.6
    bench.later(0.1)
    bench.accumulator.blocked_records.records_of_topic("unknown", 10, 10)[0].delivery.cancel()
    assert accumulator.next_deadline() == 101.0
    bench.ack(bench.drain_one())
    assert accumulator.next_deadline() == float("inf")


def test_a_partition_without_leader_causes_no_wakeups() -> None:
    bench = Bench(linger=0.5, delivery_timeout=100.0)
    bench.accumulator.topics.set_leader("t", 0, -1, 0)
    bench.send()
    bench.later(0.5)
    assert bench.accumulator.next_deadline() == 100.0
    assert not bench.accumulator.ready.ready_nodes


def test_all_memory_is_released_after_any_history() -> None:
    """Batches are acked, retried, expired in flight and acked late, split, or aborted; each returns memory once."""
    bench = Bench(topics={"t": 5}, delivery_timeout=10.0, batch_size=500)
    for partition in range(5):
        bench.send_batch(3, partition=partition)
    acked, retried, expired, split, aborted = bench.drain()
    bench.ack(acked)
    bench.refuse(retried, 19)
    bench.refuse(split, 10)
    bench.later(0.1)
    again = bench.drain()
    for batch in again:
        if batch is retried:
            bench.ack(batch)
    bench.completion.fail(aborted, KafkaError("aborted"), bench.now)
    bench.later(10.0)
    for batch in (expired, aborted, *(batch for batch in again if batch is not retried)):
        bench.ack(batch)
        bench.accumulator.release(batch)
    assert not bench.accumulator.has_undelivered()
    assert bench.all_memory_is_back()


def test_a_codec_error_during_drain_keeps_the_batches_drained_before() -> None:
    class Failing(GzipCodec):
        def compress(self, buffers: Sequence[Buffer], level: int | None = None) -> bytes:
            if b"bad" in b"".join(buffers):
                raise MemoryError
            return super().compress(buffers, level)

    bench = Bench(topics={"t": 2}, codec=Failing(), linger=0)
    bench.send(b"good", topic="t", partition=0)
    bench.send(b"bad", topic="t", partition=1)
    drained = bench.drain()
    assert [values_of(batch) for batch in drained] == [[b"good"]]
    assert [batch.topic_partition.partition for batch in bench.accumulator.compression.take_waiting()] == [1]


@pytest.mark.parametrize("rest", [5, 400, 2000])
def test_a_nested_send_does_not_overwrite_another_record(rest: int) -> None:
    """Reading a caller's object runs its code: a nested send once took the same offset, and a record was lost."""
    bench = Bench(linger=100.0, batch_size=1000)

    class Sends(list[tuple[str, bytes | None]]):
        def __iter__(self) -> Iterator[tuple[str, bytes | None]]:
            while self.left:
                self.left -= 1
                inner.append(bench.send(bytes(rest)))
            return super().__iter__()

        left = 3

    inner: list[Delivery] = []
    first = bench.send(b"first")
    outer = bench.send(b"outer", headers=Sends([("h", b"v")]))
    bench.accumulator.ready.end_lingering(bench.now)
    stored = []
    while batches := bench.drain():
        for batch in batches:
            assert [record.offset for record in records_of(batch)] == list(range(batch.record_count))
            stored += values_of(batch)
            bench.ack(batch)
    assert sorted(map(repr, stored)) == sorted(map(repr, [b"first", b"outer", *[bytes(rest)] * 3]))
    assert all(delivery.done() for delivery in (first, outer, *inner))
    assert bench.all_memory_is_back()


class TestTheRestOfTheMemory:
    """With little memory left, batches would consist of thousands of small pieces to allocate, checksum and send."""

    def test_a_record_waits_for_memory_in_flight_rather_than_take_a_small_remainder(self) -> None:
        bench = Bench(topics={"t": 2}, memory=64 * 1024, batch_size=16 * 1024)
        under_way = []
        for _ in range(3):
            for _ in range(15):
                bench.send(b"x" * 1000, partition=0)
            bench.accumulator._close_batch(bench.queue(), bench.queue().open_batch, bench.now, full=True)
            under_way += bench.drain()
        for _ in range(3):
            bench.send(b"x" * 1000, partition=1)
        assert 8_000 < bench.pool.available_memory < 15_000
        bench.send(b"y" * 1000, partition=0)
        assert bench.accumulator.blocked_records.memory_waiters
        bench.ack(under_way[0])
        bench.turn()
        assert not bench.accumulator.blocked_records.memory_waiters
        (slab,) = bench.queue().open_batch.slabs
        assert slab.size >= 15_000

    def test_with_nothing_in_flight_a_small_remainder_is_used(self) -> None:
        bench = Bench(topics={"t": 2}, memory=20 * 1024, batch_size=64 * 1024)
        for partition in (0, 1):
            for _ in range(8):
                bench.send(b"x" * 1000, partition=partition)
        assert bench.pool.available_memory == 4 * 1024
        bench.send(b"y" * 1000, partition=0)
        assert not bench.accumulator.blocked_records.memory_waiters
        assert bench.queue().open_batch.record_count == 9


def test_the_memory_is_used_fully_though_batches_are_not_quite_full() -> None:
    """A full-size slab for each batch would leave a tenth of the memory unused and block callers sooner."""
    bench = Bench(topics={"t": 1}, memory=10_000_000, batch_size=100_000)
    taken = 0
    while not bench.accumulator.blocked_records.memory_waiters:
        bench.send(b"x" * 10_000, partition=0)
        taken += 1
    assert taken * 10_000 > 0.92 * 10_000_000
