"""Compiled. The batches without an outcome, oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile

from aioproducer.core.batching.batch import SUCCEEDED, ProducerBatch, parts


class IncompleteBatches:
    """Batches in the order of their creation (Kafka's ``IncompleteBatches``).

    Adding a batch, discarding one and finding the oldest take constant time: the list is linked in the batches
    themselves. A batch is in one list at most. A split batch keeps its position until its last part has an outcome.
    """

    __slots__ = ("count", "last_number", "newest", "oldest")

    def __init__(self) -> None:
        self.oldest: ProducerBatch | None = None
        self.newest: ProducerBatch | None = None
        self.count = 0
        # Number of the batch that was created last.
        self.last_number = 0

    def next_number(self) -> int:
        """Return the number of a new batch."""
        self.last_number += 1
        return self.last_number

    def first_number(self) -> int:
        """Return the number of the oldest batch, or of the next one to be created."""
        return self.last_number + 1 if self.oldest is None else self.oldest.number

    def add(self, batch: ProducerBatch) -> None:
        """Append the batch."""
        newest = self.newest
        if newest is None:
            self.oldest = batch
        else:
            newest.newer = batch
            batch.older = newest
        self.newest = batch
        self.count += 1

    def discard(self, batch: ProducerBatch) -> None:
        """Remove the batch if it is in the list."""
        older, newer = batch.older, batch.newer
        if older is not None:
            older.newer = newer
        elif self.oldest is batch:
            self.oldest = newer
        else:
            return
        if newer is not None:
            newer.older = older
        else:
            self.newest = older
        batch.older = batch.newer = None
        self.count -= 1

    def finish(self, batch: ProducerBatch) -> None:
        """Remove a batch that has its outcome, and its split batch if this is the last part."""
        part: ProducerBatch | None = batch
        while part is not None and part.is_finished():
            parent = part.parent
            if parent is None:
                self.discard(part)
            else:
                parent.undone_children -= 1
                part.parent = None
            part = parent

    def expired(self, now: float, timeout: float, limit: int | None = None) -> list[ProducerBatch]:
        """Return the unfinished parts of the batches older than ``timeout`` seconds, of at most ``limit`` batches."""
        expired = takewhile(lambda batch: batch.created_at + timeout <= now, self)
        return [part for batch in islice(expired, limit) for part in _unfinished_parts(batch)]

    def unfinished(self, limit: int | None = None) -> list[ProducerBatch]:
        """Return every batch, or its unfinished parts if it was split; of at most ``limit`` batches, oldest first."""
        return [part for batch in islice(self, limit) for part in _unfinished_parts(batch)]

    def unsent(self, limit: int) -> list[ProducerBatch]:
        """Return at most ``limit`` batches, oldest first, that have no sequence: they were never sent."""
        return list(islice((batch for batch in self if batch.base_sequence < 0 and batch.state < SUCCEEDED), limit))

    def between(
        self, first: int, last: int, limit: int, start: ProducerBatch | None = None
    ) -> tuple[list[ProducerBatch], ProducerBatch | None]:
        """Return the unfinished parts of at most ``limit`` batches numbered from ``first`` to ``last``, oldest first.

        The second value is the batch to continue with, None at the end. It is the ``start`` of the next call, with its
        number as ``first``: the list is searched from its beginning only if that batch has left it since.
        """
        batch = start
        if batch is None or (batch.older is None and self.oldest is not batch):
            batch = self.oldest
            while batch is not None and batch.number < first:
                batch = batch.newer
        found: list[ProducerBatch] = []
        while batch is not None and batch.number <= last:
            if limit == 0:
                return found, batch
            limit -= 1
            found += _unfinished_parts(batch)
            batch = batch.newer
        return found, None

    def __iter__(self) -> Iterator[ProducerBatch]:
        batch = self.oldest
        while batch is not None:
            yield batch
            batch = batch.newer


def _unfinished_parts(batch: ProducerBatch) -> list[ProducerBatch]:
    return [part for _, part in parts(batch) if part.state < SUCCEEDED]
