"""The job of one run of one client, and how it is measured; shared by all clients."""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

VALUE = b"x" * 100
TEXT_SIZE = 500
# Records between two calls of `drain`, or of a client's equivalent.
CHUNK = 100
# Number of distinct values; together they are larger than a codec's window within one batch.
TEXTS = 10_000

Measurement = dict[str, Any]
# Value, key and headers.
Message = tuple[str, bytes, list[tuple[str, bytes]]]


@dataclass(frozen=True)
class Job:
    """The work of one run. ``records`` are measured, the ``warm_up`` records before them are not."""

    work: str
    bootstrap: str = ""
    topic: str = ""
    partitions: int = 4
    records: int = 0
    warm_up: int = 0
    # "uvloop", "asyncio", or "" for a client without an event loop.
    loop: str = ""
    linger_ms: int = 5
    batch_size: int = 128 * 1024
    compression: str = "none"
    # A file with one value a line, instead of VALUE.
    values_file: str = ""
    # Whether every value is a separate object.
    distinct: bool = False
    coroutines: int = 1
    seconds: float = 0
    topics: int = 1
    records_a_batch: int = 0
    buffer_memory: int = 32 * 1024 * 1024
    # Topics (of `topics`) that get one record before the measurement, and none during it.
    idle_topics: int = 0
    # Bytes of each value without `values_file`.
    value_size: int = len(VALUE)
    # Bytes of JSON of each event: 100 or 1,000.
    event_size: int = 100
    # An interceptor of this project's producer, by its name in `ours.PLUGINS`.
    plugin: str = ""
    # Records a second, if they are sent at scheduled times.
    rate: int = 0
    # Records of each transaction, if there are transactions. `coroutines` of them are open at the same time.
    records_a_transaction: int = 0

    def shares(self, records: int) -> int:
        """Return how many transactions each of the job's coroutines, or threads, has for ``records`` records."""
        return records // self.records_a_transaction // self.coroutines

    def values(self) -> list[bytes]:
        """Return the values that are sent, in order."""
        return list(_lines(self.values_file)) if self.values_file else [b"x" * self.value_size] * CHUNK

    def chunks(self, count: int) -> Iterator[Sequence[bytes]]:
        """Return ``count`` values in lists of ``CHUNK``, made in advance: iterating over them costs little."""
        values = self.values()
        chunks = [values[start : start + CHUNK] for start in range(0, len(values), CHUNK)]
        whole, rest = divmod(count, CHUNK)
        yield from islice(cycle(chunks), whole)
        if rest:
            yield chunks[whole % len(chunks)][:rest]

    def messages(self, count: int) -> Iterator[Sequence[Message]]:
        """Return ``count`` messages in lists of ``CHUNK``, made in advance."""
        made = _messages()
        chunks = [made[start : start + CHUNK] for start in range(0, len(made), CHUNK)]
        whole, rest = divmod(count, CHUNK)
        yield from islice(cycle(chunks), whole)
        if rest:
            yield chunks[whole % len(chunks)][:rest]


@cache
def _messages(count: int = TEXTS, seed: int = 8) -> list[Message]:
    """Return messages as services send them: text of 50 to 2,000 characters, a key, and a header with the origin."""
    source = random.Random(seed)
    letters = "".join(source.choices("abcdefghijklmnopqrstuvwxyz     ", k=4000))
    result = []
    for number in range(count):
        start, size = source.randrange(2000), source.randint(50, 2000)
        trace = f"00-{source.getrandbits(128):032x}-{source.getrandbits(64):016x}-01".encode()
        result.append((letters[start : start + size], b"customer-%d" % (number % 3000), [("traceparent", trace)]))
    return result


@cache
def _lines(path: str) -> tuple[bytes, ...]:
    return tuple(Path(path).read_bytes().splitlines())


