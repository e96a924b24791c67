"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords over the wire."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.protocol.messages import (
    DeleteRecordsRequest,
    FindCoordinatorRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from aioproducer.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsTopic,
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsTopic,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.broker.scene import Scene, a_scene, loop_passes

START = 1_700_000_000_000
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)
NOTHING = (0, -1, -1, -1)


def listing(
    index: int, *timestamps: int, replica_id: int = -1, isolation_level: int = 0, epoch: int = -1, topic: str = "t"
) -> ListOffsetsRequest:
    partitions = [
        ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=timestamp)
        for timestamp in timestamps
    ]
    return ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=partitions)],
    )


def shown(answer: ListOffsetsPartitionResponse) -> tuple[int, int, int, int]:
    return answer.error_code, answer.timestamp, answer.offset, answer.leader_epoch


async def looked_up(
    scene: Scene, request: ListOffsetsRequest, version: int = 11, node_id: int = 1
) -> tuple[int, int, int, int]:
    [answer] = (await scene.ask(request, version, node_id)).topics[0].partitions
    return shown(answer)


@pytest.mark.parametrize("version", range(1, 12))
async def test_special_offsets_are_found_in_every_version_that_has_them(scene: Scene, version: int) -> None:
    await scene.write(0, b"a", b"b", timestamp=START)
    await scene.write(0, b"c", timestamp=START - 50)
    epoch = 0 if version >= 4 else -1
    for timestamp, since, found in (
        (LATEST, 1, (0, -1, 3, epoch)),
        (EARLIEST, 1, (0, -1, 0, epoch)),
        (MAX_TIMESTAMP, 7, (0, START + 1, 1, epoch)),
        (EARLIEST_LOCAL, 8, (0, -1, 0, epoch)),
        (LATEST_TIERED, 9, NOTHING),
        (PENDING_UPLOAD, 11, NOTHING),
        (-7, 99, NOTHING),
    ):
        expected = found if version >= since else (35, -1, -1, -1)
        assert await looked_up(scene, listing(0, timestamp), version) == expected, timestamp


async def test_offsets_are_found_by_timestamp(scene: Scene) -> None:
    await scene.write(0, b"a", b"b", timestamp=START)
    await scene.write(0, b"c", timestamp=START + 50)
    for timestamp, found in (
        (0, (0, START, 0, 0)),
        (START + 1, (0, START + 1, 1, 0)),
        (START + 2, (0, START + 50, 2, 0)),
        (START + 51, NOTHING),
    ):
        assert await looked_up(scene, listing(0, timestamp)) == found
    assert await looked_up(scene, listing(1, MAX_TIMESTAMP)) == NOTHING
    assert await looked_up(scene, listing(1, 0)) == NOTHING


async def test_unknown_and_repeated_partitions_have_their_error(scene: Scene) -> None:
    assert await looked_up(scene, listing(9, LATEST)) == (3, -1, -1, -1)
    assert await looked_up(scene, listing(0, LATEST, topic="none")) == (3, -1, -1, -1)
    assert await looked_up(scene, listing(0, LATEST, EARLIEST)) == (42, -1, -1, -1)


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_committed_and_other_records_end_at_the_same_offset_without_transactions(
    scene: Scene, isolation_level: int
) -> None:
    await scene.write(0, b"a")
    assert await looked_up(scene, listing(0, LATEST, isolation_level=isolation_level)) == (0, -1, 1, 0)


async def test_the_leader_answers_and_checks_the_epoch() -> None:
    async with a_scene(2) as scene:
        old = scene.leader(0)
        scene.cluster.controller.elect_leader("t", 0, old % 2 + 1)
        new = scene.leader(0)
        for epoch, code in ((-1, 0), (0, 74), (1, 0), (2, 75)):
            assert (await looked_up(scene, listing(0, LATEST, epoch=epoch), 11, new))[0] == code
        assert (await looked_up(scene, listing(0, LATEST), 11, old))[0] == 6
        # The debugging replica id -2 may read from any replica.
        assert (await looked_up(scene, listing(0, LATEST, replica_id=-2), 11, old))[0] == 0


@pytest.mark.parametrize(("version", "code"), [(4, 5), (5, 78)])
async def test_after_an_election_the_high_watermark_may_not_be_known_yet(version: int, code: int) -> None:
    """KIP-207."""
    async with a_scene() as scene:
        await scene.write(0, b"a")
        partition = scene.partition(0)
        partition.high_watermark = 0
        partition.leader_epoch_start_offset = 1
        assert (await looked_up(scene, listing(0, LATEST), version))[0] == code
        assert (await looked_up(scene, listing(0, 0), version))[0] == code
        assert (await looked_up(scene, listing(0, EARLIEST), version))[0] == 0
        # A follower gets the end of the log.
        assert (await looked_up(scene, listing(0, LATEST, replica_id=7), version))[2] == 1


