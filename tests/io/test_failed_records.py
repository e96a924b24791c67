"""Reports of failed records: the log level, and ``on_record_failed``."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer import Record
from aioproducer.errors import (
    BatchRejectedError,
    InvalidRecordError,
    InvalidTopicError,
    KafkaError,
    MetadataTimeoutError,
    RecordTooLargeError,
)
from aioproducer.io import failed_records
from aioproducer.io.failed_records import REPORT_SLICE_SECONDS
from aioproducer.io.failure_reporter import MAX_REJECTED_KEPT
from aioproducer.protocol import ApiKey
from tests.simulation import Fault, run

TOPIC_AUTHORIZATION_FAILED = 29
INVALID_RECORD = 87


def failures(caplog):
    """Return level and text, without the client id, of the log lines about failed records."""
    lines = [(record.levelname, record.getMessage().partition("] ")[2]) for record in caplog.records]
    return [(level, text) for level, text in lines if "unobserved (no await" in text]


@pytest.fixture
def log(caplog):
    with caplog.at_level(logging.DEBUG, logger="aioproducer"):
        yield caplog


# The log


class Acknowledged:
    """An interceptor that receives every outcome."""

    def on_acknowledgement(self, metadata, error, headers):
        pass


async def leave_alone(sent):
    pass


async def await_all(sent):
    await asyncio.gather(*sent, return_exceptions=True)


async def await_but_one(sent):
    await asyncio.gather(*sent[1:], return_exceptions=True)


async def call_back(sent):
    for delivery in sent:
        delivery.add_done_callback(lambda delivery: None)


async def mix(sent):
    """Awaiters and callbacks, some records with both."""
    for delivery in sent[:6]:
        delivery.add_done_callback(lambda delivery: None)
    await asyncio.gather(*sent[4:], return_exceptions=True)


async def give_up(sent):
    """An awaiter of all of them no longer waits."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.gather(*sent)


@pytest.mark.parametrize(
    ("observe", "unobserved"),
    [(leave_alone, 10), (await_all, 0), (await_but_one, 1), (call_back, 0), (mix, 0), (give_up, 10)],
)
@pytest.mark.parametrize("config", [{}, {"interceptor_classes": [Acknowledged()]}], ids=["plain", "interceptor"])
def test_a_failed_batch_is_logged_as_an_error_if_a_record_is_unobserved(observe, unobserved, config, log):
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=50, **config) as producer:
            await producer.send("clicks", b"warm")
            fault = Fault(api=ApiKey.PRODUCE, error=TOPIC_AUTHORIZATION_FAILED)
            world.cluster.faults.append(fault)
            sent = [producer.send("clicks", b"value") for _ in range(10)]
            await observe(sent)
            await producer.flush()

    _, world = run(scenario)
    [(level, text)] = failures(log)
    assert level == ("ERROR" if unobserved else "DEBUG")
    beginning = f"10 records for clicks-0 failed, {unobserved} of them unobserved (no await, no callback): "
    assert text.startswith(beginning + "The client is not allowed to access the topic.")
    # ``on_error`` is called with or without an observer.
    assert [(str(where), count) for where, count, _ in world.failures] == [("clicks-0", 10)]


@pytest.mark.parametrize(("observe", "unobserved"), [(leave_alone, 10), (await_all, 0), (await_but_one, 1)])
@pytest.mark.parametrize("serializes", [False, True])
def test_blocked_records_that_fail_together_are_logged_once(observe, unobserved, serializes, log):
    """The callback with which the producer itself ends a serializer does not count as an observer."""

    async def serialize(value):
        await asyncio.sleep(10 if serializes else 0)
        return value

    async def scenario(world):
        async with world.producer(max_block_ms=1000, value_serializer=serialize) as producer:
            sent = [producer.send("missing", b"value") for _ in range(10)]
            await observe(sent)
            await producer.flush()
            # After two passes of the loop the lines are logged.
            await asyncio.sleep(0.01)

    run(scenario)
    [(level, text)] = failures(log)
    assert level == ("ERROR" if unobserved else "DEBUG")
    assert text.startswith(f"10 records for missing failed, {unobserved} of them unobserved")


