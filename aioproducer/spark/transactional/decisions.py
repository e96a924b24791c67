"""Records of the decision topic: which transactions a micro-batch consists of, and their form as JSON.

A decision is split into chunks of handles, one record each, so that no record exceeds a broker's limit. Each chunk has
a key of its own: with one key for all, compaction would drop decided handles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from aioproducer.errors import KafkaError

FORMAT: Final = 1
"""The version of the records' form. A planner that reads another one stops."""

HANDLES_PER_CHUNK: Final = 500
RANGES_PER_CHUNK: Final = 4000
"""At about 100 bytes each a chunk stays below 0.5 MB, half of a broker's default limit."""

SUPERSEDED_KEPT: Final = 100
ANY_ROWS: Final = -1
"""The number of rows of a decision whose replay is accepted with any number."""

ONCE: Final = "once:"
"""What the keys of writes without an id begin with: nothing is kept of them once they are done."""

_COPIED: Final = "copied"


class DecisionTopicError(KafkaError):
    """The decision topic holds what this version cannot read, or less than was written."""


class Identity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    producer_epoch: int


class Token(NamedTuple):
    """What one plan holds: the high watermark it has read up to, and the committer's identity. Tokens are ordered."""

    high_watermark: int
    producer_id: int
    producer_epoch: int

    @property
    def identity(self) -> Identity:
        return Identity(self.producer_id, self.producer_epoch)


class RowRange(NamedTuple):
    """The rows of one transaction in one partition; ``topic_id`` is hexadecimal, empty if the brokers have none."""

    topic: str
    partition: int
    topic_id: str
    first_offset: int
    last_offset: int
    rows: int


@dataclass(frozen=True, slots=True)
class Handle:
    """An open transaction of a task. ``version`` is the generation of the protocol, 1 or 2.

    ``deadline_ms``: the coordinator aborts it then, in milliseconds since 1970.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int
    deadline_ms: int
    ranges: tuple[RowRange, ...]

    @property
    def identity(self) -> Identity:
        return Identity(self.producer_id, self.producer_epoch)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.ranges)


@dataclass(frozen=True, slots=True)
class Decision:
    """One decided batch of a sink.

    key
        The query's id, or the id of the write of a batch job.
    batch_id
        The number of the micro-batch; None for a batch job.
    run_id, superseded
        The run that has decided, and the runs that earlier decisions have replaced.
    rows
        The number of rows of all handles; ``ANY_ROWS`` if a replay may have any number.
    done
        Every handle is committed or copied; ``handles`` is empty then.
    """

    sink: str
    key: str
    batch_id: int | None
    decision_id: str
    run_id: str
    superseded: tuple[str, ...]
    rows: int
    decided_ms: int
    done: bool = False
    handles: tuple[Handle, ...] = ()
    chunks: int = 0
    """The number of records that it was read from."""

    def finished(self) -> Decision:
        """Return the record that replaces the decision when all handles are finished."""
        return replace(self, done=True, handles=(), chunks=0)


class TopicRecord(NamedTuple):
    """Key and value of a record of the decision topic; None is a tombstone."""

    key: bytes
    value: bytes | None


class CopyNote(NamedTuple):
    """How far the rows of an aborted handle are copied: the offset of the last one, and their number."""

    offset: int
    rows: int


class CopyKey(NamedTuple):
    """A handle's partition, of which rows are copied."""

    transactional_id: str
    producer_epoch: int
    topic: str
    partition: int


def superseded_by(run_id: str, last_run: str | None, superseded: Sequence[str]) -> tuple[str, ...]:
    """Return the superseded runs after a decision of ``run_id`` that follows one of ``last_run``."""
    found = [each for each in superseded if each != run_id]
    if last_run is not None and last_run != run_id and last_run not in found:
        found.append(last_run)
    return tuple(found[-SUPERSEDED_KEPT:])


# Keys


def key_prefix(sink: str) -> bytes:
    """Return what all keys of a sink begin with."""
    return f"[{json.dumps(sink)},".encode()


def chunk_key(sink: str, key: str, chunk: int) -> bytes:
    return _dumps([sink, key, chunk])


def copy_key(sink: str, key: str, where: CopyKey) -> bytes:
    return _dumps([sink, key, _COPIED, *where])


class ParsedKey(NamedTuple):
    """A key of the topic: of the chunk of a decision, or of a note about copied rows."""

    key: str
    chunk: int | None
    copied: CopyKey | None


def parse_key(data: bytes) -> ParsedKey:
    """
    Raises:
        DecisionTopicError: it is no key of this version.
    """
    match _loads(data):
        case [str(), str(key), int(chunk)]:
            return ParsedKey(key, chunk, None)
        case [str(), str(key), "copied", str(transactional_id), int(epoch), str(topic), int(partition)]:
            return ParsedKey(key, None, CopyKey(transactional_id, epoch, topic, partition))
    raise DecisionTopicError(f"the decision topic has a key of another version: {data[:200]!r}; use the newer release")


