"""Memory of producers and partitions with nothing to do: `python -m bench.idle_memory`.

Each figure is measured in its own process, against an embedded broker in another process. Memory is the private
memory of the process (`bench.memory.private`). The kernel's socket buffers belong to no process and are not included.
The garbage collector runs before each reading; the allocator is not asked to return free memory.

producers
    Memory of ``--producers`` producers on one loop, divided by their number: connected (metadata and producer id are
    known, nothing was sent), and after each has sent one record. Ten others have done the same before, so that lazy
    imports do not count.
connections
    The same for connections without a producer: a transport of the loop with an empty protocol, and a bare socket that
    the loop watches. No client on this loop can take less.
partitions
    One producer that has sent records to 200 partitions and knows 20,000, less one that knows only those 200, divided
    by 19,800; the same once each of the 20,000 has had a record.

Live bytes are those of Python objects, by tracemalloc, in further processes. The allocator holds the rest, in gaps
between the objects or since a peak. ``--objects`` prints the lines that allocated the objects, and their types. The
exit code is 1 if an idle producer or partition takes more than its limit. Use compiled modules: uncompiled ones take
more.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import resource
import socket
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.child import loop_factory
from bench.embedded import embedded_broker
from bench.job import VALUE
from bench.memory import private

if TYPE_CHECKING:
    from aioproducer import Producer

ROOT = Path(__file__).resolve().parent.parent
LOOPS = ("asyncio", "uvloop")
WARM_UP = 10
# Producers that connect at the same time: less than the backlog of a listening socket.
AT_ONCE = 50
LONGEST_START = 60.0
# Seconds for bootstrap connections to end, and for producer ids to arrive.
SETTLING = 0.5

LIMITS = {"connected": 100_000, "sent": 100_000, "idle": 1_000}
"""Maximum private bytes of one object of each kind."""
MEANINGS = {
    "connected": "connected producer",
    "sent": "producer that has sent a record",
    "transport": "connection of the loop, without a producer",
    "socket": "watched socket, without a producer",
    "idle": "partition without a record",
    "used": "partition with a record in the past",
}
PARTITION_KINDS = ("idle", "used")
# A bootstrap connection, and those to two brokers.
FILES_OF_PRODUCER = 3
FILES_OF_PROCESS = 100

TOPICS, PARTITIONS_OF_TOPIC = 20, 1_000
BUSY_OF_TOPIC = 10
ROUNDS = 20
LINES_SHOWN = 60
# The same number of busy partitions, without any other.
BUSY = TOPICS * BUSY_OF_TOPIC
IDLE = TOPICS * PARTITIONS_OF_TOPIC - BUSY


class Reading(NamedTuple):
    """Private bytes of the process, and those of live Python objects (0 if they are not traced)."""

    private: int
    live: int


def read() -> Reading:
    """Return the memory of the process, without garbage."""
    gc.collect()
    return Reading(private(), tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0)


async def _measured(make: Callable[[], Awaitable[None]], number: int, show: bool) -> dict[str, float]:
    """Return the bytes that ``make`` takes for each of the ``number`` objects that it makes."""
    before = read()
    objects = Objects() if show else None
    await make()
    now = read()
    if objects is not None:
        objects.print(number)
    return {"private": (now.private - before.private) / number, "live": (now.live - before.live) / number}


# The measured objects


async def _ready(bootstrap_servers: str, topic: str | None, stack: AsyncExitStack) -> None:
    from aioproducer import Producer

    producer = await stack.enter_async_context(Producer(bootstrap_servers=bootstrap_servers))
    await producer.wait_ready(LONGEST_START)
    if topic is not None:
        await producer.send(topic, VALUE)
    stack.callback(_check_producer_id, producer)


def _check_producer_id(producer: Producer) -> None:
    if producer._accumulator.producer_state.needs_producer_id():
        raise RuntimeError(f"{producer!r} had no producer id when its memory was read")


async def _connected(bootstrap_servers: str, stack: AsyncExitStack) -> None:
    await _ready(bootstrap_servers, None, stack)


async def _sent(bootstrap_servers: str, stack: AsyncExitStack) -> None:
    await _ready(bootstrap_servers, "producers", stack)


async def _transport(bootstrap_servers: str, stack: AsyncExitStack) -> None:
    host, port = bootstrap_servers.rsplit(":", 1)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, int(port))
    stack.callback(transport.abort)


async def _socket(bootstrap_servers: str, stack: AsyncExitStack) -> None:
    host, port = bootstrap_servers.rsplit(":", 1)
    loop = asyncio.get_running_loop()
    sock = stack.enter_context(socket.socket())
    sock.setblocking(False)
    await loop.sock_connect(sock, (host, int(port)))
    loop.add_reader(sock, sock.fileno)
    stack.callback(loop.remove_reader, sock)


Make = Callable[[str, AsyncExitStack], Awaitable[None]]

KINDS: dict[str, Make] = {
    "connected": _connected,
    "sent": _sent,
    "transport": _transport,
    "socket": _socket,
}
"""Makes many objects of one kind, in the context of a stack."""


async def measure_many(kind: str, bootstrap_servers: str, number: int, show: bool) -> dict[str, float]:
    """Make ``number`` producers or connections and return the bytes of each."""
    async with AsyncExitStack() as stack:

        async def make(count: int) -> None:
            for begin in range(0, count, AT_ONCE):
                together = range(begin, min(begin + AT_ONCE, count))
                await asyncio.gather(*(KINDS[kind](bootstrap_servers, stack) for _ in together))
            await asyncio.sleep(SETTLING)

        await make(WARM_UP)
        return await _measured(lambda: make(number), number, show)


async def measure_partitions(kind: str, bootstrap_servers: str, show: bool) -> dict[str, float]:
    """Return the bytes that one producer takes with the partitions of ``kind``."""
    from aioproducer import Producer

    if kind == "busy":
        partitions, busy = {"busy": BUSY}, range(BUSY)
    else:
        partitions = {f"partitions-{number}": PARTITIONS_OF_TOPIC for number in range(TOPICS)}
        busy = range(BUSY_OF_TOPIC if kind == "idle" else PARTITIONS_OF_TOPIC)
    async with AsyncExitStack() as stack:
        await _ready(bootstrap_servers, "producers", stack)

        async def make() -> None:
            producer = await stack.enter_async_context(Producer(bootstrap_servers=bootstrap_servers))
            await _send_to(producer, list(partitions), busy)
            for topic, count in partitions.items():
                _check_known(producer, topic, count)

        return await _measured(make, 1, show)


def _check_known(producer: Producer, topic: str, partitions: int) -> None:
    # ``partitions_for`` would make an object for each partition, and keep it.
    known = producer._running_parts().metadata.topic(topic)
    if known is None or len(known.partitions) != partitions:
        raise RuntimeError(f"{producer!r} does not know {partitions} partitions of {topic} when its memory is read")


async def _send_to(producer: Producer, topics: list[str], partitions: range) -> None:
    busy = BUSY // len(topics)
    for round_number in range(ROUNDS):
        # A partition that is used once has its record in the first round.
        for partition in partitions if round_number == 0 else partitions[:busy]:
            for topic in topics:
                producer.send(topic, VALUE, partition=partition)
            await producer.drain()
        await producer.flush()


# Listing the objects


class Objects:
    """Prints the lines that have allocated memory since this object was created, and the types of the objects."""

    def __init__(self) -> None:
        self._types = self._count()
        self._snapshot = tracemalloc.take_snapshot()

    @staticmethod
    def _count() -> Counter[str]:
        # Objects outside the garbage collector appear only among the lines.
        return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())

    def print(self, number: int) -> None:
        """Print bytes and objects for each of ``number``, to standard error."""
        lines = tracemalloc.take_snapshot().compare_to(self._snapshot, "lineno")
        for line in lines[:LINES_SHOWN]:
            frame = line.traceback[0]
            where = f"{frame.filename.removeprefix(f'{ROOT}/')}:{frame.lineno}"
            print(f"{line.size_diff / number:12,.1f} bytes {line.count_diff / number:10.2f} {where}", file=sys.stderr)
        for kind, count in (self._count() - self._types).most_common(LINES_SHOWN):
            print(f"{count / number:29.2f} {kind}", file=sys.stderr)


# Processes


async def _create_topics(bootstrap_servers: str) -> None:
    from aioproducer.admin import Admin

    topics = {"producers": 1, "busy": BUSY}
    topics |= {f"partitions-{number}": PARTITIONS_OF_TOPIC for number in range(TOPICS)}
    async with Admin(bootstrap_servers=bootstrap_servers) as admin:
        for name, partitions in topics.items():
            await admin.create_topic(name, partitions)


def _run(kind: str, bootstrap_servers: str, number: int, loop: str, trace: str) -> dict[str, float]:
    """Measure in a child process."""
    command = [sys.executable, "-m", "bench.idle_memory", "--child"]
    command += [kind, bootstrap_servers, str(number), loop, trace]
    ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"bench.idle_memory: {' '.join(command)} ended with exit code {ran.returncode}")
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def _child(kind: str, bootstrap_servers: str, number: int, loop: str, trace: str) -> dict[str, float]:
    if trace != "untraced":
        tracemalloc.start()
    show = trace == "objects"
    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        if kind in KINDS:
            return runner.run(measure_many(kind, bootstrap_servers, number, show))
        return runner.run(measure_partitions(kind, bootstrap_servers, show))


def measure(kind: str, bootstrap_servers: str, number: int, loop: str, show: bool) -> dict[str, float]:
    """Return the bytes of each object, and those of it that are live."""
    found = _run(kind, bootstrap_servers, number, loop, "untraced")
    live = _run(kind, bootstrap_servers, number, loop, "objects" if show else "traced")["live"]
    return {"private": found["private"], "live": live}


def for_each_idle_partition(with_idle: dict[str, float], busy: dict[str, float]) -> dict[str, float]:
    """Return the bytes of an idle partition, from those of a producer with and without them."""
    return {name: (with_idle[name] - busy[name]) / IDLE for name in busy}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and fail if a limit is exceeded."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.idle_memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--producers", type=int, default=1000, help="in one process (%(default)s)")
    parser.add_argument("--nodes", type=int, default=1, help="brokers of the cluster (%(default)s)")
    parser.add_argument("--loop", choices=LOOPS, action="append", help="one loop (default: both)")
    parser.add_argument("--kind", choices=[*KINDS, *PARTITION_KINDS], action="append", help="one kind (default: all)")
    parser.add_argument("--objects", action="store_true", help="show the lines that have allocated the memory")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        kind, bootstrap_servers, number, loop, trace = options.child
        print(json.dumps(_child(kind, bootstrap_servers, int(number), loop, trace)))
        return 0
    if options.producers < 1:
        parser.error(f"--producers {options.producers}: at least 1 is needed to divide by")
    from aioproducer import Producer

    _allow_files(FILES_OF_PRODUCER * options.producers + FILES_OF_PROCESS)
    exceeded = False
    print(f"{'compiled' if Producer.compiled else 'uncompiled'} modules\n")
    print("| kind | loop | bytes | of them live |\n|---|---|---|---|")
    with embedded_broker("--nodes", str(options.nodes)) as address:
        asyncio.run(_create_topics(address))
        for loop in options.loop or LOOPS:
            busy = None
            for kind in options.kind or [*KINDS, *PARTITION_KINDS]:
                found = measure(kind, address, options.producers, loop, options.objects)
                if kind in PARTITION_KINDS:
                    busy = busy or measure("busy", address, 0, loop, options.objects)
                    found = for_each_idle_partition(found, busy)
                print(f"| {MEANINGS[kind]} | {loop} | {found['private']:,.0f} | {found['live']:,.0f} |", flush=True)
                exceeded |= found["private"] > LIMITS.get(kind, math.inf)
    return int(exceeded)


def _allow_files(number: int) -> None:
    """Raise the limit of open files of this process and its children.

    Raises:
        SystemExit: the system's limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < number:
        raise SystemExit(
            f"bench.idle_memory: needs {number} open files, the limit is {hard}: raise it (ulimit -Hn) or measure "
            "fewer --producers"
        )
    if soft != resource.RLIM_INFINITY and soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


if __name__ == "__main__":
    sys.exit(main())
