"""A judge of histories that is not ours: the checker ``adya`` (crates.io), a port of Jepsen's Elle to Rust.

It needs cargo and a registry, and takes a minute to compile: the tests with it are for ``make soak``.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.simulation.embedded.elle import elle_lines
from tests.simulation.embedded.history import History

VERSION = "0.1.0"

_FORBIDDEN = "G1a,internal,future-read,duplicate-elements,incompatible-order,cyclic-versions"
_LISTS = ("--consistency-models", "monotonic-reads", "--anomalies", _FORBIDDEN)
"""For lists that are partitions.

No aborted read, no read of a record before the transaction has sent it, and all reads of a partition agree about its
order. Kafka's readers may get a part of a transaction, and its writes are not isolated: Adya's G0 and G1b are allowed.
"""

_RECORDS = ("--consistency-models", "read-committed")
"""For a list of each record: without the order of writes, no circle of transactions that read each other's records."""

_VALID, _INVALID, _UNKNOWN = 0, 1, 2
"""Exit codes; the history is unknown if no transaction has read a record of another one."""


def install(folder: Path) -> Path:
    """Compile the judge, and return the path of its binary."""
    command = ["cargo", "install", "adya", "--version", f"={VERSION}", "--locked", "--no-default-features"]
    subprocess.run([*command, "--root", str(folder)], check=True, timeout=1800)
    return folder / "bin" / "adya"


def anomalies(judge: Path, history: History, folder: Path) -> set[str] | None:
    """The kinds of anomalies that the judge finds; ``None`` if the history has too few reads to be judged."""
    records = _judged(judge, folder, elle_lines(history, has_list_for_each_record=True), _RECORDS)
    partitions = _judged(judge, folder, elle_lines(history), _LISTS)
    return None if records is partitions is None else (records or set()) | (partitions or set())


def _judged(judge: Path, folder: Path, lines: Iterable[str], options: Iterable[str]) -> set[str] | None:
    file = folder / "history.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    judged = subprocess.run(
        [judge, "check", "--json", *options, file], capture_output=True, text=True, check=False, timeout=60
    )
    if judged.returncode not in (_VALID, _INVALID, _UNKNOWN):
        raise RuntimeError(f"the judge has failed with {judged.returncode}: {judged.stderr}")
    if judged.returncode == _UNKNOWN:
        return None
    found = set(json.loads(judged.stdout)["anomaly_types"])
    # Not an anomaly: nothing was read of another transaction.
    found.discard("empty-transaction-graph")
    if (judged.returncode == _VALID) != (not found):
        raise RuntimeError(f"the judge has returned {judged.returncode}, and found {found}")
    return found