# Values


def decision_records(decision: Decision) -> list[TopicRecord]:
    """Return the records of a decision, one for each chunk."""
    parts = list(_parts(decision.handles)) or [[]]
    return [
        TopicRecord(
            chunk_key(decision.sink, decision.key, number),
            _dumps(
                {
                    "v": FORMAT,
                    "decision": decision.decision_id,
                    "chunks": len(parts),
                    **({} if number else _head(decision)),
                    "handles": part,
                }
            ),
        )
        for number, part in enumerate(parts)
    ]


def _head(decision: Decision) -> dict[str, Any]:
    return {
        "batch": decision.batch_id,
        "run": decision.run_id,
        "superseded": decision.superseded,
        "rows": decision.rows,
        "decided_ms": decision.decided_ms,
        "done": decision.done,
    }


def _parts(handles: Sequence[Handle]) -> Iterator[list[Any]]:
    """Lists of handles for one chunk each; a handle of many partitions may be in several."""
    part: list[Any] = []
    ranges = 0
    for handle in handles:
        for first in range(0, max(len(handle.ranges), 1), RANGES_PER_CHUNK):
            of_part = handle.ranges[first : first + RANGES_PER_CHUNK]
            if part and (ranges + len(of_part) > RANGES_PER_CHUNK or len(part) >= HANDLES_PER_CHUNK):
                yield part
                part, ranges = [], 0
            part.append(
                [
                    handle.transactional_id,
                    handle.producer_id,
                    handle.producer_epoch,
                    handle.version,
                    handle.deadline_ms,
                    of_part,
                ]
            )
            ranges += len(of_part)
    if part:
        yield part


def decision_of(sink: str, key: str, values: Mapping[int, bytes]) -> Decision:
    """Return the decision that these chunks, by number, make up.

    Raises:
        DecisionTopicError: one is missing, belongs to another decision, or has another version.
    """
    what = f"sink {sink!r}, {key!r}"
    if 0 not in values:
        raise DecisionTopicError(f"{what}: the first part of its decision is not in the topic: nothing can be written")
    head = _value(what, values[0])
    chunks = head["chunks"]
    handles: list[Handle] = []
    for number in range(chunks):
        data = values.get(number)
        part = None if data is None else _value(what, data)
        if part is None or part["decision"] != head["decision"]:
            raise DecisionTopicError(
                f"{what}: part {number + 1} of {chunks} of decision {head['decision']} (batch {head['batch']}) is "
                "not in "
                "the topic: was its configuration changed, or were records deleted? Nothing can be written before that "
                "is settled"
            )
        for transactional_id, producer_id, epoch, version, deadline_ms, ranges in part["handles"]:
            found = tuple(RowRange(*each) for each in ranges)
            if handles and (handles[-1].transactional_id, handles[-1].producer_epoch) == (transactional_id, epoch):
                handles[-1] = replace(handles[-1], ranges=handles[-1].ranges + found)
            else:
                handles.append(Handle(transactional_id, producer_id, epoch, version, deadline_ms, found))
    return Decision(
        sink,
        key,
        head["batch"],
        head["decision"],
        head["run"],
        tuple(head["superseded"]),
        head["rows"],
        head["decided_ms"],
        head["done"],
        tuple(handles),
        chunks,
    )


def done_records(decision: Decision, copied: Iterable[CopyKey]) -> list[TopicRecord]:
    """Return the done note of a decision, and the tombstones of what it makes superfluous."""
    sink, key = decision.sink, decision.key
    chunks = max(decision.chunks, len(decision_records(decision)))
    done = decision_records(decision.finished())
    if key.startswith(ONCE):
        done = [TopicRecord(each.key, None) for each in done]
    return [
        *done,
        *(TopicRecord(chunk_key(sink, key, number), None) for number in range(1, chunks)),
        *(TopicRecord(copy_key(sink, key, each), None) for each in copied),
    ]


def copy_record(decision: Decision, where: CopyKey, note: CopyNote) -> TopicRecord:
    """Return the note that ends a piece of copied rows."""
    value = {"v": FORMAT, "decision": decision.decision_id, "offset": note.offset, "count": note.rows}
    return TopicRecord(copy_key(decision.sink, decision.key, where), _dumps(value))


def parse_copy(data: bytes) -> tuple[str, CopyNote]:
    """Return the decision's id and the note."""
    value = _value("a note of copied rows", data)
    return value["decision"], CopyNote(value["offset"], value["count"])


def _value(what: str, data: bytes) -> dict[str, Any]:
    value = _loads(data)
    if not isinstance(value, dict) or value.get("v") != FORMAT:
        raise DecisionTopicError(f"{what}: the decision topic has a record of another version: {data[:200]!r}")
    return value


def _loads(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise DecisionTopicError(f"the decision topic has a record that is no JSON: {data[:200]!r}") from error


def _dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
