"""The harness itself: other projects' clients work with it, and ``verify`` detects errors."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import psutil
import pytest
from confluent_kafka import KafkaError, Message, Producer

from aioproducer.testing import EmbeddedClusterThread
from tests.kafka import admin, mock
from tests.kafka.cluster import KafkaCluster, free_ports
from tests.kafka.consuming import StoredRecord
from tests.kafka.dump import StoredBatch, check_batches
from tests.kafka.ledger import Ledger, Place, verify
from tests.kafka.mock import MockCluster


def _foreign_producer(bootstrap_servers: str, **configuration: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "retry.backoff.ms": 20,
            "log_level": 0,
            **configuration,
        }
    )


def _produce(producer: Producer, ledger: Ledger, topic: str, partitions: int, count: int) -> None:
    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            ledger.ack(message.value(), Place(message.partition(), message.offset()))
        else:
            ledger.fail(message.value(), RuntimeError(error.str()))

    for number in range(count):
        producer.produce(topic, ledger.next_value(100), partition=number % partitions, on_delivery=on_delivery)
    assert producer.flush(30) == 0


def test_records_of_another_projects_producer_are_read_back_and_dumped(one_node: KafkaCluster, topic: str) -> None:
    one_node.create_topic(topic, 3)
    ledger = Ledger()
    _produce(_foreign_producer(one_node.bootstrap_servers, **{"compression.type": "zstd"}), ledger, topic, 3, 300)
    assert verify(ledger, one_node.read_back(topic)) == (300, 300, 0)
    batches = one_node.dump_log(topic, 0)
    check_batches(batches)
    assert sum(batch.count for batch in batches) == 100
    assert {batch.codec for batch in batches} == {"zstd"}


def test_both_tls_listeners_serve_another_projects_client(one_node: KafkaCluster, topic: str) -> None:
    one_node.create_topic(topic)
    certificates = one_node.certificates
    assert certificates is not None
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(certificates.authority)}
    both = {
        **tls,
        "ssl.certificate.location": str(certificates.client_certificate),
        "ssl.key.location": str(certificates.client_key),
    }
    ledger = Ledger()
    _produce(_foreign_producer(one_node.tls_bootstrap_servers, **tls), ledger, topic, 1, 5)
    _produce(_foreign_producer(one_node.mutual_tls_bootstrap_servers, **both), ledger, topic, 1, 5)
    assert verify(ledger, one_node.read_back(topic)).acked == 10


def _wait_for_leader(cluster: KafkaCluster, topic: str, is_wanted: Callable[[int], bool]) -> None:
    """Any broker is asked, and the last ones learn it later."""
    deadline = time.monotonic() + 30
    while not is_wanted(leader := cluster.leader(topic, 0)):
        assert time.monotonic() < deadline, leader


def test_leaders_can_be_moved_and_nodes_killed_and_restarted(three_nodes: KafkaCluster, topic: str) -> None:
    three_nodes.create_topic(topic)
    producer = _foreign_producer(three_nodes.bootstrap_servers)
    ledger = Ledger()
    _produce(producer, ledger, topic, 1, 50)
    old = three_nodes.leader(topic, 0)
    new = old % 3 + 1
    three_nodes.move_leader(topic, 0, new)
    _wait_for_leader(three_nodes, topic, lambda leader: leader == new)
    _produce(producer, ledger, topic, 1, 50)
    three_nodes.kill(new)
    try:
        _produce(producer, ledger, topic, 1, 50)
        _wait_for_leader(three_nodes, topic, lambda leader: leader != new)
    finally:
        three_nodes.restart(new)
    three_nodes.wait_in_sync(topic)
    assert verify(ledger, three_nodes.read_back(topic)) == (150, 150, 0)
    check_batches(three_nodes.dump_log(topic, 0))


def test_a_quota_slows_another_projects_producer(one_node: KafkaCluster, topic: str) -> None:
    one_node.create_topic(topic)
    throttled: list[float] = []
    producer = _foreign_producer(
        one_node.bootstrap_servers, **{"client.id": topic, "throttle_cb": lambda event: throttled.append(event)}
    )
    one_node.set_producer_quota(topic, 2000)
    try:
        deadline = time.monotonic() + 20
        while not throttled and time.monotonic() < deadline:
            producer.produce(topic, bytes(2000))
            producer.flush(5)
            producer.poll(0.1)
        assert throttled
    finally:
        one_node.set_producer_quota(topic, None)


def test_an_old_broker_stores_records(old_broker: KafkaCluster, topic: str) -> None:
    old_broker.create_topic(topic)
    ledger = Ledger()
    _produce(_foreign_producer(old_broker.bootstrap_servers), ledger, topic, 1, 10)
    assert verify(ledger, old_broker.read_back(topic)) == (10, 10, 0)
    check_batches(old_broker.dump_log(topic, 0))


def test_a_topic_is_created_by_another_client_after_one_that_was_told_of_no_broker(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setattr(admin, "_ATTEMPT", 1.0)
    with EmbeddedClusterThread() as cluster:
        # As Kafka's controller does with a broker whose heartbeats have stopped.
        cluster._call(lambda brokers: brokers.controller.fence(1))
        again = threading.Timer(
            0.5, cluster._call, [lambda brokers: brokers.controller.register(*brokers.controller.image.nodes.values())]
        )
        again.start()
        admin.create_topic(cluster.bootstrap_servers, topic, 2, 1, {})
        again.join()
        assert admin.topics(cluster.bootstrap_servers) == [topic]


def test_the_mock_injects_its_faults(mock_cluster: MockCluster, topic: str) -> None:
    mock_cluster.create_topic(topic, 2, 3)
    mock_cluster.limit_versions({mock.PRODUCE: 7, mock.METADATA: 7, mock.INIT_PRODUCER_ID: 1, mock.API_VERSIONS: 2})
    mock_cluster.push_errors(mock.PRODUCE, [6, mock.DISCONNECT, 7])
    ledger = Ledger()
    _produce(_foreign_producer(mock_cluster.bootstrap_servers), ledger, topic, 2, 100)
    assert verify(ledger, mock_cluster.read_back(topic), exactly_once=False, in_order=False).acked == 100
    produced = sum(count for (_, api_key), count in mock_cluster.requests().items() if api_key == mock.PRODUCE)
    assert produced >= 5


def _stored(*values: bytes) -> list[StoredRecord]:
    return [StoredRecord(offset, None, value, [], 0, 1) for offset, value in enumerate(values)]


def _resolved() -> tuple[Ledger, list[bytes]]:
    ledger = Ledger()
    values = [ledger.next_value() for _ in range(3)]
    for offset, value in enumerate(values):
        ledger.ack(value, Place(0, offset))
    return ledger, values


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/PID/maps")
def test_a_broker_maps_its_classes_from_an_archive(one_node: KafkaCluster) -> None:
    properties = str(one_node.nodes[1].properties_path)
    (broker,) = [each for each in psutil.Process().children() if properties in each.cmdline()]
    (option,) = [each for each in broker.cmdline() if each.startswith("-XX:SharedArchiveFile=")]
    assert option.partition("=")[2] in {mapped.path for mapped in broker.memory_maps()}


def test_verify_accepts_equal_outcomes() -> None:
    ledger, values = _resolved()
    assert verify(ledger, {0: _stored(*values)}) == (3, 3, 0)
    failed = ledger.next_value()
    ledger.fail(failed, TimeoutError())
    assert verify(ledger, {0: _stored(*values)}) == (3, 3, 0)
    assert verify(ledger, {0: _stored(*values, failed)}) == (3, 4, 1)
    assert verify(ledger, {0: _stored(*values, values[0])}, exactly_once=False) == (3, 4, 0)


def test_verify_detects_differences() -> None:
    ledger, values = _resolved()
    with pytest.raises(AssertionError, match="1 acknowledged records are lost"):
        verify(ledger, {0: _stored(*values[:2])})
    with pytest.raises(AssertionError, match="stored more than once"):
        verify(ledger, {0: _stored(*values, values[2])})
    with pytest.raises(AssertionError, match="record 0 stands behind 1"):
        verify(ledger, {0: _stored(values[1], values[0], values[2])})
    with pytest.raises(AssertionError, match="stands at"):
        verify(ledger, {1: _stored(*values)})
    with pytest.raises(AssertionError, match="never sent"):
        verify(ledger, {0: _stored(*values, b"sender:000000007:")})
    with pytest.raises(AssertionError, match="never sent"):
        verify(ledger, {0: _stored(*values, b"")})
    ledger.next_value()
    with pytest.raises(AssertionError, match="1 of 4 records of sender have no outcome"):
        verify(ledger, {0: _stored(*values)})


def _batch(base_offset: int, base_sequence: int, *, valid: bool = True, epoch: int = 0) -> StoredBatch:
    return StoredBatch(
        base_offset, base_offset + 9, 10, base_sequence, base_sequence + 9, 1000, epoch, 0, 100, "none", valid
    )


def test_check_batches_detects_gaps() -> None:
    check_batches([_batch(0, 0), _batch(10, 10), _batch(20, 0, epoch=1)])
    with pytest.raises(AssertionError, match="invalid"):
        check_batches([_batch(0, 0, valid=False)])
    with pytest.raises(AssertionError, match="sequence gap"):
        check_batches([_batch(0, 0), _batch(10, 20)])
    with pytest.raises(AssertionError, match="offset 10 expected"):
        check_batches([_batch(0, 0), _batch(11, 10)])


def test_listeners_of_one_cluster_have_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sockets that did not listen yet were once bound to one port, and a broker did not start."""
    candidates = iter([*free_ports(1) * 2, *free_ports(2)])
    monkeypatch.setattr("random.randrange", lambda *_: next(candidates))
    found = free_ports(2)
    assert len(set(found)) == 2