def test_a_batched_record_from_an_async_serializer_is_unobserved(log):
    async def serialize(value):
        await asyncio.sleep(0)
        return value

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=TOPIC_AUTHORIZATION_FAILED))
        async with world.producer(value_serializer=serialize) as producer:
            producer.send("clicks", b"value")
            await producer.flush()

    run(scenario)
    [(level, text)] = failures(log)
    assert level == "ERROR"
    assert "1 of them unobserved" in text


@pytest.mark.parametrize(
    ("observe", "unobserved"),
    [(leave_alone, 10), (await_all, 0), (await_but_one, 1)],
)
def test_a_record_that_send_rejects_is_observed_if_awaited_at_once(observe, unobserved, log):
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(max_request_size=1000) as producer:
            await observe([producer.send("clicks", bytes(2000)) for _ in range(10)])
            with pytest.raises(RecordTooLargeError):
                await producer.send("clicks", bytes(2000))
            await asyncio.sleep(0.01)

    run(scenario)
    lines = failures(log)
    assert lines[0][0] == ("ERROR" if unobserved else "DEBUG")
    counts = [int(text.split()[0]) for _, text in lines]
    assert sum(counts) == 11
    assert f"{unobserved} of them unobserved" in lines[0][1]


def test_a_bounded_number_of_records_that_send_rejects_is_kept(log):
    async def scenario(world):
        async with world.producer(max_request_size=1000) as producer:
            for number in range(2 * MAX_REJECTED_KEPT + 10):
                delivery = producer.send("clicks", bytes(2000))
                if number % 2:
                    with pytest.raises(RecordTooLargeError):
                        await delivery
            [refused] = producer._running_parts().failures._rejected.values()
            assert len(refused._recent) <= MAX_REJECTED_KEPT
            await asyncio.sleep(0.01)

    run(scenario)
    [(level, text)] = failures(log)
    assert level == "ERROR"
    count, unobserved = 2 * MAX_REJECTED_KEPT + 10, MAX_REJECTED_KEPT + 5
    assert text.startswith(f"{count} records for clicks failed, {unobserved} of them unobserved")


def test_a_send_from_another_thread_is_unobserved(log):
    """It is unknown whether its thread will read the outcome."""

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=TOPIC_AUTHORIZATION_FAILED))
        async with world.producer() as producer:
            future = producer.threadsafe().send("clicks", b"value")
            await asyncio.sleep(1)
            return future.exception()

    error, _ = run(scenario)
    assert isinstance(error, KafkaError)
    [(level, _)] = failures(log)
    assert level == "ERROR"


# on_record_failed


class DeadLetters:
    """A hook that keeps its arguments."""

    def __init__(self):
        self.records = []
        self.errors = []

    def on_record_failed(self, record, error):
        self.records.append(record)
        self.errors.append(error)

    @property
    def values(self):
        return [record.value for record in self.records]


def memory_is_back(producer):
    pool = producer._accumulator.pool
    return pool.available_memory == pool.total_memory


RECORDS = st.lists(
    st.builds(
        Record,
        topic=st.just("clicks"),
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=200),
        timestamp_ms=st.integers(0, 2**62),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=30,
)


@given(RECORDS, st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]), st.sampled_from([1, 200, 16384]))
@settings(max_examples=40, deadline=None)
def test_the_hook_gets_every_record_of_a_failed_batch_as_it_was_sent(records, codec, batch_size):
    letters = DeadLetters()

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=TOPIC_AUTHORIZATION_FAILED, times=1000))
        config = {"compression_type": codec, "batch_size": batch_size, "linger_ms": 1}
        async with world.producer(hooks=(letters,), **config) as producer:
            sent = [producer.send_record(record) for record in records]
            await producer.flush()
            errors = [delivery.exception() for delivery in sent]
            await producer.close()
            assert memory_is_back(producer)
        return errors

    errors, _ = run(scenario)
    assert letters.records == [record.replace(partition=0) for record in records]
    assert [(type(error), str(error)) for error in letters.errors] == [(type(error), str(error)) for error in errors]


