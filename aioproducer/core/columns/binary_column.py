"""Compiled. A column of byte strings in Arrow's layout, read by compiled modules without a Python object per row.

Offsets, data and a bitmap of the rows that are not null have separate buffers. Row ``i`` consists of the data between
offsets ``i`` and ``i + 1`` (https://arrow.apache.org/docs/format/Columnar.html). A dictionary column instead has a
number per row: the row of its dictionary.

No Python form: ``BinaryColumn`` reads rows by their addresses, with ``bit_at`` and ``number_at``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize


class BinaryColumn:
    """An Arrow array of binary or string rows.

    Args:
        length: the number of rows.
        first: the index of row 0 in the buffers (a slice shares them with the whole).
        offsets: address of the offsets, of ``offset_size`` (4 or 8) bytes each; 0 if every row has ``row_size`` bytes.
        data: address of the bytes.
        validity: address of the bitmap, least significant bit first; 0 if no row is null.
        indices: for a dictionary column the address of numbers of ``index_size`` (1, 2, 4 or 8) bytes, 0 otherwise.
        first_index: the index of row 0 in ``indices`` and ``validity`` of a dictionary column, while
            ``first`` belongs to the dictionary.
        dictionary_validity: the bitmap of the dictionary's own rows.
        owner: keeps the buffers alive.

    The addresses are not checked: Arrow checks the arrays that it builds, and ``Array.validate(full=True)`` others.
    """

    __slots__ = (
        "data",
        "dictionary_validity",
        "first",
        "first_index",
        "found_size",
        "index_size",
        "indices",
        "length",
        "offset_size",
        "offsets",
        "owner",
        "plain_offsets",
        "row_size",
        "validity",
    )

    plain_offsets: Any
    """Address of row 0's offset if offsets have four bytes, and there are neither nulls nor a dictionary; else NULL."""

    def __init__(
        self,
        *,
        length: int,
        first: int,
        offsets: int,
        offset_size: int,
        row_size: int,
        data: int,
        validity: int,
        owner: object,
        indices: int = 0,
        index_size: int = 0,
        first_index: int = 0,
        dictionary_validity: int = 0,
    ) -> None:
        self.length = length
        self.first = first
        self.offsets = offsets
        self.offset_size = offset_size
        self.row_size = row_size
        self.data = data
        self.validity = validity
        self.indices = indices
        self.index_size = index_size
        self.first_index = first_index
        self.dictionary_validity = dictionary_validity
        self.owner = owner
        if cython.compiled:
            self.plain_offsets = cython.NULL
            if offsets and offset_size == 4 and not validity and not indices:
                self.plain_offsets = cython.cast(cython.p_int, self.offsets) + self.first

    def __len__(self) -> int:
        return self.length

    # Compiled only

    def find(self, row: int) -> Any:
        """Return the address of a row's bytes, and set ``found_size`` to their number, -1 for null."""
        index = self.first + row
        self.found_size = -1
        if self.indices:
            index = self.first_index + row
        if self.validity and not bit_at(self.validity, index):
            return cython.NULL
        if self.indices:
            index = self.first + number_at(self.indices, self.index_size, index)
            if self.dictionary_validity and not bit_at(self.dictionary_validity, index):
                return cython.NULL
        if not self.offsets:
            self.found_size = self.row_size
            return cython.cast(cython.p_uchar, self.data) + index * self.row_size
        begin = number_at(self.offsets, self.offset_size, index)
        self.found_size = number_at(self.offsets, self.offset_size, index + 1) - begin
        return cython.cast(cython.p_uchar, self.data) + begin

    def __getitem__(self, row: int) -> bytes | None:
        """Return a row as Python's bytes.

        Raises:
            IndexError: there is no such row.
        """
        return self.bytes_of(row)

    def bytes_of(self, row: int) -> bytes | None:
        """As ``column[row]``."""
        if not 0 <= row < self.length:
            raise IndexError(f"No row {row}: the column has {self.length} rows.")
        address = self.find(row)
        if self.found_size < 0:
            return None
        found: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_char, address), self.found_size)
        return found


# Compiled only


def bit_at(bitmap: int, index: int) -> Any:
    return cython.cast(cython.p_uchar, bitmap)[index >> 3] >> (index & 7) & 1


def number_at(numbers: int, size: int, index: int) -> Any:
    if size == 4:
        return cython.cast(cython.p_int, numbers)[index]
    if size == 8:
        return cython.cast(cython.p_longlong, numbers)[index]
    if size == 2:
        return cython.cast(cython.p_short, numbers)[index]
    return cython.cast(cython.p_schar, numbers)[index]
