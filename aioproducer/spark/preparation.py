"""The checks of an exactly-once sink before any task runs: a mistake fails early, and its error contains the remedy.

The checks are those of a plan. The first plan of a process makes all of them; later plans with the same options only
look up the decision topic. None of them writes anything, except that a missing decision topic is created.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aioproducer.admin import NoSuchTopicError
from aioproducer.error_codes import TRANSACTIONAL_ID_NOT_FOUND
from aioproducer.errors import (
    AuthorizationError,
    BrokerError,
    ConfigurationError,
    TopicAuthorizationError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    broker_error,
)
from aioproducer.protocol import ApiKey
from aioproducer.protocol.messages import ApiVersionsRequest, MetadataRequest
from aioproducer.protocol.messages.metadata import MetadataRequestTopic, MetadataResponseTopic
from aioproducer.spark.checks import RecentKeys, broker_setting
from aioproducer.spark.transactional.rules import ExactlyOnceError, task_id

if TYPE_CHECKING:
    from aioproducer.spark.options import ExactlyOnceOptions, SinkOptions
    from aioproducer.spark.sink_cluster import KafkaSinkCluster

DECISION_TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "segment.bytes": "16777216",
    "max.compaction.lag.ms": "3600000",
}

LONGEST_TIMEOUT: Final = "transaction.max.timeout.ms"

REQUIRED_REQUESTS: Final = {
    ApiKey.INIT_PRODUCER_ID: "0.11",
    ApiKey.ADD_PARTITIONS_TO_TXN: "0.11",
    ApiKey.END_TXN: "0.11",
    ApiKey.DESCRIBE_TRANSACTIONS: "3.0",
    ApiKey.LIST_TRANSACTIONS: "3.0",
}
"""The requests that the sink cannot do without, and the release of Apache Kafka that they came with."""

INTERNAL_TOPICS: Final = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))
"""Topics that brokers write: the end of a transaction in one is a record that they cannot read."""

# Kafka's AclOperation: the bits of the operations that a principal may perform on a topic.
_OPERATIONS: Final = {"Read": 1 << 3, "Write": 1 << 4, "DescribeConfigs": 1 << 10}
_UNKNOWN_OPERATIONS: Final = -(2**31)

_prepared = RecentKeys()


async def prepare(cluster: KafkaSinkCluster, options: SinkOptions) -> bytes | None:
    """Create the decision topic if it is missing, and check everything that can be checked; return the topic's id.

    Raises:
        ExactlyOnceError: the decision topic is not compacted, has several partitions, or has fewer replicas than the
            topic of the rows; or the brokers have no transactions.
        ConfigurationError: the brokers do not allow a time-out this long.
        AuthorizationError: a permission is missing; the text names all that are needed.
        KafkaError: the decision topic cannot be created or described.
    """
    own = options.exactly_once
    assert own is not None
    with naming_permissions(options):
        key = (options.config, options.topic, own.sink, own.decision_topic, own.timeout_ms)
        if key in _prepared:
            (described,) = await cluster.admin.describe_topics([own.decision_topic])
            return described.topic_id
        await _check_requests(cluster)
        await _check_timeout(cluster, own)
        topic_id = await _prepare_topics(cluster, options.topic, own.decision_topic)
        await _check_describable(cluster, own.sink)
        _prepared.add(key)
        return topic_id


@contextmanager
def naming_permissions(options: SinkOptions) -> Iterator[None]:
    """Add all permissions that the sink needs to the text of an ``AuthorizationError``."""
    try:
        yield
    except AuthorizationError as error:
        error.args = (f"{error} {needed_permissions(options)}",)
        raise


def needed_permissions(options: SinkOptions) -> str:
    """Return the permissions of the sink's principal as a sentence."""
    own = options.exactly_once
    assert own is not None
    topics = "each topic of the rows" if options.topic is None else f"topic {options.topic!r}"
    return (
        f"Exactly-once delivery needs: Write and Describe on transactional ids that begin with {own.sink!r}; Write, "
        f"Read and Describe on {topics}; Write, Read, Describe and DescribeConfigs on topic {own.decision_topic!r}, "
        "and Create if it does not exist."
    )


# Brokers


def check_requests(known: Iterable[int]) -> None:
    """
    Raises:
        ExactlyOnceError: the brokers do not know a request that the sink needs.
    """
    missing = REQUIRED_REQUESTS.keys() - set(known)
    if missing:
        newest = max(missing, key=lambda each: float(REQUIRED_REQUESTS[each]))
        raise ExactlyOnceError(
            f"the brokers do not know the request {newest.name}: exactly-once delivery needs Apache Kafka "
            f"{REQUIRED_REQUESTS[newest]} or later. Upgrade the brokers, or use delivery=at-least-once"
        )


