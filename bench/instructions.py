"""Count the instructions per record of the producer's four paths: `python -m bench.instructions`.

callgrind counts the instructions that the producer's process executes outside the kernel. Other load on the machine
does not change them, so a change of a few percent shows in one run. The embedded broker runs in a process of its own
and is not counted. Each path runs twice, with few and with many records; the difference of the two counts, divided by
the difference in records, leaves out the start of the process. The fewest instructions of several rounds count:
CPython caches attributes by address and hash, and in some layouts two hot ones evict each other. A lone send also
depends on how soon the broker answers: on an idle machine it took up to 4 % fewer. Needs valgrind and the
compiled modules; takes about six minutes.

``--compare`` prints the ratio to the recorded figures (bench/recorded/instructions.json) and ends with exit code 1 if a
path takes over 2 % more; ``--record`` replaces them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.child import loop_factory
from bench.job import VALUE

if TYPE_CHECKING:
    from aioproducer import Producer

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "bench" / "recorded" / "instructions.json"
TOPIC = "instructions"
PARTITIONS = 50
FLUSH_EVERY = 1000
# All records of one flush fit into one batch, so that the number of requests does not depend on time.
BATCH_SIZE = 256 * 1024
TOLERANCE = 1.02


async def _send(producer: Producer, records: int) -> None:
    for _ in range(records // FLUSH_EVERY):
        for _ in range(FLUSH_EVERY):
            producer.send(TOPIC, VALUE, partition=0)
        await producer.flush()


async def _send_many(producer: Producer, records: int) -> None:
    values = [VALUE] * FLUSH_EVERY
    for _ in range(records // FLUSH_EVERY):
        await producer.send_many(TOPIC, values, partition=0)
        await producer.flush()


async def _lone(producer: Producer, records: int) -> None:
    for _ in range(records):
        await producer.send(TOPIC, VALUE, partition=0)


async def _answer(producer: Producer, records: int) -> None:
    for _ in range(records // PARTITIONS):
        deliveries = [producer.send(TOPIC, VALUE, partition=partition) for partition in range(PARTITIONS)]
        flushing = asyncio.ensure_future(producer.flush())
        for delivery in deliveries:
            await delivery
        await flushing


class Workload(NamedTuple):
    """What is sent, and how many records the short and the long run send."""

    send: Callable[[Producer, int], Awaitable[None]]
    few: int
    many: int
    linger_ms: int
    meaning: str


PATHS = {
    "send": Workload(_send, 2_000, 12_000, 60_000, "a record of 100 bytes, its batch flushed with 1,000 others"),
    "send_many": Workload(_send_many, 2_000, 22_000, 60_000, "a row of a list of 1,000, flushed"),
    "lone": Workload(_lone, 100, 600, 0, "a send that is awaited before the next one"),
    "answer": Workload(_answer, 500, 3_000, 60_000, "an awaited record alone in its batch, 50 batches a request"),
}


async def run(name: str, bootstrap_servers: str, records: int) -> None:
    """Send a record to each partition, then the records of a path."""
    from aioproducer import Producer

    path = PATHS[name]
    async with Producer(
        bootstrap_servers=bootstrap_servers,
        linger_ms=path.linger_ms,
        batch_size=BATCH_SIZE,
        delivery_timeout_ms=600_000,
    ) as producer:
        # Every partition has its queue before anything is counted.
        first = [producer.send(TOPIC, VALUE, partition=partition) for partition in range(PARTITIONS)]
        await producer.flush()
        await asyncio.gather(*first)
        gc.collect()
        gc.disable()
        await path.send(producer, records)


@contextmanager
def _broker() -> Iterator[str]:
    command = [sys.executable, "-m", "aioproducer", "broker", "--listen", "127.0.0.1:0"]
    command += ["-X", f"num.partitions={PARTITIONS}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise SystemExit("bench.instructions: the embedded broker did not start")
            yield address
        finally:
            process.terminate()


def _count(name: str, bootstrap_servers: str, records: int, loop: str, seed: int, found: Path) -> int:
    """Return the instructions of a process that sends ``records`` records under the hash seed ``seed``."""
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={found}"]
    command += [sys.executable, "-m", "bench.instructions", "--child", name, bootstrap_servers, str(records), loop]
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"bench.instructions: {' '.join(command)}: {ran.stderr}")
    (total,) = re.findall(r"^(?:totals|summary): (\d+)", found.read_text(), re.MULTILINE)[-1:]
    return int(total)


def count(names: Sequence[str], loop: str, rounds: int, folder: Path) -> dict[str, int]:
    """Instructions per record of each path, the fewest of several rounds; callgrind's files go into ``folder``."""
    figures = {}
    with _broker() as address:
        for name in names:
            path = PATHS[name]
            found = []
            for seed in range(rounds):
                few, many = (
                    _count(name, address, records, loop, seed, folder / f"{name}.{records}.{seed}")
                    for records in (path.few, path.many)
                )
                found.append(round((many - few) / (path.many - path.few)))
            figures[name] = min(found)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, print a table, compare or record."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.instructions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--path", choices=PATHS, action="append", help="one path (default: all)")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio", help="%(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each path (%(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="callgrind's files, for callgrind_annotate")
    parser.add_argument("--compare", action="store_true", help="fail where a path takes over 2 %% more than recorded")
    parser.add_argument("--record", action="store_true", help="replace the recorded figures")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        name, bootstrap_servers, records, loop = options.child
        from aioproducer import Producer

        if not Producer.compiled:
            raise SystemExit("bench.instructions: the modules are not compiled: run `make compiled` first")
        with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
            runner.run(run(name, bootstrap_servers, int(records)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        figures = count(options.path or list(PATHS), options.loop, options.rounds, folder)
    recorded: dict[str, int] = json.loads(RECORDED.read_text()).get(options.loop, {}) if RECORDED.exists() else {}
    print("| path | a record is | instructions per record | to the recorded |\n|---|---|---|---|")
    for name, figure in figures.items():
        ratio = f"{figure / recorded[name]:.3f}" if name in recorded else "-"
        print(f"| {name} | {PATHS[name].meaning} | {figure:,} | {ratio} |")
    if options.record:
        kept = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        RECORDED.write_text(json.dumps({**kept, options.loop: {**recorded, **figures}}, indent=2) + "\n")
    if options.compare:
        return int(any(figure > TOLERANCE * recorded.get(name, figure) for name, figure in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
