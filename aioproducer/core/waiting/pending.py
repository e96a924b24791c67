"""Records that were accepted and have no place in a batch yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice, takewhile

from aioproducer._common.diagnosis import line_full
from aioproducer.core.outcomes.delivery import Delivery, FutureFactory, Withdrawable
from aioproducer.errors import KafkaError
from aioproducer.record import RecordMetadata, TopicPartition
from aioproducer.wire.record_batch import Buffer

# What a waiting record holds besides its bytes: the objects of this module, its Delivery, its places in the lines.
PENDING_OVERHEAD = 512
# And each of its headers: a tuple, its place in another, and the objects of name and value.
HEADER_OVERHEAD = 144

Header = tuple[str, Buffer | None]


class PendingRecord(Withdrawable):
    """A record in line, and the group of its one Delivery until a batch takes over.

    ``serialized`` is False while an async serializer works on it: it keeps its place, and no later record overtakes it.
    """

    __slots__ = (
        "_delivery",
        "charged",
        "deadline",
        "headers",
        "key",
        "leave",
        "memory_number",
        "number",
        "observed",
        "partition",
        "serialized",
        "since",
        "stored_error",
        "timestamp_ms",
        "topic",
        "value",
        "wants_memory",
        "wants_memory_since",
    )

    def __init__(
        self,
        loop: FutureFactory,
        topic: str,
        partition: int | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        *,
        since: float,
        deadline: float,
        leave: Callable[[PendingRecord], None],
    ) -> None:
        super().__init__(loop)
        self.topic = topic
        self.partition = partition
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self.since = since
        self.deadline = deadline
        self.leave = leave
        self.serialized = True
        # Whether memory is all that it lacks.
        self.wants_memory = False
        # Since when, in seconds.
        self.wants_memory_since = 0.0
        self.charged = 0
        self.number = 0
        # Its place in the line for memory, counted over all that ever joined that.
        self.memory_number = 0
        self.stored_error: KafkaError | None = None
        # It had an awaiter or a callback when it failed, or its error was asked for afterwards.
        self.observed = False
        # Let go of when there is an outcome: the two hold each other.
        self._delivery: Delivery | None = Delivery(self, 0)

    @property
    def delivery(self) -> Delivery:
        """The record's one handle; when it has failed or was withdrawn, another of the same outcome."""
        if self._delivery is not None:
            return self._delivery
        return Delivery(self, -1 if self.withdrawn else 0)

    def is_done(self, index: int) -> bool:
        return self.stored_error is not None

    def error(self, index: int) -> KafkaError | None:
        if self.stored_error is None:
            return None
        self.observed = True
        return self.stored_error.fresh()

    def metadata(self, index: int) -> RecordMetadata:
        raise AssertionError("a record in line has no metadata")

    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, -1 if self.partition is None else self.partition)

    def withdraw(self) -> None:
        self.withdrawn = True
        self._delivery = None
        self.leave(self)

    def fail(self, error: KafkaError) -> None:
        """Fail the record; it must have left its line."""
        self.stored_error = error
        self.observed = self.observed_count() > 0
        self._delivery = None
        self.notify()

    def hand_over(self, delivery: Delivery) -> None:
        """The record is in a batch: what waited for this Delivery waits for ``delivery``'s place now."""
        assert self._delivery is not None
        group, index = delivery._group, delivery._index
        self._delivery._group = group
        self._delivery._index = index
        for waiter in self.pop_waiters(0):
            group.add_waiter(index, *waiter)


def payload_size(key: Buffer | None, value: Buffer | None, headers: Sequence[Header]) -> int:
    """Bytes of user data in a record that waits, and what its headers hold besides.

    Raises:
        UnicodeEncodeError: the name of a header has no UTF-8 form.
    """
    size = 0
    if key is not None:
        size += memoryview(key).nbytes
    if value is not None:
        size += memoryview(value).nbytes
    for name, header in headers:
        size += HEADER_OVERHEAD + len(name.encode())
        if header is not None:
            size += memoryview(header).nbytes
    return size


class WaitingLine:
    """Every record in line, whatever it waits for, and the bytes that they may take together.

    All wait equally long at most, so that the order of arrival is that of their deadlines.
    """

    __slots__ = ("last_number", "records", "size", "size_limit")

    def __init__(self, size_limit: int) -> None:
        self.records: OrderedDict[PendingRecord, None] = OrderedDict()
        self.size = 0
        self.size_limit = size_limit
        # The number of the record that came last.
        self.last_number = 0

    def add(self, pending: PendingRecord, size: int) -> None:
        """Let a record in and charge its size and a fixed overhead.

        Raises:
            BufferExhaustedError: the line is full.
        """
        charge = size + PENDING_OVERHEAD
        if self.records and self.size + charge > self.size_limit:
            raise line_full(size, self.size, self.size_limit, len(self.records))
        pending.charged = charge
        self.size += charge
        self.last_number += 1
        pending.number = self.last_number
        self.records[pending] = None

    def first_number(self) -> int:
        """The number of the record that has waited longest, or the next to come."""
        return next(iter(self.records)).number if self.records else self.last_number + 1

    def recharge(self, pending: PendingRecord) -> None:
        """The record's bytes are known now."""
        if pending in self.records:
            charge = payload_size(pending.key, pending.value, pending.headers) + PENDING_OVERHEAD
            self.size += charge - pending.charged
            pending.charged = charge

    def remove(self, pending: PendingRecord) -> bool:
        """Let a record out; False where it had left before."""
        if pending not in self.records:
            return False
        del self.records[pending]
        self.size -= pending.charged
        return True

    def expired(self, now: float, most: int | None = None) -> list[PendingRecord]:
        """The records whose time is over, oldest first, or ``most`` of them; they still stand in line."""
        return list(islice(takewhile(lambda pending: pending.deadline <= now, self.records), most))
