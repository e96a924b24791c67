"""The bench's scenarios in Spark: what their rows are, what is measured, and that tiny runs measure it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from bench import spark_parts, spark_session
from bench.clients import CLIENTS
from bench.job import Job
from bench.runner import Run, derived, job_of
from bench.scenarios import SCENARIOS
from bench.verdicts import verdicts
from tests.kafka.in_process import InProcessCluster
from tests.kafka.jars import HarnessUnavailableError

ROOT = Path(spark_parts.__file__).parent.parent
SPARK = {scenario.name: scenario for scenario in SCENARIOS if scenario.name in ("spark-plain", "spark-lz4")}
ONCE = {scenario.name: scenario for scenario in SCENARIOS if scenario.name in ("spark-once", "spark-micro")}
OURS, OWN, CEILING = "aioproducer's sink", "Spark's own sink", "null sink and raw socket"

# The work of `bench.child`, with the pyspark that is installed; row 7 and how many rows come are looked at besides.
CHILD = """
import importlib, json, os, sys
from bench import spark_session
from bench.job import Job

os.environ["PYSPARK_PYTHON"] = sys.executable
rows = spark_session.rows
def looked_at(spark, count):
    found = rows(spark, count)
    print(json.dumps([[bytes(row.key).decode(), bytes(row.value).decode()] for row in found.take(8)[7:]]))
    return found
spark_session.rows = looked_at
print(json.dumps(importlib.import_module(sys.argv[1]).run(Job(**json.loads(sys.argv[2])))))
"""


@pytest.fixture(scope="module")
def cluster():
    with InProcessCluster(1) as started:
        yield started


def measured(cluster: InProcessCluster, module: str, job: Job) -> tuple[list[list[str]], dict[str, float]]:
    cluster.create_topic(job.topic, job.partitions)
    finished = subprocess.run(
        [sys.executable, "-c", CHILD, module, json.dumps(asdict(job))],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    lines = finished.stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("[[")][-1:], json.loads(lines[-1])


def check(found: dict[str, float]) -> None:
    assert found["records"] == 3000
    for key in ("elapsed", "user", "driver_mib", "workers_mib", "workers_proportional_mib"):
        assert found[key] > 0, key
    assert found["memory_mib"] == pytest.approx(found["driver_mib"] + found["workers_mib"], rel=0.5)
    assert {metric.key for metric in SPARK["spark-plain"].metrics} <= derived(found).keys()


@pytest.mark.interop
@pytest.mark.soak
def test_our_sink_writes_every_row(cluster: InProcessCluster) -> None:
    job = Job("defaults", cluster.bootstrap_servers, "ours", partitions=2, records=3000, warm_up=3200)
    looked_at, found = measured(cluster, "bench.spark_ours", job)
    check(found)
    sent = 3200 + 3 * 3000
    assert found["sent"] == sent
    records = [record for partition in cluster.read_back("ours", at_least=sent).values() for record in partition]
    assert len(records) == sent
    assert len({record.key for record in records}) == 3000
    assert {(len(record.key), len(record.value)) for record in records} == {(16, 100)}
    (((key, value),),) = looked_at
    assert key == f"{7:016}"
    assert (key.encode(), value.encode()) in {(record.key, record.value) for record in records}


@pytest.mark.interop
@pytest.mark.soak
def test_the_ceiling_writes_as_many_rows_in_batches_of_the_scenarios_size(cluster: InProcessCluster) -> None:
    job = Job("large_batches", cluster.bootstrap_servers, "ceiling", partitions=2, records=3000, warm_up=3200)
    job = Job(**{**asdict(job), "compression": "lz4", "batch_size": 16 * 1024})
    _, found = measured(cluster, "bench.spark_ceiling", job)
    check(found)
    records = cluster.read_back("ceiling", at_least=int(found["sent"]))
    assert sum(map(len, records.values())) == found["sent"]
    per_batch = found["records_a_batch"]
    # Each of the five writes ends with a whole request; compressed, more rows fit than 16 KiB of them.
    assert 12_200 <= found["sent"] < 12_200 + 5 * 2 * per_batch
    assert set(map(len, records.values())) == {found["sent"] // 2}
    assert per_batch > 16 * 1024 / 116
    assert {(len(record.key), len(record.value)) for one in records.values() for record in one} == {(16, 100)}


@pytest.mark.interop
@pytest.mark.soak
def test_exactly_once_writes_as_many_rows_and_counts_its_markers(cluster: InProcessCluster) -> None:
    job = Job("defaults", cluster.bootstrap_servers, "once", partitions=2, records=3000, warm_up=3200)
    _, found = measured(cluster, "bench.spark_once", job)
    check(found)
    # Two tasks and two partitions, in two writes of the warm-up and three that are measured.
    assert (found["sent"], found["markers"]) == (3200 + 3 * 3000, 2 * 2 * 5)
    stored = cluster.read_back("once", committed=True)
    assert sum(map(len, stored.values())) == found["sent"]


MICRO = """
import importlib, json, os, sys
from bench import spark_parts
from bench.job import Job

