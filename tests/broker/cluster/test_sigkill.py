"""A broker process that is killed: acknowledged records and decisions of the controller survive."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from aioproducer.broker import BrokerCluster
from aioproducer.broker.server.peer import PeerClient
from aioproducer.protocol.messages import InitProducerIdRequest, ProduceRequest
from aioproducer.protocol.messages.produce import PartitionProduceData, TopicProduceData
from aioproducer.transport.stream import StreamConnector
from aioproducer.wire.record_batch import SimpleRecord, encode_batch, iter_batches

SERVER = """
import asyncio, sys
from pathlib import Path
from aioproducer.broker import BrokerCluster

async def main():
    async with BrokerCluster(2, data_dir=Path(sys.argv[1])) as cluster:
        if "t" not in cluster.image.topics:
            cluster.create_topic("t", 1, 2)
        while len(cluster.image.partition("t", 0).isr) < 2:
            await asyncio.sleep(0.01)
        print(cluster.brokers[1].port, cluster.image.partition("t", 0).leader, flush=True)
        await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


async def test_sigkill_loses_no_acknowledged_record(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    producer_ids: list[int] = []
    for round_number in range(3):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SERVER, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(30):
                port, leader = map(int, (await process.stdout.readline()).split())
            assert leader == 1, "as it was before"
            peer = PeerClient(StreamConnector(), "127.0.0.1", port)
            answer = await peer.request(
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4, timeout=10
            )
            producer_ids.append(answer.producer_id)

            async def produce(peer: PeerClient = peer, round_number: int = round_number) -> None:
                for number in range(10_000):
                    value = b"%d-%d" % (round_number, number)
                    batch = b"".join(encode_batch([SimpleRecord(timestamp=1, key=None, value=value)]))
                    partition = PartitionProduceData(index=0, records=batch)
                    data = TopicProduceData(name="t", partition_data=[partition])
                    response = await peer.request(
                        ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), 9, timeout=10
                    )
                    assert response.responses[0].partition_responses[0].error_code == 0
                    acknowledged.append(value)

            producing = asyncio.ensure_future(produce())
            before = len(acknowledged)
            async with asyncio.timeout(30):
                while len(acknowledged) < before + 50:  # noqa: ASYNC110  # progress of another task
                    await asyncio.sleep(0.001)
            os.kill(process.pid, signal.SIGKILL)
            await asyncio.wait([producing])
            assert isinstance(producing.exception(), OSError)
            peer.close()
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()
    async with BrokerCluster(2, data_dir=tmp_path) as cluster:
        partition = cluster.brokers[1].replicas.partition("t", 0)
        end = partition.log_end_offset
        parts = partition.log.read(0, 1 << 24, up_to=end, min_one_batch=True)
        stored = [
            bytes(record.value or b"") for part in parts for batch in iter_batches(part) for record in batch.records()
        ]
    assert len(stored) == end
    # Records in flight when a process died may be stored too, once.
    assert len(stored) <= len(acknowledged) + 3
    present = iter(stored)
    assert all(value in present for value in acknowledged), "in order"
    assert len(set(producer_ids)) == 3
