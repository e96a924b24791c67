"""The state machine of a transactional producer (Kafka's ``TransactionManager``), without IO.

The producer calls ``begin_init``, ``begin``, ``begin_commit``, ``begin_abort`` and ``send_offsets``. The accumulator
reports the partitions of new batches, and the sender the failures. The sender asks ``poll`` for the request to send,
and returns its response to ``answered``, or the end of its connection to ``disconnected``.

There are two generations of the protocol. In the first one (TV1) a partition joins the transaction by
AddPartitionsToTxn before its first batch, and a group by AddOffsetsToTxn. In the second one (TV2, KIP-890) the brokers
add both when the first batch or offset arrives, and each end of a transaction returns the epoch of the next. The
cluster's finalized feature ``transaction.version`` decides, at the end of a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from aioproducer._common.texts import counted
from aioproducer.core.batching.producer_state import PartitionSequences, ProducerState, TransactionPartitions
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.core.transactions.answers import Answer, answer_to
from aioproducer.core.transactions.request_queue import RequestQueue
from aioproducer.core.transactions.requests import (
    TOPIC_IDS_FROM,
    CoordinatorType,
    RequestKind,
    Result,
    TransactionalRequest,
    add_offsets_message,
    add_partitions_message,
    commit_offsets_message,
    end_message,
    init_producer_id_message,
)
from aioproducer.core.transactions.states import (
    ABORTABLE_ERROR,
    ABORTING,
    COMMITTING,
    FATAL_ERROR,
    IN_TRANSACTION,
    INITIALIZING,
    NEXT_STATES,
    READY,
    UNINITIALIZED,
    TransactionState,
)
from aioproducer.error_codes import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NONE,
    UNKNOWN_TOPIC_ID,
)
from aioproducer.errors import (
    BrokerError,
    ClusterAuthorizationError,
    CommitFailedError,
    KafkaError,
    ProducerFencedError,
    ProtocolError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionalIdAuthorizationError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
    TransactionStateError,
    UnsupportedVersionError,
    broker_error,
    error_class,
)
from aioproducer.offsets import ConsumerGroupMetadata, OffsetAndMetadata
from aioproducer.protocol import Request, Response
from aioproducer.protocol.messages.groups import FindCoordinatorResponse
from aioproducer.protocol.messages.producer_ids import InitProducerIdResponse
from aioproducer.protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    TxnOffsetCommitResponse,
)
from aioproducer.record import TopicPartition

TRANSACTION_FEATURE = "transaction.version"
# The generation in which brokers add partitions themselves (KIP-890, "TV2").
NEWER_GENERATION = 2
# The previous transaction is about to end at its coordinator: the wait for that, in seconds (Kafka's
# ADD_PARTITIONS_RETRY_BACKOFF_MS).
CONCURRENT_BACKOFF = 0.02
# The first request of a transaction waits this long, in seconds, after the end of the transaction before. A coordinator
# answers EndTxn before it has written the markers, which takes it about a millisecond. A request that comes earlier is
# held back for 20 ms: by the broker of the data (add.partitions.to.txn.retry.backoff.ms), or by the wait above.
SETTLING = 0.001
# Since this version of InitProducerId a producer may ask for the next epoch (KIP-360).
EPOCH_BUMP_FROM = 3


# Failures of a batch after which the producer cannot continue. Others are cured by an abort.
_FATAL_FAILURES: tuple[type[BrokerError], ...] = (
    ClusterAuthorizationError,
    TransactionalIdAuthorizationError,
    ProducerFencedError,
    UnsupportedVersionError,
    error_class(INVALID_PRODUCER_ID_MAPPING),
)


class TransactionManager(TransactionPartitions):
    """The transactions of one producer, one after the other.

    Args:
        producer_state: holds the producer id and epoch, and the partitions' sequences.
        timeout_ms: ``transaction.timeout.ms``.
        retry_backoff: the waits between attempts of a transactional request.
        topic_id: returns the id of a topic if metadata has it.
    """

    def __init__(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer_state: ProducerState,
        retry_backoff: ExponentialBackoff,
        random: Random,
        topic_id: Callable[[str], bytes | None] = lambda topic: None,
    ) -> None:
        self.transactional_id = transactional_id
        self.state = UNINITIALIZED
        self.error: KafkaError | None = None
        """The first failure of this transaction, or the fatal error."""
        self.version = 1
        """The generation of the protocol in this transaction: 1, or 2 (KIP-890)."""
        self.queue = RequestQueue(retry_backoff, random)
        """The requests that wait or are in flight, and their coordinators."""
        self._timeout_ms = timeout_ms
        self._topic_id = topic_id
        self._producer_state = producer_state
        self._features_epoch = -1
        self._known_version = 1
        self._coordinator_bumps_epochs = True
        self._epoch_bump_required = False
        # The coordinator knows of the transaction, as far as this producer can tell: it has to be ended there.
        self._started = False
        self._new_partitions: dict[TopicPartition, PartitionSequences] = {}
        self._adding_partitions: dict[TopicPartition, PartitionSequences] = {}
        self._partition_count = 0
        # Loop time from which the markers of the transaction before are expected to be written. Until the first pass
        # after it, partitions do not join the next transaction.
        self._settled_at = float("-inf")
        self._is_settling = False
        # Of INITIALIZING, COMMITTING or ABORTING.
        self.transition: Result | None = None
        self.on_state: Callable[[], None] | None = None
        """Called after each change of the state."""

    # Questions

    @property
    def is_newer_generation(self) -> bool:
        """Whether the brokers add partitions and offsets to this transaction (KIP-890)."""
        return self.version >= NEWER_GENERATION

    @property
    def is_completing(self) -> bool:
        return self.state is COMMITTING or self.state is ABORTING

    @property
    def accepts_records(self) -> bool:
        return self.state is IN_TRANSACTION

    @property
    def drops_unsent(self) -> bool:
        """Whether batches that were never sent have to fail: the transaction will not be committed."""
        return self.state is ABORTING or self.state is ABORTABLE_ERROR

    @property
    def is_idle(self) -> bool:
        """Whether no transactional request waits or is in flight."""
        return not (self.queue.waiting or self._new_partitions or self.queue.in_flight is not None)

    @property
    def producer_identity(self) -> tuple[int, int]:
        """The producer id and epoch of the next, or the open, transaction."""
        return self._producer_state.producer_id, self._producer_state.producer_epoch

    def identity(self) -> str:
        """Return transactional id, producer id and epoch, for texts."""
        state = self._producer_state
        ids = f"producer id {state.producer_id}, epoch {state.producer_epoch}"
        return f"transactional id {self.transactional_id!r}, {ids}"

    def unsent_error(self) -> KafkaError:
        """Return the error of a record that was not sent before its transaction failed or was aborted."""
        why = "was aborted" if self.error is None else f"failed ({self.error})"
        return TransactionAbortedError(f"the record was not sent: its transaction {why}")

    def why_not(self, call: str) -> KafkaError:
        """Return the error of a call that the state does not allow."""
        if self.state in (ABORTABLE_ERROR, FATAL_ERROR):
            assert self.error is not None
            return self.error.fresh()
        if call == "send" and self.state in (UNINITIALIZED, INITIALIZING):
            return TransactionStateError(
                "this producer has a transactional id, and no transaction is open: send inside "
                "`async with producer.transaction():`"
            )
        if self.state is UNINITIALIZED and call == "begin_transaction":
            return TransactionStateError("begin_transaction needs a producer id: await init_transactions() first")
        if self.state is READY or self.state is UNINITIALIZED:
            if call == "send":
                return TransactionEndedError(
                    "this producer has a transactional id, and no transaction is open: send inside "
                    "`async with producer.transaction():`, or call begin_transaction() first"
                )
            return TransactionStateError(f"{call} needs an open transaction: call begin_transaction() first")
        if self.is_completing:
            return TransactionEndedError(
                f"the transaction is {self.state.value}: it takes no more records, offsets or calls. Begin another one "
                "when that has ended"
            )
        return TransactionStateError(f"{call} is not possible while the producer is {self.state.value}")

    # Calls of the producer

    def begin_init(self) -> Result:
        """Request a producer id, which aborts an open transaction of an earlier producer of this transactional id.

        The result ends with it. While it is requested already, the same result is returned.

        Raises:
            TransactionStateError: the producer is initialized.
            KafkaError: the fatal error.
        """
        if self.state is INITIALIZING and self.transition is not None:
            return self.transition
        if self.state is ABORTABLE_ERROR or self.state is FATAL_ERROR:
            raise self.why_not("init_transactions")
        if self.state is not UNINITIALIZED:
            raise TransactionStateError("the producer is initialized already: init_transactions() is called once")
        result = self._begin_transition(INITIALIZING)
        self._enqueue(RequestKind.INIT_PRODUCER_ID, result, self._init_message(-1, -1))
        return result

    def begin(self) -> None:
        """Begin a transaction: records that are sent from now on belong to it.

        Raises:
            TransactionStateError: the producer is not initialized, or a transaction is open.
            KafkaError: the error that has to be answered by an abort, or the fatal error.
        """
        if self.state is not READY:
            if self.state is IN_TRANSACTION:
                raise TransactionStateError(
                    "a transaction is open: commit or abort it first (one producer has one transaction at a time; a "
                    "TransactionPool has several)"
                )
            raise self.why_not("begin_transaction")
        self._enter(IN_TRANSACTION)
        self._producer_state.begin_transaction()
        self._partition_count = 0

    def begin_commit(self) -> Result:
        """Commit the transaction when all its records have been delivered; the result ends with it.

        Raises:
            TransactionStateError: no transaction is open.
            KafkaError: the first failure of the transaction, or the fatal error.
        """
        if self.state is not IN_TRANSACTION:
            raise self.why_not("commit_transaction")
        result = self._begin_transition(COMMITTING)
        self._enqueue_end(RequestKind.COMMIT)
        return result

    def begin_abort(self) -> Result:
        """Abort the transaction: records that were never sent fail at once; the result ends with it.

        Raises:
            TransactionStateError: no transaction is open.
            KafkaError: the fatal error.
        """
        if self.state is not IN_TRANSACTION and self.state is not ABORTABLE_ERROR:
            raise self.why_not("abort_transaction")
        result = self._begin_transition(ABORTING)
        # No partition has to be added to a transaction that is aborted.
        self._new_partitions.clear()
        for request in self.queue.take_all():
            self._drop(request, TransactionEndedError("the transaction is aborted"))
        self._enqueue_end(RequestKind.ABORT)
        return result

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata) -> Result:
        """Let the group commit these offsets if the transaction commits; the result ends when the group has them.

        Raises:
            TransactionStateError: no transaction is open.
            KafkaError: the first failure of the transaction, or the fatal error.
        """
        if self.state is not IN_TRANSACTION:
            raise self.why_not("send_offsets_to_transaction")
        result = Result()
        if self.is_newer_generation:
            self._started = True
            self._enqueue_offsets(offsets, group, result)
            return result
        state = self._producer_state
        message = add_offsets_message(self.transactional_id, state.producer_id, state.producer_epoch, group.group_id)
        request = self._enqueue(RequestKind.ADD_OFFSETS, result, lambda version: message)
        request.offsets = dict(offsets)
        request.group = group
        return result

    def leave_open(self) -> tuple[int, int, int]:
        """Forget the open transaction, which another client ends; return its producer id, epoch and generation.

        Call it when all records are delivered and no request waits. ``begin_init`` or ``resume`` comes next.

        Raises:
            TransactionStateError: no transaction is open, or a request of it waits.
            KafkaError: the first failure of the transaction, or the fatal error.
        """
        if self.state is not IN_TRANSACTION:
            raise self.why_not("leave_open")
        if not self.is_idle:
            raise TransactionStateError("leave_open needs the end of all calls: await send_offsets first")
        state = self._producer_state
        facts = state.producer_id, state.producer_epoch, self.version
        self._started = False
        self._enter(UNINITIALIZED)
        return facts

    def resume(self, producer_id: int, producer_epoch: int) -> None:
        """Continue with the producer id and epoch of another producer of this transactional id.

        Its epoch must be one in which nothing was written, as sequences begin with 0: that of the response to EndTxn
        (second generation) or InitProducerId.

        Raises:
            TransactionStateError: a transaction is open or ends, an epoch is requested, or the producer has failed.
        """
        if self.state is not UNINITIALIZED and self.state is not READY:
            raise TransactionStateError(f"resume is not possible while the producer is {self.state.value}")
        self._producer_state.set_producer_id(producer_id, producer_epoch)
        self._epoch_bump_required = False
        self.version = self._known_version
        if self.state is not READY:
            self._enter(READY)

    def begin_new_epoch(self) -> Result:
        """Request the next epoch of the current producer id (KIP-360); the result ends with it.

        Fails for good if another producer of the transactional id has taken over. (A coordinator aborts the open
        transaction of that one all the same.)

        Raises:
            TransactionStateError: the producer is not initialized, or a transaction is open.
            KafkaError: the fatal error.
        """
        if self.state is not READY:
            raise self.why_not("new_epoch")
        state = self._producer_state
        result = self._begin_transition(INITIALIZING)
        self._enqueue(RequestKind.BUMP_EPOCH, Result(), self._init_message(state.producer_id, state.producer_epoch))
        return result

    # Reports of the accumulator and the sender

    def partition_used(self, topic_partition: TopicPartition, sequences: PartitionSequences) -> None:
        """Add the partition of a new batch to the transaction."""
        if self.state is not IN_TRANSACTION and self.state is not COMMITTING:
            # The batch will fail: it was never sent, and the transaction will not be committed.
            return
        if self.is_newer_generation and not self._is_settling:
            self._join(sequences)
        elif topic_partition not in self._adding_partitions:
            self._new_partitions[topic_partition] = sequences

    def _join(self, sequences: PartitionSequences) -> None:
        self._started = True
        self._partition_count += 1
        self._producer_state.join_transaction(sequences)

    def record_failed(self, error: KafkaError) -> None:
        """Note that a record of the transaction has failed: it can only be aborted, if that cures the error."""
        if self.state is FATAL_ERROR:
            return
        if isinstance(error, _FATAL_FAILURES):
            self._fail(error)
            return
        if self.state is not IN_TRANSACTION and self.state is not COMMITTING:
            return
        if isinstance(error, BrokerError) and error.code == INVALID_TXN_STATE:
            abortable = TransactionAbortableError(f"the transaction has to be aborted: {error}")
            abortable.__cause__ = error
            error = abortable
        self._abortable(error, new_epoch=True)

    def features_known(self, finalized_epoch: int, version: int) -> None:
        """Receive the level of ``transaction.version`` (0 if it is not finalized) that a broker reports."""
        if finalized_epoch >= self._features_epoch:
            self._features_epoch = finalized_epoch
            self._known_version = NEWER_GENERATION if version >= NEWER_GENERATION else 1

    def coordinator_ready(self, init_producer_id_version: int) -> None:
        """Receive the highest version of InitProducerId that the coordinator of the transaction supports."""
        self._coordinator_bumps_epochs = init_producer_id_version >= EPOCH_BUMP_FROM

    def authentication_failed(self, error: KafkaError) -> None:
        """Fail what waits for a response, as no broker serves this client; the producer may try again."""
        if self.state is INITIALIZING and not self._is_bumping():
            self._back_to_uninitialized(error)
        elif self.state is IN_TRANSACTION or self.state is COMMITTING:
            self._abortable(error, new_epoch=True)

    def close(self, error: KafkaError) -> None:
        """Fail everything that has not ended, for good."""
        if self.state is not FATAL_ERROR:
            self._fail(error)

    # Requests

    def settle(self, now: float) -> bool:
        """Let the partitions join that wait for the markers of the transaction before; return whether there were some.

        Call it in each pass: ``retry_at`` includes the end of their wait.
        """
        if not self._is_settling or now < self._settled_at:
            return False
        self._is_settling = False
        if not self.is_newer_generation:
            # They join by a request.
            return False
        joining, self._new_partitions = self._new_partitions, {}
        for sequences in joining.values():
            self._join(sequences)
        return bool(joining)

    def poll(self, now: float, has_incomplete: bool) -> TransactionalRequest | None:
        """Return the request to send now, or None; ``has_incomplete``: a record of the transaction has no outcome yet.

        One request is in flight at a time. The end of a transaction waits for all its records.
        """
        queue = self.queue
        if self._new_partitions and not self.is_newer_generation and not self._is_adding_partitions():
            self._enqueue_partitions()
        while (request := queue.first()) is not None:
            if self.state is ABORTABLE_ERROR or self.state is FATAL_ERROR:
                queue.remove(request)
                assert self.error is not None
                self._drop(request, self.error.fresh())
            elif self.state is ABORTING and request.kind.adds_to_transaction:
                # It was in flight when the abort began. Its retries would hold up the abort, perhaps for ever.
                queue.remove(request)
                self._drop(request, TransactionEndedError("the transaction is aborted"))
            elif request.ends_transaction and has_incomplete:
                return None
            elif request.ends_transaction and not self._started:
                queue.remove(request)
                self._transaction_ended(request)
            elif not queue.needs_lookup(request):
                return None if now < request.retry_at else request
        return None

    def retry_at(self) -> float:
        """Return the loop time at which the next request or partition that waits may go on; infinity if none waits."""
        request = self.queue.first()
        at = float("inf") if request is None else request.retry_at
        return min(at, self._settled_at) if self._is_settling and self._new_partitions else at

    def disconnected(self, request: TransactionalRequest, error: KafkaError, now: float) -> None:
        """Receive that the request in flight ends without a response."""
        self.queue.ended(request)
        if isinstance(error, (UnsupportedVersionError, ProtocolError)):
            self._fail_request(request, error, Answer.FATAL)
            return
        request.has_unknown_attempt = True
        self.queue.forget_coordinator(request)
        self.queue.retry(request, now)

    def answered(self, request: TransactionalRequest, response: Response, now: float) -> None:
        """Receive the response to the request in flight; after a fatal error it changes nothing."""
        self.queue.ended(request)
        if self.state is FATAL_ERROR:
            return
        kind = request.kind
        if kind is RequestKind.FIND_COORDINATOR:
            assert isinstance(response, FindCoordinatorResponse)
            self._coordinator_answered(request, response, now)
        elif kind is RequestKind.ADD_PARTITIONS:
            assert isinstance(response, AddPartitionsToTxnResponse)
            self._partitions_answered(request, response, now)
        elif kind is RequestKind.COMMIT_OFFSETS:
            assert isinstance(response, TxnOffsetCommitResponse)
            self._offsets_answered(request, response, now)
        else:
            assert isinstance(response, (InitProducerIdResponse, AddOffsetsToTxnResponse, EndTxnResponse))
            if response.error_code != NONE:
                self._failed(request, broker_error(response.error_code), now)
            elif isinstance(response, InitProducerIdResponse):
                self._producer_id_answered(request, response, now)
            elif isinstance(response, EndTxnResponse):
                if response.producer_id >= 0:
                    self._producer_state.set_producer_id(response.producer_id, response.producer_epoch)
                self._settled_at = now + SETTLING
                self._is_settling = True
                self._transaction_ended(request)
            else:
                self._started = True
                assert request.group is not None
                self._enqueue_offsets(request.offsets, request.group, request.result)

    # Responses

    def _coordinator_answered(
        self, request: TransactionalRequest, response: FindCoordinatorResponse, now: float
    ) -> None:
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code != NONE:
            self._failed(request, broker_error(found.error_code, found.error_message), now)
            return
        self.queue.coordinators[request.coordinator] = request.key, found.node_id
        request.result.end()

    def _producer_id_answered(
        self, request: TransactionalRequest, response: InitProducerIdResponse, now: float
    ) -> None:
        if response.producer_id < 0 or response.producer_epoch < 0:
            self.queue.retry(request, now)
            return
        self._producer_state.set_producer_id(response.producer_id, response.producer_epoch)
        self._enter(READY)
        self._epoch_bump_required = False
        self.error = None
        self.version = self._known_version
        self._end_transition(None)

    def _partitions_answered(
        self, request: TransactionalRequest, response: AddPartitionsToTxnResponse, now: float
    ) -> None:
        codes = {
            TopicPartition(topic.name, result.partition_index): result.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }
        adding = self._adding_partitions
        for topic_partition in adding:
            codes.setdefault(topic_partition, -1)
        failures = {where: code for where, code in codes.items() if code != NONE}
        for where, code in failures.items():
            if answer_to(request.kind, code) is not Answer.ABORTABLE:
                # The code concerns the whole request.
                self._failed(request, _about(str(where), code), now)
                return
        self._adding_partitions = {}
        if failures:
            # The coordinator has begun the transaction if it has added one of them: only an abort ends it.
            self._started = self._started or len(failures) < len(codes)
            where, code = next(iter(failures.items()))
            more = f" (and {counted(len(failures) - 1, 'other partition')})" if len(failures) > 1 else ""
            self._abortable(_about(f"{where}{more} could not be added to the transaction", code), new_epoch=False)
            return
        for sequences in adding.values():
            self._join(sequences)
        request.result.end()

    def _offsets_answered(self, request: TransactionalRequest, response: TxnOffsetCommitResponse, now: float) -> None:
        answers: dict[Answer, tuple[TopicPartition, int]] = {}
        for topic in response.topics:
            for partition in topic.partitions:
                where = TopicPartition(request.names_by_id.get(topic.topic_id, topic.name), partition.partition_index)
                if partition.error_code == NONE:
                    request.offsets.pop(where, None)
                elif partition.error_code == UNKNOWN_TOPIC_ID:
                    # The topic was re-created, or the coordinator does not know it yet: the name is as good.
                    request.by_topic_id = False
                    answers.setdefault(Answer.RETRY, (where, partition.error_code))
                else:
                    answers.setdefault(answer_to(request.kind, partition.error_code), (where, partition.error_code))
        if not request.offsets:
            request.result.end()
            return
        retries = (Answer.RETRY, Answer.FIND_COORDINATOR)
        final = next((answer for answer in answers if answer not in retries), None)
        if final is not None:
            where, code = answers[final]
            self._fail_request(request, _about(str(where), code), final)
            return
        if Answer.FIND_COORDINATOR in answers:
            self.queue.forget_coordinator(request)
        self.queue.retry(request, now)

    def _failed(self, request: TransactionalRequest, error: BrokerError, now: float) -> None:
        answer = answer_to(request.kind, error.code)
        if answer is Answer.FIND_COORDINATOR:
            self.queue.forget_coordinator(request)
            self.queue.retry(request, now)
        elif answer is Answer.RETRY:
            self.queue.retry(request, now)
            # The previous transaction is still being ended, which takes a few milliseconds.
            if error.code == CONCURRENT_TRANSACTIONS and not self._partition_count:
                request.retry_at = min(request.retry_at, now + CONCURRENT_BACKOFF)
        else:
            self._fail_request(request, error, answer)

    def _fail_request(self, request: TransactionalRequest, error: KafkaError, answer: Answer) -> None:
        """End a request, and with it what the answer says."""
        if answer is Answer.UNAUTHORIZED and request.kind is RequestKind.INIT_PRODUCER_ID:
            self._back_to_uninitialized(error)
            return
        if answer is Answer.ENDED_BEFORE:
            self._epoch_bump_required = True
            self._transaction_ended(request)
            return
        if answer is Answer.FENCED:
            error = ProducerFencedError(
                f"Another producer has taken over the transactional id {self.transactional_id!r}: this one "
                f"({self.identity()}) cannot continue; close it"
            )
        elif answer is Answer.NOT_COMMITTED:
            cause = error
            error = CommitFailedError(
                f"The group rejects the offsets of the transaction, as its member has been replaced: {cause}. Abort "
                "the transaction, and read again from the group's committed offsets"
            )
            error.__cause__ = cause
        if answer in (Answer.ABORTABLE, Answer.ABORTABLE_WITH_NEW_EPOCH, Answer.NOT_COMMITTED):
            self._abortable(error, new_epoch=answer is Answer.ABORTABLE_WITH_NEW_EPOCH)
            if self.state is not FATAL_ERROR:
                request.result.end(error.fresh())
            return
        if request.kind is RequestKind.COMMIT and request.has_unknown_attempt:
            error = self.outcome_unknown(error)
        self._fail(error)
        request.result.end(error.fresh())

    def outcome_unknown(self, cause: KafkaError | None) -> TransactionOutcomeUnknownError:
        """Return the error of a commit that was sent, if this producer cannot find out its outcome."""
        because = "" if cause is None else f" ({cause})"
        error = TransactionOutcomeUnknownError(
            f"The outcome of a commit is unknown{because}: {self.identity()}. Read the transaction's partitions with "
            "isolation.level=read_committed to find out whether its records are there, before you send them again"
        )
        error.transactional_id = self.transactional_id
        error.producer_id = self._producer_state.producer_id
        error.producer_epoch = self._producer_state.producer_epoch
        error.__cause__ = cause
        return error

    # States

    def _enter(self, state: TransactionState) -> None:
        if state not in NEXT_STATES[self.state]:
            raise AssertionError(f"a producer that is {self.state.value} cannot become {state.value}")
        self.state = state
        if self.on_state is not None:
            self.on_state()

    def _begin_transition(self, state: TransactionState) -> Result:
        self._enter(state)
        self.transition = Result()
        return self.transition

    def _end_transition(self, error: KafkaError | None) -> None:
        transition, self.transition = self.transition, None
        if transition is not None:
            transition.end(error)

    def _enqueue_end(self, kind: RequestKind) -> None:
        state = self._producer_state
        message = end_message(
            self.transactional_id, state.producer_id, state.producer_epoch, kind is RequestKind.COMMIT
        )
        self._enqueue(kind, Result(), lambda version: message)

    def _transaction_ended(self, request: TransactionalRequest) -> None:
        """Prepare the next transaction: this one is committed or aborted at its coordinator."""
        if self._known_version > self.version:
            # Partitions that joined under the first generation must not count as added under the second.
            self._epoch_bump_required = True
        self._started = False
        self._new_partitions.clear()
        self._adding_partitions = {}
        request.result.end()
        if self._epoch_bump_required:
            state = self._producer_state
            self._enter(INITIALIZING)
            self._enqueue(RequestKind.BUMP_EPOCH, Result(), self._init_message(state.producer_id, state.producer_epoch))
            return
        self.version = self._known_version
        self._enter(READY)
        self.error = None
        self._end_transition(None)

    def _is_adding_partitions(self) -> bool:
        """Whether a request adds partitions, or waits to be sent again; its answer has the codes of these alone."""
        queue = self.queue
        return queue.in_flight is not None or any(request.kind is RequestKind.ADD_PARTITIONS for request in queue)

    def _is_bumping(self) -> bool:
        return any(request.kind is RequestKind.BUMP_EPOCH for request in self.queue)

    def _abortable(self, error: KafkaError, *, new_epoch: bool) -> None:
        if self.state is ABORTABLE_ERROR or self.state is ABORTING:
            return
        if not self.is_newer_generation:
            if not self._coordinator_bumps_epochs and new_epoch:
                # The sequences of the partitions have a gap, and brokers before Kafka 2.5 give no new epoch.
                self._fail(error)
                return
            self._epoch_bump_required = self._coordinator_bumps_epochs
        self.error = error
        self._enter(ABORTABLE_ERROR)
        self._new_partitions.clear()
        for request in self.queue.take_all():
            self._drop(request, error.fresh())
        self._end_transition(error.fresh())

    def _drop(self, request: TransactionalRequest, error: KafkaError) -> None:
        """End a request that is not sent any more. An attempt without a response may have begun the transaction."""
        if request.kind.adds_to_transaction and request.has_unknown_attempt:
            self._started = True
        request.result.end(error)

    def _fail(self, error: KafkaError) -> None:
        """Enter the fatal state: everything that has not ended fails."""
        if any(
            request.kind is RequestKind.COMMIT and (request is self.queue.in_flight or request.has_unknown_attempt)
            for request in self.queue
        ):
            error = self.outcome_unknown(error)
        self.error = error
        self._enter(FATAL_ERROR)
        self._producer_state.fail(error)
        self._new_partitions.clear()
        self._adding_partitions = {}
        for request in self.queue.take_all():
            request.result.end(error.fresh())
        self._end_transition(error.fresh())

    def _back_to_uninitialized(self, error: KafkaError) -> None:
        self._enter(UNINITIALIZED)
        self.queue.take_all()
        self._end_transition(error.fresh())

    # Requests that wait

    def _enqueue(
        self,
        kind: RequestKind,
        result: Result,
        build: Callable[[int], Request[Response]],
        group_id: str | None = None,
    ) -> TransactionalRequest:
        """Let a new request wait: for the coordinator of a group, by default for that of the transaction."""
        key = self.transactional_id if group_id is None else group_id
        coordinator = CoordinatorType.TRANSACTION if group_id is None else CoordinatorType.GROUP
        request = TransactionalRequest(kind, key, coordinator, self.version, result, build)
        request.retry_at = self._settled_at
        self.queue.add(request)
        return request

    def _init_message(self, producer_id: int, producer_epoch: int) -> Callable[[int], Request[Response]]:
        message = init_producer_id_message(self.transactional_id, self._timeout_ms, producer_id, producer_epoch)
        return lambda version: message

    def _enqueue_partitions(self) -> None:
        state = self._producer_state
        self._adding_partitions.update(self._new_partitions)
        self._new_partitions.clear()
        message = add_partitions_message(
            self.transactional_id, state.producer_id, state.producer_epoch, list(self._adding_partitions)
        )
        self._enqueue(RequestKind.ADD_PARTITIONS, Result(), lambda version: message)

    def _enqueue_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata, result: Result
    ) -> None:
        state = self._producer_state
        left = dict(offsets)
        transactional_id, producer_id, epoch = self.transactional_id, state.producer_id, state.producer_epoch
        ids = {topic: self._topic_id(topic) for topic, _ in left}

        def message(version: int) -> Request[Response]:
            known = (
                {topic: topic_id for topic, topic_id in ids.items() if topic_id} if version >= TOPIC_IDS_FROM else {}
            )
            request.names_by_id = {topic_id: topic for topic, topic_id in known.items()}
            return commit_offsets_message(transactional_id, producer_id, epoch, left, group, known)

        request = self._enqueue(RequestKind.COMMIT_OFFSETS, result, message, group.group_id)
        request.offsets = left
        request.by_topic_id = self.is_newer_generation and all(ids.values())


def _about(what: str, code: int) -> BrokerError:
    """Return the error of one item of a response; its text begins with the item."""
    error = broker_error(code)
    error.args = (f"{what}: {error}",)
    return error
