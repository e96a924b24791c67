"""A Spark session and brokers that the tests of this folder share. Each test writes to topics of its own."""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import aioproducer
from aioproducer.spark import close_executor
from aioproducer.testing import EmbeddedClusterThread
from tests.interop.spark.sink_program import options_of
from tests.kafka.in_process import InProcessCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Where the package lies, and with it the module by which Spark finds the data source.
_ROOT = Path(aioproducer.__file__).parents[1]


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Spark's processes write to stderr: the driver's, and in local mode those of the tasks."""
    return tmp_path_factory.mktemp("spark") / "stderr"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_log: Path) -> Iterator[SparkSession]:
    """Spark in two threads of one JVM, which starts once for all tests, and Python workers as on an executor."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch, spark_log.open("wb") as log:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            session = (
                SparkSession.builder.master("local[2]")
                .config("spark.ui.enabled", "false")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.driver.memory", "1g")
                # A short life: C1 alone and the serial collector take a third less CPU time.
                .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
                .config("spark.sql.shuffle.partitions", "2")
                .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
                .config("spark.local.dir", str(folder / "local"))
                .getOrCreate()
            )
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        session.sparkContext.setLogLevel("ERROR")
        try:
            yield session
        finally:
            session.stop()
            gateway = session.sparkContext._gateway
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(30)


@pytest.fixture(autouse=True)
def active_session(request: pytest.FixtureRequest) -> None:
    """Spark finds data sources of Python for the active session alone, and a thread may lose its own."""
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)


@pytest.fixture(scope="session")
def embedded() -> Iterator[InProcessCluster]:
    """One embedded broker that creates no topic on demand."""
    with InProcessCluster(1, properties={"auto.create.topics.enable": "false"}) as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses; the topic does not exist."""
    name = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")
    return f"{name[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def cluster(module_cluster: EmbeddedClusterThread) -> Iterator[EmbeddedClusterThread]:
    """The embedded cluster that ``module_cluster`` of the file starts, without earlier faults and executors."""
    try:
        yield module_cluster
    finally:
        module_cluster.clear_faults()
        close_executor()


@pytest.fixture
def sink() -> str:
    """The name of an exactly-once sink of the test's own."""
    return f"sink-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def options(cluster: EmbeddedClusterThread, topic: str, sink: str) -> dict[str, str]:
    """Options of this sink, and its topic."""
    cluster.create_topic(topic, 1)
    return options_of(cluster.bootstrap_servers, topic, sink, **{"kafka.linger.ms": "0"})
