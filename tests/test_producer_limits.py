"""Producers with extreme configurations: every record has an outcome, and all memory is released."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer import Producer
from aioproducer.errors import BufferExhaustedError, RecordTooLargeError
from aioproducer.testing import EmbeddedCluster

# A header has 61 bytes, a slab 1,024.
CONFIGURATIONS = st.fixed_dictionaries(
    {
        "batch_size": st.integers(0, 80) | st.sampled_from([131, 1000, 16384]),
        "max_request_size": st.sampled_from([62, 70, 100, 200, 1000, 1_048_576]),
        "buffer_memory": st.sampled_from([62, 100, 1023, 1024, 1025, 1500, 5000, 33_554_432]),
        "compression_type": st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
        "linger_ms": st.sampled_from([0, 1]),
        "max_in_flight_requests_per_connection": st.sampled_from([1, 5]),
    }
)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.sampled_from([b"", b"v", b"v" * 60, b"v" * 300, None]),
            "key": st.sampled_from([None, b"", b"key"]),
            "partition": st.sampled_from([None, None, 0, 1]),
            "headers": st.sampled_from([(), [("h", b"h" * 30)]]),
        }
    ),
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(CONFIGURATIONS, RECORDS, st.booleans())
def test_every_record_has_an_outcome(configuration: dict[str, Any], records: list[dict[str, Any]], known: bool) -> None:
    async def send_all() -> None:
        async with EmbeddedCluster(transport="memory") as cluster:
            cluster.create_topic("t", partitions=2)
            async with asyncio.timeout(20), cluster.producer(**configuration) as producer:
                if known:
                    await producer.partitions_for("t")
                deliveries = []
                for record in records:
                    try:
                        deliveries.append(producer.send("t", **record))
                    except BufferExhaustedError:
                        assert configuration["buffer_memory"] < 6000
                    await producer.drain()
                outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
                errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
                assert {type(error) for error in errors} <= {RecordTooLargeError}
                assert not errors or min(configuration["max_request_size"], configuration["buffer_memory"]) < 500
                await producer.flush()
                metrics = producer.metrics()
                assert metrics["buffer-available-bytes"] == configuration["buffer_memory"]
                assert metrics["record-send-total"] == len(outcomes) - len(errors)

    asyncio.run(send_all())


class SlowSerializer:
    async def serialize(self, topic: str, value: object, headers: object) -> bytes:
        await asyncio.sleep(60)
        return b""


def _send_for_ever(producer: Producer, record: dict[str, Any]) -> None:
    while True:
        producer.send("clicks", **record)


@pytest.mark.parametrize(
    ("record", "configuration"),
    [
        ({"value": b"v" * 100, "key": b"k" * 100}, {}),
        ({"value": b"v", "headers": [("h", None)] * 1000}, {}),
        ({"value": b"v", "headers": [(name, bytearray(1)) for name in "abcdefgh"]}, {}),
        ({"value": "v"}, {"value_serializer": SlowSerializer()}),
    ],
)
async def test_blocked_records_occupy_about_the_memory_they_are_charged(
    record: dict[str, Any], configuration: dict[str, Any]
) -> None:
    """With 4 MiB of buffer_memory, records with 1,000 headers once took 170 MiB, with async serializers 20 MiB."""
    limit = 1 << 20
    producer = Producer(bootstrap_servers="localhost:1", buffer_memory=limit, **configuration)
    await producer.start()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        with pytest.raises(BufferExhaustedError):
            _send_for_ever(producer, record)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await producer.close(0)
    assert after - before < 1.5 * limit
