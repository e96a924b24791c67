"""The lines in which records wait: for their topic's metadata or an async serializer, then for memory.

There is a line a topic, so that one mistyped topic holds up no other, and one line for memory, strictly first come. A
record behind another of its topic never passes it, unless that is for a partition that the topic does not have: those
stand aside, so that a mistyped partition holds up nobody but who wants the same one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain, dropwhile, islice, takewhile

from aioproducer.core.delivery import FutureFactory
from aioproducer.core.partition_queue import TopicQueues
from aioproducer.core.pending import Header, PendingRecord, WaitingLine
from aioproducer.wire.record_batch import Buffer

# So many of a line move up at once, when what they waited for is there: some tenths of a millisecond.
MOVED_UP_AT_ONCE = 200


class Lines:
    """Who waits, in which line, and who may move up.

    Args:
        topic: the queues of a topic, made where there are none.
        size_limit: bytes that all who wait may take together.
        max_block: seconds that anybody waits at most.
        wake: somebody has joined or left.
        hurry: the line for memory begins, so that nothing may linger.
        left: somebody has left.
    """

    def __init__(
        self,
        loop: FutureFactory,
        *,
        topic: Callable[[str], TopicQueues],
        size_limit: int,
        max_block: float,
        wake: Callable[[], None],
        hurry: Callable[[float], None],
        left: Callable[[], None],
    ) -> None:
        # Everybody, and those who lack nothing but memory.
        self.waiting = WaitingLine(size_limit)
        self.memory_line: OrderedDict[PendingRecord, None] = OrderedDict()
        # The number of the record that joined the line for memory last.
        self.last_memory_number = 0
        # Topics in whose line somebody waits for more than memory.
        self.blocked: dict[str, TopicQueues] = {}
        # How many seconds those who want memory by now waited for their topics' metadata, all together.
        self.metadata_wait = 0.0
        self.memory_waited: Callable[[float, float], None] = lambda seconds, now: None
        """Called with each record that leaves the line for memory, for a batch or because its time is over."""
        # Topics whose line somebody has left, who may have kept others waiting, or where very many move up.
        self._moved_up: dict[str, TopicQueues] = {}
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
        """What ``join`` takes; what the record holds is copied."""
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
        """Take a place at the end of the topic's line, for a record of ``size`` bytes.

        Raises:
            BufferExhaustedError: the line is full.
        """
        self.waiting.add(pending, size)
        topic = self._topic(pending.topic)
        topic.own_line()[pending] = None
        topic.line_length += 1
        self.blocked[pending.topic] = topic
        self._wake()

    def advance(self, topic: TopicQueues, now: float) -> int:
        """Let those of the topic's line who lack nothing but memory join the line for memory; how many have moved.

        Of very many it is the first ones, and ``move_up`` goes on.
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

    def partitions_changed(self, topic: TopicQueues, now: float) -> None:
        """Let those who stand aside join the line for memory whose partitions are there now, and then ``advance``."""
        topic.sized_at = now
        back = [each for each in topic.aside if topic.has_partition(each.partition)]
        if back:
            first = back[0].number
            later = [each for each in self.memory_line if each.topic == topic.name and each.number > first]
            for pending in back:
                del topic.aside[pending]
                topic.line_length += 1
                self._want_memory(topic, pending, now)
            # Those who came after them stay behind them.
            for pending in sorted([*back, *later], key=lambda each: each.number):
                self.memory_line.move_to_end(pending)
                self._number(pending)
        self.advance(topic, now)

    def _want_memory(self, topic: TopicQueues, pending: PendingRecord, now: float) -> None:
        # Each says it for itself: all at once, when metadata comes, would be a sum over the whole line.
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
        """The number of the record at the head of the line for memory, or of the next to join it."""
        line = self.memory_line
        return next(iter(line)).memory_number if line else self.last_memory_number + 1

    def move_up(self, now: float) -> None:
        """Let those advance who stood behind somebody that has left, or behind all who could move at once."""
        moved = 0
        while self._moved_up and moved < MOVED_UP_AT_ONCE:
            moved += self.advance(self._moved_up.pop(next(iter(self._moved_up))), now)
        if self._moved_up:
            self._wake()

    def step_back(self, topic: TopicQueues) -> None:
        """Put those in the line for memory back in front of their topic's, from the first whose partition is gone."""
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
        """Take a record out of its lines, wherever it stands."""
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
        """Take the records, or the first ``most``, out of their lines that have waited for ``max_block``.

        The caller fails them.
        """
        expired = self.waiting.expired(now, most)
        for pending in expired:
            self.end_memory_wait(pending, now)
            self.leave_line(pending)
        return expired

    def end_memory_wait(self, pending: PendingRecord, now: float) -> None:
        """The record leaves the line for memory, if it stands there."""
        if pending.wants_memory:
            self.memory_waited(max(now - pending.wants_memory_since, 0.0), now)

    def waiting_for_topic(self, name: str, last_number: int, most: int) -> list[PendingRecord]:
        """The records in line that need the topic's metadata: those up to a number, ``most`` of them at most."""
        topic = self.blocked.get(name)
        if topic is None:
            return []
        parts = [takewhile(lambda each: each.number <= last_number, part) for part in (topic.line, topic.aside)]
        return list(islice(chain(*parts), most))
