"""The keys of a broker's configuration that have an effect here, and the reason why the others have none."""

from __future__ import annotations

from collections.abc import Iterator

from aioproducer.broker.config.topic_keys import TOPIC_KEYS
from aioproducer.broker.config.transaction_keys import TRANSACTION_KEYS
from aioproducer.broker.config.values import INT_MAX, at_least
from aioproducer.config import ConfigDef, ConfigKey, Importance, Type, Validator
from aioproducer.config.definition import Value
from aioproducer.wire.record_survey import IS_COMPILED

VALIDATE_RECORDS = "aioproducer.validate.records"


def _key(
    name: str,
    type_: Type,
    default: Value,
    validator: Validator | None,
    doc: str,
    *,
    internal: bool = False,
) -> ConfigKey:
    return ConfigKey(name, type_, default, Importance.MEDIUM, doc, validator, internal=internal)


def _defaults_of_topics() -> Iterator[ConfigKey]:
    """Return the broker key with the default of each topic key; of several, the one in the topic key's unit."""
    for entry in TOPIC_KEYS.values():
        if not entry.synonyms:
            continue
        key = entry.key
        # If a coarser or more general key has the default, this key has neither a default nor a rule.
        alone = len(entry.synonyms) == 1
        yield ConfigKey(
            entry.synonyms[0],
            key.type,
            key.default if alone else None,
            key.importance,
            f"Default of {key.name} for topics. {key.doc}",
            key.validator if alone else None,
            status=key.status,
            reason=key.reason,
        )


