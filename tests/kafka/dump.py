"""Checking the batches that a producer wrote by Kafka's DumpLogSegments."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.kafka import jars

_PAIR = re.compile(r"(\w+): (\S+)")


@dataclass(frozen=True)
class StoredBatch:
    """One record batch in a log segment."""

    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    last_sequence: int
    producer_id: int
    producer_epoch: int
    leader_epoch: int
    size: int
    codec: str
    valid: bool


def dump_log(folder: Path) -> list[StoredBatch]:
    """Return the batches of every segment in ``folder``, a partition's directory, oldest first."""
    segments = sorted(folder.glob("*.log"))
    if not segments:
        raise FileNotFoundError(f"no segment in {folder}")
    command = [jars.java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-cp", f"{jars.resolve(jars.TOOLS)}/*", "org.apache.kafka.tools.DumpLogSegments", "--files"]
    run = subprocess.run(
        [*command, ",".join(str(segment) for segment in segments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if run.returncode != 0:
        raise RuntimeError(f"DumpLogSegments ended with {run.returncode}: {(run.stdout + run.stderr)[-3000:]}")
    return [_parse(line) for line in run.stdout.splitlines() if line.startswith("baseOffset: ")]


def _parse(line: str) -> StoredBatch:
    fields = dict(_PAIR.findall(line))
    return StoredBatch(
        base_offset=int(fields["baseOffset"]),
        last_offset=int(fields["lastOffset"]),
        count=int(fields["count"]),
        base_sequence=int(fields["baseSequence"]),
        last_sequence=int(fields["lastSequence"]),
        producer_id=int(fields["producerId"]),
        producer_epoch=int(fields["producerEpoch"]),
        leader_epoch=int(fields["partitionLeaderEpoch"]),
        size=int(fields["size"]),
        codec=fields["compresscodec"].lower(),
        valid=fields["isvalid"] == "true",
    )


def check_batches(batches: list[StoredBatch]) -> None:
    """Check that batches are valid, and that offsets and each producer's sequences have neither gaps nor overlaps."""
    next_offset = 0
    next_sequence: dict[tuple[int, int], int] = {}
    for batch in batches:
        assert batch.valid, f"Kafka finds {batch} invalid"
        assert batch.base_offset == next_offset, f"offset {next_offset} expected: {batch}"
        assert batch.last_offset - batch.base_offset + 1 == batch.count, f"offsets and count disagree: {batch}"
        next_offset = batch.last_offset + 1
        if batch.producer_id < 0:
            continue
        producer = (batch.producer_id, batch.producer_epoch)
        assert batch.base_sequence == next_sequence.get(producer, 0), f"sequence gap: {batch} in {batches}"
        assert batch.last_sequence - batch.base_sequence + 1 == batch.count, f"sequences and count disagree: {batch}"
        next_sequence[producer] = batch.last_sequence + 1
