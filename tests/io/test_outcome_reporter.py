"""Outcomes for interceptors: each once, in order, in slices, and with the headers that were sent."""

from __future__ import annotations

import asyncio
import contextvars
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.core.batching.split import split_batch
from aioproducer.errors import KafkaError
from aioproducer.interceptors import InterceptorChain
from aioproducer.io import outcome_reporter
from aioproducer.io.outcome_reporter import MAX_BACKLOG, RECORDS_PER_CHUNK, REPORT_SLICE_SECONDS, OutcomeReporter
from aioproducer.protocol import ApiKey
from tests.core.accumulating import Bench, HandLoop
from tests.simulation import Fault, run

MESSAGE_TOO_LARGE = 10


class Witness:
    """An interceptor that records every outcome."""

    def __init__(self):
        self.seen = []

    def on_acknowledgement(self, metadata, exception, headers):
        self.seen.append((metadata.partition, metadata.offset, None if exception is None else type(exception), headers))

    @property
    def offsets(self):
        return [offset for _, offset, _, _ in self.seen]


def reporting(witness, **settings):
    """An accumulator that reports to the witness; the test runs its loop."""
    loop = HandLoop()
    reporter = OutcomeReporter(loop, InterceptorChain([witness]))
    bench = Bench(on_outcome=reporter.add, batch_size=1 << 19, linger=0, **settings)
    return bench, loop, reporter


def filled(bench, count, headers=()):
    for number in range(count):
        bench.send(b"%d" % number, partition=0, headers=headers)
    return bench.drain_one()


def test_each_record_is_reported_with_its_offset_and_headers():
    witness = Witness()
    bench, loop, _ = reporting(witness)
    bench.send(b"a", partition=0, headers=[("h", b"1")])
    bench.send(b"b", partition=0)
    bench.send(bytearray(b"c"), partition=0, headers=(("i", None), ("i", b"2")))
    batch = bench.drain_one()
    bench.ack(batch, 40)
    assert witness.seen == []
    loop.run()
    assert witness.seen == [(0, 40, None, (("h", b"1"),)), (0, 41, None, ()), (0, 42, None, (("i", None), ("i", b"2")))]
    # Deliveries may keep the batch.
    assert batch.kept_headers is None


def test_without_interceptors_no_headers_are_kept():
    bench = Bench(linger=0)
    bench.send(b"a", partition=0, headers=[("h", b"1")])
    batch = bench.drain_one()
    assert (batch.on_outcome, batch.kept_headers) == (None, None)


def test_a_failed_batch_is_reported_without_offsets():
    witness = Witness()
    bench, loop, _ = reporting(witness)
    batch = filled(bench, 2, [("h", b"1")])
    bench.completion.fail(batch, KafkaError("lost"), 1.0)
    # The response of a batch that has expired changes nothing.
    bench.ack(batch, 40)
    loop.run()
    assert witness.seen == [(0, None, KafkaError, (("h", b"1"),))] * 2


@given(st.lists(st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3), min_size=2))
def test_the_parts_of_a_split_batch_report_their_own_records(headers):
    witness = Witness()
    bench, loop, _ = reporting(witness)
    for number, pairs in enumerate(headers):
        bench.send(b"%d" % number, partition=0, headers=pairs)
    batch = bench.drain_one()
    parts = split_batch(batch, 100)
    bench.accumulator.request_ended(batch)
    bench.accumulator.split(batch, parts, 0.0)
    offset = 0
    for part in parts:
        part.succeed(offset, -1)
        offset += part.record_count
    loop.run()
    assert witness.seen == [(0, offset, None, tuple(pairs)) for offset, pairs in enumerate(headers)]