def test_the_hook_gets_each_record_of_a_rejected_batch_with_its_own_error():
    letters = DeadLetters()

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(hooks=(letters,), linger_ms=10) as producer:
            await producer.send("clicks", b"warm")
            world.cluster.faults.append(
                Fault(api=ApiKey.PRODUCE, error=INVALID_RECORD, culprits=((1, "no key"), (2, "no value")))
            )
            for number in range(4):
                producer.send("clicks", b"%d" % number)
            await producer.flush()

    run(scenario)
    assert letters.values == [b"0", b"1", b"2", b"3"]
    kinds = [BatchRejectedError, InvalidRecordError, InvalidRecordError, BatchRejectedError]
    assert [type(error) for error in letters.errors] == kinds
    assert letters.errors[0].culprits == ((1, "no key"), (2, "no value"))


def test_a_batch_is_read_back_while_a_transport_reads_it():
    letters = DeadLetters()

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"request_timeout_ms": 3000, "delivery_timeout_ms": 3050, "linger_ms": 0}
        async with world.producer(hooks=(letters,), **config) as producer:
            await producer.send("clicks", b"warm")
            [stalled] = [connection for connection in world.connections if connection.node.id == 1]
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, throttle_time_ms=2000))
            await producer.send("clicks", b"warm")
            stalled.transport.receive_window = 0
            producer.send("clicks", b"slow" * 1000)
            await world.until(lambda: letters.records)
            assert letters.errors[0].may_have_been_written
            assert not memory_is_back(producer)
            stalled.transport.receive_window = None
            await world.until(lambda: memory_is_back(producer))

    run(scenario, send_buffer_bytes=0)
    assert letters.values == [b"slow" * 1000]


def test_the_hook_gets_the_records_of_the_parts_of_a_split_batch():
    letters = DeadLetters()

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1]).max_message_bytes = 500
        async with world.producer(hooks=(letters,), linger_ms=10) as producer:
            for size in (100, 600, 100, 600):
                producer.send("clicks", bytes(size), partition=0)
            await producer.flush()
            # The memory is released after the records have been read.
            await world.until(lambda: memory_is_back(producer))

    _, world = run(scenario)
    assert [len(value) for value in letters.values] == [600, 600]
    assert [len(value) for value in world.cluster.values("clicks")] == [100, 100]


def test_the_hook_gets_blocked_records_with_their_contents():
    letters = DeadLetters()

    async def scenario(world):
        async with world.producer(hooks=(letters,), max_block_ms=1000) as producer:
            producer.send("missing", bytearray(b"value"), b"key", timestamp_ms=5, headers=[("name", b"header")])
            producer.send("missing", None, partition=3, timestamp_ms=6)
            producer.send("missing", b"withdrawn").cancel()
            await producer.flush()

    run(scenario)
    assert letters.records == [
        Record("missing", b"value", b"key", None, 5, (("name", b"header"),)),
        Record("missing", None, None, 3, 6),
    ]
    assert {type(error) for error in letters.errors} == {MetadataTimeoutError}
    assert not any(error.may_have_been_written for error in letters.errors)


def test_the_hook_gets_a_batched_record_whose_delivery_was_cancelled():
    letters = DeadLetters()

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(hooks=(letters,), linger_ms=10) as producer:
            await producer.send("clicks", b"warm")
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=TOPIC_AUTHORIZATION_FAILED))
            producer.send("clicks", b"value").cancel()
            await producer.flush()

    run(scenario)
    assert letters.values == [b"value"]


