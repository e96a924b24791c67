"""The state of one producer in a partition, and the format of snapshot files (``ProducerStateEntry``)."""

from __future__ import annotations

import struct
from struct import Struct
from typing import NamedTuple

from aioproducer.broker.log.checkpoints import CorruptFileError
from aioproducer.broker.log.validation import BatchHeader
from aioproducer.wire.crc32c import crc32c
from aioproducer.wire.record_batch import decrement_sequence, increment_sequence

NO_TRANSACTION = -1

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEADER = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_CRC_END = 6


class BatchMetadata(NamedTuple):
    """One of a producer's last batches."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """The sequence number of its first record."""
        return decrement_sequence(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta


class ProducerState:
    """One producer id: its epoch, its last batches (oldest first), and when it last wrote (ms)."""

    __slots__ = ("batches", "coordinator_epoch", "current_transaction_first_offset", "last_timestamp", "producer_epoch")

    def __init__(self, producer_epoch: int, last_timestamp: int) -> None:
        self.producer_epoch = producer_epoch
        self.last_timestamp = last_timestamp
        self.batches: list[BatchMetadata] = []
        self.coordinator_epoch = -1
        """The epoch of the coordinator that ended the last transaction, -1 if none is known."""
        self.current_transaction_first_offset = NO_TRANSACTION
        """The first offset of its open transaction in this partition."""

    @property
    def last_sequence(self) -> int:
        """The newest sequence number, -1 if none of this epoch is known."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def has_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.current_transaction_first_offset != NO_TRANSACTION

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the remembered batch that ``header`` repeats."""
        if header.producer_epoch != self.producer_epoch:
            return None
        first_sequence = header.base_sequence
        last_sequence = increment_sequence(first_sequence, header.last_offset_delta)
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                return batch
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerState) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]  # it is changed in place

    def __repr__(self) -> str:
        return f"<ProducerState epoch {self.producer_epoch}, batches {self.batches}>"


def encode_snapshot(producers: dict[int, ProducerState]) -> bytes:
    """Return a snapshot file: version, CRC-32C of the rest, and an entry for each producer."""
    entries = []
    for producer_id, state in producers.items():
        last = state.batches[-1] if state.batches else BatchMetadata(-1, -1, 0, -1)
        entries.append(
            _SNAPSHOT_ENTRY.pack(
                producer_id,
                state.producer_epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                state.last_timestamp,
                state.coordinator_epoch,
                state.current_transaction_first_offset,
            )
        )
    data = bytearray(_SNAPSHOT_HEADER.pack(_SNAPSHOT_VERSION, 0, len(entries)))
    data += b"".join(entries)
    checksum = crc32c((memoryview(data)[_CRC_END:],))
    return _SNAPSHOT_HEADER.pack(_SNAPSHOT_VERSION, checksum, len(entries)) + data[_SNAPSHOT_HEADER.size :]


def decode_snapshot(data: bytes) -> dict[int, ProducerState]:
    """Return the producers in a snapshot file.

    Raises:
        CorruptFileError: the file is incomplete or of another version.
    """
    try:
        version, checksum, count = _SNAPSHOT_HEADER.unpack_from(data)
    except struct.error:
        raise CorruptFileError(f"{len(data)} bytes are no snapshot") from None
    if version != _SNAPSHOT_VERSION:
        raise CorruptFileError(f"it is of version {version}, version {_SNAPSHOT_VERSION} can be read")
    if crc32c((data[_CRC_END:],)) != checksum or len(data) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
        raise CorruptFileError("its checksum does not match")
    producers = {}
    for fields in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEADER.size :]):
        producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, transaction = fields
        state = ProducerState(epoch, timestamp)
        state.coordinator_epoch = coordinator_epoch
        state.current_transaction_first_offset = transaction if transaction >= 0 else NO_TRANSACTION
        if last_offset >= 0:
            state.batches.append(BatchMetadata(last_sequence, last_offset, offset_delta, timestamp))
        producers[producer_id] = state
    return producers
