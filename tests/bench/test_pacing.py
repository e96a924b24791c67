"""Records at scheduled times."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from time import monotonic_ns

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import pacing
from bench.pacing import Schedule

MS = 1_000_000


def test_records_become_due_one_interval_after_another() -> None:
    schedule = Schedule(2000, 4, began=10 * MS)
    assert schedule.take(10 * MS) == []
    assert schedule.take(10 * MS + 499_999) == []
    assert schedule.take(10 * MS + 500_000) == [10 * MS + 500_000]
    assert schedule.take(10 * MS + 500_001) == []
    assert not schedule.ended


def test_records_delayed_by_a_pause_keep_their_scheduled_times() -> None:
    """A pause of the client does not reduce the records that it has to send (coordinated omission)."""
    schedule = Schedule(1000, 100, began=0)
    assert schedule.take(1 * MS) == [1 * MS]
    assert schedule.take(51 * MS + 5) == [number * MS for number in range(2, 52)]


def test_a_schedule_ends_with_its_last_record() -> None:
    schedule = Schedule(1000, 3, began=0)
    assert schedule.take(2 * MS) == [1 * MS, 2 * MS]
    assert not schedule.ended
    assert schedule.take(900 * MS) == [3 * MS]
    assert schedule.ended
    assert schedule.take(901 * MS) == []


@given(st.lists(st.integers(0, 30 * MS)), st.integers(1, 40))
def test_each_record_is_due_once_whenever_the_clock_is_read(times: list[int], count: int) -> None:
    schedule = Schedule(2000, count, began=0)
    found = [one for now in sorted(times) for one in schedule.take(now)]
    found += schedule.take(1000 * MS)
    assert found == [(number + 1) * MS // 2 for number in range(count)]
    assert schedule.ended


@pytest.mark.parametrize("rate", [0, -5, 3, 2_000_000_000])
def test_a_rate_without_a_whole_interval_is_rejected(rate: int) -> None:
    with pytest.raises(ValueError, match=f"Invalid rate: {rate} records/s. It must divide 1000000000"):
        Schedule(rate, 1, 0)


def test_a_schedule_of_nothing_is_rejected() -> None:
    with pytest.raises(ValueError, match="Nothing to schedule: 0 records"):
        Schedule(1000, 0, 0)


async def test_a_loop_is_called_for_each_record_and_never_early() -> None:
    late = []
    began = monotonic_ns()
    scheduled = []

    def send(due: int) -> None:
        late.append(monotonic_ns() - due)
        scheduled.append(due)

    await pacing.at_rate(2000, 40, send)
    assert len(scheduled) == 40
    assert {after - before for before, after in pairwise(scheduled)} == {MS // 2}
    assert scheduled[0] >= began + MS // 2
    assert min(late) >= 0


async def test_an_error_of_a_send_ends_the_pacing() -> None:
    def send(due: int) -> None:
        raise BufferError("full")

    with pytest.raises(BufferError, match="full"):
        await asyncio.wait_for(pacing.at_rate(1000, 10, send), 10)


def test_a_thread_is_called_for_each_record_and_never_early() -> None:
    late = []
    pacing.at_rate_blocking(2000, 40, lambda due: late.append(monotonic_ns() - due))
    assert len(late) == 40
    assert min(late) >= 0
