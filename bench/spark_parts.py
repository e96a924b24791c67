"""pyspark of one version, and Spark's own Kafka connector of the same: from a package index and Maven, once.

Not every version of the connector can be had everywhere, so that the version is fixed here instead of being that of the
pyspark which is installed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.kafka import jars
from tests.kafka.jars import HarnessUnavailableError

VERSION = "4.1.3"
CONNECTOR = f"spark-kafka-{VERSION}"
ROOT = Path(__file__).parent.parent


def connector() -> list[Path]:
    """The jars that Spark's own sink needs beside Spark's.

    Raises:
        HarnessUnavailableError: they are not there, and Maven does not get them.
    """
    return sorted(jars.resolve(CONNECTOR).glob("*.jar"))


def pyspark() -> Path | None:
    """A folder with pyspark to be put before all others; None where the installed one will do.

    Raises:
        HarnessUnavailableError: there is none, or what it needs is missing.
    """
    jars.java()
    if _installed() == VERSION:
        return None
    folder = jars.cache() / f"pyspark-{VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.parent / f".{folder.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _install(folder)
    return folder


def prepare() -> None:
    """Let this process, and all that it starts, import that pyspark, this project and the bench.

    Raises:
        HarnessUnavailableError: there is no such pyspark.
    """
    folder = pyspark()
    first = [str(ROOT)] if folder is None else [str(folder), str(ROOT)]
    sys.path[:0] = first
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*first, inherited] if inherited else first)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Another Spark's, which would be started in the place of this one.
    os.environ.pop("SPARK_HOME", None)


def _installed() -> str | None:
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return None


def _install(folder: Path) -> None:
    """Let pip put it beside ``folder`` and rename: a half-filled folder is never taken for a whole one."""
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(partial)]
    try:
        run = subprocess.run(
            [*command, f"pyspark=={VERSION}"], capture_output=True, text=True, timeout=1800, check=False
        )
        if run.returncode != 0:
            raise HarnessUnavailableError(f"pyspark {VERSION} could not be installed: {run.stderr.strip()[-500:]}")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
