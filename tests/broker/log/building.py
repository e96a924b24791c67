"""Batches, logs, and a storage that fails, stops or tears a write where a test says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aioproducer.broker.log import AbortedTransaction, Log, LogConfig, MemoryStorage, Storage
from aioproducer.broker.log.storage import LogFile
from aioproducer.compression.base import Buffer
from aioproducer.wire.record_batch import RecordBatch, SimpleRecord, encode_batch, iter_batches

NOW = 1_700_000_000_000
PRODUCER = 4000


class Killed(BaseException):
    """The process ended here."""


def batch(
    count: int = 1, *, timestamp: int = NOW, value: bytes | None = b"value", key: bytes | None = None, **fields: Any
) -> bytearray:
    """A client's batch; timestamps rise by one."""
    records = [SimpleRecord(timestamp + index, key, value) for index in range(count)]
    return bytearray().join(encode_batch(records, **fields))


def sequenced(
    sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = PRODUCER, **fields: Any
) -> bytearray:
    return batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields)


def open_log(storage: Storage | None = None, config: LogConfig | None = None, **options: Any) -> Log:
    options.setdefault("clean", True)
    options.setdefault("wall_ms", lambda: NOW)
    return Log.open(storage or MemoryStorage(), config or LogConfig(), topic="topic", partition=0, **options)


def stored(log: Log) -> list[RecordBatch]:
    """Every batch in the log, as a consumer would read them."""
    found: list[RecordBatch] = []
    offset = log.log_start_offset
    while True:
        buffers = log.read(offset, 1, up_to=log.log_end_offset, min_one_batch=True)
        if not buffers:
            return found
        found += iter_batches(b"".join(buffers))
        offset = found[-1].next_offset


def content(log: Log) -> bytes:
    return b"".join(bytes(each.buffer) for each in stored(log))


def producers(log: Log) -> dict[int, tuple[Any, ...]]:
    """What is known of each producer that must be known after any restart: epochs, last batch, transaction."""
    return {
        producer_id: (
            state.producer_epoch,
            tuple(state.batches[-1:]),
            state.coordinator_epoch,
            state.current_transaction_first_offset,
        )
        for producer_id, state in log.producer_state.producers.items()
    }


def transactional(sequence: int, count: int = 1, **fields: Any) -> bytearray:
    return sequenced(sequence, count, transactional=True, **fields)


def begin(
    log: Log, sequence: int, count: int = 1, *, producer_id: int = PRODUCER, epoch: int = 0, **fields: Any
) -> int:
    """Append a batch of a transaction, verified if that is due; returns its first offset."""
    guard = log.begin_verification(producer_id, sequence, epoch, supports_epoch_bump=False)
    records = transactional(sequence, count, producer_id=producer_id, epoch=epoch, **fields)
    return log.append_as_leader(records, 0, guard=guard).first_offset


def end(
    log: Log,
    *,
    committed: bool = True,
    producer_id: int = PRODUCER,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    version: int = 1,
) -> int:
    """Append a marker; returns its offset."""
    return log.append_marker(
        producer_id, epoch, 0, committed=committed, coordinator_epoch=coordinator_epoch, transaction_version=version
    ).first_offset


def aborted(log: Log) -> list[AbortedTransaction]:
    """All entries of all indexes of aborted transactions."""
    return [each for segment in log._segments for each in segment.transaction_index]


def open_transactions(log: Log) -> dict[int, tuple[int, int]]:
    """The first offset and epoch of each open transaction, by producer id."""
    return {
        producer_id: (state.current_transaction_first_offset, state.producer_epoch)
        for producer_id, state in log.producer_state.producers.items()
        if state.has_transaction
    }


