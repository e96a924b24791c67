"""The loop of ``consume --group`` in a process with its group."""

from __future__ import annotations

import asyncio
import signal

import pytest

from aioproducer import TopicPartition
from aioproducer.cli.group_reading import GroupReading
from aioproducer.cli.running import Interruption
from tests.consumer.group_helpers import TIMEOUT, cluster_of, fill, member_of, until

CLICKS = TopicPartition("clicks", 0)


async def _polled(consumer):
    found = await consumer.poll(0.05)
    return [int(record.value) for records in found.values() for record in records]


@pytest.mark.parametrize("is_gathering", [False, True])
async def test_offsets_that_another_member_has_committed_meanwhile_are_not_set_back(is_gathering):
    """Another member takes the partition, reads more of it, and leaves."""
    written = []

    async def write(records):
        written.extend(records)

    async with cluster_of(transport="tcp", partitions=1) as cluster:
        await fill(cluster, 4, partitions=1)
        config = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "billing",
            # The range assignor gives the partition to the first member id, which begins with the client id.
            "client.id": "b",
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 20,
        }
        reading = GroupReading(config, "clicks", write, timeout=TIMEOUT, max_records=None, is_gathering=is_gathering)
        interruption = Interruption()
        await reading.start()
        task = asyncio.create_task(reading.read(None, interruption, TIMEOUT))
        await until(lambda: len(written) == 4)
        async with member_of(cluster, "clicks", client_id="a", enable_auto_commit=False) as other:
            # What is gathered is not committed before the output is finished, and other members read it again.
            seen = []
            async with asyncio.timeout(TIMEOUT):
                while CLICKS not in other.assignment():
                    seen += await _polled(other)
                await fill(cluster, 2, first=4, partitions=1)
                while 5 not in seen:
                    seen += await _polled(other)
            assert seen == list(range(0 if is_gathering else 4, 6))
            await other.commit()
        await until(lambda: CLICKS in reading._consumer.assignment())
        interruption.handle(signal.SIGTERM)
        await asyncio.wait_for(task, TIMEOUT)
        if is_gathering:
            await reading.commit()
        await reading.close()
        assert cluster.committed("billing") == {CLICKS: 6}
