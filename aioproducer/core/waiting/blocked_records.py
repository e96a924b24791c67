"""Records that cannot be appended yet: they wait for their topic's metadata or an async serializer, then for memory.

Each topic has its own waiters, so that a mistyped topic holds up no other. The waiters for memory are one queue,
strictly first come, first served. A record never overtakes another of its topic, unless that one is for a partition
that the topic does not have: such records wait apart, so that a mistyped partition holds up only its own records.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain, dropwhile, islice, takewhile
from typing import Protocol

from aioproducer.core.outcomes.delivery import FutureFactory, OnOutcome
from aioproducer.core.waiting.pending import Header, PendingRecord, PendingRecords
from aioproducer.wire.record_batch import Buffer

# Records that one step moves from a topic to the waiters for memory, which takes some tenths of a millisecond.
RECORDS_PER_STEP = 200


class BlockedTopic(Protocol):
    """The part of a topic's queues (``TopicQueues``) that ``BlockedRecords`` uses."""

    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> Sequence[object]:
        """Empty until metadata names them."""

    @property
    def metadata_waiters(self) -> OrderedDict[PendingRecord, None]:
        """Records that wait for metadata or an async serializer."""

    @property
    def unknown_partition_waiters(self) -> OrderedDict[PendingRecord, None]:
        """Records for partitions that the topic does not have."""

    blocked_count: int
    """Records that wait for metadata, a serializer or memory; while there is one, later records wait behind it."""
    sized_at: float
    """Loop time at which metadata last named the number of partitions."""

    def own_metadata_waiters(self) -> OrderedDict[PendingRecord, None]: ...

    def own_unknown_partition_waiters(self) -> OrderedDict[PendingRecord, None]: ...

    def clear_waiters(self) -> None: ...

    def has_partition(self, partition: int | None) -> bool: ...