def visible(log: Log) -> tuple[Any, ...]:
    """All that a caller can see of a log."""
    memory = {
        producer_id: (
            state.producer_epoch,
            tuple(state.batches),
            state.last_timestamp,
            state.coordinator_epoch,
            state.current_transaction_first_offset,
        )
        for producer_id, state in log.producer_state.producers.items()
    }
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.size,
        log.recovery_point,
        log.leader_epochs.entries,
        memory,
        content(log),
        aborted(log),
        log.last_stable_offset(log.log_end_offset),
        log.max_timestamp_offset(),
    )


class Fault:
    """Counts what is done to a storage, and strikes at number ``at``.

    ``mode`` "fail": the operation raises OSError. "stop": it does not happen, and the process is dead from then on.
    "tear": as "stop", but of a write the first ``keep`` bytes are there.
    """

    def __init__(self, at: int = -1, mode: str = "fail", keep: int = 0) -> None:
        self.at = at
        self.mode = mode
        self.keep = keep
        self.count = 0
        self.is_dead = False

    def arm(self, at: int, mode: str = "fail", keep: int = 0) -> None:
        self.count, self.at, self.mode, self.keep = 0, at, mode, keep

    def strikes(self) -> bool:
        """Count an operation; True if it must be torn."""
        if self.is_dead:
            raise Killed
        self.count += 1
        if self.count - 1 != self.at:
            return False
        if self.mode == "fail":
            raise OSError(28, "No space left on device")
        self.is_dead = True
        if self.mode == "tear":
            return True
        raise Killed


class FaultyFile:
    def __init__(self, inner: LogFile, fault: Fault) -> None:
        self.inner = inner
        self.fault = fault

    @property
    def size(self) -> int:
        return self.inner.size

    def append(self, buffers: Sequence[Buffer]) -> None:
        if self.fault.strikes():
            self.inner.append([b"".join(buffers)[: self.fault.keep]])
            raise Killed
        self.inner.append(buffers)

    def read(self, position: int, size: int) -> list[Buffer]:
        return self.inner.read(position, size)

    def peek(self, position: int, size: int) -> Buffer:
        return self.inner.peek(position, size)

    def truncate(self, size: int) -> None:
        if self.fault.strikes():
            raise Killed
        self.inner.truncate(size)

    def sync(self) -> None:
        if self.fault.strikes():
            raise Killed
        self.inner.sync()

    def close(self) -> None:
        self.inner.close()


class FaultyStorage:
    """Passes everything on to another storage unless ``fault`` strikes."""

    def __init__(self, inner: Storage, fault: Fault) -> None:
        self.inner = inner
        self.fault = fault
        self.description = inner.description
        self.files = inner.files
        self.folders = inner.folders
        self.read = inner.read
        self.lock = inner.lock
        self.unlock = inner.unlock
        self.give_back = inner.give_back

    def sub(self, name: str) -> FaultyStorage:
        return FaultyStorage(self.inner.sub(name), self.fault)

    def _strike(self) -> None:
        if self.fault.strikes():
            raise Killed

    def make(self) -> None:
        self._strike()
        self.inner.make()

    def open(self, name: str) -> FaultyFile:
        self._strike()
        return FaultyFile(self.inner.open(name), self.fault)

    def replace(self, name: str, data: bytes, *, sync: bool = False) -> None:
        self._strike()
        self.inner.replace(name, data, sync=sync)

    def patch(self, name: str, position: int, data: bytes, *, sync: bool = False) -> None:
        if self.fault.strikes():
            self.inner.patch(name, position, data[: self.fault.keep])
            raise Killed
        self.inner.patch(name, position, data, sync=sync)

    def remove(self, name: str) -> None:
        self._strike()
        self.inner.remove(name)

    def rename(self, name: str, new_name: str) -> None:
        self._strike()
        self.inner.rename(name, new_name)

    def rename_folder(self, name: str, new_name: str) -> None:
        self._strike()
        self.inner.rename_folder(name, new_name)

    def remove_folder(self, name: str) -> None:
        self._strike()
        self.inner.remove_folder(name)

    def sync(self) -> None:
        self._strike()
        self.inner.sync()
