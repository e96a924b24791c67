"""Rules over the history of a play and the logs at its end. Each function is one rule; ``ALL`` has their names."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aioproducer.errors import KafkaError
from aioproducer.testing import StoredRecord
from tests.simulation.embedded import group_checkers
from tests.simulation.embedded.elle import read_cycles
from tests.simulation.embedded.history import History, ReaderHistory, Sent

Place = tuple[str, int]


@dataclass(slots=True)
class Evidence:
    """What the rules look at."""

    history: History
    records: dict[Place, list[StoredRecord]]
    """Every record of each partition, in order."""
    committed: dict[Place, list[StoredRecord]]
    """The records that a reader of committed records is given."""
    replicas: dict[Place, dict[int, bytes]]
    """What each node has of a partition below the high watermark."""

    def stored(self) -> Iterator[StoredRecord]:
        """Every record."""
        return itertools.chain.from_iterable(self.records.values())

    def visible(self) -> set[bytes]:
        """The values of all committed records."""
        return {record.value for record in itertools.chain.from_iterable(self.committed.values()) if record.value}


def acknowledged_is_stored(evidence: Evidence) -> Iterator[str]:
    """An acknowledged record is at its offset, with its value; with acks=1 a new leader may not have it."""
    values = {record.value for record in evidence.stored()}
    at = {(record.topic, record.partition, record.offset): record.value for record in evidence.stored()}
    for sent in evidence.history.sent:
        if not sent.is_acknowledged or sent.acks != "all" or not evidence.history.is_kept(sent):
            continue
        if sent.value not in values:
            yield f"{_name(sent)} was acknowledged and is lost"
            continue
        metadata = sent.delivery.result()
        # A duplicate that is no longer remembered has no offset.
        if metadata is not None and metadata.offset is not None and metadata.offset >= 0:
            found = at.get((metadata.topic, metadata.partition, metadata.offset))
            if found != sent.value:
                yield f"{_name(sent)} was acknowledged at {metadata}, where {found!r} is"


def offsets_are_unique(evidence: Evidence) -> Iterator[str]:
    """No two records are acknowledged at one offset; those of an idempotent task get ascending ones in a partition."""
    taken: dict[tuple[str, int, int], Sent] = {}
    last: dict[tuple[str, str, int], tuple[int, Sent]] = {}
    for sent in evidence.history.sent:
        if not sent.is_acknowledged or sent.acks != "all" or not evidence.history.is_kept(sent):
            continue
        metadata = sent.delivery.result()
        if metadata is None or metadata.offset is None or metadata.offset < 0:
            continue
        other = taken.setdefault((metadata.topic, metadata.partition, metadata.offset), sent)
        if other is not sent:
            yield f"{_name(sent)} and {_name(other)} were both acknowledged at {metadata}"
        if sent.is_idempotent:
            key = sent.sender, metadata.topic, metadata.partition
            before, earlier = last.get(key, (-1, sent))
            if metadata.offset < before:
                yield f"{_name(sent)} was acknowledged at {metadata}, before {_name(earlier)} at {before}"
            last[key] = metadata.offset, sent


def nothing_else_is_stored(evidence: Evidence) -> Iterator[str]:
    """Each stored value was sent, to the topic in which it is."""
    topics = {sent.value: sent.topic for sent in evidence.history.sent}
    for record in evidence.stored():
        if record.value is None or topics.get(record.value) != record.topic:
            yield f"{record} was not sent there"


def no_duplicates(evidence: Evidence) -> Iterator[str]:
    """A record of an idempotent producer is stored once at most."""
    counts = Counter(record.value for record in evidence.stored())
    for sent in evidence.history.sent:
        if sent.is_idempotent and counts[sent.value] > 1:
            yield f"{_name(sent)} is stored {counts[sent.value]} times"


def order(evidence: Evidence) -> Iterator[str]:
    """Records of a task are in a partition in the order of its sends.

    Without idempotence only acknowledged records count, at their first place.
    """
    sent_by_value = {sent.value: sent for sent in evidence.history.sent}
    for place, records in evidence.records.items():
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        seen: set[bytes] = set()
        for record in records:
            sent = sent_by_value.get(record.value or b"")
            if sent is None or sent.value in seen or not (sent.is_idempotent or sent.is_acknowledged):
                continue
            if not evidence.history.is_kept(sent):
                # The log was created again while batches of the producer were in flight.
                continue
            seen.add(sent.value)
            numbers[sent.sender].append(sent.number)
        for sender, each in numbers.items():
            wrong = next((pair for pair in itertools.pairwise(each) if pair[0] > pair[1]), None)
            if wrong is not None:
                yield f"{place}: {sender}/{wrong[1]} is behind {sender}/{wrong[0]}"


def failed_claims_hold(evidence: Evidence) -> Iterator[str]:
    """A record that failed with ``may_have_been_written`` False is in no log."""
    values = {record.value for record in evidence.stored()}
    for sent in evidence.history.sent:
        if not sent.delivery.done() or sent.delivery.cancelled():
            continue
        error = sent.delivery.exception()
        if isinstance(error, KafkaError) and not error.may_have_been_written and sent.value in values:
            yield f"{_name(sent)} is stored, and failed as if it were not: {error!r}"


def every_delivery_ends(evidence: Evidence) -> Iterator[str]:
    """After the close of its producer each record has its outcome."""
    for sent in evidence.history.sent:
        if not sent.delivery.done():
            yield f"{_name(sent)} has no outcome"
        elif not sent.delivery.cancelled() and not isinstance(sent.delivery.exception(), KafkaError | None):
            yield f"{_name(sent)} failed with {sent.delivery.exception()!r}"


def no_aborted_read(evidence: Evidence) -> Iterator[str]:
    """No record of an aborted transaction is visible."""
    visible = evidence.visible()
    for transaction in evidence.history.transactions:
        if transaction.outcome == "aborted":
            for sent in transaction.sent:
                if sent.value in visible:
                    yield f"{_name(sent)} is visible, its transaction was aborted"


def no_lost_write(evidence: Evidence) -> Iterator[str]:
    """Each record of a committed transaction is visible, unless its send was cancelled."""
    visible = evidence.visible()
    for transaction in evidence.history.transactions:
        if transaction.outcome == "committed":
            for sent in transaction.sent:
                if sent.value not in visible and not sent.delivery.cancelled():
                    yield f"{_name(sent)} is not visible, its transaction was committed"


def no_torn_transaction(evidence: Evidence) -> Iterator[str]:
    """Of the acknowledged records of a transaction either all are visible or none."""
    visible = evidence.visible()
    for transaction in evidence.history.transactions:
        acknowledged = [sent for sent in transaction.sent if sent.is_acknowledged]
        seen = [sent.value in visible for sent in acknowledged]
        if any(seen) and not all(seen):
            parts = f"{_name(acknowledged[seen.index(True)])} is visible, {_name(acknowledged[seen.index(False)])} not"
            yield f"transaction {transaction.number} ({transaction.outcome}): {parts}"


def transactions_read_the_log(evidence: Evidence) -> Iterator[str]:
    """A transaction that reads a partition gets the first committed records of its log.

    It may get a part of another transaction: readers stop before the first record of one that is open.
    """
    for transaction in evidence.history.transactions:
        for place, values in transaction.reads:
            stored = [record.value for record in evidence.committed[place]]
            if values != stored[: len(values)]:
                yield f"transaction {transaction.number} has read {len(values)} records of {place}, not its first"


def no_read_cycles(evidence: Evidence) -> Iterator[str]:
    """No committed transactions have read each other's records in a circle."""
    for cycle in read_cycles(evidence.history):
        yield f"transactions {cycle} have read each other's records"


