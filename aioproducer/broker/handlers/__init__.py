"""The request handlers: a module for each API, and the table of them.

A handler is a coroutine function of a ``RequestContext`` and a request. It returns the response, or ``None`` if the
client expects none. A ``KafkaError`` that it raises becomes the response to the whole request.
"""

from __future__ import annotations

from typing import Final

from aioproducer.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from aioproducer.broker.handlers.context import Handler
from aioproducer.protocol import ApiKey

HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.PRODUCE: Handler(produce.VERSIONS, produce.handle, produce.ADVERTISED_MIN_VERSION),
    ApiKey.FETCH: Handler(fetch.VERSIONS, fetch.handle),
    ApiKey.LIST_OFFSETS: Handler(list_offsets.VERSIONS, list_offsets.handle),
    ApiKey.METADATA: Handler(metadata.VERSIONS, metadata.handle),
    ApiKey.OFFSET_COMMIT: Handler(offset_commit.VERSIONS, offset_commit.handle),
    ApiKey.OFFSET_FETCH: Handler(offset_fetch.VERSIONS, offset_fetch.handle),
    ApiKey.FIND_COORDINATOR: Handler(find_coordinator.VERSIONS, find_coordinator.handle),
    ApiKey.JOIN_GROUP: Handler(join_group.VERSIONS, join_group.handle),
    ApiKey.HEARTBEAT: Handler(heartbeat.VERSIONS, heartbeat.handle),
    ApiKey.LEAVE_GROUP: Handler(leave_group.VERSIONS, leave_group.handle),
    ApiKey.SYNC_GROUP: Handler(sync_group.VERSIONS, sync_group.handle),
    ApiKey.DESCRIBE_GROUPS: Handler(describe_groups.VERSIONS, describe_groups.handle),
    ApiKey.LIST_GROUPS: Handler(list_groups.VERSIONS, list_groups.handle),
    ApiKey.API_VERSIONS: Handler(api_versions.VERSIONS, api_versions.handle),
    ApiKey.CREATE_TOPICS: Handler(create_topics.VERSIONS, create_topics.handle),
    ApiKey.DELETE_TOPICS: Handler(delete_topics.VERSIONS, delete_topics.handle),
    ApiKey.DELETE_RECORDS: Handler(delete_records.VERSIONS, delete_records.handle),
    ApiKey.INIT_PRODUCER_ID: Handler(init_producer_id.VERSIONS, init_producer_id.handle),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Handler(offset_for_leader_epoch.VERSIONS, offset_for_leader_epoch.handle),
    ApiKey.TXN_OFFSET_COMMIT: Handler(txn_offset_commit.VERSIONS, txn_offset_commit.handle),
    ApiKey.ADD_PARTITIONS_TO_TXN: Handler(add_partitions_to_txn.VERSIONS, add_partitions_to_txn.handle),
    ApiKey.ADD_OFFSETS_TO_TXN: Handler(add_offsets_to_txn.VERSIONS, add_offsets_to_txn.handle),
    ApiKey.END_TXN: Handler(end_txn.VERSIONS, end_txn.handle),
    ApiKey.WRITE_TXN_MARKERS: Handler(write_txn_markers.VERSIONS, write_txn_markers.handle),
    ApiKey.DESCRIBE_CONFIGS: Handler(describe_configs.VERSIONS, describe_configs.handle),
    ApiKey.ALTER_CONFIGS: Handler(alter_configs.VERSIONS, alter_configs.handle),
    ApiKey.CREATE_PARTITIONS: Handler(create_partitions.VERSIONS, create_partitions.handle),
    ApiKey.DELETE_GROUPS: Handler(delete_groups.VERSIONS, delete_groups.handle),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Handler(incremental_alter_configs.VERSIONS, incremental_alter_configs.handle),
    ApiKey.OFFSET_DELETE: Handler(offset_delete.VERSIONS, offset_delete.handle),
    ApiKey.DESCRIBE_CLUSTER: Handler(describe_cluster.VERSIONS, describe_cluster.handle),
    ApiKey.DESCRIBE_PRODUCERS: Handler(describe_producers.VERSIONS, describe_producers.handle),
    ApiKey.DESCRIBE_TRANSACTIONS: Handler(describe_transactions.VERSIONS, describe_transactions.handle),
    ApiKey.LIST_TRANSACTIONS: Handler(list_transactions.VERSIONS, list_transactions.handle),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Handler(describe_topic_partitions.VERSIONS, describe_topic_partitions.handle),
}
"""Every API that the broker serves."""
