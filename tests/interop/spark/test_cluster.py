"""A cluster of two workers that have nothing of this project but what Spark carries there, and lose an executor."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from pyspark.sql import SparkSession

from aioproducer._build import is_pure_wanted
from tests.interop.spark.driver import ROOT, SparkDriver
from tests.interop.spark.gates import HALF, OF_TASK, Gate, stored, tasks_of, twice, wait_for_rows, write
from tests.kafka.cluster import KafkaCluster

MASTER = "local-cluster[2,1,1024]"
# What the package needs at run time, and pyarrow.
NEEDED = ("crc32c", "cramjam", "lz4", "pyarrow", "zstandard")
# Of pyarrow only what nobody imports here is left out: it is large.
LEFT_OUT = ("pyarrow/include/", "pyarrow/tests/", "pyarrow/src/")

CONFIGURATION = {"spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


class Seen(NamedTuple):
    """What a worker's Python process is, and where it has the package from."""

    executable: str
    package: str
    path: list[str]
    compiled: bool


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with what the package needs, without it, and without pyspark."""
    folder = tmp_path_factory.mktemp("environments") / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in NEEDED:
        for file in importlib.metadata.distribution(name).files or ():
            if str(file).startswith(("..", *LEFT_OUT)) or file.suffix == ".pyc":
                continue
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), target)
    return folder


@pytest.fixture(scope="module")
def packed(bare: Path) -> Path:
    """That environment with the package, in an archive."""
    (packages,) = bare.glob("lib/python*/site-packages")
    archive = bare.parent / "packed.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(bare, ".")
        for name in ("aioproducer", "pyspark_aioproducer.py"):
            tar.add(ROOT / name, packages.relative_to(bare) / name, filter=_without_caches)
    return archive


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry


def pyspark_path() -> str:
    """What spark-submit has its Python processes see of pyspark."""
    home = Path(importlib.metadata.distribution("pyspark").locate_file("pyspark"))
    return os.pathsep.join(str(each) for each in sorted((home / "python" / "lib").glob("*.zip")))


@pytest.fixture(scope="module")
def carried_in_archive(packed: Path) -> Iterator[SparkDriver]:
    driver = SparkDriver(
        MASTER,
        python="./environment/bin/python",
        configuration={**CONFIGURATION, "spark.archives": f"{packed}#environment"},
        environment={"PYTHONPATH": pyspark_path()},
        sees_checkout=False,
    )
    with tarfile.open(packed) as tar:
        tar.extractall(driver.cwd / "environment", filter="fully_trusted")
    with driver:
        yield driver


def look(spark: SparkSession) -> list[tuple[str, str, list[str], bool]]:
    """From each of two executors."""

    def seen(_: object) -> Iterator[tuple[str, str, list[str], bool]]:
        import aioproducer
        from aioproducer.wire import murmur2

        yield sys.executable, aioproducer.__file__, sys.path, not murmur2.__file__.endswith(".py")

    return spark.sparkContext.parallelize(range(2), 2).mapPartitions(seen).collect()


def write_registered(spark: SparkSession, bootstrap_servers: str, topic: str, gate: Gate) -> None:
    from aioproducer.spark import register

    register(spark)
    write(spark, bootstrap_servers, topic, gate, {"kafka.compression.type": "lz4"})


def test_environment_in_an_archive(
    carried_in_archive: SparkDriver, one_node: KafkaCluster, topic: str, gate: Gate
) -> None:
    one_node.create_topic(topic, 3)
    gate.open()
    # The format is found without being registered.
    carried_in_archive.call(write, one_node.bootstrap_servers, topic, gate, {"kafka.compression.type": "zstd"})
    assert twice(stored(one_node, topic), set()) == 0
    is_compiled = any((ROOT / "aioproducer" / "wire").glob("murmur2.*.so")) and not is_pure_wanted()
    for seen in itertools.starmap(Seen, carried_in_archive.call(look)):
        assert "/environment/lib/" in seen.package
        assert seen.compiled == is_compiled
        assert not [each for each in seen.path if Path(each) == ROOT]


def test_executor_is_lost(carried_in_archive: SparkDriver, one_node: KafkaCluster, topic: str, gate: Gate) -> None:
    one_node.create_topic(topic, 3)
    writing = carried_in_archive.submit(write, one_node.bootstrap_servers, topic, gate, {})
    wait_for_rows(one_node, topic, OF_TASK // 2)
    workers = carried_in_archive.workers_at(one_node.bootstrap_servers)
    executor = next(each for each in workers[0].parents() if each in carried_in_archive.executors())
    orphans = executor.children(recursive=True)
    executor.kill()
    # What wrote for it ends as well, in spite of all that it has to do yet.
    assert psutil.wait_procs(orphans, timeout=120)[1] == []
    gate.open()
    writing.result(240)
    found = stored(one_node, topic)
    (task,) = tasks_of(found)
    assert 0 < twice(found, {task}) <= HALF


@pytest.mark.soak
def test_package_in_a_zip(bare: Path, one_node: KafkaCluster, topic: str, gate: Gate, tmp_path: Path) -> None:
    archive = tmp_path / "aioproducer.zip"
    with zipfile.ZipFile(archive, "w") as package:
        for source in [ROOT / "pyspark_aioproducer.py", *(ROOT / "aioproducer").rglob("*.py")]:
            package.write(source, source.relative_to(ROOT))
    one_node.create_topic(topic, 3)
    gate.open()
    with SparkDriver(
        MASTER,
        python=str(bare / "bin" / "python"),
        configuration={**CONFIGURATION, "spark.submit.pyFiles": str(archive)},
        environment={"PYTHONPATH": pyspark_path()},
        sees_checkout=False,
    ) as driver:
        driver.call(write_registered, one_node.bootstrap_servers, topic, gate)
        for seen in itertools.starmap(Seen, driver.call(look)):
            assert "aioproducer.zip/aioproducer/" in seen.package
            assert not seen.compiled
            assert not [each for each in seen.path if Path(each) == ROOT]
    assert twice(stored(one_node, topic), set()) == 0
