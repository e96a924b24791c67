"""BatchMemory: the sizes of the slabs of batches, and when a batch gets none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.core.batching.batch_memory import BatchMemory
from aioproducer.core.batching.buffer_pool import SMALLEST_SLAB, BufferPool
from tests.core.accumulating import Bench

KIB = 1024


def first_of(
    expected: int, limit: int, *, compresses: bool = False, total: int = 1 << 24, open_batches: int = 0
) -> int:
    """Return the size of the first slab of a batch if the last one of the partition had ``expected`` bytes."""
    memory = BatchMemory(BufferPool(total), batch_size=limit, compresses=compresses)
    slab = memory.first(100, expected, limit, open_batches, 0)
    assert slab is not None
    return slab.size


@given(st.integers(0, 16 * KIB))
def test_a_small_batch_gets_as_much_as_the_last_one_used(expected: int) -> None:
    assert first_of(expected, 128 * KIB) == max(-(-expected // SMALLEST_SLAB), 1) * SMALLEST_SLAB


def test_batches_more_than_half_full_use_few_distinct_sizes() -> None:
    sizes = {first_of(expected, 128 * KIB) for expected in range(64 * KIB + 1, 160 * KIB, 500)}
    assert len(sizes) <= 8
    assert max(sizes) == 128 * KIB


@given(st.integers(64 * KIB + 1, 128 * KIB))
def test_the_first_slab_holds_the_expected_size_with_little_excess(expected: int) -> None:
    assert expected <= first_of(expected, 128 * KIB) <= expected + 128 * KIB // 16


@given(expected=st.integers(100, 128 * KIB), limit=st.integers(4 * KIB, 1024 * KIB))
def test_compressed_batches_get_powers_of_two(expected: int, limit: int) -> None:
    size = first_of(expected, limit, compresses=True)
    assert size & (size - 1) == 0
    expected = min(expected, limit)
    # Or a whole kibibyte, which is the least.
    assert expected / 2 <= size <= max(expected * 8 / 7, SMALLEST_SLAB)


def test_with_many_open_batches_each_starts_small() -> None:
    assert first_of(16 * KIB, 16 * KIB, total=1 << 20, open_batches=16) == 16 * KIB
    assert first_of(16 * KIB, 16 * KIB, total=1 << 20, open_batches=17) == KIB


@pytest.mark.parametrize("is_first", [True, False])
def test_small_remainders_are_left_while_more_memory_will_be_released(is_first: bool) -> None:
    """They are used if no more memory will be released: a waiting record would wait forever."""
    bench = Bench(topics={"t": 1}, memory=1 << 20)
    bench.send(b"x" * 900, partition=0)
    batch = bench.queue().open_batch
    pool = BufferPool(80 * KIB)
    memory = BatchMemory(pool, batch_size=64 * KIB, compresses=False)

    def take(in_progress: int) -> object:
        if is_first:
            return memory.first(1000, 64 * KIB, 64 * KIB, 0, in_progress)
        return memory.next(batch, 20 * KIB, in_progress)

    pool.charge(16 * KIB)
    assert take(in_progress=1) is not None
    pool.charge(pool.available_memory - 10 * KIB)
    assert take(in_progress=1) is None
    assert pool.available_memory == 10 * KIB
    assert (take(in_progress=0) is None) == (not is_first)


def test_a_batch_doubles_when_it_grows() -> None:
    bench = Bench(topics={"t": 1}, memory=1 << 20, batch_size=256 * KIB)
    pool = BufferPool(1 << 20)
    memory = BatchMemory(pool, batch_size=256 * KIB, compresses=False)
    sizes = []
    for _ in range(200):
        bench.send(b"x" * 1000, partition=0)
        slab = memory.next(bench.queue().open_batch, 1000, 0)
        assert slab is not None
        sizes.append(slab.size)
        pool.release(slab)
    assert sizes == sorted(sizes)
    assert sizes[0] == KIB
    assert {size & (size - 1) for size in sizes} == {0}
    assert sizes[-1] >= 32 * KIB
