"""One transactional id: how each request changes it, and the responses."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.ending import End, end
from aioproducer.broker.transactions.states import (
    LAST_CLIENT_EPOCH,
    MAX_EPOCH,
    PREVIOUS_STATES,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from aioproducer.broker.transactions.transaction import Decision, IllegalTransitionError, Transaction

NOW = 1_700_000_000_000
TIMEOUT_MS = 60_000
PARTITIONS = (("t", 0), ("t", 1))


class Driver:
    """One transactional id; its writes succeed at once."""

    def __init__(self, state: TransactionState = TransactionState.EMPTY, *, epoch: int = 5, **fields: object) -> None:
        has_partitions = state in (
            TransactionState.ONGOING,
            TransactionState.PREPARE_COMMIT,
            TransactionState.PREPARE_ABORT,
        )
        values: dict[str, object] = {
            "partitions": frozenset(PARTITIONS) if has_partitions else frozenset(),
            "start_ms": -1 if state is TransactionState.EMPTY else NOW - 1000,
            "last_update_ms": NOW - 1000,
            "previous_producer_id": 100,
            **fields,
        }
        metadata = TransactionMetadata(100, epoch, TIMEOUT_MS, state, **values)  # type: ignore[arg-type]  # by name
        self.transaction = Transaction("id", metadata, is_logged=True)
        self.now = NOW
        self._ids = itertools.count(101)

    @property
    def metadata(self) -> TransactionMetadata:
        return self.transaction.metadata

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return self.metadata.producer

    def allocate(self) -> int:
        return next(self._ids)

    def initialize(self, expected: ProducerIdAndEpoch | None = None) -> Decision:
        return self.transaction.initialize(TIMEOUT_MS, expected, self.allocate, self.now)

    def initialized(self, expected: ProducerIdAndEpoch | None = None) -> ProducerIdAndEpoch:
        self.write(self.initialize(expected))
        return self.producer

    def add(self, producer: ProducerIdAndEpoch | None = None, version: int = 2) -> Decision:
        return self.transaction.add_partitions(producer or self.producer, PARTITIONS, self.now, version)

    def end(
        self, producer: ProducerIdAndEpoch | None = None, *, commit: bool = True, version: int = 2, client: bool = True
    ) -> Decision:
        request = End(producer or self.producer, commit, version, is_from_client=client)
        return end(self.transaction, request, self.allocate, self.now)

    def write(self, decision: Decision) -> TransactionMetadata:
        assert not isinstance(decision, Code)
        self.transaction.apply(decision)
        return decision

    def complete(self) -> None:
        """Write the marker of every partition."""
        self.write(self.transaction.prepare_complete(self.now))

    def ended(self, *, commit: bool = True, version: int = 2) -> ProducerIdAndEpoch:
        self.write(self.end(commit=commit, version=version))
        self.complete()
        return self.producer

    def time_out(self, version: int = 2) -> None:
        """Let the coordinator abort the transaction after its timeout."""
        fence = self.transaction.fence()
        self.write(self.end(fence.producer, commit=False, version=version, client=False))
        self.complete()


def before(producer: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer.producer_id, producer.epoch - 1)


class TestInitProducerId:
    def test_a_new_id_begins_with_epoch_0(self) -> None:
        transaction = Transaction.new("id", 7, TIMEOUT_MS, NOW)
        decision = transaction.initialize(TIMEOUT_MS, None, lambda: 8, NOW)
        assert isinstance(decision, TransactionMetadata)
        assert (decision.producer, decision.last_producer_epoch) == ((7, 0), -1)

    def test_a_new_producer_gets_the_next_epoch_and_the_old_one_is_fenced(self) -> None:
        driver = Driver(epoch=5)
        assert driver.initialized() == (100, 6)
        assert driver.add(ProducerIdAndEpoch(100, 5)) == Code.PRODUCER_FENCED

    def test_a_producer_that_continues_gets_the_next_epoch(self) -> None:
        """KIP-360."""
        driver = Driver(epoch=5)
        assert driver.initialized(ProducerIdAndEpoch(100, 5)) == (100, 6)
        assert driver.metadata.last_producer_epoch == 5

    def test_a_repeated_request_gets_the_same_epoch(self) -> None:
        driver = Driver(epoch=5)
        driver.initialized(ProducerIdAndEpoch(100, 5))
        assert driver.initialized(ProducerIdAndEpoch(100, 5)) == (100, 6)

    def test_a_new_producer_in_between_fences_the_repeated_request(self) -> None:
        driver = Driver(epoch=5)
        driver.initialized(ProducerIdAndEpoch(100, 5))
        driver.initialized()
        assert driver.initialize(ProducerIdAndEpoch(100, 5)) == Code.PRODUCER_FENCED
        assert driver.initialize(ProducerIdAndEpoch(100, 6)) == Code.PRODUCER_FENCED

    @pytest.mark.parametrize("expected", [(99, 5), (100, 4), (100, 6), (101, 0)])
    def test_another_producer_is_fenced(self, expected: tuple[int, int]) -> None:
        assert Driver(epoch=5).initialize(ProducerIdAndEpoch(*expected)) == Code.PRODUCER_FENCED

    def test_an_exhausted_epoch_gets_a_new_id(self) -> None:
        driver = Driver(epoch=LAST_CLIENT_EPOCH)
        assert driver.initialized() == (101, 0)
        assert driver.metadata.previous_producer_id == 100

    def test_an_exhausted_producer_continues_and_may_repeat_its_request(self) -> None:
        driver = Driver(epoch=LAST_CLIENT_EPOCH)
        exhausted = driver.producer
        assert driver.initialized(exhausted) == (101, 0)
        assert driver.metadata.last_producer_epoch == LAST_CLIENT_EPOCH
        assert driver.initialized(exhausted) == (101, 0)

    def test_an_exhausted_id_and_another_epoch_fail_as_in_kafka(self) -> None:
        driver = Driver(epoch=LAST_CLIENT_EPOCH)
        assert driver.initialize(ProducerIdAndEpoch(100, 3)) == Code.UNKNOWN_SERVER_ERROR

    @pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
    def test_initialization_waits_for_a_transaction_that_is_ending(self, state: TransactionState) -> None:
        assert Driver(state).initialize() == Code.CONCURRENT_TRANSACTIONS

    @pytest.mark.parametrize("version", [1, 2])
    def test_an_ongoing_transaction_is_aborted_with_one_new_epoch(self, version: int) -> None:
        """KAFKA-19367: with KIP-890 the fence and the abort had raised the epoch twice."""
        driver = Driver(TransactionState.ONGOING, epoch=5)
        fence = driver.initialize()
        assert isinstance(fence, TransactionMetadata)
        assert (fence.state, fence.producer) == (TransactionState.PREPARE_EPOCH_FENCE, (100, 6))
        written = driver.write(driver.end(fence.producer, commit=False, version=version, client=False))
        assert (written.state, written.producer) == (TransactionState.PREPARE_ABORT, (100, 6))
        driver.complete()
        assert driver.initialized() == (100, 7)

    def test_a_fence_that_cannot_be_written_changes_nothing_and_may_be_repeated(self) -> None:
        driver = Driver(TransactionState.ONGOING, epoch=5)
        for _ in range(3):
            fence = driver.initialize()
            assert isinstance(fence, TransactionMetadata)
            decision = driver.end(fence.producer, commit=False, version=1, client=False)
            assert isinstance(decision, TransactionMetadata)
            assert decision.producer == (100, 6)
            driver.transaction.drop()
            assert driver.producer == (100, 5)


class TestPartitions:
    @pytest.mark.parametrize("state", [s for s in TransactionState if s.has_no_transaction])
    def test_the_first_partitions_begin_a_transaction(self, state: TransactionState) -> None:
        driver = Driver(state)
        written = driver.write(driver.add())
        assert (written.state, written.start_ms) == (TransactionState.ONGOING, NOW)
        assert written.partitions == set(PARTITIONS)

    def test_more_partitions_keep_the_start(self) -> None:
        driver = Driver(TransactionState.ONGOING)
        decision = driver.transaction.add_partitions(driver.producer, [("other", 3)], NOW, 2)
        written = driver.write(decision)
        assert (written.start_ms, written.partitions) == (NOW - 1000, {*PARTITIONS, ("other", 3)})

    def test_known_partitions_are_answered_at_once(self) -> None:
        assert Driver(TransactionState.ONGOING).add() == Code.NONE

    @pytest.mark.parametrize(
        ("producer", "code"),
        [
            ((99, 5), Code.INVALID_PRODUCER_ID_MAPPING),
            ((100, 4), Code.PRODUCER_FENCED),
            ((100, 6), Code.PRODUCER_FENCED),
        ],
    )
    def test_another_producer_may_not_add(self, producer: tuple[int, int], code: Code) -> None:
        driver = Driver(TransactionState.ONGOING)
        assert driver.add(ProducerIdAndEpoch(*producer)) == code
        assert driver.transaction.verify(ProducerIdAndEpoch(*producer), PARTITIONS) == code

    @pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
    def test_a_transaction_that_is_ending_accepts_no_partitions(self, state: TransactionState) -> None:
        driver = Driver(state)
        assert driver.add() == Code.CONCURRENT_TRANSACTIONS
        assert driver.transaction.verify(driver.producer, PARTITIONS) == Code.CONCURRENT_TRANSACTIONS

    def test_verification_has_a_code_for_each_partition(self) -> None:
        driver = Driver(TransactionState.ONGOING)
        found = driver.transaction.verify(driver.producer, [("t", 0), ("t", 7)])
        assert found == {("t", 0): Code.NONE, ("t", 7): Code.TRANSACTION_ABORTABLE}


S = TransactionState
NONE, FENCED, ITS, CT, MAPPING = (
    Code.NONE,
    Code.PRODUCER_FENCED,
    Code.INVALID_TXN_STATE,
    Code.CONCURRENT_TRANSACTIONS,
    Code.INVALID_PRODUCER_ID_MAPPING,
)
ENDS = "ends"


class TestEndTxnOfNewTransactions:
    """EndTxn of version 5 (KIP-890)."""

    @pytest.mark.parametrize(
        ("state", "commit", "repeated", "answer"),
        [
            (S.EMPTY, False, True, FENCED),
            (S.EMPTY, False, False, ENDS),
            (S.EMPTY, True, True, FENCED),
            (S.EMPTY, True, False, ITS),
            (S.COMPLETE_ABORT, False, True, NONE),
            (S.COMPLETE_ABORT, False, False, ENDS),
            (S.COMPLETE_ABORT, True, True, FENCED),
            (S.COMPLETE_ABORT, True, False, ITS),
            (S.COMPLETE_COMMIT, False, True, ITS),
            (S.COMPLETE_COMMIT, False, False, ENDS),
            (S.COMPLETE_COMMIT, True, True, NONE),
            (S.COMPLETE_COMMIT, True, False, ITS),
            (S.ONGOING, True, False, ENDS),
            (S.ONGOING, False, False, ENDS),
            (S.ONGOING, True, True, FENCED),
            (S.ONGOING, False, True, FENCED),
            (S.PREPARE_COMMIT, True, True, CT),
            (S.PREPARE_COMMIT, False, True, ITS),
            (S.PREPARE_COMMIT, True, False, FENCED),
            (S.PREPARE_ABORT, False, True, CT),
            (S.PREPARE_ABORT, True, True, ITS),
            (S.PREPARE_ABORT, False, False, FENCED),
        ],
    )
    def test_every_state_and_epoch_has_kafkas_response(
        self, state: S, commit: bool, repeated: bool, answer: object
    ) -> None:
        driver = Driver(state, epoch=5)
        decision = driver.end(before(driver.producer) if repeated else None, commit=commit)
        assert (ENDS if isinstance(decision, TransactionMetadata) else decision) == answer

    def test_each_end_raises_the_epoch(self) -> None:
        driver = Driver(S.ONGOING, epoch=5)
        written = driver.write(driver.end())
        assert (written.state, written.producer, written.last_producer_epoch) == (S.PREPARE_COMMIT, (100, 6), 5)
        driver.complete()
        assert (driver.metadata.state, driver.producer) == (S.COMPLETE_COMMIT, (100, 6))
        assert driver.metadata.partitions == frozenset()

    def test_an_abort_without_a_transaction_is_logged(self) -> None:
        driver = Driver(S.EMPTY, epoch=5)
        written = driver.write(driver.end(commit=False))
        assert (written.state, written.start_ms, written.partitions) == (S.PREPARE_ABORT, NOW, frozenset())
        assert driver.transaction.unmarked == set()

    def test_a_commit_that_races_the_coordinators_abort_is_fenced(self) -> None:
        """KAFKA-20785: INVALID_TXN_STATE is fatal to producers, PRODUCER_FENCED is not to all."""
        driver = Driver(S.ONGOING, epoch=5)
        committing = driver.producer
        driver.time_out()
        assert driver.end(committing) == Code.PRODUCER_FENCED
        assert driver.end(committing, commit=False) == Code.NONE

    def test_a_commit_that_races_an_abort_over_a_rollover_is_fenced(self) -> None:
        driver = Driver(S.ONGOING, epoch=LAST_CLIENT_EPOCH)
        committing = driver.producer
        driver.time_out()
        assert driver.producer == (101, 0)
        assert driver.end(committing) == Code.PRODUCER_FENCED
        assert driver.end(committing, commit=False) == Code.NONE

    def test_a_rollover_gives_a_new_id(self) -> None:
        """KAFKA-18660."""
        driver = Driver(S.ONGOING, epoch=LAST_CLIENT_EPOCH)
        ending = driver.producer
        written = driver.write(driver.end())
        assert (written.producer, written.next_producer_id) == ((100, MAX_EPOCH), 101)
        assert written.producer_afterwards == (101, 0)
        driver.complete()
        assert driver.producer == (101, 0)
        assert (driver.metadata.previous_producer_id, driver.metadata.next_producer_id) == (100, -1)
        assert driver.metadata.last_producer_epoch == LAST_CLIENT_EPOCH
        assert driver.end(ending) == Code.NONE
        assert driver.end(ending, version=1) == Code.INVALID_PRODUCER_ID_MAPPING
        driver.write(driver.add())
        assert driver.ended() == (101, 1)

    def test_a_rollover_survives_a_reload(self) -> None:
        driver = Driver(S.ONGOING, epoch=LAST_CLIENT_EPOCH)
        ending = driver.producer
        driver.ended()
        loaded = replace(driver.metadata, last_producer_epoch=-1)
        driver.transaction = Transaction("id", loaded, is_logged=True)
        assert driver.end(ending) == Code.NONE

    def test_a_fence_of_an_exhausted_epoch_gives_a_new_id(self) -> None:
        """KAFKA-20090: with the greatest epoch and no next id, the transaction would never have ended."""
        driver = Driver(S.ONGOING, epoch=LAST_CLIENT_EPOCH)
        fence = driver.initialize()
        assert isinstance(fence, TransactionMetadata)
        assert fence.producer_epoch == MAX_EPOCH
        driver.write(driver.end(fence.producer, commit=False, client=False))
        driver.complete()
        assert driver.producer == (101, 0)
        assert driver.initialized() == (101, 1)

    def test_a_transaction_with_the_greatest_epoch_can_be_aborted(self) -> None:
        """KAFKA-20090: an earlier release may have left it in the log."""
        driver = Driver(S.ONGOING, epoch=MAX_EPOCH)
        driver.time_out()
        assert (driver.metadata.state, driver.producer) == (S.COMPLETE_ABORT, (101, 0))


class TestEndTxnOfOldTransactions:
    """EndTxn up to version 4."""

    @pytest.mark.parametrize(
        ("state", "commit", "answer"),
        [
            (S.EMPTY, False, ITS),
            (S.EMPTY, True, ITS),
            (S.COMPLETE_ABORT, False, NONE),
            (S.COMPLETE_ABORT, True, ITS),
            (S.COMPLETE_COMMIT, False, ITS),
            (S.COMPLETE_COMMIT, True, NONE),
            (S.ONGOING, True, ENDS),
            (S.ONGOING, False, ENDS),
            (S.PREPARE_COMMIT, True, CT),
            (S.PREPARE_COMMIT, False, ITS),
            (S.PREPARE_ABORT, False, CT),
            (S.PREPARE_ABORT, True, ITS),
        ],
    )
    def test_every_state_and_epoch_has_kafkas_response(self, state: S, commit: bool, answer: object) -> None:
        driver = Driver(state, epoch=5)
        assert driver.end(before(driver.producer), commit=commit, version=0) == FENCED
        assert driver.end(ProducerIdAndEpoch(100, 6), commit=commit, version=0) == FENCED
        assert driver.end(ProducerIdAndEpoch(99, 5), commit=commit, version=0) == MAPPING
        decision = driver.end(commit=commit, version=0)
        assert (ENDS if isinstance(decision, TransactionMetadata) else decision) == answer

    def test_the_epoch_does_not_change(self) -> None:
        driver = Driver(S.ONGOING, epoch=5)
        assert driver.ended(version=0) == (100, 5)

    def test_a_timeout_fences_the_producer(self) -> None:
        driver = Driver(S.ONGOING, epoch=5)
        committing = driver.producer
        driver.time_out(version=1)
        assert driver.producer == (100, 6)
        assert driver.end(committing, version=0) == FENCED

    def test_a_repeated_commit_of_the_other_version_is_refused(self) -> None:
        """Measured on Apache Kafka: only the version that ended the transaction recognizes the repetition."""
        driver = Driver(S.ONGOING, epoch=5)
        ending = driver.producer
        driver.ended(version=2)
        assert driver.end(ending, version=0) == FENCED
        driver = Driver(S.ONGOING, epoch=5)
        ending = driver.producer
        driver.ended(version=0)
        assert driver.end(ending, version=2) == ITS

    def test_a_late_retry_commits_the_next_transaction(self) -> None:
        """A trap of the old protocol that KIP-890 closes."""
        driver = Driver(S.ONGOING, epoch=5)
        ending = driver.producer
        driver.ended(version=0)
        driver.write(driver.add(version=0))
        assert isinstance(driver.end(ending, version=0), TransactionMetadata)
        driver = Driver(S.ONGOING, epoch=5)
        ending = driver.producer
        driver.ended(version=2)
        driver.write(driver.add())
        assert driver.end(ending) == FENCED

    def test_a_fence_of_an_exhausted_epoch_needs_no_new_id_yet(self) -> None:
        driver = Driver(S.ONGOING, epoch=LAST_CLIENT_EPOCH)
        driver.time_out(version=1)
        assert driver.producer == (100, MAX_EPOCH)
        assert driver.initialized() == (101, 0)


class TestPending:
    def test_one_transition_at_a_time(self) -> None:
        driver = Driver(S.ONGOING)
        driver.end()
        assert driver.end() == CT
        assert driver.end(version=0) == CT
        assert driver.initialize() == CT
        assert driver.transaction.add_partitions(driver.producer, [("x", 0)], NOW, 2) == CT
        assert not driver.transaction.has_timed_out(NOW + 10**9)
        assert not driver.transaction.has_expired(NOW + 10**12, 1)

    def test_a_failed_write_changes_nothing(self) -> None:
        driver = Driver(S.ONGOING)
        before_ = driver.metadata
        driver.end()
        driver.transaction.drop()
        assert driver.metadata is before_
        assert isinstance(driver.end(), TransactionMetadata)

    def test_verification_ignores_a_pending_change(self) -> None:
        driver = Driver(S.ONGOING)
        driver.end()
        assert driver.transaction.verify(driver.producer, [("t", 0)]) == {("t", 0): NONE}

    @pytest.mark.parametrize("state", list(S))
    def test_every_illegal_transition_raises(self, state: S) -> None:
        for wanted in S:
            driver = Driver(state)
            if state in PREVIOUS_STATES[wanted]:
                driver.transaction._begin(state=wanted)
                continue
            with pytest.raises(IllegalTransitionError):
                driver.transaction._begin(state=wanted)
            assert driver.transaction.pending is None

    def test_only_the_pending_state_can_be_applied(self) -> None:
        driver = Driver(S.ONGOING)
        with pytest.raises(IllegalTransitionError):
            driver.transaction.apply(driver.metadata)
        fence = driver.transaction.fence()
        with pytest.raises(IllegalTransitionError):
            driver.transaction.apply(fence)


class TestTime:
    def test_a_transaction_times_out_after_its_timeout(self) -> None:
        driver = Driver(S.ONGOING, start_ms=NOW)
        assert not driver.transaction.has_timed_out(NOW + TIMEOUT_MS)
        assert driver.transaction.has_timed_out(NOW + TIMEOUT_MS + 1)

    def test_a_transaction_of_an_external_coordinator_never_times_out(self) -> None:
        driver = Driver(S.ONGOING, start_ms=0)
        driver.transaction.metadata = replace(driver.metadata, timeout_ms=2**31 - 1)
        assert not driver.transaction.has_timed_out(2**60)

    @pytest.mark.parametrize("state", list(S))
    def test_ids_without_a_transaction_expire(self, state: S) -> None:
        driver = Driver(state, last_update_ms=NOW)
        assert not driver.transaction.has_expired(NOW + 9, 10)
        assert driver.transaction.has_expired(NOW + 10, 10) == state.has_no_transaction


def test_states_have_kafkas_names() -> None:
    assert [state.label for state in S] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