async def _check_requests(cluster: KafkaSinkCluster) -> None:
    admin = cluster.admin
    response = await admin.client.request(
        ApiVersionsRequest(client_software_name="aioproducer", client_software_version="1"), timeout=cluster.timeout
    )
    check_requests(each.api_key for each in response.api_keys)


async def _check_timeout(cluster: KafkaSinkCluster, own: ExactlyOnceOptions) -> None:
    # Unknown if this client may not ask: the first task fails then.
    longest = await broker_setting(cluster.admin, LONGEST_TIMEOUT, cluster.timeout)
    if longest is not None and own.timeout_ms > int(longest):
        raise timeout_error(own, f"{longest} ms")


def timeout_error(own: ExactlyOnceOptions, longest: str) -> ConfigurationError:
    """Return the error about a time-out that brokers do not allow."""
    return ConfigurationError(
        f"the option transaction.timeout.ms is {own.timeout_ms} ms, and the brokers allow at most {longest} "
        f"({LONGEST_TIMEOUT}): lower the option, or raise {LONGEST_TIMEOUT} on the brokers"
    )


async def _check_describable(cluster: KafkaSinkCluster, sink: str) -> None:
    """Describe an id that no task has. Without the permission ListTransactions would return nothing, without an error.

    Raises:
        AuthorizationError: this client may not describe the ids of the sink's tasks.
    """
    try:
        await cluster.admin.describe_transactions([task_id(sink, "0" * 32, 0)])
    except BrokerError as error:
        if error.code != TRANSACTIONAL_ID_NOT_FOUND:
            raise


# Topics


async def _prepare_topics(cluster: KafkaSinkCluster, topic: str | None, decision_topic: str) -> bytes | None:
    for name in (decision_topic, topic):
        if name in INTERNAL_TOPICS:
            raise ConfigurationError(
                f"{name!r} is a topic of the brokers themselves, whose records a transaction in it destroys: name "
                "another topic"
            )
    described = await _describe(cluster, [decision_topic, *([topic] if topic is not None else [])])
    rows = None if topic is None else described.get(topic)
    wanted = 0 if rows is None else max((len(each.replica_nodes) for each in rows.partitions), default=0)
    if decision_topic not in described:
        try:
            await cluster.admin.create_topic(decision_topic, 1, wanted or -1, configs=DECISION_TOPIC_CONFIG)
        except TopicExistsError:
            # Another sink was faster.
            pass
        described |= await _describe(cluster, [decision_topic])
    if decision_topic not in described:
        raise NoSuchTopicError.of(decision_topic)
    found = described[decision_topic]
    if len(found.partitions) != 1:
        raise ExactlyOnceError(
            f"the decision topic {decision_topic!r} has {len(found.partitions)} partitions, and must have one: name "
            "another one by the option decision.topic"
        )
    _check_operations(found, ("Read", "Write", "DescribeConfigs"))
    if rows is not None:
        _check_operations(rows, ("Read", "Write"))
    entries = {each.name: each.value for each in await cluster.admin.topic_config(decision_topic)}
    if entries.get("cleanup.policy") != "compact":
        raise ExactlyOnceError(
            f"the decision topic {decision_topic!r} has cleanup.policy={entries.get('cleanup.policy')}, by which "
            "decisions are deleted: set cleanup.policy=compact"
        )
    replicas = len(found.partitions[0].replica_nodes)
    if replicas < wanted:
        raise ExactlyOnceError(
            f"the decision topic {decision_topic!r} has {replicas} replicas, and topic {topic!r} has {wanted}: without "
            "the decisions rows are lost or doubled. Give it as many replicas by kafka-reassign-partitions.sh, or name "
            "another one by the option decision.topic"
        )
    return found.topic_id if any(found.topic_id) else None


async def _describe(cluster: KafkaSinkCluster, names: list[str]) -> dict[str, MetadataResponseTopic]:
    """Return these topics with what this client may do with them, without those that do not exist."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    found: dict[str, MetadataResponseTopic] = {}

    async def ask(timeout: float) -> None:
        response = await cluster.admin.client.request(request, timeout=timeout)
        for each in response.topics:
            error = broker_error(each.error_code) if each.error_code else None
            if error is None and each.name is not None:
                found[each.name] = each
            elif error is not None and not isinstance(error, UnknownTopicOrPartitionError):
                error.args = (f"topic {each.name!r}: {error}",)
                raise error

    await cluster.admin._retrying(ask)
    return found


def _check_operations(topic: MetadataResponseTopic, needed: Iterable[str]) -> None:
    """
    Raises:
        TopicAuthorizationError: this client may not perform one of the operations.
    """
    allowed = topic.topic_authorized_operations
    missing = [name for name in needed if allowed != _UNKNOWN_OPERATIONS and not allowed & _OPERATIONS[name]]
    if missing:
        raise TopicAuthorizationError(f"No permission for {' and '.join(missing)} on topic {topic.name!r}.")
