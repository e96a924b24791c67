"""The interface of scenarios, and finding and running them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from aioproducer.errors import UnknownTopicOrPartitionError, UnsupportedVersionError
from aioproducer.protocol import Message, Request, Response
from aioproducer.protocol.messages import (
    ApiVersionsResponse,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    FetchRequest,
    FetchResponse,
    IncrementalAlterConfigsRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from aioproducer.protocol.messages.configs import AlterableConfig, AlterConfigsResource, DescribeConfigsResource
from aioproducer.protocol.messages.fetch import FetchPartition, FetchTopic
from aioproducer.protocol.messages.metadata import MetadataRequestTopic, MetadataResponseTopic
from aioproducer.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsTopic
from aioproducer.protocol.messages.produce import PartitionProduceData, TopicProduceData
from aioproducer.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    DeleteTopicState,
)
from tests.interop.differential.normal import Names, Tree, normalise
from tests.interop.differential.wire import Connection, Nodes, Outcome

R = TypeVar("R", bound=Response)

_PATIENCE_SECONDS = 30

# DescribeConfigs' and AlterConfigs' number for a topic, and the key that shows how far a broker has read the metadata.
_TOPIC = 2
_MARK = "retention.ms"


class Topic(NamedTuple):
    """A topic that a scenario has created."""

    name: str
    id: bytes


def latest(request: type[Request[Response]]) -> int:
    """Return the newest version of a request."""
    return request.schema.versions[-1]


def versions(request: type[Request[Response]], lowest: int = 0, highest: int = 2**15) -> list[int]:
    """Return the versions of a request from ``lowest`` to ``highest``."""
    return [version for version in request.schema.versions if lowest <= version <= highest]


class Cluster(Protocol):
    """Operations of a scenario on a cluster, apart from requests."""

    @property
    def addresses(self) -> Mapping[int, tuple[str, int]]: ...

    async def kill(self, node: int) -> None: ...

    async def restart(self, node: int) -> None: ...


class Run:
    """One scenario on one cluster: sends requests, and records the responses."""

    def __init__(self, cluster: Cluster, nodes: Nodes, prefix: str) -> None:
        self.cluster = cluster
        self.nodes = nodes
        self.prefix = prefix
        self.names = Names({node: port for node, (_, port) in nodes.addresses.items()})
        self.observed: dict[str, Tree] = {}
        self._marker: Topic | None = None
        self._marked = 0

    # Requests

    async def ask(
        self,
        label: str,
        request: Request[R],
        version: int | None = None,
        *,
        node: int = 1,
        connection: Connection | None = None,
        timeout: float = 30,
    ) -> R | Outcome:
        """Send ``request`` and record the response under ``label``."""
        version = latest(type(request)) if version is None else version
        answer = await self.quietly(request, version, node=node, connection=connection, timeout=timeout)
        self.observe(label, answer, version)
        return answer

    async def quietly(
        self,
        request: Request[R],
        version: int | None = None,
        *,
        node: int = 1,
        connection: Connection | None = None,
        timeout: float = 30,
    ) -> R | Outcome:
        """Send ``request``, without recording anything."""
        version = latest(type(request)) if version is None else version
        used = connection or await self.nodes.shared(node)
        answer = await used.ask(request, version, timeout)
        if isinstance(answer, Outcome):
            # A later response on that connection would belong to this request.
            self.nodes.drop(used)
        else:
            self._learn(answer)
        return answer

    async def surely(self, request: Request[R], version: int | None = None, *, node: int = 1) -> R:
        """Return the response to ``request``, which must arrive; for the preparation of a scenario."""
        answer = await self.quietly(request, version, node=node)
        assert not isinstance(answer, Outcome), f"{type(request).__name__}: {answer}"
        return answer

    def observe(self, label: str, value: object, version: int = -1) -> None:
        """Record ``value`` under ``label``."""
        assert label not in self.observed, f"{label} was observed already"
        if isinstance(value, ApiVersionsResponse) and value.error_code == UnsupportedVersionError.code:
            version = 0
        self.observed[label] = normalise(self.names, value.value if isinstance(value, Outcome) else value, version)

    def _learn(self, answer: Message) -> None:
        """Learn the names of topics and producers from a response."""
        if isinstance(answer, MetadataResponse):
            for topic in answer.topics:
                self.names.add_topic(topic.topic_id, topic.name or "")
        elif isinstance(answer, InitProducerIdResponse):
            self.names.add_producer(answer.producer_id)

    # Topics

    def name(self, label: str = "t") -> str:
        """Return the name of a topic or group that only this scenario uses."""
        return f"{self.prefix}-{label}"

    async def create(
        self,
        label: str = "t",
        partitions: int = 1,
        *,
        replicas: Sequence[Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> Topic:
        """Create a topic, led by node 1 unless ``replicas`` of each partition are given, and wait for it."""
        assigned = replicas or [[1]] * partitions
        topic = CreatableTopic(
            name=self.name(label),
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=list(found))
                for index, found in enumerate(assigned)
            ],
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        created = await self.surely(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
        assert created.topics[0].error_code == 0, created
        found = await self.wait_for(self.name(label), lambda topic: len(topic.partitions) == len(assigned))
        return Topic(self.name(label), found.topic_id)

    async def delete(self, topic: Topic) -> None:
        """Delete a topic and wait until no node lists it."""
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic.name)], timeout_ms=30_000)
        deleted = await self.surely(request)
        assert deleted.responses[0].error_code == 0, deleted
        await self.wait_for(topic.name, lambda found: found.error_code == UnknownTopicOrPartitionError.code)

    async def wait_for(self, name: str, condition: Callable[[MetadataResponseTopic], bool]) -> MetadataResponseTopic:
        """Wait until ``condition`` holds for every node's description of the topic, and all partitions have leaders."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        for node in self.nodes.running:

            async def holds(node: int = node) -> bool:
                found = (await self.surely(request, node=node)).topics[0]
                return condition(found) and all(partition.leader_id >= 0 for partition in found.partitions)

            await self.eventually(holds, f"{name} on node {node}")
        found = (await self.surely(request, node=min(self.nodes.running))).topics[0]
        for partition in found.partitions:
            # A broker has the metadata a moment before it acts as the leader that they name.
            probe = ListOffsetsTopic(
                name=name,
                partitions=[ListOffsetsPartition(partition_index=partition.partition_index, timestamp=-1)],
            )

            async def leads(probe: ListOffsetsTopic = probe, leader: int = partition.leader_id) -> bool:
                answer = await self.surely(ListOffsetsRequest(replica_id=-1, topics=[probe]), node=leader)
                return answer.topics[0].partitions[0].error_code == 0

            await self.eventually(leads, f"leader of {name}-{partition.partition_index}")
        return found

    async def metadata_caught_up(self) -> None:
        """Wait until node 1 has all metadata that the controller has written so far.

        The controller responds when a change is in the log of the metadata; a broker reads that log a moment later,
        and in order. Therefore this changes a topic that has no other use, and waits for that change.
        """
        if self._marker is None:
            self._marker = await self.create("marker")
        self._marked += 1
        name, value = self._marker.name, str(self._marked)
        change = AlterConfigsResource(
            resource_type=_TOPIC, resource_name=name, configs=[AlterableConfig(name=_MARK, value=value)]
        )
        altered = await self.surely(IncrementalAlterConfigsRequest(resources=[change]))
        assert altered.responses[0].error_code == 0, altered
        mark = DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=[_MARK])

        async def described() -> bool:
            answer = await self.surely(DescribeConfigsRequest(resources=[mark]))
            return [config.value for config in answer.results[0].configs] == [value]

        await self.eventually(described, f"{_MARK}={value} of {name}")

    async def eventually(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait until ``condition`` holds."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not await condition():
            assert time.monotonic() < deadline, f"{what}: not within {_PATIENCE_SECONDS} s"
            await asyncio.sleep(0.01)

    # Nodes

    async def kill(self, node: int) -> None:
        """End a node as by SIGKILL."""
        await self.cluster.kill(node)
        self.nodes.forget(node)

    async def restart(self, node: int) -> None:
        """Start a killed node again, with its data."""
        await self.cluster.restart(node)
        self.nodes.alive(node)

    # Records

    async def append(self, topic: Topic, *batches: bytes, partition: int = 0, acks: int = -1, node: int = 1) -> None:
        """Append each batch by a separate request; all must succeed. For the preparation of a scenario."""
        for records in batches:
            answer = await self.surely(produce(topic, records, partition=partition, acks=acks), node=node)
            assert answer.responses[0].partition_responses[0].error_code == 0, answer

    async def caught_up(self, topic: Topic, follower: int, *, leader: int = 1) -> None:
        """Wait until ``follower`` has partition 0's high watermark, which the fetch after the records returns."""

        async def high_watermark(node: int) -> int:
            answer = await self.surely(fetch(topic), node=node)
            return answer.responses[0].partitions[0].high_watermark

        async def knows() -> bool:
            return await high_watermark(follower) == await high_watermark(leader)

        await self.eventually(knows, f"high watermark of {topic.name} on node {follower}")


def produce(
    topic: Topic, records: bytes | None, *, partition: int = 0, acks: int = -1, timeout_ms: int = 10_000
) -> ProduceRequest:
    """Return a Produce request for one partition, in any version."""
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic.name, topic_id=topic.id, partition_data=[data])],
    )