_KEYS = (
    _key(
        "add.partitions.to.txn.retry.backoff.max.ms",
        Type.INT,
        100,
        at_least(0),
        "Milliseconds for which adding a partition to a transaction is retried while the previous one ends.",
    ),
    _key(
        "add.partitions.to.txn.retry.backoff.ms",
        Type.INT,
        20,
        at_least(1),
        "Milliseconds between two attempts to add a partition to a transaction.",
    ),
    *_defaults_of_topics(),
    *TRANSACTION_KEYS,
    _key(
        "transaction.partition.verification.enable",
        Type.BOOLEAN,
        True,
        None,
        "Verify a transaction with its coordinator before its first batch is written to a partition.",
    ),
    _key(
        VALIDATE_RECORDS,
        Type.BOOLEAN,
        IS_COMPILED,
        None,
        (
            "Decompress each batch and check every record, as Apache Kafka does; otherwise only the header and the "
            "checksum are checked. True by default if aioproducer's modules are compiled. Not a key of Apache Kafka."
        ),
    ),
    _key(
        "auto.create.topics.enable",
        Type.BOOLEAN,
        True,
        None,
        "Create an unknown topic when a client requests its metadata.",
    ),
    _key("broker.rack", Type.STRING, None, None, "The rack of the broker, as clients see it."),
    _key(
        "connections.max.idle.ms",
        Type.LONG,
        600000,
        None,
        "Close a connection after this many milliseconds without a request; negative: never.",
    ),
    _key(
        "default.replication.factor",
        Type.INT,
        1,
        None,
        "Replicas of a partition whose topic was created without a replication factor.",
    ),
    _key("delete.topic.enable", Type.BOOLEAN, True, None, "Allow clients to delete topics."),
    _key(
        "fetch.max.bytes",
        Type.INT,
        57671680,
        at_least(1024),
        "Maximum bytes of records in a Fetch response, whatever the client requests.",
    ),
    _key(
        "group.initial.rebalance.delay.ms",
        Type.INT,
        3000,
        None,
        "Milliseconds that the first rebalance of an empty group waits for more members.",
    ),
    _key(
        "group.max.session.timeout.ms",
        Type.INT,
        1800000,
        None,
        "Maximum session timeout, in milliseconds, of a group's member.",
    ),
    _key("group.max.size", Type.INT, INT_MAX, at_least(1), "Maximum members of a group."),
    _key(
        "group.min.session.timeout.ms",
        Type.INT,
        6000,
        None,
        "Minimum session timeout, in milliseconds, of a group's member.",
    ),
    _key(
        "log.cleaner.backoff.ms",
        Type.LONG,
        15000,
        at_least(0),
        "Milliseconds that the log cleaner sleeps when no log needs to be compacted.",
    ),
    _key(
        "log.cleaner.dedupe.buffer.size",
        Type.LONG,
        134217728,
        None,
        "Bytes for the log cleaner's map of keys to their last offsets; a key takes 24 bytes.",
    ),
    _key("log.cleaner.enable", Type.BOOLEAN, True, None, "Whether the log cleaner runs, which compacts topics."),
    _key(
        "log.cleaner.io.buffer.load.factor",
        Type.DOUBLE,
        0.9,
        None,
        "The part, above 0 and at most 1, of log.cleaner.dedupe.buffer.size that is used before a round ends early.",
    ),
    _key(
        "log.flush.scheduler.interval.ms",
        Type.LONG,
        2**63 - 1,
        None,
        "Milliseconds between two checks of the logs for flush.ms; also the default of log.flush.interval.ms.",
    ),
    _key(
        "log.retention.check.interval.ms",
        Type.LONG,
        300000,
        at_least(1),
        "Milliseconds between two searches for segments to delete.",
    ),
    _key("log.retention.hours", Type.INT, 168, None, "log.retention.ms in hours, if no finer key is set."),
    _key("log.retention.minutes", Type.INT, None, None, "log.retention.ms in minutes, if that is not set."),
    _key("log.roll.hours", Type.INT, 168, at_least(1), "log.roll.ms in hours, if that is not set."),
    _key("log.roll.jitter.hours", Type.INT, 0, at_least(0), "log.roll.jitter.ms in hours, if that is not set."),
    _key("max.connections", Type.INT, INT_MAX, at_least(0), "Maximum connections; further ones are closed."),
    _key(
        "max.connections.per.ip",
        Type.INT,
        INT_MAX,
        at_least(0),
        "Maximum connections from one address; further ones are closed.",
    ),
    _key(
        "max.incremental.fetch.session.cache.slots",
        Type.INT,
        1000,
        at_least(0),
        "Maximum fetch sessions that are kept.",
    ),
    _key(
        "max.request.partition.size.limit",
        Type.INT,
        2000,
        at_least(1),
        "Maximum partitions in a DescribeTopicPartitions response.",
    ),
    _key("num.partitions", Type.INT, 1, at_least(1), "Partitions of a topic that is created without a number of them."),
    _key(
        "offset.metadata.max.bytes",
        Type.INT,
        4096,
        None,
        "Maximum bytes of the metadata text that is stored with a committed offset.",
    ),
    _key(
        "offsets.commit.timeout.ms",
        Type.INT,
        5000,
        at_least(1),
        "Milliseconds that an offset commit waits for its replication.",
    ),
    _key(
        "offsets.retention.check.interval.ms",
        Type.LONG,
        600000,
        at_least(1),
        "Milliseconds between two searches for expired committed offsets.",
    ),
    _key(
        "offsets.retention.minutes",
        Type.INT,
        10080,
        at_least(1),
        "Minutes after which the committed offsets of a group without members expire.",
    ),
    _key(
        "offsets.topic.compression.codec",
        Type.INT,
        0,
        None,
        "Codec, by its number in a batch, of the records that groups write to __consumer_offsets.",
    ),
    _key("offsets.topic.num.partitions", Type.INT, 50, at_least(1), "Partitions of __consumer_offsets."),
    _key(
        "offsets.topic.replication.factor",
        Type.SHORT,
        3,
        at_least(1),
        "Replicas of __consumer_offsets.",
    ),
    _key(
        "offsets.topic.segment.bytes",
        Type.INT,
        104857600,
        at_least(1),
        "Segment size of __consumer_offsets, in bytes.",
    ),
    _key(
        "producer.id.expiration.check.interval.ms",
        Type.INT,
        600000,
        at_least(1),
        "Milliseconds between two searches for expired idempotent producers.",
        internal=True,
    ),
    _key(
        "producer.id.expiration.ms",
        Type.INT,
        86400000,
        at_least(1),
        "Milliseconds without a batch after which a partition forgets an idempotent producer.",
    ),
    _key(
        "queued.max.request.bytes",
        Type.LONG,
        256 * 1024 * 1024,
        None,
        "Bytes of requests of all connections in memory above which no more are read; -1, Kafka's default: no limit.",
    ),
    _key(
        "replica.fetch.backoff.ms",
        Type.INT,
        1000,
        at_least(0),
        "Milliseconds that a follower waits after an error before it fetches again.",
    ),
    _key(
        "replica.fetch.max.bytes",
        Type.INT,
        1048576,
        at_least(0),
        "Bytes of one partition that a follower requests in a fetch; a larger first batch is returned as well.",
    ),
    _key("replica.fetch.min.bytes", Type.INT, 1, None, "Minimum bytes that a follower's fetch waits for."),
    _key(
        "replica.fetch.response.max.bytes",
        Type.INT,
        10485760,
        at_least(0),
        "Bytes that a follower requests in a fetch; a larger first batch is returned as well.",
    ),
    _key(
        "replica.fetch.wait.max.ms",
        Type.INT,
        500,
        None,
        "Milliseconds that a follower's fetch waits for bytes; at most replica.lag.time.max.ms.",
    ),
    _key(
        "replica.high.watermark.checkpoint.interval.ms",
        Type.LONG,
        5000,
        None,
        "Milliseconds between two writes of high watermarks, log starts and recovery points to disk.",
    ),
    _key(
        "replica.lag.time.max.ms",
        Type.LONG,
        30000,
        None,
        "Milliseconds after which a follower that has not caught up is no longer in sync.",
    ),
    _key(
        "replica.socket.timeout.ms",
        Type.INT,
        30000,
        None,
        "Milliseconds that a follower waits for a Fetch response, beyond replica.fetch.wait.max.ms.",
    ),
    _key(
        "socket.request.max.bytes",
        Type.INT,
        104857600,
        at_least(1),
        "Maximum bytes of a request; a larger one closes its connection.",
    ),
)

