"""One script of verbs for every verbs layer: the double has to behave as a card does.

Each scenario reports its events line by line. ``transcript.txt`` has the lines of soft-RoCE (``python -m tests.rdma``).
tests/testing/test_verbs.py compares the double's lines with it, tests/rdma/test_script.py those of a device.
"""

from __future__ import annotations

import errno
import mmap
import select
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from aioproducer.transport.rdma.verbs import (
    CompletionStatus,
    Device,
    MemoryRegion,
    QueuePair,
    RdmaUnavailableError,
    Verbs,
    VerbsError,
)
from aioproducer.transport.rdma.work_requests import Completion, Piece, Write

TRANSCRIPT = Path(__file__).parent / "transcript.txt"

# Seconds for an emulated machine to do what a card does at once, and for giving up a peer that has gone.
_PATIENCE_SECONDS = 30.0
# Seconds of observation to show that nothing happens.
_QUIET_SECONDS = 0.2

_MEMORY = 1 << 18


class Side:
    """One end: a queue pair, memory to write from, and memory for the peer's writes."""

    def __init__(self, name: str, device: Device, stack: ExitStack, send_depth: int, receive_depth: int) -> None:
        self.name = name
        self.queue_pair = device.create_queue_pair(send_depth=send_depth, receive_depth=receive_depth)
        self.source = mmap.mmap(-1, _MEMORY)
        self.target = mmap.mmap(-1, _MEMORY)
        self.source_region = device.register(self.source, remote_write=False)
        self.target_region = device.register(self.target, remote_write=True)
        for thing in (self.target, self.source, self.target_region, self.source_region, self.queue_pair):
            stack.callback(thing.close)

    def piece(self, offset: int, length: int) -> Piece:
        return self.source_region.address + offset, length, self.source_region.local_key


class Stage:
    """A verbs layer, and the lines about it."""

    def __init__(self, verbs: Verbs) -> None:
        self.verbs = verbs
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    @contextmanager
    def device(self) -> Iterator[Device]:
        device = self.verbs.open(None, None)
        try:
            yield device
        finally:
            device.close()

    @contextmanager
    def pair(self, *, send_depth: int = 16, receive_depth: int = 16) -> Iterator[tuple[Side, Side]]:
        """Two ends, connected to each other."""
        with self.device() as device, ExitStack() as stack:
            a, b = (Side(name, device, stack, send_depth, receive_depth) for name in "ab")
            a.queue_pair.connect(b.queue_pair.facts)
            b.queue_pair.connect(a.queue_pair.facts)
            yield a, b

    def write(
        self,
        side: Side,
        peer: Side,
        work_request_id: int,
        pieces: Sequence[Piece],
        *,
        offset: int = 0,
        immediate: int = 0,
        signaled: bool = True,
        key: int | None = None,
    ) -> None:
        side.queue_pair.post_write(
            Write(
                work_request_id,
                pieces,
                peer.target_region.address + offset,
                peer.target_region.remote_key if key is None else key,
                immediate,
                signaled,
            )
        )

    def wait(self, queue_pair: QueuePair, count: int) -> list[Completion]:
        """Wait for ``count`` completions as the transport does: by events, with a poll after each."""
        found: list[Completion] = []
        events = select.poll()
        events.register(queue_pair.completion_fd, select.POLLIN)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(found) < count:
            queue_pair.request_notification()
            found += queue_pair.poll(count - len(found))
            if len(found) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(found)} of {count} completions after {_PATIENCE_SECONDS} s: {found}")
                events.poll(1000)
                queue_pair.clear_events()
        return found

    def polled(self, side: Side, count: int) -> list[Completion]:
        """Wait for ``count`` completions, without requesting events."""
        found: list[Completion] = []
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            found += side.queue_pair.poll(count - len(found))
            if len(found) == count:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(found)} of {count} completions after {_PATIENCE_SECONDS} s: {found}")
            time.sleep(_QUIET_SECONDS / 10)

    def tell(self, side: Side, count: int) -> list[Completion]:
        """Wait for ``count`` completions and report them, sorted, as sends and receives complete in no order."""
        found = self.wait(side.queue_pair, count)
        for completion in sorted(found, key=lambda completion: completion.received):
            self.say(f"{side.name} {_described(completion)}")
        return found

    def tell_quiet(self, side: Side) -> None:
        """Report whether a completion arrives."""
        time.sleep(_QUIET_SECONDS)
        found = side.queue_pair.poll(16)
        self.say(f"{side.name} has {found or 'no completion'}")

    def tell_readable(self, side: Side) -> None:
        """Report whether there is an event."""
        events = select.poll()
        events.register(side.queue_pair.completion_fd, select.POLLIN)
        readable = events.poll(int(_QUIET_SECONDS * 1000))
        self.say(f"{side.name} {'has an event' if readable else 'has no event'}")


