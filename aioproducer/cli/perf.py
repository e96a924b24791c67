"""``aioproducer perf``: measure throughput and latency."""

from __future__ import annotations

import asyncio
import os
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from aioproducer.cli.existing import require_topic
from aioproducer.cli.exits import EXPLANATION, SUCCEEDED, CommandError, missing
from aioproducer.cli.options import ClusterOptions, cluster_options, diagnosis_options
from aioproducer.cli.output import print_json
from aioproducer.cli.progress import human_bytes, human_count, human_counted
from aioproducer.cli.running import Interruption, run
from aioproducer.cli.summary import Latencies, Summary, rounded
from aioproducer.errors import KafkaError
from aioproducer.producer import Producer
from aioproducer.record import TopicPartition

DEFAULT_DURATION = 10.0
# Number of different values, sent one after the other.
VALUES = 1000
INTERVAL = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """The records to send: up to a number of records or for a time, whichever ends first."""

    topic: str
    records: int | None
    duration: float | None
    size: int
    rate: float | None
    keys: int


@dataclass(frozen=True, slots=True)
class Interval:
    """The records acknowledged in about one second; ``at`` is its end, in seconds from the start."""

    at: float
    seconds: float
    records: int
    size: int
    latencies: Latencies

    def as_mapping(self) -> dict[str, object]:
        return {
            "at": round(self.at, 3),
            "records_per_second": round(self.records / self.seconds),
            "bytes_per_second": round(self.records * self.size / self.seconds),
            "latency_ms": {
                "p50": rounded(self.latencies.percentile(50)),
                "p99": rounded(self.latencies.percentile(99)),
                "max": rounded(self.latencies.maximum if self.latencies.count else None),
            },
        }


