"""A segment's index of aborted transactions, in the format of Kafka's ``.txnindex`` files (``TransactionIndex``)."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from aioproducer.broker.log.indexes import Index
from aioproducer.broker.log.storage import Storage

TRANSACTION_INDEX_SUFFIX = ".txnindex"

_VERSION = 0
_ENTRY = Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted by a marker in the segment (``AbortedTxn``)."""

    producer_id: int
    first_offset: int
    """The offset of its first record in this partition."""
    last_offset: int
    """The offset of the marker."""
    last_stable_offset: int
    """The first offset of the oldest transaction still open behind the marker, else the offset behind the marker."""


class TransactionIndex(Index):
    """Aborted transactions in the order of their markers.

    As in Kafka a segment without one has no file.
    """

    __slots__ = ("_has_file",)

    def __init__(self, storage: Storage, name: str, base_offset: int, data: bytes | None = None) -> None:
        """``data`` is the content of the file, ``None`` if there is no file."""
        super().__init__(storage, name, base_offset, _ENTRY, data or b"")
        self._has_file = data is not None

    def append(self, aborted: AbortedTransaction) -> None:
        """Add an entry; its marker must be behind those of all entries."""
        self._data += _ENTRY.pack(_VERSION, *aborted)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for _, *fields in _ENTRY.iter_unpack(bytes(self._data)):
            yield AbortedTransaction(*fields)

    def collect(self, offset: int, up_to: int, found: list[AbortedTransaction]) -> bool:
        """Add to ``found`` the transactions with records, or their marker, from ``offset`` on and below ``up_to``.

        Returns whether no later segment can have more of them.
        """
        unpack, data = _ENTRY.unpack_from, self._data
        for slot in range(self._slot(offset - 1, 3) + 1, len(self)):
            aborted = AbortedTransaction(*unpack(data, slot * _ENTRY.size)[1:])
            if aborted.first_offset < up_to:
                found.append(aborted)
            if aborted.last_stable_offset >= up_to:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Keep the entries with markers below ``offset``."""
        self._keep(self._slot(offset - 1, 3) + 1)

    def is_sane(self) -> bool:
        """Return whether the file's content can be an index of this segment."""
        if len(self._data) % _ENTRY.size:
            return False
        last = self.base_offset - 1
        for version, _, first_offset, last_offset, _ in _ENTRY.iter_unpack(bytes(self._data)):
            if version != _VERSION or last_offset <= last or first_offset > last_offset:
                return False
            last = last_offset
        return True

    def rename(self, name: str) -> None:
        if self._has_file:
            super().rename(name)
        else:
            self._name = name

    def save(self, *, sync: bool = False) -> None:
        """Write new entries to the file.

        Raises:
            OSError: it could not be written.
        """
        if self._data or self._has_file:
            super().save(sync=sync)
            self._has_file = True
