"""Changes of a cluster by other projects' admin clients."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas by a function of importlib.resources that CPython 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.protocol.admin import AlterClientQuotasRequest, ElectionType

_TIMEOUT = 30.0
_NOT_SERVED_YET = (
    ck.KafkaError.NOT_LEADER_FOR_PARTITION,
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError.LEADER_NOT_AVAILABLE,
    ck.KafkaError.OFFSET_NOT_AVAILABLE,
    # The replica manager does not know the leader's epoch yet.
    ck.KafkaError.UNKNOWN_LEADER_EPOCH,
)


def _client(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


def _eventually(condition: Callable[[], bool], what: str, timeout: float = _TIMEOUT) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(0.02)


def create_topic(
    bootstrap_servers: str, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
) -> None:
    client = _client(bootstrap_servers)
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=dict(config))
    client.create_topics([topic], operation_timeout=_TIMEOUT)[name].result(_TIMEOUT)


def wait_for_leaders(bootstrap_servers: str, name: str, partitions: int) -> None:
    """Wait until the broker at ``bootstrap_servers`` names a leader for each of the partitions."""
    client = _client(bootstrap_servers)

    def known() -> bool:
        topic = client.list_topics(name, timeout=_TIMEOUT).topics[name]
        return (
            topic.error is None
            and len(topic.partitions) == partitions
            and all(partition.leader >= 0 for partition in topic.partitions.values())
        )

    _eventually(known, f"leaders of {name}")


def wait_until_served(bootstrap_servers: str, name: str, partitions: int) -> None:
    """Wait until the leader of each partition answers ListOffsets.

    A broker names itself as the leader before its replica manager has the partition. It drops an acks=0 request that
    arrives in between and closes the connection, since no response could carry the error.
    """
    client = _client(bootstrap_servers)
    asked = {ck.TopicPartition(name, partition): OffsetSpec.latest() for partition in range(partitions)}

    def served() -> bool:
        try:
            for answer in client.list_offsets(asked, request_timeout=_TIMEOUT).values():
                answer.result(_TIMEOUT)
        except ck.KafkaException as error:
            if error.args[0].code() not in _NOT_SERVED_YET:
                raise
            return False
        return True

    _eventually(served, f"leaders that serve {name}")


def delete_topic(bootstrap_servers: str, name: str) -> None:
    client = _client(bootstrap_servers)
    client.delete_topics([name], operation_timeout=_TIMEOUT)[name].result(_TIMEOUT)
    _eventually(lambda: name not in client.list_topics(timeout=_TIMEOUT).topics, f"deletion of {name}")


def leader(bootstrap_servers: str, topic: str, partition: int) -> int:
    known = _client(bootstrap_servers).list_topics(topic, timeout=_TIMEOUT).topics[topic].partitions[partition]
    return int(known.leader)


def in_sync_replicas(bootstrap_servers: str, topic: str, partition: int) -> list[int]:
    known = _client(bootstrap_servers).list_topics(topic, timeout=_TIMEOUT).topics[topic].partitions[partition]
    return sorted(known.isrs)


def wait_in_sync(bootstrap_servers: str, topic: str, timeout: float) -> None:
    client = _client(bootstrap_servers)

    def in_sync() -> bool:
        partitions = client.list_topics(topic, timeout=_TIMEOUT).topics[topic].partitions.values()
        return all(set(partition.isrs) == set(partition.replicas) for partition in partitions)

    _eventually(in_sync, f"all replicas of {topic} in sync", timeout)


def move_leader(bootstrap_servers: str, topic: str, partition: int, node_id: int) -> None:
    """Put ``node_id`` first among the replicas, then hold a preferred election."""
    described = _client(bootstrap_servers).list_topics(topic, timeout=_TIMEOUT).topics[topic].partitions[partition]
    replicas = list(described.replicas)
    if node_id not in replicas:
        raise ValueError(f"{topic}-{partition} has no replica on node {node_id}, but on {replicas}")
    chosen = kafka.TopicPartition(topic, partition)
    # Not confluent-kafka: elect_leaders of 2.16 fails with a SystemError, and it cannot reassign.
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        order = [node_id, *(replica for replica in replicas if replica != node_id)]
        refused = client.alter_partition_reassignments({chosen: order})[chosen]
        if refused is not None:
            raise refused()
        _eventually(lambda: not client.list_partition_reassignments([chosen]), f"reassignment of {chosen}")

        def elected() -> bool:
            # The node may not be in sync yet. Then it is not elected, and the request is repeated.
            client.elect_leaders(ElectionType.PREFERRED, {topic: [partition]}, raise_errors=False)
            return leader(bootstrap_servers, topic, partition) == node_id

        _eventually(elected, f"{topic}-{partition} led by {node_id}")
    finally:
        client.close()


def set_producer_quota(bootstrap_servers: str, client_id: str, bytes_per_second: float | None) -> None:
    entry = AlterClientQuotasRequest.EntryData
    operation = entry.OpData(key="producer_byte_rate", value=bytes_per_second or 0.0, remove=bytes_per_second is None)
    request = AlterClientQuotasRequest(
        entries=[entry(entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)], ops=[operation])],
        validate_only=False,
    )
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        # kafka-python has the message, but no public call for it.
        response = client._manager.run(client._manager.send, request)
        for answer in response.entries:
            if answer.error_code:
                raise RuntimeError(f"quota refused with error {answer.error_code}: {answer.error_message}")
    finally:
        client.close()
