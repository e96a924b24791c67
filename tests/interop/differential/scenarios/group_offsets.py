"""OffsetCommit, OffsetFetch, OffsetDelete and DeleteGroups."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aioproducer.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from aioproducer.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
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
    """Return an OffsetFetch of these partitions, or of all if no topic is given."""
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

    async def dropped() -> bool:
        answer = await run.surely(_fetch(9, group, topic, 0), 9)
        return answer.groups[0].topics[0].partitions[0].committed_offset == -1

    # The coordinator drops the offsets some time after the topic.
    await run.eventually(dropped, f"offset of the deleted {topic.name}")
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


def _delete_offsets(group: str, *topics: tuple[str, Sequence[int]]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
            )
            for name, indexes in topics
        ],
    )


def _subscription(*topics: str, version: int = 0) -> bytes:
    """Return consumer metadata of version 0, as a consumer writes it, and later versions."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", version, len(topics)) + names + struct.pack(">i", -1)


@scenario()
async def offsets_are_deleted(run: Run) -> None:
    await coordinator(run)
    read, left = await run.create("read", 2), await run.create("left", 2)
    unknown = run.name("unknown")
    none, group, other, simple = (run.name(name) for name in ("none", "g", "other", "simple"))
    await run.ask("no group", _delete_offsets(none, (read.name, [0])))
    await run.ask("no name", _delete_offsets("", (read.name, [0])))
    await run.ask("no group, unknown topic", _delete_offsets(none, (unknown, [0])))
    await run.ask("nothing", _delete_offsets(none))
    for partition in (0, 1):
        await run.quietly(_commit(simple, read, partition=partition), 9)
    await run.ask("simple", _delete_offsets(simple, (read.name, [1, 7]), (unknown, [0]), (left.name, [])))
    await run.ask("simple is left with", _fetch(9, simple, None), 9)
    await run.ask("simple, what is not there", _delete_offsets(simple, (read.name, [1]), (left.name, [0])))
    for name, kind in ((group, "consumer"), (other, "connect")):
        metadata = _subscription(read.name)
        member = await member_id(run, join(name, metadata=metadata, protocol_type=kind))
        first = await joined(run, f"{kind} joins", join(name, member, metadata=metadata, protocol_type=kind))
        await run.ask(f"{kind} while joining", _delete_offsets(name, (read.name, [0]), (left.name, [0])))
        await run.ask(f"{kind} syncs", sync(name, first.generation_id, member, [(member, b"a")]))
        for topic in (read, left):
            await run.quietly(_commit(name, topic, member=member, generation=first.generation_id), 9)
        await run.ask(f"{kind} while stable", _delete_offsets(name, (read.name, [0]), (left.name, [0, 1])))
        await run.ask(f"{kind} is left with", _fetch(9, name, None), 9)
        await run.quietly(leave(name, (member, None)))
        await run.ask(f"{kind} when empty", _delete_offsets(name, (read.name, [0]), (left.name, [0])))
        await run.ask(f"{kind} is left with nothing", _fetch(9, name, None), 9)


@scenario()
async def offsets_are_deleted_beside_any_subscription(run: Run) -> None:
    await coordinator(run)
    read, left = await run.create("read"), await run.create("left")
    for what, metadata in (
        ("version 1", _subscription(read.name, version=1)),
        ("version 9", _subscription(read.name, version=9)),
        ("no version", _subscription(read.name, version=-1)),
        ("more behind it", _subscription(read.name, version=3) + b"more"),
        ("cut off", _subscription(read.name)[:-3]),
        ("none", b""),
    ):
        group = run.name(what.replace(" ", "-"))
        member = await member_id(run, join(group, metadata=metadata))
        first = await joined(run, f"{what} joins", join(group, member, metadata=metadata))
        await run.ask(f"{what} syncs", sync(group, first.generation_id, member, [(member, b"a")]))
        for topic in (read, left):
            await run.quietly(_commit(group, topic, member=member, generation=first.generation_id), 9)
        await run.ask(f"{what}: deleted", _delete_offsets(group, (read.name, [0]), (left.name, [0])))
        await run.ask(f"{what}: left", _fetch(9, group, None), 9)


@scenario()
async def groups_are_deleted(run: Run) -> None:
    await coordinator(run)
    topic = await run.create()
    for version in versions(DeleteGroupsRequest):
        group, simple = run.name(f"g{version}"), run.name(f"simple{version}")

        def delete(*names: str) -> DeleteGroupsRequest:
            return DeleteGroupsRequest(groups_names=list(names))

        await run.ask(f"{version} nothing", delete(), version)
        await run.ask(f"{version} none", delete(group), version)
        await run.quietly(_commit(simple, topic), 9)
        member = await member_id(run, join(group))
        first = await joined(run, f"{version} joins", join(group, member))
        await run.ask(f"{version} while joining", delete(group), version)
        await run.quietly(sync(group, first.generation_id, member, [(member, b"a")]))
        await run.quietly(_commit(group, topic, member=member, generation=first.generation_id), 9)
        await run.ask(f"{version} while stable", delete(group), version)
        await run.ask(f"{version} keeps", _fetch(9, group, None), 9)
        await run.quietly(leave(group, (member, None)))
        await run.ask(f"{version} when empty", delete(group), version)
        await run.ask(f"{version} simple", delete(simple), version)
        for name in (group, simple):
            await run.ask(f"{version} has nothing left of {name == group}", _fetch(9, name, None), 9)
            await run.ask(f"{version} again {name == group}", delete(name), version)
            await run.ask(f"{version} described {name == group}", DescribeGroupsRequest(groups=[name]))
        member = await member_id(run, join(group))
        await joined(run, f"{version} joins again", join(group, member))