def replicas_agree(evidence: Evidence) -> Iterator[str]:
    """All replicas of a partition have the same batches below the high watermark."""
    for place, replicas in evidence.replicas.items():
        leader, *others = replicas
        for other in others:
            if replicas[other] != replicas[leader]:
                yield f"{place}: node {other} has other batches than its leader {leader}"


def readers_read_the_log(evidence: Evidence) -> Iterator[str]:
    """A reader is given the records of the log in order: none twice, none left out, none that is not there."""
    for reader in evidence.history.readers:
        yield from _compare(reader, evidence.committed if reader.committed else evidence.records)


def _compare(reader: ReaderHistory, logs: dict[Place, list[StoredRecord]]) -> Iterator[str]:
    read: defaultdict[Place, list[tuple[int, bytes | None]]] = defaultdict(list)
    for record in reader.records:
        read[record.topic, record.partition].append((record.offset, record.value))
    for place, found in read.items():
        stored = [(record.offset, record.value) for record in logs[place]]
        pairs = enumerate(itertools.zip_longest(found, stored))
        wrong = next((index for index, (given, kept) in pairs if given != kept), len(found))
        if wrong < len(found):
            expected = stored[wrong] if wrong < len(stored) else None
            yield f"{reader.name} was given {found[wrong]} in {place}, where the log has {expected}"


def _name(sent: Sent) -> str:
    return f"{sent.sender}/{sent.number}"


ALL: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    acknowledged_is_stored,
    offsets_are_unique,
    nothing_else_is_stored,
    no_duplicates,
    order,
    failed_claims_hold,
    every_delivery_ends,
    no_aborted_read,
    no_lost_write,
    no_torn_transaction,
    transactions_read_the_log,
    no_read_cycles,
    replicas_agree,
    readers_read_the_log,
    *group_checkers.ALL,
)
