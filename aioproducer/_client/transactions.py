"""The transactions of a ``Producer``: Kafka's five calls, and ``Transaction`` for ``async with``.

The states are those of ``core/transactions``. This module waits: for the records, for the coordinator, and for the end
of a transaction that an earlier, cancelled call has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from aioproducer._client.hot_path import RecordSender, TransactionSender
from aioproducer._client.open_transactions import AcknowledgedRecords, OpenTransaction
from aioproducer.core.transactions.requests import Result
from aioproducer.core.transactions.states import (
    ABORTABLE_ERROR,
    COMMITTING,
    FATAL_ERROR,
    IN_TRANSACTION,
    INITIALIZING,
    READY,
    UNINITIALIZED,
)
from aioproducer.errors import (
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    ProducerFencedError,
    TransactionEndedError,
    TransactionStateError,
)
from aioproducer.offsets import ConsumerGroupMetadata, OffsetAndMetadata, checked_offsets
from aioproducer.record import TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from aioproducer._client.bulk import Column, SendManyResult
    from aioproducer._common.client_log import ClientLog
    from aioproducer.config import ProducerConfig
    from aioproducer.core.batching.accumulator import RecordAccumulator
    from aioproducer.core.outcomes.delivery import Delivery
    from aioproducer.core.transactions.manager import TransactionManager
    from aioproducer.io.sender import Sender
    from aioproducer.metrics import ProducerMetrics, Sensor
    from aioproducer.record import Record

Outcome = Literal["committed", "aborted"]
"""The end of a transaction."""


class TransactionalProducer(Protocol):
    """The calls of ``Producer`` that this module makes."""

    config: ProducerConfig

    @property
    def connection_error(self) -> KafkaError | None: ...

    def hurrying(self) -> AbstractContextManager[None]: ...

    def send_record(self, record: Record) -> Delivery: ...

    async def send_many(
        self,
        topic: str,
        values: Column,
        *,
        keys: Column | None = None,
        partition: int | None = None,
        timestamps_ms: Column | None = None,
        headers: Column | None = None,
    ) -> SendManyResult: ...

    async def send_arrow(
        self,
        topic: str,
        batch: pyarrow.RecordBatch | pyarrow.Table,
        *,
        value: str = "value",
        key: str | None = None,
        partition: int | None = None,
        timestamp_ms: str | None = None,
        headers: str | None = None,
    ) -> SendManyResult: ...

    def drain(self) -> Coroutine[Any, Any, None]: ...

    async def wait_ready(self, timeout: float) -> None: ...


class Transactions:
    """The calls of one producer, and what they wait for.

    One transaction ends in one task, which a cancelled caller does not cancel. The next call waits for it.

    Args:
        check_caller: raises for a call from another thread or loop.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        manager: TransactionManager,
        accumulator: RecordAccumulator,
        sender: Sender,
        metrics: ProducerMetrics,
        log: ClientLog,
        check_caller: Callable[[], None],
    ) -> None:
        self.manager = manager
        self.check_caller = check_caller
        self.current: Transaction | None = None
        """The open transaction, or the one that is ending."""
        self._producer = producer
        self._accumulator = accumulator
        self._sender = sender
        self._metrics = metrics
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._max_block = producer.config.max_block_ms / 1000
        # The task that ends the transaction; callers wait for it.
        self._ending: asyncio.Task[None] | None = None
        # Done when every record of the transaction that is ending is delivered or has failed.
        self._delivered: asyncio.Future[None] | None = None
        # Aborts that go on after the block of their transaction.
        self._aborts: set[asyncio.Task[None]] = set()
        # How the last transaction has ended.
        self._last: Outcome | None = None
        self._acknowledged: AcknowledgedRecords | None = None
        self.aborted_by_close: Transaction | None = None
        """The transaction that was open when the producer was closed."""

    # Calls

    async def init(self) -> None:
        """See ``Producer.init_transactions``."""
        began = perf_counter_ns()
        result = self.manager.begin_init()
        await self._within_max_block(self._ended(result), "no producer id was received")
        self._count(self._metrics.txn_init, began)

    async def begin(self) -> Transaction:
        """See ``Producer.begin_transaction``."""
        await self._wait_for_earlier()
        began = perf_counter_ns()
        self.manager.begin()
        self._last = None
        if self._acknowledged is not None:
            self._acknowledged.clear()
        self.current = Transaction(self, self._producer)
        self._count(self._metrics.txn_begin, began)
        return self.current

    async def commit(self) -> None:
        """See ``Producer.commit_transaction``."""
        if self.manager.state is COMMITTING:
            await self._wait_for_end()
        elif self._ending is not None:
            raise self.manager.why_not("commit_transaction")
        else:
            await self._end(self.manager.begin_commit(), "committed")

    async def abort(self) -> None:
        """See ``Producer.abort_transaction``."""
        manager = self.manager
        if self._ending is not None:
            # A call that was cancelled has begun to end the transaction.
            await self._settled()
        if manager.state in (IN_TRANSACTION, ABORTABLE_ERROR):
            await self._end(manager.begin_abort(), "aborted")
        elif not (manager.state is READY and self._last == "aborted"):
            if self._last == "committed" and manager.state is READY:
                raise TransactionEndedError("the transaction was committed: it can no longer be aborted")
            raise manager.why_not("abort_transaction")

    async def abort_within(self, grace: float) -> None:
        """Abort, and wait at most ``grace`` seconds for it; the abort goes on after that."""
        abort = self._loop.create_task(self.abort(), name="aioproducer-transaction-abort")
        self._aborts.add(abort)
        abort.add_done_callback(self._aborts.discard)
        abort.add_done_callback(_retrieve)
        done, _ = await asyncio.wait([abort], timeout=grace)
        if done:
            abort.result()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: ConsumerGroupMetadata | str
    ) -> None:
        """See ``Producer.send_offsets_to_transaction``."""
        began = perf_counter_ns()
        of_group = ConsumerGroupMetadata(group) if isinstance(group, str) else group
        if not isinstance(of_group, ConsumerGroupMetadata):
            raise TypeError(f"group must be a ConsumerGroupMetadata or a group id, not {type(group).__name__}")
        checked = checked_offsets(offsets)
        if not checked:
            if self.manager.state is not IN_TRANSACTION:
                raise self.manager.why_not("send_offsets_to_transaction")
            return
        result = self.manager.send_offsets(checked, of_group)
        now = self._loop.time()
        for topic in {topic for topic, _ in checked}:
            # Metadata then has the ids of the topics for the next call (KIP-1319).
            self._sender.cluster.record_topic_use(topic, now)
        await self._within_max_block(self._ended(result), f"group {of_group.group_id!r} has not accepted the offsets")
        self._count(self._metrics.txn_send_offsets, began)

    # Internal, for the Spark sink: transactions that another process ends

    def gather_facts(self) -> None:
        """Gather the offsets of all transactions from now on, for ``leave_open``. Call it between transactions."""
        if self._acknowledged is None:
            self._acknowledged = AcknowledgedRecords()
            self._sender.add_acknowledgement_hook(self._acknowledged)

    async def leave_open(self) -> OpenTransaction:
        """Wait for the records of the transaction, leave it open, and return its facts.

        ``Admin.end_transaction`` ends it, or the coordinator aborts it after ``transaction_timeout_ms``. ``init``
        aborts it as well: the next transaction of this producer begins with that, unless ``resume`` comes before.

        Raises:
            KafkaError: the first failure of a record or request; abort the transaction.
            TransactionStateError: no transaction is open, ``gather_facts`` was not called, or records or offsets are
                still being sent.
        """
        acknowledged = self._acknowledged
        if acknowledged is None:
            raise TransactionStateError("leave_open needs the offsets: call gather_facts() before the transaction")
        await self._deliver()
        if self._accumulator.has_undelivered():
            raise TransactionStateError("leave_open needs the end of all sends: records were sent meanwhile")
        partitions = acknowledged.partitions()
        producer_id, producer_epoch, version = self.manager.leave_open()
        transaction, self.current = self.current, None
        if transaction is not None:
            transaction.set_outcome(TransactionStateError("the transaction was left open: another client ends it"))
        return OpenTransaction(
            self.manager.transactional_id, producer_id, producer_epoch, version, partitions, self._topic_ids(partitions)
        )

    def _topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for topic in {topic for topic, _ in partitions}:
            metadata = self._sender.cluster.metadata.topic(topic)
            if metadata is not None and metadata.topic_id is not None and any(metadata.topic_id):
                found[topic] = metadata.topic_id
        return found

    async def resume(self, producer_id: int, producer_epoch: int) -> None:
        """Continue as the producer that was given this producer id and epoch, without fencing it: see the manager.

        Raises:
            TransactionStateError: a transaction is open or ends, an epoch is requested, or the producer has failed.
            MetadataTimeoutError: no broker answered within ``max_block_ms``.
        """
        # The brokers report the generation of the protocol.
        await self._producer.wait_ready(self._max_block)
        self.manager.resume(producer_id, producer_epoch)

    async def new_epoch(self) -> None:
        """Get the next epoch between two transactions; fails for good if another producer has taken over.

        Raises:
            ProducerFencedError: another producer of the transactional id has taken over.
            KafkaTimeoutError: the coordinator has not answered within ``max_block_ms``.
            TransactionStateError: the producer is not initialized, or a transaction is open.
        """
        result = self.manager.begin_new_epoch()
        await self._within_max_block(self._ended(result), "no new epoch was received")

    # The end of a transaction

    async def _end(self, result: Result, outcome: Outcome) -> None:
        self._start_end(result, outcome)
        await self._wait_for_end()

    def _start_end(self, result: Result, outcome: Outcome) -> None:
        self._delivered = delivered = self._loop.create_future()
        self._ending = self._loop.create_task(
            self._run_end(result, outcome, self.current, delivered), name=f"aioproducer-transaction-{outcome}"
        )
        self._ending.add_done_callback(_retrieve)
        # Also if the task was cancelled before it has run.
        self._ending.add_done_callback(lambda task: _set(delivered))

    async def _run_end(
        self, result: Result, outcome: Outcome, transaction: Transaction | None, delivered: asyncio.Future[None]
    ) -> None:
        began = perf_counter_ns()
        try:
            await self._deliver()
            _set(delivered)
            await self._ended(result)
        except asyncio.CancelledError:
            error = ProducerClosedError("the task that ended the transaction was cancelled")
            if transaction is not None:
                transaction.set_outcome(self.manager.outcome_unknown(error) if outcome == "committed" else error)
            raise
        except KafkaError as error:
            # After an abortable error the transaction is still there, to be aborted.
            if self.manager.state is FATAL_ERROR and transaction is not None:
                transaction.set_outcome(error)
            raise
        else:
            self._last = outcome
            self.current = None
            if transaction is not None:
                transaction.set_outcome(outcome)
            self._count(self._metrics.txn_commit if outcome == "committed" else self._metrics.txn_abort, began)
        finally:
            self._ending = None

    async def _wait_for_end(self) -> None:
        """Wait until the transaction has ended, however long its records take, and then at most ``max_block_ms``.

        A cancelled wait does not cancel the end.
        """
        ending, delivered = self._ending, self._delivered
        if ending is None or delivered is None:
            return
        await asyncio.shield(delivered)
        done, _ = await asyncio.wait([ending], timeout=self._max_block)
        if not done:
            raise KafkaTimeoutError(
                f"The coordinator has not answered within {self._max_block * 1000:.0f} ms (max.block.ms); the "
                "transaction is still being ended: make the same call again to wait on"
            )
        try:
            ending.result()
        except KafkaError as error:
            raise error.fresh() from error.__cause__

    async def _deliver(self) -> None:
        """Wait until every record of the transaction is delivered or has failed."""
        with self._producer.hurrying():
            await self._accumulator.records_unblocked()
            await self._accumulator.batches_finished()
        await self._sender.outcomes_reported()

    def abort_if_it_fails(self, transaction: Transaction) -> None:
        """Abort the transaction if its commit, for which no caller waits any longer, fails."""

        def ended(_: asyncio.Task[None]) -> None:
            if self.current is transaction and self.manager.state is ABORTABLE_ERROR:
                self._start_end(self.manager.begin_abort(), "aborted")

        if self._ending is not None:
            self._ending.add_done_callback(ended)

    def state_changed(self) -> None:
        """End an open transaction that a fatal error has ended."""
        if self.manager.state is FATAL_ERROR and self._ending is None and self.current is not None:
            assert self.manager.error is not None
            self.current.set_outcome(self.manager.error)

    async def _settled(self) -> None:
        """Wait for the ends that earlier calls have begun, without their errors."""
        while (ending := self._ending) is not None:
            try:
                await self._wait_for_end()
            except KafkaError:
                if not ending.done():
                    raise
                # The state tells what is possible now.

    async def _wait_for_earlier(self) -> None:
        await self._settled()
        manager = self.manager
        if manager.state is UNINITIALIZED or manager.state is INITIALIZING:
            await self.init()

    async def _ended(self, result: Result) -> None:
        future: asyncio.Future[None] = self._loop.create_future()

        result.add_callback(lambda: _set(future))
        self._sender.wake()
        await future
        if result.error is not None:
            raise result.error.fresh() from result.error.__cause__

    async def _within_max_block(self, waiting: Coroutine[Any, Any, None], what: str) -> None:
        try:
            async with asyncio.timeout(self._max_block):
                await waiting
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            cause = self._producer.connection_error
            because = "" if cause is None else f" The last error was: {cause}"
            raise KafkaTimeoutError(
                f"{what[0].upper()}{what[1:]} within {self._max_block * 1000:.0f} ms (max.block.ms).{because}"
            ) from cause

    def _count(self, sensor: Sensor, began: int) -> None:
        sensor.record(perf_counter_ns() - began, self._loop.time())

    # The end of the producer

    async def finish(self) -> None:
        """Wait for the end of a transaction that is ending, and abort an open one."""
        await self._settled()
        if self.manager.state in (IN_TRANSACTION, ABORTABLE_ERROR):
            self.aborted_by_close = self.current
            try:
                await self.abort()
            except KafkaError as error:
                self._log.debug("The transaction could not be aborted: %s", error)

    def close(self) -> None:
        """Fail whatever still waits: the producer ends."""
        error = ProducerClosedError("the producer was closed before its transaction had ended")
        self.manager.close(error)
        if self._ending is None and self.current is not None:
            self.current.set_outcome(error)

    async def wait_closed(self) -> None:
        """Wait for the tasks of calls without callers; every record has its outcome."""
        tasks = [*self._aborts] if self._ending is None else [*self._aborts, self._ending]
        if tasks:
            await asyncio.wait(tasks)