async def test_an_unknown_isolation_level_is_refused(scene: Scene) -> None:
    assert (await looked_up(scene, listing(0, LATEST, isolation_level=5)))[0] == -1


# OffsetForLeaderEpoch


async def end_of(
    scene: Scene, index: int, epoch: int, current: int = -1, version: int = 4, node_id: int = 1
) -> EpochEndOffset:
    asked = OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])])
    [answer] = (await scene.ask(request, version, node_id)).topics[0].partitions
    return answer


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_the_ends_of_epochs_are_returned(version: int) -> None:
    async with a_scene(2) as scene:
        await scene.write(0, b"a", b"b")
        old = scene.leader(0)
        scene.cluster.controller.elect_leader("t", 0, old % 2 + 1)
        new = scene.leader(0)
        await scene.write(0, b"c")
        for epoch, found in ((0, (0, 2)), (1, (1, 3)), (2, (-1, -1))):
            answer = await end_of(scene, 0, epoch, version=version, node_id=new)
            assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, *found)
        for current, code in ((0, 74), (1, 0), (2, 75)):
            assert (await end_of(scene, 0, 0, current, version, new)).error_code == code
        answer = await end_of(scene, 0, 0, version=version, node_id=old)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (6, -1, -1)
        assert (await end_of(scene, 9, 0, version=version)).error_code == 3


# DeleteRecords


def deleting(offsets: dict[int, int], topic: str = "t", timeout_ms: int = 10_000) -> DeleteRecordsRequest:
    partitions = [DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in offsets.items()]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=timeout_ms)


async def deleted(
    scene: Scene, request: DeleteRecordsRequest, version: int = 2, node_id: int = 1
) -> dict[int, tuple[int, int]]:
    results: list[DeleteRecordsPartitionResult] = (await scene.ask(request, version, node_id)).topics[0].partitions
    return {result.partition_index: (result.error_code, result.low_watermark) for result in results}


@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted_up_to_an_offset_or_the_high_watermark(scene: Scene, version: int) -> None:
    for index in (0, 1):
        await scene.write(index, b"a", b"b", b"c")
    assert await deleted(scene, deleting({0: 2, 1: -1, 2: 0}), version) == {0: (0, 2), 1: (0, 3), 2: (0, 0)}
    assert (await looked_up(scene, listing(0, EARLIEST)))[2] == 2
    # Deleting again changes nothing.
    assert await deleted(scene, deleting({0: 1}), version) == {0: (0, 2)}


async def test_impossible_deletions_have_their_error(scene: Scene) -> None:
    await scene.write(0, b"a")
    scene.cluster.create_topic("compacted", 1, configs={"cleanup.policy": "compact"})
    await scene.ask(FindCoordinatorRequest(key="g"), 3)
    assert await deleted(scene, deleting({0: 2, 1: -2, 9: 0})) == {0: (1, -1), 1: (1, -1), 9: (3, -1)}
    assert await deleted(scene, deleting({0: 0}, "none")) == {0: (3, -1)}
    assert await deleted(scene, deleting({0: 0}, "compacted")) == {0: (44, -1)}
    assert await deleted(scene, deleting({0: 0}, "__consumer_offsets")) == {0: (17, -1)}


async def test_the_response_waits_for_the_followers() -> None:
    async with a_scene(2, replica__fetch__wait__max__ms="10") as scene:
        await scene.write(0, b"a", b"b")
        leader = scene.leader(0)
        assert await deleted(scene, deleting({0: 1}), node_id=leader) == {0: (0, 1)}
        assert scene.partition(0, leader % 2 + 1).log_start_offset == 1
        assert scene.partition(0).watcher_count <= 1
        assert await deleted(scene, deleting({0: 1}), node_id=leader % 2 + 1) == {0: (6, -1)}


async def test_slow_followers_time_the_request_out() -> None:
    async with a_scene(2) as scene:
        await scene.write(0, b"a", b"b")
        scene.faults.disconnect("Fetch", "before", None)
        await loop_passes()
        leader = scene.leader(0)
        results = await deleted(scene, deleting({0: 2}, timeout_ms=30), node_id=leader)
        assert results[0][0] == 7
        assert scene.partition(0).watcher_count <= 1


async def test_a_leader_that_moves_ends_the_wait() -> None:
    async with a_scene(2) as scene:
        await scene.write(0, b"a", b"b")
        scene.faults.disconnect("Fetch", "before", None)
        await loop_passes()
        leader = scene.leader(0)
        asked = asyncio.create_task(deleted(scene, deleting({0: 2}), node_id=leader))
        async with asyncio.timeout(5):
            while scene.partition(0, leader).log_start_offset == 0:
                await loop_passes()
        scene.cluster.controller.elect_leader("t", 0, leader % 2 + 1)
        assert (await asked)[0] == (6, -1)
