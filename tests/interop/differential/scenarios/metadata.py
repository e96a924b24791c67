"""Metadata, DescribeTopicPartitions and DescribeCluster."""

from __future__ import annotations

from aioproducer.protocol.messages import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataResponse,
)
from aioproducer.protocol.messages.metadata import Cursor, MetadataRequestTopic, TopicRequest
from tests.interop.differential.scenario import Run, latest, scenario, versions

INVALID_NAMES = ("", ".", "..", "a b", "a/b", "ä", "a" * 249, "a" * 250, "a\0b", "a,b")


def _named(*names: str, create: bool = False) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=create)


@scenario()
async def metadata_in_every_version(run: Run) -> None:
    topic = await run.create(partitions=3)
    for version in versions(MetadataRequest):
        # Before version 4 the request has no such field, and topics are created.
        create = version < 4
        await run.ask(f"version {version} named", _named(topic.name, create=create), version)
        if version >= 4:
            await run.ask(f"version {version} unknown", _named(run.name("unknown")), version)
        if version >= 1:
            await run.ask(f"version {version} none", MetadataRequest(topics=[]), version)
        every = MetadataRequest(topics=None if version >= 1 else [])
        answer = await run.quietly(every, version)
        assert isinstance(answer, MetadataResponse)
        answer.topics = [found for found in answer.topics if found.name == topic.name]
        run.observe(f"version {version} all", answer, version)


@scenario()
async def metadata_by_id(run: Run) -> None:
    topic = await run.create()
    deleted = await run.create("deleted")
    await run.delete(deleted)
    for version in (10, 11, 12, 13):
        for label, found in (
            ("known", MetadataRequestTopic(topic_id=topic.id, name=None)),
            ("deleted", MetadataRequestTopic(topic_id=deleted.id, name=None)),
            ("unknown", MetadataRequestTopic(topic_id=bytes(15) + b"\x07", name=None)),
            ("zero", MetadataRequestTopic(name=None)),
            ("id and name", MetadataRequestTopic(topic_id=topic.id, name=topic.name)),
            ("id and other name", MetadataRequestTopic(topic_id=topic.id, name=run.name("other"))),
        ):
            request = MetadataRequest(topics=[found], allow_auto_topic_creation=False)
            await run.ask(f"version {version} {label}", request, version)
    mixed = [MetadataRequestTopic(topic_id=topic.id, name=None), MetadataRequestTopic(name=topic.name)]
    await run.ask("id and name in two", MetadataRequest(topics=mixed, allow_auto_topic_creation=False))


@scenario()
async def metadata_of_invalid_names(run: Run) -> None:
    for create in (False, True):
        for name in INVALID_NAMES:
            if not (create and len(name) == 249):
                await run.ask(f"create {create} {name[:10]!r} of {len(name)}", _named(name, create=create), 12)
    topic = await run.create()
    await run.ask("several", _named(topic.name, "a b", run.name("unknown"), topic.name), 12)


@scenario()
async def metadata_operations(run: Run) -> None:
    topic = await run.create()
    for version in (8, 10, 11, 13):
        request = _named(topic.name)
        request.include_topic_authorized_operations = True
        request.include_cluster_authorized_operations = version <= 10
        await run.ask(f"version {version}", request, version)


@scenario()
async def topics_created_on_demand(run: Run) -> None:
    for version in (0, 1, 3, 4, 9, 12, 13):
        name = run.name(f"v{version}")
        await run.ask(f"version {version} first", _named(name, create=True), version)
        await run.wait_for(name, lambda found: len(found.partitions) > 0)
        await run.ask(f"version {version} then", _named(name, create=True), version)
    await run.ask("internal", _named("__transaction_state", create=False))


@scenario()
async def colliding_names(run: Run) -> None:
    await run.create("a.b_c")
    name = run.name("a_b.c")
    await run.ask("created on demand", _named(name, create=True))


@scenario()
async def describe_topic_partitions(run: Run) -> None:
    first = await run.create("a", 3)
    second = await run.create("b", 2)

    def request(*names: str, limit: int = 2000, cursor: Cursor | None = None) -> DescribeTopicPartitionsRequest:
        return DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=cursor
        )

    both = (second.name, first.name)
    await run.ask("both", request(*both))
    await run.ask("unknown", request(run.name("unknown"), first.name))
    await run.ask("invalid name", request("a b"))
    for limit in (1, 2, 3, 4, 5):
        await run.ask(f"limit {limit}", request(*both, limit=limit))
    for limit in (0, -1):
        await run.ask(f"limit {limit}", request(*both, limit=limit))
    await run.ask("cursor in the first", request(*both, cursor=Cursor(topic_name=first.name, partition_index=1)))
    await run.ask("cursor at the second", request(*both, cursor=Cursor(topic_name=second.name, partition_index=0)))
    await run.ask("cursor behind", request(*both, cursor=Cursor(topic_name=second.name, partition_index=9)))
    await run.ask("cursor negative", request(*both, cursor=Cursor(topic_name=first.name, partition_index=-1)))
    await run.ask(
        "cursor elsewhere, limited", request(*both, limit=1, cursor=Cursor(topic_name=first.name, partition_index=2))
    )


@scenario()
async def describe_cluster(run: Run) -> None:
    for version in versions(DescribeClusterRequest):
        await run.ask(f"version {version}", DescribeClusterRequest(), version)
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        await run.ask(f"version {version} operations", request, version)
    for endpoint_type in (2, 3):
        await run.ask(f"endpoint type {endpoint_type}", DescribeClusterRequest(endpoint_type=endpoint_type))
    await run.ask("fenced ones", DescribeClusterRequest(include_fenced_brokers=True))


@scenario(nodes=3)
async def metadata_of_three_nodes(run: Run) -> None:
    topic = await run.create(replicas=[[1, 2], [2, 3], [3, 1], [2, 1]])
    for node in (1, 2, 3):
        await run.ask(f"node {node}", _named(topic.name), latest(MetadataRequest), node=node)
        names = [TopicRequest(name=topic.name)]
        await run.ask(f"node {node} partitions", DescribeTopicPartitionsRequest(topics=names), node=node)
    await run.ask("not created", _named(run.name("unknown"), create=True))
    await run.ask("DescribeCluster", DescribeClusterRequest())