class Transaction(TransactionSender):
    """One transaction: ``async with producer.transaction() as transaction:``.

    The block commits at its end. An exception, or a cancellation, aborts the transaction and goes on.
    """

    def __init__(self, transactions: Transactions, producer: TransactionalProducer) -> None:
        self._transactions = transactions
        self._producer = producer
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        assert isinstance(producer, RecordSender)
        self._sender = producer

    # Sending

    def send_record(self, record: Record) -> Delivery:
        """Send a ``Record``; as ``send``."""
        self._check_open()
        return self._producer.send_record(record)

    async def send_many(
        self,
        topic: str,
        values: Column,
        *,
        keys: Column | None = None,
        partition: int | None = None,
        timestamps_ms: Column | None = None,
        headers: Column | None = None,
    ) -> SendManyResult:
        """Send many records; as ``Producer.send_many``."""
        self._check_open()
        return await self._producer.send_many(
            topic, values, keys=keys, partition=partition, timestamps_ms=timestamps_ms, headers=headers
        )

    async def send_arrow(
        self,
        topic: str,
        batch: pyarrow.RecordBatch | pyarrow.Table,
        *,
        value: str = "value",
        key: str | None = None,
        partition: int | None = None,
        timestamp_ms: str | None = None,
        headers: str | None = None,
    ) -> SendManyResult:
        """Send the rows of an Arrow batch; as ``Producer.send_arrow``."""
        self._check_open()
        return await self._producer.send_arrow(
            topic, batch, value=value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    async def drain(self) -> None:
        """Wait for memory; as ``Producer.drain``."""
        self._check_open()
        await self._producer.drain()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: ConsumerGroupMetadata | str
    ) -> None:
        """Let a consumer group commit offsets with this transaction; as ``Producer.send_offsets_to_transaction``."""
        self._check_open()
        self._transactions.check_caller()
        await self._transactions.send_offsets(offsets, group)

    # The end

    async def outcome(self) -> Outcome:
        """Wait for the end of the transaction, and return ``"committed"`` or ``"aborted"``.

        After a cancelled commit this is how to find out. Each step of the end has its own limit
        (``delivery_timeout_ms``, ``max_block_ms``), but an open transaction ends only when the caller ends it.

        Raises:
            TransactionOutcomeUnknownError: the commit was sent, and the producer has failed or was closed.
            KafkaError: the producer has failed before the transaction was committed.
        """
        try:
            return await asyncio.shield(self._outcome)
        except KafkaError as error:
            raise error.fresh() from error.__cause__

    def set_outcome(self, outcome: Outcome | KafkaError) -> None:
        """Set the end of the transaction; the first call counts."""
        if self._outcome.done():
            return
        self._sender = None
        if isinstance(outcome, KafkaError):
            self._outcome.set_exception(outcome)
            # Retrieved: ``outcome`` need not be awaited.
            self._outcome.exception()
        else:
            self._outcome.set_result(outcome)

    def _check_open(self) -> None:
        if self._transactions.current is not self or self._outcome.done():
            raise self._ended_error()

    def _ended_error(self) -> KafkaError:
        return TransactionEndedError(
            "this transaction has ended: the record or call was not accepted. Begin another one"
        )

    def __repr__(self) -> str:
        if not self._outcome.done():
            state = self._transactions.manager.state.value if self._transactions.current is self else "ended"
        else:
            state = "failed" if self._outcome.exception() is not None else self._outcome.result()
        return f"<Transaction of {self._transactions.manager.transactional_id!r}, {state}>"