@pytest.mark.parametrize("fault", ["late", "failing", "too large"])
def test_the_hook_gets_a_record_with_an_unfinished_serializer_as_the_caller_passed_it(fault):
    letters = DeadLetters()

    async def serialize(value):
        await asyncio.sleep(10 if fault == "late" else 0.1)
        if fault == "failing":
            raise ValueError("broken")
        return bytes(value["size"])

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        config = {"max_block_ms": 1000, "max_request_size": 1000, "value_serializer": serialize}
        async with world.producer(hooks=(letters,), **config) as producer:
            producer.send("clicks", {"size": 2000}, b"key", timestamp_ms=7, headers=[("name", None)])
            await producer.flush()

    run(scenario)
    assert letters.records == [Record("clicks", {"size": 2000}, b"key", None, 7, (("name", None),))]


def test_the_hook_gets_records_that_send_rejects_but_not_those_for_which_send_raises():
    letters = DeadLetters()

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(hooks=(letters,), max_request_size=1000) as producer:
            large = bytearray(2000)
            producer.send("clicks", memoryview(large), b"key", partition=0, timestamp_ms=1, headers=[("name", large)])
            large[0] = 1
            producer.send("no topic", b"value", timestamp_ms=2)
            with pytest.raises(TypeError):
                producer.send("clicks", "text")
        with pytest.raises(KafkaError):
            producer.send("clicks", b"closed")

    run(scenario)
    assert letters.records == [
        Record("clicks", bytes(2000), b"key", 0, 1, (("name", bytes(2000)),)),
        Record("no topic", b"value", None, None, 2),
    ]
    assert [type(error) for error in letters.errors] == [RecordTooLargeError, InvalidTopicError]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_hook_gets_the_records_that_close_fails(codec):
    letters = DeadLetters()
    count = 2000

    async def scenario(world):
        world.cluster.create_topic("clicks", 2, leaders=[1, 2])
        async with world.producer(hooks=(letters,), batch_size=1000, compression_type=codec) as producer:
            await producer.send("clicks", b"warm", partition=0)
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer="silence", times=1000))
            for number in range(count):
                producer.send("clicks", b"%d" % number, partition=number % 2)
            producer.send("missing", b"in line")
            await asyncio.sleep(1)
            await producer.close(0.5)
            assert memory_is_back(producer)

    run(scenario)
    assert sorted(letters.values) == sorted([b"in line", *[b"%d" % number for number in range(count)]])
    reported = zip(letters.records, letters.errors, strict=True)
    written = {record.value: error.may_have_been_written for record, error in reported}
    assert not written[b"in line"]
    assert set(written.values()) == {True, False}


@pytest.mark.parametrize("ends", ["task", "loop", "close"])
def test_the_hook_gets_records_if_the_task_or_close_is_cancelled(ends):
    letters = DeadLetters()

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        producer = world.producer(hooks=(letters,), max_block_ms=60_000)
        await producer.start()
        await producer.send("clicks", b"warm")
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer="silence", times=1000))
        for number in range(100):
            producer.send("clicks", b"%d" % number)
            producer.send("missing", b"%d" % (100 + number))
        await asyncio.sleep(0.1)
        if ends == "task":
            producer._task.cancel()
        elif ends == "loop":
            # As asyncio.run does.
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        else:
            closing = asyncio.create_task(producer.close())
            await asyncio.sleep(0.1)
            closing.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if ends != "close":
            assert len(letters.records) == 200
        await producer.close()
        assert memory_is_back(producer)

    run(scenario)
    assert sorted(map(int, letters.values)) == list(range(200))


def test_an_exception_of_the_hook_is_logged_and_it_gets_the_other_records(log):
    letters = DeadLetters()

    class Failing:
        def on_record_failed(self, record, error):
            raise ZeroDivisionError

    async def scenario(world):
        async with world.producer(hooks=(Failing(), letters), max_block_ms=1000) as producer:
            for number in range(3):
                producer.send("missing", b"%d" % number)
            await producer.flush()

    run(scenario)
    assert letters.values == [b"0", b"1", b"2"]
    assert len([each for each in log.records if each.getMessage().endswith("Failing.on_record_failed failed")]) == 3


