"""Processes of the exactly-once sink that are killed at a named point, and what is in the topic afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from aioproducer.admin import Admin
from aioproducer.cli import main
from aioproducer.spark.halting import VARIABLE
from tests.kafka.cluster import KafkaCluster
from tests.kafka.in_process import InProcessCluster

Cluster = KafkaCluster | InProcessCluster

ROOT = Path(__file__).parents[3]
PARTITIONS = 3
# How long the end of all transactions may take, in seconds. A busy machine may need long. The limit is less than the
# time-out of the committer's transactions: the coordinator would end one that was left open.
STABLE_WITHIN = 40.0
# The same on a machine that does nothing else, in seconds.
STABLE_SOON = 5.0


def rows_of(batch_id: int, count: int = 40) -> list[str]:
    """The rows of a micro-batch."""
    return [f"{batch_id}:{number}" for number in range(count)]


def committed(kafka: Cluster, topic: str) -> Counter[str]:
    """What a reader of committed records finds: librdkafka."""
    return Counter(
        (record.value or b"").decode() for of in kafka.read_back(topic, committed=True).values() for record in of
    )


def wanted(batches: int, count: int = 40) -> Counter[str]:
    """Each row of these micro-batches, once."""
    return Counter(row for batch_id in range(batches) for row in rows_of(batch_id, count))


class Halted(NamedTuple):
    """A process that waits at a named point."""

    process: subprocess.Popen[str]
    marker: Path

    def resume(self) -> str:
        """Let it go on, and return what it has printed up to its end."""
        self.marker.unlink()
        return self.process.communicate(timeout=240)[0]


@contextmanager
def halted_at(
    point: str, options: Mapping[str, str], batch_id: int, folder: Path, run_id: str = "run"
) -> Iterator[Halted]:
    """A process that runs the batch up to this point, and waits there."""
    marker = folder / f"{point}-{batch_id}"
    arguments = json.dumps({"given": options, "batch_id": batch_id, "rows": rows_of(batch_id), "run_id": run_id})
    command = [sys.executable, "-m", "tests.interop.spark.sink_program", arguments]
    environment = {**os.environ, VARIABLE: f"{point}={marker}", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            deadline = time.monotonic() + 60
            while not marker.exists():
                assert process.poll() is None, process.stdout.read()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield Halted(process, marker)
        finally:
            process.kill()


@contextmanager
def killed_at(
    point: str, options: Mapping[str, str], batch_id: int, folder: Path, run_id: str = "run"
) -> Iterator[str]:
    """A process that runs the batch up to this point, and is killed there; what it has printed."""
    with halted_at(point, options, batch_id, folder, run_id) as halted:
        halted.process.kill()
        assert halted.process.stdout is not None
        yield halted.process.stdout.read()


def abort_tasks(kafka: Cluster, sink: str) -> None:
    """What the coordinator does when their time-out is over."""

    async def fence() -> None:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers, timeout=20) as admin:
            found = await admin.list_transactions(states=["Ongoing"], pattern=f"{sink}-t-.*")
            assert found
            await admin.fence_producers([each.transactional_id for each in found])

    asyncio.run(fence())


def check_stable(kafka: Cluster, topic: str, within: float = STABLE_WITHIN) -> None:
    """No transaction is open, or each ends within this many seconds."""

    async def offsets() -> None:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers, timeout=20) as admin:
            specs = dict.fromkeys(range(PARTITIONS), "latest")
            async with asyncio.timeout(within):
                while await admin.list_offsets(topic, specs) != await admin.list_offsets(  # noqa: ASYNC110
                    topic, specs, isolation_level="read_committed"
                ):
                    await asyncio.sleep(0.02)

    asyncio.run(offsets())


def recover(kafka: Cluster, topic: str, sink: str) -> None:
    """Call ``aioproducer spark-sink recover`` once; soon afterwards no transaction is open."""
    address = ["--bootstrap-servers", kafka.bootstrap_servers]
    assert main(["spark-sink", "recover", sink, "--decision-topic", f"{sink}-decisions", *address]) == 0
    check_stable(kafka, topic, STABLE_SOON)
