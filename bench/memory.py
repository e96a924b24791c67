"""Memory of this process: resident, its growth, and private."""

from __future__ import annotations

import resource
import statistics
from pathlib import Path

from bench.job import Measurement

_STATM = Path("/proc/self/statm")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_SMAPS = Path("/proc/self/smaps_rollup")


def resident() -> int:
    """Return the resident bytes now."""
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()


def peak() -> int:
    """Return the kernel's peak of resident bytes."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def private() -> int:
    """Return the bytes that no other process shares, including swapped ones."""
    return private_of(_SMAPS.read_text())


def private_of(smaps: str) -> int:
    """Return the private bytes in the kernel's text about the mappings of a process."""
    lines = [line for line in smaps.splitlines() if line.startswith(("Private_Clean:", "Private_Dirty:", "Swap:"))]
    if len(lines) != 3:
        raise ValueError(f"no private memory in {smaps!r}")
    return sum(int(line.split()[1]) for line in lines) * 1024


def growth(samples: list[int]) -> float:
    """Return by how many MiB the median of the last quarter exceeds that of the second (the first is the start)."""
    quarter = len(samples) // 4
    if not quarter:
        raise ValueError("fewer than four samples do not show whether memory grows")
    return (statistics.median(samples[-quarter:]) - statistics.median(samples[quarter : 2 * quarter])) / 2**20


class Memory:
    """Samples of resident memory, from the producer's start on."""

    def __init__(self) -> None:
        # Reset the kernel's peak, to exclude imports and the warm-up of the allocator.
        _CLEAR_REFS.write_text("5")
        self._base = resident()
        self._samples: list[int] = []

    def sample(self) -> None:
        """Sample the resident memory."""
        self._samples.append(resident())

    def summary(self) -> Measurement:
        """Return the figures in MiB; the peak is the kernel's, so it does not depend on when samples were taken."""
        above = [round((one - self._base) / 2**20, 2) for one in self._samples]
        return {
            "base_mib": self._base / 2**20,
            "peak_above_mib": (peak() - self._base) / 2**20,
            "growth_mib": growth(self._samples),
            "samples_above_mib": above,
        }
