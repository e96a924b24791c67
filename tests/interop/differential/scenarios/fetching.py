"""Fetch: offsets, limits, waiting, epochs and sessions."""

from __future__ import annotations

import asyncio
import time

from aioproducer.protocol.messages import FetchRequest, FetchResponse
from aioproducer.protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic, ReplicaState
from tests.interop.differential.batches import batch
from tests.interop.differential.scenario import Run, Topic, fetch, produce, scenario, versions


@scenario()
async def fetch_in_every_version(run: Run) -> None:
    topic = await run.create()
    await run.append(topic, batch(3), batch(2), batch(1, compression_type="lz4"))
    unknown = Topic(run.name("unknown"), bytes(15) + b"\x07")
    for version in versions(FetchRequest):
        for offset in (0, 1, 3, 5, 6, 7, -1):
            await run.ask(f"version {version} from {offset}", fetch(topic, offset), version)
        await run.ask(f"version {version} unknown topic", fetch(unknown), version)
        await run.ask(f"version {version} unknown partition", fetch(topic, partition=1), version)
        await run.ask(f"version {version} negative partition", fetch(topic, partition=-1), version)
        await run.ask(f"version {version} committed", fetch(topic, isolation_level=1), version)
        await run.ask(f"version {version} committed, at the end", fetch(topic, 6, isolation_level=1), version)
        await run.ask(f"version {version} no topics", FetchRequest(max_wait_ms=0, min_bytes=0), version)
        if version >= 9:
            for epoch in (0, 1, 5):
                request = fetch(topic, current_leader_epoch=epoch)
                await run.ask(f"version {version} current leader epoch {epoch}", request, version)


@scenario()
async def fetch_isolation_levels(run: Run) -> None:
    topic = await run.create()
    await run.append(topic, batch(3))
    for level in (0, 1, 2, -1):
        for version in (4, 11, 18):
            await run.ask(f"version {version} level {level}", fetch(topic, isolation_level=level), version)


@scenario()
async def fetch_limits(run: Run) -> None:
    topic = await run.create(partitions=2)
    for partition in (0, 1):
        for _ in range(4):
            await run.append(topic, batch([b""], size=300), partition=partition)
    for limit in (0, 1, 10, 60, 61, 369, 370, 371, 372, 373, 374, 375, 380, 500, 700, 740, 746, 800, 1500, 100_000):
        await run.ask(f"partition limit {limit}", fetch(topic, partition_max_bytes=limit), 11)
        await run.ask(f"limit {limit}", fetch(topic, max_bytes=limit), 11)
        both = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=limit,
            topics=[
                FetchTopic(
                    topic=topic.name,
                    topic_id=topic.id,
                    partitions=[
                        FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=600),
                        FetchPartition(partition=1, fetch_offset=1, partition_max_bytes=600),
                    ],
                )
            ],
        )
        await run.ask(f"limit {limit} for two partitions", both, 18)


@scenario()
async def fetch_negative_limits(run: Run) -> None:
    topic = await run.create()
    await run.append(topic, batch(2))
    for limit in (-1, -(2**31)):
        await run.ask(f"partition limit {limit}", fetch(topic, partition_max_bytes=limit), 11)
        await run.ask(f"limit {limit}", fetch(topic, max_bytes=limit), 11)


@scenario()
async def fetch_waits(run: Run) -> None:
    topic = await run.create()
    await run.append(topic, batch(1))

    async def timed(label: str, request: FetchRequest) -> None:
        before = time.monotonic()
        await run.ask(label, request)
        took = time.monotonic() - before
        run.observe(f"{label} took", "no time" if took < 1.4 else "its wait" if took < 5 else "longer")

    await timed("at the end", fetch(topic, 1, max_wait_ms=1500, min_bytes=1))
    await timed("at the end, no minimum", fetch(topic, 1, max_wait_ms=1500, min_bytes=0))
    await timed("there is enough", fetch(topic, 0, max_wait_ms=1500, min_bytes=1))
    await timed("there is too little", fetch(topic, 0, max_wait_ms=1500, min_bytes=100_000))
    await timed("no wait", fetch(topic, 1, max_wait_ms=0, min_bytes=1))
    await timed("negative wait", fetch(topic, 1, max_wait_ms=-1, min_bytes=1))
    await timed("out of range", fetch(topic, 5, max_wait_ms=1500, min_bytes=1))
    await timed("unknown partition", fetch(topic, 0, partition=7, max_wait_ms=1500, min_bytes=1))
    await timed("nothing asked for", FetchRequest(max_wait_ms=1500, min_bytes=1))

    waiting = await run.nodes.connect()
    before = time.monotonic()
    task = asyncio.create_task(run.ask("woken", fetch(topic, 1, max_wait_ms=20_000, min_bytes=1), connection=waiting))
    await asyncio.sleep(0.1)
    await run.append(topic, batch(2))
    await task
    run.observe("woken in time", time.monotonic() - before < 5)
    task = asyncio.create_task(
        run.ask("woken by the second", fetch(topic, 3, max_wait_ms=20_000, min_bytes=100), connection=waiting)
    )
    await asyncio.sleep(0.1)
    await run.append(topic, batch(1), batch(1))
    await task
    task = asyncio.create_task(
        run.ask("deleted meanwhile", fetch(topic, 5, max_wait_ms=2000, min_bytes=1), connection=waiting)
    )
    await asyncio.sleep(0.1)
    await run.delete(topic)
    await task


