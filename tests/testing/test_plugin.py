"""The fixtures in a user's test suite: a separate pytest run, with warnings as errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nested_pytest import outcome_of, run_pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "testing.md"

SCOPE = "asyncio_default_fixture_loop_scope = "
AUTO = f"[pytest]\nfilterwarnings = error\nasyncio_mode = auto\n{SCOPE}function\n"
STRICT = f"[pytest]\nfilterwarnings = error\nasyncio_mode = strict\n{SCOPE}function\n"

SERVICE = """
import pytest
from aioproducer.admin import Admin

@pytest.mark.asyncio
async def test_one(kafka_cluster, producer):
    assert kafka_cluster.topics() == []
    await producer.send("clicks", b"value")
    assert [r.value for r in kafka_cluster.records("clicks")] == [b"value"]

@pytest.mark.asyncio
async def test_each_test_has_its_own_cluster(kafka_cluster):
    assert kafka_cluster.topics() == []

@pytest.mark.asyncio
@pytest.mark.kafka_cluster(brokers=3)
async def test_three(kafka_cluster, producer):
    assert kafka_cluster.nodes == [1, 2, 3]
    kafka_cluster.create_topic("clicks")
    await producer.send("clicks", b"value")

def test_session(kafka_cluster_session):
    kafka_cluster_session.create_topic("shared")
    assert kafka_cluster_session.topics() == ["shared"]

def test_session_again(kafka_cluster_session):
    assert kafka_cluster_session.topics() == ["shared"]

@pytest.mark.asyncio
async def test_session_keeps_records_with_old_timestamps(kafka_cluster_session):
    async with Admin(bootstrap_servers=kafka_cluster_session.bootstrap_servers) as admin:
        entries = {entry.name: entry.value for entry in await admin.topic_config("shared")}
    assert entries["retention.ms"] == "-1"
"""


@pytest.mark.parametrize("settings", [AUTO, STRICT], ids=["auto", "strict"])
def test_fixtures_work_in_both_modes_of_pytest_asyncio(tmp_path: Path, settings: str) -> None:
    (tmp_path / "pytest.ini").write_text(settings)
    (tmp_path / "test_service.py").write_text(SERVICE)
    run = run_pytest(tmp_path)
    assert outcome_of(run) == "6 passed", run.stdout


def test_fixtures_work_with_session_scoped_loops(tmp_path: Path) -> None:
    settings = AUTO.replace(f"{SCOPE}function", f"{SCOPE}session") + "asyncio_default_test_loop_scope = session\n"
    (tmp_path / "pytest.ini").write_text(settings)
    (tmp_path / "test_service.py").write_text(SERVICE)
    run = run_pytest(tmp_path)
    assert outcome_of(run) == "6 passed", run.stdout


def test_a_permanent_fault_does_not_delay_the_teardown(tmp_path: Path) -> None:
    """The teardown once waited for pending records until delivery.timeout.ms, two minutes."""
    (tmp_path / "pytest.ini").write_text(AUTO)
    (tmp_path / "conftest.py").write_text("import aioproducer.testing.plugin as plugin\nplugin.PATIENCE = 0.1\n")
    (tmp_path / "test_service.py").write_text(
        "async def test_it(kafka_cluster, producer):\n"
        "    kafka_cluster.fail('Produce', 'NOT_ENOUGH_REPLICAS', times=None)\n"
        "    producer.send('clicks', b'value')\n"
    )
    run = run_pytest(tmp_path)
    assert outcome_of(run) == "1 passed", run.stdout


def test_a_cluster_of_another_loop_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(AUTO)
    (tmp_path / "test_service.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.asyncio(loop_scope='session')\n"
        "async def test_elsewhere(kafka_cluster):\n"
        "    kafka_cluster.create_topic('clicks')\n"
    )
    run = run_pytest(tmp_path)
    assert outcome_of(run) == "1 failed", run.stdout
    assert "give the test and the fixture the same loop_scope" in run.stdout


def test_without_pytest_asyncio_only_the_session_cluster_works(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pytest_asyncio'] = None\n")
    (tmp_path / "test_service.py").write_text(
        "def test_session(kafka_cluster_session):\n"
        "    assert kafka_cluster_session.nodes == [1]\n\n"
        "def test_missing(kafka_cluster):\n"
        "    pass\n"
    )
    run = run_pytest(
        tmp_path,
        "-p",
        "aioproducer.testing.plugin",
        PYTHONPATH=str(tmp_path),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )
    assert outcome_of(run) == "1 passed, 1 error", run.stdout
    assert "pip install pytest-asyncio" in run.stdout


def test_plugin_alone_imports_nothing_heavy() -> None:
    script = (
        "import sys, aioproducer.testing.plugin; print(sorted(n for n in sys.modules if n.startswith('aioproducer')))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    light = ["aioproducer", "aioproducer._build", "aioproducer.testing", "aioproducer.testing.plugin"]
    assert found.stdout.strip() == str(light)


def test_the_examples_of_the_documentation_pass(tmp_path: Path) -> None:
    """Each code block of docs/testing.md with a file name is written to that file, and all tests in them pass."""
    blocks = re.findall(r"```python\n(# (test_\w+\.py)\n.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) == DOCUMENT.read_text().count("```python") == 4
    (tmp_path / "pytest.ini").write_text(AUTO)
    for source, name in blocks:
        (tmp_path / name).write_text(source)
    tests = sum(source.count("def test_") for source, _ in blocks)
    run = run_pytest(tmp_path)
    assert outcome_of(run) == f"{tests} passed", run.stdout
