"""Instructions of RDMA and TCP, independent of other load on the machine: `python -m bench.rdma_instructions`.

callgrind counts those of the producer's thread outside the kernel; an embedded broker runs in another thread of the
process. The double of the verbs replaces the card, so its functions are excluded, from call to return. CPython's part
of ``sendmsg`` and ``recv_into`` counts: it gathers a request's buffers and delivers received data, as the RDMA
transport does itself. ``bench.rdma_timing`` wraps the double, and starts and ends the counting. It is compiled, so that
callgrind knows its functions by name.

Everything is about fifty times slower under callgrind. Therefore the timer that looks for completed writes is disabled:
it would run every few requests instead of rarely. The round with the fewest instructions of a work is shown: CPython
caches attributes by address and hash, and in some layouts two hot ones evict each other. Needs valgrind.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.child import loop_factory
from bench.job import VALUE

if TYPE_CHECKING:
    from aioproducer import Producer
    from bench.rdma_timing import Layer

ROOT = Path(__file__).resolve().parent.parent
DOUBLE = re.compile(r"__pyx_pw_\w+\d_TimedQueuePair_\w+")
"""Cython's names of the functions around the double."""
ENDS = re.compile(r"__pyx_pw_\w+_5Layer_\d+(begin|end)")
"""Its names of the functions that are called before and after the counted part."""
TRANSPORTS = ("tcp", "rdma")
LOOPS = ("asyncio", "uvloop")


@dataclass(frozen=True)
class Counted:
    """The records to send: a number for each of some partitions, then a flush; all of that several times."""

    name: str
    partitions: int
    records: int
    times: int


WORKS = (
    Counted("a request of four batches of 16 KiB", 4, 140, 60),
    Counted("a request of one batch of 16 KiB", 1, 140, 200),
    Counted("one awaited", 1, 1, 1500),
)


def compiled_timing(directory: Path) -> Path:
    """Compile ``bench.rdma_timing``, and return the path of the compiled module."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    source = os.path.relpath(ROOT / "bench" / "rdma_timing.py")
    extensions = cythonize(
        [Extension("bench.rdma_timing", [source], extra_compile_args=["-O2", "-g"])],
        build_dir=str(directory),
        compiler_directives={"language_level": "3", "annotation_typing": False},
        quiet=True,
    )
    command = build_ext(Distribution({"ext_modules": extensions}))
    command.build_lib = command.build_temp = str(directory)
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath("bench.rdma_timing"))


def take_compiled(path: Path) -> None:
    """Let later imports of ``bench.rdma_timing`` load the compiled module."""
    spec = importlib.util.spec_from_file_location("bench.rdma_timing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench.rdma_timing"] = module
    spec.loader.exec_module(module)


def run(work: Counted, transport: str, loop: str) -> int:
    """Send a work's records over a transport, on the named loop; return the number of requests."""
    from aioproducer.transport.rdma import answers
    from bench.rdma import both_sides
    from bench.rdma_timing import Layer

    # Disables the timer, see the module's docstring. The constants are Final; only this bench changes them.
    answers._MEMORY_BACK = answers._MEMORY_BACK_WITH_ANSWERS = 3600  # type: ignore[misc]
    # Otherwise the other thread would have to release the GIL more often than without callgrind.
    sys.setswitchinterval(1)
    gc.disable()
    layer = Layer()
    with (
        both_sides(transport, layer if transport == "rdma" else None) as (address, connector),
        asyncio.Runner(loop_factory=loop_factory(loop)) as runner,
    ):
        return runner.run(_client(work, address, connector, layer))


