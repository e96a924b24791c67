"""Fetch over the wire."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.broker.handlers.fetch import LONGEST_READ
from aioproducer.protocol.messages import FetchRequest, FetchResponse
from aioproducer.protocol.messages.fetch import PartitionData, ReplicaState
from tests.broker.scene import Scene, a_scene, loop_passes
from tests.broker.wire import WireClient, batch, fetch_request, produce_request, read_batches, read_values

UNKNOWN_ID = bytes(range(16))


def parts(response: FetchResponse) -> dict[int, PartitionData]:
    return {part.partition_index: part for topic in response.responses for part in topic.partitions}


def sizes(response: FetchResponse) -> dict[int, int]:
    return {
        index: sum(found.size_in_bytes for found in read_batches(part.records))
        for index, part in parts(response).items()
    }


async def waiting(client: WireClient, request: FetchRequest, version: int, scene: Scene) -> asyncio.Task[FetchResponse]:
    """Send a request that the broker receives and cannot answer yet."""
    asked = asyncio.create_task(client.call(request, version))
    wanted = request.topics[0].partitions[0].partition
    async with asyncio.timeout(5):
        while not scene.partition(wanted).watcher_count:
            await loop_passes()
    await loop_passes()
    assert not asked.done()
    return asked


@pytest.mark.parametrize("version", range(4, 19))
async def test_batches_are_read_in_every_version(scene: Scene, version: int) -> None:
    for values in ([b"a", b"b"], [b"c"]):
        await scene.write(0, *values)
    topic = scene.topic_id if version >= 13 else "t"
    part = parts(await scene.ask(fetch_request(topic, {0: 0}, version=version), version))[0]
    assert read_values(part.records) == [b"a", b"b", b"c"]
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 3, 3)
    assert part.log_start_offset == (0 if version >= 5 else -1)
    assert part.aborted_transactions is None
    # From the middle of a batch on the whole batch is returned, and at the end nothing.
    part = parts(await scene.ask(fetch_request(topic, {0: 1}, version=version), version))[0]
    assert read_values(part.records) == [b"a", b"b", b"c"]
    part = parts(await scene.ask(fetch_request(topic, {0: 3}, version=version), version))[0]
    assert (part.error_code, read_values(part.records)) == (0, [])


async def test_readers_of_committed_records_see_up_to_the_last_stable_offset(scene: Scene) -> None:
    await scene.write(0, b"a")
    for offset in (0, 1):
        part = parts(await scene.ask(fetch_request("t", {0: offset}, isolation_level=1, version=12), 12))[0]
        assert (part.aborted_transactions, part.last_stable_offset) == ([], 1)


@pytest.mark.parametrize("version", [12, 18])
@pytest.mark.parametrize("offset", [-1, 2, 1000])
async def test_offsets_outside_the_log_are_out_of_range(scene: Scene, version: int, offset: int) -> None:
    await scene.write(0, b"a")
    topic = scene.topic_id if version >= 13 else "t"
    part = parts(await scene.ask(fetch_request(topic, {0: offset}, isolation_level=1, max_wait_ms=60_000), version))[0]
    assert (part.error_code, part.high_watermark, part.last_stable_offset, part.log_start_offset) == (1, -1, -1, -1)
    assert part.aborted_transactions is None


async def test_unknown_topics_and_partitions_have_their_error(scene: Scene) -> None:
    part = parts(await scene.ask(fetch_request("none", {0: 0}, version=12, max_wait_ms=60_000), 12))[0]
    assert (part.error_code, part.high_watermark, part.aborted_transactions) == (3, -1, [])
    assert parts(await scene.ask(fetch_request(scene.topic_id, {9: 0}), 18))[9].error_code == 3
    response = await scene.ask(fetch_request(UNKNOWN_ID, {0: 0}), 18)
    assert parts(response)[0].error_code == 100
    assert response.responses[0].topic_id == UNKNOWN_ID


async def test_a_topic_that_was_created_again_is_another_one(scene: Scene) -> None:
    async with await scene.connect() as client:
        first = await client.call(fetch_request(scene.topic_id, {0: 0}, session_epoch=0), 18)
        scene.cluster.controller.delete_topic("t")
        asked = fetch_request(scene.topic_id, {}, session_id=first.session_id, session_epoch=1, max_wait_ms=60_000)
        assert parts(await client.call(asked, 18))[0].error_code == 3
        scene.cluster.create_topic("t", 3)
        asked.session_epoch = 2
        assert parts(await client.call(asked, 18))[0].error_code == 103


@pytest.mark.parametrize(("epoch", "code"), [(-1, 0), (0, 74), (1, 0), (2, 75)])
async def test_the_readers_leader_epoch_is_checked(epoch: int, code: int) -> None:
    async with a_scene(2) as scene:
        leader = scene.leader(0)
        scene.cluster.controller.elect_leader("t", 0, leader % 2 + 1)
        leader = scene.leader(0)
        request = fetch_request(scene.topic_id, {0: 0}, current_leader_epoch=epoch)
        response = await scene.ask(request, 18, leader)
        part = parts(response)[0]
        assert part.error_code == code
        if code == 74:
            assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (leader, 1)
            assert [endpoint.node_id for endpoint in response.node_endpoints] == [leader]


async def test_a_diverging_reader_receives_the_point_of_divergence(scene: Scene) -> None:
    await scene.write(0, b"a", b"b")
    part = parts(await scene.ask(fetch_request(scene.topic_id, {0: 2}, last_fetched_epoch=0), 18))[0]
    assert (part.error_code, part.diverging_epoch.epoch) == (0, -1)
    request = fetch_request(scene.topic_id, {0: 7}, last_fetched_epoch=0, isolation_level=1, max_wait_ms=60_000)
    part = parts(await scene.ask(request, 18))[0]
    assert (part.error_code, part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (0, 0, 2)
    assert (part.high_watermark, part.aborted_transactions, read_values(part.records)) == (2, None, [])
    part = parts(await scene.ask(fetch_request(scene.topic_id, {0: 0}, last_fetched_epoch=9), 18))[0]
    assert part.error_code == 1


# Limits


async def test_only_the_first_batch_may_exceed_the_limits(scene: Scene) -> None:
    """KIP-74."""
    for _ in range(3):
        for index in (0, 1):
            await scene.write(index, bytes(1000))
    offsets = {0: 0, 1: 0}
    one = len(batch(bytes(1000)))
    for request, expected in (
        (fetch_request("t", offsets, version=12), {0: 3 * one, 1: 3 * one}),
        (fetch_request("t", offsets, version=12, max_bytes=1), {0: one, 1: 0}),
        (fetch_request("t", offsets, version=12, max_bytes=0), {0: one, 1: 0}),
        (fetch_request("t", offsets, version=12, partition_max_bytes=1), {0: one, 1: 0}),
        (fetch_request("t", offsets, version=12, partition_max_bytes=2 * one + 5), {0: 2 * one, 1: 2 * one}),
        (fetch_request("t", offsets, version=12, max_bytes=4 * one), {0: 3 * one, 1: one}),
        (fetch_request("t", {2: 0, 1: 0}, version=12, max_bytes=1), {2: 0, 1: one}),
    ):
        assert sizes(await scene.ask(request, 12)) == expected


async def test_negative_limits_and_unknown_isolation_levels_are_refused(scene: Scene) -> None:
    await scene.write(0, b"a")
    for limit in ("max_bytes", "partition_max_bytes"):
        request = fetch_request("t", {0: 0, 1: 0}, version=12, **{limit: -1})
        response = await scene.ask(request, 12)
        assert {index: part.error_code for index, part in parts(response).items()} == {0: -1, 1: 0}
    assert (await scene.ask(fetch_request("t", {0: 0}, version=12, isolation_level=2), 12)).error_code == -1


async def test_the_brokers_own_limits_apply() -> None:
    async with a_scene(fetch__max__bytes=2000) as scene:
        for _ in range(3):
            await scene.write(0, bytes(900))
        assert len(read_values(parts(await scene.ask(fetch_request("t", {0: 0}, version=12), 12))[0].records)) == 2


async def test_one_read_of_a_partition_is_limited(scene: Scene) -> None:
    for _ in range(6):
        await scene.write(0, bytes(900_000))
    request = fetch_request("t", {0: 0}, version=12, partition_max_bytes=2**30)
    assert len(read_batches(parts(await scene.ask(request, 12))[0].records)) == LONGEST_READ // 900_000


async def test_topics_that_the_broker_compresses_by_zstd_need_a_reader_with_zstd(scene: Scene) -> None:
    scene.cluster.create_topic("z", 1, configs={"compression.type": "zstd"})
    for version, code in ((9, 76), (10, 0)):
        assert parts(await scene.ask(fetch_request("z", {0: 0}, version=version), version))[0].error_code == code


# Waiting


async def test_a_reader_waits_for_a_record(scene: Scene) -> None:
    async with await scene.connect() as client:
        asked = await waiting(client, fetch_request(scene.topic_id, {0: 0, 1: 0}, max_wait_ms=60_000), 18, scene)
        await scene.write(1, b"v")
        response = await asked
    assert {index: read_values(part.records) for index, part in parts(response).items()} == {0: [], 1: [b"v"]}
    assert scene.partition(0).watcher_count == scene.partition(1).watcher_count == 0


async def test_a_reader_waits_for_its_minimum_of_bytes_over_all_partitions(scene: Scene) -> None:
    one = len(batch(b"v"))
    async with await scene.connect() as client:
        request = fetch_request(scene.topic_id, {0: 0, 1: 0, 2: 0}, max_wait_ms=60_000, min_bytes=3 * one)
        await scene.write(2, b"v")
        asked = await waiting(client, request, 18, scene)
        await scene.write(0, b"v")
        await loop_passes()
        assert not asked.done()
        await scene.write(1, b"v")
        assert sizes(await asked) == {0: one, 1: one, 2: one}


async def test_the_wait_ends_with_the_available_records(scene: Scene) -> None:
    await scene.write(0, b"v")
    loop = asyncio.get_running_loop()
    begin = loop.time()
    request = fetch_request(scene.topic_id, {0: 0}, max_wait_ms=30, min_bytes=10_000)
    assert read_values(parts(await scene.ask(request, 18))[0].records) == [b"v"]
    # uvloop counts whole milliseconds.
    assert loop.time() - begin >= 0.029
    assert scene.partition(0).watcher_count == 0


async def test_a_request_without_partitions_does_not_wait(scene: Scene) -> None:
    for request in (
        fetch_request(scene.topic_id, {0: 0}, max_wait_ms=60_000, min_bytes=0),
        fetch_request(scene.topic_id, {0: 0}, max_wait_ms=0),
        fetch_request(scene.topic_id, {}, max_wait_ms=60_000),
    ):
        assert (await scene.ask(request, 18)).error_code == 0


async def test_a_deleted_topic_ends_the_wait(scene: Scene) -> None:
    async with await scene.connect() as client:
        asked = await waiting(client, fetch_request("t", {0: 0}, max_wait_ms=60_000, version=12), 12, scene)
        scene.cluster.controller.delete_topic("t")
        assert parts(await asked)[0].error_code == 3


async def test_a_moved_leader_ends_the_wait_and_is_returned() -> None:
    async with a_scene(2) as scene:
        leader = scene.leader(0)
        async with await scene.connect(leader) as client:
            request = fetch_request(scene.topic_id, {0: 0}, max_wait_ms=60_000, current_leader_epoch=0)
            asked = await waiting(client, request, 18, scene)
            scene.cluster.controller.elect_leader("t", 0, leader % 2 + 1)
            part = parts(await asked)[0]
        assert (part.error_code, part.current_leader.leader_id) == (74, leader % 2 + 1)


async def test_a_request_that_is_cancelled_leaves_nothing_behind(scene: Scene) -> None:
    asked = scene.answering(fetch_request(scene.topic_id, {0: 0, 1: 0}, max_wait_ms=60_000), 18)
    await loop_passes()
    assert [scene.partition(index).watcher_count for index in range(3)] == [1, 1, 0]
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert [scene.partition(index).watcher_count for index in range(3)] == [0, 0, 0]


# Sessions (the rest is in test_fetch_session.py)


@pytest.mark.parametrize("version", [7, 12, 13, 18])
async def test_a_session_returns_only_changes(scene: Scene, version: int) -> None:
    topic = scene.topic_id if version >= 13 else "t"

    def asking(offsets: dict[int, int], session_id: int, epoch: int, wait: int = 0) -> FetchRequest:
        return fetch_request(
            topic, offsets, session_id=session_id, session_epoch=epoch, version=version, max_wait_ms=wait
        )

    async with await scene.connect() as client:
        first = await client.call(asking({0: 0, 1: 0, 2: 0}, 0, 0), version)
        assert (first.error_code, list(parts(first))) == (0, [0, 1, 2])
        session_id = first.session_id
        assert session_id > 0
        assert parts(await client.call(asking({}, session_id, 1), version)) == {}
        await scene.write(1, b"v")
        response = await client.call(asking({}, session_id, 2, 60_000), version)
        assert {index: read_values(part.records) for index, part in parts(response).items()} == {1: [b"v"]}
        assert parts(await client.call(asking({1: 1}, session_id, 3), version)) == {}
        assert (await client.call(asking({}, session_id, 3), version)).error_code == 71
        assert (await client.call(asking({}, session_id + 1, 4), version)).error_code == 70
    assert len(scene.broker().requests.fetch_sessions) == 1


async def test_a_session_ends_with_its_last_request(scene: Scene) -> None:
    async with await scene.connect() as client:
        session_id = (await client.call(fetch_request("t", {0: 0}, session_epoch=0, version=12), 12)).session_id
        last = await client.call(fetch_request("t", {0: 0}, session_id=session_id, version=12), 12)
        assert (last.session_id, list(parts(last))) == (0, [0])
        gone = await client.call(fetch_request("t", {}, session_id=session_id, session_epoch=1, version=12), 12)
        assert (gone.error_code, gone.session_id) == (70, 0)


async def test_a_session_needs_a_slot() -> None:
    async with a_scene(max__incremental__fetch__session__cache__slots=1) as scene:
        request = fetch_request("t", {0: 0}, session_epoch=0, version=12)
        assert (await scene.ask(request, 12)).session_id > 0
        assert (await scene.ask(request, 12)).session_id == 0


# Followers


async def test_a_follower_reads_uncommitted_records_and_its_progress_commits_them() -> None:
    async with a_scene(2) as scene:
        # The test takes the place of the real follower, which is disconnected.
        leader = scene.leader(0)
        follower = leader % 2 + 1
        await scene.write(0, b"a")
        await scene.cluster.kill(follower)
        assert scene.cluster.image.partition("t", 0).isr == [leader]
        partition = scene.partition(0)
        request = fetch_request(scene.topic_id, {0: 0}, replica_id=follower)
        part = parts(await scene.ask(request, 18, leader))[0]
        assert read_values(part.records) == [b"a"]
        assert part.aborted_transactions is None
        assert partition.followers[follower].log_end_offset == 0
        await scene.ask(fetch_request("t", {0: 1}, replica_id=follower, version=14), 12, leader)
        assert partition.followers[follower].log_end_offset == 1


@pytest.mark.parametrize(("epoch", "code"), [(-1, 6), (0, 75)])
async def test_a_follower_that_is_no_replica_is_refused(scene: Scene, epoch: int, code: int) -> None:
    request = fetch_request(scene.topic_id, {0: 0}, replica_id=77, current_leader_epoch=epoch, max_wait_ms=60_000)
    response = await scene.ask(request, 18)
    assert parts(response)[0].error_code == code
    assert response.node_endpoints == []


async def test_a_follower_with_an_old_broker_epoch_is_refused() -> None:
    """KIP-903."""
    async with a_scene(2) as scene:
        leader = scene.leader(0)
        follower = leader % 2 + 1
        request = fetch_request(scene.topic_id, {0: 0})
        old = scene.cluster.image.nodes[follower].epoch - 1
        request.replica_state = ReplicaState(replica_id=follower, replica_epoch=max(old, 0))
        response = await scene.ask(request, 18, leader)
        assert parts(response)[0].error_code == (6 if old >= 0 else 0)


@pytest.mark.parametrize(("version", "code"), [(10, 6), (11, 0)])
async def test_new_consumers_may_read_from_followers(version: int, code: int) -> None:
    async with a_scene(2, replica__fetch__wait__max__ms="10") as scene:
        other = scene.leader(0) % 2 + 1
        committed = asyncio.Event()
        replica = scene.partition(0, other)
        replica.add_watcher(lambda: committed.set() if replica.high_watermark else None)
        await scene.write(0, b"a")
        async with asyncio.timeout(5):
            await committed.wait()
        part = parts(await scene.ask(fetch_request("t", {0: 0}, version=version), version, other))[0]
        assert part.error_code == code
        assert read_values(part.records) == ([] if code else [b"a"])


async def test_consumers_see_only_committed_records() -> None:
    async with a_scene(2) as scene:
        leader = scene.leader(0)
        scene.faults.disconnect("Fetch", "before", None)
        await loop_passes()
        await scene.ask(produce_request("t", {0: batch(b"v")}, acks=1), 9, leader)
        scene.faults.clear()
        partition = scene.partition(0)
        assert (partition.high_watermark, partition.log_end_offset) == (0, 1)
        part = parts(await scene.answered(fetch_request("t", {0: 0}, version=12), 12, leader))[0]
        assert (part.error_code, part.high_watermark, read_values(part.records)) == (0, 0, [])
