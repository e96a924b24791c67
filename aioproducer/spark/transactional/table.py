"""The decisions of one sink, from the records of the decision topic."""

from __future__ import annotations

from typing import TypeVar

from aioproducer.spark.transactional.decisions import (
    CopyKey,
    CopyNote,
    Decision,
    DecisionTopicError,
    chunk_key,
    copy_key,
    decision_of,
    decision_records,
    key_prefix,
    parse_copy,
    parse_key,
)

K = TypeVar("K")
V = TypeVar("V")


class DecisionTable:
    """The last decision of each key of a sink, without those of other sinks.

    ``position`` is the offset after the last record that was read: the next plan of this process continues there. Each
    decision is parsed once after its records have changed, so that a plan does not depend on the number of writes.
    """

    def __init__(self, sink: str) -> None:
        self.sink = sink
        self.position = 0
        self._prefix = key_prefix(sink)
        self._chunks: dict[str, dict[int, bytes]] = {}
        # Of the first chunks.
        self._offsets: dict[str, int] = {}
        self._copied: dict[str, dict[CopyKey, bytes]] = {}
        # Keys with records that were not parsed yet, in the order of their last record.
        self._changed: dict[str, None] = {}
        self._parsed: dict[str, Decision] = {}
        self._unfinished: set[str] = set()
        self._queries: set[str] = set()
        self._last: str | None = None

    def apply(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take the next committed record of the topic.

        Raises:
            DecisionTopicError: it is a record of this sink in a form of another version.
        """
        self.position = max(self.position, offset + 1)
        if key is None or not key.startswith(self._prefix):
            return
        parsed = parse_key(key)
        if parsed.copied is not None:
            _put(self._copied.setdefault(parsed.key, {}), parsed.copied, value)
        elif parsed.chunk is not None:
            _put(self._chunks.setdefault(parsed.key, {}), parsed.chunk, value)
            if parsed.chunk == 0:
                self._offsets[parsed.key] = offset
            self._change(parsed.key)

    def replace(self, decision: Decision) -> None:
        """Take a decision that this process has written after ``position``; its record will be read again."""
        self._chunks[decision.key] = {
            chunk: record.value or b"" for chunk, record in enumerate(decision_records(decision))
        }
        self._offsets[decision.key] = self.position
        self._change(decision.key)

    def finished(self, decision: Decision) -> None:
        """Take the done note of a decision, as ``replace``."""
        self.replace(decision.finished())

    def _change(self, key: str) -> None:
        self._changed.pop(key, None)
        self._changed[key] = None

    def _parse_changed(self) -> None:
        """Parse what has changed; a decision that cannot be read stays in ``_changed``.

        Raises:
            DecisionTopicError: not all of a decision is in the topic.
        """
        for key in list(self._changed):
            decision = self._parse(key)
            self._parsed.pop(key, None)
            self._unfinished.discard(key)
            self._queries.discard(key)
            if decision is not None:
                self._parsed[key] = decision
                if not decision.done:
                    self._unfinished.add(key)
                if decision.batch_id is not None:
                    self._queries.add(key)
            del self._changed[key]
            if decision is not None and (self._last is None or self._offset(key) >= self._offset(self._last)):
                self._last = key
            elif decision is None and key == self._last:
                self._last = max(self._parsed, key=self._offset, default=None)
            if decision is None:
                # A batch job without an id leaves nothing.
                for of_key in (self._chunks, self._offsets, self._copied):
                    of_key.pop(key, None)

    def _parse(self, key: str) -> Decision | None:
        chunks = self._chunks.get(key)
        return decision_of(self.sink, key, chunks) if chunks else None

    def _offset(self, key: str) -> int:
        return self._offsets.get(key, -1)

    # Each of the next may raise DecisionTopicError: not all of a decision is in the topic.

    def decision(self, key: str) -> Decision | None:
        """Return the last decision of a key."""
        return self._parse(key) if key in self._changed else self._parsed.get(key)

    def last(self) -> Decision | None:
        """Return the sink's last decision, of whatever key."""
        self._parse_changed()
        return None if self._last is None else self._parsed[self._last]

    def unfinished(self) -> list[Decision]:
        """Return the decisions that are not done, in the order of the topic."""
        self._parse_changed()
        return [self._parsed[key] for key in sorted(self._unfinished, key=self._offset)]

    def queries(self) -> list[Decision]:
        """Return the last decision of each query, without those of batch jobs."""
        self._parse_changed()
        return [self._parsed[key] for key in sorted(self._queries, key=self._offset)]

    def decisions(self) -> list[Decision]:
        """Return the last decision of each key, in the order of the topic."""
        self._parse_changed()
        return [self._parsed[key] for key in sorted(self._parsed, key=self._offset)]

    def copied(self, decision: Decision) -> dict[CopyKey, CopyNote]:
        """Return how far the rows of the decision's aborted handles are copied."""
        notes = {where: parse_copy(data) for where, data in self._copied.get(decision.key, {}).items()}
        return {where: note for where, (decision_id, note) in notes.items() if decision_id == decision.decision_id}

    # For operators: a damaged decision hides no other.

    def keys(self) -> list[str]:
        """Return the keys that have records of a decision, in the order of the topic."""
        return sorted((key for key, chunks in self._chunks.items() if chunks), key=self._offset)

    def readable(self) -> tuple[list[Decision], dict[str, DecisionTopicError]]:
        """Return the decisions in the order of the topic, and why those of other keys cannot be read."""
        found: list[Decision] = []
        damaged: dict[str, DecisionTopicError] = {}
        for key in self.keys():
            try:
                decision = self.decision(key)
            except DecisionTopicError as error:
                damaged[key] = error
            else:
                found += [] if decision is None else [decision]
        return found, damaged

    def record_keys(self, key: str) -> list[bytes]:
        """Return the keys of all records about a query or write, for their tombstones."""
        return [
            *(chunk_key(self.sink, key, chunk) for chunk in sorted(self._chunks.get(key, {}))),
            *(copy_key(self.sink, key, where) for where in self._copied.get(key, {})),
        ]


def _put(table: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
