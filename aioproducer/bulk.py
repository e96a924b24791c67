"""Sending many records at once: whole columns in, one result out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Protocol

from aioproducer.core.delivery import Delivery
from aioproducer.errors import KafkaError, SendManyError
from aioproducer.record import TopicPartition

# Records between two looks at whether there is room.
RECORDS_PER_TURN = 100
# Outcomes read between two turns for others.
OUTCOMES_PER_TURN = 1000


@dataclass(frozen=True, slots=True)
class SendManyResult:
    """What became of a ``send_many``.

    count
        How many records were given.
    acked
        How many were delivered; with ``acks=0`` how many were handed to a connection.
    offsets
        By partition, the offsets that its records have, in the order given, as ranges. Empty with ``acks=0``.
    """

    count: int
    acked: int
    offsets: dict[int, list[range]] = field(default_factory=dict)


class Sends(Protocol):
    """The producer, as far as bulk sending goes."""

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Any = (),
    ) -> Delivery: ...

    async def drain(self) -> None: ...

    async def flush(self) -> None: ...


async def send_columns(
    producer: Sends,
    topic: str,
    values: Any,
    keys: Any,
    partition: int | None,
    timestamps_ms: Sequence[int] | None,
    headers: Any,
) -> SendManyResult:
    """``Producer.send_many`` of columns of equal length."""
    count = len(values)
    for name, column in (("keys", keys), ("timestamps_ms", timestamps_ms), ("headers", headers)):
        if column is not None and len(column) != count:
            raise ValueError(f"{name} has {len(column)} entries for {count} values")
    rows = zip(
        _items(values),
        repeat(None) if keys is None else _items(keys),
        repeat(None) if timestamps_ms is None else timestamps_ms,
        repeat(()) if headers is None else headers,
        strict=False,
    )
    outcome = _Outcome(topic, count)
    sent: list[Delivery] = []
    for number, (value, key, timestamp_ms, row_headers) in enumerate(rows, 1):
        sent.append(
            producer.send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=row_headers)
        )
        if number % RECORDS_PER_TURN == 0:
            await producer.drain()
            # Bounded by what is under way: what is done is counted and let go.
            if len(sent) >= OUTCOMES_PER_TURN and sent[OUTCOMES_PER_TURN - 1].done():
                sent = outcome.take(sent)
    await producer.flush()
    while sent:
        sent = outcome.take(sent)
        if sent:
            await asyncio.wait([sent[0]])
        await asyncio.sleep(0)
    return outcome.result()


def _items(column: Any) -> Any:
    """The rows of a column; an Arrow array gives bytes or str for its scalars."""
    to_pylist = getattr(column, "to_pylist", None)
    if to_pylist is None:
        return column
    return (value.encode() if isinstance(value, str) else value for value in to_pylist())


class _Outcome:
    """Counts outcomes, and gathers their offsets into ranges."""

    def __init__(self, topic: str, count: int) -> None:
        self._topic = topic
        self._count = count
        self._acked = 0
        self._offsets: dict[int, list[range]] = {}
        self._errors: dict[TopicPartition, KafkaError] = {}

    def take(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Count the deliveries that are done, from the first on, and return the others."""
        for position, delivery in enumerate(deliveries):
            if position >= OUTCOMES_PER_TURN or not delivery.done():
                return deliveries[position:]
            error = delivery.exception()
            if isinstance(error, KafkaError):
                self._errors.setdefault(delivery.topic_partition, error)
            else:
                self._add(delivery)
        return []

    def _add(self, delivery: Delivery) -> None:
        metadata = delivery.result()
        self._acked += 1
        offset = metadata.offset
        if offset is None:
            return
        ranges = self._offsets.setdefault(metadata.partition, [])
        if ranges and ranges[-1].stop == offset:
            ranges[-1] = range(ranges[-1].start, offset + 1)
        else:
            ranges.append(range(offset, offset + 1))

    def result(self) -> SendManyResult:
        result = SendManyResult(self._count, self._acked, self._offsets)
        if self._errors:
            raise SendManyError(result, self._errors)
        return result
