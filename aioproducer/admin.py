"""The few admin calls that the command line and tests need: topics, their offsets and configurations, the cluster.

::

    async with Admin(bootstrap_servers="localhost:9092") as admin:
        await admin.create_topic("clicks", partitions=6)
        print(await admin.list_topics())
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from random import Random
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeAlias, TypeVar

from aioproducer._client.factory import connector_for, node_settings
from aioproducer._common.client_log import ClientLog
from aioproducer.config import ProducerConfig
from aioproducer.core.metadata.cluster import NO_LEADER
from aioproducer.core.metadata.cluster_metadata import ClusterMetadata
from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.errors import (
    ConnectionFailedError,
    KafkaError,
    LeaderNotAvailableError,
    NetworkError,
    NotControllerError,
    UnknownTopicOrPartitionError,
    broker_error,
)
from aioproducer.io.client import BrokerClient
from aioproducer.protocol.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    ListOffsetsRequest,
    MetadataRequest,
)
from aioproducer.protocol.messages.configs import DescribeConfigsResource
from aioproducer.protocol.messages.metadata import MetadataRequestTopic, MetadataResponse
from aioproducer.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsTopic
from aioproducer.protocol.messages.topics import CreatableTopic, CreatableTopicConfig
from aioproducer.record import Node
from aioproducer.transport.base import Connector

T = TypeVar("T")

OffsetSpec: TypeAlias = Literal["earliest", "latest"] | datetime
"""Which offset of a partition: its first, the one behind its last record, or that of the first record not older than a
time; a naive one is local time."""

UNKNOWN_TOPIC_OR_PARTITION = UnknownTopicOrPartitionError.code
_NOTHING_THERE = -1
_LATEST, _EARLIEST = -1, -2
_PLACES = {"latest": _LATEST, "earliest": _EARLIEST}
_TOPIC = 2
_DELETE_TOPICS_BY_NAME = 5
# Where a key's value comes from, by Kafka's ConfigSource.
_DYNAMIC_TOPIC_CONFIG = 1
# A deadline is over when no more than this is left of it, in seconds: clocks and timers are not exact.
_OUT_OF_TIME = 0.002
# Brokers learn of a new topic one by one, mostly within milliseconds; one that hangs delays a call no longer.
_SPREADING = 5.0


class NoSuchTopicError(UnknownTopicOrPartitionError):
    """The cluster was asked, and has no such topic or partition; asking again does not change that."""

    retriable = False
    refresh_metadata = False

    @classmethod
    def of(cls, topic: str) -> Self:
        return cls(f"There is no topic {topic!r} in this cluster: check its spelling, or create it.")


class PartitionDescription(NamedTuple):
    """A partition; ``leader`` is None while it has none. Replicas are node ids, the preferred leader first."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


class TopicDescription(NamedTuple):
    """A topic; ``topic_id`` is None where brokers are too old to have one (before Kafka 2.8)."""

    name: str
    topic_id: bytes | None
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


class ClusterDescription(NamedTuple):
    """A cluster; ``controller`` is the id of the node that acts as one to clients, None if unknown."""

    cluster_id: str | None
    controller: int | None
    nodes: tuple[Node, ...]


class ConfigEntry(NamedTuple):
    """A topic's configuration key; ``value`` is None where it is secret, ``is_set`` where the topic itself has it."""

    name: str
    value: str | None
    is_set: bool


def make_client(
    config: ProducerConfig, loop: asyncio.AbstractEventLoop, connector: Connector, log: ClientLog
) -> BrokerClient:
    """A client of single requests, with a producer's configuration; it never creates topics by asking for them."""
    metadata = ClusterMetadata(
        config.bootstrap_addresses,
        random=Random(),
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        metadata_max_age_ms=config.metadata_max_age_ms,
        metadata_max_idle_ms=config.metadata_max_idle_ms,
        metadata_recovery_strategy=config.metadata_recovery_strategy,
        metadata_recovery_rebootstrap_trigger_ms=config.metadata_recovery_rebootstrap_trigger_ms,
        allow_auto_topic_creation=False,
    )
    return BrokerClient(loop, metadata, connector, node_settings(config, log), random=Random())


