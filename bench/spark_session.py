"""One write of rows in Spark's local mode with two threads: the rows, the session, and what is measured.

Rows are made by expressions as they are written: a key of 16 bytes, another in each, and a value of 100 bytes, of which
the last 70 or so are the same in all. Nothing is cached. What is measured is ``save()``, planning included, in a
session that has written before, three times, of which the one of median time counts: the JVM compiles again what it has
compiled, up to half a second of a write, and not in each. It has Spark's default memory.

Memory is resident memory, of the JVM (driver and executor in one) and of its Python workers, at its peak during the
write as the kernel has noted it for each process. Pages that workers share count for each. CPU time is that of all of
them, and of this process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench.job import Job, Measurement

if TYPE_CHECKING:
    import psutil
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

THREADS = 2
MEASURED = 3
# How often processes are looked for; their peaks are the kernel's, which no sample misses while they live.
SAMPLE_EVERY = 0.2

Write = Callable[["SparkSession", int], int]
"""Writes rows of such a number, and says how many records that makes in the topic."""


def rows(spark: SparkSession, count: int) -> DataFrame:
    """``count`` rows of ``key`` and ``value``."""
    return spark.range(count).selectExpr(
        "cast(lpad(cast(id as string), 16, '0') as binary) as key",
        "cast(rpad(concat(cast(id as string), ' ', hex(xxhash64(id))), 100, 'x') as binary) as value",
    )


def options(job: Job) -> dict[str, str]:
    """What the scenario sets of Kafka's producer, as both sinks take it; nothing where defaults are measured."""
    if job.work == "defaults":
        return {}
    return {
        "kafka.compression.type": job.compression,
        "kafka.batch.size": str(job.batch_size),
        "kafka.linger.ms": str(job.linger_ms),
        "kafka.send.buffer.bytes": "-1",
    }


def kafka_writer(spark: SparkSession, job: Job, count: int, sink: str) -> DataFrameWriter:
    """What writes ``count`` rows to the job's topic through a sink that takes Kafka's options."""
    writer = rows(spark, count).write.format(sink).mode("append").options(**options(job))
    return writer.option("kafka.bootstrap.servers", job.bootstrap).option("topic", job.topic)


@contextmanager
def session(jars: Sequence[Path], threads: int = THREADS) -> Iterator[SparkSession]:
    """Spark in some threads of one JVM."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{threads}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.jars", ",".join(map(str, jars))).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def warm_ups(job: Job) -> list[int]:
    """How many rows each write of the warm-up has.

    As many as the one that is measured, but for the first, which has the rest: their number stands in the code that
    Spark makes of a query, and what the JVM has compiled of one is nothing to another.
    """
    rest = job.warm_up % job.records
    return [rest] * bool(rest) + [job.records] * (job.warm_up // job.records)


def measure(job: Job, write: Write, jars: Sequence[Path] = ()) -> Measurement:
    """Warm up, write, and say what a write took."""
    from pyspark import __version__

    with session(jars) as spark:
        sent = sum(write(spark, count) for count in warm_ups(job))
        found: list[Measurement] = []
        for _ in range(MEASURED):
            with Processes(spark.sparkContext._gateway.proc.pid) as processes:
                began = time.perf_counter()
                sent += write(spark, job.records)
                elapsed = time.perf_counter() - began
            found.append({"elapsed": elapsed, **processes.summary()})
        found.sort(key=lambda one: one["elapsed"])
        return {"records": job.records, "sent": sent, "pyspark": __version__, **found[MEASURED // 2]}


class Processes:
    """A JVM and the Python processes under it, while the block runs."""

    def __init__(self, java: int) -> None:
        import psutil

        self._java = psutil.Process(java)
        self._this = psutil.Process()
        self._ended = threading.Event()
        self._sampling = threading.Thread(target=self._sample_until_ended, name="bench-sampling")
        self._driver = self._workers = self._memory = 0

    def __enter__(self) -> Self:
        if self._java.name() != "java":
            raise RuntimeError(f"Spark was started as {self._java.name()!r} and not as a JVM")
        for process in self._all():
            # The kernel forgets the peak of what was before.
            with _gone():
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")
        self._before = self._cpu()
        self._sampling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._after = self._cpu()
        self._ended.set()
        self._sampling.join()
        self._sample()
        self._proportional = self._shared_once()

    def _all(self) -> list[psutil.Process]:
        return [self._java, *self._java.children(recursive=True)]

    def _cpu(self) -> tuple[float, float, float]:
        """User and system time of this process and of those that live, with those that they have waited for.

        The third is how much of it is the JVM's.
        """
        user = system = 0.0
        own = self._java.cpu_times()
        for process in (self._this, *self._all()):
            with _gone():
                times = process.cpu_times()
                user += times.user
                system += times.system
                # What this one has waited for is Spark's start.
                if process is not self._this:
                    user += times.children_user
                    system += times.children_system
        return user, system, own.user + own.system

    def _sample_until_ended(self) -> None:
        while not self._ended.wait(SAMPLE_EVERY):
            self._sample()

    def _sample(self) -> None:
        driver = _peak(self._java.pid)
        workers = 0
        for process in self._java.children(recursive=True):
            with _gone():
                workers += _peak(process.pid)
        self._driver = max(self._driver, driver)
        self._workers = max(self._workers, workers)
        self._memory = max(self._memory, driver + workers)

    def _shared_once(self) -> int:
        """What is resident now of the Python processes, in bytes, with pages that several share divided among them."""
        found = 0
        for process in self._java.children(recursive=True):
            with _gone():
                found += process.memory_full_info().pss
        return found

    def summary(self) -> Measurement:
        """CPU time in seconds, of which ``java`` is the JVM's; memory in MiB."""
        user, system, java = (after - before for before, after in zip(self._before, self._after, strict=True))
        return {
            "user": user,
            "system": system,
            "java": java,
            "driver_mib": self._driver / 2**20,
            "workers_mib": self._workers / 2**20,
            "memory_mib": self._memory / 2**20,
            "workers_proportional_mib": self._proportional / 2**20,
        }


@contextmanager
def _gone() -> Iterator[None]:
    """A process may end between being listed and being looked at."""
    import psutil

    try:
        yield
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        pass


def _peak(process_id: int) -> int:
    """The most that was resident, in bytes; 0 for a process that has ended and was not waited for."""
    status: dict[str, Any] = dict(
        line.split(":", 1) for line in Path(f"/proc/{process_id}/status").read_text().splitlines()
    )
    return int(status["VmHWM"].split()[0]) * 1024 if "VmHWM" in status else 0
