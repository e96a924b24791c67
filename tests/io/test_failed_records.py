"""How failed records are told: the log's level, and ``on_record_failed``."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aioproducer.errors import KafkaError, RecordTooLargeError
from aioproducer.producer import REFUSED_KEPT
from aioproducer.protocol import ApiKey
from tests.simulation import Fault, run

TOPIC_AUTHORIZATION_FAILED = 29
INVALID_RECORD = 87


def failures(caplog):
    """Level and text of the lines that tell of failed records."""
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [(level, text) for level, text in lines if "record(s) for" in text]


@pytest.fixture
def log(caplog):
    with caplog.at_level(logging.DEBUG, logger="aioproducer"):
        yield caplog


# The log


class Acknowledged:
    """An interceptor that hears of every outcome."""

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
    """One who waited for all of them no longer does."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.gather(*sent)


@pytest.mark.parametrize(
    ("observe", "unobserved"),
    [(leave_alone, 10), (await_all, 0), (await_but_one, 1), (call_back, 0), (mix, 0), (give_up, 10)],
)
@pytest.mark.parametrize("config", [{}, {"interceptor_classes": [Acknowledged()]}], ids=["plain", "interceptor"])
def test_a_failed_batch_is_an_error_in_the_log_if_a_record_of_it_is_unobserved(observe, unobserved, config, log):
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
    beginning = f"10 record(s) for clicks-0 failed, {unobserved} of them unobserved (no await, no callback): "
    assert text.startswith(beginning + "The client is not allowed to access the topic.")
    # Whoever observes, ``on_error`` is told.
    assert [(str(where), count) for where, count, _ in world.failures] == [("clicks-0", 10)]


@pytest.mark.parametrize(("observe", "unobserved"), [(leave_alone, 10), (await_all, 0), (await_but_one, 1)])
@pytest.mark.parametrize("serializes", [False, True])
def test_records_in_line_that_fail_are_one_line_for_all(observe, unobserved, serializes, log):
    """The callback by which the producer ends a serializer of its own observes nothing."""

    async def serialize(value):
        await asyncio.sleep(10 if serializes else 0)
        return value

    async def scenario(world):
        async with world.producer(max_block_ms=1000, value_serializer=serialize) as producer:
            sent = [producer.send("missing", b"value") for _ in range(10)]
            await observe(sent)
            await producer.flush()
            # Two passes of the loop: the lines come when all are through.
            await asyncio.sleep(0.01)

    run(scenario)
    [(level, text)] = failures(log)
    assert level == ("ERROR" if unobserved else "DEBUG")
    assert text.startswith(f"10 record(s) for missing failed, {unobserved} of them unobserved")


def test_a_record_that_an_async_serializer_made_is_unobserved_in_its_batch(log):
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
def test_records_that_send_refuses_are_observed_by_who_awaits_them_at_once(observe, unobserved, log):
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


def test_however_many_records_send_refuses_a_bounded_number_is_kept(log):
    async def scenario(world):
        async with world.producer(max_request_size=1000) as producer:
            for number in range(2 * REFUSED_KEPT + 10):
                delivery = producer.send("clicks", bytes(2000))
                if number % 2:
                    with pytest.raises(RecordTooLargeError):
                        await delivery
            [refused] = producer._refused.values()
            assert len(refused._recent) <= REFUSED_KEPT
            await asyncio.sleep(0.01)

    run(scenario)
    [(level, text)] = failures(log)
    assert level == "ERROR"
    assert text.startswith(
        f"{2 * REFUSED_KEPT + 10} record(s) for clicks failed, {REFUSED_KEPT + 5} of them unobserved"
    )


def test_a_send_from_another_thread_is_unobserved(log):
    """Whether its thread will ask for the outcome cannot be known."""

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