class BlockedRecords:
    """All waiting records, and the rules by which they move on.

    Args:
        topic: returns the queues of a topic, which it creates if there are none.
        size_limit: bytes that all waiting records together may take.
        max_block: seconds that a record waits at most.
        wake: called when a record begins or ends to wait.
        end_lingering: called when a record is the first to wait for memory: no batch may linger then.
        on_removed: called when a record no longer waits.
        on_outcome: called with each record that fails, or is withdrawn, while it waits.
    """

    def __init__(
        self,
        loop: FutureFactory,
        *,
        topic: Callable[[str], BlockedTopic],
        size_limit: int,
        max_block: float,
        wake: Callable[[], None],
        end_lingering: Callable[[float], None],
        on_removed: Callable[[], None],
        on_outcome: OnOutcome | None = None,
    ) -> None:
        self.pending = PendingRecords(size_limit)
        """All waiting records."""
        self.memory_waiters: OrderedDict[PendingRecord, None] = OrderedDict()
        """Those that lack nothing but memory."""
        self.last_memory_number = 0
        """Number of the record that began to wait for memory last."""
        self.topics: dict[str, BlockedTopic] = {}
        """Topics with records that wait for more than memory."""
        self.metadata_wait = 0.0
        """Seconds that the records in ``memory_waiters`` waited for metadata before, in total."""
        self.on_memory_wait: Callable[[float, float], None] = lambda seconds, now: None
        """Called with each record that no longer waits for memory: it has a batch or has expired."""
        # Topics whose waiters may move on: a record that held up others has left, or one step did not move all.
        self._resumable_topics: dict[str, BlockedTopic] = {}
        self._loop = loop
        self._topic = topic
        self._max_block = max_block
        self._wake = wake
        self._end_lingering = end_lingering
        self._on_removed = on_removed
        self._on_outcome = on_outcome

    def make_record(
        self,
        topic_name: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        now: float,
    ) -> PendingRecord:
        """Return a record for ``add``; its data is copied."""
        return PendingRecord(
            self._loop,
            topic_name,
            partition,
            None if key is None else bytes(key),
            None if value is None else bytes(value),
            tuple((name, None if header is None else bytes(header)) for name, header in headers),
            timestamp_ms,
            since=now,
            deadline=now + self._max_block,
            on_withdraw=self.remove,
            on_outcome=self._on_outcome,
        )

    def add(self, pending: PendingRecord, size: int) -> None:
        """Append a record of ``size`` bytes to the waiters of its topic.

        Raises:
            BufferExhaustedError: the waiting records take all the bytes that they may.
        """
        self.pending.add(pending, size)
        topic = self._topic(pending.topic)
        topic.own_metadata_waiters()[pending] = None
        topic.blocked_count += 1
        self.topics[pending.topic] = topic
        self._wake()

    def advance(self, topic: BlockedTopic, now: float) -> int:
        """Move the topic's records that lack nothing but memory to the waiters for memory; return how many moved.

        At most ``RECORDS_PER_STEP`` move; ``resume_topics`` continues.
        """
        waiters = topic.metadata_waiters
        moved = 0
        while waiters and topic.partitions:
            if moved == RECORDS_PER_STEP:
                self._resumable_topics[topic.name] = topic
                self._wake()
                break
            pending = next(iter(waiters))
            if not pending.serialized:
                break
            moved += 1
            del waiters[pending]
            if topic.has_partition(pending.partition):
                self._await_memory(topic, pending, now)
            else:
                topic.blocked_count -= 1
                topic.own_unknown_partition_waiters()[pending] = None
        if not waiters and not topic.unknown_partition_waiters:
            topic.clear_waiters()
            self.topics.pop(topic.name, None)
        return moved

    def partitions_changed(self, topic: BlockedTopic, now: float) -> None:
        """Let the records with partitions that exist now wait for memory, then ``advance``."""
        topic.sized_at = now
        back = [each for each in topic.unknown_partition_waiters if topic.has_partition(each.partition)]
        if back:
            first = back[0].number
            later = [each for each in self.memory_waiters if each.topic == topic.name and each.number > first]
            for pending in back:
                del topic.unknown_partition_waiters[pending]
                topic.blocked_count += 1
                self._await_memory(topic, pending, now)
            # Later records stay behind them.
            for pending in sorted([*back, *later], key=lambda each: each.number):
                self.memory_waiters.move_to_end(pending)
                self._number(pending)
        self.advance(topic, now)

    def _await_memory(self, topic: BlockedTopic, pending: PendingRecord, now: float) -> None:
        # Counted for each record here: when metadata arrives it would be a sum over all waiters.
        self.metadata_wait += max(topic.sized_at - pending.since, 0.0)
        if not self.memory_waiters:
            self._end_lingering(now)
        pending.awaits_memory = True
        pending.awaits_memory_since = now
        self.memory_waiters[pending] = None
        self._number(pending)
        self._wake()

    def _number(self, pending: PendingRecord) -> None:
        self.last_memory_number += 1
        pending.memory_number = self.last_memory_number

    def first_memory_number(self) -> int:
        """Return the number of the record that has waited for memory longest, or of the next one to do so."""
        waiters = self.memory_waiters
        return next(iter(waiters)).memory_number if waiters else self.last_memory_number + 1

    def resume_topics(self, now: float) -> None:
        """Advance the topics that a departed record, or the limit of one step, held up."""
        moved = 0
        while self._resumable_topics and moved < RECORDS_PER_STEP:
            moved += self.advance(self._resumable_topics.pop(next(iter(self._resumable_topics))), now)
        if self._resumable_topics:
            self._wake()

    def return_to_topic(self, topic: BlockedTopic) -> None:
        """Move the topic's records back from the waiters for memory, from the first without its partition on."""
        of_topic = (each for each in self.memory_waiters if each.topic == topic.name)
        back = list(dropwhile(lambda each: topic.has_partition(each.partition), of_topic))
        for pending in reversed(back):
            del self.memory_waiters[pending]
            pending.awaits_memory = False
            topic.own_metadata_waiters()[pending] = None
            topic.metadata_waiters.move_to_end(pending, last=False)
        if topic.metadata_waiters:
            self.topics[topic.name] = topic

    def remove(self, pending: PendingRecord) -> None:
        """Let a record wait no longer, whatever it waited for."""
        if self.pending.remove(pending):
            topic = self._topic(pending.topic)
            if pending in topic.unknown_partition_waiters:
                del topic.unknown_partition_waiters[pending]
            else:
                topic.blocked_count -= 1
                topic.metadata_waiters.pop(pending, None)
            if topic.metadata_waiters:
                self._resumable_topics[pending.topic] = topic
            elif not topic.unknown_partition_waiters:
                topic.clear_waiters()
                self.topics.pop(pending.topic, None)
            self.memory_waiters.pop(pending, None)
            self._on_removed()
            self._wake()

    def expired_records(self, now: float, limit: int | None = None) -> list[PendingRecord]:
        """Remove the records that have waited for ``max_block``, at most ``limit``; the caller fails them."""
        expired = self.pending.expired(now, limit)
        for pending in expired:
            self.report_memory_wait(pending, now)
            self.remove(pending)
        return expired

    def report_memory_wait(self, pending: PendingRecord, now: float) -> None:
        """Report how long the record waited for memory, if it did."""
        if pending.awaits_memory:
            self.on_memory_wait(max(now - pending.awaits_memory_since, 0.0), now)

    def records_of_topic(self, name: str, last_number: int, limit: int) -> list[PendingRecord]:
        """Return at most ``limit`` records that wait for the topic's metadata, up to a number."""
        topic = self.topics.get(name)
        if topic is None:
            return []
        waiters = (topic.metadata_waiters, topic.unknown_partition_waiters)
        parts = [takewhile(lambda each: each.number <= last_number, part) for part in waiters]
        return list(islice(chain(*parts), limit))
