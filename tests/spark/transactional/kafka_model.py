"""A small model of Kafka's transactions, and a scheduler that chooses the order of all calls by a seed.

A call is executed at one moment, as a broker does it, between any two steps of the processes. A call of a process that
is killed may still arrive, at any later time; some arrive twice.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from aioproducer.errors import KafkaError
from aioproducer.spark.transactional.decisions import Identity

T = TypeVar("T")


class RefusedError(KafkaError):
    """The model's broker or coordinator returns an error code."""


class Call(Awaitable[T]):
    """A request on its way; ``ready`` says when it can be executed."""

    def __init__(self, execute: Callable[[], T], ready: Callable[[], bool], again: bool) -> None:
        self.execute = execute
        self.ready = ready
        self.again = again

    def __await__(self) -> Generator[Any, Any, T]:
        return (yield self)


class Process:
    """A coroutine that can be killed; what it waits for is ``call``."""

    def __init__(
        self, name: str, coroutine: Coroutine[Any, Any, Any], on_error: Callable[[BaseException], None]
    ) -> None:
        self.name = name
        self.coroutine = coroutine
        self.call: Call[Any] | None = None
        self.over = False
        self.stalled_until = 0
        """The process gets no CPU time before this step."""
        self.result: Any = None
        self.error: BaseException | None = None
        self._on_error = on_error

    def step(self, send: Callable[[], Any]) -> None:
        try:
            self.call = send()
        except StopIteration as end:
            self.over, self.result, self.call = True, end.value, None
        except Exception as error:
            self.over, self.error, self.call = True, error, None
            if not isinstance(error, KafkaError):
                self._on_error(error)


