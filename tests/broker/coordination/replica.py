"""A partition without a log, with a high watermark that a test moves."""

from __future__ import annotations

from dataclasses import dataclass

from aioproducer.broker.replicas.partition import Watcher
from aioproducer.errors import KafkaError
from aioproducer.wire.record import SimpleRecord
from aioproducer.wire.record_batch import RecordBatch, encode_batch


@dataclass
class Appended:
    last_offset: int


class Replica:
    """A partition that this node leads."""

    topic = "__transaction_state"
    index = 0
    is_leader = True
    leader_epoch = 3

    def __init__(self, *, replicates: bool = True) -> None:
        self.log = self
        self.log_start_offset = 0
        self.batches: list[RecordBatch] = []
        self.high_watermark = 0
        self.replicates = replicates
        self.append_error: KafkaError | None = None
        self.replication_error: KafkaError | None = None
        self.watchers: list[Watcher] = []

    @property
    def log_end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def append(self, records: bytearray, *, acks: int, origin: str) -> Appended:
        assert (acks, origin) == (-1, "coordinator")
        if self.append_error is not None:
            raise self.append_error
        return self.take(records)

    def take(self, records: bytearray) -> Appended:
        """Append a batch to the log."""
        records[:8] = self.log_end_offset.to_bytes(8, "big")
        batch = RecordBatch(records)
        self.batches.append(batch)
        if self.replicates:
            self.replicate()
        return Appended(batch.last_offset)

    def store(self, *records: tuple[bytes | None, bytes | None]) -> None:
        """Append records to the log, as an earlier leader has done."""
        batch = b"".join(encode_batch([SimpleRecord(1, *record) for record in records]))
        self.append(bytearray(batch), acks=-1, origin="coordinator")

    def replicate(self) -> None:
        self.high_watermark = self.log_end_offset
        for watcher in tuple(self.watchers):
            watcher()

    def fail(self, error: KafkaError) -> None:
        """Fail the records that are not replicated."""
        self.replication_error = error
        for watcher in tuple(self.watchers):
            watcher()
        self.replication_error = None

    def replicated(self, end_offset: int) -> bool:
        if self.replication_error is not None:
            raise self.replication_error
        return self.high_watermark >= end_offset

    def add_watcher(self, watcher: Watcher) -> None:
        self.watchers.append(watcher)

    def remove_watcher(self, watcher: Watcher) -> None:
        if watcher in self.watchers:
            self.watchers.remove(watcher)

    def read(self, offset: int, max_bytes: int, *, up_to: int, min_one_batch: bool) -> list[memoryview]:
        assert min_one_batch
        return [batch.buffer for batch in self.batches if batch.next_offset > offset][:2]

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        """Every record in the log."""
        return [(record.key, record.value) for batch in self.batches for record in batch.records()]