class Admin:
    """Asks and changes a cluster from one event loop; an async context manager.

    Args:
        timeout: the most seconds that a call takes; trying again is within it.
        transport: as ``Producer(transport=...)``.
        config: a producer's keys in snake_case; those about connections matter.

    Raises:
        ConfigurationError: a key is unknown, a value is wrong, or the transport cannot be used.
    """

    def __init__(self, *, timeout: float = 30.0, transport: str | Connector = "tcp", **config: object) -> None:
        self._configure(ProducerConfig.from_kwargs(**config), timeout, transport)

    @classmethod
    def from_config(
        cls, config: Mapping[str, object], *, timeout: float = 30.0, transport: str | Connector = "tcp"
    ) -> Self:
        """An Admin of Kafka's dotted names."""
        admin = cls.__new__(cls)
        admin._configure(ProducerConfig.from_mapping(config), timeout, transport)
        return admin

    def _configure(self, config: ProducerConfig, timeout: float, transport: str | Connector) -> None:
        self._config = config
        self.log = ClientLog("AdminClient", config.client_id)
        """Names the client in each of its lines; a ``Reader`` puts its own in the place."""
        self._connector = connector_for(config, transport)
        self._timeout = timeout
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._random = Random()
        self._client: BrokerClient | None = None

    @property
    def client_id(self) -> str:
        """``client_id``, or the one made up for it."""
        return self._config.client_id

    # Life

    async def start(self) -> None:
        """Begin; nothing is connected to before the first call."""
        if self._client is None:
            self._client = make_client(self._config, asyncio.get_running_loop(), self._connector, self.log)

    async def close(self) -> None:
        """End every connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def client(self) -> BrokerClient:
        """What sends its requests, for callers with requests of their own; ``RuntimeError`` where it is not started."""
        if self._client is None:
            raise RuntimeError("the Admin is not started: use it inside `async with Admin(...)`")
        return self._client

    # Topics

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        *,
        configs: Mapping[str, str | None] | None = None,
    ) -> None:
        """Create a topic, and wait until its partitions have leaders; -1 leaves a number to the cluster.

        Each broker is asked, as the next user of the topic may reach another one. One that does not know it after
        5 s, or cannot be reached, is named in a warning; the topic is there.

        Raises:
            TopicExistsError, InvalidTopicError, InvalidPartitionsError, InvalidReplicationFactorError,
            InvalidConfigurationError, PolicyViolationError, TopicAuthorizationError: the cluster refuses.
            KafkaTimeoutError: it did not answer in time; the topic may come into being all the same.
        """
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replication_factor,
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
                )
            ],
            timeout_ms=self._timeout_ms(),
        )

        async def create(timeout: float) -> bytes:
            (result,) = (await self.client.request(request, node_id=self._controller(), timeout=timeout)).topics
            if result.error_code:
                raise broker_error(result.error_code, result.error_message)
            return result.topic_id

        topic_id = await self._retrying(create)

        async def be_led(timeout: float, node_id: int | None = None) -> list[int]:
            return await self._brokers_where_led(name, topic_id, timeout, node_id)

        brokers = await self._retrying(be_led, also=NoSuchTopicError)
        loop, metadata = asyncio.get_running_loop(), self.client.metadata
        deadline = loop.time() + min(self._timeout, _SPREADING)

        async def be_known(node_id: int) -> None:
            try:
                if metadata.node(node_id) is None:
                    await self.client.renew_metadata(deadline - loop.time())
                await self._retrying(lambda timeout: be_led(timeout, node_id), also=NoSuchTopicError, deadline=deadline)
            except NoSuchTopicError:
                self.log.warning("The topic %s was created, but broker %d does not know it yet", name, node_id)
            except KafkaError as error:
                self.log.warning("The topic %s was created, but broker %d does not say so: %s", name, node_id, error)

        async with asyncio.TaskGroup() as group:
            for broker in brokers:
                group.create_task(be_known(broker))

    async def _brokers_where_led(self, name: str, topic_id: bytes, timeout: float, node_id: int | None) -> list[int]:
        """The ids of all brokers, once a broker knows the topic of this id and a leader of each of its partitions.

        None, where that broker was named and the cluster has given it up.

        Raises:
            NoSuchTopicError: it knows none, or one of this name that was deleted.
            LeaderNotAvailableError: there are partitions without a leader.
        """
        if node_id is not None and self.client.metadata.node(node_id) is None:
            return []
        response = await self._metadata([name], timeout, node_id)
        (topic,) = _descriptions(response, [name])
        # Old brokers tell no ids, of what they create or of what they have.
        if any(topic_id) and topic.topic_id not in (None, topic_id):
            raise NoSuchTopicError.of(name)
        if any(partition.leader is None for partition in topic.partitions):
            raise LeaderNotAvailableError(f"The topic {name} was created, but not all partitions have a leader yet.")
        return [broker.node_id for broker in response.brokers]

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records.

        Raises:
            NoSuchTopicError: there is none of that name.
            TopicDeletionDisabledError, TopicAuthorizationError, InvalidTopicError: the cluster refuses.
            KafkaTimeoutError: it did not answer in time; the topic may be deleted all the same.
        """
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=self._timeout_ms())

        async def delete(timeout: float) -> None:
            response = await self.client.request(
                request, node_id=self._controller(), highest=_DELETE_TOPICS_BY_NAME, timeout=timeout
            )
            for result in response.responses:
                if result.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                    raise NoSuchTopicError.of(name)
                if result.error_code:
                    raise broker_error(result.error_code, result.error_message)

        await self._retrying(delete)

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted; those of the cluster itself only if ``internal``."""

        async def ask(timeout: float) -> list[str]:
            response = await self._metadata(None, timeout)
            return sorted(topic.name for topic in response.topics if topic.name and (internal or not topic.is_internal))

        return await self._retrying(ask)

    async def describe_topics(self, names: Iterable[str]) -> list[TopicDescription]:
        """The topics of these names, in this order.

        Raises:
            NoSuchTopicError: there is none of a name.
            InvalidTopicError, TopicAuthorizationError: the cluster refuses to tell.
            TypeError: ``names`` is one name.
        """
        if isinstance(names, str):
            raise TypeError(f"names must be several names, not one: [{names!r}]")
        wanted = list(names)

        async def ask(timeout: float) -> list[TopicDescription]:
            return _descriptions(await self._metadata(wanted, timeout), wanted)

        return await self._retrying(ask)

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster's nodes."""

        async def ask(timeout: float) -> ClusterDescription:
            response = await self._metadata([], timeout)
            nodes = tuple(Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers)
            controller = response.controller_id if response.controller_id >= 0 else None
            return ClusterDescription(response.cluster_id, controller, tuple(sorted(nodes)))

        return await self._retrying(ask)

    async def topic_config(self, name: str) -> list[ConfigEntry]:
        """A topic's configuration, sorted by name.

        Raises:
            NoSuchTopicError: there is no such topic.
            TopicAuthorizationError: the cluster refuses to tell.
        """
        request = DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=None)]
        )

        async def ask(timeout: float) -> list[ConfigEntry]:
            response = await self.client.request(request, timeout=timeout)
            entries = []
            for result in response.results:
                if result.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                    raise NoSuchTopicError.of(name)
                if result.error_code:
                    raise broker_error(result.error_code, result.error_message)
                entries += [
                    ConfigEntry(each.name, each.value, each.config_source == _DYNAMIC_TOPIC_CONFIG)
                    for each in result.configs
                ]
            return sorted(entries)

        return await self._retrying(ask)

    async def list_offsets(self, topic: str, specs: Mapping[int, OffsetSpec]) -> dict[int, int]:
        """By partition, the offset that is asked for; for a time behind all records it is the latest.

        Raises:
            ValueError: something else is asked for than ``OffsetSpec`` says.
            NoSuchTopicError: there is no such topic or partition.
            KafkaTimeoutError: not all leaders answered in time.
        """
        found: dict[int, int] = {}
        timestamps = {partition: _timestamp(spec) for partition, spec in specs.items()}
        deadline = asyncio.get_running_loop().time() + self._timeout
        await self._check_partitions(topic, timestamps)

        async def ask(timeout: float) -> None:
            missing = {partition: timestamps[partition] for partition in timestamps.keys() - found.keys()}
            await self._ask_offsets(topic, missing, found, timeout)

        await self._retrying(ask, deadline=deadline)
        late = {partition: _LATEST for partition, offset in found.items() if offset == _NOTHING_THERE}
        if late:
            timestamps = {**timestamps, **late}
            found = {partition: offset for partition, offset in found.items() if partition not in late}
            await self._retrying(ask, deadline=deadline)
        return {partition: found[partition] for partition in specs}

    async def _check_partitions(self, topic: str, partitions: Iterable[int]) -> None:
        client = self.client
        count = await self._retrying(lambda timeout: partition_count(client, topic, timeout))
        beyond = sorted(partition for partition in partitions if not 0 <= partition < count)
        if beyond:
            raise NoSuchTopicError(f"Topic {topic} has no partition {beyond[0]}: it has {count}, which count from 0.")

    async def _ask_offsets(
        self, topic: str, timestamps: Mapping[int, int], found: dict[int, int], timeout: float
    ) -> None:
        """Ask each leader once, for what is not ``found`` yet.

        Raises:
            KafkaError: the first error of those there were; ``found`` has what the others answered.
        """
        client = self.client
        by_leader: dict[int, list[int]] = {}
        errors: list[KafkaError] = []
        for partition in timestamps:
            by_leader.setdefault(client.leader(topic, partition), []).append(partition)
        for leader, partitions in by_leader.items():
            if leader == NO_LEADER:
                errors.append(LeaderNotAvailableError(f"Partition {partitions[0]} of topic {topic} has no leader."))
                continue
            request = ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsPartition(partition_index=each, timestamp=timestamps[each])
                            for each in partitions
                        ],
                    )
                ],
                timeout_ms=self._timeout_ms(),
            )
            try:
                response = await client.request(request, node_id=leader, timeout=timeout)
            except KafkaError as error:
                errors.append(error)
                continue
            for answer in (each for answered in response.topics for each in answered.partitions):
                if answer.error_code:
                    errors.append(broker_error(answer.error_code))
                else:
                    found[answer.partition_index] = answer.offset
        if errors:
            final = next((error for error in errors if not error.retriable), errors[0])
            if final.retriable:
                await client.renew_metadata(timeout)
                if client.metadata.topic_error(topic) == UNKNOWN_TOPIC_OR_PARTITION:
                    raise NoSuchTopicError.of(topic)
            raise final

    # Asking

    async def _metadata(self, names: list[str] | None, timeout: float, node_id: int | None = None) -> MetadataResponse:
        request = MetadataRequest(
            topics=None if names is None else [MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        response = await self.client.request(request, node_id=node_id, timeout=timeout)
        if response.error_code:
            raise broker_error(response.error_code)
        return response

    def _controller(self) -> int | None:
        """The node to ask for changes; only brokers before KRaft care (NOT_CONTROLLER), and then it is known."""
        controller_id = self.client.metadata.controller_id
        known = controller_id >= 0 and self.client.metadata.node(controller_id) is not None
        return controller_id if known else None

    def _timeout_ms(self) -> int:
        return int(self._timeout * 1000)

    async def _retrying(
        self,
        ask: Callable[[float], Awaitable[T]],
        *,
        also: type[KafkaError] | None = None,
        deadline: float | None = None,
    ) -> T:
        """What ``ask(seconds left)`` returns, tried again after errors that may pass.

        Raises:
            KafkaError: one that does not pass, or the last when time is up.
        """
        loop = asyncio.get_running_loop()
        if deadline is None:
            deadline = loop.time() + self._timeout
        attempt = 0
        last: KafkaError | None = None
        while True:
            try:
                return await ask(max(deadline - loop.time(), 0))
            except KafkaError as error:
                if last is not None and deadline - loop.time() < _OUT_OF_TIME:
                    # What was answered before says more than that time is up.
                    raise last from None
                last = error
            wait = self._backoff.delay(attempt, self._random)
            final = not last.retriable and not (also is not None and isinstance(last, also))
            if final or loop.time() + wait >= deadline:
                raise last
            if isinstance(last, ConnectionFailedError | NotControllerError | NetworkError):
                # The node to ask may be another one now.
                await self.client.renew_metadata(deadline - loop.time())
            attempt += 1
            await asyncio.sleep(wait)


async def partition_count(client: BrokerClient, topic: str, timeout: float) -> int:
    """How many partitions the topic has.

    Raises:
        NoSuchTopicError: there is no such topic.
        InvalidTopicError, TopicAuthorizationError: the cluster refuses to tell.
        KafkaTimeoutError: there was no answer in time.
    """
    try:
        return await client.partition_count(topic, timeout)
    except UnknownTopicOrPartitionError:
        raise NoSuchTopicError.of(topic) from None


def _descriptions(response: MetadataResponse, names: list[str]) -> list[TopicDescription]:
    """The topics of these names.

    Raises:
        NoSuchTopicError: the broker knows none of a name.
        BrokerError: what else it says of one.
    """
    topics = {}
    for topic in response.topics:
        if topic.error_code:
            if topic.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                raise NoSuchTopicError.of(topic.name or "")
            raise broker_error(topic.error_code)
        partitions = (
            PartitionDescription(
                each.partition_index,
                each.leader_id if each.leader_id >= 0 else None,
                tuple(each.replica_nodes),
                tuple(each.isr_nodes),
            )
            for each in topic.partitions
        )
        topic_id = topic.topic_id if any(topic.topic_id) else None
        topics[topic.name] = TopicDescription(topic.name or "", topic_id, topic.is_internal, tuple(sorted(partitions)))
    return [topics[name] for name in names]


def _timestamp(spec: OffsetSpec) -> int:
    if isinstance(spec, datetime):
        # Before 1970 there are no records, and what is negative means something else to a broker.
        return max(int(spec.timestamp() * 1000), 0)
    if spec not in _PLACES:
        raise ValueError(f"an offset is asked for by 'earliest', 'latest' or a datetime, not {spec!r}")
    return _PLACES[spec]
