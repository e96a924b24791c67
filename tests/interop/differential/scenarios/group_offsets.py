"""OffsetCommit and OffsetFetch."""

from __future__ import annotations

import asyncio
import time

from aioproducer.protocol.messages import FindCoordinatorRequest, OffsetCommitRequest, OffsetFetchRequest
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.interop.differential.scenario import Run, Topic, scenario, versions
from tests.interop.differential.scenarios.groups import coordinator, join, joined, leave, member_id, sync


def _commit(
    group: str,
    topic: Topic,
    offset: int = 5,
    *,
    partition: int = 0,
    metadata: str | None = "note",
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
    epoch: int = -1,
) -> OffsetCommitRequest:
    found = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_leader_epoch=epoch, committed_metadata=metadata
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        topics=[OffsetCommitRequestTopic(name=topic.name, topic_id=topic.id, partitions=[found])],
    )


def _fetch(version: int, group: str, topic: Topic | None, *partitions: int) -> OffsetFetchRequest:
    """Of these partitions, or of all with no topic."""
    if version < 8:
        topics = None
        if topic is not None:
            topics = [OffsetFetchRequestTopic(name=topic.name, partition_indexes=list(partitions))]
        return OffsetFetchRequest(group_id=group, topics=topics)
    found = None
    if topic is not None:
        found = [OffsetFetchRequestTopics(name=topic.name, topic_id=topic.id, partition_indexes=list(partitions))]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=found)])


@scenario()
async def commit_and_fetch_in_every_version(run: Run) -> None:
    await coordinator(run)
    topic = await run.create(partitions=2)
    unknown = Topic(run.name("unknown"), bytes(15) + b"\x07")
    for version in versions(OffsetCommitRequest):
        group = run.name(f"g{version}")
        await run.ask(f"commit {version}", _commit(group, topic, version), version)
        await run.ask(f"commit {version} null metadata", _commit(group, topic, 1, partition=1, metadata=None), version)
        await run.ask(f"commit {version} long metadata", _commit(group, topic, metadata="x" * 5000), version)
        await run.ask(f"commit {version} longest", _commit(group, topic, version, metadata="x" * 4096), version)
        await run.ask(f"commit {version} unknown topic", _commit(group, unknown), version)
        await run.ask(f"commit {version} unknown partition", _commit(group, topic, partition=7), version)
        await run.ask(f"commit {version} negative offset", _commit(group, topic, -1, partition=1), version)
        await run.ask(f"commit {version} no group", _commit("", topic), version)
        await run.ask(f"commit {version} unknown member", _commit(group, topic, member="nobody"), version)
        await run.ask(f"commit {version} generation", _commit(group, topic, generation=3, member="nobody"), version)
        await run.ask(f"commit {version} generation alone", _commit(group, topic, generation=3), version)
        await run.ask(f"commit {version} epoch", _commit(group, topic, epoch=3), version)
        for reading in (1, 2, 5, 7, 8, 9, 10):
            await run.ask(f"commit {version} fetch {reading}", _fetch(reading, group, topic, 0, 1, 5), reading)
    for version in versions(OffsetFetchRequest):
        await run.ask(f"fetch {version} nothing there", _fetch(version, run.name("none"), topic, 0), version)
        await run.ask(f"fetch {version} unknown topic", _fetch(version, run.name("g2"), unknown, 0), version)
        await run.ask(f"fetch {version} no group", _fetch(version, "", topic, 0), version)
        if version >= 2:
            await run.ask(f"fetch {version} all", _fetch(version, run.name("g2"), None), version)
            await run.ask(f"fetch {version} all of none", _fetch(version, run.name("none"), None), version)
        if version >= 7:
            stable = _fetch(version, run.name("g2"), topic, 0)
            stable.require_stable = True
            await run.ask(f"fetch {version} stable", stable, version)
    several = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=run.name(name), topics=None) for name in ("g2", "none", "g3")]
    )
    await run.ask("several groups", several, 9)
    await run.ask("no groups", OffsetFetchRequest(), 9)


@scenario()
async def commits_of_members(run: Run) -> None:
    await coordinator(run)
    topic = await run.create()
    group = run.name("g")
    member = await member_id(run, join(group))
    await run.ask("before joining", _commit(group, topic, member=member, generation=0), 9)
    first = await joined(run, "joins", join(group, member))
    generation = first.generation_id
    await run.ask("before syncing", _commit(group, topic, member=member, generation=generation), 9)
    await run.ask("fetch before syncing", _fetch(9, group, topic, 0), 9)
    await run.ask("syncs", sync(group, generation, member, [(member, b"a")]))
    for version in (2, 7, 9, 10):
        for label, request in (
            ("member", _commit(group, topic, 6, member=member, generation=generation)),
            ("nobody", _commit(group, topic, 7, member="nobody", generation=generation)),
            ("old generation", _commit(group, topic, 7, member=member, generation=generation - 1)),
            ("later generation", _commit(group, topic, 7, member=member, generation=generation + 1)),
            ("no generation", _commit(group, topic, 7, member=member)),
            ("from outside", _commit(group, topic, 7)),
        ):
            await run.ask(f"version {version} {label}", request, version)
    instance = _commit(group, topic, 7, member=member, generation=generation, instance="i")
    await run.ask("unknown instance", instance, 9)
    await run.ask("fetch", _fetch(9, group, topic, 0), 9)
    named = _fetch(9, group, topic, 0)
    for label, who, epoch in (("member", member, generation), ("nobody", "nobody", generation), ("old", member, 0)):
        named.groups[0].member_id, named.groups[0].member_epoch = who, epoch
        await run.ask(f"fetch as {label}", named, 9)
    await run.quietly(leave(group, (member, None)))
    await run.ask("after leaving", _commit(group, topic, 8, member=member, generation=generation), 9)
    await run.ask("from outside, group empty", _commit(group, topic, 9), 9)
    await run.ask("fetch at the end", _fetch(9, group, topic, 0), 9)


@scenario()
async def offsets_of_a_deleted_topic(run: Run) -> None:
    await coordinator(run)
    topic = await run.create()
    group = run.name("g")
    await run.ask("commit", _commit(group, topic), 9)
    await run.delete(topic)
    # The coordinator drops the offsets some time after the topic.
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        answer = await run.surely(_fetch(9, group, topic, 0), 9)
        if answer.groups[0].topics[0].partitions[0].committed_offset == -1:
            break
        await asyncio.sleep(0.02)
    for version in (1, 9, 10):
        await run.ask(f"fetch {version}", _fetch(version, group, topic, 0), version)
    await run.ask("commit of a deleted id", _commit(group, topic), 10)
    again = await run.create()
    for version in (1, 9, 10):
        await run.ask(f"fetch {version} when created again", _fetch(version, group, again, 0), version)


@scenario(nodes=3)
async def offsets_elsewhere(run: Run) -> None:
    await coordinator(run)
    topic = await run.create(replicas=[[1, 2]])
    group = run.name("g")
    found = await run.surely(FindCoordinatorRequest(coordinator_keys=[group]))
    other = found.coordinators[0].node_id % 3 + 1
    for version in (2, 9, 10):
        await run.ask(f"commit {version}", _commit(group, topic), version, node=other)
    for version in (1, 2, 7, 9, 10):
        await run.ask(f"fetch {version}", _fetch(version, group, topic, 0), version, node=other)
