"""A column of byte strings as Arrow lays it out, read by compiled modules without a Python object per row.

Offsets, data and a bitmap of what is not null lie in buffers of their own; row ``i`` is the bytes of the data between
offsets ``i`` and ``i + 1`` (https://arrow.apache.org/docs/format/Columnar.html). A dictionary column has a number per
row instead, which says the row of its dictionary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize


class BinaryColumn:
    """What an Arrow array of binary or string rows holds.

    Args:
        length: how many rows there are.
        first: where row 0 stands in the buffers (a slice shares them with the whole).
        offsets: address of the offsets, of ``offset_size`` (4 or 8) bytes each; 0 where every row has ``row_size``.
        data: address of the bytes.
        validity: address of the bitmap, least significant bit first; 0 where nothing is null.
        indices: for a dictionary column: address of numbers of ``index_size`` (1, 2, 4 or 8) bytes, 0 otherwise.
        first_index: where the numbers of row 0 and ``validity`` begin then; ``first`` is the dictionary's.
        dictionary_validity: the bitmap of the dictionary's own rows.
        owner: keeps the buffers alive.

    The addresses are believed: Arrow checks what it builds, and ``Array.validate(full=True)`` the rest.
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
    """Of row 0, where there are offsets of four bytes, and nothing else to be looked at."""

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

    def find(self, row: int) -> Any:  # compiled only
        """The address of a row's bytes; ``found_size`` is then how many there are, -1 for null."""
        place = self.first + row
        self.found_size = -1
        if self.indices:
            place = self.first_index + row
        if self.validity and not bit_at(self.validity, place):
            return cython.NULL
        if self.indices:
            place = self.first + number_at(self.indices, self.index_size, place)
            if self.dictionary_validity and not bit_at(self.dictionary_validity, place):
                return cython.NULL
        if not self.offsets:
            self.found_size = self.row_size
            return cython.cast(cython.p_uchar, self.data) + place * self.row_size
        begin = number_at(self.offsets, self.offset_size, place)
        self.found_size = number_at(self.offsets, self.offset_size, place + 1) - begin
        return cython.cast(cython.p_uchar, self.data) + begin

    def __getitem__(self, row: int) -> bytes | None:  # compiled only
        """A row as Python's bytes; IndexError where there is none."""
        return self.bytes_of(row)

    def bytes_of(self, row: int) -> bytes | None:  # compiled only
        if not 0 <= row < self.length:
            raise IndexError(f"row {row} of {self.length}")
        address = self.find(row)
        if self.found_size < 0:
            return None
        found: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_char, address), self.found_size)
        return found


def bit_at(bitmap: int, place: int) -> Any:  # compiled only
    return cython.cast(cython.p_uchar, bitmap)[place >> 3] >> (place & 7) & 1


def number_at(numbers: int, size: int, place: int) -> Any:  # compiled only
    if size == 4:
        return cython.cast(cython.p_int, numbers)[place]
    if size == 8:
        return cython.cast(cython.p_longlong, numbers)[place]
    if size == 2:
        return cython.cast(cython.p_short, numbers)[place]
    return cython.cast(cython.p_schar, numbers)[place]
