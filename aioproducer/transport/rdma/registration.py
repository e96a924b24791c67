"""Compiled. Registering the callers' memory, so that the card reads records where they are."""

from __future__ import annotations

import contextlib
import mmap
import time
from typing import Final

from aioproducer.transport.rdma.verbs import Device, MemoryRegion

_PART_BYTES: Final = 1024 * 1024
"""Size of one part, which holds the GIL for some tenths of a millisecond."""

_PARTS_IN_A_ROW: Final = 16
"""Parts registered in one go, about ten milliseconds. Connections that are being made wait for it."""

_PAUSE: Final = 0.0005
"""Seconds between two parts, in which the loop gets the GIL."""


class RegisteredMemory:
    """Memory that the card can gather from once all of it is registered, part by part.

    Registering holds the GIL in pyverbs for a time proportional to the number of pages. Between two parts the loop can
    run.
    """

    def __init__(self, device: Device, memory: mmap.mmap) -> None:
        self.memory = memory
        self._device = device
        self._regions: list[MemoryRegion] = []
        self._keys: list[int] = []
        """The local key of each part."""
        self.address = 0
        """Start address, once all of it is registered."""
        self.size = len(memory)

    def register_more(self) -> bool:
        """Register the next few parts, and return whether those were the last.

        Raises:
            VerbsError: a part was refused; none is registered then.
        """
        memory = self.memory
        begin = len(self._regions) * _PART_BYTES
        end = min(begin + _PARTS_IN_A_ROW * _PART_BYTES, len(memory))
        try:
            for offset in range(begin, end, _PART_BYTES):
                length = min(_PART_BYTES, end - offset)
                self._regions.append(self._device.register(memory, remote_write=False, offset=offset, length=length))
                time.sleep(_PAUSE)
        except Exception:
            self.close()
            raise
        if end < len(memory):
            return False
        self.address = self._regions[0].address
        self._keys = [region.local_key for region in self._regions]
        return True

    def part_of(self, address: int) -> tuple[int, int]:
        """Return the end and the local key of the part that contains ``address``."""
        part = (address - self.address) // _PART_BYTES
        return min(self.address + (part + 1) * _PART_BYTES, self.address + self.size), self._keys[part]

    def close(self) -> None:
        """Deregister all parts."""
        with contextlib.ExitStack() as closing:
            while self._regions:
                closing.callback(time.sleep, _PAUSE)
                closing.callback(self._regions.pop(0).close)
