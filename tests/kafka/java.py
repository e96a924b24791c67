"""Small Java programs that use Kafka's classes, run from their sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.kafka import jars


def run_java(classes: Path, folder: Path, name: str, source: str, *arguments: str, stdin: str = "") -> str:
    """Return what the class ``name`` prints, with the jars in the folder ``classes``; its source goes to ``folder``."""
    path = folder / f"{name}.java"
    path.write_text(source)
    command = [jars.java(), *jars.SHORT_LIVED, "-cp", f"{classes}/*", str(path), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
