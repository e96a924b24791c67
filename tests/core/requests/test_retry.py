"""Backoff: the rule of Kafka's ExponentialBackoff, and attempts that follow it."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.core.requests.retry import Attempts, ExponentialBackoff

waits_ms = st.floats(0, 100_000)
jitters = st.floats(0, 1)


class Extreme(Random):
    """Draws the lower or the upper end of every range."""

    def __init__(self, fraction: float) -> None:
        super().__init__()
        self.fraction = fraction

    def random(self) -> float:
        return self.fraction


def test_backoffs_double_up_to_the_maximum() -> None:
    backoff = ExponentialBackoff(50, 1000, jitter=0)
    assert [backoff.delay(attempt, Random(1)) for attempt in range(7)] == pytest.approx(
        [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    )


@pytest.mark.parametrize(("fraction", "factor"), [(0.0, 0.8), (1.0, 1.2)])
def test_jitter_is_at_most_20_percent_either_way(fraction: float, factor: float) -> None:
    backoff = ExponentialBackoff(50, 1000)
    random = Extreme(fraction)
    for attempt in range(4):
        assert backoff.delay(attempt, random) == pytest.approx(0.05 * 2**attempt * factor)
    assert backoff.delay(5, random) == pytest.approx(min(1.0, 1.0 * factor))


@settings(max_examples=300)
@given(waits_ms, waits_ms, st.floats(1.01, 10), jitters, st.integers(0, 10**9), st.integers())
def test_every_backoff_is_within_its_bounds(
    initial: float, maximum: float, multiplier: float, jitter: float, attempt: int, seed: int
) -> None:
    delay = ExponentialBackoff(initial, maximum, multiplier, jitter).delay(attempt, Random(seed))
    capped = min(initial, maximum) / 1000
    assert 0 <= delay <= maximum / 1000
    assert delay >= capped * (1 - jitter) - 1e-9
    if attempt == 0:
        assert delay <= capped * (1 + jitter) + 1e-9


def test_an_initial_backoff_above_the_maximum_is_always_the_maximum() -> None:
    backoff = ExponentialBackoff(5000, 1000)
    assert {backoff.delay(attempt, Random(attempt)) for attempt in range(5)} == {1.0}


def test_a_zero_backoff_stays_zero() -> None:
    assert ExponentialBackoff(0, 1000).delay(20, Random(1)) == 0
    assert ExponentialBackoff(0, 0).delay(20, Random(1)) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((-1, 10), "negative"),
        ((1, -10), "negative"),
        ((1, 10, 1), "multiplier"),
        ((1, 10, 2, 1.5), "jitter"),
        ((1, 10, 2, -0.1), "jitter"),
    ],
)
def test_invalid_settings_are_rejected(arguments: tuple[float, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ExponentialBackoff(*arguments)


def test_attempts_back_off_until_one_succeeds() -> None:
    attempts = Attempts(ExponentialBackoff(50, 1000, jitter=0), Random(1))
    assert attempts.delay(100.0) == 0
    attempts.failed(100.0)
    assert attempts.retry_at == pytest.approx(100.05)
    attempts.failed(100.05)
    assert attempts.retry_at == pytest.approx(100.15)
    assert attempts.delay(100.10) == pytest.approx(0.05)
    assert attempts.delay(100.2) == 0
    attempts.succeeded()
    assert (attempts.failures, attempts.retry_at) == (0, -math.inf)
    attempts.failed(200.0)
    assert attempts.retry_at == pytest.approx(200.05)
