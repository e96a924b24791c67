"""Timestamps and headers as Arrow lays them out, read by compiled modules without a Python object per row.

Numbers stand one behind the other, with a bitmap of what is not null. Headers are lists of structs: offsets say which
rows of the two columns of keys and values are a record's (https://arrow.apache.org/docs/format/Columnar.html). The
addresses are believed, as those of ``BinaryColumn``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioproducer.core.columns.binary_column import BinaryColumn

if TYPE_CHECKING:
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy
else:
    from aioproducer.core.columns.binary_column import bit_at, number_at

    # The compiled module has them from their .pxd files.
    from aioproducer.wire.record import write_zigzag, zigzag_size


class TimestampColumn:
    """What an Arrow array of 64-bit integers holds: milliseconds since 1970.

    Args:
        length: how many rows there are.
        first: where row 0 stands in the buffers.
        numbers: their address.
        validity: address of the bitmap, least significant bit first; 0 where nothing is null.
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

    def find(self, row: int, otherwise: int) -> Any:  # compiled only
        """A row's number, ``otherwise`` for null."""
        place = self.first + row
        if self.validity and not bit_at(self.validity, place):
            return otherwise
        return number_at(self.numbers, 8, place)

    def __getitem__(self, row: int) -> int | None:  # compiled only
        """A row as Python's int; IndexError where there is none."""
        if not 0 <= row < self.length:
            raise IndexError(f"row {row} of {self.length}")
        if self.validity and not bit_at(self.validity, self.first + row):
            return None
        number: int = self.find(row, 0)
        return number


class HeaderColumn:
    """What an Arrow array of lists of headers holds.

    Args:
        length: how many rows there are.
        offsets: address of row 0's offset, of ``offset_size`` (4 or 8) bytes, which counts in ``keys`` and ``values``.
        validity: address of the bitmap, in which row 0 is bit ``first``; 0 where nothing is null.
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

    def find(self, row: int) -> None:  # compiled only
        """The headers of a row are those from ``found_begin`` to before ``found_end``, none where it is null."""
        self.found_begin = self.found_end = 0
        if not self.validity or bit_at(self.validity, self.first + row):
            self.found_begin = number_at(self.offsets, self.offset_size, row)
            self.found_end = number_at(self.offsets, self.offset_size, row + 1)

    def size_of(self, row: int) -> int:  # compiled only
        """The bytes that a row has in a record, its count included; 0 where a key is null, which no record may have."""
        self.find(row)
        size = zigzag_size(self.found_end - self.found_begin)
        for place in range(self.found_begin, self.found_end):
            self.keys.find(place)
            if self.keys.found_size < 0:
                return 0
            size += zigzag_size(self.keys.found_size) + self.keys.found_size
            self.values.find(place)
            size += zigzag_size(self.values.found_size)
            if self.values.found_size > 0:
                size += self.values.found_size
        return size

    def write(self, address: Any, row: int) -> None:  # compiled only
        """Write what ``size_of`` measured."""
        self.find(row)
        address = write_zigzag(address, self.found_end - self.found_begin)
        for place in range(self.found_begin, self.found_end):
            data = self.keys.find(place)
            address = write_zigzag(address, self.keys.found_size)
            memcpy(address, data, self.keys.found_size)
            address += self.keys.found_size
            data = self.values.find(place)
            address = write_zigzag(address, self.values.found_size)
            if self.values.found_size > 0:
                memcpy(address, data, self.values.found_size)
                address += self.values.found_size

    def __getitem__(self, row: int) -> list[tuple[str | None, bytes | None]]:  # compiled only
        """A row as ``send`` takes headers, also where they are wrong; IndexError where there is none."""
        if not 0 <= row < self.length:
            raise IndexError(f"row {row} of {self.length}")
        self.find(row)
        found = []
        for place in range(self.found_begin, self.found_end):
            key = self.keys.bytes_of(place)
            found.append((None if key is None else key.decode(), self.values.bytes_of(place)))
        return found
