"""franz-go, by the program in ``go/``, which measures itself: its own CPU time, without the start of the process."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.job import Job, Measurement
from tests.kafka.jars import HarnessUnavailableError, cache

_SOURCE = Path(__file__).parent / "go"
# Where Go's own instructions put it, which login shells alone have on their PATH.
_USUAL = (Path("/usr/local/go/bin"), Path.home() / "go" / "bin", Path("/usr/lib/go/bin"), Path("/opt/homebrew/bin"))


def _go() -> str:
    found = shutil.which("go", path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, _USUAL)]))
    if found is None:
        raise HarnessUnavailableError("Go is not installed: franz-go needs it (https://go.dev/dl/)")
    return found


def program() -> Path:
    """The compiled program, built once for what is in ``go/``."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCE.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    built = cache() / f"bench-franz-{digest.hexdigest()[:16]}"
    if built.is_file():
        return built
    go = _go()
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        partial = Path(folder) / "franz"
        run = subprocess.run(
            [go, "build", "-o", str(partial), "."],
            cwd=_SOURCE,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if run.returncode != 0:
            raise HarnessUnavailableError(f"franz-go could not be built: {run.stderr.strip()[-500:]}")
        partial.rename(built)
    return built


def run(job: Job) -> Measurement:
    """Any of the works that the program knows."""
    command = [
        str(program()),
        f"-work={job.work}",
        f"-bootstrap={job.bootstrap}",
        f"-topic={job.topic}",
        f"-records={job.records}",
        f"-warm-up={job.warm_up}",
        f"-linger-ms={job.linger_ms}",
        f"-batch-size={job.batch_size}",
        f"-compression={job.compression}",
        f"-values-file={job.values_file}",
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(finished.stderr.strip() or f"exit code {finished.returncode}")
    measured: Measurement = json.loads(finished.stdout)
    return measured


kept = unkept = alone = run
