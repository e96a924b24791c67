"""Admin calls that the command line and tests need: topics, offsets, configurations, the cluster, groups, transactions.

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
from typing import Literal, NamedTuple, Self, TypeAlias, TypeVar, Unpack

from aioproducer import config as configuration
from aioproducer._client.factory import connector_for, node_settings
from aioproducer._client.group_admin import (
    GroupAdmin,
    GroupDescription,
    GroupListing,
    GroupMember,
    GroupState,
    GroupType,
)
from aioproducer._client.transaction_admin import (
    ProducerDescription,
    ProducerIdentity,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
    TransactionVersion,
)
from aioproducer._client.validation import check_timeout
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

__all__ = [
    "Admin",
    "ClusterDescription",
    "ConfigEntry",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "GroupState",
    "GroupType",
    "NoSuchTopicError",
    "OffsetSpec",
    "PartitionDescription",
    "ProducerDescription",
    "ProducerIdentity",
    "TopicDescription",
    "TransactionDescription",
    "TransactionListing",
    "TransactionVersion",
]

T = TypeVar("T")

IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
"""Which records a reader sees: all, or only those of committed transactions and of none."""

ISOLATION_LEVELS: Mapping[IsolationLevel, int] = {"read_uncommitted": 0, "read_committed": 1}

OffsetSpec: TypeAlias = Literal["earliest", "latest"] | datetime
"""The offset of a partition to look up: its first, the one after its last record, or that of the first record with at
least a given timestamp. A naive ``datetime`` is local time."""

UNKNOWN_TOPIC_OR_PARTITION = UnknownTopicOrPartitionError.code
_NO_OFFSET = -1
_LATEST, _EARLIEST = -1, -2
_TIMESTAMPS = {"latest": _LATEST, "earliest": _EARLIEST}
_TOPIC = 2
# The last version of DeleteTopics that takes a plain list of names.
_DELETE_TOPICS_BY_NAME = 5
# Kafka's ConfigSource of a key that the topic itself sets.
_DYNAMIC_TOPIC_CONFIG = 1
# A deadline counts as expired if at most this many seconds are left: clocks and timers are not exact.
_DEADLINE_TOLERANCE = 0.002
# Brokers receive a new topic one by one, usually within milliseconds. A broker that hangs delays a call by at most this
# many seconds.
_PROPAGATION_TIMEOUT = 5.0


class NoSuchTopicError(UnknownTopicOrPartitionError):
    """The cluster has no such topic or partition; a retry does not help."""

    retriable = False
    refresh_metadata = False

    @classmethod
    def of(cls, topic: str) -> Self:
        return cls(f"There is no topic {topic!r} in this cluster: check the spelling, or create the topic.")


class PartitionDescription(NamedTuple):
    """A partition; ``leader`` is None while it has no leader. Replicas are node ids, the preferred leader first."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


class TopicDescription(NamedTuple):
    """A topic; ``topic_id`` is None if the brokers have no topic ids (before Kafka 2.8)."""

    name: str
    topic_id: bytes | None
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


class ClusterDescription(NamedTuple):
    """A cluster; ``controller`` is the id of the node that clients address as controller, None if unknown."""

    cluster_id: str | None
    controller: int | None
    nodes: tuple[Node, ...]


class ConfigEntry(NamedTuple):
    """A topic's configuration key; ``value`` is None if it is secret, ``is_set`` True if the topic itself sets it."""

    name: str
    value: str | None
    is_set: bool


def make_client(
    config: ProducerConfig, loop: asyncio.AbstractEventLoop, connector: Connector, log: ClientLog
) -> BrokerClient:
    """Return a client of single requests, with a producer's configuration; its requests never create topics."""
    random = Random()
    metadata = ClusterMetadata(
        config.bootstrap_addresses,
        random=random,
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        metadata_max_age_ms=config.metadata_max_age_ms,
        metadata_max_idle_ms=config.metadata_max_idle_ms,
        metadata_recovery_strategy=config.metadata_recovery_strategy,
        metadata_recovery_rebootstrap_trigger_ms=config.metadata_recovery_rebootstrap_trigger_ms,
        allow_auto_topic_creation=False,
    )
    return BrokerClient(loop, metadata, connector, node_settings(config, loop, random, log), random=random)


