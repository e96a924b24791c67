"""Compiled. One assigned partition: its state, positions and prefetched data. The package docstring has the states."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from aioproducer.core.fetching.reset import OffsetReset
from aioproducer.core.metadata.cluster import NO_EPOCH, NO_LEADER
from aioproducer.core.requests.retry import Attempts

if TYPE_CHECKING:
    from aioproducer.core.fetching.buffer import FetchedBatches
    from aioproducer.core.fetching.memory import FetchBuffer
    from aioproducer.core.fetching.records import ConsumerRecord
    from aioproducer.errors import KafkaError
    from aioproducer.record import TopicPartition

NO_REPLICA = -1


class FetchState(Enum):
    """The states of an assigned partition."""

    INITIALIZING = "initializing"
    RESETTING = "resetting"
    VALIDATING = "validating"
    FETCHING = "fetching"
    FAILED = "failed"
    UNASSIGNED = "unassigned"


_ANY = frozenset(FetchState) - {FetchState.INITIALIZING}

NEXT_STATES: Mapping[FetchState, frozenset[FetchState]] = {
    FetchState.INITIALIZING: _ANY,
    FetchState.RESETTING: _ANY,
    FetchState.VALIDATING: _ANY,
    FetchState.FETCHING: _ANY,
    FetchState.FAILED: _ANY | {FetchState.INITIALIZING},
    FetchState.UNASSIGNED: frozenset(),
}
"""The states that may follow each state. An error before the first position leads back to INITIALIZING."""


class FetchPosition(NamedTuple):
    """The offset of the next record, and the leader epoch of the record before it; -1 if it is unknown."""

    offset: int
    epoch: int = NO_EPOCH


def position_behind_record(record: ConsumerRecord) -> FetchPosition:
    """Return the position behind a record."""
    epoch = record.leader_epoch
    return position_at(record.offset + 1, NO_EPOCH if epoch is None else epoch)


def position_at(offset: int, epoch: int) -> FetchPosition:
    """Return ``FetchPosition(offset, epoch)`` without the Python function that is its own ``__new__``."""
    return tuple.__new__(FetchPosition, (offset, epoch))


class AssignedPartition:
    """A partition that the consumer reads.

    Args:
        attempts: the backoff after errors of this partition.
        memory: counts the records that are decoded and not returned yet.
    """

    __slots__ = (
        "_failing_since",
        "_last_processed",
        "_last_returned",
        "_memory",
        "_position",
        "_processed",
        "attempts",
        "buffered",
        "decoded",
        "error",
        "failing_for",
        "failure",
        "fetch_position",
        "high_watermark",
        "in_flight",
        "is_error_final",
        "is_held",
        "is_looked_up",
        "is_missing",
        "is_paused_by_caller",
        "last_stable_offset",
        "leader",
        "leader_epoch",
        "log_start_offset",
        "name",
        "read_replica",
        "read_replica_until",
        "ready",
        "ready_position",
        "recreations",
        "reset",
        "resume_state",
        "revision",
        "state",
        "stop",
        "topic_id",
    )

    def __init__(self, name: TopicPartition, attempts: Attempts, memory: FetchBuffer, revision: int = 0) -> None:
        self.name: Final = name
        self.attempts: Final = attempts
        self.state = FetchState.INITIALIZING
        self.revision = revision
        # ``position`` and ``processed``, unless they are behind these records.
        self._position: FetchPosition | None = None
        self._processed: FetchPosition | None = None
        self._last_returned: ConsumerRecord | None = None
        self._last_processed: ConsumerRecord | None = None
        self.fetch_position: FetchPosition | None = None
        """The next record to request."""
        self.reset: OffsetReset | None = None
        """In RESETTING: the offset that is looked up."""
        self.error: KafkaError | None = None
        """In FAILED: the error that is raised to the caller."""
        self.is_error_final = False
        """In FAILED: whether only a seek ends the state."""
        self.resume_state = FetchState.FETCHING
        """In FAILED: the state that follows if the error may pass."""
        self.is_paused_by_caller = False
        self.is_held = False
        """Whether a group is about to take the partition away, or has not handed it over yet."""
        self.in_flight = NO_LEADER
        """The node with a Fetch request that includes the partition."""
        self.is_looked_up = False
        """Whether ListOffsets or OffsetForLeaderEpoch is in flight for the partition."""
        self.is_missing = False
        """Whether metadata says that the topic does not exist. Its positions must not become those of a new topic."""
        self.topic_id: bytes | None = None
        self.recreations = 0
        """How often the topic was deleted and created again."""
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.read_replica = NO_REPLICA
        self.read_replica_until = -math.inf
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.buffered: deque[FetchedBatches] = deque()
        """Prefetched batches."""
        self.ready: deque[ConsumerRecord] = deque()
        """Deserialized records for the caller; a cancelled call leaves them here."""
        self.stop: int | None = None
        """The offset before which reading ends; None for ever."""
        self.failure: KafkaError | None = None
        """The last error that is tried again, until a request succeeds."""
        self.failing_for = 0.0
        """Seconds from the first to the last of these errors."""
        self._failing_since: float | None = None
        self._memory = memory
        self.decoded = 0
        """Bytes of decoded records, until no decoded record is left."""
        self.ready_position: FetchPosition | None = None
        """The position behind ``ready``, and behind skipped records and batches without records for the caller."""

    def __repr__(self) -> str:
        return f"<{self.name} {self.state.value}, position {self.position}, revision {self.revision}>"

    def _become(self, state: FetchState) -> None:
        if state not in NEXT_STATES[self.state]:
            raise AssertionError(f"{self.name}, {self.state.value}, cannot become {state.value}")
        self.state = state
        if state is not FetchState.FAILED:
            self.error = None
        if state is not FetchState.RESETTING:
            self.reset = None

    def _revise(self) -> None:
        """Let the responses to earlier requests be ignored, and drop prefetched data."""
        self.revision += 1
        self.is_looked_up = False
        self.drop_buffered()

    @property
    def position(self) -> FetchPosition | None:
        """The next record for the caller."""
        if self._last_returned is not None:
            self._position, self._last_returned = position_behind_record(self._last_returned), None
        return self._position

    @position.setter
    def position(self, position: FetchPosition | None) -> None:
        self._position, self._last_returned = position, None

    @property
    def processed(self) -> FetchPosition | None:
        """Behind the last record that the caller has processed: it has requested the next one since."""
        if self._last_processed is not None:
            self._processed, self._last_processed = position_behind_record(self._last_processed), None
        return self._processed

    @processed.setter
    def processed(self, position: FetchPosition | None) -> None:
        self._processed, self._last_processed = position, None

    @property
    def is_paused(self) -> bool:
        """Whether records are neither requested nor returned now."""
        return self.is_held or self.is_paused_by_caller

    def is_full(self) -> bool:
        """Whether the partition must be read before its node gets a request.

        That is with half of its share: the next response arrives while the other half is read.
        """
        waiting = 0
        for batches in self.buffered:
            waiting += batches.left
        return 2 * waiting > self._memory.share

    @property
    def is_fetched(self) -> bool:
        """Whether everything before ``stop`` was fetched."""
        return self.stop is not None and self.fetch_position is not None and self.fetch_position.offset >= self.stop

    @property
    def is_finished(self) -> bool:
        """Whether everything before ``stop`` was returned."""
        return self.is_fetched and not (self.buffered or self.ready)

    @property
    def has_position(self) -> bool:
        """Whether the position is known, and not being looked up."""
        return self.position is not None and self.state is not FetchState.RESETTING

    def drop_buffered(self) -> None:
        """Drop prefetched data; the records that were not returned are requested again."""
        while self.buffered:
            self.buffered.pop().drop()
        self.ready.clear()
        self._release_decoded()
        self.fetch_position = self.ready_position = self.position

    # Records

    def hold_decoded(self, size: int) -> None:
        """Count the bytes of records that were decoded."""
        self.decoded += size
        self._memory.decoded += size

    def _release_decoded(self) -> None:
        """Count no decoded records: none of them is left."""
        if self.decoded and not (self.buffered and self.buffered[0].raw):
            self._memory.release_decoded(self.decoded)
            self.decoded = 0

    def passed(self, position: FetchPosition) -> None:
        """Move behind records that are ready, skipped, or not for the caller."""
        self.ready_position = position
        if not self.ready:
            if self.processed == self.position:
                # No returned record is still being processed: there is nothing to wait for.
                self.processed = position
            self.position = position
            self._release_decoded()

    def returned(self, position: FetchPosition) -> None:
        """Move the position behind records that the caller gets without becoming ready before."""
        self.position = self.ready_position = position

    def take_one(self) -> ConsumerRecord:
        """Return the next ready record, and move the position behind it."""
        record = self.ready.popleft()
        if self.ready:
            self.position = position_behind_record(record)
        else:
            self.position = self.ready_position
            self._release_decoded()
        return record

    def take_next(self) -> ConsumerRecord:
        """Let the returned records count as processed, and return the next ready record, of at least two.

        The positions are derived from the records when they are asked for: an iteration calls this for each record.
        """
        record = self.ready.popleft()
        if self._last_returned is None:
            self._processed = self._position
        self._last_processed, self._last_returned = self._last_returned, record
        return record

    def take(self, limit: int) -> list[ConsumerRecord]:
        """Return at most ``limit`` ready records, and move the position behind them."""
        if len(self.ready) <= limit:
            records = list(self.ready)
            self.ready.clear()
            self.position = self.ready_position
            self._release_decoded()
            return records
        return [self.take_one() for _ in range(limit)]

    # Events

    def failed(self, error: KafkaError, now: float) -> None:
        """Keep an error that is tried again."""
        self.failure = error
        if self._failing_since is None:
            self._failing_since = now
        self.failing_for = now - self._failing_since

    def succeeded(self) -> None:
        """Forget the errors before: a request has succeeded."""
        self.failure = self._failing_since = None
        self.failing_for = 0.0

    def _continue_at(self, position: FetchPosition, *, in_progress: bool) -> None:
        self._revise()
        self.position = self.fetch_position = self.ready_position = position
        if not (in_progress and self.processed is not None and self.processed.offset <= position.offset):
            self.processed = position
        self.attempts.succeeded()

    def seek(self, position: FetchPosition, *, in_progress: bool = False) -> None:
        """Continue at a position that the caller or the group gave; validate it if its epoch is known.

        Args:
            in_progress: whether the caller still processes returned records. Then those behind ``processed`` do not
                count as processed, wherever reading continues.
        """
        self._continue_at(position, in_progress=in_progress)
        self._become(FetchState.VALIDATING if self._needs_validation() else FetchState.FETCHING)

    def truncated(self, position: FetchPosition, *, in_progress: bool) -> None:
        """Continue where the leader says that the log was truncated: this position is valid. As ``seek``."""
        self._continue_at(position, in_progress=in_progress)
        self._become(FetchState.FETCHING)

    def request_reset(self, reset: OffsetReset) -> None:
        """Look up the position."""
        self._revise()
        self.attempts.succeeded()
        self._become(FetchState.RESETTING)
        self.reset = reset

    def reset_found(self, position: FetchPosition, *, in_progress: bool) -> None:
        """Continue at the position that ListOffsets returned. As ``seek``."""
        assert self.state is FetchState.RESETTING
        self._continue_at(position, in_progress=in_progress)
        self._become(FetchState.FETCHING)

    def validated(self) -> None:
        """The log has not been truncated before the position."""
        assert self.state is FetchState.VALIDATING
        self.is_looked_up = False
        self.attempts.succeeded()
        self._become(FetchState.FETCHING)

    def fail(self, error: KafkaError, *, is_final: bool) -> None:
        """Raise ``error`` to the caller, after the prefetched records."""
        self.resume_state = self.state if self.state is not FetchState.FAILED else self.resume_state
        reset = self.reset
        self._become(FetchState.FAILED)
        self.reset = reset
        self.error = error
        self.is_error_final = is_final
        self.is_looked_up = False

    def resume_after_error(self) -> None:
        """Try again after an error that was raised and may pass."""
        assert self.state is FetchState.FAILED
        assert not self.is_error_final
        reset, state = self.reset, self.resume_state
        if state is FetchState.VALIDATING and not self._needs_validation():
            state = FetchState.FETCHING
        self._become(state)
        if state is FetchState.RESETTING:
            self.reset = reset

    def unassign(self) -> None:
        """End: drop prefetched data, and ignore the responses that still arrive."""
        self._revise()
        self._become(FetchState.UNASSIGNED)

    def leader_changed(self, leader: int, epoch: int) -> None:
        """Adopt the leader of the latest metadata; validate the position if its epoch is new (KIP-320).

        Prefetched data are dropped then: the new leader may lack them. Java drops them too.
        """
        is_new = epoch > self.leader_epoch
        if leader != self.leader or is_new:
            self.read_replica = NO_REPLICA
        self.leader = leader
        if is_new:
            self.leader_epoch = epoch
            if self.state is FetchState.FETCHING and self._needs_validation():
                self._revise()
                self._become(FetchState.VALIDATING)
            elif self.state is FetchState.FAILED and self.resume_state is FetchState.FETCHING:
                # The error is raised behind the prefetched data.
                self.resume_state = FetchState.VALIDATING
            elif self.state is FetchState.VALIDATING:
                self.revision += 1
                self.is_looked_up = False

    def _needs_validation(self) -> bool:
        position = self.position
        return position is not None and position.epoch >= 0 and self.leader_epoch >= 0

    def recreated(self, topic_id: bytes) -> None:
        """Forget everything that belongs to the deleted topic except the position."""
        self._revise()
        self.topic_id = topic_id
        self.recreations += 1
        self.processed = None
        self.leader, self.leader_epoch = NO_LEADER, NO_EPOCH
        self.read_replica = NO_REPLICA
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1

    # Nodes

    def fetch_node(self, now: float) -> int:
        """Return the node to fetch from: the read replica while it is valid, else the leader."""
        if self.read_replica == NO_REPLICA:
            return self.leader
        if now < self.read_replica_until:
            return self.read_replica
        self.read_replica = NO_REPLICA
        return self.leader

    def forget_read_replica(self) -> bool:
        """Return to the leader; return whether a read replica was in use."""
        was_used = self.read_replica != NO_REPLICA
        self.read_replica = NO_REPLICA
        return was_used

    def lag(self, *, is_committed: bool) -> int | None:
        """Return the number of offsets from the position to the end that the caller may read; None if unknown."""
        end = self.last_stable_offset if is_committed else self.high_watermark
        if end < 0 or self.position is None:
            return None
        return max(end - self.position.offset, 0)

    def lead(self) -> int | None:
        """Return the number of offsets from the beginning of the log to the position; None if unknown."""
        if self.log_start_offset < 0 or self.position is None:
            return None
        return max(self.position.offset - self.log_start_offset, 0)
