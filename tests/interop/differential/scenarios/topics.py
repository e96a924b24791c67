"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from collections.abc import Sequence

from aioproducer.protocol.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    MetadataRequest,
)
from aioproducer.protocol.messages.metadata import MetadataRequestTopic
from aioproducer.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsTopic,
    DeleteTopicState,
)
from tests.interop.differential.scenario import Run, scenario, versions
from tests.interop.differential.scenarios.metadata import INVALID_NAMES

# Keys in a response to CreateTopics that are compared here; DescribeConfigs covers the others.
_SHOWN = ("cleanup.policy", "retention.ms", "segment.bytes", "max.message.bytes", "message.timestamp.type")


def creatable(
    name: str,
    partitions: int = 1,
    replication: int = 1,
    *,
    assignments: Sequence[tuple[int, Sequence[int]]] = (),
    configs: Sequence[tuple[str, str | None]] = (),
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in assignments
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs],
    )


async def _create(
    run: Run, label: str, *topics: CreatableTopic, version: int = 7, validate: bool = False, node: int = 1
) -> None:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=validate)
    answer = await run.quietly(request, version, node=node)
    if isinstance(answer, CreateTopicsResponse):
        for found in answer.topics:
            run.names.add_topic(found.topic_id, found.name)
            if found.configs is not None:
                found.configs = [config for config in found.configs if config.name in _SHOWN]
    run.observe(label, answer, version)


@scenario()
async def create_topics_in_every_version(run: Run) -> None:
    for version in versions(CreateTopicsRequest):
        name = run.name(f"v{version}")
        await _create(run, f"version {version} validated", creatable(name), version=version, validate=True)
        await _create(run, f"version {version}", creatable(name), version=version)
        await _create(run, f"version {version} again", creatable(name), version=version)
        await _create(run, f"version {version} again, validated", creatable(name), version=version, validate=True)
        defaults = creatable(run.name(f"v{version}d"), -1, -1)
        await _create(run, f"version {version} defaults", defaults, version=version)
        await _create(run, f"version {version} nothing", version=version)
        await _create(run, f"version {version} bad name", creatable("a b"), version=version)
        configured = creatable(
            run.name(f"v{version}c"), configs=[("retention.ms", "1000"), ("cleanup.policy", "compact")]
        )
        await _create(run, f"version {version} configured", configured, version=version)


@scenario()
async def create_topics_names(run: Run) -> None:
    for name in INVALID_NAMES:
        await _create(run, f"{name[:8]!r} of {len(name)}", creatable(name), validate=True)
    await _create(run, "internal", creatable("__consumer_offsets_x"), validate=True)
    name = run.name("twice")
    await _create(run, "twice in one", creatable(name), creatable(name), creatable(run.name("once")))
    await _create(run, "dot", creatable(run.name("a.b")))
    await _create(run, "underscore", creatable(run.name("a_b")))


@scenario()
async def create_topics_counts(run: Run) -> None:
    for partitions in (0, -1, -2, 100_000):
        await _create(run, f"{partitions} partitions", creatable(run.name("p"), partitions), validate=True)
    for replication in (0, -1, -2, 2, 32767):
        await _create(run, f"{replication} replicas", creatable(run.name("r"), 1, replication), validate=True)

    async def assigned(
        label: str, *assignments: tuple[int, Sequence[int]], partitions: int = -1, replication: int = -1
    ) -> None:
        topic = creatable(run.name("a"), partitions, replication, assignments=assignments)
        await _create(run, label, topic, validate=True)

    await assigned("assigned", (0, [1]), (1, [1]))
    await assigned("assigned and counted", (0, [1]), partitions=1)
    await assigned("assigned and replicated", (0, [1]), replication=1)
    await assigned("assigned to unknown", (0, [9]))
    await assigned("assigned twice to one", (0, [1, 1]))
    await assigned("assigned to nobody", (0, []))
    await assigned("not from zero", (1, [1]))
    await assigned("with a gap", (0, [1]), (2, [1]))
    await assigned("one twice", (0, [1]), (0, [1]))
    await assigned("negative", (-1, [1]))
    await assigned("negative broker", (0, [-1]))


