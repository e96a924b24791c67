"""The streaming example as a process: new files, lines that are no clicks, and recovery after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from aioproducer.testing import EmbeddedClusterThread
from aioproducer.wire.murmur2 import partition_for_key
from tests.kafka import jars

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "clicks.py"
SUBMIT = (
    "--master local[2] --driver-memory 512m --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 "
    f"--driver-java-options '{' '.join(jars.SHORT_LIVED)}' pyspark-shell"
)
LINES = 200
"""Lines in each file."""

# Spark takes half a minute to do this on an idle machine, and much longer on a busy one.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


class Clicks:
    """``clicks.py`` in a separate session, so that it ends with all its processes."""

    def __init__(self, folder: Path, cluster: EmbeddedClusterThread, *arguments: str) -> None:
        command = [sys.executable, str(EXAMPLE), str(folder / "incoming"), "--checkpoint", str(folder / "state")]
        self.log = folder / "clicks.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--bootstrap-servers", cluster.bootstrap_servers, *arguments],
                env={**os.environ, "PYSPARK_SUBMIT_ARGS": SUBMIT, "PYSPARK_PYTHON": sys.executable},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> int:
        return self.process.wait(400)

    def kill(self) -> None:
        """Kill all processes at once: the driver, the JVM, the workers."""
        everybody = [self.process, *psutil.Process(self.process.pid).children(recursive=True)]
        for process in everybody:
            process.kill()
        self.process.wait()
        psutil.wait_procs(everybody[1:], timeout=10)

    def said(self) -> str:
        return self.log.read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()


@pytest.fixture
def cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread() as running:
        running.create_topic("clicks", partitions=3)
        running.create_topic("clicks-malformed", partitions=1)
        yield running


def _line(number: int) -> str:
    return json.dumps({"user": f"user-{number % 20}", "page": f"/{number}", "at": "2013-01-01T05:15:00Z"})


def _arrive(folder: Path, name: str, lines: list[str]) -> None:
    """Create a file that appears complete."""
    (folder / "incoming").mkdir(exist_ok=True)
    unfinished = folder / name
    unfinished.write_text("".join(f"{line}\n" for line in lines))
    unfinished.rename(folder / "incoming" / name)


def _file(number: int) -> list[str]:
    return [_line(number * LINES + line) for line in range(LINES)]


def _values(cluster: EmbeddedClusterThread, topic: str = "clicks") -> Counter[str]:
    return Counter(record.value.decode() for record in cluster.records(topic))


def wait_until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 400
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_each_line_is_stored_once_over_two_runs_and_other_lines_elsewhere(
    tmp_path: Path, cluster: EmbeddedClusterThread
) -> None:
    malformed = ["no JSON", '{"page": "/"}', '{"user": "ada", "at": "yesterday"}', "", '{"user": "ada"']
    _arrive(tmp_path, "first.jsonl", _file(0) + malformed)
    first = Clicks(tmp_path, cluster, "--once")
    try:
        assert first.wait() == 0, first.said()
        assert _values(cluster) == Counter(_file(0))
        assert sorted(_values(cluster, "clicks-malformed").elements()) == sorted(malformed)
        for record in cluster.records("clicks"):
            assert record.key == json.loads(record.value)["user"].encode()
            assert list(record.headers) == [("file", b"first.jsonl")]
        assert {record.key for record in cluster.records("clicks-malformed")} == {None}
        _arrive(tmp_path, "second.jsonl", _file(1))
        second = Clicks(tmp_path, cluster)
        try:
            wait_until(lambda: len(cluster.records("clicks")) == 2 * LINES or second.process.poll() is not None)
            # By SIGINT, as a terminal ends it.
            second.process.send_signal(signal.SIGTERM)
            assert second.wait() == 0, second.said()
            # The JVM's messages about the end may follow.
            assert "ended" in second.said().splitlines()
        finally:
            second.close()
    finally:
        first.close()
    assert _values(cluster) == Counter(_file(0) + _file(1))


@pytest.mark.soak
def test_killed_in_the_middle_of_a_batch_loses_nothing(tmp_path: Path, cluster: EmbeddedClusterThread) -> None:
    for number in range(4):
        _arrive(tmp_path, f"{number}.jsonl", _file(number))
    # The first micro-batch, of two files, is in the log of one partition and waits for another.
    partition = max(range(3), key=lambda number: len(_of_partition(number)))
    cluster.fail("Produce", "NOT_ENOUGH_REPLICAS", times=None, topic="clicks", partition=partition)
    killed = Clicks(tmp_path, cluster, "--files-per-batch", "2")
    try:
        wait_until(lambda: len(cluster.records("clicks")) > 0 or killed.process.poll() is not None)
        assert killed.process.poll() is None, killed.said()
    finally:
        killed.kill()
    before = _values(cluster)
    assert before
    assert before.keys() < set(_file(0) + _file(1))
    cluster.clear_faults()
    again = Clicks(tmp_path, cluster, "--files-per-batch", "2", "--once")
    try:
        assert again.wait() == 0, again.said()
    finally:
        again.close()
    after = _values(cluster)
    expected = Counter(line for number in range(4) for line in _file(number))
    assert expected.keys() == after.keys()
    # Only the records of the killed batch are stored twice.
    assert after - expected == before


def _of_partition(number: int) -> list[int]:
    return [user for user in range(20) if partition_for_key(b"user-%d" % user, 3) == number]
