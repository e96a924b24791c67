"""Compiled. Timestamps and headers in Arrow's layout, read by compiled modules without a Python object per row.

Timestamps are an array of numbers, with a bitmap of the rows that are not null. Headers are lists of structs: offsets
delimit a record's rows in the two columns of keys and values (https://arrow.apache.org/docs/format/Columnar.html). The
addresses are not checked, as those of ``BinaryColumn``.

No Python form: both columns read rows by their addresses, and ``HeaderColumn.write`` writes them at an address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioproducer.core.columns.binary_column import BinaryColumn

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
else:
    from aioproducer.core.columns.binary_column import bit_at, number_at

    # The compiled module imports them by their .pxd files.
    from aioproducer.wire.record import write_zigzag, zigzag_size


class TimestampColumn:
    """An Arrow array of 64-bit integers: milliseconds since 1970.

    Args:
        length: the number of rows.
        first: the index of row 0 in the buffers.
        numbers: address of the numbers.
        validity: address of the bitmap, least significant bit first; 0 if no row is null.
        owner: keeps the buffers alive.
    """

    __slots__ = ("first", "length", "numbers", "owner", "validity")

    def __init__(self, *, length: int, first: int, numbers: int, validity: int, owner: object) -> None:
        self.length = length
        self.first = first
        self.numbers = numbers
        self.validity = validity
        self.owner = owner

    def __len__(self) -> int:
        return self.length

    # Compiled only

    def find(self, row: int, default: int) -> Any:
        """Return a row's number, ``default`` for null."""
        index = self.first + row
        if self.validity and not bit_at(self.validity, index):
            return default
        return number_at(self.numbers, 8, index)

    def __getitem__(self, row: int) -> int | None:
        """Return a row as Python's int.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < self.length:
            raise IndexError(f"No row {row}: the column has {self.length} rows.")
        if self.validity and not bit_at(self.validity, self.first + row):
            return None
        number: int = self.find(row, 0)
        return number


class HeaderColumn:
    """An Arrow array of lists of headers.

    Args:
        length: the number of rows.
        offsets: address of row 0's offset into ``keys`` and ``values``, of ``offset_size`` (4 or 8) bytes.
        validity: address of the bitmap, in which row 0 is bit ``first``; 0 if no row is null.
        keys: strings.
        values: byte strings.
        owner: keeps the offsets and the bitmap alive.
    """

    __slots__ = (
        "first",
        "found_begin",
        "found_end",
        "keys",
        "length",
        "offset_size",
        "offsets",
        "owner",
        "validity",
        "values",
    )

    def __init__(
        self,
        *,
        length: int,
        first: int,
        offsets: int,
        offset_size: int,
        validity: int,
        keys: BinaryColumn,
        values: BinaryColumn,
        owner: object,
    ) -> None:
        self.length = length
        self.first = first
        self.offsets = offsets
        self.offset_size = offset_size
        self.validity = validity
        self.keys = keys
        self.values = values
        self.owner = owner

    def __len__(self) -> int:
        return self.length

    # Compiled only

    def find(self, row: int) -> None:
        """Set ``found_begin`` and ``found_end``: a row's headers are from the first to before the second."""
        self.found_begin = self.found_end = 0
        if not self.validity or bit_at(self.validity, self.first + row):
            self.found_begin = number_at(self.offsets, self.offset_size, row)
            self.found_end = number_at(self.offsets, self.offset_size, row + 1)

    def size_of(self, row: int) -> int:
        """Return the bytes of a row in a record, including the count; 0 if a key is null, which is not allowed."""
        self.find(row)
        size = zigzag_size(self.found_end - self.found_begin)
        for index in range(self.found_begin, self.found_end):
            self.keys.find(index)
            if self.keys.found_size < 0:
                return 0
            size += zigzag_size(self.keys.found_size) + self.keys.found_size
            self.values.find(index)
            size += zigzag_size(self.values.found_size)
            if self.values.found_size > 0:
                size += self.values.found_size
        return size

    def write(self, address: Any, row: int) -> None:
        """Write a row as it is in a record: the bytes that ``size_of`` returns."""
        self.find(row)
        address = write_zigzag(address, self.found_end - self.found_begin)
        for index in range(self.found_begin, self.found_end):
            data = self.keys.find(index)
            address = write_zigzag(address, self.keys.found_size)
            memcpy(address, data, self.keys.found_size)
            address += self.keys.found_size
            data = self.values.find(index)
            address = write_zigzag(address, self.values.found_size)
            if self.values.found_size > 0:
                memcpy(address, data, self.values.found_size)
                address += self.values.found_size

    def __getitem__(self, row: int) -> list[tuple[str | None, bytes | None]]:
        """Return a row as headers for ``send``, including invalid ones.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < self.length:
            raise IndexError(f"No row {row}: the column has {self.length} rows.")
        self.find(row)
        found = []
        for index in range(self.found_begin, self.found_end):
            key = self.keys.bytes_of(index)
            found.append((None if key is None else key.decode(), self.values.bytes_of(index)))
        return found
