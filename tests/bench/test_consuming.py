"""The bench of consumers: what it counts, and that each of our forms reads every record."""

from __future__ import annotations

import pytest

from aioproducer.testing import EmbeddedCluster
from bench.consuming import CODECS, SIZES, Stopwatch, _ours, fill, topic_of


def test_the_end_is_the_call_that_returns_the_last_record() -> None:
    watch = Stopwatch(100)
    assert not watch.add(99)
    assert watch.result is None
    assert watch.add(20)
    assert watch.result is not None
    assert watch.result["rate"] > 0
    assert watch.result["cpu_us"] >= 0


@pytest.mark.parametrize("form", ["async for", "poll", "poll_arrow"])
async def test_each_form_reads_every_record(form: str) -> None:
    pytest.importorskip("pyarrow")
    async with EmbeddedCluster() as cluster:
        await fill(cluster.bootstrap_servers, 1000)
        for size in SIZES:
            for codec in CODECS:
                assert {len(record.value or b"") for record in cluster.records(topic_of(size, codec))} == {size}
                read = 0
                counts = _ours(cluster.bootstrap_servers, topic_of(size, codec), form)
                async for count in counts:
                    read += count
                    if read >= 1000:
                        break
                await counts.aclose()  # type: ignore[attr-defined]  # a generator
                assert read == 1000
