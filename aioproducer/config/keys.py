"""The keys of Kafka's producer except those about security: names, types, defaults and rules of Kafka 4.4."""

from __future__ import annotations

from aioproducer.config.definition import (
    NO_DEFAULT,
    ConfigKey,
    Importance,
    Status,
    Type,
    at_least,
    between,
    between_or,
    list_without_empty_items,
    non_empty_string,
    one_of,
    one_of_ignoring_case,
)

PROVIDERS_PREFIX = "config.providers."
"""Prefix of the keys that define a provider; their names contain an alias from ``config.providers``."""

KEYS = (
    ConfigKey(
        "acks",
        Type.STRING,
        "all",
        Importance.LOW,
        (
            "Acknowledgements that a batch needs: 0 none (offsets stay unknown), 1 the leader's, all (or -1) those of "
            "all in-sync replicas. Idempotence needs all."
        ),
        validator=one_of("all", "-1", "0", "1"),
        reason="Whole numbers are accepted too.",
    ),
    ConfigKey(
        "batch.size",
        Type.INT,
        16384,
        Importance.MEDIUM,
        (
            "Bytes at which a batch for one partition is full; also the bytes after which the built-in partitioner "
            "switches to another partition. Memory is allocated as records arrive, not for a whole batch in advance."
        ),
        validator=at_least(0),
    ),
    ConfigKey(
        "bootstrap.resolve.timeout.ms",
        Type.LONG,
        0,
        Importance.HIGH,
        (
            "Milliseconds for which names in bootstrap.servers that do not resolve are retried; 0: only one attempt "
            "(KIP-909)."
        ),
        validator=at_least(0),
        status=Status.WITHOUT_EFFECT,
        reason=(
            "Java resolves names in the constructor; here names are resolved with every attempt to connect. Calls that "
            "wait for a name that does not resolve fail after max.block.ms, with that error."
        ),
    ),
    ConfigKey(
        "bootstrap.servers",
        Type.LIST,
        NO_DEFAULT,
        Importance.HIGH,
        (
            "Some brokers of the cluster, as host:port separated by commas; they return the others. IPv6 addresses "
            "need brackets; every address needs a port."
        ),
        validator=list_without_empty_items(may_be_empty=False),
    ),
    ConfigKey(
        "buffer.memory",
        Type.LONG,
        33554432,
        Importance.HIGH,
        "Bytes that unacknowledged records may occupy. If they are full, sends wait for at most max.block.ms.",
        validator=at_least(0),
    ),
    ConfigKey(
        "buffer.memory.allocation.strategy",
        Type.STRING,
        "full",
        Importance.MEDIUM,
        (
            "full: each batch allocates batch.size from buffer.memory; incremental: batches allocate as records "
            "arrive (KIP-1332)."
        ),
        validator=one_of_ignoring_case("FULL", "INCREMENTAL"),
        status=Status.WITHOUT_EFFECT,
        reason="Memory is always allocated as records arrive.",
        internal=True,
    ),
    ConfigKey(
        "client.dns.lookup",
        Type.STRING,
        "use_all_dns_ips",
        Importance.MEDIUM,
        (
            "use_all_dns_ips: every address of a host name is tried in turn; "
            "resolve_canonical_bootstrap_servers_only: bootstrap names are replaced by their canonical names first."
        ),
        validator=one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    ),
    ConfigKey(
        "client.id",
        Type.STRING,
        "",
        Importance.MEDIUM,
        (
            "Name of this producer in requests, for the brokers' quotas, logs and metrics. If not given: producer-1, "
            "producer-2, ... within the process."
        ),
    ),
    ConfigKey(
        "client.rack",
        Type.STRING,
        "",
        Importance.LOW,
        "The rack, or zone, in which this client runs, as in broker.rack (KIP-1123).",
    ),
    ConfigKey(
        "compression.gzip.level",
        Type.INT,
        -1,
        Importance.MEDIUM,
        "Gzip level, -1 for the library default (KIP-390).",
        validator=between_or(1, 9, -1),
    ),
    ConfigKey(
        "compression.lz4.level",
        Type.INT,
        9,
        Importance.MEDIUM,
        "LZ4 level (HC modes above 9 are slow) (KIP-390).",
        validator=between(1, 17),
    ),
    ConfigKey(
        "compression.type",
        Type.STRING,
        "none",
        Importance.HIGH,
        "The codec for whole batches.",
        validator=one_of("none", "gzip", "snappy", "lz4", "zstd"),
    ),
    ConfigKey(
        "compression.zstd.level",
        Type.INT,
        3,
        Importance.MEDIUM,
        "Zstd level, negatives are the fast modes (KIP-390).",
        validator=between(-131072, 22),
    ),
    ConfigKey(
        "config.providers",
        Type.LIST,
        (),
        Importance.LOW,
        (
            "Aliases of the providers that replace ${alias:path:key} in values. Each has its class in "
            "config.providers.ALIAS.class: Kafka's EnvVarConfigProvider, FileConfigProvider or "
            "DirectoryConfigProvider."
        ),
        validator=list_without_empty_items(may_be_empty=True),
        reason="A placeholder that cannot be resolved is an error; Java leaves it unchanged.",
    ),
    ConfigKey(
        "connections.max.idle.ms",
        Type.LONG,
        540000,
        Importance.MEDIUM,
        "Milliseconds without traffic after which a connection is closed; negative: never.",
    ),
    ConfigKey(
        "delivery.timeout.ms",
        Type.INT,
        120000,
        Importance.MEDIUM,
        (
            "Milliseconds from send() to the outcome, including the linger, all retries and the acknowledgement. At "
            "least linger.ms + request.timeout.ms (KIP-91)."
        ),
        validator=at_least(0),
    ),
    ConfigKey(
        "enable.idempotence",
        Type.BOOLEAN,
        True,
        Importance.LOW,
        (
            "Each record is written exactly once and in order per partition, despite retries. Needs acks=all, "
            "retries above 0 and at most 5 requests in flight."
        ),
    ),
    ConfigKey(
        "enable.metrics.push",
        Type.BOOLEAN,
        True,
        Importance.LOW,
        "Push this client's metrics to the brokers on request (KIP-714).",
        status=Status.WITHOUT_EFFECT,
        reason="Metrics are not pushed to brokers yet; metrics() returns them.",
    ),
    ConfigKey(
        "interceptor.classes",
        Type.LIST,
        (),
        Importance.LOW,
        "Interceptors with on_send, on_headers or on_acknowledgement, called in this order.",
        validator=list_without_empty_items(may_be_empty=True),
    ),
    ConfigKey(
        "key.serializer",
        Type.CLASS,
        None,
        Importance.HIGH,
        (
            "Serializer of keys: an object with serialize(topic, value, headers), a callable of the key, "
            '"module:attribute", an entry point of the group aioproducer.serializers, or one of Kafka\'s class names.'
        ),
        reason="Java requires one; here bytes pass unchanged if none is given.",
    ),
    ConfigKey(
        "linger.ms",
        Type.LONG,
        5,
        Importance.MEDIUM,
        "Milliseconds that a batch may wait for more records.",
        validator=at_least(0),
    ),
    ConfigKey(
        "max.block.ms",
        Type.LONG,
        60000,
        Importance.MEDIUM,
        "Milliseconds for which a record may wait for metadata or memory.",
        validator=at_least(0),
    ),
    ConfigKey(
        "max.in.flight.requests.per.connection",
        Type.INT,
        5,
        Importance.LOW,
        "Unanswered produce requests per broker; at most 5 with idempotence.",
        validator=at_least(1),
        reason="As in Java, values above 5 are rejected unless enable.idempotence is false.",
    ),
    ConfigKey(
        "max.request.size",
        Type.INT,
        1048576,
        Importance.MEDIUM,
        "Maximum bytes of a produce request, and of a single record before compression.",
        validator=at_least(0),
    ),
    ConfigKey(
        "metadata.cluster.check.enable",
        Type.BOOLEAN,
        True,
        Importance.LOW,
        (
            "Send the expected cluster id and node id with ApiVersions, so that a broker can reject a misrouted "
            "connection (KIP-1242)."
        ),
    ),
    ConfigKey(
        "metadata.max.age.ms",
        Type.LONG,
        300000,
        Importance.LOW,
        "Milliseconds after which metadata is refreshed even without any sign of a change.",
        validator=at_least(0),
    ),
    ConfigKey(
        "metadata.max.idle.ms",
        Type.LONG,
        300000,
        Importance.LOW,
        "Milliseconds without a send after which a topic's metadata is dropped (KIP-526).",
        validator=at_least(5000),
    ),
    ConfigKey(
        "metadata.recovery.rebootstrap.trigger.ms",
        Type.LONG,
        300000,
        Importance.LOW,
        (
            "Milliseconds without fresh metadata after which the producer starts again from bootstrap.servers "
            "(KIP-1102)."
        ),
        validator=at_least(0),
    ),
    ConfigKey(
        "metadata.recovery.strategy",
        Type.STRING,
        "rebootstrap",
        Importance.LOW,
        (
            "rebootstrap: start again from bootstrap.servers if no known broker can be reached; none: keep trying the "
            "known brokers (KIP-899)."
        ),
        validator=one_of_ignoring_case("REBOOTSTRAP", "NONE"),
    ),
    ConfigKey(
        "metric.reporters",
        Type.LIST,
        ("org.apache.kafka.common.metrics.JmxReporter",),
        Importance.LOW,
        "Plug-ins that receive every metric.",
        validator=list_without_empty_items(may_be_empty=True),
        status=Status.WITHOUT_EFFECT,
        reason=(
            "There is no JMX here: read metrics(), or use hooks. Any class except Kafka's JmxReporter is rejected."
        ),
    ),
    ConfigKey(
        "metrics.num.samples",
        Type.INT,
        2,
        Importance.LOW,
        "Number of windows over which rates and averages are computed.",
        validator=at_least(1),
    ),
    ConfigKey(
        "metrics.recording.level",
        Type.STRING,
        "INFO",
        Importance.LOW,
        "The lowest level of metrics that is recorded.",
        validator=one_of("INFO", "DEBUG", "TRACE"),
    ),
    ConfigKey(
        "metrics.sample.window.ms",
        Type.LONG,
        30000,
        Importance.LOW,
        "Length of one window of the metrics, in milliseconds.",
        validator=at_least(0),
    ),
    ConfigKey(
        "partitioner.adaptive.partitioning.enable",
        Type.BOOLEAN,
        True,
        Importance.LOW,
        "Send records without a key more often to partitions on faster brokers (KIP-794).",
    ),
    ConfigKey(
        "partitioner.availability.timeout.ms",
        Type.LONG,
        0,
        Importance.LOW,
        (
            "Milliseconds without progress after which records without a key avoid the partitions of a broker; 0: "
            "never (KIP-794)."
        ),
        validator=at_least(0),
    ),
    ConfigKey(
        "partitioner.class",
        Type.CLASS,
        None,
        Importance.MEDIUM,
        (
            'A partitioner with partition(topic, key, value, cluster), a callable of the same, "module:attribute", '
            "or an entry point of the group aioproducer.partitioners. None: the key's hash, or sticky without a key."
        ),
        reason="Kafka's class names RoundRobinPartitioner and DefaultPartitioner are accepted.",
    ),
    ConfigKey(
        "partitioner.ignore.keys",
        Type.BOOLEAN,
        False,
        Importance.MEDIUM,
        "Distribute records with a key like those without a key.",
    ),
    ConfigKey(
        "partitioner.rack.aware",
        Type.BOOLEAN,
        False,
        Importance.LOW,
        (
            "Send records without a key to partitions with a leader in client.rack, or to all if there are none "
            "(KIP-1123). Needs client.rack."
        ),
        reason="Java accepts it without client.rack, but then it has no effect.",
    ),
    ConfigKey(
        "receive.buffer.bytes",
        Type.INT,
        32768,
        Importance.MEDIUM,
        "Bytes of the socket's receive buffer (SO_RCVBUF); -1: the system's choice.",
        validator=at_least(-1),
    ),
    ConfigKey(
        "reconnect.backoff.max.ms",
        Type.LONG,
        1000,
        Importance.LOW,
        (
            "Maximum wait between attempts to connect to one broker, in milliseconds. If only reconnect.backoff.ms is "
            "given: the same value, so that the wait does not grow."
        ),
        validator=at_least(0),
    ),
    ConfigKey(
        "reconnect.backoff.ms",
        Type.LONG,
        50,
        Importance.LOW,
        (
            "First wait between attempts to connect to one broker, in milliseconds; it doubles, with jitter, up to "
            "reconnect.backoff.max.ms."
        ),
        validator=at_least(0),
    ),
    ConfigKey(
        "request.timeout.ms",
        Type.INT,
        30000,
        Importance.MEDIUM,
        "Milliseconds to wait for a response; after that the connection is closed and the request sent again.",
        validator=at_least(0),
    ),
    ConfigKey(
        "retries",
        Type.INT,
        2147483647,
        Importance.HIGH,
        "Maximum number of retries of a batch; delivery.timeout.ms is the better limit.",
        validator=between(0, 2147483647),
    ),
    ConfigKey(
        "retry.backoff.max.ms",
        Type.LONG,
        1000,
        Importance.LOW,
        "Maximum wait before a request is sent again, in milliseconds (KIP-580).",
        validator=at_least(0),
    ),
    ConfigKey(
        "retry.backoff.ms",
        Type.LONG,
        100,
        Importance.LOW,
        (
            "First wait before a request is sent again, in milliseconds; it doubles, with jitter, up to "
            "retry.backoff.max.ms."
        ),
        validator=at_least(0),
    ),
    ConfigKey(
        "send.buffer.bytes",
        Type.INT,
        131072,
        Importance.MEDIUM,
        "Bytes of the socket's send buffer (SO_SNDBUF); -1: the system's choice.",
        validator=at_least(-1),
    ),
    ConfigKey(
        "socket.connection.setup.timeout.max.ms",
        Type.LONG,
        30000,
        Importance.MEDIUM,
        "Maximum timeout of an attempt to connect, in milliseconds (KIP-601).",
    ),
    ConfigKey(
        "socket.connection.setup.timeout.ms",
        Type.LONG,
        10000,
        Importance.MEDIUM,
        (
            "First timeout of an attempt to connect, in milliseconds; it doubles, with jitter, with each consecutive "
            "failure (KIP-601)."
        ),
    ),
    ConfigKey(
        "transaction.timeout.ms",
        Type.INT,
        60000,
        Importance.LOW,
        (
            "Milliseconds after which the coordinator aborts an open transaction; at most the broker's "
            "transaction.max.timeout.ms. Only with transactional.id."
        ),
    ),
    ConfigKey(
        "transaction.two.phase.commit.enable",
        Type.BOOLEAN,
        False,
        Importance.LOW,
        "The producer takes part in a two-phase commit with an external coordinator (KIP-939).",
        status=Status.REFUSED,
        reason="Kafka 4.4 itself does not enable two-phase commits.",
    ),
    ConfigKey(
        "transactional.id",
        Type.STRING,
        None,
        Importance.LOW,
        (
            "Identity of a transactional producer, the same after a restart: all records are sent in transactions, and "
            "a newer producer of the same id fences the older one (KIP-98)."
        ),
        validator=non_empty_string(),
    ),
    ConfigKey(
        "value.serializer",
        Type.CLASS,
        None,
        Importance.HIGH,
        "Serializer of values; as key.serializer.",
        reason="Java requires one; here bytes pass unchanged if none is given.",
    ),
)