SERVER_CONFIG_DEF = ConfigDef.of(_KEYS)
"""Every broker key that is accepted, by its name."""

DYNAMIC_KEYS = frozenset(
    {
        *(entry.synonyms[0] for entry in TOPIC_KEYS.values() if entry.synonyms),
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "producer.id.expiration.ms",
        "transaction.partition.verification.enable",
        VALIDATE_RECORDS,
    }
)
"""Keys that IncrementalAlterConfigs can change while the broker runs."""

_ONE_LOOP = "this broker is one asyncio loop and has no pools of threads"
_CLUSTER_GIVES = "nodes, their ids, addresses and folders are arguments of BrokerCluster, not keys"
_NO_RAFT = "the controller is one object that all nodes of the process share: there is no quorum, registration or vote"
_NO_SECURITY = "TLS is configured by an ssl.SSLContext, and there is no SASL and no authorization"
_NO_QUOTAS = "there are no quotas and no metrics reporters"
_CLASSIC_ONLY = "groups have only the classic protocol, without a coordinator's thread pools and batches"
_NO_TWO_PHASE_COMMIT = "two-phase commit with an external coordinator (KIP-939) is not stable in Apache Kafka 4.4"
_NO_TIERS = "there is no tiered storage"
_ONE_CLEANER = "the log cleaner is one task of the event loop, and reads 64 KiB at a time"
_NO_ELECTIONS = "a leader changes only when a node stops or a call moves it"
_LOOP_SOCKETS = "sockets are the event loop's, in the sizes of the operating system"
_NO_PURGATORY = "waiting requests are resumed by the event that they wait for, and removed at once"
_ONE_CHECKPOINT = "all checkpoints are written together, every replica.high.watermark.checkpoint.interval.ms"
_NO_ZOOKEEPER = "Apache Kafka 4 has no ZooKeeper either"

