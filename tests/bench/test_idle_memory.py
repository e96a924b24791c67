"""The memory bench: it creates the objects that it divides by, and idle producers stay below its limit."""

from __future__ import annotations

import tracemalloc

import pytest

from aioproducer.testing import EmbeddedCluster
from bench import idle_memory, memory

SMAPS = """\
55a236f78000-7ffff20b4000 ---p 00000000 00:00 0                          [rollup]
Rss:                1640 kB
Shared_Dirty:        999 kB
Private_Clean:        40 kB
Private_Dirty:       112 kB
Swap:                  8 kB
SwapPss:               8 kB
"""


def test_private_memory_excludes_shared_memory() -> None:
    assert memory.private_of(SMAPS) == 160 * 1024
    assert memory.private() > 2**20
    with pytest.raises(ValueError, match="no private memory"):
        memory.private_of("Rss: 1640 kB")


def test_memory_of_busy_partitions_is_not_counted_for_idle_ones() -> None:
    with_idle = {"private": 9_900_000.0 + 1000, "live": 1_980_000.0 + 500}
    found = idle_memory.for_each_idle_partition(with_idle, {"private": 1000.0, "live": 500.0})
    assert found == {"private": 500, "live": 100}
    assert idle_memory.IDLE + idle_memory.BUSY == 20_000
    assert idle_memory.BUSY == 0.01 * 20_000


@pytest.mark.parametrize("kind", ["sent", "transport", "socket"])
async def test_an_idle_producer_takes_less_than_its_limit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's side of the connection counts too, as it is in the same process here."""
    monkeypatch.setattr(idle_memory, "SETTLING", 0)
    async with EmbeddedCluster() as cluster:
        tracemalloc.start()
        try:
            measured = await idle_memory.measure_many(kind, cluster.bootstrap_servers, 20, show=False)
        finally:
            tracemalloc.stop()
        records = len(cluster.records("producers")) if kind == "sent" else 0
    assert records == (20 + idle_memory.WARM_UP if kind == "sent" else 0)
    assert 0 < measured["live"] < idle_memory.LIMITS["sent"]


async def test_all_partitions_are_known_and_some_have_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_memory, "TOPICS", 2)
    monkeypatch.setattr(idle_memory, "PARTITIONS_OF_TOPIC", 5)
    monkeypatch.setattr(idle_memory, "BUSY_OF_TOPIC", 1)
    monkeypatch.setattr(idle_memory, "BUSY", 2)
    async with EmbeddedCluster(properties={"num.partitions": "5"}) as cluster:
        for topic in range(2):
            cluster.create_topic(f"partitions-{topic}", 5)
        for kind, used in (("idle", {0}), ("used", {0, 1, 2, 3, 4})):
            await idle_memory.measure_partitions(kind, cluster.bootstrap_servers, show=False)
            for topic in range(2):
                assert {record.partition for record in cluster.records(f"partitions-{topic}")} == used


def test_too_low_a_limit_of_open_files_is_reported_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_memory.resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(idle_memory.resource, "setrlimit", lambda *_: pytest.fail("the limit is too low to be raised"))
    with pytest.raises(SystemExit, match=r"3100 open files, the limit is 1024: raise it \(ulimit -Hn\)"):
        idle_memory.main(["--producers", "1000"])


def test_no_producers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        idle_memory.main(["--producers", "0"])
    assert "--producers 0: at least 1 is needed" in capsys.readouterr().err


def test_a_limit_that_is_exceeded_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bytes_of = {"sent": 100_000.0, "busy": 0.0, "idle": 1000.0 * idle_memory.IDLE}
    monkeypatch.setattr(idle_memory, "measure", lambda kind, *_: {"private": bytes_of[kind], "live": 5000.0})
    monkeypatch.setattr(idle_memory, "_create_topics", _nothing)
    arguments = ["--producers", "1", "--loop", "asyncio", "--kind", "sent", "--kind", "idle"]
    assert idle_memory.main(arguments) == 0
    assert "| producer that has sent a record | asyncio | 100,000 | 5,000 |" in capsys.readouterr().out
    bytes_of["idle"] += idle_memory.IDLE
    assert idle_memory.main(arguments) == 1


async def _nothing(bootstrap_servers: str) -> None:
    """Create no topics."""
