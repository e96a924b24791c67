"""An archive of the classes that a broker loads (class data sharing, JEP 350), which halves its start time.

Each pair of a Java and a folder of jars has an archive, in the cache beside the jars. A JVM ignores an archive of other
jars.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.kafka import jars


@functools.cache
def options(folder: Path, record: Callable[[Path], None]) -> tuple[str, ...]:
    """Return the JVM options that share the classes of the jars in ``folder``.

    ``record`` runs a JVM that writes its classes to the given path; it is called once on each machine. A JVM that
    cannot write an archive leaves an empty file; then no options are returned.
    """
    java = Path(jars.java()).resolve()
    key = hashlib.sha256(f"{java} {java.stat().st_mtime_ns} {folder.resolve()}".encode()).hexdigest()[:16]
    archive = jars.cache() / f"classes-{key}.jsa"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with open(archive.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive, record)
    return (f"-XX:SharedArchiveFile={archive}",) if archive.stat().st_size else ()


def _make(archive: Path, record: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix=".classes-", dir=archive.parent) as partial:
        made = Path(partial, "classes.jsa")
        record(made)
        if made.exists():
            os.replace(made, archive)
        else:
            archive.touch()
