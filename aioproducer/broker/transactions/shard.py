"""The transactional ids of one partition of ``__transaction_state``: loaded from its log, kept in memory and served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from aioproducer.broker.coordination.codes import coordinator_code
from aioproducer.broker.coordination.replicated_writes import Done, ReplicatedWrites
from aioproducer.broker.coordination.stored_records import stored_records
from aioproducer.broker.replicas.partition import Partition
from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.records import TransactionRecord, decode_record, encode_record
from aioproducer.broker.transactions.states import TopicPartition, TransactionMetadata, TransactionState
from aioproducer.broker.transactions.transaction import Transaction
from aioproducer.errors import KafkaError, ProtocolError
from aioproducer.wire.record import SimpleRecord
from aioproducer.wire.record_batch import encode_batch

if TYPE_CHECKING:
    from aioproducer.broker.log import AppendInfo

logger = logging.getLogger(__name__)

MILLISECOND: Final = 0.001
RETRY_BACKOFF: Final = 0.05
"""Seconds before a failed write of a transaction's end is repeated."""


class ShardHost(Protocol):
    """What a shard needs from the coordinator."""

    @property
    def transaction_version(self) -> int:
        """The cluster's current level of ``transaction.version``."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""

    def send_markers(self, shard: Shard, transaction: Transaction) -> None:
        """Send markers to the partitions in ``transaction.unmarked``, and call ``shard.marked`` for each."""


class Shard:
    """One partition of ``__transaction_state``, led by this node in one leader epoch."""

    def __init__(self, partition: Partition, host: ShardHost) -> None:
        self.partition = partition
        self.coordinator_epoch = partition.leader_epoch
        """The leader epoch in which this node coordinates; markers contain it."""
        self.transactions: dict[str, Transaction] = {}
        self.is_loaded = False
        self.is_closed = False
        self._host = host
        self._writes = ReplicatedWrites(partition)
        self._retries: set[asyncio.TimerHandle] = set()

    def __repr__(self) -> str:
        return f"Shard({self.partition.topic}-{self.partition.index}, epoch {self.coordinator_epoch})"

    @property
    def is_current(self) -> bool:
        """Whether the partition is still in the leader epoch of this shard."""
        return self.coordinator_epoch == self.partition.leader_epoch

    async def load(self) -> None:
        """Read the log, then serve. A transaction with an outcome in the log is completed.

        Raises:
            KafkaError: the log cannot be read.
        """
        found: dict[str, TransactionMetadata] = {}
        async for batch, stored in stored_records(self.partition):
            if batch.is_control:
                continue
            try:
                record = decode_record(stored.key, stored.value)
            except ProtocolError as error:
                logger.error("%r: skipping the record at offset %d: %s", self, stored.offset, error)
                continue
            if record is None:
                logger.warning("%r: skipping the record at offset %d: unknown version", self, stored.offset)
            elif record.metadata is None:
                found.pop(record.transactional_id, None)
            else:
                found[record.transactional_id] = record.metadata
        for transactional_id, metadata in found.items():
            self.transactions[transactional_id] = Transaction(transactional_id, metadata, is_logged=True)
        self.is_loaded = True
        for transaction in list(self.transactions.values()):
            if transaction.metadata.state.is_ending:
                self._complete(transaction)

    def close(self, code: int) -> None:
        """Stop serving; waiting requests are answered with ``code``."""
        self.is_closed = True
        self.is_loaded = False
        for retry in self._retries:
            retry.cancel()
        self._retries.clear()
        self._writes.close(code)

    # Writing

    def write(self, transaction: Transaction, new: TransactionMetadata, done: Done) -> None:
        """Write the pending state of ``transaction``; ``done`` receives the code of the response."""

        def decided(code: int) -> None:
            if code == Code.NONE:
                self._apply(transaction, new)
            else:
                logger.info("%r: %r could not be written to the log: code %d", self, transaction, code)
                transaction.drop()
                if not transaction.is_logged:
                    self._forget(transaction)

        self._append(transaction, new, decided, done)

    def _append(self, transaction: Transaction, new: TransactionMetadata, decided: Done, done: Done) -> None:
        is_dead = new.state is TransactionState.DEAD
        record = TransactionRecord(transaction.transactional_id, None if is_dead else new)
        try:
            encoded = encode_record(record, self._host.transaction_version)
        except KafkaError:
            logger.exception("%r: %r cannot be encoded", self, transaction)
            decided(Code.UNKNOWN_SERVER_ERROR)
            done(Code.UNKNOWN_SERVER_ERROR)
            return

        def append() -> AppendInfo:
            batch = bytearray().join(encode_batch([SimpleRecord(self._host.wall_ms(), *encoded)]))
            return self.partition.append(batch, acks=-1, origin="coordinator")

        self._writes.write(
            append,
            new.timeout_ms * MILLISECOND,
            lambda code, end_offset: decided(coordinator_code(code)),
            lambda code: done(coordinator_code(code)),
        )

    def _apply(self, transaction: Transaction, new: TransactionMetadata) -> None:
        if new.state is TransactionState.DEAD:
            self._forget(transaction)
            return
        transaction.apply(new)
        if new.state.is_ending:
            self._complete(transaction)

    def _forget(self, transaction: Transaction) -> None:
        if self.transactions.get(transaction.transactional_id) is transaction:
            del self.transactions[transaction.transactional_id]

    # Ends of transactions

    def _complete(self, transaction: Transaction) -> None:
        """Send markers for the logged outcome; when all are written, log the completion."""
        transaction.prepare_complete(self._host.wall_ms())
        if transaction.unmarked:
            self._host.send_markers(self, transaction)
        else:
            self._write_completion(transaction)

    def marked(self, transaction: Transaction, partition: TopicPartition) -> None:
        """Record that a partition of an ending transaction has its marker, or needs none."""
        if self.is_closed or partition not in transaction.unmarked:
            return
        transaction.unmarked.discard(partition)
        if not transaction.unmarked:
            self._write_completion(transaction)

    def _write_completion(self, transaction: Transaction) -> None:
        new = transaction.pending
        assert new is not None

        def decided(code: int) -> None:
            if code == Code.NONE:
                self._apply(transaction, new)
            elif code != Code.NOT_COORDINATOR and not self.is_closed:
                logger.info("%r: writing the end of %r failed with code %d; it is retried", self, transaction, code)
                self._later(lambda: self._write_completion(transaction))

        self._append(transaction, new, decided, _ignore)

    def _later(self, action: Callable[[], None]) -> None:
        def run() -> None:
            self._retries.discard(handle)
            action()

        handle = asyncio.get_running_loop().call_later(RETRY_BACKOFF, run)
        self._retries.add(handle)

    # Time

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Write the tombstones of ids that have not changed for ``expiration_ms``."""
        for transaction in list(self.transactions.values()):
            if transaction.has_expired(now_ms, expiration_ms):
                self.write(transaction, transaction.expire(), _ignore)


def _ignore(code: int) -> None:
    """The answer to a write that no request waits for; its outcome is handled elsewhere."""
