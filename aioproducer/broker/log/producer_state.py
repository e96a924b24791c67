"""What a partition remembers of idempotent producers, and its snapshot files (``ProducerStateManager``)."""

from __future__ import annotations

import logging
import struct
from struct import Struct
from typing import NamedTuple

from aioproducer.broker.log.checkpoints import CorruptFileError
from aioproducer.broker.log.storage import Storage
from aioproducer.broker.log.validation import BatchHeader
from aioproducer.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from aioproducer.wire.crc32c import crc32c
from aioproducer.wire.record_batch import CONTROL_FLAG, decrement_sequence, increment_sequence

logger = logging.getLogger(__name__)

SNAPSHOT_SUFFIX = ".snapshot"
BATCHES_TO_RETAIN = 5

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
        self.current_transaction_first_offset = -1

    @property
    def last_sequence(self) -> int:
        """The newest sequence number, -1 if none is known of this epoch."""
        return self.batches[-1].last_sequence if self.batches else -1

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The batch that ``header`` repeats, among those remembered."""
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


class ProducerStateManager:
    """The producers of one partition, and the snapshots in its folder.

    A snapshot holds what was true at the offset in its name, so that not the whole log must be read to know it again.
    As in Kafka it keeps only the last batch of each producer.
    """

    def __init__(self, storage: Storage, topic_partition: str) -> None:
        self._storage = storage
        self._topic_partition = topic_partition
        self.producers: dict[int, ProducerState] = {}
        self.map_end_offset = 0
        self._snapshots: set[int] = set()
        self._last_snapshot_offset = 0

    def check(self, header: BatchHeader, offset: int, *, is_client: bool) -> BatchMetadata | None:
        """Whether a batch may be appended at ``offset``; the batch it repeats, if it is a duplicate.

        Raises:
            InvalidProducerEpochError: a newer epoch is known.
            OutOfOrderSequenceError: sequence numbers before are missing, or were written longer ago than is remembered.
        """
        state = self.producers.get(header.producer_id)
        if state is None:
            return None
        if is_client:
            duplicate = state.find_duplicate(header)
            if duplicate is not None:
                return duplicate
        epoch, sequence = header.producer_epoch, header.base_sequence
        where = f"producer {header.producer_id} at offset {offset} in partition {self._topic_partition}"
        if epoch < state.producer_epoch:
            raise InvalidProducerEpochError(
                f"Epoch of {where} is {epoch}, which is smaller than the last seen epoch {state.producer_epoch}"
            )
        if not is_client or header.attributes & CONTROL_FLAG:
            return None
        if epoch != state.producer_epoch:
            if sequence != 0 and state.producer_epoch != -1:
                raise OutOfOrderSequenceError(
                    f"Invalid sequence number for new epoch of {where}: {epoch} (request epoch), "
                    f"{sequence} (seq. number), {state.producer_epoch} (current producer epoch)"
                )
        elif sequence != (increment_sequence(state.last_sequence, 1) if state.batches else 0):
            raise OutOfOrderSequenceError(
                f"Out of order sequence number for {where}: {sequence} (incoming seq. number), "
                f"{state.last_sequence} (current end sequence number)"
            )
        return None

    def update(self, header: BatchHeader, last_offset: int) -> None:
        """Remember a batch that was appended, whoever wrote it."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        state = self.producers.get(producer_id)
        if state is None:
            state = self.producers[producer_id] = ProducerState(epoch, header.max_timestamp)
        elif epoch != state.producer_epoch:
            if epoch < state.producer_epoch:
                logger.warning(
                    "%s: producer %d wrote with epoch %d after epoch %d",
                    self._topic_partition,
                    producer_id,
                    epoch,
                    state.producer_epoch,
                )
            state.producer_epoch = epoch
            state.batches = []
        state.last_timestamp = header.max_timestamp
        if not header.attributes & CONTROL_FLAG:
            delta = header.last_offset_delta
            last_sequence = increment_sequence(header.base_sequence, delta)
            if len(state.batches) == BATCHES_TO_RETAIN:
                del state.batches[0]
            state.batches.append(BatchMetadata(last_sequence, last_offset, delta, header.max_timestamp))

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that wrote nothing for ``expiration_ms``; returns how many."""
        expired = [
            producer_id
            for producer_id, state in self.producers.items()
            if now_ms - state.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self.producers[producer_id]
        return len(expired)

    # Snapshots

    @property
    def snapshots(self) -> list[int]:
        """The offsets of the snapshots there are, oldest first."""
        return sorted(self._snapshots)

    def take_snapshot(self, *, sync: bool = False) -> None:
        """Write what is known at ``map_end_offset``, unless that is written.

        Raises:
            OSError: the disk did not take it.
        """
        if self.map_end_offset <= self._last_snapshot_offset:
            return
        self._storage.replace(_snapshot_name(self.map_end_offset), encode_snapshot(self.producers), sync=sync)
        self._snapshots.add(self.map_end_offset)
        self._last_snapshot_offset = self.map_end_offset

    def load_names(self) -> None:
        """Find the snapshots in the folder."""
        self._snapshots = set()
        for name in self._storage.files():
            stem = name.removesuffix(SNAPSHOT_SUFFIX)
            if stem != name and stem.isdigit():
                self._snapshots.add(int(stem))

    def load(self, first_offset: int, log_end_offset: int, now_ms: int, expiration_ms: int) -> None:
        """Become what the newest readable snapshot says; ``map_end_offset`` is how far that is.

        Without one the log's bytes must be read from ``first_offset`` on, where they begin. Snapshots of offsets behind
        the log's end are deleted, and those that cannot be read. Other than in Kafka one at the log's start counts: who
        wrote what was deleted is still known.
        """
        for offset in self.snapshots:
            if offset > log_end_offset:
                self.remove_snapshot(offset)
        self.producers = {}
        self.map_end_offset = self._last_snapshot_offset = first_offset
        for offset in reversed(self.snapshots):
            try:
                self.producers = decode_snapshot(self._storage.read(_snapshot_name(offset)) or b"")
            except CorruptFileError as corrupt:
                logger.warning("%s: the producer snapshot at offset %d: %s", self._topic_partition, offset, corrupt)
                self.remove_snapshot(offset)
                continue
            self.map_end_offset = self._last_snapshot_offset = offset
            self.remove_expired(now_ms, expiration_ms)
            return

    def remove_snapshot(self, offset: int) -> None:
        """Delete the snapshot at ``offset``."""
        self._storage.remove(_snapshot_name(offset))
        self._snapshots.discard(offset)

    def remove_snapshots_after(self, offset: int) -> None:
        """Delete the snapshots that a truncation to ``offset`` makes false."""
        for each in self.snapshots:
            if each > offset:
                self.remove_snapshot(each)
        self._last_snapshot_offset = min(self._last_snapshot_offset, max(self._snapshots, default=0))

    def remove_strays(self, base_offsets: set[int]) -> None:
        """Delete all snapshots but those at a segment's start, and the newest."""
        for offset in self.snapshots[:-1]:
            if offset not in base_offsets:
                self.remove_snapshot(offset)

    def reset(self, offset: int) -> None:
        """Forget everything: the log begins anew at ``offset``."""
        self.remove_snapshots_after(-1)
        self.producers = {}
        self.map_end_offset = offset
        self._last_snapshot_offset = 0


def _snapshot_name(offset: int) -> str:
    return f"{offset:020d}{SNAPSHOT_SUFFIX}"


def encode_snapshot(producers: dict[int, ProducerState]) -> bytes:
    """A snapshot file: version, CRC-32C of what follows, and an entry for each producer."""
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
    """What a snapshot file holds.

    Raises:
        CorruptFileError: the file is torn or of another version.
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
        state.current_transaction_first_offset = transaction
        if last_offset >= 0:
            state.batches.append(BatchMetadata(last_sequence, last_offset, offset_delta, timestamp))
        producers[producer_id] = state
    return producers
