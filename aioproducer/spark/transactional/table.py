"""What a planner knows of one sink from the records of the decision topic."""

from __future__ import annotations

from typing import TypeVar

from aioproducer.spark.transactional.decisions import (
    CopyKey,
    CopyNote,
    Decision,
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
    """The last decision of each key of a sink. It holds nothing of other sinks.

    ``position`` is the offset behind the last record that was read: a planner that is used again reads on from there.
    """

    def __init__(self, sink: str) -> None:
        self.sink = sink
        self.position = 0
        self._prefix = key_prefix(sink)
        self._chunks: dict[str, dict[int, bytes]] = {}
        # Of the first chunks.
        self._offsets: dict[str, int] = {}
        self._copied: dict[str, dict[CopyKey, bytes]] = {}

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

    def finished(self, decision: Decision) -> None:
        """Take the done note that this process has written behind ``position``; it will be read again."""
        self._chunks[decision.key] = {0: decision_records(decision.finished())[0].value or b""}
        self._offsets[decision.key] = self.position

    def keys(self) -> list[str]:
        """Return the keys that have a decision, the last decided one last."""
        return sorted(
            (key for key, chunks in self._chunks.items() if chunks), key=lambda key: self._offsets.get(key, -1)
        )

    def decision(self, key: str) -> Decision | None:
        """Return the last decision of a key.

        Raises:
            DecisionTopicError: not all of it is in the topic.
        """
        chunks = self._chunks.get(key)
        return decision_of(self.sink, key, chunks) if chunks else None

    def decisions(self) -> list[Decision]:
        """Return the last decision of each key, in the order of the topic.

        Raises:
            DecisionTopicError: not all of one is in the topic.
        """
        return [found for key in self.keys() if (found := self.decision(key)) is not None]

    def copied(self, decision: Decision) -> dict[CopyKey, CopyNote]:
        """Return how far the rows of the decision's aborted handles are copied."""
        notes = {where: parse_copy(data) for where, data in self._copied.get(decision.key, {}).items()}
        return {where: note for where, (decision_id, note) in notes.items() if decision_id == decision.decision_id}

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
