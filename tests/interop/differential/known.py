"""The responses of the embedded broker that differ from Apache Kafka 4.4, and why.

docs/embedded-broker.md lists the same.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """``path`` is the path of an observation's field; ``*`` matches anything."""

    scenario: str
    path: str
    reason: str


_NO_SASL = "SASL is not served"
_NO_FEATURES = "transaction.version is the only feature here: all nodes are of one release"
_NO_KRAFT = "the controller is an object of the process, not a quorum"
_NO_ELR = "there are no eligible leader replicas (KIP-966): a last replica that dies stays in sync"
_ABORTED = "a commit that races the coordinator's abort is fenced, as in Kafka after 4.4 (KAFKA-20785)"
_FAILED = "Kafka answers as if it had failed itself"
_LENGTHS = "a record's length is checked here too; Kafka ignores it in a compressed batch, then unreadable"
_LAST_COUNTS = "of two batches for a partition the last one counts; Kafka may write one and answer for the other"
_STRICT = "malformed here; Kafka reads it as null"
_WHOLE = "whole batches are returned; Kafka adds a part of the next one, which consumers drop"

KNOWN: tuple[Difference, ...] = (
    Difference("api_versions", "version *.api_keys[17].*", _NO_SASL),
    Difference("api_versions", "version *.api_keys[36].*", _NO_SASL),
    Difference("api_versions", "version *.api_keys[55].*", _NO_KRAFT),
    Difference("api_versions", "version *.supported_features*", _NO_FEATURES),
    Difference("api_versions", "version *.finalized_features*", _NO_FEATURES),
    Difference("a_node_dies_and_returns", "metadata version *-alone].partitions[0].isr_nodes*", _NO_ELR),
    Difference("a_node_dies_and_returns", "partitions.topics[*-alone].partitions[0].isr_nodes*", _NO_ELR),
    Difference("a_node_dies_and_returns", "partitions.topics[*-alone].partitions[0].*elr*", _NO_ELR),
    Difference("a_node_dies_and_returns", "partitions.topics[*-alone].partitions[0].eligible_leader*", _NO_ELR),
    Difference("describe_configs", "version *.configs[min.insync.replicas].*", "Kafka keeps a default of the cluster"),
    Difference("describe_configs", "documentation.*.documentation", "the descriptions are this project's"),
    Difference("describe_configs", "version * kind *.results[x].error_message", "the text names the type"),
    Difference("alter_topic_configs", "version * unknown operation.responses[*].error_*", _FAILED),
    Difference("alter_broker_configs", "broker * log.retention.ms=0.*.error_message", "the text names all keys"),
    Difference("set_broker_configs", "broker * log.retention.ms=0.*.error_message", "the text names all keys"),
    Difference("set_configs_errors", "twice*", "Kafka never answers"),
    Difference("create_topics_counts", "*.error_message", "no log directory can be cordoned here"),
    Difference("topics_on_three_nodes", "4 replicas.*.error_message", "no log directory can be cordoned here"),
    Difference("fetch_limits", "*.records.bytes of a batch cut off", _WHOLE),
    Difference("fetch_limits", "limit * for two partitions.*.partitions[1].records.batches*", _WHOLE),
    Difference("malformed_frames", "client id is no UTF-8*", "malformed here; Kafka replaces what it cannot read"),
    Difference("malformed_frames", "array of negative length*", _STRICT),
    Difference("metadata_by_id", "version * zero.*", _FAILED),
    Difference("produce_null_records", "acks *", "Kafka never answers"),
    Difference("produce_several_batches", "version * bad, then good.responses*", _LAST_COUNTS),
    Difference("produce_several_batches", "version * good, then bad, in the log.*", _LAST_COUNTS),
    Difference("produce_codecs", "codec *.error_code", _FAILED),
    Difference("end_transactions", "version 5 abort then True epoch 2.error_code", _ABORTED),
    Difference("transactions_that_the_coordinator_aborts", "version 5 known * commit*.error_code", _ABORTED),
    Difference("produce_bad_records", "version * of garbage.*.error_code", _FAILED),
    Difference("produce_bad_records", "version * compressed, offset deltas not in order.*.error_code", _FAILED),
    Difference("produce_bad_records", "*compressed, a record *", _LENGTHS),
)