class TransactionContext:
    """What ``Producer.transaction()`` returns: begins a transaction, and ends it with the block."""

    def __init__(self, transactions: Transactions, abort_grace_ms: int) -> None:
        self._transactions = transactions
        self._abort_grace = abort_grace_ms / 1000
        self._transaction: Transaction | None = None

    async def __aenter__(self) -> Transaction:
        if self._transaction is not None:
            raise TransactionStateError("call producer.transaction() for each transaction: this one was used before")
        self._transactions.check_caller()
        self._transaction = await self._transactions.begin()
        return self._transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        transaction = self._transaction
        assert transaction is not None
        if exception is None:
            await self._commit(transaction)
        else:
            await self._abort(transaction, exception)

    async def _commit(self, transaction: Transaction) -> None:
        transactions = self._transactions
        if transactions.aborted_by_close is transaction:
            raise ProducerClosedError(
                "the producer was closed before the end of this block, and its transaction was aborted: none of its "
                "records is stored. Close the producer after the block"
            )
        if transactions.current is not transaction:
            # It was ended inside the block.
            return
        try:
            await transactions.commit()
        except KafkaError as error:
            if transactions.manager.state is ABORTABLE_ERROR:
                await self._abort(transaction, error)
            else:
                transactions.abort_if_it_fails(transaction)
            raise
        except asyncio.CancelledError:
            transactions.abort_if_it_fails(transaction)
            raise

    async def _abort(self, transaction: Transaction, exception: BaseException) -> None:
        """Abort within the grace; the abort goes on in the background after it.

        Raises:
            ProducerFencedError: another producer has taken over, which a broker may have reported as another error.
        """
        transactions = self._transactions
        try:
            if transactions.current is not transaction or transactions.manager.state is FATAL_ERROR:
                return
            await transactions.abort_within(self._abort_grace)
        except KafkaError as error:
            if isinstance(error, ProducerFencedError) and isinstance(exception, KafkaError):
                raise error from exception
            # The exception of the block goes on. The coordinator aborts the transaction after its time-out.
            exception.add_note(f"The transaction could not be aborted: {error}")


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Take note of a task's exception: the caller that would have raised it may be gone."""
    if not task.cancelled():
        task.exception()
