"""Planted bugs, which prove the checkers: each is found by some seed.

Each function here is one bug. It replaces the method or function that its decorator names, and is called with the
original one before the arguments. A target that was renamed raises ``AttributeError``. Compiled classes cannot be
changed: bugs in them are planted in the sources only.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest import mock

from aioproducer.offsets import ConsumerGroupMetadata
from tests.simulation.embedded.story import (
    Kind,
    Story,
    abandoning_story,
    administered_story,
    crowded_story,
    draining_story,
    draw_story,
    late_end_story,
    restless_group_story,
    small,
    story_with,
)

_TRANSACTIONS: tuple[Kind, ...] = ("transactional", "pool")
_RECORDS: tuple[Kind, ...] = ("idempotent",)
_GROUP: tuple[Kind, ...] = ("group",)
_TRANSFORMS: tuple[Kind, ...] = ("transform",)


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug, where it is planted, and what has to run to find it."""

    function: Callable[..., Any]
    target: str
    draw: Callable[[Random], Story]
    """Draws the stories that may find it."""
    is_large: bool = False
    """Whether large stories find it sooner: it needs more time, or more records."""

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    def story(self, seed: int) -> Story:
        """The story of a seed."""
        random = Random(seed)
        story = self.draw(random)
        return story if self.is_large else small(random, story)

    def owner(self) -> tuple[Any, str]:
        """The module or class that has the target, and its name there."""
        module, _, path = self.target.partition(":")
        owner: Any = importlib.import_module(module)
        *outer, name = path.split(".")
        for each in outer:
            owner = getattr(owner, each)
        inspect.getattr_static(owner, name)
        return owner, name

    @property
    def is_compiled(self) -> bool:
        """Whether the target is in a compiled class."""
        owner, _ = self.owner()
        module = importlib.import_module(self.target.partition(":")[0])
        return isinstance(owner, type) and not str(module.__file__).endswith(".py")

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug while the context is active."""
        owner, name = self.owner()
        original = inspect.getattr_static(owner, name)
        if isinstance(original, property):
            assert original.fget is not None
            replacement: Any = property(functools.partial(self.function, original.fget))
        else:

            @functools.wraps(original)
            def replacement(*args: Any, **options: Any) -> Any:
                return self.function(original, *args, **options)

        with mock.patch.object(owner, name, replacement):
            yield


BUGS: dict[str, PlantedBug] = {}


def _plant(
    target: str,
    kinds: tuple[Kind, ...] = _RECORDS,
    draw: Callable[[Random], Story] | None = None,
    *,
    is_large: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        bug = PlantedBug(function, target, draw or functools.partial(draw_story, kinds=kinds), is_large)
        BUGS[bug.name] = bug
        return function

    return register


# The logs of the broker


@_plant("aioproducer.broker.log.producer_state:ProducerStateManager.check")
def a_repeated_batch_is_appended_again(original: Any, self: Any, *args: Any, **options: Any) -> None:
    """Neither duplicates nor sequences are checked."""


@_plant("aioproducer.broker.log.producer_state:ProducerStateManager._check_sequence", draw=crowded_story, is_large=True)
def a_gap_in_the_sequences_is_accepted(original: Any, self: Any, *args: Any) -> None:
    """A batch that overtakes an earlier one is appended before it."""


@_plant("aioproducer.broker.log.open_transactions:OpenTransactions.first_unstable_offset", _TRANSACTIONS)
def an_open_transaction_is_visible(original: Any, self: Any, high_watermark: int) -> None:
    """The last stable offset is the high watermark."""


@_plant("aioproducer.broker.log.stored_log:StoredLog.read_committed", _TRANSACTIONS)
def aborted_transactions_are_not_listed(original: Any, *args: Any, **options: Any) -> Any:
    """Readers of committed records are not told what to leave out."""
    return original(*args, **options)[0], []


@_plant("aioproducer.broker.log.producer_state:ProducerStateManager._end_transaction", _TRANSACTIONS)
def an_abort_is_not_indexed(original: Any, *args: Any) -> None:
    """The abort marker ends the transaction, but is not found later."""
    original(*args)


@_plant(
    "aioproducer.broker.log.producer_state:ProducerStateManager.check_marker",
    draw=functools.partial(story_with, faults=("late marker",), kinds=_TRANSACTIONS),
    is_large=True,
)
def a_late_marker_is_written(original: Any, *args: Any, **options: Any) -> None:
    """A marker of an earlier transaction ends the current one in a partition."""


@_plant("aioproducer.broker.log.segment:Segment.recover", _RECORDS)
def a_torn_tail_is_kept(original: Any, self: Any, *args: Any) -> int:
    """After a power loss the log is not cut at the first broken batch."""
    tail = bytes(self.file.peek(0, self.size))
    cut = original(self, *args)
    if cut:
        self.file.append([tail[-cut:]])
    return 0


@_plant(
    "aioproducer.broker.log.segment:Segment.append",
    draw=functools.partial(story_with, faults=("full disk",)),
    is_large=True,
)
def a_full_disk_takes_batches(original: Any, self: Any, batches: Any) -> None:
    """An append that the disk has refused counts as done."""
    try:
        original(self, batches)
    except OSError:
        return


# Replication


@_plant("aioproducer.broker.replicas.partition:Partition.append_fetched", draw=administered_story)
def followers_keep_deleted_records(original: Any, self: Any, records: Any, high_watermark: int, start: int) -> None:
    """A follower does not learn where the log of its leader begins."""
    original(self, records, high_watermark, 0)


@_plant("aioproducer.broker.replicas.partition:Partition.append_marker", _TRANSACTIONS)
def an_abort_is_marked_as_a_commit(original: Any, *args: Any, **options: Any) -> Any:
    """Every marker is one of a commit."""
    return original(*args, **{**options, "committed": True})


@_plant("aioproducer.broker.replicas.partition:Partition._advance_high_watermark")
def the_high_watermark_does_not_wait_for_followers(original: Any, self: Any) -> bool:
    """What the leader has counts as committed."""
    before = self.high_watermark
    if self.is_leader:
        self.high_watermark = self.log.log_end_offset
    return bool(self.high_watermark != before)


@_plant("aioproducer.broker.replicas.partition:Partition.replicated")
def a_batch_is_acknowledged_before_it_is_replicated(original: Any, self: Any, end_offset: int) -> bool:
    """acks=all is answered as acks=1."""
    self._check_leader()
    return True


@_plant("aioproducer.broker.replicas.partition:Partition.truncate_to_leader")
def a_follower_keeps_what_its_leader_lacks(original: Any, *args: Any) -> None:
    """The tail of an earlier leader epoch is not cut off."""


@_plant("aioproducer.broker.handlers.fetch:_Reading.end_offset", _TRANSACTIONS)
def readers_see_what_is_not_committed(original: Any, self: Any, partition: Any) -> Any:
    """A Fetch is answered up to the end of the log."""
    return partition.log_end_offset


# The transaction coordinator


@_plant("aioproducer.broker.transactions.shard:Shard._complete", _TRANSACTIONS)
def markers_are_not_written(original: Any, self: Any, transaction: Any) -> None:
    """A transaction is complete as soon as its outcome is in the log."""
    transaction.prepare_complete(self._host.wall_ms())
    self._write_completion(transaction)


@_plant("aioproducer.broker.transactions.markers:MarkerSender._retry", _TRANSACTIONS)
def a_failed_marker_is_not_sent_again(original: Any, *args: Any) -> None:
    """A partition whose leader moves does not get its marker."""


@_plant("aioproducer.broker.transactions.transaction:Transaction.add_partitions", _TRANSACTIONS)
def partitions_of_a_transaction_are_forgotten(original: Any, self: Any, *args: Any) -> Any:
    """Partitions that are added replace those that were in the transaction."""
    decision = original(self, *args)
    if self.pending is not None and self.pending is decision:
        new = dataclasses.replace(decision, partitions=frozenset(args[1]))
        self.pending = new
        return new
    return decision


@_plant(
    "aioproducer.broker.transactions.ending:_has_valid_epoch",
    draw=functools.partial(late_end_story, version=2),
    is_large=True,
)
def a_late_end_of_a_transaction_is_accepted(original: Any, transaction: Any, *args: Any, **options: Any) -> bool:
    """The epoch of an EndTxn is not compared: a late one ends the next transaction."""
    return True


@_plant("aioproducer.broker.transactions.coordinator:TransactionCoordinator.abort_timed_out", draw=abandoning_story)
def abandoned_transactions_stay_open(original: Any, self: Any) -> None:
    """No transaction times out."""


# The group coordinator


@_plant("aioproducer.broker.groups.classic_group:ClassicGroup.validate_offset_commit", draw=restless_group_story)
def commits_of_a_fenced_member_are_accepted(original: Any, *args: Any, **options: Any) -> int:
    """The generation of a commit is not compared."""
    return 0


@_plant("aioproducer.broker.groups.rebalance:RebalancingGroup._expire_session", _GROUP, is_large=True)
def no_session_ends(original: Any, self: Any, *args: Any) -> None:
    """The partitions of a killed member stay with it."""


@_plant("aioproducer.broker.groups.coordinator:GroupCoordinator.offsets", _TRANSFORMS)
def offsets_of_an_open_transaction_are_not_waited_for(original: Any, self: Any, group_id: str, **options: Any) -> Any:
    """A member begins at the offset before that of a transaction whose outcome is not known yet."""
    return original(self, group_id, require_stable=False)


@_plant("aioproducer.broker.groups.offsets:Offsets.end_transaction", _TRANSFORMS, is_large=True)
def offsets_of_an_aborted_transaction_count(original: Any, self: Any, producer_id: int, **options: Any) -> None:
    """The marker of an abort makes pending offsets visible."""
    original(self, producer_id, committed=True)


@_plant("aioproducer.broker.groups.offsets:Offsets.end_transaction", _TRANSFORMS)
def offsets_of_a_committed_transaction_are_dropped(original: Any, self: Any, producer_id: int, **options: Any) -> None:
    """The marker of a commit drops pending offsets."""
    original(self, producer_id, committed=False)


# The group consumer


@_plant("aioproducer.consumer.group:processed_positions", _GROUP)
def what_was_returned_counts_as_processed(original: Any, partitions: Any) -> Any:
    """An automatic commit contains the record in progress."""
    return {each.name: each.position for each in partitions if each.position is not None}


@_plant("aioproducer.io.group_member:GroupMember._pump", _GROUP)
def a_revocation_does_not_wait_for_the_request(original: Any, self: Any) -> None:
    """The listener runs, and the member joins again, while the application still processes records."""
    original(self)
    self._begin_handling()


@_plant("aioproducer.core.membership.offsets:committed_offset", _GROUP)
def the_committed_offset_is_not_used(original: Any, partition: Any) -> None:
    """A member begins where ``auto_offset_reset`` says."""


@_plant("aioproducer.core.membership.member:Member.group_metadata", _TRANSFORMS)
def offsets_are_sent_without_the_generation(original: Any, self: Any) -> Any:
    """The group cannot refuse the offsets of a member that it has replaced (KIP-447)."""
    return ConsumerGroupMetadata(original(self).group_id)


# The producer


@_plant("aioproducer.core.transactions.manager:TransactionManager.begin_commit", ("transactional",))
def a_commit_aborts(original: Any, self: Any) -> Any:
    """The transaction is aborted, and its caller told that it was committed."""
    return self.begin_abort()


@_plant("aioproducer.core.transactions.manager:TransactionManager.poll", _TRANSACTIONS)
def a_commit_does_not_wait_for_its_records(original: Any, self: Any, now: float, has_incomplete: bool) -> Any:
    """The end of the transaction may overtake its records."""
    return original(self, now, False)


@_plant("aioproducer._client.pool_queue:PoolQueue.give_back", ("pool",))
def a_waiting_caller_of_the_pool_is_not_woken(original: Any, self: Any, slot: Any) -> None:
    """A slot that becomes free goes to the next caller that comes."""
    waiters, self._waiters = self._waiters, type(self._waiters)()
    original(self, slot)
    self._waiters = waiters


@_plant("aioproducer.core.waiting.blocked_records:BlockedRecords.partitions_changed")
def records_that_wait_for_metadata_are_not_resumed(original: Any, self: Any, topic: Any, now: float) -> None:
    """A wake-up is forgotten: the queue of a topic stands still when its partitions are known."""
    topic.sized_at = now


@_plant(
    "aioproducer.core.metadata.cluster_metadata:ClusterMetadata.next_update_delay",
    draw=functools.partial(story_with, faults=(), metadata_max_age_ms=500),
)
def metadata_does_not_age(original: Any, self: Any, now: float) -> float:
    """Metadata is requested when something has to be known, and never by its age."""
    if self._new_topics or self._topics_left or self._full_update_requested:
        return float(original(self, now))
    return math.inf


@_plant("aioproducer.core.batching.drain_waiters:DrainWaiters.resume", draw=draining_story, is_large=True)
def a_waiting_drain_is_not_resumed(original: Any, *args: Any) -> bool:
    """A wake-up is forgotten: free memory resumes no caller of drain."""
    return False


@_plant("aioproducer.core.waiting.waiters:WaiterQueue.resolve")
def a_flush_does_not_return(original: Any, *args: Any) -> bool:
    """A wake-up is forgotten: no flush sees the end of its batches."""
    return False


@_plant("aioproducer.core.batching.partition_queue:PartitionQueue.insert")
def a_retried_batch_goes_to_the_back(original: Any, self: Any, batches: Any) -> None:
    """Later batches overtake one that is sent again."""
    self.own_batches().extend(batches)


@_plant("aioproducer.core.batching.completion:Completion.disconnected")
def a_lost_batch_counts_as_not_written(original: Any, self: Any, batch: Any, error: Any, now: float) -> Any:
    """After a disconnection the producer claims to know that the broker has nothing."""
    return self._unsuccessful(batch, error, now, retriable=True)


@_plant("aioproducer.core.batching.accumulator:RecordAccumulator.release")
def memory_is_not_released(original: Any, self: Any, batch: Any) -> None:
    """The memory of finished batches does not return to the pool."""


@_plant("aioproducer.core.batching.producer_state:ProducerState.assign")
def a_retried_batch_gets_a_new_sequence(original: Any, self: Any, batch: Any, sequences: Any) -> None:
    """The broker cannot recognize a batch that it has already."""
    original(self, batch, sequences)
    if batch.attempts > 1:
        batch.set_sequence(batch.producer_id, batch.producer_epoch, sequences.next_sequence)
        sequences.next_sequence += batch.record_count


# The reader


@_plant("aioproducer.wire.aborted_filter:AbortedFilter.drops", _TRANSACTIONS)
def aborted_records_are_not_filtered(original: Any, *args: Any) -> bool:
    """A reader of committed records returns those of aborted transactions."""
    return False


@_plant("aioproducer.core.fetching.fetcher:Fetcher._take")
def a_poll_is_repeated(original: Any, self: Any, partition: Any, *arguments: Any) -> None:
    """After some polls a reader goes on where the poll before began."""
    before = partition.fetch_position
    original(self, partition, *arguments)
    if partition.fetch_position.offset % 7 == 0:
        partition.fetch_position = before
