"""The part of a topic's configuration that its logs use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aioproducer.wire.record_survey import IS_COMPILED
from aioproducer.wire.varint import INT64_MAX

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Typed values of a topic's keys, under Kafka's names and with the defaults of Kafka 4.4 (``LogConfig``).

    Times are milliseconds, sizes bytes; -1 means no limit as in Kafka. The values were checked when a user's
    configuration was read.
    """

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 * 1024 * 1024
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: str = "producer"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    delete_retention_ms: int = _DAY_MS
    producer_id_expiration_ms: int = _DAY_MS
    transaction_partition_verification_enable: bool = True
    """Whether each transaction is verified by its coordinator before its first batch is written (KIP-890)."""
    validate_records: bool = IS_COMPILED
    """Whether every record of an appended batch is checked, as in Kafka, or only the header. Not a key of Kafka."""

    @property
    def deletes(self) -> bool:
        """Whether old segments are deleted by time and size."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Whether the cleaner keeps the last record of each key alone. Then each record must have a key."""
        return "compact" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """How old a segment grows: a compacted one must be rolled before it can be cleaned."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms
