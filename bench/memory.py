"""Memory of this process: resident, above what it was, and private."""

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
    """Bytes that are resident now."""
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()


def peak() -> int:
    """The most that was resident, in bytes, as the kernel has noted."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def private() -> int:
    """Bytes that no other process shares: swapped ones included."""
    return private_of(_SMAPS.read_text())


def private_of(smaps: str) -> int:
    """Return the private bytes in the kernel's text about the mappings of a process."""
    lines = [line for line in smaps.splitlines() if line.startswith(("Private_Clean:", "Private_Dirty:", "Swap:"))]
    if len(lines) != 3:
        raise ValueError(f"no private memory in {smaps!r}")
    return sum(int(line.split()[1]) for line in lines) * 1024


def growth(samples: list[int]) -> float:
    """The median of the last quarter above that of the second, which is past the beginning, in MiB."""
    quarter = len(samples) // 4
    if not quarter:
        raise ValueError("fewer than four samples do not show whether memory grows")
    return (statistics.median(samples[-quarter:]) - statistics.median(samples[quarter : 2 * quarter])) / 2**20


class Memory:
    """Made when the producer has started; sampled while it works."""

    def __init__(self) -> None:
        # The kernel forgets the peak of what was before: imports, and the warm-up of the allocator.
        _CLEAR_REFS.write_text("5")
        self._base = resident()
        self._samples: list[int] = []

    def sample(self) -> None:
        """Note what is resident now."""
        self._samples.append(resident())

    def summary(self) -> Measurement:
        """In MiB; the peak is the kernel's, which no sample misses."""
        above = [round((one - self._base) / 2**20, 2) for one in self._samples]
        return {
            "base_mib": self._base / 2**20,
            "peak_above_mib": (peak() - self._base) / 2**20,
            "growth_mib": growth(self._samples),
            "samples_above_mib": above,
        }