async def _client(work: Counted, address: str, connector: Any, layer: Layer) -> int:
    from aioproducer import Producer

    # A batch of one record is sent at once, others by flush.
    linger_ms = 0 if work.records == 1 else 5000
    async with Producer(
        bootstrap_servers=address, transport=connector, batch_size=16 * 1024, linger_ms=linger_ms
    ) as producer:
        await _send(producer, work, work.times // 10)
        before = producer.metrics()["request-total"]
        layer.begin()
        await _send(producer, work, work.times)
        layer.end()
        return int(producer.metrics()["request-total"] - before)


async def _send(producer: Producer, work: Counted, times: int) -> None:
    for _ in range(times):
        if work.records == 1:
            await producer.send("bench", VALUE, partition=0)
            continue
        deliveries = [
            producer.send("bench", VALUE, partition=partition)
            for partition in range(work.partitions)
            for _ in range(work.records)
        ]
        await producer.flush()
        # Raises if a record was lost: the measurement is invalid then.
        await deliveries[-1]


def double_options(names: Sequence[str]) -> list[str]:
    """Return callgrind's options for the double, from the names in ``bench.rdma_timing``."""
    # One option for each name: of two patterns with the same beginning, callgrind may use the first for both.
    found = [f"--dump-before={name}" for name in names if ENDS.fullmatch(name)]
    found += [f"--toggle-collect={name}" for name in names if DOUBLE.fullmatch(name)]
    # After the others, which disable counting.
    return [*found, "--collect-atstart=yes"]


def cost_of(number: int, transport: str, loop: str, timing: Path, found: Path, shift: int = 0) -> float:
    """Run once under callgrind and return the instructions for each request. ``found`` is the prefix of its files.

    A different ``shift`` changes the addresses of all objects.
    """
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={found}", "--separate-threads=yes"]
    # Each file is read separately.
    command += ["--compress-strings=no", "--compress-pos=no"]
    names = subprocess.run(["nm", str(timing)], check=True, capture_output=True, text=True).stdout.split()
    command += double_options(names)
    command += [sys.executable, "-m", "bench.rdma_instructions", "--child", str(timing), str(number), transport, loop]
    command.append(str(shift))
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ran.stderr}")
    requests = int(ran.stdout)
    if requests != WORKS[number].times:
        raise RuntimeError(f"{requests} requests were sent instead of {WORKS[number].times}")
    # Instructions of the counted thread, between its first and second dump.
    (total,) = re.findall(r"^totals: (\d+)$", Path(f"{found}.2-01").read_text(), re.MULTILINE)
    return int(total) / requests


def table(found: dict[str, dict[str, float]]) -> str:
    """Return the table of docs/rdma.md."""
    lines = ["| | TCP | RDMA | |", "|---|---|---|---|"]
    for name, of in found.items():
        tcp, rdma = (of[transport] for transport in TRANSPORTS)
        lines.append(f"| {name} | {tcp:,.0f} | {rdma:,.0f} | {rdma / tcp:.4f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, and print a table."""
    asked = argparse.ArgumentParser(
        prog="python -m bench.rdma_instructions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    asked.add_argument("--work", default="", metavar="TEXT", help="works whose names contain this")
    asked.add_argument("--loop", choices=LOOPS, default="asyncio", help="%(default)s")
    asked.add_argument("--rounds", type=int, default=3, help="runs of each (%(default)s)")
    asked.add_argument("--keep", type=Path, metavar="DIRECTORY", help="callgrind's files, for callgrind_annotate")
    asked.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    chosen = asked.parse_args(arguments)
    if chosen.child:
        timing, number, transport, loop, shift = chosen.child
        shifting = [bytes(size) for size in range(16, 512, 16) for _ in range(37 * int(shift))]
        take_compiled(Path(timing))
        print(run(WORKS[int(number)], transport, loop))
        del shifting
        return 0
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        timing = compiled_timing(Path(temporary))
        kept = (chosen.keep or Path(temporary)).resolve()
        kept.mkdir(parents=True, exist_ok=True)
        for number, work in enumerate(WORKS):
            if chosen.work in work.name:
                found[work.name] = {
                    transport: min(
                        cost_of(number, transport, chosen.loop, timing, kept / f"{transport}.{number}.{shift}", shift)
                        for shift in range(chosen.rounds)
                    )
                    for transport in TRANSPORTS
                }
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
