"""BufferPool: the budget, the blocks of the arena, the fallback to the heap."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aioproducer.core.batching.buffer_pool import SMALLEST_SLAB, BufferPool, Slab


def free_units(pool: BufferPool) -> list[range]:
    """Return the arena's free blocks in order."""
    while pool.merge_spares(1000):
        pass
    return blocks_of(pool)


def blocks_of(pool: BufferPool) -> list[range]:
    blocks = [range(first, first + (1 << order)) for order, free in enumerate(pool._free) for first in free]
    return sorted(blocks, key=lambda block: block.start)


class PoolMachine(RuleBasedStateMachine):
    """Bytes are conserved, no two slabs overlap, and written data is kept."""

    @initialize(total=st.integers(1, 64 * 1024))
    def start(self, total: int) -> None:
        self.pool = BufferPool(total)
        self.slabs: list[tuple[Slab, int]] = []
        self.charged: list[int] = []
        self.written = 0

    @rule(minimum=st.integers(1, 9000), preferred=st.integers(0, 70_000))
    def take(self, minimum: int, preferred: int) -> None:
        available = self.pool.available_memory
        slab = self.pool.take(minimum, preferred)
        if slab is None:
            assert minimum > available
            assert self.pool.available_memory == available
            return
        assert minimum <= available
        assert slab.size >= minimum
        assert self.pool.available_memory == available - slab.size
        self.written = (self.written + 1) % 256
        slab.memory[slab.start : slab.start + slab.size] = bytes([self.written]) * slab.size
        self.slabs.append((slab, self.written))

    @precondition(lambda self: self.slabs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slab, written = self.slabs.pop(data.draw(st.integers(0, len(self.slabs) - 1)))
        assert slab.memory[slab.start : slab.start + slab.size] == bytes([written]) * slab.size
        self.pool.release(slab)

    @rule(size=st.integers(0, 9000))
    def charge(self, size: int) -> None:
        self.pool.charge(size)
        self.charged.append(size)

    @precondition(lambda self: self.charged)
    @rule()
    def refund(self) -> None:
        self.pool.refund(self.charged.pop())

    @invariant()
    def every_byte_is_counted(self) -> None:
        held = sum(slab.size for slab, _ in self.slabs) + sum(self.charged)
        assert self.pool.available_memory + held == self.pool.total_memory

    @invariant()
    def blocks_do_not_overlap(self) -> None:
        free = free_units(self.pool)
        arena = self.pool._arena
        taken = [
            range(slab.start // SMALLEST_SLAB, (slab.start + slab.size) // SMALLEST_SLAB)
            for slab, _ in self.slabs
            if slab.memory.obj is arena
        ]
        blocks = sorted([*free, *taken], key=lambda block: block.start)
        assert sum(map(len, blocks)) == self.pool.total_memory // SMALLEST_SLAB
        assert all(one.stop == next_one.start for one, next_one in pairwise(blocks))

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for slab, _ in self.slabs:
                self.pool.release(slab)
            # After merging, the free memory is that of the start.
            assert free_units(self.pool) == free_units(BufferPool(self.pool.total_memory))


PoolMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_memory_must_be_positive() -> None:
    with pytest.raises(ValueError, match="Buffer memory too small: 0 bytes"):
        BufferPool(0)


def test_a_request_for_more_than_the_total_fails_and_changes_nothing() -> None:
    pool = BufferPool(10_000)
    assert pool.take(10_001, 10_001) is None
    assert pool.available_memory == 10_000


@pytest.mark.parametrize("total", [1, 1023, 1024, 1025, 4096, 10_000, 1 << 20])
def test_all_memory_can_be_taken_when_none_is_in_use(total: int) -> None:
    pool = BufferPool(total)
    slab = pool.take(total, total)
    assert slab is not None
    assert slab.size == total
    assert pool.available_memory == 0
    assert pool.take(1, 1) is None
    pool.release(slab)
    assert pool.available_memory == total


def test_a_released_slab_is_reused_before_untouched_memory() -> None:
    pool = BufferPool(1 << 20)
    first = pool.take(1024, 1024)
    second = pool.take(1024, 1024)
    assert first is not None
    assert second is not None
    pool.release(first)
    assert pool.take(1024, 1024) == first


def test_slab_sizes_are_whole_kibibytes_if_the_budget_allows() -> None:
    pool = BufferPool(4096)
    slab = pool.take(1025, 0)
    assert slab is not None
    assert slab.size == 2048


def test_the_preferred_size_is_not_guaranteed() -> None:
    pool = BufferPool(4096)
    assert pool.take(1000, 3000).size == 3072
    # 1,024 bytes are left: less than is preferred, as much as is needed.
    assert pool.take(1000, 3000).size == 1024


def test_a_remainder_smaller_than_a_slab_is_used() -> None:
    pool = BufferPool(1024 + 500)
    assert pool.take(1024, 1024).size == 1024
    rest = pool.take(500, 1024)
    assert isinstance(rest.memory.obj, bytearray)
    assert rest.size == 500
    assert pool.available_memory == 0


def test_fragmentation_does_not_make_available_bytes_unusable() -> None:
    pool = BufferPool(8 * 1024)
    slabs = [pool.take(1024, 1024) for _ in range(8)]
    for slab in slabs[::2]:
        pool.release(slab)
    # 4 KiB are free, no two of them side by side.
    assert pool._take_units(2) is None
    slab = pool.take(3000, 4096)
    assert isinstance(slab.memory.obj, bytearray)
    assert slab.size == 3000
    assert pool.available_memory == 4096 - 3000
    pool.release(slab)
    assert pool.available_memory == 4096


def test_the_smallest_fitting_block_is_split() -> None:
    pool = BufferPool(16 * 1024)
    small = pool.take(1024, 1024)
    large = pool.take(8 * 1024, 8 * 1024)
    # Between the two are free blocks of 1, 2 and 4 KiB, and none of 8 is left.
    again = pool.take(1024, 1024)
    assert again.start == small.start + 1024
    assert pool.take(4096, 4096) is not None
    pool.release(large)
    assert pool.take(8 * 1024, 8 * 1024) is not None


def test_charges_may_exceed_the_available_memory() -> None:
    pool = BufferPool(1000)
    pool.charge(1500)
    assert pool.available_memory == -500
    assert pool.take(1, 1) is None
    pool.refund(1500)
    assert pool.available_memory == 1000


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5000))
def test_an_arena_of_any_size_is_fully_usable(units: int) -> None:
    pool = BufferPool(units * SMALLEST_SLAB)
    slab = pool.take(units * SMALLEST_SLAB, 0)
    assert slab is not None
    assert slab.size == units * SMALLEST_SLAB


