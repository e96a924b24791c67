"""The broker keys of the transaction coordinator."""

from __future__ import annotations

from aioproducer.broker.config.values import at_least
from aioproducer.config import ConfigKey, Importance, Type
from aioproducer.config.definition import Value


def _key(name: str, type_: Type, default: Value, least: int, doc: str) -> ConfigKey:
    return ConfigKey(name, type_, default, Importance.MEDIUM, doc, at_least(least))


TRANSACTION_KEYS = (
    _key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Type.INT,
        10_000,
        1,
        "Milliseconds between two searches for transactions that have timed out, which are aborted.",
    ),
    _key(
        "transaction.max.timeout.ms",
        Type.INT,
        900_000,
        1,
        "Maximum transaction timeout, in milliseconds, of a transactional producer.",
    ),
    _key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Type.INT,
        3_600_000,
        1,
        "Milliseconds between two searches for expired transactional ids.",
    ),
    _key(
        "transaction.state.log.min.isr",
        Type.INT,
        2,
        1,
        "Replicas of __transaction_state that must have a record before it counts as written.",
    ),
    _key(
        "transaction.state.log.num.partitions",
        Type.INT,
        50,
        1,
        "Partitions of __transaction_state.",
    ),
    _key(
        "transaction.state.log.replication.factor",
        Type.SHORT,
        3,
        1,
        "Replicas of __transaction_state; at most the number of nodes.",
    ),
    _key(
        "transaction.state.log.segment.bytes",
        Type.INT,
        104_857_600,
        1,
        "Segment size of __transaction_state, in bytes.",
    ),
    _key(
        "transactional.id.expiration.ms",
        Type.INT,
        604_800_000,
        1,
        "Milliseconds without a change after which the coordinator forgets a transactional id.",
    ),
)
"""The keys, with Kafka's types, defaults and limits."""