class Admin(TransactionAdmin, GroupAdmin):
    """Describes and changes a cluster from one event loop; an async context manager.

    Args:
        timeout: limit of each call in seconds, retries included.
        transport: as ``Producer(transport=...)``.
        config: a producer's keys in snake_case; only those about connections have an effect, and type checkers accept
            no others (``aioproducer.config.ConnectionConfigDict``).

    Raises:
        ConfigurationError: a key is unknown, a value is wrong, or the transport cannot be used.
    """

    def __init__(
        self,
        *,
        timeout: float = 30.0,
        transport: str | Connector = "tcp",
        **config: Unpack[configuration.ConnectionConfigDict],
    ) -> None:
        self._configure(ProducerConfig.from_kwargs(**config), timeout, transport)

    @classmethod
    def from_config(
        cls, config: Mapping[str, object], *, timeout: float = 30.0, transport: str | Connector = "tcp"
    ) -> Self:
        """Create an Admin from Kafka's dotted names: ``Admin.from_config({"bootstrap.servers": ...})``.

        Raises:
            ConfigurationError: as ``Admin(...)``.
        """
        admin = cls.__new__(cls)
        admin._configure(ProducerConfig.from_mapping(config), timeout, transport)
        return admin

    def _configure(self, config: ProducerConfig, timeout: float, transport: str | Connector) -> None:
        check_timeout(timeout)
        self._config = config
        self.log = ClientLog("AdminClient", config.client_id)
        """Puts the client's name in front of each message; a ``Reader`` replaces it by its own log."""
        self._connector = connector_for(config, transport, self.log)
        self._timeout = timeout
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._random = Random()
        self._client: BrokerClient | None = None

    @property
    def client_id(self) -> str:
        """The configured ``client_id``, or a generated one."""
        return self._config.client_id

    # Life

    async def start(self) -> None:
        """Start the client; the first call opens a connection."""
        if self._client is None:
            self._client = make_client(self._config, asyncio.get_running_loop(), self._connector, self.log)

    def _start_with(self, make: Callable[[ProducerConfig, Connector], BrokerClient]) -> None:
        """Start with a client that ``make`` returns: that of a ``Reader`` is also used by its fetches."""
        self._client = make(self._config, self._connector)

    async def close(self) -> None:
        """Close all connections."""
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
        """The client that sends the requests, for callers that send other requests.

        Raises:
            RuntimeError: the Admin is not started.
        """
        if self._client is None:
            raise RuntimeError("the Admin is not started: use `async with Admin(...)`, or await start() first")
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
        """Create a topic, and wait until its partitions have leaders; -1 selects the cluster's default.

        The call waits for every broker, because the next client may connect to any of them. A broker that cannot be
        reached, or does not know the topic after 5 s, is logged as a warning; the topic exists nevertheless.

        Raises:
            TopicExistsError: there is a topic of this name.
            InvalidTopicError, InvalidPartitionsError, InvalidReplicationFactorError: the cluster rejects the argument.
            InvalidConfigurationError: a key or value in ``configs`` is wrong.
            PolicyViolationError, TopicAuthorizationError: the cluster rejects the request.
            KafkaTimeoutError: no response in time; the topic may be created nevertheless.
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

        async def check_leaders(timeout: float, node_id: int | None = None) -> list[int]:
            return await self._brokers_if_led(name, topic_id, timeout, node_id)

        brokers = await self._retrying(check_leaders, also=NoSuchTopicError)
        loop, metadata = asyncio.get_running_loop(), self.client.metadata
        deadline = loop.time() + min(self._timeout, _PROPAGATION_TIMEOUT)

        async def wait_for_broker(node_id: int) -> None:
            try:
                if metadata.node(node_id) is None:
                    await self.client.renew_metadata(deadline - loop.time())
                await self._retrying(
                    lambda timeout: check_leaders(timeout, node_id), also=NoSuchTopicError, deadline=deadline
                )
            except NoSuchTopicError:
                self.log.warning("The topic %s was created, but broker %d does not know it yet", name, node_id)
            except KafkaError as error:
                self.log.warning("The topic %s was created, but broker %d did not confirm it: %s", name, node_id, error)

        async with asyncio.TaskGroup() as group:
            for broker in brokers:
                group.create_task(wait_for_broker(broker))

    async def _brokers_if_led(self, name: str, topic_id: bytes, timeout: float, node_id: int | None) -> list[int]:
        """Return the ids of all brokers if a broker knows the topic of this id and a leader of each partition.

        The list is empty if ``node_id`` is given and the cluster no longer lists that broker.

        Raises:
            NoSuchTopicError: the broker does not know the topic, or knows a deleted one of this name.
            LeaderNotAvailableError: a partition has no leader.
        """
        if node_id is not None and self.client.metadata.node(node_id) is None:
            return []
        response = await self._metadata([name], timeout, node_id)
        (topic,) = _descriptions(response, [name])
        # Old brokers return no topic ids, neither on creation nor in metadata.
        if any(topic_id) and topic.topic_id not in (None, topic_id):
            raise NoSuchTopicError.of(name)
        if any(partition.leader is None for partition in topic.partitions):
            raise LeaderNotAvailableError(f"The topic {name} was created, but not all partitions have a leader yet.")
        return [broker.node_id for broker in response.brokers]

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records.

        Raises:
            NoSuchTopicError: the topic does not exist.
            TopicDeletionDisabledError, TopicAuthorizationError, InvalidTopicError: the cluster rejects the request.
            KafkaTimeoutError: no response in time; the topic may be deleted nevertheless.
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
        """Return the names of all topics, sorted; with ``internal`` also those that the cluster itself uses."""

        async def ask(timeout: float) -> list[str]:
            response = await self._metadata(None, timeout)
            return sorted(topic.name for topic in response.topics if topic.name and (internal or not topic.is_internal))

        return await self._retrying(ask)

    async def describe_topics(self, names: Iterable[str]) -> list[TopicDescription]:
        """Return the descriptions of these topics, in this order.

        Raises:
            NoSuchTopicError: a topic does not exist.
            InvalidTopicError, TopicAuthorizationError: the cluster rejects the request.
            TypeError: ``names`` is a single str.
        """
        if isinstance(names, str):
            raise TypeError(f"names must be an iterable of topic names, not str: pass [{names!r}]")
        wanted = list(names)

        async def ask(timeout: float) -> list[TopicDescription]:
            return _descriptions(await self._metadata(wanted, timeout), wanted)

        return await self._retrying(ask)

    async def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id, controller and nodes."""

        async def ask(timeout: float) -> ClusterDescription:
            response = await self._metadata([], timeout)
            nodes = tuple(Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers)
            controller = response.controller_id if response.controller_id >= 0 else None
            return ClusterDescription(response.cluster_id, controller, tuple(sorted(nodes)))

        return await self._retrying(ask)

    async def topic_config(self, name: str) -> list[ConfigEntry]:
        """Return a topic's configuration, sorted by name.

        Raises:
            NoSuchTopicError: the topic does not exist.
            TopicAuthorizationError: the client is not allowed to see the topic.
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

    async def list_offsets(
        self, topic: str, specs: Mapping[int, OffsetSpec], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[int, int]:
        """Return the requested offset of each partition; for a time after all records it is the latest.

        With ``isolation_level="read_committed"`` the latest offset is where the first open transaction begins.

        Raises:
            ValueError: an entry is no ``OffsetSpec``.
            NoSuchTopicError: the topic or a partition does not exist.
            KafkaTimeoutError: not all leaders answered in time.
        """
        found: dict[int, int] = {}
        timestamps = {partition: _timestamp(spec) for partition, spec in specs.items()}
        deadline = asyncio.get_running_loop().time() + self._timeout
        await self._check_partitions(topic, timestamps)

        async def ask(timeout: float) -> None:
            missing = {partition: timestamps[partition] for partition in timestamps.keys() - found.keys()}
            await self._ask_offsets(topic, missing, found, timeout, isolation_level)

        await self._retrying(ask, deadline=deadline)
        late = {partition: _LATEST for partition, offset in found.items() if offset == _NO_OFFSET}
        if late:
            timestamps = {**timestamps, **late}
            found = {partition: offset for partition, offset in found.items() if partition not in late}
            await self._retrying(ask, deadline=deadline)
        return {partition: found[partition] for partition in specs}

    async def _check_partitions(self, topic: str, partitions: Iterable[int]) -> None:
        client = self.client
        wanted = sorted(partitions)
        count = await self._retrying(lambda timeout: partition_count(client, topic, timeout))
        if wanted and wanted[-1] >= count:
            # The topic may have grown since.
            await client.renew_metadata(self._timeout)
            count = await self._retrying(lambda timeout: partition_count(client, topic, timeout))
        beyond = [partition for partition in wanted if not 0 <= partition < count]
        if beyond:
            raise NoSuchTopicError(f"Topic {topic} has no partition {beyond[0]}: it has {count}, numbered from 0.")

    async def _ask_offsets(
        self,
        topic: str,
        timestamps: Mapping[int, int],
        found: dict[int, int],
        timeout: float,
        isolation_level: IsolationLevel,
    ) -> None:
        """Ask each leader once and add the offsets to ``found``.

        Raises:
            KafkaError: a leader returned an error; an error that is not retriable takes precedence. ``found`` holds the
                offsets of the others.
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
                isolation_level=ISOLATION_LEVELS[isolation_level],
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
        """Return the node for changes, or None for any: brokers before KRaft accept changes at the controller only."""
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
        """Return the result of ``ask(seconds left)``, and retry after retriable errors and those of class ``also``.

        One attempt has at most ``request_timeout_ms``: a broker that hangs must not use the time of all others.

        Raises:
            KafkaError: an error that is not retried, or the last one when the time is over.
        """
        loop = asyncio.get_running_loop()
        if deadline is None:
            deadline = loop.time() + self._timeout
        longest = self._config.request_timeout_ms / 1000
        attempt = 0
        last: KafkaError | None = None
        while True:
            try:
                return await ask(max(min(deadline - loop.time(), longest), 0))
            except KafkaError as error:
                if last is not None and deadline - loop.time() < _DEADLINE_TOLERANCE:
                    # The previous error explains more than a timeout.
                    raise last from None
                last = error
            wait = self._backoff.delay(attempt, self._random)
            final = not last.retriable and not (also is not None and isinstance(last, also))
            if final or loop.time() + wait >= deadline:
                raise last
            if isinstance(last, ConnectionFailedError | NotControllerError | NetworkError):
                # Another node may be responsible now.
                await self.client.renew_metadata(deadline - loop.time())
            attempt += 1
            await asyncio.sleep(wait)


async def partition_count(client: BrokerClient, topic: str, timeout: float) -> int:
    """Return the number of the topic's partitions.

    Raises:
        NoSuchTopicError: the topic does not exist.
        InvalidTopicError, TopicAuthorizationError: the cluster rejects the request.
        KafkaTimeoutError: no response in time.
    """
    try:
        return await client.partition_count(topic, timeout)
    except UnknownTopicOrPartitionError:
        raise NoSuchTopicError.of(topic) from None


def _descriptions(response: MetadataResponse, names: list[str]) -> list[TopicDescription]:
    """Return the descriptions of these topics.

    Raises:
        NoSuchTopicError: the broker does not know a topic.
        BrokerError: the response has another error for a topic.
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
        # There are no records before 1970, and brokers give negative timestamps another meaning.
        return max(int(spec.timestamp() * 1000), 0)
    if spec not in _TIMESTAMPS:
        raise ValueError(f"an offset must be 'earliest', 'latest' or a datetime, not {spec!r}")
    return _TIMESTAMPS[spec]