@scenario()
async def fetch_by_followers(run: Run) -> None:
    topic = await run.create()
    await run.append(topic, batch(3))
    for version in (11, 14):
        for replica in (1, 2, 7, -2):
            request = fetch(topic)
            request.replica_id = replica
            await run.ask(f"version {version} replica {replica}", request, version)
    for replica, epoch in ((2, -1), (2, 1), (1, 0)):
        request = fetch(topic)
        request.replica_state = ReplicaState(replica_id=replica, replica_epoch=epoch)
        await run.ask(f"replica {replica} of epoch {epoch}", request, 18)


@scenario()
async def fetch_divergence(run: Run) -> None:
    topic = await run.create()
    await run.append(topic, batch(3))
    for epoch in (-1, 0, 1, 5):
        for offset in (0, 2, 3, 4):
            request = fetch(topic, offset, last_fetched_epoch=epoch)
            await run.ask(f"last fetched epoch {epoch} offset {offset}", request, 18)
            await run.ask(f"version 12 last fetched epoch {epoch} offset {offset}", request, 12)


def _session(
    session_id: int, epoch: int, *topics: FetchTopic, forgotten: tuple[Topic, int] | None = None
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=list(topics),
        forgotten_topics_data=[]
        if forgotten is None
        else [ForgottenTopic(topic=forgotten[0].name, topic_id=forgotten[0].id, partitions=[forgotten[1]])],
    )


def _part(topic: Topic, partition: int = 0, offset: int = 0) -> FetchTopic:
    found = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchTopic(topic=topic.name, topic_id=topic.id, partitions=[found])


@scenario()
async def fetch_sessions(run: Run) -> None:
    for version in (7, 12, 13, 15, 18):
        topic = await run.create(f"v{version}", partitions=3)
        await run.append(topic, batch(1))

        async def ask(label: str, request: FetchRequest, version: int = version) -> FetchResponse:
            answer = await run.ask(f"version {version} {label}", request, version)
            assert isinstance(answer, FetchResponse)
            return answer

        opened = await ask("full", _session(0, 0, _part(topic), _part(topic, 1)))
        session = opened.session_id
        await ask("nothing new", _session(session, 1, _part(topic, offset=1)))
        await ask("nothing at all", _session(session, 2))
        await run.append(topic, batch(1), partition=1)
        await ask("news", _session(session, 3))
        await ask("read on", _session(session, 4, _part(topic, 1, 1)))
        await ask("one more partition", _session(session, 5, _part(topic, 2)))
        await ask("out of range", _session(session, 6, _part(topic, 2, 9)))
        await ask("still out of range", _session(session, 7))
        await ask("forgotten", _session(session, 8, forgotten=(topic, 2)))
        await ask("after that", _session(session, 9))
        await ask("unknown forgotten", _session(session, 10, forgotten=(topic, 7)))
        await ask("epoch too old", _session(session, 10))
        await ask("epoch too new", _session(session, 99))
        await ask("right epoch", _session(session, 11))
        await ask("unknown id", _session(123_456_789, 1))
        await ask("unknown id, new", _session(123_456_789, 0, _part(topic)))
        await ask("no session", _session(0, -1, _part(topic)))
        await ask("no id but an epoch", _session(0, 3, _part(topic)))
        await ask("replaced", _session(session, 0, _part(topic)))
        await ask("old id", _session(session, 12))
        another = (await ask("another", _session(0, 0, _part(topic)))).session_id
        await ask("closed", _session(another, -1, _part(topic)))
        await ask("closed id", _session(another, 1))
        unknown = Topic(run.name("unknown"), bytes(15) + b"\x07")
        third = (await ask("with unknown topic", _session(0, 0, _part(topic), _part(unknown)))).session_id
        await ask("then", _session(third, 1))
        await ask("nothing", _session(0, 0))


@scenario()
async def fetch_session_and_deleted_topic(run: Run) -> None:
    topic = await run.create()
    other = await run.create("other")
    answer = await run.surely(_session(0, 0, _part(topic), _part(other)))
    session = answer.session_id
    by_name = await run.surely(_session(0, 0, _part(topic), _part(other)), 12)
    await run.delete(topic)
    await run.ask("after deletion", _session(session, 1))
    await run.ask("after deletion by name", _session(by_name.session_id, 1), 12)
    again = await run.create()
    await run.append(again, batch(1))
    await run.ask("created again", _session(session, 2))
    await run.ask("created again by name", _session(by_name.session_id, 2), 12)
    await run.ask("asked for by its new id", _session(session, 3, _part(again)))
    # A session uses either names or ids.
    await run.ask("names in a session of ids", _session(session, 4, _part(again)), 12)
    await run.ask("ids in a session of names", _session(by_name.session_id, 3, _part(again)), 13)


@scenario(nodes=3)
async def fetch_from_three_nodes(run: Run) -> None:
    topic = await run.create(replicas=[[1, 2], [2, 3]])
    await run.append(topic, batch(2), acks=-1)
    await run.caught_up(topic, 2)
    for version in versions(FetchRequest):
        for node in (1, 2, 3):
            await run.ask(f"version {version} node {node}", fetch(topic), version, node=node)
        await run.ask(f"version {version} partition elsewhere", fetch(topic, partition=1), version, node=1)
        if version >= 9:
            request = fetch(topic, current_leader_epoch=3)
            await run.ask(f"version {version} follower, later epoch", request, version, node=2)
    await run.ask("produce at a follower", produce(topic, batch()), node=2)
