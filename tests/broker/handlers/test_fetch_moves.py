"""Fetch sessions read and watch only the necessary partitions."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.handlers import fetch
from aioproducer.broker.handlers.fetch_moves import FetchMoves
from aioproducer.broker.replicas.partition import Partition
from aioproducer.protocol.messages import FetchRequest, FetchResponse
from aioproducer.protocol.messages.fetch import ForgottenTopic
from tests.broker.scene import Scene, a_scene, loop_passes
from tests.broker.wire import WireClient, batch, fetch_request, produce_request, read_values

VERSION = 12


def parts(response: FetchResponse) -> list[int]:
    return [part.partition_index for topic in response.responses for part in topic.partitions]


def watchers(scene: Scene) -> list[int]:
    return [scene.partition(index).watcher_count for index in range(3)]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The indexes of the partitions that were read."""
    indexes: list[int] = []
    original = fetch._Reading.read

    def recorded(self: fetch._Reading, wanted: fetch.WantedPartition, *args: object, **keywords: object) -> fetch._Read:
        indexes.append(wanted.request.partition)
        return original(self, wanted, *args, **keywords)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(fetch._Reading, "read", recorded)
    return indexes


class Reader:
    """A reader with a session, at one of the nodes."""

    def __init__(self, client: WireClient, topic: str = "t", version: int = VERSION, **keywords: object) -> None:
        self.client = client
        self.topic = topic
        self.version = version
        self.keywords = keywords
        self.session_id = 0
        self.epoch = 0

    def request(self, offsets: dict[int, int] | None = None, **keywords: object) -> FetchRequest:
        asked = fetch_request(
            self.topic,
            offsets or {},
            session_id=self.session_id,
            session_epoch=self.epoch,
            version=self.version,
            **{"max_wait_ms": 0, **self.keywords, **keywords},  # type: ignore[arg-type]  # as fetch_request names them
        )
        self.epoch += 1
        return asked

    async def fetch(self, offsets: dict[int, int] | None = None, **keywords: object) -> FetchResponse:
        response = await self.client.call(self.request(offsets, **keywords), self.version)
        assert response.error_code == 0
        self.session_id = response.session_id
        return response


async def test_only_changed_and_listed_partitions_are_read(scene: Scene, read: list[int]) -> None:
    async with await scene.connect() as client:
        reader = Reader(client)
        await reader.fetch({0: 0, 1: 0, 2: 0})
        assert (sorted(read), watchers(scene)) == ([0, 1, 2], [1, 1, 1])
        read.clear()
        assert parts(await reader.fetch(max_wait_ms=20)) == []
        assert read == []
        await scene.write(1, b"v")
        assert parts(await reader.fetch()) == [1]
        assert read == [1]
        # Its offset is unchanged, so it still has records to return.
        assert parts(await reader.fetch()) == [1]
        assert parts(await reader.fetch({1: 1})) == []
        assert read == [1, 1, 1]
        assert parts(await reader.fetch()) == []
        assert read == [1, 1, 1]
        assert watchers(scene) == [1, 1, 1]


async def test_a_waiting_request_reads_only_partitions_that_change(scene: Scene, read: list[int]) -> None:
    async with await scene.connect() as client:
        reader = Reader(client)
        await reader.fetch({0: 0, 1: 0, 2: 0})
        read.clear()
        waiting = asyncio.create_task(reader.fetch(max_wait_ms=60_000))
        await loop_passes()
        await scene.write(2, b"v")
        assert parts(await waiting) == [2]
        assert set(read) == {2}


async def test_records_that_did_not_fit_count_for_the_minimum_of_the_next_request(scene: Scene) -> None:
    one = len(batch(b"v"))
    for index in (0, 1):
        for _ in range(2):
            await scene.write(index, b"v")
    async with await scene.connect() as client:
        reader = Reader(client)
        first = await reader.fetch({0: 0, 1: 0, 2: 0}, max_bytes=one)
        assert sum(bool(part.records) for topic in first.responses for part in topic.partitions) == 1
        # The rest is returned, although nothing has changed since.
        rest = await reader.fetch({0: 1}, max_wait_ms=60_000, min_bytes=3 * one)
        assert {
            part.partition_index: len(read_values(part.records))
            for topic in rest.responses
            for part in topic.partitions
        } == {0: 1, 1: 2}


@pytest.mark.parametrize("how", ["forgotten", "ended", "replaced", "evicted", "stopped"])
async def test_partitions_are_watched_no_longer_than_the_session(how: str) -> None:
    async with a_scene(max__incremental__fetch__session__cache__slots=1) as scene, await scene.connect() as client:
        partitions = [scene.partition(index) for index in range(3)]
        reader = Reader(client)
        await reader.fetch({0: 0, 1: 0, 2: 0})
        assert watchers(scene) == [1, 1, 1]
        if how == "forgotten":
            asked = reader.request()
            asked.forgotten_topics_data = [ForgottenTopic(topic="t", partitions=[0, 2])]
            await client.call(asked, VERSION)
            assert watchers(scene) == [0, 1, 0]
            return
        if how == "stopped":
            await scene.cluster.stop()
        elif how == "evicted":
            follower = fetch_request("t", {1: 0}, replica_id=1, session_epoch=0, version=VERSION)
            await scene.ask(follower, VERSION)
            # By the follower's session.
            assert watchers(scene) == [0, 1, 0]
            return
        elif how == "ended":
            await client.call(fetch_request("t", {}, session_id=reader.session_id, version=VERSION), VERSION)
        else:
            asked = fetch_request("t", {0: 0}, session_id=reader.session_id, session_epoch=0, version=VERSION)
            await client.call(asked, VERSION)
            assert watchers(scene) == [1, 0, 0]
            return
        assert [partition.watcher_count for partition in partitions] == [0, 0, 0]