# The longest matching prefix decides; a whole name is its own longest prefix.
_MEANINGLESS: dict[str, str] = {
    "advertised.": _CLUSTER_GIVES,
    "alter.config.policy.": "there are no policies",
    "alter.log.dirs.": "a node has one folder",
    "authorizer.": _NO_SECURITY,
    "auto.leader.rebalance.enable": _NO_ELECTIONS,
    "background.threads": _ONE_LOOP,
    "broker.heartbeat.": _NO_RAFT,
    "broker.id": _CLUSTER_GIVES,
    "broker.session.": _NO_RAFT,
    "client.quota.": _NO_QUOTAS,
    "config.providers": "values are not looked up elsewhere",
    "connection.failed.authentication.": _NO_SECURITY,
    "connections.max.reauth.ms": _NO_SECURITY,
    "controlled.shutdown.": "stopping a node is always a controlled shutdown, and killing it never is",
    "controller.": _NO_RAFT,
    "controller.quota.": _NO_QUOTAS,
    "cordoned.log.dirs": "a node has one folder",
    "create.topic.policy.": "there are no policies",
    "delegation.token.": _NO_SECURITY,
    "delete.records.purgatory.": _NO_PURGATORY,
    "early.start.listeners": _CLUSTER_GIVES,
    "errors.deadletterqueue.": "there are no share groups",
    "fetch.purgatory.": _NO_PURGATORY,
    "follower.fetch.last.tiered.": _NO_TIERS,
    "group.consumer.": _CLASSIC_ONLY,
    "group.coordinator.": _CLASSIC_ONLY,
    "group.share.": _CLASSIC_ONLY,
    "group.streams.": _CLASSIC_ONLY,
    "initial.broker.registration.": _NO_RAFT,
    "inter.broker.": _CLUSTER_GIVES,
    "internal.metadata.": _NO_RAFT,
    "kafka.metrics.": _NO_QUOTAS,
    "leader.imbalance.": _NO_ELECTIONS,
    "listener": _CLUSTER_GIVES,
    "listener.name.": _NO_SECURITY,
    "log.cleaner.": _ONE_CLEANER,
    "log.dir": _CLUSTER_GIVES,
    "log.dir.failure.": "a failed write fails its append, and the node continues",
    "log.flush.offset.checkpoint.": _ONE_CHECKPOINT,
    "log.flush.start.offset.checkpoint.": _ONE_CHECKPOINT,
    "log.initial.task.delay.ms": "periodic work begins one interval after the start",
    "log.message.format.version": "there is one message format",
    "max.connection.creation.rate": "the number of connections is bounded, not their rate",
    "max.connections.per.ip.overrides": "max.connections.per.ip is the same for every address",
    "metadata.": _NO_RAFT,
    "metric": _NO_QUOTAS,
    "node.id": _CLUSTER_GIVES,
    "num.io.threads": _ONE_LOOP,
    "num.network.threads": _ONE_LOOP,
    "num.recovery.threads.": _ONE_LOOP,
    "num.replica.alter.": _ONE_LOOP,
    "num.replica.fetchers": "a follower has one task for each leader",
    "offsets.load.buffer.size": "__consumer_offsets is loaded batch by batch",
    "principal.builder.": _NO_SECURITY,
    "process.roles": _CLUSTER_GIVES,
    "producer.purgatory.": _NO_PURGATORY,
    "queued.max.requests": "a connection has one request at a time; queued.max.request.bytes bounds those read ahead",
    "quota.": _NO_QUOTAS,
    "remote.": _NO_TIERS,
    "replica.selector.": "consumers read from the leader",
    "replica.socket.receive.": _LOOP_SOCKETS,
    "replication.quota.": _NO_QUOTAS,
    "request.timeout.ms": "no node waits for the controller",
    "sasl.": _NO_SECURITY,
    "security.": _NO_SECURITY,
    "server.max.startup.": "the caller that awaits the start sets its timeout",
    "share.": "there are no share groups",
    "socket.connection.setup.": _LOOP_SOCKETS,
    "socket.listen.": _LOOP_SOCKETS,
    "socket.receive.": _LOOP_SOCKETS,
    "socket.send.": _LOOP_SOCKETS,
    "ssl.": _NO_SECURITY,
    "telemetry.": _NO_QUOTAS,
    "transaction.state.log.load.buffer.size": "__transaction_state is loaded batch by batch",
    "transaction.two.phase.commit.enable": _NO_TWO_PHASE_COMMIT,
    "unclean.leader.election.interval.ms": _NO_ELECTIONS,
    "unstable.": "only APIs that are stable in Apache Kafka 4.4 are served",
    "zookeeper.": _NO_ZOOKEEPER,
}

_IN_SNAKE_CASE = {prefix.replace(".", "_"): prefix for prefix in _MEANINGLESS}


def why_meaningless(name: str) -> str:
    """Return why a key of Kafka (dotted or snake_case) is not supported; empty if Kafka has no such key."""
    if "." not in name:
        fitting = [prefix for spelling, prefix in _IN_SNAKE_CASE.items() if name.startswith(spelling)]
    else:
        fitting = [prefix for prefix in _MEANINGLESS if name.startswith(prefix)]
    return _MEANINGLESS[max(fitting, key=len)] if fitting else ""