def _described(completion: Completion) -> str:
    status = CompletionStatus(completion.status).name
    if not completion.received:
        return f"sent {completion.work_request_id}: {status}"
    if completion.status:
        return f"received {completion.work_request_id}: {status}"
    return (
        f"received {completion.work_request_id}: {status} {completion.length} bytes, "
        f"immediate {completion.immediate:#010x}"
    )


def _refused(call: Callable[[], object]) -> str:
    """Report the exception of a call."""
    try:
        call()
    except VerbsError as error:
        return f"VerbsError {errno.errorcode[error.errno] if error.errno else 'without errno'}"
    except (RdmaUnavailableError, BufferError) as error:
        return type(error).__name__
    return "nothing"


def _pattern(length: int, seed: int) -> bytes:
    return bytes((seed * 31 + place * 7) % 251 for place in range(length))


def write_with_immediate(stage: Stage) -> None:
    with stage.pair() as (a, b):
        data = _pattern(40_000, 1)
        a.source[100 : 100 + len(data)] = data
        b.queue_pair.post_receives([7])
        stage.write(a, b, 1, [a.piece(100, len(data))], offset=5, immediate=0x01020304)
        stage.tell(a, 1)
        stage.tell(b, 1)
        stage.say(f"the bytes are there: {b.target[5 : 5 + len(data)] == data}")
        rest = b.target[:5] + b.target[5 + len(data) :]
        stage.say(f"the bytes beside them are as they were: {rest == bytes(len(rest))}")


def several_pieces(stage: Stage) -> None:
    with stage.pair() as (a, b):
        lengths = [1, 61, 0, 4096, 5000, 3]
        pieces, expected, place = [], b"", 0
        for seed, length in enumerate(lengths):
            a.source[place : place + length] = _pattern(length, seed)
            # In reverse, so that the order of the pieces differs from that of the memory.
            pieces.insert(0, a.piece(place, length))
            expected = _pattern(length, seed) + expected
            place += length + 10
        other = (a.target_region.address, 9, a.target_region.local_key)
        a.target[:9] = b"elsewhere"
        b.queue_pair.post_receives([1])
        stage.write(a, b, 2, [*pieces, other], immediate=0xFFFFFFFF)
        stage.tell(a, 1)
        stage.tell(b, 1)
        expected += b"elsewhere"
        stage.say(f"the bytes are there: {b.target[: len(expected)] == expected}")


def most_pieces(stage: Stage) -> None:
    with stage.pair() as (a, b):
        count = a.queue_pair.max_pieces
        a.source[:count] = _pattern(count, 3)
        b.queue_pair.post_receives([1])
        stage.write(a, b, 2, [a.piece(place, 1) for place in range(count)])
        stage.tell(a, 1)
        found = stage.wait(b.queue_pair, 1)
        stage.say(f"as many bytes as pieces: {found[0].length == count}")
        stage.say(f"the bytes are there: {b.target[:count] == _pattern(count, 3)}")


def without_bytes(stage: Stage) -> None:
    with stage.pair() as (a, b):
        b.queue_pair.post_receives([3, 4])
        stage.write(a, b, 1, [], immediate=5)
        stage.write(a, b, 2, [], immediate=6, key=0)
        stage.tell(a, 2)
        stage.tell(b, 2)


def selective_signalling(stage: Stage) -> None:
    with stage.pair(send_depth=8) as (a, b):
        b.queue_pair.post_receives(range(8))
        for number in range(8):
            stage.write(a, b, number, [a.piece(0, 10)], immediate=number, signaled=number % 4 == 3)
        stage.tell(b, 8)
        stage.tell(a, 2)
        stage.tell_quiet(a)


