"""Three nodes: leaders on other nodes, and the number of replicas that must have a record."""

from __future__ import annotations

from aioproducer.protocol.messages import (
    DescribeTopicPartitionsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
)
from aioproducer.protocol.messages.metadata import MetadataRequestTopic, TopicRequest
from aioproducer.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsTopic
from tests.interop.differential.batches import TIMESTAMP, batch
from tests.interop.differential.scenario import Run, Topic, fetch, produce, scenario, versions
from tests.interop.differential.scenarios.offsets import leader_epoch


@scenario(nodes=3)
async def produce_to_three_nodes(run: Run) -> None:
    topic = await run.create(replicas=[[1, 2, 3], [2, 3, 1]])
    for version in versions(ProduceRequest):
        for acks in (1, -1):
            await run.ask(f"version {version} acks {acks} leader", produce(topic, batch(), acks=acks), version)
            for node in (2, 3):
                request = produce(topic, batch(), acks=acks)
                await run.ask(f"version {version} acks {acks} node {node}", request, version, node=node)
            elsewhere = produce(topic, batch(), partition=1, acks=acks)
            await run.ask(f"version {version} acks {acks} another's partition", elsewhere, version)
    for node in (1, 2, 3):
        unknown = produce(topic, batch(), partition=9)
        await run.ask(f"node {node} unknown partition", unknown, node=node)
    two = await run.create("two", replicas=[[1, 2]])
    for version in (9, 10, 13):
        await run.ask(f"version {version} not even a follower", produce(two, batch()), version, node=3)


@scenario(nodes=3)
async def more_in_sync_wanted_than_there_are(run: Run) -> None:
    topic = await run.create(replicas=[[1, 2]], configs={"min.insync.replicas": "3"})
    for version in (3, 8, 10, 13):
        for acks in (1, -1):
            await run.ask(f"version {version} acks {acks}", produce(topic, batch(), acks=acks), version)
    alone = await run.create("alone", replicas=[[2]])
    await run.ask("a single replica, two wanted", produce(alone, batch()), node=2)
    await run.ask("a single replica, acks 1", produce(alone, batch(), acks=1), node=2)
    await run.ask("fetch it", fetch(alone), node=2)
    good = await run.create("good", replicas=[[1, 2, 3]])
    await run.append(good, batch(2))
    await run.ask("fetch replicated", fetch(good))


async def _in_sync(run: Run, topic: Topic, partition: int, nodes: set[int]) -> None:
    """Wait until every running node lists these replicas as in sync."""
    await run.wait_for(topic.name, lambda found: set(found.partitions[partition].isr_nodes) == nodes)


@scenario(nodes=3)
async def a_node_dies_and_returns(run: Run) -> None:
    topic = await run.create(replicas=[[3, 1, 2]], configs={"min.insync.replicas": "2"})
    strict = await run.create("strict", replicas=[[1, 2, 3]], configs={"min.insync.replicas": "3"})
    alone = await run.create("alone", replicas=[[3]])
    await run.append(topic, batch(3), node=3)
    await run.append(strict, batch(2))
    session = fetch(topic)
    session.session_epoch = 0
    opened = await run.surely(session, node=1)
    await run.kill(3)

    async def gone() -> bool:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=alone.name)], allow_auto_topic_creation=False)
        answers = [await run.surely(request, node=node) for node in (1, 2)]
        return all(answer.topics[0].partitions[0].leader_id == -1 for answer in answers)

    await run.eventually(gone, "node 3 is known to be gone")
    await _in_sync(run, topic, 0, {1, 2})
    await _in_sync(run, strict, 0, {1, 2})
    for version in versions(MetadataRequest):
        if version >= 4:
            names = [MetadataRequestTopic(name=found.name) for found in (topic, strict, alone)]
            request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
            await run.ask(f"metadata version {version}", request, version, node=2)
    partitions = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=found.name) for found in (topic, alone)])
    await run.ask("partitions", partitions, node=2)
    for version in versions(ProduceRequest):
        await run.ask(f"produce version {version} strict", produce(strict, batch()), version)
        await run.ask(f"produce version {version} strict, acks 1", produce(strict, batch(), acks=1), version)
        await run.ask(f"produce version {version} nobody leads", produce(alone, batch()), version)
        await run.ask(f"produce version {version} the new leader", produce(topic, batch()), version)
        await run.ask(f"produce version {version} a follower", produce(topic, batch()), version, node=2)
    await run.caught_up(topic, 2)
    for current in (-1, 0, 1, 2):
        reading = fetch(topic, current_leader_epoch=current)
        await run.ask(f"fetch, current epoch {current}", reading)
        await run.ask(f"fetch at a follower, current epoch {current}", reading, node=2)
        for epoch in (-1, 0, 1, 2):
            question = leader_epoch(topic.name, epoch, current=current)
            await run.ask(f"end of epoch {epoch}, current epoch {current}", question)
    for epoch in (0, 1, 2):
        for offset in (0, 3, 4, 5, 100):
            reading = fetch(topic, offset, last_fetched_epoch=epoch)
            await run.ask(f"fetch from {offset}, last fetched epoch {epoch}", reading)
    for timestamp in (-1, -2, -3, TIMESTAMP, TIMESTAMP + 2):
        for current in (-1, 0, 1):
            asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=current, timestamp=timestamp)
            listing = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic.name, partitions=[asked])])
            await run.ask(f"list {timestamp}, current epoch {current}", listing)
    session.session_id, session.session_epoch, session.topics = opened.session_id, 1, []
    await run.ask("fetch session across the election", session)
    await run.restart(3)
    await _in_sync(run, topic, 0, {1, 2, 3})
    await _in_sync(run, strict, 0, {1, 2, 3})
    await run.ask("strict again", produce(strict, batch()))
    await run.ask("not the leader any more", produce(topic, batch()), node=3)
    await run.ask("what it has alone", fetch(alone), node=3)
    names = [MetadataRequestTopic(name=found.name) for found in (topic, strict, alone)]
    await run.ask("metadata at the end", MetadataRequest(topics=names), node=3)
