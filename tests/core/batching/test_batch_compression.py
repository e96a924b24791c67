"""The estimate of the compression ratio of a topic."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.core.batching.batch_compression import CompressionRatios

RATIOS = st.floats(0.001, 2.0)


def test_the_initial_estimate_is_no_compression() -> None:
    assert CompressionRatios().estimate("t") == 1.0


@settings(max_examples=200)
@given(st.lists(RATIOS, max_size=30), RATIOS)
def test_the_estimate_worsens_at_once_and_improves_slowly(earlier: list[float], observed: float) -> None:
    ratios = CompressionRatios()
    for each in earlier:
        ratios.observe("t", each)
    before = ratios.estimate("t")
    ratios.observe("t", observed)
    after = ratios.estimate("t")
    assert after > 0
    assert after >= observed
    if observed > before:
        assert after == pytest.approx(max(before + 0.05, observed))
    else:
        assert before - 0.005 - 1e-9 <= after <= before


@settings(max_examples=50)
@given(RATIOS, RATIOS)
def test_after_a_split_the_estimate_is_no_compression(earlier: float, observed: float) -> None:
    ratios = CompressionRatios()
    ratios.observe("t", earlier)
    ratios.reset("t", observed)
    assert ratios.estimate("t") == max(1.0, observed)


def test_estimates_are_per_topic_and_can_be_forgotten() -> None:
    ratios = CompressionRatios()
    ratios.observe("t", 0.1)
    assert ratios.estimate("other") == 1.0
    assert ratios.estimate("t") == 0.995
    ratios.forget("t")
    ratios.forget("never seen")
    assert ratios.estimate("t") == 1.0
