"""What a consumer may commit of its partitions. Values only: no IO, no clock.

Each partition has two positions. The *delivered* one is behind the last returned record: ``commit()`` takes it. The
*processed* one is behind the last record after which the caller has requested another: automatic commits take it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from aioproducer.core.fetching.partition import AssignedPartition, FetchPosition
from aioproducer.offsets import OffsetAndMetadata
from aioproducer.record import TopicPartition


class CommitLedger:
    """Remembers the commits of a consumer, and says what an automatic commit has to contain.

    An automatic commit never sets back an explicit one of the same assignment, even one that has not ended yet.
    Nothing counts as committed before the group has confirmed it.
    """

    def __init__(self) -> None:
        # The latest confirmed offset of each partition.
        self._confirmed: dict[TopicPartition, int] = {}
        # The latest offset that the caller has committed, perhaps without a confirmation.
        self._explicit: dict[TopicPartition, int] = {}
        self._in_progress: list[dict[TopicPartition, OffsetAndMetadata]] = []
        # How often the topic of each partition was created again.
        self._recreations: dict[TopicPartition, int] = {}

    def automatic(self, processed: Mapping[TopicPartition, FetchPosition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what an automatic commit has to contain, empty if everything is committed."""
        return {
            name: committable(position)
            for name, position in processed.items()
            if position.offset != self._confirmed.get(name) and position.offset >= self._least(name)
        }

    def _least(self, name: TopicPartition) -> int:
        """Return the lowest offset that sets back no offset which the caller has committed or is committing."""
        offsets = [commit[name].offset + 1 for commit in self._in_progress if name in commit]
        return max([self._explicit.get(name, 0), *offsets])

    def explicit_begins(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """The caller commits ``offsets`` of assigned partitions; the same object is passed to ``explicit_ends``.

        Until then partitions may be removed from it: those that are forgotten.
        """
        self._in_progress.append(offsets)

    def explicit_ends(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        is_confirmed: bool,
        may_be_accepted: bool = False,
    ) -> None:
        """The caller's commit has ended.

        Args:
            may_be_accepted: whether the group may have some of the offsets although the commit has failed.
        """
        self._in_progress = [each for each in self._in_progress if each is not offsets]
        if is_confirmed or may_be_accepted:
            for name, offset in offsets.items():
                self._explicit[name] = offset.offset
                self._confirmed.pop(name, None)
        if is_confirmed:
            self.confirmed(offsets)

    def confirmed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The group has confirmed these offsets, or has returned them as its own."""
        for name, offset in offsets.items():
            self._confirmed[name] = offset.offset

    def retain(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all other partitions: they were taken away, and others may commit their offsets."""
        known: list[Collection[TopicPartition]] = [self._confirmed, self._explicit, *self._in_progress]
        for name in {name for names in known for name in names if name not in partitions}:
            self._forget(name)
        self._recreations = {name: count for name, count in self._recreations.items() if name in partitions}

    def forget_recreated(self, partitions: Iterable[AssignedPartition]) -> None:
        """Forget the commits of partitions whose topic was deleted and created again since the last call."""
        for each in partitions:
            if each.recreations != self._recreations.get(each.name, 0):
                self._recreations[each.name] = each.recreations
                self._forget(each.name)

    def _forget(self, name: TopicPartition) -> None:
        self._confirmed.pop(name, None)
        self._explicit.pop(name, None)
        for offsets in self._in_progress:
            offsets.pop(name, None)


def committable(position: FetchPosition) -> OffsetAndMetadata:
    """Return a position as a group commits it."""
    return OffsetAndMetadata(position.offset, leader_epoch=position.epoch if position.epoch >= 0 else None)


def processed_positions(partitions: Iterable[AssignedPartition]) -> dict[TopicPartition, FetchPosition]:
    """Return behind which record each partition is processed; those without a position yet, or a topic, are missing.

    Once a deleted topic is created again, the group would accept a position in the old one.
    """
    return {each.name: each.processed for each in partitions if each.processed is not None and not each.is_missing}


def delivered_positions(partitions: Iterable[AssignedPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the position behind the last returned record of each partition, as a group commits it."""
    return {
        each.name: committable(each.position)
        for each in partitions
        if each.position is not None and each.has_position and not each.is_missing
    }
