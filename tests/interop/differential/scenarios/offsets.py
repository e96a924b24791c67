"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

import asyncio

from aioproducer.protocol.messages import DeleteRecordsRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from aioproducer.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsTopic,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.interop.differential.batches import TIMESTAMP, batch
from tests.interop.differential.scenario import Run, fetch, produce, scenario, versions
from tests.interop.differential.scenarios.groups import coordinator


def _offsets(
    name: str, timestamp: int, *, partition: int = 0, epoch: int = -1, isolation: int = 0, replica: int = -1
) -> ListOffsetsRequest:
    found = ListOffsetsPartition(partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp)
    return ListOffsetsRequest(
        replica_id=replica,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=name, partitions=[found])],
        timeout_ms=5000,
    )


@scenario()
async def list_offsets(run: Run) -> None:
    empty = await run.create("empty")
    topic = await run.create()
    await run.append(topic, batch(3), batch(3, timestamp=TIMESTAMP + 1000), batch(3, timestamp=TIMESTAMP + 500))
    await run.append(topic, batch(2, timestamp=TIMESTAMP + 990, compression_type="gzip"))
    for version in versions(ListOffsetsRequest):
        for special in (-1, -2, -3, -4, -5, -6, -7, -100):
            await run.ask(f"version {version} special {special}", _offsets(topic.name, special), version)
            await run.ask(f"version {version} special {special} of none", _offsets(empty.name, special), version)
    for change in (-1000, 0, 1, 2, 3, 499, 500, 502, 503, 989, 991, 1000, 1001, 1002, 1003, 10**9):
        for version in (1, 6, 11):
            await run.ask(f"version {version} time {change}", _offsets(topic.name, TIMESTAMP + change), version)
    await run.ask("time of none", _offsets(empty.name, TIMESTAMP))
    await run.ask("time zero", _offsets(topic.name, 0))
    for version in (2, 7, 11):
        await run.ask(f"version {version} committed", _offsets(topic.name, -1, isolation=1), version)
        await run.ask(f"version {version} committed by time", _offsets(topic.name, TIMESTAMP, isolation=1), version)


@scenario()
async def list_offsets_errors(run: Run) -> None:
    topic = await run.create()
    await run.append(topic, batch(3))
    for version in (1, 4, 6, 11):
        await run.ask(f"version {version} unknown topic", _offsets(run.name("unknown"), -1), version)
        await run.ask(f"version {version} unknown partition", _offsets(topic.name, -1, partition=4), version)
        await run.ask(f"version {version} negative partition", _offsets(topic.name, -1, partition=-1), version)
        await run.ask(f"version {version} name", _offsets("a b", -1), version)
        for replica in (-2, -3, 1, 2):
            await run.ask(f"version {version} replica {replica}", _offsets(topic.name, -1, replica=replica), version)
        if version >= 4:
            for epoch in (0, 1, 7, -2):
                await run.ask(f"version {version} epoch {epoch}", _offsets(topic.name, -1, epoch=epoch), version)
    twice = _offsets(topic.name, -1)
    twice.topics[0].partitions.append(ListOffsetsPartition(partition_index=0, timestamp=-2))
    for version in (1, 11):
        await run.ask(f"version {version} twice", twice, version)
    await run.ask("nothing", ListOffsetsRequest(replica_id=-1))
    await run.ask("level 5", _offsets(topic.name, -1, isolation=5))


@scenario()
async def list_offsets_of_log_append_time(run: Run) -> None:
    topic = await run.create(configs={"message.timestamp.type": "LogAppendTime"})
    await run.append(topic, batch(3))
    # The second one must be later, by a clock of milliseconds.
    await asyncio.sleep(0.01)
    await run.append(topic, batch(2))
    for version in (1, 7, 11):
        for timestamp in (-1, -2, -3, TIMESTAMP, 2**62):
            await run.ask(f"version {version} time {timestamp}", _offsets(topic.name, timestamp), version)


def leader_epoch(name: str, epoch: int, *, partition: int = 0, current: int = -1) -> OffsetForLeaderEpochRequest:
    found = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=name, partitions=[found])])


@scenario()
async def offset_for_leader_epoch(run: Run) -> None:
    empty = await run.create("empty")
    topic = await run.create()
    await run.append(topic, batch(3))
    for version in versions(OffsetForLeaderEpochRequest):
        for epoch in (-2, -1, 0, 1, 7):
            await run.ask(f"version {version} epoch {epoch}", leader_epoch(topic.name, epoch), version)
            await run.ask(f"version {version} epoch {epoch} of none", leader_epoch(empty.name, epoch), version)
            await run.ask(f"version {version} current {epoch}", leader_epoch(topic.name, 0, current=epoch), version)
        await run.ask(f"version {version} unknown topic", leader_epoch(run.name("unknown"), 0), version)
        await run.ask(f"version {version} unknown partition", leader_epoch(topic.name, 0, partition=4), version)


def _delete(name: str, offset: int, partition: int = 0) -> DeleteRecordsRequest:
    found = DeleteRecordsPartition(partition_index=partition, offset=offset)
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=[found])], timeout_ms=5000)


@scenario()
async def delete_records(run: Run) -> None:
    for version in versions(DeleteRecordsRequest):
        topic = await run.create(f"v{version}")
        await run.append(topic, batch(3), batch(3))
        for offset in (0, 2, 1, 7, -2, 3, -1, -1, 6):
            await run.ask(
                f"version {version} {len(run.observed)} before {offset}", _delete(topic.name, offset), version
            )
        await run.ask(f"version {version} fetch 0", fetch(topic), 11)
        await run.ask(f"version {version} fetch 6", fetch(topic, 6), 11)
        await run.ask(f"version {version} earliest", _offsets(topic.name, -2))
        await run.ask(f"version {version} by time", _offsets(topic.name, TIMESTAMP))
        await run.ask(f"version {version} next", produce(topic, batch()))
        await run.ask(f"version {version} unknown topic", _delete(run.name("unknown"), 0), version)
        await run.ask(f"version {version} unknown partition", _delete(topic.name, 0, 4), version)
    part = await run.create("part")
    await run.append(part, batch(3), batch(3))
    await run.ask("in a batch", _delete(part.name, 1))
    for offset in (0, 1, 2):
        await run.ask(f"fetch {offset}", fetch(part, offset))
    await run.ask("by time", _offsets(part.name, TIMESTAMP))
    await run.ask("epoch", leader_epoch(part.name, 0))
    compacted = await run.create("compacted", configs={"cleanup.policy": "compact"})
    await run.append(compacted, batch(3))
    await run.ask("compacted", _delete(compacted.name, 1))
    await coordinator(run)
    await run.ask("internal", _delete("__consumer_offsets", 0))


@scenario(nodes=3)
async def offsets_at_followers(run: Run) -> None:
    topic = await run.create(replicas=[[1, 2], [2, 3]])
    await run.append(topic, batch(3), acks=-1)
    await run.caught_up(topic, 2)
    for node in (2, 3):
        for epoch in (-1, 0, 4):
            await run.ask(f"node {node} epoch {epoch}", _offsets(topic.name, -1, epoch=epoch), node=node)
        await run.ask(f"node {node} debugging", _offsets(topic.name, -1, replica=-2), node=node)
        await run.ask(f"node {node} version 1", _offsets(topic.name, -1), 1, node=node)
        await run.ask(f"node {node} leader epoch", leader_epoch(topic.name, 0), node=node)
        await run.ask(f"node {node} delete", _delete(topic.name, 1), node=node)
    await run.ask("leader deletes", _delete(topic.name, 2))
