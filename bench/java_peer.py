"""Kafka's own Java client, by its ProducerPerformance, or by a program in ``java/`` for transactions.

ProducerPerformance measures latencies in a callback of each record. Values come from a file, because otherwise it would
make random bytes for each record. Its settings are the Java client's defaults (idempotent), with the linger, batch size
and system's send buffer of all clients. It prints the number of delivered records every 50 ms. Measuring starts when
the warm-up's records are delivered, and so excludes the start of the JVM. ``with_start_us`` is the CPU time for each
record of the whole run.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.job import Job, Measurement
from tests.kafka import jars

_MAIN = "org.apache.kafka.tools.ProducerPerformance"
# As in Kafka's scripts for its tools.
_JVM = ("-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
_TRANSACTIONS = Path(__file__).parent / "java" / "Transactions.java"
_SAID = re.compile(r"^(\d+) records sent, ")


def classpath() -> str:
    """Return the class path of Kafka's tools."""
    return f"{jars.resolve(jars.TOOLS)}/*"


def compiler() -> str:
    """Return the JDK's compiler, which the JVM calls for a program in source form.

    Raises:
        HarnessUnavailableError: only a Java runtime is installed.
    """
    found = shutil.which("javac") or shutil.which("javac", path=str(Path(jars.java()).resolve().parent))
    if found is None:
        raise jars.HarnessUnavailableError("a JDK is not installed (Debian and Ubuntu: openjdk-17-jdk-headless)")
    return found


def transactions(job: Job) -> Measurement:
    """Run transactions of one producer, or of several, each in a thread; the program measures itself."""
    command = [jars.java(), *_JVM, "-cp", classpath(), str(_TRANSACTIONS), job.topic]
    numbers = (job.partitions, job.records_a_transaction, job.coroutines, job.value_size, job.warm_up, job.records)
    command += [*map(str, numbers), f"bootstrap.servers={job.bootstrap}", "acks=all", f"linger.ms={job.linger_ms}"]
    command += [f"batch.size={job.batch_size}", f"compression.type={job.compression}", "send.buffer.bytes=-1"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(finished.stderr.strip()[-500:] or f"exit code {finished.returncode}")
    found = json.loads(finished.stdout.splitlines()[-1])
    total = found["warmed"] + found["transactions"]
    return {
        "records": found["transactions"] * job.records_a_transaction,
        "transactions": found["transactions"],
        "elapsed": found["elapsed"],
        # The JVM does not divide it.
        "user": found["cpu"],
        "system": 0.0,
        "sent": total * job.records_a_transaction,
        "markers": total,
    }


@dataclass(frozen=True)
class Progress:
    """Return the number of records delivered so far."""

    records: int
    ended: bool


def progress(lines: Iterable[str]) -> Iterable[Progress]:
    """Parses ProducerPerformance's output: records since the last line, and finally all records with percentiles."""
    records = 0
    for line in lines:
        found = _SAID.match(line)
        if found is None:
            continue
        if "50th" in line:
            yield Progress(int(found[1]), ended=True)
        else:
            records += int(found[1])
            yield Progress(records, ended=False)


def kept(job: Job) -> Measurement:
    """Run ProducerPerformance, with a callback for each record."""
    import psutil

    with tempfile.TemporaryDirectory() as folder:
        payload = Path(job.values_file) if job.values_file else Path(folder) / "values"
        if not job.values_file:
            payload.write_bytes(job.values()[0] + b"\n")
        total = job.warm_up + job.records
        command = [jars.java(), *_JVM, "-cp", classpath(), _MAIN, "--topic", job.topic, "--num-records", str(total)]
        command += ["--throughput", "-1", "--payload-file", str(payload), "--bootstrap-server", job.bootstrap]
        command += ["--reporting-interval", "50", "--command-property", "acks=all", f"linger.ms={job.linger_ms}"]
        command += [f"batch.size={job.batch_size}", f"compression.type={job.compression}", "send.buffer.bytes=-1"]
        before = after = None
        errors = Path(folder) / "errors"
        with (
            errors.open("w") as standard_error,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=standard_error, text=True) as process,
        ):
            java = psutil.Process(process.pid)
            assert process.stdout is not None
            for now in progress(process.stdout):
                # Also valid for a process that has ended, until it is waited for.
                snapshot = (now.records, time.perf_counter(), java.cpu_times())
                if now.ended:
                    after = snapshot
                elif before is None and now.records >= job.warm_up:
                    before = snapshot
        if process.returncode != 0 or before is None or after is None or before[0] == after[0]:
            raise RuntimeError(errors.read_text().strip()[-500:] or "ProducerPerformance printed no result")
    records = after[0] - before[0]
    return {
        "records": records,
        "elapsed": after[1] - before[1],
        "user": after[2].user - before[2].user,
        "system": after[2].system - before[2].system,
        "with_start_us": (after[2].user + after[2].system) / total * 1e6,
        "sent": total,
    }


unkept = kept
