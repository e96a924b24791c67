"""Apache Kafka's jars, downloaded once by Maven into a cache folder.

``AIOPRODUCER_KAFKA_JARS`` names a folder with the jars of the newest broker and replaces the download of that one;
``AIOPRODUCER_TEST_CACHE`` replaces ``~/.cache/aioproducer-tests``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NEWEST = "4.4.0"
OLD = "3.3.2"
BROKER = {NEWEST: "kafka-4.4.0", OLD: "kafka-3.3.2"}
TOOLS = "kafka-tools-4.3.1"
STREAMS = "kafka-streams-4.4.0"

# Only C1 and the serial collector: a Java program of seconds takes a third less CPU time.
SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_POMS = Path(__file__).parent / "poms"
_PAUSES = (5, 20, 60, 0)
"""Seconds between attempts to download, so that a temporarily slow repository fails no test."""


class HarnessUnavailableError(Exception):
    """The machine lacks a requirement of the harness; the text says how to install it."""


def java() -> str:
    """Return the path of the Java runtime (17 or newer)."""
    home = os.environ.get("JAVA_HOME")
    candidate = Path(home) / "bin" / "java" if home else None
    if candidate is not None and candidate.is_file():
        return str(candidate)
    found = shutil.which("java")
    if found is None:
        raise HarnessUnavailableError(
            "Java is not installed: Apache Kafka needs a Java runtime of version 17 or newer "
            "(Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk)"
        )
    return found


def _maven() -> str:
    found = shutil.which("mvn")
    if found is None:
        raise HarnessUnavailableError(
            "Maven is not installed and the jars of Apache Kafka are not in the cache: install it "
            "(Debian and Ubuntu: apt-get install maven; macOS: brew install maven), "
            "or set AIOPRODUCER_KAFKA_JARS to a folder with the jars"
        )
    return found


def cache() -> Path:
    """Return the folder that has a folder for each set of jars."""
    configured = os.environ.get("AIOPRODUCER_TEST_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "aioproducer-tests"


def resolve(name: str) -> Path:
    """Return the folder with the jars of ``poms/<name>.xml``, filled by Maven on first use."""
    override = os.environ.get("AIOPRODUCER_KAFKA_JARS")
    if override and name == BROKER[NEWEST]:
        folder = Path(override)
        if not any(folder.glob("kafka_2.13-*.jar")):
            raise HarnessUnavailableError(f"AIOPRODUCER_KAFKA_JARS={override} holds no kafka_2.13-*.jar")
        return folder
    folder = cache() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _download(name, folder)
    return folder


def _download(name: str, folder: Path) -> None:
    """Let Maven copy the jars beside ``folder``, then rename, so that an incomplete folder is never used."""
    partial = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder.parent))
    # -U: request artifacts again that were not found before.
    command = [_maven(), "-q", "-B", "-U", "-f", str(_POMS / f"{name}.xml"), "dependency:copy-dependencies"]
    command.append(f"-DoutputDirectory={partial}")
    try:
        for pause in _PAUSES:
            run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if run.returncode == 0:
                partial.rename(folder)
                return
            time.sleep(pause)
        raise HarnessUnavailableError(f"Maven could not fetch {name}: {(run.stdout + run.stderr).strip()[-2000:]}")
    finally:
        shutil.rmtree(partial, ignore_errors=True)
