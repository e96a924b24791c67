"""RDMA beside TCP in instructions, which no neighbour on the machine disturbs: `python -m bench.rdma_instructions`.

callgrind counts those of the producer's thread outside the kernel, in a process that has an embedded broker in another
thread, and leaves out the double of the verbs, from the call of its functions to their return: it stands for the card.
CPython's own part of ``sendmsg`` and ``recv_into`` counts: it gathers a request's buffers and hands over what came, as
the RDMA transport does itself. ``bench.rdma_timing`` stands around the double, and says when to begin and to end. It is
compiled for this, so that callgrind knows its functions by name.

Everything is some fifty times slower under callgrind, so the timer that looks for memory to give back is left out: it
would run with every few requests, where it runs once in many. Of the rounds of a work the one with the fewest
instructions is shown: CPython looks attributes up in a table by addresses, where some are in each other's way in one
round and others in the next. Needs valgrind.
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
"""What Cython calls the functions around the double."""
ENDS = re.compile(r"__pyx_pw_\w+_5Layer_\d+(begin|end)")
"""And what is called before and behind of what is counted."""
TRANSPORTS = ("tcp", "rdma")
LOOPS = ("asyncio", "uvloop")


@dataclass(frozen=True)
class Counted:
    """What is sent: to so many partitions so many records each, then waited for; and that so many times."""

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
    """``bench.rdma_timing`` as a compiled module."""
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
    """Whoever imports ``bench.rdma_timing`` from now on has the compiled one."""
    spec = importlib.util.spec_from_file_location("bench.rdma_timing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench.rdma_timing"] = module
    spec.loader.exec_module(module)


def run(work: Counted, transport: str, loop: str) -> int:
    """Send it over a transport, on a loop of that name; how many requests that were."""
    from aioproducer.transport.rdma import answers
    from bench.rdma import both_sides
    from bench.rdma_timing import Layer

    # No timer, as the module says. They are Final: nobody but whoever counts changes them.
    answers._MEMORY_BACK = answers._MEMORY_BACK_WITH_ANSWERS = 3600  # type: ignore[misc]
    # The other thread would have to give up the GIL in the middle, more often than it does without callgrind.
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

    # A batch of one record goes at once, others when they are flushed.
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
        # A record that was lost has cost nothing.
        await deliveries[-1]


def double_options(names: Sequence[str]) -> list[str]:
    """What tells callgrind of the double, of all the names there are in ``bench.rdma_timing``."""
    # One by one: of two patterns that begin alike callgrind may take the first for both.
    found = [f"--dump-before={name}" for name in names if ENDS.fullmatch(name)]
    found += [f"--toggle-collect={name}" for name in names if DOUBLE.fullmatch(name)]
    # Behind the others, which say no.
    return [*found, "--collect-atstart=yes"]


def cost_of(number: int, transport: str, loop: str, timing: Path, found: Path, shift: int = 0) -> float:
    """One run under callgrind: instructions of a request. ``found`` is how the files begin that it writes.

    With another ``shift`` everything lies somewhere else.
    """
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={found}", "--separate-threads=yes"]
    # Each file is to be read by itself.
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
        raise RuntimeError(f"{requests} requests where {WORKS[number].times} were meant")
    # Of the thread that began, between the first and the second of what it wrote.
    (total,) = re.findall(r"^totals: (\d+)$", Path(f"{found}.2-01").read_text(), re.MULTILINE)
    return int(total) / requests


def table(found: dict[str, dict[str, float]]) -> str:
    """As docs/rdma.md has it."""
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
    asked.add_argument("--work", default="", metavar="TEXT", help="what has this in its name")
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
