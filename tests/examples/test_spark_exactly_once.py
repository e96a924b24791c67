"""The exactly-once example as a process: killed in the middle, and started again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from aioproducer.testing import EmbeddedClusterThread
from tests.kafka import jars

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "exactly_once.py"
SUBMIT = (
    "--master local[2] --driver-memory 512m --conf spark.ui.enabled=false "
    f"--driver-java-options '{' '.join(jars.SHORT_LIVED)}' pyspark-shell"
)
FILES, LINES = 12, 50

pytestmark = [pytest.mark.interop, pytest.mark.soak, pytest.mark.timeout(900)]


def begin(folder: Path, cluster: EmbeddedClusterThread) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(EXAMPLE), str(folder / "incoming"), "--checkpoint", str(folder / "state"), "--once"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--files-per-batch", "2", "--bootstrap-servers", cluster.bootstrap_servers],
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": SUBMIT, "PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=log,
        )


def test_each_line_is_there_once_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "incoming").mkdir()
    for number in range(FILES):
        lines = map(str, range(number * LINES, (number + 1) * LINES))
        (tmp_path / "incoming" / f"{number:02}.txt").write_text("\n".join(lines))
    with EmbeddedClusterThread() as cluster:
        cluster.create_topic("lines", 3)
        with begin(tmp_path, cluster) as process:
            deadline = time.monotonic() + 300
            while len(cluster.records("lines", committed=True)) < 3 * LINES:
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for each in family:
                each.kill()
            psutil.wait_procs(family, timeout=10)
        assert len(cluster.records("lines", committed=True)) < FILES * LINES
        with begin(tmp_path, cluster) as process:
            assert process.wait(400) == 0, (tmp_path / "log").read_text()
        found = Counter(int(each.value or b"-1") for each in cluster.records("lines", committed=True))
    assert found == Counter(range(FILES * LINES))