class World:
    """The scheduler."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.processes: list[Process] = []
        self.late: list[Callable[[], Any]] = []
        self.steps = 0
        self.disturbances = 0
        self.events: list[tuple[float, Callable[[], None]]] = []
        self.bugs: list[BaseException] = []
        self.trace: list[str] = []

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> Process:
        process = Process(name, coroutine, self.bugs.append)
        self.processes.append(process)
        process.step(lambda: coroutine.send(None))
        return process

    def call(
        self, execute: Callable[[], T], *, ready: Callable[[], bool] = lambda: True, again: bool = False
    ) -> Call[T]:
        return Call(execute, ready, again)

    async def until(self, condition: Callable[[], bool]) -> None:
        await self.call(lambda: None, ready=condition)

    async def pause(self, most: int) -> None:
        end = self.steps + self.random.randrange(1, most + 1)
        await self.until(lambda: self.steps >= end)

    def kill(self, process: Process) -> None:
        if process.over:
            return
        process.over, process.error = True, KafkaError("killed")
        if process.call is not None and self.random.random() < 0.6:
            self.late.append(process.call.execute)
        process.call = None
        process.coroutine.close()

    def note(self, text: str) -> None:
        self.trace.append(f"{self.steps}: {text}")

    def step(self) -> bool:
        """Execute one call; return False if nothing is left to do."""
        self.steps += 1
        if self.bugs:
            raise self.bugs[0]
        self.processes = [each for each in self.processes if not each.over]
        if self.disturbances:
            for chance, event in self.events:
                if self.random.random() < chance:
                    event()
        if self.late and self.random.random() < 0.08:
            self._arrive(self.late.pop(self.random.randrange(len(self.late))))
        able = [each for each in self.processes if self._is_able(each)]
        if not able:
            return any(not each.over for each in self.processes)
        process = self.random.choice(able)
        call = process.call
        assert call is not None
        try:
            result = call.execute()
        except KafkaError as error:
            refused = error
            process.step(lambda: process.coroutine.throw(refused))
            return True
        if call.again and self.disturbances and self.random.random() < 0.15:
            self.late.append(call.execute)
        process.step(lambda: process.coroutine.send(result))
        return True

    def _is_able(self, process: Process) -> bool:
        call = process.call
        return not process.over and call is not None and process.stalled_until <= self.steps and call.ready()

    def _arrive(self, execute: Callable[[], Any]) -> None:
        try:
            execute()
        except KafkaError as error:
            self.note(f"late and refused: {error}")


@dataclass
class Entry:
    producer_id: int
    epoch: int
    key: bytes | None = None
    value: bytes | None = None
    marker: bool | None = None
    """True for a commit, False for an abort, None for data."""
    in_transaction: bool = True


@dataclass
class Sequences:
    epoch: int
    next: int = 0
    offsets: dict[int, int] = field(default_factory=dict)


class Partition:
    def __init__(self) -> None:
        self.log: list[Entry | None] = []
        self.open: dict[int, int] = {}
        self.producers: dict[int, Sequences] = {}

    @property
    def last_stable_offset(self) -> int:
        return min(self.open.values(), default=len(self.log))

    def append(self, identity: Identity, sequence: int, key: bytes | None, value: bytes | None) -> int:
        known = self.producers.get(identity.producer_id)
        if known is None or known.epoch < identity.producer_epoch:
            known = self.producers[identity.producer_id] = Sequences(identity.producer_epoch)
        if known.epoch > identity.producer_epoch:
            raise RefusedError("INVALID_PRODUCER_EPOCH")
        if sequence < known.next:
            return known.offsets[sequence]
        if sequence > known.next:
            raise RefusedError("OUT_OF_ORDER_SEQUENCE_NUMBER")
        self.open.setdefault(identity.producer_id, len(self.log))
        known.offsets[sequence] = len(self.log)
        known.next += 1
        self.log.append(Entry(identity.producer_id, identity.producer_epoch, key, value))
        return len(self.log) - 1

    def append_plain(self, key: bytes | None, value: bytes | None) -> int:
        self.log.append(Entry(-1, -1, key, value, in_transaction=False))
        return len(self.log) - 1

    def mark(self, producer_id: int, epoch: int, committed: bool) -> None:
        self.open.pop(producer_id, None)
        known = self.producers.get(producer_id)
        if known is not None and known.epoch < epoch:
            self.producers[producer_id] = Sequences(epoch)
        self.log.append(Entry(producer_id, epoch, marker=committed))

    def committed(self, start: int, stop: int) -> list[tuple[int, Entry]]:
        """Data from ``start`` to ``stop``, at most to the last stable offset."""
        stop = min(stop, self.last_stable_offset)
        found = []
        for offset in range(start, stop):
            entry = self.log[offset]
            if entry is not None and entry.marker is None and self._is_committed(offset, entry):
                found.append((offset, entry))
        return found

    def _is_committed(self, offset: int, entry: Entry) -> bool:
        return not entry.in_transaction or self.verdict(entry.producer_id, offset) is True

    def verdict(self, producer_id: int, offset: int) -> bool | None:
        for entry in self.log[offset + 1 :]:
            if entry is not None and entry.producer_id == producer_id and entry.marker is not None:
                return entry.marker
        return None

    def compact(self) -> None:
        """Keep the last committed record of each key."""
        last: dict[bytes | None, int] = {}
        for offset, entry in self.committed(0, len(self.log)):
            last[entry.key] = offset
        for offset in range(self.last_stable_offset):
            entry = self.log[offset]
            if entry is not None and entry.marker is None and last.get(entry.key) != offset:
                self.log[offset] = None


@dataclass
class TransactionalId:
    identity: Identity
    state: str = "Empty"
    partitions: set[str] = field(default_factory=set)
    previous: tuple[int, bool] | None = None
    """Epoch and end of the last transaction that EndTxn of the second generation has ended."""


class Kafka:
    """One cluster of one generation of transactions."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.ids: dict[str, TransactionalId] = {}
        self.partitions: dict[str, Partition] = {}
        self.next_producer_id = 1000
        self.timed_out: set[tuple[str, Identity]] = set()

    def partition(self, name: str) -> Partition:
        return self.partitions.setdefault(name, Partition())

    def init(self, transactional_id: str, expected: Identity | None = None) -> Identity:
        known = self.ids.get(transactional_id)
        if known is None:
            self.next_producer_id += 1
            known = self.ids[transactional_id] = TransactionalId(Identity(self.next_producer_id, -1))
        fenced = expected is not None and known.identity != expected
        if known.state == "Ongoing":
            self._complete(known, False, bump=True)
        if fenced:
            raise RefusedError("PRODUCER_FENCED")
        known.identity = Identity(known.identity.producer_id, known.identity.producer_epoch + 1)
        known.state, known.previous = "Empty", None
        return known.identity

    def produce(
        self,
        transactional_id: str,
        identity: Identity,
        where: str,
        sequence: int,
        key: bytes | None,
        value: bytes | None,
    ) -> int:
        known = self.ids[transactional_id]
        if known.identity != identity:
            raise RefusedError("INVALID_PRODUCER_EPOCH")
        if known.state != "Ongoing":
            known.state = "Ongoing"
            known.partitions = set()
        offset = self.partition(where).append(identity, sequence, key, value)
        known.partitions.add(where)
        return offset

    def end(self, transactional_id: str, identity: Identity, commit: bool, version: int) -> Identity:
        known = self.ids.get(transactional_id)
        if known is None or known.identity.producer_id != identity.producer_id:
            raise RefusedError("INVALID_PRODUCER_ID_MAPPING")
        epoch, current = identity.producer_epoch, known.identity.producer_epoch
        if version >= 2:
            if epoch == current - 1 and known.previous is not None and known.previous[0] == epoch:
                if known.state != "Ongoing" and known.previous[1] is commit:
                    return known.identity
                raise RefusedError("PRODUCER_FENCED" if known.state == "Ongoing" else "INVALID_TXN_STATE")
            if epoch != current:
                raise RefusedError("PRODUCER_FENCED")
            if known.state != "Ongoing" and commit:
                raise RefusedError("INVALID_TXN_STATE")
            self._complete(known, commit, bump=True)
            known.previous = epoch, commit
            return known.identity
        if epoch != current:
            raise RefusedError("PRODUCER_FENCED")
        if known.state == ("Committed" if commit else "Aborted"):
            return known.identity
        if known.state != "Ongoing":
            raise RefusedError("INVALID_TXN_STATE")
        self._complete(known, commit, bump=False)
        return known.identity

    def time_out(self, transactional_id: str) -> None:
        known = self.ids[transactional_id]
        if known.state == "Ongoing":
            self.timed_out.add((transactional_id, known.identity))
            self._complete(known, False, bump=True)
            known.previous = None

    def _complete(self, known: TransactionalId, commit: bool, *, bump: bool) -> None:
        if bump:
            known.identity = Identity(known.identity.producer_id, known.identity.producer_epoch + 1)
        if known.state == "Ongoing":
            for where in known.partitions:
                self.partition(where).mark(known.identity.producer_id, known.identity.producer_epoch, commit)
        known.state = "Committed" if commit else "Aborted"
        known.partitions = set()

    def open_ids(self, pattern: str) -> list[tuple[str, Identity]]:
        return [
            (name, known.identity)
            for name, known in self.ids.items()
            if known.state == "Ongoing" and re.fullmatch(pattern, name)
        ]
