"""docs/spark.md: its blocks run unchanged in one session, and its tables agree with the code."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from aioproducer.spark import columns, options
from aioproducer.spark.options import SinkOptions
from aioproducer.testing import EmbeddedClusterThread
from tests.docs.blocks import ADDRESS, ROOT, Block, Page, blocks_of, check_output
from tests.docs.spark_session import Session

DOCUMENT = ROOT / "docs" / "spark.md"


@pytest.fixture
def cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread() as running:
        yield running


def _for_one_session(block: Block) -> bool:
    return block.language != "python" or not block.text.startswith("# job.py\n")


@pytest.mark.interop
@pytest.mark.timeout(900)
def test_blocks_print_the_documented_output(tmp_path: Path, cluster: EmbeddedClusterThread) -> None:
    page, session = Page(tmp_path, cluster), Session(tmp_path, cluster.bootstrap_servers)
    printed: str | None = None
    logged: list[Block] = []
    try:
        for block in itertools.takewhile(_for_one_session, blocks_of(DOCUMENT)):
            if block.language == "python":
                printed = session.run(block)
            elif block.language == "sh":
                printed = page.run(block)
            elif block.language == "log":
                logged.append(block)
            else:
                assert (block.language, printed is None) == ("text", False), block
                check_output(block, block.text, printed or "")
                printed = None
    finally:
        session.close()
        page.close()
    assert logged
    lines = session.log.read_text().splitlines()
    for line in "".join(block.text for block in logged).splitlines():
        # Other numbers with their nouns, and nothing else.
        pattern = re.sub(r"\d+", r"\\d+", re.escape(line))
        for plural, either in (("rows", "rows?"), ("batches", "batch(?:es)?"), ("retries", "retr(?:y|ies)")):
            pattern = pattern.replace(plural, either)
        assert any(re.fullmatch(pattern, other) for other in lines), line


def _run_to_its_end(block: Block, folder: Path, environment: dict[str, str]) -> None:
    """Run a block that starts several Java processes, which takes long."""
    output = folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(400)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert code == 0, f"{block} ended with exit code {code}; it printed:\n{output.read_text()}"


@pytest.mark.soak
@pytest.mark.interop
@pytest.mark.timeout(1200)
def test_package_is_carried_to_a_cluster(
    tmp_path: Path, cluster: EmbeddedClusterThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, *blocks = itertools.dropwhile(_for_one_session, blocks_of(DOCUMENT))
    assert {block.language for block in blocks} == {"sh"}
    # The package that a reader's pip would find in an index.
    source = tmp_path / "source"
    source.mkdir()
    for name in ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py", "pyspark_aioproducer.py"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "aioproducer", source / "aioproducer", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f"aioproducer @ {source.as_uri()}\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraints))
    spark_home = Path(pyspark.__file__).parent
    monkeypatch.setenv("SPARK_HOME", str(spark_home))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv(
        "PATH", os.pathsep.join((str(Path(sys.executable).parent), str(spark_home / "bin"), os.environ["PATH"]))
    )
    # An interpreter with the requirements of the second way; the first one contains its own.
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    (tmp_path / "job.py").write_text(job.text.replace(ADDRESS, cluster.bootstrap_servers))
    expected: Counter[bytes] = Counter()
    for block in blocks:
        if "spark-submit" not in block.text:
            # Compiling takes long and is not tested here.
            _run_to_its_end(block, tmp_path, {**os.environ, "AIOPRODUCER_PURE": "1"})
        else:
            users = {name: value for name, value in os.environ.items() if name != "AIOPRODUCER_PURE"}
            _run_to_its_end(block, tmp_path, users)
            expected.update(b"%d" % number for number in range(1000))
            assert Counter(record.value for record in cluster.records("numbers")) == expected
    assert set(expected.values()) == {2}


def _rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    section = DOCUMENT.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_option_is_in_its_table_with_its_default() -> None:
    rows = {name.strip("`"): default for name, default, _ in _rows("Options")}
    assert tuple(rows) == options.OPTIONS
    given = {"kafka.bootstrap.servers": "localhost:9092", "kafka.delivery.timeout.ms": "60000"}
    parsed = SinkOptions.parse(given)
    for name, default in rows.items():
        value = getattr(parsed, name)
        if name == "flush_timeout_ms":
            assert default == f"`kafka.delivery.timeout.ms` + {value - 60_000}"
        else:
            assert default == (str(value) if value else "none"), name


def test_every_column_is_in_its_table_with_its_types() -> None:
    rows = {name.strip("`"): tuple(re.findall("`([^`]+)`", types)) for name, types, _ in _rows("Columns")}
    assert rows == dict(columns._COLUMNS)


def test_every_option_of_exactly_once_is_in_its_table_with_its_default() -> None:
    rows = {name.strip("`"): default.strip("`") for name, default, *_ in _rows("Exactly once")}
    found = SinkOptions.parse(
        {"kafka.bootstrap.servers": "localhost:9092", "delivery": "exactly-once", "sink.id": "x"}
    ).exactly_once
    assert found is not None
    expected = (
        options.AT_LEAST_ONCE,
        "none; required",
        str(found.timeout_ms),
        found.decision_topic,
        str(found.write_id).lower(),
    )
    assert tuple(rows[name] for name in options.EXACTLY_ONCE_OPTIONS) == expected


def test_oldest_version_is_the_one_of_the_package() -> None:
    streaming = [version for version, _, stream, _ in _rows("Versions") if stream == "yes"]
    assert f'"pyspark>={min(streaming)}"' in (ROOT / "pyproject.toml").read_text()
