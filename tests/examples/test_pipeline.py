"""The example of a pipeline as a process, with a file much larger than its buffer and a slow broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from aioproducer.testing import EmbeddedClusterThread

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.py"
MEGABYTE = 1024 * 1024


def _pipe(cluster: EmbeddedClusterThread, file: Path, topic: str, buffer_memory: int) -> tuple[int, str, int]:
    """Return exit code, output, and the process's peak memory in bytes."""
    command = [sys.executable, str(EXAMPLE), str(file), topic, "--bootstrap-servers", cluster.bootstrap_servers]
    command += ["--buffer-memory", str(buffer_memory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process.stdout:
        printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # Linux counts it in KiB, macOS in bytes.
    return process.returncode, printed, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _write(file: Path, lines: int) -> list[bytes]:
    written = [b"%08d %s" % (number, b"x" * 490) for number in range(lines)]
    file.write_bytes(b"".join(line + b"\n" for line in written))
    return written


def test_all_lines_arrive_in_order_in_memory_that_does_not_grow_with_the_file(tmp_path: Path) -> None:
    with EmbeddedClusterThread() as cluster:
        for topic in ("small", "large"):
            cluster.create_topic(topic, partitions=1)
        small, large = tmp_path / "small.log", tmp_path / "large.log"
        _write(small, 200)
        lines = _write(large, 80_000)
        _, _, least = _pipe(cluster, small, "small", MEGABYTE)
        # Without back-pressure, all lines read before the first answer would be in memory.
        cluster.delay("Produce", 1000)
        code, printed, most = _pipe(cluster, large, "large", MEGABYTE)
        assert (code, printed) == (0, "80000 lines, 80000 delivered\n")
        assert [record.value for record in cluster.records("large")] == lines
        assert cluster.pending_faults() == []
    assert large.stat().st_size > 38 * MEGABYTE
    assert most - least < 16 * MEGABYTE


def test_lines_that_are_not_delivered_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "some.log"
    _write(file, 10)
    with EmbeddedClusterThread() as cluster:
        cluster.create_topic("refused", partitions=1)
        cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None)
        code, printed, _ = _pipe(cluster, file, "refused", MEGABYTE)
    assert (code, printed) == (1, "10 lines, 0 delivered\n10 failed: TopicAuthorizationError\n")
