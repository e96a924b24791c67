"""Numbers and their nouns."""

from __future__ import annotations

import pytest

from aioproducer.diagnosis import buffer_full, delivery_timed_out, line_full
from aioproducer.texts import are, counted, plural, were


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "record", "0 records"),
        (1, "record", "1 record"),
        (2, "batch", "2 batches"),
        (3, "retry", "3 retries"),
        (1, "retry", "1 retry"),
        (2, "failed partition", "2 failed partitions"),
    ],
)
def test_nouns_agree_with_their_number(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
    assert text.endswith(plural(count, noun))


def test_verbs_agree_with_their_number() -> None:
    assert [are(count) for count in (0, 1, 2)] == ["are", "is", "are"]
    assert [were(count) for count in (0, 1, 2)] == ["were", "was", "were"]


def test_errors_of_one_record_are_in_the_singular() -> None:
    assert "1 record for t-0 was not acknowledged" in str(delivery_timed_out("t-0", 1, 10, sent=True))
    assert "with 1 send in line" in str(buffer_full(10, 100, 5, 1))
    assert "No place in line for 1 byte: 1 send with 100 bytes already waits" in str(line_full(1, 100, 100, 1))
