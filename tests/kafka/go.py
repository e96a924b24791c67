"""Programs in Go, built once for each state of their folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.kafka.jars import HarnessUnavailableError, cache

# The folder of Go's installation instructions, which only login shells have on their PATH.
_USUAL = (Path("/usr/local/go/bin"), Path.home() / "go" / "bin", Path("/usr/lib/go/bin"), Path("/opt/homebrew/bin"))


def _go() -> str:
    found = shutil.which("go", path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, _USUAL)]))
    if found is None:
        raise HarnessUnavailableError("Go is not installed (https://go.dev/dl/)")
    return found


def program(source: Path, name: str) -> Path:
    """Return the compiled program of the module in the folder ``source``; ``name`` is its file's name in the cache.

    Raises:
        HarnessUnavailableError: Go is not installed, or its modules cannot be downloaded.
    """
    digest = hashlib.sha256()
    for path in sorted(source.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    built = cache() / f"{name}-{digest.hexdigest()[:16]}"
    if built.is_file():
        return built
    go = _go()
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        partial = Path(folder) / name
        run = subprocess.run(
            [go, "build", "-o", str(partial), "."],
            cwd=source,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if run.returncode != 0:
            raise HarnessUnavailableError(f"{name} could not be built: {run.stderr.strip()[-500:]}")
        partial.rename(built)
    return built
