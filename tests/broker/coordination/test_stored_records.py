"""Loading a partition's records, without a broker around it."""

from __future__ import annotations

import asyncio

from aioproducer.broker.coordination.stored_records import stored_records

from .replica import Replica


async def _keys(replica: Replica) -> list[bytes | None]:
    return [record.key async for _, record in stored_records(replica)]  # type: ignore[arg-type]  # a replica of tests


async def test_a_load_ends_when_all_records_are_replicated() -> None:
    """A coordinator answered by a record that the next one did not have: a transaction lost a partition."""
    replica = Replica(replicates=False)
    replica.store((b"a", b"1"))
    replica.store((b"b", b"1"))
    loading = asyncio.ensure_future(_keys(replica))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not loading.done()
    replica.replicate()
    assert await loading == [b"a", b"b"]
    assert replica.watchers == []


async def test_a_load_ends_with_the_leadership() -> None:
    replica = Replica(replicates=False)
    replica.store((b"a", b"1"))
    loading = asyncio.ensure_future(_keys(replica))
    await asyncio.sleep(0)
    replica.is_leader = False
    for watcher in tuple(replica.watchers):
        watcher()
    assert await loading == [b"a"]