def wrap_around(stage: Stage) -> None:
    """Many more writes than entries of the send queue, with as many in transit as there are entries."""
    with stage.pair(send_depth=4, receive_depth=4) as (a, b):
        slot, checksum, sent = 3000, 0, 0
        b.queue_pair.post_receives(range(4))
        for received in range(60):
            while sent < 60 and sent < received + 4:
                start = sent % 4 * slot
                a.source[start : start + slot] = _pattern(slot, sent)
                stage.write(a, b, sent, [a.piece(start, slot)], offset=start, immediate=sent)
                sent += 1
            (completion,) = stage.wait(b.queue_pair, 1)
            start = received % 4 * slot
            assert b.target[start : start + slot] == _pattern(slot, received)
            checksum = zlib.crc32(_described(completion).encode(), checksum)
            b.queue_pair.post_receives([completion.work_request_id])
            (completion,) = stage.wait(a.queue_pair, 1)
            checksum = zlib.crc32(_described(completion).encode(), checksum)
        stage.say(f"60 writes through 4 places: {checksum:#010x}")


def both_directions(stage: Stage) -> None:
    with stage.pair() as (a, b):
        for side in (a, b):
            side.queue_pair.post_receives([10, 11])
            side.source[:1] = side.name.encode()
        for number in range(2):
            stage.write(a, b, number, [a.piece(0, 1)], offset=number, immediate=number)
            stage.write(b, a, number, [b.piece(0, 1)], offset=number, immediate=number)
        for side in (a, b):
            stage.tell(side, 4)
            stage.say(f"{side.name} was written {side.target[:3]!r}")


def receives_before_connecting(stage: Stage) -> None:
    with stage.device() as device, ExitStack() as stack:
        a, b = (Side(name, device, stack, 4, 4) for name in "ab")
        stage.say(f"a write before connecting raises {_refused(lambda: stage.write(a, b, 1, []))}")
        b.queue_pair.post_receives([1])
        a.queue_pair.connect(b.queue_pair.facts)
        b.queue_pair.connect(a.queue_pair.facts)
        stage.say(f"connecting again raises {_refused(lambda: a.queue_pair.connect(b.queue_pair.facts))}")
        stage.write(a, b, 2, [a.piece(0, 1)])
        stage.tell(a, 1)
        stage.tell(b, 1)


def notification(stage: Stage) -> None:
    with stage.pair() as (a, b):
        b.queue_pair.post_receives(range(8))

        def send() -> None:
            stage.write(a, b, 0, [], signaled=True)
            stage.wait(a.queue_pair, 1)

        send()
        stage.tell_readable(b)
        b.queue_pair.request_notification()
        stage.tell_readable(b)
        send()
        stage.tell_readable(b)
        b.queue_pair.clear_events()
        stage.tell_readable(b)
        b.queue_pair.clear_events()
        send()
        stage.tell_readable(b)
        stage.tell(b, 3)


def solicited_notification(stage: Stage) -> None:
    """A write's completion causes no event; the peer's receive and an error do."""
    with stage.pair() as (a, b):
        for side in (a, b):
            side.queue_pair.post_receives(range(8))
            side.queue_pair.request_notification(solicited_only=True)
        stage.write(a, b, 0, [a.piece(0, 5000)])
        stage.tell_readable(a)
        stage.tell_readable(b)
        stage.write(b, a, 0, [])
        stage.tell_readable(a)
        stage.polled(a, 2)
        a.queue_pair.clear_events()
        # After a request for all events, a request for solicited ones changes nothing.
        a.queue_pair.request_notification()
        a.queue_pair.request_notification(solicited_only=True)
        stage.write(a, b, 1, [])
        stage.tell_readable(a)
        stage.polled(a, 1)
        a.queue_pair.clear_events()
        # The reverse order requests more.
        a.queue_pair.request_notification(solicited_only=True)
        a.queue_pair.request_notification()
        stage.write(a, b, 2, [])
        stage.tell_readable(a)


