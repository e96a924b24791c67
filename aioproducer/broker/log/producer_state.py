"""The state of a partition's producers and transactions, and its snapshots (``ProducerStateManager``)."""

from __future__ import annotations

import logging

from aioproducer.broker.log.checkpoints import CorruptFileError
from aioproducer.broker.log.cleaner.batch_filter import LastBatch
from aioproducer.broker.log.open_transactions import OpenTransactions, VerificationGuard, VerificationState
from aioproducer.broker.log.producers import (
    NO_TRANSACTION,
    BatchMetadata,
    ProducerState,
    decode_snapshot,
    encode_snapshot,
)
from aioproducer.broker.log.storage import Storage
from aioproducer.broker.log.transaction_index import AbortedTransaction
from aioproducer.broker.log.validation import BatchHeader
from aioproducer.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from aioproducer.wire.control_batch import ControlRecord, ControlRecordType
from aioproducer.wire.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, increment_sequence

logger = logging.getLogger(__name__)

SNAPSHOT_SUFFIX = ".snapshot"
BATCHES_TO_RETAIN = 5

_GREATEST_EPOCH = 2**15 - 1
_EPOCH_BUMPED = 2
"""The transaction version from which on a marker has a greater epoch than its transaction's records (KIP-890)."""


class ProducerStateManager:
    """The producers of one partition, and the snapshots in its folder.

    A snapshot holds the state at the offset in its name, so a start need not read the whole log. As in Kafka it keeps
    only the last batch of each producer.
    """

    def __init__(self, storage: Storage, topic_partition: str) -> None:
        self._storage = storage
        self._topic_partition = topic_partition
        self.producers: dict[int, ProducerState] = {}
        self.map_end_offset = 0
        self._transactions = OpenTransactions()
        self._verifications: dict[int, VerificationState] = {}
        self._snapshots: set[int] = set()
        self._last_snapshot_offset = 0

    def check(
        self,
        header: BatchHeader,
        offset: int,
        *,
        is_client: bool,
        guard: VerificationGuard | None = None,
        is_verified: bool = True,
    ) -> BatchMetadata | None:
        """Check a batch of data before its append at ``offset``. Return the original batch if this is a duplicate.

        Args:
            guard: the result of ``begin_verification``, if the transaction was verified since.
            is_verified: a batch that begins a transaction needs a guard.

        Raises:
            InvalidProducerEpochError: a newer epoch is known.
            InvalidTxnStateError: the batch would begin a transaction that was not verified, or that has ended since;
                or it is not transactional while the producer has an open transaction.
            OutOfOrderSequenceError: earlier sequence numbers are missing, or the batch repeats one that is no longer
                remembered.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        state = self.producers.get(producer_id)
        where = f"producer {producer_id} at offset {offset} in partition {self._topic_partition}"
        if state is not None:
            if is_client:
                duplicate = state.find_duplicate(header)
                if duplicate is not None:
                    return duplicate
            if epoch < state.producer_epoch:
                raise InvalidProducerEpochError(
                    f"Epoch of {where} is {epoch}, which is smaller than the last seen epoch {state.producer_epoch}"
                )
        is_transactional = header.attributes & TRANSACTIONAL_FLAG
        if is_transactional and is_verified and not self.has_transaction(producer_id, epoch):
            verification = self._verifications.get(producer_id)
            if guard is None or verification is None or verification.guard is not guard:
                raise InvalidTxnStateError("Record was not part of an ongoing transaction")
        if is_client:
            self._check_sequence(header, state, where)
        if state is not None and state.has_transaction and not is_transactional:
            raise InvalidTxnStateError(f"Expected transactional write from {where}")
        return None

    def _check_sequence(self, header: BatchHeader, state: ProducerState | None, where: str) -> None:
        epoch, sequence = header.producer_epoch, header.base_sequence
        verification = self._verifications.get(header.producer_id)
        if verification is not None:
            if verification.supports_epoch_bump and sequence != 0 and (state is None or not state.batches):
                raise OutOfOrderSequenceError(
                    f"Invalid sequence number for {where}: {sequence} (incoming seq. number). Expected sequence 0 for "
                    f"transactions v2 idempotent producer with no existing state."
                )
            if sequence > verification.lowest_sequence:
                raise OutOfOrderSequenceError(
                    f"Out of order sequence number for {where}: {sequence} (incoming seq. number), "
                    f"{verification.lowest_sequence} (earliest seen sequence)"
                )
        if state is None:
            return
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

    def check_marker(
        self, header: BatchHeader, marker: ControlRecord, offset: int, *, transaction_version: int
    ) -> None:
        """Check a marker before its append at ``offset`` (``ProducerAppendInfo.checkProducerEpoch``).

        From transaction version 2 on each transaction has its own epoch, and its marker a greater one. A marker with
        the epoch of an open transaction is therefore late. Without an open transaction, a marker of the current epoch
        repeats a written one and is accepted (KAFKA-19999).

        Raises:
            InvalidProducerEpochError: the marker is of an older epoch, or of an earlier transaction.
            TransactionCoordinatorFencedError: a newer coordinator has ended a transaction of the producer.
        """
        state = self.producers.get(header.producer_id)
        if state is None:
            return
        epoch, current = header.producer_epoch, state.producer_epoch
        is_bumped = transaction_version >= _EPOCH_BUMPED
        where = f"producer {header.producer_id} at offset {offset} in {self._topic_partition}"
        is_repeated = is_bumped and epoch == current and (not state.has_transaction or epoch == _GREATEST_EPOCH)
        if (epoch <= current if is_bumped else epoch < current) and not is_repeated:
            raise InvalidProducerEpochError(
                f"Epoch of {where} is {epoch}, which is {'<=' if is_bumped else '<'} the last seen epoch {current} "
                f"(TV{transaction_version})"
            )
        if marker.coordinator_epoch is not None and marker.coordinator_epoch < state.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"Invalid coordinator epoch for {where}: {marker.coordinator_epoch} (zombie), "
                f"{state.coordinator_epoch} (current)"
            )

    def update(
        self, header: BatchHeader, last_offset: int, marker: ControlRecord | None = None
    ) -> AbortedTransaction | None:
        """Apply an appended batch of a client, coordinator or leader; ``marker`` is the record of a control batch.

        Returns the transaction that the batch has aborted.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        is_control = header.attributes & CONTROL_FLAG
        if is_control and marker is None:
            # The transaction was cleaned from the log, or the type of the control record is unknown.
            return None
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
        if header.attributes & TRANSACTIONAL_FLAG and self._verifications:
            self._end_verification(producer_id, epoch, is_marker=marker is not None)
        if marker is not None:
            return self._end_transaction(producer_id, state, marker, last_offset)
        delta = header.last_offset_delta
        last_sequence = increment_sequence(header.base_sequence, delta)
        if len(state.batches) == BATCHES_TO_RETAIN:
            del state.batches[0]
        state.batches.append(BatchMetadata(last_sequence, last_offset, delta, header.max_timestamp))
        if header.attributes & TRANSACTIONAL_FLAG and not state.has_transaction:
            state.current_transaction_first_offset = last_offset - delta
            self._transactions.begin(producer_id, last_offset - delta)
        return None

    def _end_transaction(
        self, producer_id: int, state: ProducerState, marker: ControlRecord, offset: int
    ) -> AbortedTransaction | None:
        """Apply a marker. A transaction without records holds back no reader, and has no entry in an index."""
        if marker.coordinator_epoch is not None:
            state.coordinator_epoch = marker.coordinator_epoch
        if not state.has_transaction:
            return None
        first_offset, state.current_transaction_first_offset = state.current_transaction_first_offset, NO_TRANSACTION
        last_stable_offset = self._transactions.end(first_offset, offset)
        if marker.type is not ControlRecordType.ABORT:
            return None
        return AbortedTransaction(producer_id, first_offset, offset, last_stable_offset)

    # Transactions

    def has_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether a transaction of this epoch is open; one of an older epoch may have ended elsewhere."""
        state = self.producers.get(producer_id)
        return state is not None and state.has_transaction and state.producer_epoch == epoch

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the oldest transaction without a marker below ``high_watermark``."""
        return self._transactions.first_unstable_offset(high_watermark)

    def begin_verification(
        self, producer_id: int, sequence: int, epoch: int, now_ms: int, *, supports_epoch_bump: bool
    ) -> VerificationGuard | None:
        """Return the guard for the producer's next batch to begin a transaction; ``None`` if one is open.

        The caller verifies the transaction at its coordinator before the append. The guard is valid until a batch or
        marker of the producer is written, so a verification before a marker does not begin a transaction after it.

        Raises:
            InvalidProducerEpochError: a newer epoch is known.
        """
        state = self.producers.get(producer_id)
        if state is not None and epoch < state.producer_epoch:
            raise InvalidProducerEpochError(
                f"Epoch of producer {producer_id} is {epoch}, which is smaller than the last seen epoch "
                f"{state.producer_epoch}"
            )
        if self.has_transaction(producer_id, epoch):
            return None
        verification = self._verifications.get(producer_id)
        if verification is None:
            verification = self._verifications[producer_id] = VerificationState(
                now_ms, sequence, epoch, supports_epoch_bump=supports_epoch_bump
            )
        verification.note(sequence, epoch)
        return verification.guard

    def _end_verification(self, producer_id: int, epoch: int, *, is_marker: bool) -> None:
        verification = self._verifications.get(producer_id)
        # A marker of the verified epoch ends the previous transaction, as each has its own epoch.
        if verification is not None and not (
            is_marker and verification.supports_epoch_bump and verification.epoch == epoch
        ):
            del self._verifications[producer_id]

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers with no open transaction and no batch for ``expiration_ms``; return their number."""
        expired = [
            producer_id
            for producer_id, state in self.producers.items()
            if now_ms - state.last_timestamp >= expiration_ms and not state.has_transaction
        ]
        for producer_id in expired:
            del self.producers[producer_id]
        for producer_id, verification in tuple(self._verifications.items()):
            if now_ms - verification.created_ms >= expiration_ms:
                del self._verifications[producer_id]
        return len(expired)

    def last_batch(self, producer_id: int) -> LastBatch | None:
        """Return the batch of a producer that a cleaner must keep; ``None`` for an unknown producer."""
        state = self.producers.get(producer_id)
        if state is None:
            return None
        return LastBatch(state.batches[-1].last_offset if state.batches else -1, state.producer_epoch)

    # Snapshots

    @property
    def snapshots(self) -> list[int]:
        """The offsets of the snapshots, the oldest first."""
        return sorted(self._snapshots)

    def take_snapshot(self, *, sync: bool = False) -> None:
        """Write a snapshot of the state at ``map_end_offset``, unless it exists.

        Raises:
            OSError: it could not be written.
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

    def load(
        self, first_offset: int, log_end_offset: int, now_ms: int, expiration_ms: int, *, at_most: int | None = None
    ) -> None:
        """Load the newest valid snapshot, of those up to ``at_most``; ``map_end_offset`` is its offset.

        Without a snapshot ``map_end_offset`` is ``first_offset``, where the log begins. Snapshots behind the log's end
        and invalid ones are deleted. Unlike in Kafka a snapshot at the log's start is used, so the producers of deleted
        records are still known.
        """
        for offset in self.snapshots:
            if offset > log_end_offset:
                self.remove_snapshot(offset)
        self.producers = {}
        self._transactions.reset()
        self.map_end_offset = self._last_snapshot_offset = first_offset
        for offset in reversed(self.snapshots):
            if at_most is not None and offset > at_most:
                continue
            try:
                self.producers = decode_snapshot(self._storage.read(_snapshot_name(offset)) or b"")
            except CorruptFileError as corrupt:
                logger.warning("%s: the producer snapshot at offset %d: %s", self._topic_partition, offset, corrupt)
                self.remove_snapshot(offset)
                continue
            self.map_end_offset = self._last_snapshot_offset = offset
            self.remove_expired(now_ms, expiration_ms)
            self._transactions.reset(
                (state.current_transaction_first_offset, producer_id)
                for producer_id, state in self.producers.items()
                if state.has_transaction
            )
            return

    def remove_snapshot(self, offset: int) -> None:
        """Delete the snapshot at ``offset``."""
        self._storage.remove(_snapshot_name(offset))
        self._snapshots.discard(offset)

    def remove_snapshots_after(self, offset: int) -> None:
        """Delete the snapshots that a truncation to ``offset`` makes invalid."""
        for each in self.snapshots:
            if each > offset:
                self.remove_snapshot(each)
        self._last_snapshot_offset = min(self._last_snapshot_offset, max(self._snapshots, default=0))

    def remove_strays(self, base_offsets: set[int]) -> None:
        """Delete all snapshots except the newest and those at a segment's start."""
        for offset in self.snapshots[:-1]:
            if offset not in base_offsets:
                self.remove_snapshot(offset)

    def reset(self, offset: int) -> None:
        """Remove all state: the log is empty and continues at ``offset``."""
        self.remove_snapshots_after(-1)
        self.producers = {}
        self._transactions.reset()
        self.map_end_offset = offset
        self._last_snapshot_offset = 0


def _snapshot_name(offset: int) -> str:
    return f"{offset:020d}{SNAPSHOT_SUFFIX}"
