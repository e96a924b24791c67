"""Registering the callers' memory, so that the card reads records where they are."""

from __future__ import annotations

import contextlib
import mmap
import time
from typing import Final

from aioproducer.transport.rdma.verbs import Device, MemoryRegion, VerbsError

_PART_BYTES: Final = 1024 * 1024
"""So much memory is registered at once: some tenths of a millisecond of the GIL."""

_PAUSE: Final = 0.0005
"""Seconds between two parts, in which the loop gets the GIL."""


class RegisteredMemory:
    """Memory that the card gathers from, registered part by part.

    Registering holds the GIL where pyverbs does it, about as long as there are pages: between two parts the loop gets
    its turn.

    Raises:
        VerbsError: a part was refused; none is registered then.
    """

    def __init__(self, device: Device, memory: mmap.mmap) -> None:
        self.memory = memory
        self._regions: list[MemoryRegion] = []
        self._parts: list[tuple[int, int]] = []
        try:
            for offset in range(0, len(memory), _PART_BYTES):
                length = min(_PART_BYTES, len(memory) - offset)
                self._regions.append(device.register(memory, remote_write=False, offset=offset, length=length))
                time.sleep(_PAUSE)
        except VerbsError:
            self.close()
            raise
        self._address = self._regions[0].address
        self._parts = [(region.address + region.length, region.local_key) for region in self._regions]

    def part_of(self, address: int) -> tuple[int, int]:
        """Of the part that holds an address: where it ends, and its local key."""
        return self._parts[(address - self._address) // _PART_BYTES]

    def close(self) -> None:
        """Deregister all parts."""
        with contextlib.ExitStack() as closing:
            while self._regions:
                closing.callback(time.sleep, _PAUSE)
                closing.callback(self._regions.pop(0).close)
