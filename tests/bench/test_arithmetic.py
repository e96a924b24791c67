"""The bench's calculations from measured numbers."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import memory, raw_socket, ticker
from bench.java_peer import Progress, progress
from bench.job import CHUNK, VALUE, Job, latencies, percentile, texts
from bench.runner import derived
from bench.verdicts import Requirement, difference, figure, judge, ratio


def test_percentiles_are_exact_for_few_values() -> None:
    assert [percentile([1.0, 2.0, 3.0, 4.0], percent) for percent in (25, 26, 50, 75, 99, 100)] == [1, 2, 2, 3, 4, 4]
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300), st.sampled_from([1, 50, 90, 99, 99.9, 100]))
def test_a_percentile_is_the_smallest_value_that_its_share_does_not_exceed(values: list[int], percent: float) -> None:
    values.sort()
    found = percentile(values, percent)
    needed = math.ceil(len(values) * percent / 100 - 1e-9)
    assert sum(value <= found for value in values) >= needed
    assert sum(value < found for value in values) < needed


def test_latencies_are_microseconds() -> None:
    found = latencies([number * 1000 for number in range(100, 0, -1)])
    assert found == {"p50_us": 50, "p99_us": 99, "p99.9_us": 100, "max_us": 100}


def test_measurements_have_a_rate_and_cpu_time_of_each_record() -> None:
    found = derived({"records": 2_000_000, "elapsed": 4.0, "user": 1.5, "system": 0.5})
    assert (found["rate"], found["cpu_us"]) == (500_000, pytest.approx(1.0))
    assert derived({"wakeups_a_second": 0.5}) == {"wakeups_a_second": 0.5}


@given(st.integers(0, 5 * CHUNK))
def test_chunks_have_exactly_the_requested_number(count: int) -> None:
    chunks = list(Job("unkept").chunks(count))
    assert sum(map(len, chunks)) == count
    assert all(len(chunk) == CHUNK for chunk in chunks[:-1])
    assert {value for chunk in chunks for value in chunk} <= {VALUE}


def test_text_from_a_file_repeats_from_its_start(tmp_path) -> None:
    lines = texts(3 * CHUNK)
    path = tmp_path / "values"
    path.write_bytes(b"\n".join(lines) + b"\n")
    sent = [value for chunk in Job("unkept", values_file=str(path)).chunks(4 * CHUNK) for value in chunk]
    assert sent == lines + lines[:CHUNK]


def test_text_is_always_the_same_and_never_repeats() -> None:
    found = texts(500)
    assert found == texts(500)
    assert len(set(found)) == 500
    assert {len(value) for value in found} == {500}
    assert not any(b"\n" in value for value in found)


def test_ticks_that_a_blocked_loop_missed_are_counted() -> None:
    # 900 on time, one 100 ms late, and the 99 after it that never ran.
    found = ticker.summary([0.0] * 900 + [0.1], [number / 1000 for number in range(1, 100)])
    assert found["ticks"] == 1000
    assert found["late_p50_ms"] == 0
    assert found["late_p99_ms"] == pytest.approx(90)
    assert found["late_max_ms"] == pytest.approx(100)
    # The lateness of the callbacks alone hides it.
    assert found["ran_late_p99_ms"] == 0


def test_a_ticker_counts_a_fixed_grid(monkeypatch) -> None:
    class Loop:
        def __init__(self) -> None:
            self.later = []

        def call_later(self, delay, callback):
            self.later.append(delay)
            return asyncio.Handle(callback, (), self)

        def get_debug(self) -> bool:
            return False

    now = 10.0
    monkeypatch.setattr(ticker.time, "monotonic", lambda: now)
    loop = Loop()
    ticks = ticker.Ticker(loop)
    now = 10.0015
    ticks._tick()
    assert loop.later[-1] == pytest.approx(0.0005)
    # Blocked for 5 ms, and for 2 more at the end.
    now = 10.0072
    ticks._tick()
    now = 10.0101
    found = ticks.stop()
    assert found["ticks"] == 10
    assert found["late_max_ms"] == pytest.approx(5.2)


async def test_callbacks_have_the_names_of_their_functions() -> None:
    async def step() -> None:
        await asyncio.sleep(0)

    if not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
        pytest.skip("uvloop runs its callbacks by itself")
    run = asyncio.Handle._run
    with ticker.Callbacks() as timed:
        await asyncio.create_task(step())
        asyncio.get_running_loop().call_soon(memory.growth, [1, 1, 1, 1])
        await asyncio.sleep(0)
    assert asyncio.Handle._run is run
    assert len(timed.taken[f"{__name__}.{step.__qualname__}"]) == 2
    assert len(timed.taken["bench.memory.growth"]) == 1


def test_a_summary_of_callbacks_separates_ours_from_the_callers() -> None:
    timed = ticker.Callbacks()
    timed.taken.update({"aioproducer.io.x": [1000, 3000], "aioproducer.y": [2000], "caller": [9000], "other": [8000]})
    found = timed.summary("aioproducer", "caller")
    assert (found["callbacks"], found["callback_max_us"], found["caller_step_max_us"]) == (3, 3.0, 9.0)
    assert list(found["longest_us"]) == ["caller", "other", "aioproducer.io.x", "aioproducer.y"]


def test_growth_excludes_the_beginning() -> None:
    mib = 2**20
    assert memory.growth([0, 0, 50 * mib, 50 * mib, 50 * mib, 51 * mib, 51 * mib, 52 * mib]) == 1.5
    with pytest.raises(ValueError, match="four"):
        memory.growth([1, 2, 3])


def test_the_output_of_producer_performance_is_parsed() -> None:
    said = [
        "WARNING: something else",
        "1200 records sent, 24000.0 records/sec (2.29 MB/sec), 8.1 ms avg latency, 31.0 ms max latency.",
        "300 records sent, 6000.0 records/sec (0.57 MB/sec), 8.1 ms avg latency, 31.0 ms max latency.",
        "2000 records sent, 20000.000000 records/sec (1.91 MB/sec), 5.02 ms avg latency, 31.00 ms max latency, "
        "3 ms 50th, 20 ms 95th, 30 ms 99th, 31 ms 99.9th.",
    ]
    assert list(progress(said)) == [Progress(1200, False), Progress(1500, False), Progress(2000, True)]


RESULTS = {
    "a": {"ours": [{"round": 0, "cpu_us": 1.0}, {"round": 1, "cpu_us": 3.0}, {"round": 2, "cpu_us": 2.0}]},
    "b": {"peer": [{"round": 1, "cpu_us": 2.0}, {"round": 2, "cpu_us": 8.0}]},
}


def test_ratios_are_of_the_same_round() -> None:
    assert ratio(("a", "ours"), ("b", "peer"), "cpu_us")(RESULTS) == [1.5, 0.25]
    assert difference(("a", "ours"), ("b", "peer"), "cpu_us")(RESULTS) == [1.0, -6.0]
    assert ratio(("a", "ours"), ("b", "nobody"), "cpu_us")(RESULTS) == []


@pytest.mark.parametrize(
    ("limit", "at_least", "holds"), [(2.0, False, True), (1.9, False, False), (2.0, True, True), (2.1, True, False)]
)
def test_a_verdict_is_on_the_median(limit: float, at_least: bool, holds: bool) -> None:
    verdict = judge(Requirement("0", "", figure("a", "ours", "cpu_us"), limit, at_least), RESULTS)
    assert (verdict.measured, verdict.least, verdict.most, verdict.holds) == (2.0, 1.0, 3.0, holds)


def test_an_unmeasured_requirement_neither_holds_nor_fails() -> None:
    assert judge(Requirement("0", "", figure("a", "nobody", "cpu_us"), 1), RESULTS).holds is None


def test_frames_of_the_raw_socket_are_reassembled() -> None:
    frames = [b"first", b"", b"x" * 70_000, b"last"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        data = b"".join(len(frame).to_bytes(4) + frame for frame in frames)
        sending = threading.Thread(target=theirs.sendall, args=(data,))
        sending.start()
        responses = raw_socket.Responses(ours)
        assert [responses.receive() for _ in frames] == frames
        sending.join()


def test_the_raw_sockets_batch_is_as_large_as_allowed() -> None:
    for size in (16 * 1024, 128 * 1024):
        for value in (VALUE, b"x" * 1000, b"x" * 10_000):
            count = raw_socket.fitting(size, value)
            assert size - 1024 - len(value) < len(raw_socket.batch_of(count, value)) <= size


@pytest.mark.parametrize("count", [1, 7, 9, 40])
def test_the_raw_socket_sends_to_brokers_in_rotation_and_reads_every_response(count: int) -> None:
    with ExitStack() as stack:
        links, threads = [], []
        for number in range(3):
            ours, theirs = map(stack.enter_context, socket.socketpair())
            frames = [len(body).to_bytes(4) + body for body in (b"a%d" % number, b"b%d" % number)]
            links.append((ours, frames))
            threads.append(threading.Thread(target=_echo, args=(theirs,)))
        for thread in threads:
            thread.start()
        found = raw_socket.replay_to(links, count, in_flight=3)
        for ours, _ in links:
            ours.shutdown(socket.SHUT_WR)
        for thread in threads:
            thread.join()
    assert found == [b"%c%d" % ("ab"[number // 3 % 2].encode(), number % 3) for number in range(count)]


def _echo(sock: socket.socket) -> None:
    while data := sock.recv(65536):
        sock.sendall(data)


def test_values_have_the_size_of_the_job() -> None:
    sent = [value for chunk in Job("unkept", value_size=500).chunks(250) for value in chunk]
    assert (len(sent), {len(value) for value in sent}) == (250, {500})