@scenario()
async def create_topics_configs(run: Run) -> None:
    for key, value in (
        ("no.such.key", "1"),
        ("retention.ms", "x"),
        ("retention.ms", "-2"),
        ("retention.ms", ""),
        ("retention.ms", None),
        ("retention.ms", " 5 "),
        ("retention.ms", "99999999999999999999"),
        ("segment.bytes", "5"),
        ("segment.bytes", "2147483648"),
        ("segment.bytes", "1048576"),
        ("segment.ms", "0"),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete,delete"),
        ("compression.type", "brotli"),
        ("compression.type", "zstd"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "0"),
        ("compression.zstd.level", "23"),
        ("message.timestamp.type", "Never"),
        ("message.timestamp.type", "LogAppendTime"),
        ("message.timestamp.after.max.ms", "-1"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "5"),
        ("unclean.leader.election.enable", "yes"),
        ("unclean.leader.election.enable", "TRUE"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "x"),
        ("max.message.bytes", "-1"),
        ("max.message.bytes", "0"),
        ("flush.messages", "0"),
        ("flush.ms", "-1"),
        ("index.interval.bytes", "-1"),
        ("file.delete.delay.ms", "-1"),
        ("delete.retention.ms", "-1"),
        ("min.compaction.lag.ms", "-1"),
        ("max.compaction.lag.ms", "0"),
        ("retention.bytes", "-1"),
        ("retention.bytes", "-2"),
        ("preallocate", "maybe"),
        ("remote.storage.enable", "true"),
        ("local.retention.ms", "-3"),
        ("leader.replication.throttled.replicas", "x"),
        ("leader.replication.throttled.replicas", "0:1"),
        ("leader.replication.throttled.replicas", "*"),
        ("message.format.version", "3.0"),
    ):
        topic = creatable(run.name("c"), configs=[(key, value)])
        await _create(run, f"{key}={value}", topic, validate=True)
    both = [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")]
    await _create(run, "lags that contradict", creatable(run.name("c"), configs=both), validate=True)
    twice = [("retention.ms", "1"), ("retention.ms", "2")]
    await _create(run, "a key twice", creatable(run.name("c"), configs=twice), validate=True)
    good_and_bad = (creatable(run.name("c"), configs=[("x", "1")]), creatable(run.name("d")))
    await _create(run, "good and bad", *good_and_bad, validate=True)


async def _delete(run: Run, label: str, *found: DeleteTopicState, version: int = 6) -> None:
    request = DeleteTopicsRequest(timeout_ms=10_000)
    if version >= 6:
        request.topics = list(found)
    else:
        request.topic_names = [state.name or "" for state in found]
    await run.ask(label, request, version)


@scenario()
async def delete_topics(run: Run) -> None:
    for version in versions(DeleteTopicsRequest):
        topic = await run.create(f"v{version}")
        unknown = DeleteTopicState(name=run.name("unknown"))
        await _delete(run, f"version {version}", DeleteTopicState(name=topic.name), unknown, version=version)
        await _delete(run, f"version {version} invalid name", DeleteTopicState(name="a b"), version=version)
        await _delete(run, f"version {version} empty name", DeleteTopicState(name=""), version=version)
        await _delete(run, f"version {version} nothing", version=version)
    topic = await run.create("by-id")
    await _delete(run, "by id", DeleteTopicState(topic_id=topic.id))
    await _delete(run, "by id again", DeleteTopicState(topic_id=topic.id))
    await _delete(run, "unknown id", DeleteTopicState(topic_id=bytes(15) + b"\x07"))
    await _delete(run, "neither", DeleteTopicState())
    topic = await run.create("both")
    await _delete(run, "id and name", DeleteTopicState(topic_id=topic.id, name=topic.name))
    by_name, by_id = DeleteTopicState(name=topic.name), DeleteTopicState(topic_id=topic.id)
    await _delete(run, "name twice", by_name, by_name)
    topic = await run.create("twice")
    by_name, by_id = DeleteTopicState(name=topic.name), DeleteTopicState(topic_id=topic.id)
    await _delete(run, "by name and by id", by_name, by_id)
    await _delete(run, "afterwards", by_name)


def _more(
    name: str, count: int, *brokers: Sequence[int], assigned: bool = False, validate: bool = False
) -> CreatePartitionsRequest:
    assignments = [CreatePartitionsAssignment(broker_ids=list(found)) for found in brokers]
    return CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=assignments if assigned else None)],
        timeout_ms=10_000,
        validate_only=validate,
    )


@scenario()
async def create_partitions(run: Run) -> None:
    for version in versions(CreatePartitionsRequest):
        topic = await run.create(f"v{version}", 2)
        for count in (-1, 0, 1, 2):
            await run.ask(f"version {version} count {count}", _more(topic.name, count), version)
        await run.ask(f"version {version} validated", _more(topic.name, 3, validate=True), version)
        await run.ask(f"version {version} more", _more(topic.name, 4), version)
        await run.ask(f"version {version} unknown", _more(run.name("unknown"), 3), version)
        await run.ask(f"version {version} invalid", _more("a b", 3), version)
        await run.wait_for(topic.name, lambda found: len(found.partitions) == 4)
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic.name)])
        await run.ask(f"version {version} metadata", request)
    topic = await run.create("assigned", 1)
    for label, count, brokers in (
        ("too few", 3, [[1]]),
        ("too many", 2, [[1], [1]]),
        ("none", 2, []),
        ("unknown broker", 2, [[9]]),
        ("twice", 2, [[1, 1]]),
        ("empty", 2, [[]]),
        ("right", 3, [[1], [1]]),
    ):
        await run.ask(label, _more(topic.name, count, *brokers, assigned=True, validate=True))
    twice = _more(topic.name, 2)
    twice.topics = twice.topics * 2
    await run.ask("named twice", twice)
    await run.ask("nothing", CreatePartitionsRequest(timeout_ms=1000))
    await run.ask("too many to hold", _more(topic.name, 100_000, validate=True))


@scenario(nodes=3)
async def topics_on_three_nodes(run: Run) -> None:
    for replication in (1, 2, 3, 4, -1):
        topic = creatable(run.name(f"r{replication}"), 3, replication)
        await _create(run, f"{replication} replicas", topic, validate=True, node=2)
    for label, assignments in (
        ("good", [(0, [3, 1]), (1, [2, 3])]),
        ("of different sizes", [(0, [3, 1]), (1, [2])]),
        ("twice on one", [(0, [3, 3])]),
        ("unknown broker", [(0, [3, 7])]),
    ):
        await _create(run, label, creatable(run.name("a"), -1, -1, assignments=assignments), validate=True)
    created = await run.create(replicas=[[3, 1], [2, 3]])
    for brokers in ([1, 2], [1], [1, 2, 3], [1, 1], [1, 9]):
        await run.ask(f"one more on {brokers}", _more(created.name, 3, brokers, assigned=True, validate=True), node=3)