def test_a_slice_ends_in_time(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(outcome_reporter, "perf_counter", lambda: next(clock) * REPORT_SLICE_SECONDS * 0.6)
    witness = Witness()
    bench, loop, _ = reporting(witness)
    bench.ack(filled(bench, 100), 0)
    seen = []
    while loop.soon:
        callback, arguments, context = loop.soon.pop(0)
        context.run(callback, *arguments)
        seen.append(len(witness.seen))
    assert seen == [min(2 * RECORDS_PER_CHUNK * number, 100) for number in range(1, len(seen) + 1)]
    assert witness.offsets == list(range(100))


def test_a_backlog_that_is_too_large_is_reported_at_once(monkeypatch):
    monkeypatch.setattr(outcome_reporter, "perf_counter", itertools.count().__next__)
    witness = Witness()
    bench, loop, _ = reporting(witness)
    bench.ack(filled(bench, MAX_BACKLOG + 1000), 0)
    callback, arguments, context = loop.soon.pop(0)
    context.run(callback, *arguments)
    assert 1000 <= len(witness.seen) < 1000 + 2 * RECORDS_PER_CHUNK
    loop.run()
    assert witness.offsets == list(range(MAX_BACKLOG + 1000))


def test_an_interceptor_that_ends_the_loop_costs_no_outcome():
    class Interrupted(Witness):
        def on_acknowledgement(self, metadata, exception, headers):
            super().on_acknowledgement(metadata, exception, headers)
            if metadata.offset == 1:
                raise KeyboardInterrupt

    witness = Interrupted()
    bench, loop, _ = reporting(witness)
    bench.ack(filled(bench, 5), 0)
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    loop.run()
    assert witness.offsets == [0, 1, 2, 3, 4]


def test_an_interceptor_that_reports_the_rest_causes_no_duplicate():
    class Nested(Witness):
        def on_acknowledgement(self, metadata, exception, headers):
            super().on_acknowledgement(metadata, exception, headers)
            reporter.report_all()

    witness = Nested()
    bench, loop, reporter = reporting(witness)
    bench.ack(filled(bench, 5), 0)
    loop.run()
    assert witness.offsets == [0, 1, 2, 3, 4]


async def test_waiting_ends_with_the_outcomes_known_at_its_begin():
    """Continuously acknowledged records do not delay ``flush``."""
    loop = asyncio.get_running_loop()

    class Endless(Witness):
        def on_acknowledgement(self, metadata, exception, headers):
            super().on_acknowledgement(metadata, exception, headers)
            if len(self.seen) < 100_000:
                bench.ack(filled(bench, 1), len(self.seen))

    witness = Endless()
    reporter = OutcomeReporter(loop, InterceptorChain([witness]))
    bench = Bench(on_outcome=reporter.add, linger=0)
    bench.ack(filled(bench, 3), 0)
    await reporter.wait_reported()
    assert 3 <= len(witness.seen) < 100_000
    reporter.report_all()


def test_interceptors_run_in_the_context_of_the_producers_start():
    variable = contextvars.ContextVar("variable", default="outside")

    class Reading:
        def on_acknowledgement(self, metadata, exception, headers):
            values.append(variable.get())

    values = []
    variable_context = contextvars.copy_context()
    variable_context.run(variable.set, "started")
    bench, loop, _ = variable_context.run(reporting, Reading())
    variable.set("sending")
    bench.ack(filled(bench, 1), 0)
    loop.run()
    assert values == ["started"]


def test_every_record_of_a_cluster_with_faults_is_reported_once():
    witness = Witness()

    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1, 2])
        async with world.producer(
            interceptor_classes=[witness], linger_ms=5, batch_size=500, max_block_ms=1000
        ) as producer:
            await producer.send("clicks", b"warm", partition=0)
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, error=MESSAGE_TOO_LARGE, times=3))
            sent = [producer.send("clicks", b"%d" % number, headers=[("n", b"%d" % number)]) for number in range(200)]
            sent += [producer.send("missing", b"%d" % number) for number in range(50)]
            withdrawn = [each for each in sent[-50::5] if each.cancel()]
            outcomes = await asyncio.gather(*sent, return_exceptions=True)
            acknowledged = [each for each in outcomes if not isinstance(each, BaseException)]
            expected = {(each.partition, each.offset) for each in acknowledged}
            reported = [(partition, offset) for partition, offset, kind, _ in witness.seen[1:] if kind is None]
            assert len(reported) == len(expected)
            assert set(reported) == expected
            assert sum(kind is asyncio.CancelledError for _, _, kind, _ in witness.seen) == len(withdrawn) == 10
            assert len(witness.seen) == 251

    run(scenario)