def test_cached_slabs_can_be_merged_into_larger_ones() -> None:
    pool = BufferPool(64 * 1024)
    slabs = [pool.take(1024, 1024) for _ in range(64)]
    for slab in slabs:
        pool.release(slab)
    large = pool.take(64 * 1024, 64 * 1024)
    assert large.memory.obj is pool.arena
    assert large.size == 64 * 1024


def test_slabs_of_one_size_are_reused_as_released() -> None:
    pool = BufferPool(64 * 1024)
    slabs = [pool.take(3000, 3000) for _ in range(4)]
    for slab in slabs:
        pool.release(slab)
    assert [pool.take(3000, 3000) for _ in range(4)] == slabs[::-1]


def test_slabs_of_several_sizes_are_each_reused() -> None:
    pool = BufferPool(64 * 1024)
    slabs = [pool.take(size, size) for size in (1024, 16 * 1024, 1024, 16 * 1024)]
    for slab in slabs:
        pool.release(slab)
    before = blocks_of(pool)
    assert [pool.take(size, size) for size in (16 * 1024, 1024, 16 * 1024, 1024)] == slabs[::-1]
    assert blocks_of(pool) == before


def test_a_request_does_not_merge_thousands_of_cached_slabs() -> None:
    """Merging all of them would block the event loop for milliseconds."""
    pool = BufferPool(4 * 1024 * 1024)
    for slab in [pool.take(1024, 1024) for _ in range(4096)]:
        pool.release(slab)
    slab = pool.take(2048, 2048)
    assert slab.memory.obj is pool.arena
    assert sum(map(len, blocks_of(pool))) == 256 - 2
    # A request larger than the merged block merges some more, or else uses the heap, but does not wait.
    large = pool.take(2 * 1024 * 1024, 2 * 1024 * 1024)
    assert large.size == 2 * 1024 * 1024
    assert sum(map(len, blocks_of(pool))) <= 2 * 256


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has no transparent huge pages"
)
def test_the_arena_takes_no_huge_pages() -> None:
    """With huge pages by default, a thousand producers that had sent one record each once took 2 GiB."""
    pool = BufferPool(1 << 25)
    assert pool.arena is not None
    pin = ctypes.c_char.from_buffer(pool.arena)
    address = ctypes.addressof(pin)
    flags = []
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            begin, end = (int(bound, 16) for bound in first.split("-"))
            inside = begin <= address < end
        elif inside and first == "VmFlags:":
            flags = rest
    assert "nh" in flags
    del pin