def solicited_error(stage: Stage) -> None:
    """The receives that a failed write flushes cause an event on both sides."""
    with stage.pair() as (a, b):
        for side in (a, b):
            side.queue_pair.post_receives(range(2))
            side.queue_pair.request_notification(solicited_only=True)
        stage.write(a, b, 3, [a.piece(0, 100)], key=b.target_region.remote_key ^ 0x55, signaled=False)
        stage.tell_readable(a)
        stage.tell_readable(b)


def solicited_silence(stage: Stage) -> None:
    """The peer's card no longer answers."""
    with stage.pair() as (a, b):
        a.queue_pair.post_receives([1])
        a.queue_pair.request_notification(solicited_only=True)
        b.queue_pair.close()
        stage.write(a, b, 3, [a.piece(0, 100)], signaled=False)
        # The card retries for some time first.
        stage.polled(a, 2)
        stage.tell_readable(a)


def next_completions(stage: Stage) -> None:
    """One call clears the event, requests the next one, and then polls."""
    with stage.pair() as (a, b):
        for side in (a, b):
            side.queue_pair.post_receives(range(8))

        def send() -> None:
            stage.write(a, b, 0, [], signaled=True)
            stage.polled(a, 1)
            stage.tell_readable(b)

        def take(side: Side, most: int, solicited_only: bool) -> None:
            found = side.queue_pair.next_completions(most, solicited_only)
            stage.say(f"{side.name} has {len(found)} completions")
            stage.tell_readable(side)

        take(b, 8, True)
        send()
        take(b, 8, True)
        send()
        send()
        take(b, 1, True)
        take(b, 8, True)
        take(b, 8, True)
        # A write's completion causes an event only if all are requested.
        for solicited_only in (True, False):
            take(a, 8, solicited_only)
            stage.write(a, b, 1, [], signaled=True)
            stage.tell_readable(a)


def flushed(stage: Stage) -> None:
    with stage.pair() as (a, b):
        b.queue_pair.post_receives([1, 2, 3])
        b.queue_pair.to_error()
        stage.tell(b, 3)
        stage.write(b, a, 5, [b.piece(0, 1)], signaled=False)
        stage.tell(b, 1)
        b.queue_pair.to_error()
        stage.tell_quiet(b)


def peer_in_error(stage: Stage) -> None:
    with stage.pair() as (a, b):
        b.queue_pair.post_receives([1])
        a.queue_pair.post_receives([2])
        b.queue_pair.to_error()
        stage.tell(b, 1)
        for number in range(3):
            stage.write(a, b, number, [a.piece(0, 100)], signaled=False)
        stage.tell(a, 4)


def peer_destroyed(stage: Stage) -> None:
    with stage.pair() as (a, b):
        b.queue_pair.close()
        a.queue_pair.post_receives([9])
        for number in range(3):
            stage.write(a, b, number, [a.piece(0, 100)], signaled=False)
        stage.tell(a, 4)


def wrong_key(stage: Stage) -> None:
    with stage.pair() as (a, b):
        for side in (a, b):
            side.queue_pair.post_receives([1, 2])
        stage.write(a, b, 3, [a.piece(0, 100)], key=b.target_region.remote_key ^ 0x55, signaled=False)
        stage.write(a, b, 4, [a.piece(0, 100)])
        stage.tell(a, 4)
        stage.tell(b, 2)
        stage.say(f"nothing was written: {b.target[:] == bytes(_MEMORY)}")
        stage.write(b, a, 5, [b.piece(0, 1)])
        stage.tell(b, 1)


def out_of_bounds(stage: Stage) -> None:
    with stage.pair() as (a, b):
        b.queue_pair.post_receives([1])
        stage.write(a, b, 3, [a.piece(0, 2)], offset=_MEMORY - 1)
        stage.tell(a, 1)
        stage.tell(b, 1)
        stage.say(f"nothing was written: {b.target[:] == bytes(_MEMORY)}")


def without_right(stage: Stage) -> None:
    """A write into memory that was registered only for reading."""
    with stage.pair() as (a, b):
        b.queue_pair.post_receives([1])
        region = b.source_region
        a.queue_pair.post_write(Write(3, [a.piece(0, 2)], region.address, region.remote_key, signaled=True))
        stage.tell(a, 1)
        stage.tell(b, 1)
        stage.say(f"nothing was written: {b.source[:] == bytes(_MEMORY)}")