def partition_response(answer: ProduceResponse | Outcome) -> str | int:
    """Return the error code of a Produce request for one partition."""
    return answer.value if isinstance(answer, Outcome) else answer.responses[0].partition_responses[0].error_code


def fetch(topic: Topic, offset: int = 0, *, partition: int = 0, **changes: int) -> FetchRequest:
    """Return a Fetch request for one partition, in any version, by default without waiting.

    ``changes`` are other fields of the request, or of its partition.
    """
    found = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic.name, topic_id=topic.id, partitions=[found])],
    )
    for name, value in changes.items():
        setattr(found if name in FetchPartition.schema.names else request, name, value)
    return request


def partition_data(answer: FetchResponse | Outcome) -> object:
    """Return the result of a Fetch request for one partition, without fields that depend on its version."""
    if isinstance(answer, Outcome):
        return answer.value
    return answer.responses[0].partitions[0] if answer.responses else answer


@dataclass(frozen=True)
class Scenario:
    """A scenario: ``play`` sends requests to a cluster of ``nodes`` nodes."""

    name: str
    nodes: int
    play: Callable[[Run], Awaitable[None]]


SCENARIOS: dict[str, Scenario] = {}

Play = TypeVar("Play", bound=Callable[[Run], Awaitable[None]])


def scenario(nodes: int = 1) -> Callable[[Play], Play]:
    """Marks a coroutine function as a scenario under its name."""

    def add(play: Play) -> Play:
        name = play.__name__
        assert name not in SCENARIOS, f"there are two scenarios {name}"
        SCENARIOS[name] = Scenario(name, nodes, play)
        return play

    return add


async def run(found: Scenario, cluster: Cluster, token: str = "") -> dict[str, Tree]:
    """Return the observations of ``found`` on ``cluster``; ``token`` distinguishes repeated runs on one cluster."""
    nodes = Nodes(cluster.addresses)
    try:
        play = Run(cluster, nodes, found.name.replace("_", "-") + token)
        await found.play(play)
        return play.observed
    finally:
        await nodes.close()