os.environ["PYSPARK_PYTHON"] = sys.executable
spark_parts.prepare = lambda: None
print(json.dumps(getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(Job(**json.loads(sys.argv[3])))))
"""


@pytest.mark.interop
@pytest.mark.soak
@pytest.mark.parametrize(
    ("module", "work", "keys"),
    [
        ("bench.spark_ours", "micro_batches", ("batch_ms", "add_batch_ms")),
        ("bench.spark_once", "micro_batches", ("batch_ms", "add_batch_ms")),
        ("bench.spark_once", "parts", ("plan_ms", "tasks_ms", "commit_ms")),
    ],
)
def test_micro_batches_write_every_row(cluster: InProcessCluster, module: str, work: str, keys: tuple[str]) -> None:
    topic = f"{module.rpartition('.')[2]}-{work}"
    cluster.create_topic(topic, 4)
    job = Job(work, cluster.bootstrap_servers, topic, partitions=4, records=3000, warm_up=2000)
    finished = subprocess.run(
        [sys.executable, "-c", MICRO, module, work, json.dumps(asdict(job))],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = json.loads(finished.stdout.splitlines()[-1])
    assert all(found[key] > 0 for key in keys)
    assert found["sent"] == 5000
    assert found.get("markers", 0) == (5 * 4 * 4 if module == "bench.spark_once" else 0)
    assert sum(map(len, cluster.read_back(topic, committed=True).values())) == found["sent"]


def test_exactly_once_is_compared_with_the_other_sinks() -> None:
    once, at_least_once = (row.label for row in ONCE["spark-once"].rows)
    results = {
        "spark-once": {once: [{"round": 0, "rate": 850.0}], at_least_once: [{"round": 0, "rate": 1000.0}]},
        "spark-micro": {
            once: [{"round": 0, "batch_ms": 160.0}],
            at_least_once: [{"round": 0, "batch_ms": 99.0}],
            OWN: [{"round": 0, "batch_ms": 101.0}],
        },
    }
    found = {one.requirement.text: (one.measured, one.holds) for one in verdicts(results) if one.measured is not None}
    assert found == {
        "spark-once: rows/s to those at least once": (0.85, True),
        "spark-micro: a micro-batch longer than at least once": (61.0, False),
    }
    assert {row.label for row in ONCE["spark-micro"].rows} > {once, at_least_once, OWN}


def test_options_are_kafkas_names_and_defaults_are_none() -> None:
    plain, lz4 = (
        [spark_session.options(job_of(SPARK[name], row, {}, quick=False)) for row in SPARK[name].rows]
        for name in ("spark-plain", "spark-lz4")
    )
    assert plain == [{}] * 3
    own = {"kafka.compression.type": "lz4", "kafka.batch.size": "131072", "kafka.linger.ms": "5"}
    assert lz4 == [own | {"kafka.send.buffer.bytes": "-1"}] * 3


@pytest.mark.parametrize("name", SPARK)
def test_verdicts_compare_with_sparks_own_sink_and_with_the_ceiling(name: str) -> None:
    figures = {
        OURS: {"rate": 1_200_000.0, "driver_mib": 500.0, "memory_mib": 900.0},
        OWN: {"rate": 1_000_000.0, "driver_mib": 800.0, "memory_mib": 800.0},
        CEILING: {"rate": 1_300_000.0, "driver_mib": 500.0, "memory_mib": 700.0},
    }
    results = {name: {row: [{"round": 0, **found}] for row, found in figures.items()}}
    found = {
        one.requirement.text.removeprefix(f"{name}: "): (round(one.measured, 3), one.holds)
        for one in verdicts(results)
        if one.measured is not None
    }
    assert found == {
        "rows/s to Spark's own sink's": (1.2, name == "spark-lz4"),
        "rows/s to the ceiling's": (0.923, True),
        "JVM's memory to Spark's own sink's": (0.625, True),
        "all memory to Spark's own sink's": (1.125, False),
    }


def test_where_spark_cannot_be_had_its_rows_are_left_out_and_say_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No package index, and no Maven."""
    monkeypatch.setenv("AIOPRODUCER_TEST_CACHE", str(tmp_path))
    monkeypatch.setattr(spark_parts, "VERSION", "0.0.1")
    monkeypatch.setattr(spark_parts, "CONNECTOR", "spark-kafka-0.0.1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    said: list[str] = []
    run = Run(quick=True, rounds=1, clients="", records=0, say=said.append)
    outcome = run._scenario(None, SPARK["spark-plain"], tmp_path)  # type: ignore[arg-type]  # nothing is sent anywhere
    assert outcome.results == outcome.failures == {}
    assert outcome.missing.keys() == {OURS, OWN, CEILING}
    for reason in outcome.missing.values():
        assert reason.startswith("pyspark 0.0.1 could not be installed: ")
    # Nothing half-filled is left to be taken for a whole one.
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_sparks_own_sink_alone_needs_the_connector(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIOPRODUCER_TEST_CACHE", str(tmp_path))
    (tmp_path / f"pyspark-{spark_parts.VERSION}").mkdir()
    monkeypatch.setattr("tests.kafka.jars.shutil.which", {"java": "/usr/bin/java"}.get)
    CLIENTS[OURS].look()
    CLIENTS[CEILING].look()
    with pytest.raises(HarnessUnavailableError, match="Maven is not installed"):
        CLIENTS[OWN].look()


def test_the_parts_of_its_spark_are_first_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIOPRODUCER_TEST_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("SPARK_HOME", "another")
    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    monkeypatch.setattr(spark_parts, "VERSION", "0.0.1")
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "pyspark-0.0.1"
    folder.mkdir()
    spark_parts.prepare()
    assert sys.path[:2] == [str(folder), str(ROOT)]
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(folder), str(ROOT), "elsewhere"]
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert "SPARK_HOME" not in os.environ


def test_peaks_are_in_bytes_and_none_of_who_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input(1)"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        # Python is all there when it says something.
        assert process.stdout is not None
        assert process.stdout.read(1) == b"1"
        assert spark_session._peak(process.pid) > 2**20
        process.kill()
        # Ended, and not waited for.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert spark_session._peak(process.pid) == 0
