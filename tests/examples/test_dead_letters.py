"""The example of dead letters as a process, with a topic that accepts no large records."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioproducer.testing import EmbeddedClusterThread

EXAMPLE = Path(__file__).parents[2] / "examples" / "dead_letters.py"


@pytest.fixture
def cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread() as running:
        # A larger batch is split until each record that is too large is alone.
        running.create_topic("access", partitions=1, configs={"max.message.bytes": "1000"})
        running.create_topic("access.dead-letters", partitions=1)
        yield running


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "access.log"
    file.write_bytes(
        b"".join(b"%03d %s\n" % (number, b"x" * (2000 if number % 10 == 0 else 20)) for number in range(100))
    )
    return file


def _run(file: Path, cluster: EmbeddedClusterThread) -> tuple[int, str, str]:
    run = subprocess.run(
        [sys.executable, str(EXAMPLE), str(file), "access", "--bootstrap-servers", cluster.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return run.returncode, run.stdout, run.stderr


def test_every_line_is_in_one_of_the_topics(cluster: EmbeddedClusterThread, lines: Path) -> None:
    code, printed, log = _run(lines, cluster)
    assert (code, printed) == (0, "100 lines, 90 delivered, 10 dead letters, 0 lost\n")
    stored = [record.value for record in cluster.records("access")]
    letters = cluster.records("access.dead-letters")
    assert sorted(stored + [record.value for record in letters]) == lines.read_bytes().splitlines()
    assert all(len(value or b"") > 2000 for value in (record.value for record in letters))
    for letter in letters:
        headers = dict(letter.headers)
        assert headers["error"] == b"RecordTooLargeError"
        assert b"max.message.bytes" in (headers["reason"] or b"")
        assert headers["may-have-been-written"] == b"false"
    assert "Traceback" not in log


def test_line_that_is_in_neither_topic_is_an_error(cluster: EmbeddedClusterThread, lines: Path) -> None:
    cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None)
    code, printed, _ = _run(lines, cluster)
    assert (code, printed) == (1, "100 lines, 0 delivered, 0 dead letters, 100 lost\n")
