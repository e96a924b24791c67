"""Changes of a cluster by other projects' admin clients."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec, PartitionMetadata

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas by a function of importlib.resources that CPython 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.protocol.admin import AlterClientQuotasRequest, ElectionType

_TIMEOUT = 30.0
# Seconds that one client may take to answer.
_ATTEMPT = 10.0
_NO_ANSWER = (ck.KafkaError._TIMED_OUT, ck.KafkaError._TRANSPORT)
_NOT_SERVED_YET = (
    ck.KafkaError.NOT_LEADER_FOR_PARTITION,
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError.LEADER_NOT_AVAILABLE,
    ck.KafkaError.OFFSET_NOT_AVAILABLE,
    # The replica manager does not know the leader's epoch yet.
    ck.KafkaError.UNKNOWN_LEADER_EPOCH,
)

_Answer = TypeVar("_Answer")


def _client(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


def _has_no_answer(error: TimeoutError | ck.KafkaException) -> bool:
    return isinstance(error, TimeoutError) or error.args[0].code() in _NO_ANSWER


def _ask(bootstrap_servers: str, call: Callable[[AdminClient], _Answer], timeout: float = _TIMEOUT) -> _Answer:
    """Return what ``call`` returns for a client, a new one each time that there is no answer.

    librdkafka 2.16 gives up its bootstrap addresses when it receives metadata. If these list no broker, the client has
    no address left and waits for ever. A broker that was stopped for longer than its session lists none for some
    milliseconds, until the controller has received its next heartbeat.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return call(_client(bootstrap_servers))
        except (TimeoutError, ck.KafkaException) as error:
            if not _has_no_answer(error) or time.monotonic() > deadline:
                raise


def _eventually(
    bootstrap_servers: str, condition: Callable[[AdminClient], bool], what: str, timeout: float = _TIMEOUT
) -> None:
    """Wait until ``condition`` is true for a client, a new one each time that there is no answer: see ``_ask``."""
    deadline = time.monotonic() + timeout

    def wait(client: AdminClient) -> bool:
        while not condition(client):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    if not _ask(bootstrap_servers, wait, timeout):
        raise TimeoutError(f"{what}: not within {timeout:g} s")


def _partitions(client: AdminClient, topic: str) -> Mapping[int, PartitionMetadata]:
    return client.list_topics(topic, timeout=_ATTEMPT).topics[topic].partitions


def create_topic(
    bootstrap_servers: str, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
) -> None:
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=dict(config))
    attempts = 0

    def create(client: AdminClient) -> bool:
        nonlocal attempts
        attempts += 1
        try:
            client.create_topics([topic], operation_timeout=_ATTEMPT)[name].result(_ATTEMPT)
        except ck.KafkaException as error:
            failure = error.args[0]
            if failure.code() == ck.KafkaError.TOPIC_ALREADY_EXISTS and attempts > 1:
                # Created by an attempt that had no answer.
                return True
            if failure.code() == ck.KafkaError.INVALID_REPLICATION_FACTOR and "fenced" in failure.str():
                # The next heartbeat of a broker that was stopped ends that.
                return False
            raise
        return True

    _eventually(bootstrap_servers, create, f"creation of {name}")


def wait_for_leaders(bootstrap_servers: str, name: str, partitions: int) -> None:
    """Wait until the broker at ``bootstrap_servers`` names a leader for each of the partitions."""

    def known(client: AdminClient) -> bool:
        topic = client.list_topics(name, timeout=_ATTEMPT).topics[name]
        return (
            topic.error is None
            and len(topic.partitions) == partitions
            and all(partition.leader >= 0 for partition in topic.partitions.values())
        )

    _eventually(bootstrap_servers, known, f"leaders of {name}")


def wait_until_served(bootstrap_servers: str, name: str, partitions: int) -> None:
    """Wait until the leader of each partition answers ListOffsets.

    A broker names itself as the leader before its replica manager has the partition. It drops an acks=0 request that
    arrives in between and closes the connection, since no response could carry the error.
    """
    asked = {ck.TopicPartition(name, partition): OffsetSpec.latest() for partition in range(partitions)}

    def served(client: AdminClient) -> bool:
        try:
            for answer in client.list_offsets(asked, request_timeout=_ATTEMPT).values():
                answer.result(_ATTEMPT)
        except ck.KafkaException as error:
            if error.args[0].code() not in _NOT_SERVED_YET:
                raise
            return False
        return True

    _eventually(bootstrap_servers, served, f"leaders that serve {name}")


def delete_topic(bootstrap_servers: str, name: str) -> None:
    client = _client(bootstrap_servers)
    client.delete_topics([name], operation_timeout=_TIMEOUT)[name].result(_TIMEOUT)
    _eventually(bootstrap_servers, lambda client: name not in _topics(client), f"deletion of {name}")


def _topics(client: AdminClient) -> list[str]:
    return sorted(client.list_topics(timeout=_ATTEMPT).topics)


def topics(bootstrap_servers: str) -> list[str]:
    """Return the names of all topics, with internal ones."""
    return _ask(bootstrap_servers, _topics)


def leader(bootstrap_servers: str, topic: str, partition: int) -> int:
    return int(_ask(bootstrap_servers, lambda client: _partitions(client, topic))[partition].leader)


def in_sync_replicas(bootstrap_servers: str, topic: str, partition: int) -> list[int]:
    return sorted(_ask(bootstrap_servers, lambda client: _partitions(client, topic))[partition].isrs)


def wait_in_sync(bootstrap_servers: str, topic: str, timeout: float) -> None:
    def in_sync(client: AdminClient) -> bool:
        return all(set(each.isrs) == set(each.replicas) for each in _partitions(client, topic).values())

    _eventually(bootstrap_servers, in_sync, f"all replicas of {topic} in sync", timeout)


def move_leader(bootstrap_servers: str, topic: str, partition: int, node_id: int) -> None:
    """Put ``node_id`` first among the replicas, then hold a preferred election."""
    replicas = list(_ask(bootstrap_servers, lambda client: _partitions(client, topic))[partition].replicas)
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

        def reassigned(_: AdminClient) -> bool:
            return not client.list_partition_reassignments([chosen])

        def elected(listing: AdminClient) -> bool:
            # The node may not be in sync yet. Then it is not elected, and the request is repeated.
            client.elect_leaders(ElectionType.PREFERRED, {topic: [partition]}, raise_errors=False)
            return bool(_partitions(listing, topic)[partition].leader == node_id)

        _eventually(bootstrap_servers, reassigned, f"reassignment of {chosen}")
        _eventually(bootstrap_servers, elected, f"{topic}-{partition} led by {node_id}")
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
