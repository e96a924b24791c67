"""franz-go, by the program in ``go/``, which measures its own CPU time, without the start of the process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from bench.job import Job, Measurement
from tests.kafka import go

_SOURCE = Path(__file__).parent / "go"


def program() -> Path:
    """Return the compiled program, built once for each state of ``go/``."""
    return go.program(_SOURCE, "bench-franz")


def run(job: Job) -> Measurement:
    """Run one of the program's works."""
    command = [
        str(program()),
        f"-work={job.work}",
        f"-bootstrap={job.bootstrap}",
        f"-topic={job.topic}",
        f"-records={job.records}",
        f"-warm-up={job.warm_up}",
        f"-linger-ms={job.linger_ms}",
        f"-batch-size={job.batch_size}",
        f"-compression={job.compression}",
        f"-values-file={job.values_file}",
        f"-value-size={job.value_size}",
        f"-rate={job.rate}",
        f"-partitions={job.partitions}",
        f"-records-a-transaction={job.records_a_transaction}",
        f"-producers={job.coroutines}",
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(finished.stderr.strip() or f"exit code {finished.returncode}")
    measured: Measurement = json.loads(finished.stdout)
    return measured


kept = unkept = alone = paced = transactions = run
