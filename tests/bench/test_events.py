"""The JSON events that the bench sends."""

from __future__ import annotations

from itertools import islice

import orjson
import pytest

from bench import events
from bench.job import CHUNK


@pytest.mark.parametrize("size", [100, 1000])
def test_events_have_about_the_requested_size(size: int) -> None:
    sizes = [len(orjson.dumps(event)) for event, _, _ in islice(events.stream(size), 2000)]
    assert sum(sizes) / len(sizes) == pytest.approx(size, rel=0.05)
    assert all(0.9 * size < one < 1.1 * size for one in sizes)


@pytest.mark.parametrize("size", [100, 1000])
def test_each_event_is_another_object_with_other_content(size: int) -> None:
    made = list(islice(events.stream(size), 2500))
    assert len({id(event) for event, _, _ in made}) == len({orjson.dumps(event) for event, _, _ in made}) == 2500
    # An interceptor may append to the list.
    assert len({id(headers) for _, _, headers in made}) == 2500


def test_events_are_the_same_in_each_process() -> None:
    assert list(islice(events.stream(1000), 50)) == list(islice(events.stream(1000), 50))
    (event, key, headers) = next(events.stream(100))
    assert event == {
        "type": "payment.captured",
        "order": 40_000_000,
        "customer": 100_000,
        "cents": 199,
        "time_ms": 1_741_000_000_000,
    }
    assert key == b"customer-100000"
    assert [name for name, _ in headers] == ["traceparent", "content-type"]


@pytest.mark.parametrize("records", [0, 1, CHUNK, 2 * CHUNK + 7])
def test_chunks_have_the_requested_number_of_events(records: int) -> None:
    found = list(events.chunks(100, records))
    assert sum(map(len, found)) == records
    assert all(len(chunk) == CHUNK for chunk in found[:-1])
    assert [event["order"] - 40_000_000 for chunk in found for event, _, _ in chunk] == list(range(records))


def test_an_event_of_another_size_is_rejected() -> None:
    with pytest.raises(ValueError, match="No event of 500 bytes: event_size must be one of 100, 1000"):
        events.stream(500)
