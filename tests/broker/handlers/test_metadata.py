"""Metadata, DescribeCluster and DescribeTopicPartitions over the wire."""

from __future__ import annotations

import pytest

from aioproducer.protocol import ZERO_UUID
from aioproducer.protocol.messages import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from aioproducer.protocol.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsResponse,
    MetadataRequestTopic,
    TopicRequest,
)
from tests.broker.scene import Scene, a_scene

UNKNOWN_ID = bytes(range(16))


def named(*names: str, create: bool = True) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=create)


@pytest.mark.parametrize("version", range(14))
async def test_all_topics_are_returned_in_every_version(scene: Scene, version: int) -> None:
    scene.cluster.create_topic("u", 1)
    request = MetadataRequest(topics=[] if version == 0 else None)
    response = await scene.ask(request, version)
    assert {topic.name: len(topic.partitions) for topic in response.topics} == {"t": 3, "u": 1}
    assert response.controller_id == (1 if version else -1)
    assert response.cluster_id == (scene.cluster.image.cluster_id if version >= 2 else None)
    assert response.topics[0].topic_id == (scene.topic_id if version >= 10 else ZERO_UUID)
    if version:
        assert (await scene.ask(named(), version)).topics == []


@pytest.mark.parametrize("version", range(4, 14))
async def test_unknown_topics_have_their_error_beside_known_ones(scene: Scene, version: int) -> None:
    response = await scene.ask(named("t", "none", "no name", "", "..", "t", create=False), version)
    assert {topic.name: topic.error_code for topic in response.topics} == {
        "t": 0,
        "none": 3,
        "no name": 17,
        "": 17,
        "..": 17,
    }
    assert "none" not in scene.cluster.image.topics


async def test_a_requested_topic_is_created_and_known_the_next_time(scene: Scene) -> None:
    for code in (3, 0):
        [topic] = (await scene.ask(named("new"), 12)).topics
        assert topic.error_code == code
    # Before version 4 a client cannot forbid the creation.
    await scene.ask(named("old"), 1)
    assert {"new", "old"} <= scene.cluster.image.topics.keys()


async def test_no_topic_is_created_if_the_broker_forbids_it() -> None:
    async with a_scene(auto__create__topics__enable="false") as scene:
        for _ in range(2):
            [topic] = (await scene.ask(named("new"), 12)).topics
            assert topic.error_code == 3


async def test_a_topic_that_cannot_be_created_stays_unknown(caplog: pytest.LogCaptureFixture) -> None:
    async with a_scene(default__replication__factor="3") as scene:
        [topic] = (await scene.ask(named("new"), 12)).topics
        assert topic.error_code == 3
        assert "new" not in scene.cluster.image.topics
    assert "Creating the requested topic 'new' failed" in caplog.text


async def test_topics_by_id(scene: Scene) -> None:
    asked = [
        MetadataRequestTopic(topic_id=UNKNOWN_ID, name=None),
        MetadataRequestTopic(topic_id=scene.topic_id, name=None),
    ]
    response = await scene.ask(MetadataRequest(topics=asked, include_topic_authorized_operations=True), 12)
    unknown, known = response.topics
    assert (unknown.error_code, unknown.name, unknown.topic_id) == (100, None, UNKNOWN_ID)
    assert unknown.topic_authorized_operations == -(2**31)
    assert (known.error_code, known.name, known.topic_id) == (0, "t", scene.topic_id)
    assert known.topic_authorized_operations == 3576


@pytest.mark.parametrize("version", [10, 11])
async def test_ids_before_version_12(scene: Scene, version: int) -> None:
    for asked in (
        MetadataRequestTopic(topic_id=scene.topic_id, name="t"),
        MetadataRequestTopic(topic_id=ZERO_UUID, name=None),
    ):
        [topic] = (await scene.ask(MetadataRequest(topics=[asked]), version)).topics
        assert topic.error_code == 42


async def test_all_operations_are_authorized(scene: Scene) -> None:
    request = named("t")
    response = await scene.ask(request, 9)
    assert response.cluster_authorized_operations == -(2**31)
    assert response.topics[0].topic_authorized_operations == -(2**31)
    request.include_cluster_authorized_operations = request.include_topic_authorized_operations = True
    response = await scene.ask(request, 9)
    assert (response.cluster_authorized_operations, response.topics[0].topic_authorized_operations) == (8096, 3576)


async def test_internal_topics_are_marked_as_such(scene: Scene) -> None:
    await scene.ask(FindCoordinatorRequest(key="g"), 3)
    topics = {topic.name: topic for topic in (await scene.ask(MetadataRequest(topics=None), 12)).topics}
    assert topics["__consumer_offsets"].is_internal
    assert not topics["t"].is_internal
    [absent] = (await scene.ask(named("__transaction_state", create=False), 12)).topics
    assert (absent.error_code, absent.is_internal) == (3, True)