def test_a_batch_that_cannot_be_read_back_is_logged_and_the_hook_gets_the_others(log):
    letters = DeadLetters()

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(hooks=(letters,), linger_ms=10) as producer:
            await producer.send("clicks", b"warm")
            failed_records = producer._running_parts().failures.failed_records
            body = failed_records._body
            bodies = iter([b"\x02"])
            failed_records._body = lambda batch: next(bodies, None) or body(batch)
            for value in (b"first", b"second"):
                world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=TOPIC_AUTHORIZATION_FAILED))
                producer.send("clicks", value)
                await producer.flush()
                await asyncio.sleep(0.01)

    run(scenario)
    assert letters.values == [b"second"]
    assert "Decoding failed records for on_record_failed failed" in log.text


def test_without_the_hook_no_record_is_kept():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(linger_ms=10, max_request_size=1000) as producer:
            assert producer._running_parts().failures.failed_records is None
            await producer.send("clicks", b"warm")
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=TOPIC_AUTHORIZATION_FAILED))
            delivery = producer.send("clicks", b"value")
            await producer.flush()
            assert delivery.done()
            assert memory_is_back(producer)
            assert producer.send("clicks", bytes(2000))._group.value is None

    run(scenario)


def test_the_hook_gets_many_records_over_many_loop_passes(monkeypatch):
    """A batch of thousands of records blocks the loop no longer than a blocked record."""
    passes = []

    class Watch:
        def on_record_failed(self, record, error):
            passes.append(asyncio.get_running_loop().turns)

    async def scenario(world):
        # Each reading of the clock advances it by a tenth of the slice.
        clock = itertools.count()
        monkeypatch.setattr(failed_records, "perf_counter", lambda: next(clock) * REPORT_SLICE_SECONDS / 10)
        world.cluster.create_topic("clicks", leaders=[1])
        async with world.producer(hooks=(Watch(),), linger_ms=10, batch_size=100_000, max_block_ms=1000) as producer:
            await producer.send("clicks", b"warm")
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=TOPIC_AUTHORIZATION_FAILED))
            for _ in range(2000):
                producer.send("clicks", b"value")
                producer.send("missing", b"value")
            await producer.flush()

    run(scenario)
    assert len(passes) == 4000
    assert max(Counter(passes).values()) <= 11


@pytest.mark.parametrize("threads", [True, False])
def test_a_large_compressed_batch_is_decompressed_in_a_thread_if_there_is_one(threads, monkeypatch):
    letters = DeadLetters()
    in_thread, sizes = [], [1000, 100, 1001]
    to_thread = asyncio.to_thread

    async def watched(function, *arguments):
        in_thread.append(len(arguments[0]))
        if not threads:
            raise RuntimeError("can't start new thread")
        return await to_thread(function, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", watched)

    async def scenario(world):
        world.cluster.create_topic("clicks", 3, leaders=[1, 1, 1])
        config = {"compression_type": "gzip", "batch_size": 1_000_000, "linger_ms": 10}
        async with world.producer(hooks=(letters,), **config) as producer:
            await producer.partitions_for("clicks")
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=TOPIC_AUTHORIZATION_FAILED, times=10))
            for partition, size in enumerate(sizes):
                for number in range(100):
                    producer.send("clicks", b"%d" % number + bytes(size), partition=partition)
            await producer.flush()

    run(scenario)
    assert sorted(letters.values) == sorted(b"%d" % number + bytes(size) for size in sizes for number in range(100))
    # The small one is read at once.
    assert len(in_thread) == 2


def test_the_hook_gets_records_at_once_if_they_are_rejected_faster_than_reported():
    """Records that wait for the hook are always bounded by buffer_memory."""
    letters = DeadLetters()

    async def scenario(world):
        async with world.producer(hooks=(letters,), max_request_size=1000, buffer_memory=20_000) as producer:
            waiting = producer._running_parts().failures.failed_records
            for number in range(1000):
                producer.send("clicks", b"%d" % number + bytes(2000))
                assert waiting._size <= 20_000
                assert len(waiting._waiting) <= 20

    run(scenario)
    assert [int(value.rstrip(b"\0")) for value in letters.values] == list(range(1000))