def texts(count: int = TEXTS, size: int = TEXT_SIZE, seed: int = 6) -> list[bytes]:
    """Return log lines as of a web shop: words by Zipf's law, numbers, identifiers.

    No two lines are equal, and every run has the same ones. They compress about as well as such logs: see the ``ratio``
    that is measured for each codec alone.
    """
    source = random.Random(seed)
    consonants, vowels = "bcdfghjklmnprstvwz", "aeiou"
    words = [
        "".join(source.choice(consonants) + source.choice(vowels) for _ in range(source.randint(1, 4)))
        for _ in range(3000)
    ]
    frequencies = [1 / (rank + 3) for rank in range(len(words))]
    levels = ["INFO"] * 8 + ["WARN", "ERROR"]
    result = []
    for number in range(count):
        head = (
            f'{{"time":"2025-03-{source.randint(1, 28):02}T{source.randint(0, 23):02}:{source.randint(0, 59):02}:'
            f'{source.randint(0, 59):02}.{source.randint(0, 999):03}Z","level":"{source.choice(levels)}",'
            f'"request":"{source.getrandbits(64):016x}","number":{number},'
            f'"took_us":{int(source.lognormvariate(7, 1.5))},"text":"'
        )
        text = head + " ".join(source.choices(words, frequencies, k=size // 4))
        result.append(text[: size - 2].encode() + b'"}')
    return result


class Stopwatch:
    """Measures wall time, and user and system CPU time of this process with all its threads, in seconds."""

    def __init__(self) -> None:
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._began = time.perf_counter()

    def stop(self, records: int, **more: Any) -> Measurement:
        """Return the measurements of ``records``, together with ``more``."""
        elapsed = time.perf_counter() - self._began
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "records": records,
            "elapsed": elapsed,
            "user": usage.ru_utime - self._usage.ru_utime,
            "system": usage.ru_stime - self._usage.ru_stime,
            **more,
        }


async def measure(job: Job, send: Callable[[int], Awaitable[object]], **more: Any) -> Measurement:
    """Measure ``send`` for the job's records, after the warm-up's; return that together with ``more``."""
    await send(job.warm_up)
    watch = Stopwatch()
    await send(job.records)
    return watch.stop(job.records, sent=job.warm_up + job.records, **more)


def measure_blocking(job: Job, send: Callable[[int], object], **more: Any) -> Measurement:
    """Measure a client without an event loop; see ``measure``."""
    send(job.warm_up)
    watch = Stopwatch()
    send(job.records)
    return watch.stop(job.records, sent=job.warm_up + job.records, **more)


async def measure_crowd(job: Job, one: Callable[[int], Awaitable[object]], **more: Any) -> Measurement:
    """Measure the job's coroutines, each of which calls ``one`` with its share of the records."""

    async def all_of(count: int) -> int:
        share = count // job.coroutines
        await asyncio.gather(*(one(share) for _ in range(job.coroutines)))
        return share * job.coroutines

    warmed = await all_of(job.warm_up)
    watch = Stopwatch()
    records = await all_of(job.records)
    return watch.stop(records, sent=warmed + records, **more)


def in_transactions(job: Job, watch: Stopwatch, **more: Any) -> Measurement:
    """Return the measurements of the job's transactions, which ran after those of the warm-up.

    All records of a transaction have one partition; its log has a marker for each transaction.
    """
    transactions = job.shares(job.records) * job.coroutines
    total = transactions + job.shares(job.warm_up) * job.coroutines
    return watch.stop(
        transactions * job.records_a_transaction,
        transactions=transactions,
        sent=total * job.records_a_transaction,
        markers=total,
        **more,
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value of ``ordered`` (ascending) that at least ``percent`` per cent do not exceed."""
    if not ordered:
        raise ValueError("no values, no percentile")
    rank = -(-len(ordered) * percent // 100)
    return ordered[min(max(int(rank), 1), len(ordered)) - 1]


def latencies(nanoseconds: list[int]) -> Measurement:
    """Return percentiles of the times, in microseconds."""
    ordered = sorted(nanoseconds)
    return {
        "p50_us": percentile(ordered, 50) / 1000,
        "p99_us": percentile(ordered, 99) / 1000,
        "p99.9_us": percentile(ordered, 99.9) / 1000,
        "max_us": ordered[-1] / 1000,
    }


def check(failed: int) -> None:
    """Raise an error if records were lost: the measurement is invalid then."""
    if failed:
        raise RuntimeError(f"{failed} records failed")
