"""Accepted records that are in no batch yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice, takewhile

from aioproducer._common.diagnosis import line_full
from aioproducer.core.outcomes.delivery import Delivery, FutureFactory, OnOutcome, Withdrawable
from aioproducer.errors import KafkaError
from aioproducer.record import RecordMetadata, TopicPartition
from aioproducer.wire.record_batch import Buffer

# Bytes that a waiting record takes besides its data: the objects of this module, its Delivery, entries of queues.
PENDING_OVERHEAD = 512
# Bytes that each header takes besides: a tuple, its entry in another, and the objects of name and value.
HEADER_OVERHEAD = 144

Header = tuple[str, Buffer | None]


class PendingRecord(Withdrawable):
    """A waiting record, and the group of its one Delivery until a batch takes over.

    ``serialized`` is False while an async serializer works on it: no later record of the topic overtakes it meanwhile.
    """

    __slots__ = (
        "_delivery",
        "awaits_memory",
        "awaits_memory_since",
        "charged",
        "deadline",
        "headers",
        "key",
        "memory_number",
        "number",
        "observed",
        "on_outcome",
        "on_withdraw",
        "partition",
        "serialized",
        "since",
        "stored_error",
        "timestamp_ms",
        "topic",
        "value",
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
        on_withdraw: Callable[[PendingRecord], None],
        on_outcome: OnOutcome | None = None,
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
        self.on_withdraw = on_withdraw
        self.on_outcome = on_outcome
        self.serialized = True
        # Whether it waits for memory only.
        self.awaits_memory = False
        # Loop time, in seconds, since when it does.
        self.awaits_memory_since = 0.0
        self.charged = 0
        self.number = 0
        # Number among all records that ever waited for memory.
        self.memory_number = 0
        self.stored_error: KafkaError | None = None
        # Whether it had an awaiter or a callback when it failed, or a caller has read its error since.
        self.observed = False
        # None when there is an outcome: the two refer to each other.
        self._delivery: Delivery | None = Delivery(self, 0)

    @property
    def delivery(self) -> Delivery:
        """The record's Delivery; a new one with the same outcome if the record has failed or was withdrawn."""
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
        raise AssertionError("a waiting record has no metadata")

    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, -1 if self.partition is None else self.partition)

    def withdraw(self) -> None:
        self.withdrawn = True
        self._delivery = None
        self.on_withdraw(self)
        if self.on_outcome is not None:
            self.on_outcome(self)

    def fail(self, error: KafkaError) -> None:
        """Fail the record; ``BlockedRecords`` must have removed it."""
        self.stored_error = error
        self.observed = self.observed_count() > 0
        self._delivery = None
        if self.on_outcome is not None:
            self.on_outcome(self)
        self.notify()

    def hand_over(self, delivery: Delivery) -> None:
        """Attach the record's Delivery, and its waiters, to the batch that holds the record now."""
        assert self._delivery is not None
        group, index = delivery._group, delivery._index
        self._delivery._group = group
        self._delivery._index = index
        for waiter in self.pop_waiters(0):
            group.add_waiter(index, *waiter)


def payload_size(key: Buffer | None, value: Buffer | None, headers: Sequence[Header]) -> int:
    """Return the bytes of user data in a waiting record, and what its headers take besides.

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


class PendingRecords:
    """All waiting records, whatever they wait for, and the bytes that they may take together.

    All have the same time-out, so that the order of arrival is that of their deadlines.
    """

    __slots__ = ("last_number", "records", "size", "size_limit")

    def __init__(self, size_limit: int) -> None:
        self.records: OrderedDict[PendingRecord, None] = OrderedDict()
        self.size = 0
        self.size_limit = size_limit
        # Number of the record that was added last.
        self.last_number = 0

    def add(self, pending: PendingRecord, size: int) -> None:
        """Add a record and charge its size and a fixed overhead.

        Raises:
            BufferExhaustedError: there is no room for the record.
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
        """Return the number of the record that has waited longest, or of the next one to be added."""
        return next(iter(self.records)).number if self.records else self.last_number + 1

    def recharge(self, pending: PendingRecord) -> None:
        """Charge the actual size of the record."""
        if pending in self.records:
            charge = payload_size(pending.key, pending.value, pending.headers) + PENDING_OVERHEAD
            self.size += charge - pending.charged
            pending.charged = charge

    def remove(self, pending: PendingRecord) -> bool:
        """Remove a record; return False if it was removed before."""
        if pending not in self.records:
            return False
        del self.records[pending]
        self.size -= pending.charged
        return True

    def expired(self, now: float, limit: int | None = None) -> list[PendingRecord]:
        """Return the records with an expired deadline, oldest first, at most ``limit``; they stay."""
        return list(islice(takewhile(lambda pending: pending.deadline <= now, self.records), limit))
