"""Any requests of any producers in any order, with writes that succeed, fail or take time."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
from aioproducer.broker.transactions.transaction import Decision, Transaction

PARTITIONS = [("t", index) for index in range(3)]


class Machine(RuleBasedStateMachine):
    """One transactional id, its log, and all of its producers."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = itertools.count(1)
        self.now = 1000
        # Near the last epoch, so that rollovers happen.
        first = TransactionMetadata(
            next(self.ids), LAST_CLIENT_EPOCH - 3, 100, TransactionState.EMPTY, previous_producer_id=0
        )
        self.transaction = Transaction("id", first, is_logged=True)
        self.log = [first]
        self.producers = [first.producer]
        self.granted = {first.producer}
        self.is_completing = False

    # Requests

    @rule(index=st.integers(0, 20), knows=st.booleans())
    def initialize(self, index: int, knows: bool) -> None:
        expected = self.producers[-1 - index % len(self.producers)] if knows else None
        decision = self._decided(self.transaction.initialize(100, expected, lambda: next(self.ids), self.now))
        if isinstance(decision, TransactionMetadata) and decision.state is TransactionState.PREPARE_EPOCH_FENCE:
            self._abort(decision.producer)

    @rule(index=st.integers(0, 20), partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def add(self, index: int, partitions: set[tuple[str, int]]) -> None:
        producer = self.producers[-1 - index % len(self.producers)]
        decision = self._decided(self.transaction.add_partitions(producer, partitions, self.now, 2))
        current = self.transaction.metadata
        if decision == Code.NONE or isinstance(decision, TransactionMetadata):
            assert producer == current.producer

    @rule(index=st.integers(0, 3), commit=st.booleans(), version=st.sampled_from([0, 2]))
    def end(self, index: int, commit: bool, version: int) -> None:
        producer = self.producers[-1 - index % len(self.producers)]
        state = self.transaction.metadata.state
        decision = self._decided(
            end(self.transaction, End(producer, commit, version), lambda: next(self.ids), self.now)
        )
        if decision == Code.NONE:
            assert state is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
        if isinstance(decision, TransactionMetadata):
            assert producer == self.transaction.metadata.producer
            assert not commit or state is TransactionState.ONGOING

    @precondition(lambda self: self.transaction.has_timed_out(self.now))
    @rule()
    def time_out(self) -> None:
        self._abort(self._decided_fence())

    def _decided_fence(self) -> ProducerIdAndEpoch:
        return self.transaction.fence().producer

    def _abort(self, producer: ProducerIdAndEpoch) -> None:
        request = End(producer, False, 2, is_from_client=False)
        decision = end(self.transaction, request, lambda: next(self.ids), self.now)
        assert isinstance(decision, TransactionMetadata), decision

    # Outcomes of writes

    @precondition(lambda self: self.transaction.pending is not None)
    @rule()
    def replicate(self) -> None:
        new = self.transaction.pending
        assert new is not None
        previous = self.transaction.metadata
        assert previous.state in PREVIOUS_STATES[new.state]
        self.transaction.apply(new)
        self.log.append(new)
        if new.state.is_ending:
            self.transaction.prepare_complete(self.now)
        elif new.producer not in self.granted:
            self.granted.add(new.producer)
            self.producers.append(new.producer)

    @precondition(lambda self: self.transaction.pending is not None and not self.transaction.metadata.state.is_ending)
    @rule()
    def fail_to_write(self) -> None:
        self.transaction.drop()

    @rule()
    def reload(self) -> None:
        """Another node takes over with the state in the log."""
        self.transaction = Transaction("id", self.log[-1], is_logged=True)
        if self.transaction.metadata.state.is_ending:
            self.transaction.prepare_complete(self.now)

    @rule(passed=st.integers(1, 80))
    def pass_time(self, passed: int) -> None:
        self.now += passed

    def _decided(self, decision: Decision) -> Decision:
        if isinstance(decision, Code):
            # A refusal changes nothing.
            assert self.transaction.metadata is self.log[-1]
        else:
            assert self.transaction.pending is decision
        return decision

    # Invariants

    @invariant()
    def the_cache_is_the_last_replicated_record(self) -> None:
        assert self.transaction.metadata is self.log[-1]

    @invariant()
    def producers_only_rise(self) -> None:
        for older, newer in itertools.pairwise(self.log):
            assert newer.producer >= older.producer
            assert newer.producer_epoch <= MAX_EPOCH

    @invariant()
    def no_client_ever_has_the_greatest_epoch(self) -> None:
        assert all(producer.epoch <= LAST_CLIENT_EPOCH for producer in self.producers)

    @invariant()
    def partitions_belong_to_transactions(self) -> None:
        current = self.transaction.metadata
        assert current.state is TransactionState.ONGOING or current.state.is_ending or not current.partitions
        assert self.transaction.unmarked <= current.partitions


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
