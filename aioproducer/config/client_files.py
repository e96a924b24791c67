"""Properties files that a producer shares with other clients: those of cloud consoles, consumers and Kafka Streams."""

from __future__ import annotations

import os
from typing import Final

from aioproducer.config.definition import ConfigDef, logger
from aioproducer.config.properties import load_properties
from aioproducer.errors import ConfigurationError

CONSUMER_KEYS: Final = frozenset(
    (
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "check.crcs",
        "default.api.timeout.ms",
        "enable.auto.commit",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "internal.throw.on.fetch.stable.offset.unsupported",
        "isolation.level",
        "key.deserializer",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "share.acknowledgement.mode",
        "share.acquire.mode",
        "value.deserializer",
    )
)
"""The keys of ``ConsumerConfig`` of Kafka 4.4 that the producer does not have."""

ADMIN_KEYS: Final = frozenset(("bootstrap.controllers", "default.api.timeout.ms"))
"""The same of ``AdminClientConfig``."""

STREAMS_KEYS: Final = frozenset(
    (
        "acceptable.recovery.lag",
        "allow.os.group.write.access",
        "application.id",
        "application.server",
        "buffered.records.per.partition",
        "built.in.metrics.version",
        "cache.max.bytes.buffering",
        "commit.interval.ms",
        "default.api.timeout.ms",
        "default.client.supplier",
        "default.deserialization.exception.handler",
        "default.dsl.store",
        "default.interactive.query.isolation.level",
        "default.key.serde",
        "default.list.key.serde.inner",
        "default.list.key.serde.type",
        "default.list.value.serde.inner",
        "default.list.value.serde.type",
        "default.production.exception.handler",
        "default.timestamp.extractor",
        "default.value.serde",
        "deserialization.exception.handler",
        "dsl.store.format",
        "dsl.store.suppliers.class",
        "enable.transactional.statestores",
        "ensure.explicit.internal.resource.naming",
        "errors.dead.letter.queue.topic.name",
        "group.protocol",
        "log.summary.interval.ms",
        "max.task.idle.ms",
        "max.warmup.replicas",
        "num.standby.replicas",
        "num.stream.threads",
        "poll.ms",
        "probing.rebalance.interval.ms",
        "processing.exception.handler",
        "processing.exception.handler.global.enabled",
        "processing.guarantee",
        "processor.wrapper.class",
        "production.exception.handler",
        "rack.aware.assignment.non_overlap_cost",
        "rack.aware.assignment.strategy",
        "rack.aware.assignment.tags",
        "rack.aware.assignment.traffic_cost",
        "repartition.purge.interval.ms",
        "replication.factor",
        "rocksdb.config.setter",
        "state.cleanup.delay.ms",
        "state.cleanup.dir.max.age.ms",
        "state.dir",
        "statestore.cache.max.bytes",
        "statestore.uncommitted.max.bytes",
        "task.assignor.class",
        "task.timeout.ms",
        "topology.description.push.enabled",
        "topology.optimization",
        "upgrade.from",
        "window.size.ms",
        "windowed.inner.class.serde",
        "windowstore.changelog.additional.retention.ms",
    )
)
"""The same of ``StreamsConfig``."""

SCHEMA_REGISTRY_PREFIXES: Final = ("schema.registry.", "basic.auth.", "bearer.auth.")
"""Prefixes of keys for Confluent's Schema Registry."""

ALIASES: Final = {"sasl.mechanisms": "sasl.mechanism"}
"""librdkafka's name for a key, as in the files that Confluent Cloud offers for Python -> Kafka's."""

_OTHERS = CONSUMER_KEYS | ADMIN_KEYS | STREAMS_KEYS


def load_client_file(path: str | os.PathLike[str], definition: ConfigDef) -> dict[str, str]:
    """Return the entries of a properties file, without those that only other clients know; the log names these.

    Raises:
        ConfigurationError: the file cannot be read, violates the format, or gives a key by two names.
    """
    entries: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in load_properties(path).items():
        if name not in definition.keys and (name in _OTHERS or name.startswith(SCHEMA_REGISTRY_PREFIXES)):
            ignored.append(name)
            continue
        dotted = ALIASES.get(name, name)
        if dotted in entries:
            raise ConfigurationError(f"{os.fspath(path)}: {dotted} is given twice, by two names: remove one of them")
        entries[dotted] = value
    if ignored:
        logger.info("%s: these keys are for other clients and have no effect: %s", os.fspath(path), ", ".join(ignored))
    return entries