async def test_a_node_that_died_is_missing_and_its_replicas_offline() -> None:
    async with a_scene(3) as scene:
        scene.cluster.create_topic("alone", assignments={0: [2]})
        await scene.cluster.kill(2)
        response = await scene.ask(named("t", "alone"), 12)
        assert [broker.node_id for broker in response.brokers] == [1, 3]
        together, alone = response.topics
        assert all(partition.leader_id in (1, 3) for partition in together.partitions)
        assert all(partition.offline_replicas == [2] for partition in together.partitions)
        [partition] = alone.partitions
        assert (partition.error_code, partition.leader_id, partition.offline_replicas) == (5, -1, [2])
        # In version 0 replicas that are not alive are left out.
        together, alone = (await scene.ask(named("t", "alone"), 0)).topics
        assert all(partition.error_code == 9 for partition in together.partitions)
        assert all(sorted(partition.replica_nodes) == [1, 3] for partition in together.partitions)
        assert (alone.partitions[0].error_code, alone.partitions[0].replica_nodes) == (5, [])
        [described] = (await scene.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="alone")]), 0)).topics
        assert (described.partitions[0].error_code, described.partitions[0].leader_id) == (0, -1)


# DescribeCluster


@pytest.mark.parametrize("version", range(3))
async def test_the_nodes_of_the_cluster(version: int) -> None:
    async with a_scene(2) as scene:
        await scene.cluster.kill(2)
        response = await scene.ask(DescribeClusterRequest(), version)
        assert (response.cluster_id, response.controller_id) == (scene.cluster.image.cluster_id, 1)
        assert [(broker.broker_id, broker.is_fenced) for broker in response.brokers] == [(1, False)]
        assert response.cluster_authorized_operations == -(2**31)
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        assert (await scene.ask(request, version)).cluster_authorized_operations == 8096
        if version == 2:
            response = await scene.ask(DescribeClusterRequest(include_fenced_brokers=True), version)
            assert [(broker.broker_id, broker.is_fenced) for broker in response.brokers] == [(1, False), (2, True)]


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (9, 115)])
async def test_only_brokers_can_be_described(scene: Scene, endpoint_type: int, code: int) -> None:
    response = await scene.ask(DescribeClusterRequest(endpoint_type=endpoint_type), 1)
    assert response.error_code == code
    assert response.error_message


# DescribeTopicPartitions


async def page(scene: Scene, limit: int, cursor: Cursor | None, *names: str) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=cursor
    )
    return await scene.ask(request, 0)


@pytest.mark.parametrize("names", [(), ("u", "t", "a")])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_have_every_partition_once_and_in_order(scene: Scene, names: tuple[str, ...], limit: int) -> None:
    for name, partitions in (("u", 4), ("a", 2)):
        scene.cluster.create_topic(name, partitions)
    found = []
    cursor = None
    while True:
        response = await page(scene, limit, cursor, *names)
        seen = [(topic.name, part.partition_index) for topic in response.topics for part in topic.partitions]
        assert 0 < len(seen) <= limit
        found += seen
        cursor = response.next_cursor
        if cursor is None:
            break
    assert found == [("a", 0), ("a", 1), ("t", 0), ("t", 1), ("t", 2), ("u", 0), ("u", 1), ("u", 2), ("u", 3)]


async def test_the_broker_limits_a_page() -> None:
    async with a_scene(max__request__partition__size__limit=2) as scene:
        response = await page(scene, 2000, None)
        assert len(response.topics[0].partitions) == 2
        assert response.next_cursor == Cursor(topic_name="t", partition_index=2)
        # A limit of 0 counts as 1.
        assert len((await page(scene, 0, None)).topics[0].partitions) == 1


async def test_undescribable_topics_have_their_error(scene: Scene) -> None:
    scene.faults.fail("DescribeTopicPartitions", 29, topic="t")
    response = await page(scene, 10, None, "none", "no name", "t")
    assert {topic.name: topic.error_code for topic in response.topics} == {"none": 3, "no name": 17, "t": 29}
    assert all(topic.topic_authorized_operations == 3576 for topic in response.topics)


@pytest.mark.parametrize(
    ("names", "cursor"),
    [(("t",), Cursor(topic_name="u", partition_index=0)), (("t",), Cursor(topic_name="t", partition_index=-1))],
)
async def test_an_invalid_cursor_is_refused(scene: Scene, names: tuple[str, ...], cursor: Cursor) -> None:
    [topic] = (await page(scene, 10, cursor, *names)).topics
    assert (topic.name, topic.error_code) == ("t", 42)


async def test_a_cursor_behind_the_last_partition(scene: Scene) -> None:
    [topic] = (await page(scene, 10, Cursor(topic_name="t", partition_index=9), "t")).topics
    assert topic.partitions == []
