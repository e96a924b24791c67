"""Lines of waiting records: for their topic's metadata or an async serializer, then for memory.

Each topic has its own line, so that a mistyped topic holds up no other. The line for memory is one, strictly first
come, first served. A record never overtakes another of its topic, unless that one is for a partition that the topic
does not have: such records stand aside, so that a mistyped partition holds up only records for the same partition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain, dropwhile, islice, takewhile
from typing import Protocol

from aioproducer.core.outcomes.delivery import FutureFactory
from aioproducer.core.waiting.pending import Header, PendingRecord, WaitingLine
from aioproducer.wire.record_batch import Buffer

# Records of a line that advance in one step, which takes some tenths of a millisecond.
MOVED_UP_AT_ONCE = 200


class BlockedTopic(Protocol):
    """What ``Lines`` keeps of a topic, in an object that has more: ``TopicQueues``."""

    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> Sequence[object]:
        """Empty until metadata names them."""

    @property
    def line(self) -> OrderedDict[PendingRecord, None]:
        """Records that wait for metadata or an async serializer."""

    @property
    def aside(self) -> OrderedDict[PendingRecord, None]:
        """Records for partitions that the topic does not have."""

    line_length: int
    """Records in ``line`` and in the line for memory; while there is one, later records of the topic join it."""
    sized_at: float
    """Loop time at which metadata last named the number of partitions."""

    def own_line(self) -> OrderedDict[PendingRecord, None]: ...

    def own_aside(self) -> OrderedDict[PendingRecord, None]: ...

    def line_ended(self) -> None: ...

    def has_partition(self, partition: int | None) -> bool: ...


class Lines:
    """All waiting records, and the rules by which they advance.

    Args:
        topic: returns the queues of a topic, which it makes if there are none.
        size_limit: bytes that all waiting records together may take.
        max_block: seconds that a record waits at most.
        wake: called when a record has joined or left a line.
        hurry: called when the line for memory begins: no batch may linger then.
        left: called when a record has left.
    """

    def __init__(
        self,
        loop: FutureFactory,
        *,
        topic: Callable[[str], BlockedTopic],
        size_limit: int,
        max_block: float,
        wake: Callable[[], None],
        hurry: Callable[[float], None],
        left: Callable[[], None],
    ) -> None:
        # All waiting records, and those that lack nothing but memory.
        self.waiting = WaitingLine(size_limit)
        self.memory_line: OrderedDict[PendingRecord, None] = OrderedDict()
        # The number of the record that joined the line for memory last.
        self.last_memory_number = 0
        # Topics with records that wait for more than memory.
        self.blocked: dict[str, BlockedTopic] = {}
        # Seconds that the records in the line for memory waited for metadata before, in total.
        self.metadata_wait = 0.0
        self.memory_waited: Callable[[float, float], None] = lambda seconds, now: None
        """Called with each record that leaves the line for memory, for a batch or because it has expired."""
        # Topics whose line may advance: a record that held up others has left, or more can move than one step may.
        self._moved_up: dict[str, BlockedTopic] = {}
        self._loop = loop
        self._topic = topic
        self._max_block = max_block
        self._wake = wake
        self._hurry = hurry
        self._left = left

    def make(
        self,
        topic_name: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        now: float,
    ) -> PendingRecord:
        """Return a record for ``join``; its data is copied."""
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
            leave=self.leave_line,
        )

    def join(self, pending: PendingRecord, size: int) -> None:
        """Append a record of ``size`` bytes to the line of its topic.

        Raises:
            BufferExhaustedError: the line is full.
        """
        self.waiting.add(pending, size)
        topic = self._topic(pending.topic)
        topic.own_line()[pending] = None
        topic.line_length += 1
        self.blocked[pending.topic] = topic
        self._wake()

    def advance(self, topic: BlockedTopic, now: float) -> int:
        """Move the topic's records that lack nothing but memory into the line for memory; return how many moved.

        At most ``MOVED_UP_AT_ONCE`` move; ``move_up`` continues.
        """
        line = topic.line
        moved = 0
        while line and topic.partitions:
            if moved == MOVED_UP_AT_ONCE:
                self._moved_up[topic.name] = topic
                self._wake()
                break
            pending = next(iter(line))
            if not pending.serialized:
                break
            moved += 1
            del line[pending]
            if topic.has_partition(pending.partition):
                self._want_memory(topic, pending, now)
            else:
                topic.line_length -= 1
                topic.own_aside()[pending] = None
        if not line and not topic.aside:
            topic.line_ended()
            self.blocked.pop(topic.name, None)
        return moved

    def partitions_changed(self, topic: BlockedTopic, now: float) -> None:
        """Move the records whose partitions exist now into the line for memory, then ``advance``."""
        topic.sized_at = now
        back = [each for each in topic.aside if topic.has_partition(each.partition)]
        if back:
            first = back[0].number
            later = [each for each in self.memory_line if each.topic == topic.name and each.number > first]
            for pending in back:
                del topic.aside[pending]
                topic.line_length += 1
                self._want_memory(topic, pending, now)
            # Later records stay behind them.
            for pending in sorted([*back, *later], key=lambda each: each.number):
                self.memory_line.move_to_end(pending)
                self._number(pending)
        self.advance(topic, now)

    def _want_memory(self, topic: BlockedTopic, pending: PendingRecord, now: float) -> None:
        # Counted for each record here: on arrival of metadata it would be a sum over the whole line.
        self.metadata_wait += max(topic.sized_at - pending.since, 0.0)
        if not self.memory_line:
            self._hurry(now)
        pending.wants_memory = True
        pending.wants_memory_since = now
        self.memory_line[pending] = None
        self._number(pending)
        self._wake()

    def _number(self, pending: PendingRecord) -> None:
        self.last_memory_number += 1
        pending.memory_number = self.last_memory_number

    def first_memory_number(self) -> int:
        """Return the number of the first record in the line for memory, or of the next one to join it."""
        line = self.memory_line
        return next(iter(line)).memory_number if line else self.last_memory_number + 1

    def move_up(self, now: float) -> None:
        """Advance the lines that a departed record, or the limit of one step, held up."""
        moved = 0
        while self._moved_up and moved < MOVED_UP_AT_ONCE:
            moved += self.advance(self._moved_up.pop(next(iter(self._moved_up))), now)
        if self._moved_up:
            self._wake()

    def step_back(self, topic: BlockedTopic) -> None:
        """Move the topic's records back from the line for memory, from the first whose partition is gone on."""
        line = self.memory_line
        of_topic = (each for each in line if each.topic == topic.name)
        back = list(dropwhile(lambda each: topic.has_partition(each.partition), of_topic))
        for pending in reversed(back):
            del line[pending]
            pending.wants_memory = False
            topic.own_line()[pending] = None
            topic.line.move_to_end(pending, last=False)
        if topic.line:
            self.blocked[topic.name] = topic

    def leave_line(self, pending: PendingRecord) -> None:
        """Remove a record from every line that it is in."""
        if self.waiting.remove(pending):
            topic = self._topic(pending.topic)
            if pending in topic.aside:
                del topic.aside[pending]
            else:
                topic.line_length -= 1
                topic.line.pop(pending, None)
            if topic.line:
                self._moved_up[pending.topic] = topic
            elif not topic.aside:
                topic.line_ended()
                self.blocked.pop(pending.topic, None)
            self.memory_line.pop(pending, None)
            self._left()
            self._wake()

    def expired_waiting(self, now: float, most: int | None = None) -> list[PendingRecord]:
        """Remove the records that have waited for ``max_block``, at most ``most``; the caller fails them."""
        expired = self.waiting.expired(now, most)
        for pending in expired:
            self.end_memory_wait(pending, now)
            self.leave_line(pending)
        return expired

    def end_memory_wait(self, pending: PendingRecord, now: float) -> None:
        """Report how long the record waited for memory, if it did."""
        if pending.wants_memory:
            self.memory_waited(max(now - pending.wants_memory_since, 0.0), now)

    def waiting_for_topic(self, name: str, last_number: int, most: int) -> list[PendingRecord]:
        """Return the records that wait for the topic's metadata, up to a number, at most ``most``."""
        topic = self.blocked.get(name)
        if topic is None:
            return []
        parts = [takewhile(lambda each: each.number <= last_number, part) for part in (topic.line, topic.aside)]
        return list(islice(chain(*parts), most))
