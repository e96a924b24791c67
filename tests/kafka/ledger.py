"""Comparing a producer's records and their outcomes with the records stored in a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from tests.kafka.consuming import StoredRecord


class Metadata(Protocol):
    """The checked part of a client's record metadata."""

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int | None: ...


class Place(NamedTuple):
    """The partition and offset of an acknowledged record."""

    partition: int
    offset: int | None


class Ledger:
    """The records of one producer and topic; each value has a sequence number in the order of sending."""

    def __init__(self, sender: str = "sender") -> None:
        self.sender = sender
        self.sent = 0
        self.acked: dict[bytes, Place] = {}
        self.failed: dict[bytes, BaseException] = {}

    def next_value(self, size: int = 0) -> bytes:
        """Return a unique value, padded to ``size`` bytes."""
        value = b"%s:%09d:" % (self.sender.encode(), self.sent)
        self.sent += 1
        return value.ljust(size, b"x")

    def ack(self, value: bytes, metadata: Metadata) -> None:
        """Record that the producer has reported the record as stored."""
        self._resolve(value)
        self.acked[value] = Place(metadata.partition, metadata.offset)

    def fail(self, value: bytes, error: BaseException) -> None:
        """Record that the producer has reported the record as failed."""
        self._resolve(value)
        self.failed[value] = error

    def _resolve(self, value: bytes) -> None:
        if value in self.acked or value in self.failed:
            raise AssertionError(f"{value[:40]!r} has two outcomes")

    @property
    def unresolved(self) -> int:
        """Return the number of records without an outcome."""
        return self.sent - len(self.acked) - len(self.failed)


class Verdict(NamedTuple):
    """Numbers of records that were acknowledged, stored, and stored without an acknowledgement."""

    acked: int
    stored: int
    unacknowledged: int


def verify(
    ledgers: Ledger | Sequence[Ledger],
    stored: Mapping[int, Sequence[StoredRecord]],
    *,
    exactly_once: bool = True,
    in_order: bool = True,
) -> Verdict:
    """Raise ``AssertionError`` unless the stored records agree with the producers' outcomes.

    Every acknowledged record is stored, in the partition and at the offset of its metadata. Only sent records are
    stored, and with ``exactly_once`` none twice, acknowledged or not. With ``in_order``, each partition has the records
    of one sender in the order of sending (of duplicates the first counts). A failed record may be stored or not.
    """
    known = {ledger.sender: ledger for ledger in ([ledgers] if isinstance(ledgers, Ledger) else ledgers)}
    for ledger in known.values():
        if ledger.unresolved:
            raise AssertionError(f"{ledger.unresolved} of {ledger.sent} records of {ledger.sender} have no outcome")
    places: defaultdict[bytes, list[Place]] = defaultdict(list)
    for partition, records in stored.items():
        last: dict[str, int] = {}
        for record in records:
            sender, sequence = _origin(record.value, known)
            if in_order and not places[_value(record)] and sequence < last.get(sender, -1):
                raise AssertionError(
                    f"{sender}'s record {sequence} stands behind {last[sender]} in partition {partition}, "
                    f"at offset {record.offset}"
                )
            last[sender] = max(sequence, last.get(sender, -1))
            places[_value(record)].append(Place(partition, record.offset))
    if exactly_once:
        twice = {value[:40]: where for value, where in places.items() if len(where) > 1}
        if twice:
            raise AssertionError(f"{len(twice)} records are stored more than once, e.g. {next(iter(twice.items()))}")
    acked = unacknowledged = 0
    for ledger in known.values():
        lost = [value for value in ledger.acked if value not in places]
        if lost:
            raise AssertionError(f"{len(lost)} acknowledged records are lost, e.g. {lost[0][:40]!r}")
        for value, place in ledger.acked.items():
            if place not in places[value] and (
                place.offset is not None or all(found.partition != place.partition for found in places[value])
            ):
                raise AssertionError(f"{value[:40]!r} was acknowledged at {place} and stands at {places[value]}")
        acked += len(ledger.acked)
        unacknowledged += sum(value in places for value in ledger.failed)
    return Verdict(acked, sum(len(where) for where in places.values()), unacknowledged)


def _value(record: StoredRecord) -> bytes:
    if record.value is None:
        raise AssertionError(f"a record without a value at offset {record.offset}")
    return record.value


def _origin(value: bytes | None, known: Mapping[str, Ledger]) -> tuple[str, int]:
    parts = (value or b"").split(b":", 2)
    sender = parts[0].decode(errors="replace")
    if len(parts) != 3 or sender not in known or not parts[1].isdigit() or int(parts[1]) >= known[sender].sent:
        raise AssertionError(f"stored, but never sent: {value!r:.60}")
    return sender, int(parts[1])
