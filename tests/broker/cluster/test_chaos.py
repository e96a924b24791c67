"""Nodes die, stop, restart and exchange leadership while records are written; nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioproducer.broker import BrokerCluster
from aioproducer.broker.server.peer import PeerClient
from aioproducer.errors import KafkaError
from aioproducer.protocol.messages import ProduceRequest
from aioproducer.protocol.messages.produce import PartitionProduceData, TopicProduceData
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.wire.record_batch import SimpleRecord, encode_batch, iter_batches
from tests.waiting import until

PARTITIONS = 3
PROPERTIES = {"default.replication.factor": 3, "min.insync.replicas": 2}


class Writer:
    """Writes numbers to one partition, each until it is acknowledged."""

    def __init__(self, cluster: BrokerCluster, network: MemoryNetwork, partition: int) -> None:
        self.acknowledged: list[bytes] = []
        self._cluster = cluster
        self._network = network
        self._partition = partition
        self._peers: dict[int, PeerClient] = {}

    async def run(self) -> None:
        number = 0
        while True:
            value = b"%d" % number
            if await self._write(value):
                self.acknowledged.append(value)
                number += 1
            else:
                await asyncio.sleep(0.001)

    async def _write(self, value: bytes) -> bool:
        node = self._cluster.image.nodes.get(self._cluster.image.partition("t", self._partition).leader)
        if node is None:
            return False
        if node.node_id not in self._peers:
            self._peers[node.node_id] = PeerClient(self._network, node.host, node.port)
        batch = b"".join(encode_batch([SimpleRecord(timestamp=1, key=None, value=value)]))
        partition = PartitionProduceData(index=self._partition, records=batch)
        request = ProduceRequest(
            acks=-1, timeout_ms=2000, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
        )
        try:
            response = await self._peers[node.node_id].request(request, 9, timeout=5)
        except (OSError, KafkaError):
            return False
        return response.responses[0].partition_responses[0].error_code == 0

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()


async def _disturb(cluster: BrokerCluster, chance: random.Random) -> None:
    """Disturb a cluster once; at most one node is down at a time, so that there is always an ISR."""
    await asyncio.sleep(chance.uniform(0, 0.03))
    node_id = chance.randint(1, 3)
    match chance.choice(("kill", "stop", "move", "move")):
        case "move":
            with contextlib.suppress(KafkaError):
                cluster.controller.elect_leader("t", chance.randrange(PARTITIONS), node_id)
            return
        case "kill":
            await cluster.kill(node_id)
        case "stop":
            await cluster.brokers[node_id].stop()
    await asyncio.sleep(chance.uniform(0, 0.03))
    await cluster.restart(node_id)
    async with asyncio.timeout(20):
        while any(len(state.isr) < 3 for state in cluster.image.topic("t").partitions):  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
async def test_no_acknowledged_record_is_lost(seed: int, on_disk: bool, tmp_path: Path) -> None:
    data_dir = tmp_path if on_disk else None
    chance = random.Random(seed)
    network = MemoryNetwork()
    async with BrokerCluster(3, network=network, data_dir=data_dir, properties=PROPERTIES) as cluster:
        cluster.create_topic("t", PARTITIONS)
        writers = [Writer(cluster, network, partition) for partition in range(PARTITIONS)]
        tasks = [asyncio.ensure_future(writer.run()) for writer in writers]
        for _ in range(15):
            await _disturb(cluster, chance)
        await until(lambda: all(len(writer.acknowledged) > 20 for writer in writers), 60, pause=0.002)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        for writer in writers:
            writer.close()
        for index, writer in enumerate(writers):
            assert len(writer.acknowledged) > 20
            replicas = [broker.replicas.partition("t", index) for broker in cluster.brokers.values()]
            async with asyncio.timeout(20):
                while len({replica.log_end_offset for replica in replicas}) > 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
            contents = [list(_values(cluster, node_id, index)) for node_id in (1, 2, 3)]
            assert contents[0] == contents[1] == contents[2]
            stored = iter(contents[0])
            assert all(value in stored for value in writer.acknowledged), "each is there, in order"


def _values(cluster: BrokerCluster, node_id: int, index: int) -> Iterator[bytes]:
    log = cluster.brokers[node_id].replicas.partition("t", index).log
    for part in log.read(0, 1 << 30, up_to=log.log_end_offset, min_one_batch=True):
        for batch in iter_batches(part):
            for record in batch.records():
                yield bytes(record.value or b"")