class Meter:
    """A hook that counts acknowledged records in intervals."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._latencies = Latencies()
        self._began = self._cut_at = perf_counter()
        self.intervals: list[Interval] = []

    def on_batch_acked(
        self, topic_partition: TopicPartition, record_count: int, base_offset: int | None, latency_ms: float
    ) -> None:
        self._latencies.add(latency_ms, record_count)

    def begin(self) -> None:
        """Start the first interval now."""
        self._began = self._cut_at = perf_counter()

    def cut(self) -> Interval:
        """End the interval and start the next."""
        now = perf_counter()
        latencies, self._latencies = self._latencies, Latencies()
        interval = Interval(now - self._began, max(now - self._cut_at, 1e-9), latencies.count, self._size, latencies)
        self._cut_at = now
        self.intervals.append(interval)
        return interval


@click.command("perf", epilog=EXPLANATION)
@click.argument("topic")
@click.option("-n", "--records", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option(
    "-t", "--duration", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help=f"Stop after this time.  [default: {DEFAULT_DURATION:g}, unless --records]",
)  # fmt: skip
@click.option("-s", "--size", type=click.IntRange(min=0), default=1000, show_default=True, help="Bytes of a value.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Records a second.  [default: no limit]")
@click.option("--keys", type=click.IntRange(min=0), default=0, show_default=True, help="Number of keys; 0 for none.")
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw rate and latency over time; needs aioproducer[plot].",
)
@click.option("--json", "as_json", is_flag=True, help="Print only one line of JSON, at the end.")
@cluster_options
@diagnosis_options
def command(
    topic: str,
    records: int | None,
    duration: float | None,
    size: int,
    rate: float | None,
    keys: int,
    create: bool,
    plot: Path | None,
    as_json: bool,
    cluster: ClusterOptions,
) -> int:
    """Send generated records to TOPIC, and print throughput and latency each second.

    The latency of a record is that of its batch: from the batch's first record to its acknowledgement. Without --rate
    the buffer is always full, and latency is mostly the time in the buffer; choose a rate to measure the cluster.

    \b
    Examples:
      aioproducer perf scratch --create --duration 30
      aioproducer perf scratch --rate 1000 --size 200 -X acks=1 -X linger.ms=0 --plot latency.svg
    """
    if records is None and duration is None:
        duration = DEFAULT_DURATION
    config = cluster.config()
    if plot is not None:
        _check_plot(plot)
    load = Load(topic, records, duration, size, rate, keys)
    return run(lambda interruption: _measure(load, config, cluster.timeout, create, plot, as_json, interruption))


def _check_plot(file: Path) -> None:
    """
    Raises:
        CommandError: the plot could not be drawn or written later.
    """
    try:
        figure = import_module("matplotlib.figure").Figure()
    except ModuleNotFoundError as error:
        raise missing(error.name or "matplotlib", "--plot", "plot") from None
    kinds = sorted(figure.canvas.get_supported_filetypes())
    if file.suffix[1:].lower() not in kinds:
        raise CommandError(f"--plot {file}: the file's extension must be one of {', '.join(kinds)}")
    if not os.access(file.parent, os.W_OK):
        raise CommandError(f"--plot {file}: the folder {file.parent} does not exist, or is not writable")


async def _measure(
    load: Load,
    config: dict[str, object],
    timeout: float,
    create: bool,
    plot: Path | None,
    as_json: bool,
    interruption: Interruption,
) -> int:
    if await interruption.unless(require_topic(config, load.topic, timeout, create=create)) is None:
        return interruption.exit_code
    summary, meter = Summary(), Meter(load.size)
    producer = Producer.from_config(config, on_error=summary.on_error, hooks=[summary, meter])
    async with producer:
        await producer.wait_ready(timeout)
        await producer.partitions_for(load.topic)
        meter.begin()
        began = perf_counter()
        showing = asyncio.create_task(_show(meter, as_json))
        try:
            sent_all = await interruption.unless(_send(producer, load, summary))
            await producer.flush()
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
        seconds = perf_counter() - began
    _print_interval(meter.cut(), as_json)
    _print_total(load, summary, meter, seconds, as_json)
    if plot is not None:
        draw(meter.intervals, plot, f"{load.topic}: {load.size} bytes a record")
    if summary.failed:
        error: KafkaError | None = summary.grave_error or summary.first_error
        raise CommandError(
            f"{human_count(summary.failed)} of {human_counted(summary.accepted, 'record')} failed. {error}"
        )
    return interruption.exit_code if sent_all is None else SUCCEEDED


async def _send(producer: Producer, load: Load, summary: Summary) -> bool:
    """Send all records of the load and return True."""
    generator = random.Random(0)
    letters = (string.ascii_letters + string.digits).encode()
    values = [bytes(generator.choices(letters, k=load.size)) for _ in range(min(VALUES, load.records or VALUES))]
    keys: list[bytes | None] = [f"key-{number}".encode() for number in range(load.keys)]
    keys = keys or [None]
    topic, send, drain = load.topic, producer.send, producer.drain
    key_sizes = [len(key or b"") for key in keys]
    began = perf_counter()
    sent = 0
    while (load.records is None or sent < load.records) and summary.grave_error is None:
        send(topic, values[sent % len(values)], keys[sent % len(keys)])
        summary.accepted_bytes += load.size + key_sizes[sent % len(keys)]
        sent += 1
        summary.accepted = sent
        await drain()
        elapsed = perf_counter() - began
        if load.duration is not None and elapsed >= load.duration:
            break
        if load.rate is not None:
            early = sent / load.rate - elapsed
            if early > 0:
                await asyncio.sleep(early)
    return True


async def _show(meter: Meter, as_json: bool) -> None:
    if not as_json:
        print(f"{'time':>7} {'records/s':>12} {'bytes/s':>10} {'p50 ms':>9} {'p99 ms':>9}", flush=True)
    while True:
        await asyncio.sleep(INTERVAL)
        _print_interval(meter.cut(), as_json)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _print_interval(interval: Interval, as_json: bool) -> None:
    if as_json:
        return
    rate = interval.records / interval.seconds
    p50, p99 = (_milliseconds(interval.latencies.percentile(percent)) for percent in (50, 99))
    print(
        f"{interval.at:6.1f}s {human_count(rate):>12} {human_bytes(rate * interval.size):>10} {p50:>9} {p99:>9}",
        flush=True,
    )


def _print_total(load: Load, summary: Summary, meter: Meter, seconds: float, as_json: bool) -> None:
    if as_json:
        intervals = [interval.as_mapping() for interval in meter.intervals]
        print_json({"topic": load.topic, "size": load.size, **summary.as_json(seconds), "intervals": intervals})
        return
    rate = summary.acked / seconds
    latencies = summary.latencies
    shown = ", ".join(
        f"{name} {_milliseconds(value)}"
        for name, value in (
            ("p50", latencies.percentile(50)),
            ("p99", latencies.percentile(99)),
            ("p99.9", latencies.percentile(99.9)),
            ("max", latencies.maximum if latencies.count else None),
        )
    )
    print(
        f"total: {human_counted(summary.acked, 'record')} in {seconds:.2f} s, {human_count(rate)} records/s, "
        f"{human_bytes(rate * load.size)}/s; latency in ms: {shown}"
    )


def draw(intervals: Sequence[Interval], file: Path, title: str) -> None:
    """Draw rate (above) and latency (below) over time.

    Raises:
        CommandError: the file cannot be written.
    """
    figure: Any = import_module("matplotlib.figure").Figure(figsize=(8, 5), layout="constrained")  # Any: no types
    rate, latency = figure.subplots(2, 1, sharex=True)
    times = [interval.at for interval in intervals]
    rate.plot(times, [interval.records / interval.seconds for interval in intervals], marker=".")
    rate.set_ylabel("records/s")
    rate.set_ylim(bottom=0)
    rate.set_title(title)
    for percent in (50, 99):
        values = [interval.latencies.percentile(percent) for interval in intervals]
        latency.plot(
            times, [float("nan") if value is None else value for value in values], marker=".", label=f"p{percent}"
        )
    latency.set_ylabel("latency (ms)")
    latency.set_xlabel("seconds")
    latency.set_ylim(bottom=0)
    latency.legend()
    try:
        figure.savefig(file)
    except OSError as error:
        raise CommandError(f"--plot {file} cannot be written: {error.strerror}") from error