def wrong_local_key(stage: Stage) -> None:
    with stage.pair() as (a, b):
        b.queue_pair.post_receives([1])
        address, length, key = a.piece(0, 10)
        stage.write(a, b, 3, [(address, length, key ^ 0x55)], signaled=False)
        stage.tell(a, 1)
        stage.tell_quiet(b)


def receiver_not_ready(stage: Stage) -> None:
    """A missing receive, which the transport's credits prevent: the sender waits for it."""
    with stage.pair() as (a, b):
        stage.write(a, b, 1, [a.piece(0, 10)], immediate=1)
        stage.write(a, b, 2, [a.piece(0, 10)], immediate=2)
        stage.tell_quiet(a)
        b.queue_pair.post_receives([3])
        stage.tell(b, 1)
        stage.tell(a, 1)
        stage.tell_quiet(a)
        b.queue_pair.post_receives([4])
        stage.tell(b, 1)
        stage.tell(a, 1)


def registration(stage: Stage) -> None:
    with stage.pair() as (a, b):
        region = a.source_region
        stage.say(f"as long as the memory: {region.length == len(a.source)}")
        stage.say(f"on a page: {region.address % mmap.PAGESIZE == 0}")
        stage.say(f"unmapping what is registered raises {_refused(a.source.close)}")
        b.target_region.close()
        b.target_region.close()
        b.target.close()
        stage.say("what is deregistered is unmapped")
        b.queue_pair.post_receives([1])
        stage.write(a, b, 2, [a.piece(0, 10)])
        stage.tell(a, 1)


def closing(stage: Stage) -> None:
    device = stage.verbs.open(None, None)
    memory = mmap.mmap(-1, 1 << 16)
    queue_pair = device.create_queue_pair(send_depth=1, receive_depth=1)
    region: MemoryRegion = device.register(memory, remote_write=True)
    stage.say(f"closing a device that has both raises {_refused(device.close)}")
    queue_pair.close()
    queue_pair.close()
    stage.say(f"closing a device that has a region raises {_refused(device.close)}")
    for name, call in {
        "poll": lambda: queue_pair.poll(1),
        "next_completions": lambda: queue_pair.next_completions(1, False),
        "post_receives": lambda: queue_pair.post_receives([1]),
        "post_write": lambda: queue_pair.post_write(Write(1, signaled=True)),
        "request_notification": queue_pair.request_notification,
        "clear_events": queue_pair.clear_events,
        "to_error": queue_pair.to_error,
        "connect": lambda: queue_pair.connect(queue_pair.facts),
    }.items():
        stage.say(f"{name} of what is closed raises {_refused(call)}")
    region.close()
    memory.close()
    device.close()
    device.close()
    stage.say(f"register of what is closed raises {_refused(lambda: device.register(memory, remote_write=True))}")


def no_such_device(stage: Stage) -> None:
    stage.say(f"another device raises {_refused(lambda: stage.verbs.open('nothing7', None))}")
    stage.say(f"another address raises {_refused(lambda: stage.verbs.open(None, '203.0.113.9'))}")
    stage.verbs.open(None, "127.0.0.1").close()
    stage.say("its own address is found")


SCENARIOS: tuple[Callable[[Stage], None], ...] = (
    write_with_immediate,
    several_pieces,
    most_pieces,
    without_bytes,
    selective_signalling,
    wrap_around,
    both_directions,
    receives_before_connecting,
    notification,
    solicited_notification,
    solicited_error,
    solicited_silence,
    next_completions,
    flushed,
    peer_in_error,
    peer_destroyed,
    wrong_key,
    out_of_bounds,
    without_right,
    wrong_local_key,
    receiver_not_ready,
    registration,
    closing,
    no_such_device,
)


def played(scenario: Callable[[Stage], None], verbs: Verbs) -> list[str]:
    """Return the lines of a scenario over ``verbs``."""
    stage = Stage(verbs)
    scenario(stage)
    return stage.lines


def transcript() -> dict[str, list[str]]:
    """Return the lines of soft-RoCE, by the scenario's name."""
    lines: dict[str, list[str]] = {}
    said: list[str] = []
    for line in TRANSCRIPT.read_text().splitlines():
        if line.startswith("    "):
            said.append(line[4:])
        elif line:
            said = lines.setdefault(line, [])
    return lines
