"""The keys of a broker's configuration that its transaction coordinator has."""

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
        "How often, in milliseconds, the coordinator looks for transactions to abort that have timed out.",
    ),
    _key(
        "transaction.max.timeout.ms",
        Type.INT,
        900_000,
        1,
        "The longest time-out, in milliseconds, that a transactional producer may ask for.",
    ),
    _key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Type.INT,
        3_600_000,
        1,
        "How often, in milliseconds, the coordinator looks for transactional ids to forget.",
    ),
    _key(
        "transaction.state.log.min.isr",
        Type.INT,
        2,
        1,
        "How many replicas of __transaction_state must have a record before it counts as written.",
    ),
    _key(
        "transaction.state.log.num.partitions",
        Type.INT,
        50,
        1,
        "How many partitions __transaction_state gets.",
    ),
    _key(
        "transaction.state.log.replication.factor",
        Type.SHORT,
        3,
        1,
        "How many replicas __transaction_state gets; no more than there are nodes.",
    ),
    _key(
        "transaction.state.log.segment.bytes",
        Type.INT,
        104_857_600,
        1,
        "The size of a segment of __transaction_state, in bytes.",
    ),
    _key(
        "transactional.id.expiration.ms",
        Type.INT,
        604_800_000,
        1,
        "After how many milliseconds without a change the coordinator forgets a transactional id.",
    ),
)
"""The keys, with Kafka's types, defaults and limits."""
