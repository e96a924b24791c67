"""One node's replica of a partition: its log, and for a leader the state of followers and of the high watermark.

The rules are those of Kafka's ``kafka.cluster.Partition`` and ``kafka.cluster.Replica``. Nothing here waits. A caller
that waits for a change of a partition adds a callback with ``add_watcher``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, TypeAlias

from aioproducer.broker.image import PartitionState
from aioproducer.broker.log import UnexpectedAppendOffsetError
from aioproducer.broker.replicas.follower import UNKNOWN_OFFSET, Follower
from aioproducer.broker.replicas.host import PartitionHost
from aioproducer.errors import (
    FencedLeaderEpochError,
    KafkaError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownLeaderEpochError,
)

if TYPE_CHECKING:
    from aioproducer.broker.log import AppendInfo, Log, VerificationGuard
    from aioproducer.protocol import Buffer

logger = logging.getLogger(__name__)

NO_EPOCH = -1

Origin: TypeAlias = Literal["client", "coordinator"]
"""The origin of a batch. Sequence numbers in batches of a coordinator are not checked."""

Watcher: TypeAlias = Callable[[], None]
"""Called after a partition has changed; it must not raise."""


class Partition:
    """A replica of a partition on one node; leader, follower, or neither while the partition has no leader."""

    def __init__(self, host: PartitionHost, state: PartitionState, log: Log, high_watermark: int = 0) -> None:
        """``high_watermark`` is the one in the node's checkpoint. ``apply`` makes the replica a leader or follower."""
        self.topic = state.topic
        self.topic_id = state.topic_id
        self.index = state.index
        self.log = log
        self.state = state
        """The last state of the partition that the controller has sent to this node."""
        self.leader_epoch = NO_EPOCH
        self.leader_epoch_start_offset = UNKNOWN_OFFSET
        """The log's end when this node became the leader of ``leader_epoch``; -1 if it is not the leader."""
        self.is_leader = False
        self.is_removed = False
        """Whether it was deleted, created again under another topic id, or moved to other nodes."""
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        """The offset below which all records are committed: each member of the ISR has them."""
        self.followers: dict[int, Follower] = {}
        """The followers by node id, if this node is the leader."""
        self._host = host
        self._proposed: tuple[int, ...] = ()
        """Replicas that are proposed for the ISR; they count as members already."""
        self._is_proposing = False
        self._watchers: dict[Watcher, None] = {}
        self._flush_failure: tuple[int, KafkaError] | None = None
        self._rolled_to = UNKNOWN_OFFSET
        """The base offset of the segment before which a flush of all segments was requested."""

    def __repr__(self) -> str:
        part = "leader" if self.is_leader else "follower"
        return (
            f"Partition({self.topic}-{self.index}, {part}, epoch {self.leader_epoch}, "
            f"[{self.log_start_offset}, {self.high_watermark}, {self.log_end_offset}])"
        )

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of the records that readers of committed transactions may see."""
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def isr(self) -> list[int]:
        return self.state.isr

    @property
    def maximal_isr(self) -> set[int]:
        """The ISR and the proposed members, which may be in it before this node is notified (KIP-497)."""
        return {*self.state.isr, *self._proposed}

    @property
    def effective_min_isr(self) -> int:
        """min.insync.replicas, or the number of replicas if that is smaller."""
        return min(self.log.config.min_insync_replicas, len(self.state.replicas))

    @property
    def low_watermark(self) -> int:
        """The smallest log start offset of all living replicas, which DeleteRecords waits for.

        Raises:
            NotLeaderOrFollowerError: this node does not lead the partition.
        """
        self._check_leader()
        low = self.log.log_start_offset
        for node_id, follower in self.followers.items():
            if follower.log_start_offset < low and self._host.eligible_epoch(node_id) is not None:
                low = follower.log_start_offset
        return low

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Compare the leader epoch of a client with the current one; -1 is not checked.

        Raises:
            FencedLeaderEpochError: the client's epoch is older.
            UnknownLeaderEpochError: the client's epoch is newer, and this node was not notified of it yet.
        """
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpochError("The leader epoch in the request is older than the epoch on the broker.")
        raise UnknownLeaderEpochError("The leader epoch in the request is newer than the epoch on the broker.")

    def diverging(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Return where a reader's log diverges from this one: (epoch, its end offset here); ``None`` if it does not.

        ``last_fetched_epoch`` is the leader epoch of the last batch before ``fetch_offset`` in the reader's log
        (KIP-595); -1 is not checked.

        Raises:
            OffsetOutOfRangeError: the epoch is unknown here, or ``fetch_offset`` is below the log start offset.
        """
        if last_fetched_epoch == NO_EPOCH:
            return None
        epoch, end_offset = self.log.end_offset_for_epoch(last_fetched_epoch)
        if epoch == NO_EPOCH or end_offset == UNKNOWN_OFFSET:
            raise OffsetOutOfRangeError(
                f"Could not determine the end offset of the last fetched epoch {last_fetched_epoch} from the request"
            )
        if fetch_offset < self.log.log_start_offset:
            raise OffsetOutOfRangeError(
                f"Received request for offset {fetch_offset} for partition {self.topic}-{self.index}, but we only "
                f"have log segments in the range {self.log_start_offset} to {self.log_end_offset}."
            )
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None

    def add_watcher(self, callback: Watcher) -> None:
        """Call ``callback()`` after each change of high watermark, log end, log start or leadership.

        A callback that is added twice is called once.
        """
        self._watchers[callback] = None

    def remove_watcher(self, callback: Watcher) -> None:
        """Remove ``callback``, if it was added."""
        self._watchers.pop(callback, None)

    @property
    def watcher_count(self) -> int:
        return len(self._watchers)

    def wake(self) -> None:
        """Call all watchers."""
        if self._watchers:
            for watcher in tuple(self._watchers):
                watcher()

    def apply(self, state: PartitionState) -> bool:
        """Apply a state of the controller. Return whether the leader epoch is new.

        A state that is older than the current one is dropped.
        """
        if state.partition_epoch < self.state.partition_epoch or state.leader_epoch < self.leader_epoch:
            return False
        self.state = state
        self._proposed = ()
        is_new_epoch = state.leader_epoch > self.leader_epoch
        if state.leader == self._host.node_id:
            self._lead(is_new_epoch)
        else:
            self.is_leader = False
            self.leader_epoch_start_offset = UNKNOWN_OFFSET
            self.followers = {}
        self.leader_epoch = state.leader_epoch
        self._advance_high_watermark()
        self.wake()
        return is_new_epoch

    def _lead(self, is_new_epoch: bool) -> None:
        was_leader = self.is_leader
        self.is_leader = True
        others = [node_id for node_id in self.state.replicas if node_id != self._host.node_id]
        self.followers = {node_id: self.followers.get(node_id) or Follower() for node_id in others}
        if not is_new_epoch:
            return
        # Followers may have batches of epochs that this log does not have. They truncate them by the end of the epoch
        # before this one, so this epoch is recorded even before its first batch.
        self.log.assign_leader_epoch(self.state.leader_epoch)
        self.leader_epoch_start_offset = self.log.log_end_offset
        now = self._host.now()
        for node_id, follower in self.followers.items():
            in_sync = node_id in self.state.isr
            follower.last_caught_up_time = now if in_sync else -math.inf
            if was_leader:
                follower.last_fetch_leader_end = self.log.log_end_offset
                follower.last_fetch_time = now if in_sync else -math.inf

    def remove(self) -> None:
        """Mark the replica as removed from this node, and call all watchers a last time."""
        self.is_removed = True
        self.is_leader = False
        self.followers = {}
        self.wake()
        self._watchers.clear()

    def append(
        self, records: Buffer, *, acks: int, origin: Origin = "client", guard: VerificationGuard | None = None
    ) -> AppendInfo:
        """Write a batch to the log of the leader.

        With ``acks`` -1 nothing is written if the ISR is too small already. ``replicated`` returns whether the batch is
        committed. A batch that begins a transaction needs the ``guard`` of ``begin_verification``.

        Raises:
            NotLeaderOrFollowerError: this node does not lead the partition.
            NotEnoughReplicasError: the ISR is smaller than min.insync.replicas and ``acks`` is -1.
            KafkaError: as ``Log.append_as_leader``.
        """
        self._check_leader()
        if acks == -1:
            self._check_min_isr()
        end_before = self.log.log_end_offset
        info = self.log.append_as_leader(records, self.leader_epoch, origin=origin, guard=guard)
        if not info.is_duplicate:
            self._appended(end_before)
        return info

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> AppendInfo:
        """Write the marker that ends a producer's transaction. ``replicated`` returns whether it is committed.

        Raises:
            NotLeaderOrFollowerError: this node does not lead the partition.
            NotEnoughReplicasError: the ISR is smaller than min.insync.replicas.
            InvalidProducerEpochError: the marker is of an older epoch, or of a transaction that ended before.
            TransactionCoordinatorFencedError: a newer coordinator has ended a transaction of the producer.
            KafkaStorageError: the marker could not be written.
        """
        self._check_leader()
        self._check_min_isr()
        end_before = self.log.log_end_offset
        info = self.log.append_marker(
            producer_id,
            producer_epoch,
            self.leader_epoch,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )
        self._appended(end_before)
        return info

    def begin_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool
    ) -> VerificationGuard | None:
        """Return the guard for a batch that begins a transaction; ``None`` if one is open.

        The guard may be used after the transaction's coordinator has verified the transaction.

        Raises:
            NotLeaderOrFollowerError: this node does not lead the partition.
            InvalidProducerEpochError: a newer epoch of the producer is known.
        """
        self._check_leader()
        return self.log.begin_verification(producer_id, sequence, epoch, supports_epoch_bump=supports_epoch_bump)

    def _check_min_isr(self) -> None:
        if len(self.state.isr) < self.effective_min_isr:
            raise NotEnoughReplicasError(
                f"The size of the current ISR {sorted(self.state.isr)} is insufficient to satisfy the min.isr "
                f"requirement of {self.effective_min_isr} for partition {self.topic}-{self.index}"
            )

    def _appended(self, end_before: int) -> None:
        """Update followers, flushes and high watermark after an append at ``end_before``."""
        for follower in self.followers.values():
            if follower.log_end_offset == end_before:
                # It had the whole log up to now, however long ago its last Fetch was.
                follower.last_caught_up_time = self._host.now()
        if self.log.flush_due:
            self._host.flush_soon(self)
        else:
            self._flush_rolled()
        self._advance_high_watermark()
        self.wake()

    def replicated(self, end_offset: int) -> bool:
        """Return whether a batch that was written with acks -1 and ends before ``end_offset`` is committed.

        Raises:
            NotLeaderOrFollowerError: this node is no longer the leader; another leader may have the batch or not.
            NotEnoughReplicasAfterAppendError: the batch is committed, but the ISR is below min.insync.replicas.
            KafkaStorageError: the log could not be flushed to disk, and flush.messages requires it.
        """
        self._check_leader()
        if self.high_watermark < end_offset:
            self._check_flush(end_offset)
            return False
        if len(self.maximal_isr) < self.effective_min_isr:
            raise NotEnoughReplicasAfterAppendError(
                "Messages are written to the log, but to fewer in-sync replicas than required."
            )
        return True

    def durable(self, end_offset: int) -> bool:
        """Return whether a batch that ends before ``end_offset`` is flushed as flush.messages requires.

        Raises:
            KafkaStorageError: it could not be flushed to disk.
        """
        if not self.log.flush_due or self.log.recovery_point >= end_offset:
            return True
        self._check_flush(end_offset)
        return False

    def flushed(self) -> None:
        """Record that the log was flushed up to its recovery point."""
        self._flush_failure = None
        self._advance_high_watermark()
        self.wake()

    def flush_failed(self, error: KafkaError) -> None:
        """Record a failed flush: the batches above the log's recovery point are not acknowledged."""
        self._flush_failure = (self.log.log_end_offset, error)
        self.wake()

    def follower_fetched(
        self,
        replica_id: int,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int = -1,
        *,
        leader_end_offset: int | None = None,
    ) -> None:
        """Record a Fetch of a follower, which has all records before ``fetch_offset``.

        Call this once for each partition in a follower's Fetch that is valid and has not diverged. This raises the
        high watermark, and proposes the follower for the ISR if it is in sync. ``leader_end_offset`` is the log's end
        when the Fetch was read, by default the current one.

        Raises:
            NotLeaderOrFollowerError: this node does not lead the partition, or the follower was restarted since it sent
                the Fetch (KIP-903).
            UnknownLeaderEpochError: ``replica_id`` is none of the partition's replicas.
        """
        self._check_leader()
        follower = self.follower(replica_id)
        known_epoch = self._host.eligible_epoch(replica_id)
        if broker_epoch != -1 and known_epoch is not None and known_epoch > broker_epoch:
            raise NotLeaderOrFollowerError(
                f"Received stale fetch state update. broker epoch={broker_epoch} vs expected={known_epoch}"
            )
        end_before, start_before = follower.log_end_offset, follower.log_start_offset
        leader_end = self.log.log_end_offset if leader_end_offset is None else leader_end_offset
        follower.fetched(fetch_offset, log_start_offset, self._host.now(), leader_end, broker_epoch)
        if replica_id not in self.state.isr:
            self._maybe_expand_isr(replica_id, follower)
        has_moved = follower.log_end_offset != end_before and self._advance_high_watermark()
        if has_moved or log_start_offset != start_before:
            self.wake()

    def follower(self, replica_id: int) -> Follower:
        """Return the state of a follower.

        Raises:
            UnknownLeaderEpochError: ``replica_id`` is none of the partition's replicas. It may become one soon, so the
                follower should retry.
        """
        follower = self.followers.get(replica_id)
        if follower is None:
            raise UnknownLeaderEpochError(
                f"Replica {replica_id} is not recognized as a valid replica of {self.topic}-{self.index} in leader "
                f"epoch {self.leader_epoch} with partition epoch {self.state.partition_epoch}"
            )
        return follower

    def shrink_isr(self) -> None:
        """Propose an ISR without the followers that have lagged for too long."""
        if not self.is_leader or self._is_proposing or len(self.state.isr) < 2:
            return
        now, end = self._host.now(), self.log.log_end_offset
        lagging = [
            node_id
            for node_id, follower in self.followers.items()
            if node_id in self.state.isr and not follower.is_caught_up(end, now, self._host.lag_time_max)
        ]
        if lagging:
            logger.info("%r: removing the lagging replicas %s from the ISR %s", self, lagging, self.state.isr)
            self._propose([node_id for node_id in self.state.isr if node_id not in lagging])

    def delete_records(self, offset: int) -> int:
        """Move the log's start to ``offset``, or to the high watermark for -1. Return the low watermark.

        Raises:
            NotLeaderOrFollowerError: this node does not lead the partition.
            PolicyViolationError: the topic's cleanup.policy does not contain delete.
            OffsetOutOfRangeError: ``offset`` is above the high watermark, or below -1.
        """
        self._check_leader()
        if "delete" not in self.log.config.cleanup_policy:
            raise PolicyViolationError(
                f"Records of partition {self.topic}-{self.index} can not be deleted due to the configured policy"
            )
        target = self.high_watermark if offset == -1 else offset
        if target < 0:
            raise OffsetOutOfRangeError(f"The offset {target} for partition {self.topic}-{self.index} is not valid")
        if target > self.high_watermark:
            raise OffsetOutOfRangeError(
                f"Cannot increment the log start offset to {target} of partition {self.topic}-{self.index} since it is "
                f"larger than the high watermark {self.high_watermark}"
            )
        if target > self.log.log_start_offset:
            self.log.advance_log_start_offset(target)
            self.wake()
        return self.low_watermark

    def append_fetched(self, records: Buffer, high_watermark: int, log_start_offset: int) -> None:
        """Append the records of a Fetch, and apply the leader's high watermark and log start offset.

        Raises:
            KafkaError: as ``Log.append_as_follower``.
        """
        before = self.log_end_offset, self.high_watermark, self.log_start_offset
        if len(records):
            try:
                self.log.append_as_follower(records)
            except UnexpectedAppendOffsetError as error:
                # After DeleteRecords the leader's log may begin within a batch, and the first fetched batch is that
                # whole batch.
                is_empty = self.log_start_offset == self.log_end_offset
                if not (is_empty and error.first_offset < self.log_end_offset <= error.last_offset):
                    raise
                self.truncate_fully_and_start_at(error.first_offset)
                self.log.append_as_follower(records)
            self._flush_rolled()
        if log_start_offset > self.log_start_offset:
            self.log.advance_log_start_offset(min(log_start_offset, self.log_end_offset))
        committed = min(high_watermark, self.log_end_offset)
        self.high_watermark = max(self.high_watermark, committed, self.log_start_offset)
        if before != (self.log_end_offset, self.high_watermark, self.log_start_offset):
            self.wake()

    def truncate_to_leader(self, epoch: int, end_offset: int) -> None:
        """Truncate records that the leader does not have.

        ``epoch`` is the last common epoch or an earlier one, and ends at ``end_offset`` in the leader's log. The next
        Fetch shows whether more must be truncated (Kafka's AbstractFetcherThread.getOffsetTruncationState).
        """
        own_epoch, own_end_offset = self.log.end_offset_for_epoch(epoch)
        if end_offset == UNKNOWN_OFFSET:
            target = self.high_watermark
        elif own_epoch == NO_EPOCH:
            target = end_offset
        elif own_epoch != epoch:
            target = own_end_offset
        else:
            target = min(own_end_offset, end_offset)
        self.truncate_to(min(target, self.log_end_offset))

    def truncate_to(self, offset: int) -> None:
        """Truncate the records from ``offset`` on."""
        if offset < self.high_watermark:
            logger.warning("%r: truncated to %d, below the high watermark", self, offset)
        self.log.truncate_to(offset)
        self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
        self.wake()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop all records, as the leader's log begins behind the end of this one."""
        self.log.truncate_fully_and_start_at(offset)
        self.high_watermark = offset
        self.wake()

    def _check_leader(self) -> None:
        if not self.is_leader:
            raise NotLeaderOrFollowerError(
                f"Leader not local for partition {self.topic}-{self.index} on broker {self._host.node_id}"
            )

    def _flush_rolled(self) -> None:
        """Request a flush of the segments before the active one, as Kafka does after each roll.

        It is requested once for each roll; after a failure the next roll requests it again.
        """
        log = self.log
        if log.rolled_segments_unflushed and log.active_base_offset != self._rolled_to:
            self._rolled_to = log.active_base_offset
            self._host.flush_soon(self)

    def _check_flush(self, end_offset: int) -> None:
        if self._flush_failure is not None and self.log.recovery_point < end_offset <= self._flush_failure[0]:
            raise self._flush_failure[1].fresh()

    def _advance_high_watermark(self) -> bool:
        """Raise the high watermark to the offset that every member of the ISR has (Kafka's maybeIncrementLeaderHW).

        Followers that have caught up but are not in the ISR yet count as well; otherwise they might never reach a high
        watermark that keeps rising. It does not rise while the ISR is below min.insync.replicas (KIP-966).
        """
        if not self.is_leader or len(self.state.isr) < self.effective_min_isr:
            return False
        log = self.log
        end = log.log_end_offset
        # If flush.messages requires a flush, this node has only flushed records.
        committed = log.recovery_point if log.flush_due else end
        if self.followers:
            now = self._host.now()
            maximal_isr = self.maximal_isr
            for node_id, follower in self.followers.items():
                if follower.log_end_offset < committed and (
                    node_id in maximal_isr
                    or (
                        follower.is_caught_up(end, now, self._host.lag_time_max)
                        and self._is_eligible(node_id, follower)
                    )
                ):
                    committed = follower.log_end_offset
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def _is_eligible(self, node_id: int, follower: Follower) -> bool:
        """Return whether the controller would accept the follower in the ISR, as far as this node knows."""
        known_epoch = self._host.eligible_epoch(node_id)
        return known_epoch is not None and follower.broker_epoch in (-1, known_epoch)

    def _maybe_expand_isr(self, node_id: int, follower: Follower) -> None:
        """Propose a follower for the ISR if it has all committed records and all records of earlier epochs.

        The second condition matters after an election. Committed records may be above the high watermark that the new
        leader knows, and a member of the ISR must have them.
        """
        if (
            not self._is_proposing
            and follower.log_end_offset >= self.high_watermark
            and follower.log_end_offset >= self.leader_epoch_start_offset
            and self._is_eligible(node_id, follower)
        ):
            self._proposed = (node_id,)
            self._propose([*self.state.isr, node_id])

    def _propose(self, isr: Iterable[int]) -> None:
        self._is_proposing = True
        try:
            state = self._host.alter_isr(self.state, list(isr))
        except KafkaError as error:
            # The controller decides at once, so a rejected proposal has changed nothing. Either a newer state is about
            # to arrive here, or the follower is gone.
            logger.debug("%r: ISR change rejected: %s", self, error)
        else:
            self.apply(state)
        finally:
            self._is_proposing = False
            self._proposed = ()