async def test_a_request_without_session_leaves_no_watchers(scene: Scene) -> None:
    await scene.ask(fetch_request("t", {0: 0, 1: 0, 2: 0}, max_wait_ms=10, version=VERSION), VERSION)
    assert watchers(scene) == [0, 0, 0]


async def test_a_topic_that_was_created_again_under_its_name_is_another_one(scene: Scene) -> None:
    await scene.write(0, b"old")
    old = scene.partition(0)
    async with await scene.connect() as client:
        reader = Reader(client)
        await reader.fetch({0: 1, 1: 0})
        scene.cluster.controller.delete_topic("t")
        assert old.watcher_count == 0
        response = await reader.fetch(max_wait_ms=10)
        assert {part.error_code for part in response.responses[0].partitions} == {3}
        scene.cluster.create_topic("t", 3, 1)
        await scene.write(0, b"new")
        response = await reader.fetch({0: 0})
        assert sorted(parts(response)) == [0, 1]
        assert scene.partition(0).watcher_count == 1
        await scene.write(1, b"new")
        assert parts(await reader.fetch({0: 1}, max_wait_ms=60_000)) == [1]


async def test_another_kind_of_reader_receives_everything_again(scene: Scene, read: list[int]) -> None:
    async with await scene.connect() as client:
        reader = Reader(client)
        await reader.fetch({0: 0, 1: 0})
        read.clear()
        await reader.fetch(isolation_level=1)
        assert sorted(read) == [0, 1]


async def test_an_injected_fault_applies_although_nothing_changes(scene: Scene) -> None:
    async with await scene.connect() as client:
        reader = Reader(client)
        await reader.fetch({0: 0, 1: 0})
        scene.faults.fail("Fetch", 6, topic="t", partition=1)
        assert parts(await reader.fetch(max_wait_ms=60_000)) == [1]
        assert parts(await reader.fetch()) == [1]
        assert parts(await reader.fetch()) == []


async def test_each_request_of_a_follower_outside_the_isr_reads(read: list[int]) -> None:
    async with a_scene(2) as scene:
        leader = scene.leader(0)
        follower = leader % 2 + 1
        await scene.write(0, b"a")
        await scene.cluster.kill(follower)
        async with await scene.connect(leader) as client:
            reader = Reader(client, replica_id=follower)
            await reader.fetch({0: 1})
            await loop_passes()
            read.clear()
            for count in (1, 2):
                await reader.fetch()
                assert read == [0] * count


@given(st.lists(st.tuples(st.sampled_from(["write", "ask", "all"]), st.integers(0, 2)), min_size=1, max_size=25))
@settings(max_examples=25, deadline=None)
def test_a_session_misses_no_change(steps: list[tuple[str, int]]) -> None:
    """A reader with a session sees all records, and the same high watermarks as a reader without one."""

    async def run() -> None:
        async with a_scene() as scene, await scene.connect() as client:
            reader = Reader(client, max_bytes=200)
            offsets = dict.fromkeys(range(3), 0)
            known: dict[int, int] = {}
            advanced = dict(offsets)

            async def ask() -> None:
                nonlocal advanced
                response = await reader.fetch(advanced)
                advanced = {}
                for topic in response.responses:
                    for part in topic.partitions:
                        known[part.partition_index] = part.high_watermark
                        count = len(read_values(part.records))
                        if count:
                            offsets[part.partition_index] += count
                            advanced[part.partition_index] = offsets[part.partition_index]

            await ask()
            for step, index in [*steps, *[("ask", 0)] * 30]:
                if step == "write":
                    await scene.ask(produce_request("t", {index: batch(bytes(40))}, acks=1), 9)
                else:
                    await ask()
            assert offsets == known == {index: scene.partition(index).high_watermark for index in range(3)}

    asyncio.run(run())


async def test_a_partition_is_watched_once_however_often_it_is_read(scene: Scene) -> None:
    moves = FetchMoves()
    moves.keep()
    first, second = scene.partition(0), scene.partition(1)

    def watch(partition: Partition) -> None:
        moves.watch(("t", 0), partition)

    for partition in (first, first, second):
        watch(partition)
    assert (first.watcher_count, second.watcher_count, moves.watched_count) == (0, 1, 1)
    notified: list[object] = []
    with moves.notifying(notified.append):
        second.wake()
    second.wake()
    assert (notified, moves.moved) == ([("t", 0)], {("t", 0)})
    moves.end()
    assert second.watcher_count == 0
