"""The transaction coordinator of one node: checks requests, and passes them to the shard of their transactional id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.coordination import host
from aioproducer.broker.coordination.answers import outcome
from aioproducer.broker.coordination.periodic import periodically
from aioproducer.broker.coordination.replicated_writes import Done
from aioproducer.broker.coordination.shards import Shards
from aioproducer.broker.image import TRANSACTION_STATE_TOPIC
from aioproducer.broker.transactions import describing, ending
from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.markers import MarkerHost, MarkerSender
from aioproducer.broker.transactions.partition_adder import PartitionAdder
from aioproducer.broker.transactions.shard import Shard
from aioproducer.broker.transactions.states import (
    EPOCH_FOR_EACH_TRANSACTION,
    NO_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionState,
)
from aioproducer.broker.transactions.transaction import Decision, Transaction
from aioproducer.errors import BrokerError
from aioproducer.protocol.messages import described_transactions, listed_transactions

if TYPE_CHECKING:
    from aioproducer.broker.config import BrokerConfig
    from aioproducer.broker.image import ClusterImage
    from aioproducer.broker.replicas.partition import Partition

logger = logging.getLogger(__name__)

NO_PRODUCER: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_EPOCH)


class ProducerAnswer(NamedTuple):
    """The code of a response, and the producer id and epoch to continue with."""

    code: int
    producer: ProducerIdAndEpoch = NO_PRODUCER


def transactions_topic_spec(config: BrokerConfig, image: ClusterImage) -> TopicSpec:
    """Return how ``__transaction_state`` is created; its replicas are limited to the number of nodes."""
    return TopicSpec(
        TRANSACTION_STATE_TOPIC,
        num_partitions=config.transaction_state_log_num_partitions,
        replication_factor=min(config.transaction_state_log_replication_factor, max(len(image.nodes), 1)),
        configs={
            "unclean.leader.election.enable": "false",
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
        },
    )


class CoordinatorHost(host.CoordinatorHost, MarkerHost, Protocol):
    """What a transaction coordinator needs from its node."""


class TransactionCoordinator:
    """Serves the transactional ids in those partitions of ``__transaction_state`` that this node leads."""

    def __init__(self, broker: CoordinatorHost) -> None:
        self._broker = broker
        self.shards = Shards(broker, TRANSACTION_STATE_TOPIC, self._topic_spec, self._make_shard)
        self._periodic: list[asyncio.Task[None]] = []
        self._markers = MarkerSender(broker)
        self._adder = PartitionAdder(broker)

    def _topic_spec(self) -> TopicSpec:
        return transactions_topic_spec(self._broker.config, self._broker.image)

    def _make_shard(self, partition: Partition) -> Shard:
        return Shard(partition, self)

    # Life

    def start(self) -> None:
        """Start serving, which needs a running loop. Partitions that this node leads are loaded."""
        node_id = self._broker.node_id
        self._periodic = [
            asyncio.create_task(
                periodically(
                    lambda: self._broker.config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                    self.abort_timed_out,
                ),
                name=f"time-outs of transactions at {node_id}",
            ),
            asyncio.create_task(
                periodically(
                    lambda: self._broker.config.transaction_remove_expired_transaction_cleanup_interval_ms,
                    self.expire,
                ),
                name=f"expiry of transactional ids at {node_id}",
            ),
        ]
        self.shards.start()

    async def close(self) -> None:
        """Stop serving: requests that wait are answered with COORDINATOR_NOT_AVAILABLE."""
        for task in self._periodic:
            task.cancel()
        tasks = [*self.shards.close(), *self._periodic]
        await asyncio.gather(self._markers.close(), self._adder.close(), *tasks, return_exceptions=True)

    def transaction(self, transactional_id: str) -> Transaction | None:
        """Return a transactional id that this node coordinates; for tests."""
        shard = self.shards.held(transactional_id)
        return None if shard is None else shard.transactions.get(transactional_id)

    # Requests

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> ProducerAnswer:
        """InitProducerId: return the next epoch of a producer, with a new id if the epochs of the current one are used
        up.

        An ongoing transaction is aborted; after CONCURRENT_TRANSACTIONS the producer repeats the request until it has
        ended.
        """
        if not transactional_id:
            return ProducerAnswer(Code.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._broker.config.transaction_max_timeout_ms:
            return ProducerAnswer(Code.INVALID_TRANSACTION_TIMEOUT)
        try:
            shard = self.shards.serving(transactional_id)
            transaction = shard.transactions.get(transactional_id)
            if transaction is None:
                transaction = Transaction.new(transactional_id, self._allocate(), timeout_ms, self.wall_ms())
                shard.transactions[transactional_id] = transaction
            decision = transaction.initialize(timeout_ms, expected, self._allocate, self.wall_ms())
        except BrokerError as error:
            return ProducerAnswer(error.code)
        if isinstance(decision, Code):
            return ProducerAnswer(decision)
        if decision.state is TransactionState.PREPARE_EPOCH_FENCE:
            code = await outcome(self._abort_fenced(shard, transaction, decision.producer))
            return ProducerAnswer(code or Code.CONCURRENT_TRANSACTIONS)
        code = await outcome(lambda done: shard.write(transaction, decision, done))
        return ProducerAnswer(code) if code else ProducerAnswer(Code.NONE, decision.producer)

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int,
    ) -> int:
        """AddPartitionsToTxn and AddOffsetsToTxn: return the code when the partitions are in the log."""
        if not transactional_id:
            return Code.INVALID_REQUEST
        try:
            shard, transaction = self._known(transactional_id)
        except BrokerError as error:
            return error.code
        if transaction is None:
            return Code.INVALID_PRODUCER_ID_MAPPING
        decision = transaction.add_partitions(producer, partitions, self.wall_ms(), client_version)
        if isinstance(decision, Code):
            return decision
        return await outcome(lambda done: shard.write(transaction, decision, done))

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """AddPartitionsToTxn with ``verify_only``: return the code of each partition."""
        code: int = Code.INVALID_REQUEST
        if transactional_id:
            try:
                _, transaction = self._known(transactional_id)
            except BrokerError as error:
                code = error.code
            else:
                code = Code.INVALID_PRODUCER_ID_MAPPING
                if transaction is not None:
                    found = transaction.verify(producer, partitions)
                    if not isinstance(found, Code):
                        return dict(found)
                    code = found
        return dict.fromkeys(partitions, code)

    async def end_transaction(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, client_version: int
    ) -> ProducerAnswer:
        """EndTxn: return when the outcome is in the log; with KIP-890 with the producer for the next transaction."""
        if not transactional_id:
            return ProducerAnswer(Code.INVALID_REQUEST)
        try:
            shard, transaction = self._known(transactional_id)
            if transaction is None:
                return ProducerAnswer(Code.INVALID_PRODUCER_ID_MAPPING)
            request = ending.End(producer, commit, client_version)
            decision = ending.end(transaction, request, self._allocate, self.wall_ms())
        except BrokerError as error:
            return ProducerAnswer(error.code)
        if isinstance(decision, Code):
            is_new = decision == Code.NONE and client_version >= EPOCH_FOR_EACH_TRANSACTION
            return ProducerAnswer(decision, transaction.metadata.producer if is_new else NO_PRODUCER)
        code = await outcome(lambda done: shard.write(transaction, decision, done))
        if code or client_version < EPOCH_FOR_EACH_TRANSACTION:
            return ProducerAnswer(code)
        return ProducerAnswer(Code.NONE, decision.producer_afterwards)

    def describe(self, transactional_id: str) -> described_transactions.TransactionState:
        """Describe a transactional id for DescribeTransactions, or return the error."""
        try:
            self.shards.check_active()
            if not transactional_id:
                return describing.described_unknown(transactional_id, Code.INVALID_REQUEST)
            _, transaction = self._known(transactional_id)
        except BrokerError as error:
            return describing.described_unknown(transactional_id, error.code)
        if transaction is None:
            return describing.described_unknown(transactional_id, Code.TRANSACTIONAL_ID_NOT_FOUND)
        return describing.described(transaction)

    def list_transactions(self, filters: describing.Filters) -> list[listed_transactions.TransactionState]:
        """Return the transactional ids that this node coordinates and that pass the filters.

        Raises:
            CoordinatorLoadInProgressError: some partitions are still loading.
            CoordinatorNotAvailableError: the broker is stopping.
            InvalidRegularExpressionError: the pattern is invalid.
        """
        shards = self.shards.all()
        selection = describing.Selection(filters, self.wall_ms())
        transactions = (transaction for shard in shards for transaction in shard.transactions.values())
        return [describing.listed(transaction) for transaction in transactions if selection.has(transaction)]

    def _known(self, transactional_id: str) -> tuple[Shard, Transaction | None]:
        shard = self.shards.serving(transactional_id)
        return shard, shard.transactions.get(transactional_id)

    # Requests to other coordinators

    async def add_or_verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> dict[TopicPartition, int]:
        """Check whether partitions that this node leads are in a transaction; add them unless ``verify_only``.

        PRODUCER_FENCED is returned as INVALID_PRODUCER_EPOCH. A partition that is not in the transaction has
        TRANSACTION_ABORTABLE, which the caller translates for clients that do not know it.
        """
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        return await self._adder.ask(
            self.shards.coordinator(transactional_id), transactional_id, producer, partitions, verify_only=verify_only
        )

    # Time

    def abort_timed_out(self) -> None:
        """Abort the transactions that have exceeded their timeout, and fence their producers."""
        now_ms = self.wall_ms()
        for shard in self.shards.loaded():
            for transaction in list(shard.transactions.values()):
                if transaction.has_timed_out(now_ms):
                    logger.info("%r has timed out and is aborted", transaction)
                    self._abort_fenced(shard, transaction, transaction.fence().producer)(_ignore)

    def expire(self) -> None:
        """Delete the transactional ids that have not been used for ``transactional.id.expiration.ms``."""
        for shard in self.shards.loaded():
            shard.expire(self.wall_ms(), self._broker.config.transactional_id_expiration_ms)

    def _abort_fenced(
        self, shard: Shard, transaction: Transaction, producer: ProducerIdAndEpoch
    ) -> Callable[[Done], None]:
        """Begin the abort of a transaction by the coordinator, which fences its producer; return its write."""
        request = ending.End(producer, False, self.transaction_version, is_from_client=False)
        decision: Decision
        code: int = Code.NONE
        try:
            decision = ending.end(transaction, request, self._allocate, self.wall_ms())
        except BrokerError as error:
            logger.warning("%r cannot be aborted: %s", transaction, error)
            decision, code = Code.UNKNOWN_SERVER_ERROR, error.code
        if isinstance(decision, Code):
            # The pending transition would never be completed.
            transaction.drop()
            answer = code or decision
            return lambda done: done(answer)
        new = decision
        return lambda done: shard.write(transaction, new, done)

    # Called by shards

    @property
    def transaction_version(self) -> int:
        """The cluster's current level of ``transaction.version``."""
        return self._broker.image.transaction_version

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._broker.wall_ms()

    def send_markers(self, shard: Shard, transaction: Transaction) -> None:
        """Send markers to the partitions of a transaction that have none yet."""
        self._markers.send(shard, transaction)

    def _allocate(self) -> int:
        return self._broker.controller.allocate_producer_id()


def _ignore(code: int) -> None:
    """The result of a write that is not needed: if the abort of a timed-out transaction fails, it is tried again."""
