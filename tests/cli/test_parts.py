"""The parts of commands: counting, positions, writing, threads, options, signals."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.cli.broker import parse_listen
from aioproducer.cli.columns import Outgoing
from aioproducer.cli.exits import CommandError, CommandUsageError
from aioproducer.cli.feeding import PIECES_AHEAD, Feeder
from aioproducer.cli.options import FromEnvironment, OneLine, client_config, pairs
from aioproducer.cli.positions import parse_position
from aioproducer.cli.progress import Reporter, human_bytes, human_count
from aioproducer.cli.reading import BadLine
from aioproducer.cli.running import Interruption, run, run_briefly
from aioproducer.cli.summary import Latencies, Summary
from aioproducer.cli.worker import WholeWrites, Worker
from aioproducer.cli.writing import JsonLinesWriter, LinesWriter
from aioproducer.consumer import ConsumerRecord
from aioproducer.errors import ConfigurationError, KafkaStorageError, RecordTooLargeError
from aioproducer.record import TopicPartition

WHERE = TopicPartition("a", 0)


# Counting


@settings(max_examples=100)
@given(st.lists(st.floats(min_value=0.01, max_value=1e6), min_size=1), st.sampled_from([50, 99, 99.9]))
def test_percentiles_are_exact_to_a_few_percent(values, percent):
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    exact = sorted(values)[max(-(-len(values) * percent // 100), 1).__int__() - 1]
    assert latencies.percentile(percent) == pytest.approx(exact, rel=0.021)
    assert latencies.maximum == max(values)


def test_without_latencies_there_are_no_percentiles():
    assert (Latencies().percentile(50), Latencies().mean) == (None, None)
    latencies = Latencies()
    latencies.add(2.0, 3)
    latencies.add(6.0)
    assert (latencies.count, latencies.mean) == (4, 3.0)


def test_the_summary_separates_errors_of_records_from_grave_ones():
    summary = Summary()
    summary.on_error(WHERE, 2, RecordTooLargeError("large"))
    assert summary.grave_error is None
    summary.on_error(WHERE, 3, KafkaStorageError("disk"))
    assert (summary.failed, dict(summary.errors)) == (5, {"RecordTooLargeError": 2, "KafkaStorageError": 3})
    assert (str(summary.first_error), str(summary.grave_error)) == ("large", "disk")


def test_a_retry_is_reported_after_several_attempts_and_once_for_each_error():
    summary = Summary()
    for attempt in (1, 2, 3, 4):
        summary.on_batch_retried(WHERE, 10, attempt, KafkaStorageError("disk"))
    assert summary.retries == 40
    assert summary.messages == ["retrying a batch of a-0 after 3 failed attempts: disk"]


# Numbers and positions


def test_numbers_are_formatted_with_separators_and_units():
    assert [human_count(336776), human_bytes(999), human_bytes(1500), human_bytes(2.5e15)] == [
        "336,776", "999 B", "1.5 kB", "2500.0 TB"
    ]  # fmt: skip


def test_positions_may_have_several_forms():
    assert [parse_position(text, "--from") for text in ("beginning", "end", "7")] == ["beginning", "end", 7]
    assert parse_position("@1500", "--from").timestamp() == 1.5
    assert parse_position("1970-01-01T00:00:02Z", "--from").timestamp() == 2
    assert parse_position("2026-01-31", "--from").tzinfo is None
    for text in ("", "-1", "@x", "9" * 30):
        with pytest.raises(CommandUsageError, match="--from takes beginning, end, an offset"):
            parse_position(text, "--from")


async def test_progress_is_drawn_on_a_terminal_with_messages_above_it(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    reporter = Reporter("produce")
    async with reporter.progress(1000, lambda: (1234, 500)):
        await asyncio.sleep(0)
        reporter.say("line 7 is\nleft out [red]")
    shown = capsys.readouterr().err
    assert "1,234 records" in shown
    assert "50%" in shown
    assert "aioproducer produce: line 7 is left out [red]" in shown
    reporter.say("over")
    assert capsys.readouterr().err == "aioproducer produce: over\n"


async def test_without_a_terminal_nothing_is_drawn(capsys):
    looked = []
    async with Reporter("produce", quiet=True).progress(None, lambda: looked.append(1) or (0, 0)):
        await asyncio.sleep(0)
    assert len(looked) == 2
    assert capsys.readouterr().err == ""


def test_listeners_count_up_from_the_given_port():
    assert parse_listen("localhost:9092", 1) == ("localhost", [9092])
    assert parse_listen("[::1]:9092", 3) == ("::1", [9092, 9093, 9094])
    assert parse_listen("127.0.0.1:0", 2) == ("127.0.0.1", [0, 0])


# Options


def test_client_config_prefers_options_over_the_file_and_knows_both_spellings(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:1\nlinger.ms=1\nacks=1\nvalue.serializer=x\n")
    assert client_config(None, ["linger_ms=2", "batch.size=3"], [], str(file)) == {
        "bootstrap.servers": "file:1", "linger.ms": "2", "batch.size": "3", "acks": "1"
    }  # fmt: skip
    assert client_config("given:2", [], [], str(file))["bootstrap.servers"] == "given:2"
    assert client_config(None, [], [], None) == {"bootstrap.servers": "localhost:9092"}
    from_environment = FromEnvironment("environment:3")
    assert client_config(from_environment, [], [], None)["bootstrap.servers"] == "environment:3"
    assert client_config(from_environment, [], [], str(file))["bootstrap.servers"] == "file:1"
    settings = ["bootstrap.servers=setting:4"]
    assert client_config(from_environment, settings, [], None)["bootstrap.servers"] == "setting:4"
    assert client_config("given:2", settings, [], str(file))["bootstrap.servers"] == "given:2"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        client_config(None, [], [], str(tmp_path / "nope"))


def test_a_setting_has_everything_after_the_first_equals_sign():
    assert pairs(["a=b=c", " d =", "e=f"], "-X") == {"a": "b=c", "d": "", "e": "f"}
    for text in ("a", "=b"):
        with pytest.raises(CommandUsageError, match="-X takes NAME=VALUE"):
            pairs([text], "-X")


def test_every_log_message_is_one_line():
    error = OSError(28, "No space left")
    record = logging.LogRecord("l", logging.ERROR, "", 1, "two\nlines", (), (OSError, error, error.__traceback__))
    assert OneLine("%(levelname)s %(message)s").format(record) == f"ERROR two lines ({error!r})"


# Writing


def record(value, key=None, headers=()):
    return ConsumerRecord("t", 1, 2, 3, key, value, headers)


def test_records_are_written_as_lines_and_json_lines():
    file = io.BytesIO()
    LinesWriter(file, ("key", "value"), b"|").write([record(b"a\n", b"k"), record(None)])
    assert file.getvalue() == b"k|a\n\n|\n"
    file = io.BytesIO()
    writer = JsonLinesWriter(file, ("offset", "key", "value", "headers"))
    writer.write([record(b"\xff", None, (("h", b"\xfe"), ("h", None)))])
    writer.finish()
    assert json.loads(file.getvalue()) == {
        "offset": 2, "key": None, "value_base64": "/w==", "headers": [["h", {"base64": "/g=="}], ["h", None]]
    }  # fmt: skip


def test_everything_is_written_to_a_pipe_that_accepts_parts():
    read, write = os.pipe()
    os.set_blocking(read, True)
    file = WholeWrites(write, owned=True)
    found = bytearray()

    def take():
        while data := os.read(read, 10_000):
            found.extend(data)

    reader = threading.Thread(target=take)
    reader.start()
    assert file.write(b"x" * 300_000) == 300_000
    assert file.tell() == 300_000
    file.close()
    reader.join(10)
    os.close(read)
    assert len(found) == 300_000


# Threads


async def test_a_worker_returns_results_and_raises_errors():
    worker = Worker()
    assert await worker.do(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await worker.do(lambda: 1 / 0)
    release = threading.Event()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(worker.do(lambda: release.wait(10)), 0.01)
    release.set()
    assert await worker.do(lambda: 8) == 8
    worker.end()


def outgoing(value):
    return Outgoing(value, None, (), None)


async def test_a_feeder_passes_pieces_in_order_before_each_read_and_at_the_end():
    def rows(before_read):
        before_read(0)
        yield outgoing(b"1")
        yield BadLine(2, "bad", b"x\n")
        yield BadLine(2, "", b"y\n")
        before_read(10)
        yield outgoing(b"2")

    rejects = io.BytesIO()
    written = []
    rejects.close = lambda: written.append(rejects.getvalue())
    feeder = Feeder(rows, rejects=rejects)
    feeder.start()
    first, second = await feeder.next(), await feeder.next()
    assert (first.records, first.bad_lines, first.shown) == ([outgoing(b"1")], 1, ["line 2 is skipped: bad: x"])
    assert (second.records, second.bytes_read, second.bad_lines) == ([outgoing(b"2")], 10, 0)
    assert await feeder.next() is None
    assert written == [b"x\ny\n"]


async def test_a_feeder_reads_no_further_ahead_than_allowed():
    read = []

    def rows(before_read):
        for number in range(100):
            before_read(number)
            read.append(number)
            yield outgoing(b"%d" % number)

    feeder = Feeder(rows)
    feeder.start()
    for _ in range(200):
        await asyncio.sleep(0.001)
        if len(read) > PIECES_AHEAD:
            break
    await asyncio.sleep(0.02)
    assert len(read) == PIECES_AHEAD + 1
    pieces = 0
    while await feeder.next() is not None:
        pieces += 1
    assert pieces == 100


async def test_a_feeder_raises_errors_and_can_be_abandoned():
    def broken(before_read):
        yield outgoing(b"1")
        raise CommandError("no column")

    feeder = Feeder(broken)
    feeder.start()
    with pytest.raises(CommandError, match="no column"):
        await feeder.next()

    reached = threading.Event()

    def endless(before_read):
        try:
            while True:
                before_read(0)
                yield outgoing(b"1")
        finally:
            reached.set()

    feeder = Feeder(endless)
    feeder.start()
    await feeder.next()
    feeder.end()
    assert await asyncio.to_thread(reached.wait, 10)


@pytest.fixture
def full():
    with open("/dev/full", "wb") as file:
        yield file


async def test_rejects_that_cannot_be_written_end_the_run(full):
    feeder = Feeder(lambda before_read: iter([BadLine(1, "bad", b"x\n")]), rejects=full)
    feeder.start()
    await feeder.next()
    with pytest.raises(OSError, match="No space left"):
        await feeder.next()


# Signals


def test_the_first_signal_requests_the_end_and_the_second_cancels():
    async def stubborn(interruption: Interruption) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        await interruption.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(10)
        return 0

    assert run(stubborn) == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_brief_command_ends_at_the_first_signal():
    async def waits() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(10)
        return 0

    async def ends() -> int:
        return 7

    assert run_briefly(waits) == 128 + signal.SIGINT
    assert run_briefly(ends) == 7


def test_a_cancellation_without_a_signal_is_raised():
    async def cancelled(interruption: Interruption) -> int:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(cancelled)
