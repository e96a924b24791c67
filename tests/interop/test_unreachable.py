"""No broker, a wrong port, a wrong certificate, a slow broker: the time until the error, and its text."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from aioproducer import Producer
from aioproducer.core.outcomes.delivery import Delivery
from aioproducer.errors import DeliveryTimeoutError, KafkaTimeoutError, MetadataTimeoutError
from tests.kafka.certificates import Certificates
from tests.kafka.cluster import KafkaCluster
from tests.kafka.ledger import verify
from tests.kafka.load import Load
from tests.kafka.mock import MockCluster
from tests.waiting import until


async def test_a_closed_port_fails_records_in_time(closed_port: int) -> None:
    began = time.monotonic()
    producer = Producer(bootstrap_servers=f"127.0.0.1:{closed_port}", max_block_ms=1000)
    await producer.start()
    with pytest.raises(MetadataTimeoutError, match=f"127.0.0.1:{closed_port}"):
        await producer.send("any", b"v")
    assert 0.9 < time.monotonic() - began < 10
    with pytest.raises(KafkaTimeoutError, match=f"127.0.0.1:{closed_port}"):
        await producer.wait_ready(0.2)
    waiting = producer.send("any", b"v")
    began = time.monotonic()
    await producer.close(5)
    assert time.monotonic() - began < 10
    assert waiting.exception() is not None


async def test_a_silent_port_fails_records_in_time(silent_port: int) -> None:
    producer = Producer(bootstrap_servers=f"127.0.0.1:{silent_port}", max_block_ms=30_000)
    await producer.start()
    waiting = producer.send("any", b"v")
    began = time.monotonic()
    await producer.close(1)
    assert 0.5 < time.monotonic() - began < 10
    assert waiting.exception() is not None


async def test_an_exception_in_the_block_closes_within_a_short_time(closed_port: int) -> None:
    deliveries: list[Delivery] = []

    async def fail_inside() -> None:
        async with Producer(bootstrap_servers=f"127.0.0.1:{closed_port}") as producer:
            deliveries.append(producer.send("any", b"v"))
            raise ZeroDivisionError

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        await fail_inside()
    assert time.monotonic() - began < 10
    assert deliveries[0].exception() is not None


async def test_records_fail_in_time_when_a_cluster_stays_down(mock_cluster: MockCluster, topic: str) -> None:
    mock_cluster.create_topic(topic)
    failures: list[int] = []
    async with Producer(
        bootstrap_servers=mock_cluster.bootstrap_servers,
        delivery_timeout_ms=1500,
        request_timeout_ms=1000,
        on_error=lambda place, count, error: failures.append(count),
    ) as producer:
        await producer.send(topic, b"v")
        mock_cluster.set_down()
        began = time.monotonic()
        deliveries = [producer.send(topic, b"v") for _ in range(10)]
        with pytest.raises(DeliveryTimeoutError, match="delivery_timeout_ms"):
            await deliveries[0]
        assert 1.4 < time.monotonic() - began < 10
        outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {DeliveryTimeoutError}
    assert sum(failures) == 10


async def test_a_cluster_that_restarts_receives_all_records(mock_cluster: MockCluster, topic: str) -> None:
    mock_cluster.create_topic(topic, 3, 3)
    async with Producer(bootstrap_servers=mock_cluster.bootstrap_servers, request_timeout_ms=2000) as producer:
        load = Load(producer, topic, 3)
        async with load.running():
            await load.more(50)
            mock_cluster.set_down()
            await asyncio.sleep(0.5)
            mock_cluster.set_up()
            await load.more(50)
    assert not load.ledger.failed
    verify(load.ledger, mock_cluster.read_back(topic), exactly_once=False)


async def test_close_is_bounded_when_the_cluster_is_down(mock_cluster: MockCluster, topic: str) -> None:
    mock_cluster.create_topic(topic)
    producer = Producer(bootstrap_servers=mock_cluster.bootstrap_servers)
    await producer.start()
    await producer.send(topic, b"v")
    mock_cluster.set_down()
    deliveries = [producer.send(topic, b"v") for _ in range(10)]
    began = time.monotonic()
    await producer.close(1)
    assert 0.5 < time.monotonic() - began < 10
    assert all(delivery.exception() is not None for delivery in deliveries)


async def test_a_quota_slows_the_producer_and_loses_nothing(one_node: KafkaCluster, topic: str) -> None:
    await asyncio.to_thread(one_node.create_topic, topic)
    await asyncio.to_thread(one_node.set_producer_quota, topic, 50_000)
    try:
        async with Producer(
            bootstrap_servers=one_node.bootstrap_servers, client_id=topic, batch_size=20_000
        ) as producer:
            load = Load(producer, topic, size=1000)
            began = time.monotonic()
            # The broker measures over 11 seconds: a higher rate within them is answered with a throttle time. Before it
            # has applied the quota, it measures nothing.
            async with asyncio.timeout(60):
                while not producer.metrics()["produce-throttle-time-max"] > 0:
                    await load.send(600)
                    ledger = await load.finish()
            assert time.monotonic() - began > 0.3
    finally:
        await asyncio.to_thread(one_node.set_producer_quota, topic, None)
    assert verify(ledger, one_node.read_back(topic)) == (ledger.sent, ledger.sent, 0)


# TLS


def _certificates(cluster: KafkaCluster) -> Certificates:
    assert cluster.certificates is not None
    return cluster.certificates


async def _send(topic: str, **configuration: Any) -> None:
    async with Producer(**configuration) as producer:
        load = Load(producer, topic, size=2000)
        await load.send(300)
        ledger = await load.finish()
    assert not ledger.failed, next(iter(ledger.failed.values()))


async def test_records_are_stored_over_tls(one_node: KafkaCluster, topic: str) -> None:
    await asyncio.to_thread(one_node.create_topic, topic)
    await _send(
        topic,
        bootstrap_servers=one_node.tls_bootstrap_servers,
        security_protocol="SSL",
        ssl_truststore_location=str(_certificates(one_node).authority),
    )
    assert len(one_node.read_back(topic)[0]) == 300


async def test_mutual_tls_reads_certificates_from_files(one_node: KafkaCluster, topic: str) -> None:
    await asyncio.to_thread(one_node.create_topic, topic)
    await _send(
        topic,
        bootstrap_servers=one_node.mutual_tls_bootstrap_servers,
        security_protocol="SSL",
        ssl_truststore_location=str(_certificates(one_node).authority),
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(_certificates(one_node).client_keystore),
    )
    assert len(one_node.read_back(topic)[0]) == 300


async def test_mutual_tls_reads_certificates_from_the_configuration(one_node: KafkaCluster, topic: str) -> None:
    """The keys have certificates as values (KIP-651)."""
    await asyncio.to_thread(one_node.create_topic, topic)
    certificates = _certificates(one_node)
    await _send(
        topic,
        bootstrap_servers=one_node.mutual_tls_bootstrap_servers,
        security_protocol="SSL",
        ssl_truststore_type="PEM",
        ssl_truststore_certificates=certificates.authority.read_text(),
        ssl_keystore_type="PEM",
        ssl_keystore_certificate_chain=certificates.client_certificate.read_text(),
        ssl_keystore_key=certificates.client_key.read_text(),
    )
    assert len(one_node.read_back(topic)[0]) == 300


async def _refusal(address: str, **configuration: Any) -> str:
    """Return the error's text of a producer that cannot connect."""
    producer = Producer(bootstrap_servers=address, max_block_ms=1000, **configuration)
    await producer.start()
    try:
        # A busy broker may take longer to refuse than max_block_ms.
        await until(lambda: producer.connection_error, 30, pause=0.01)
        with pytest.raises(KafkaTimeoutError) as refusal:
            await producer.send("any", b"v")
    finally:
        await producer.close(0)
    return str(refusal.value)


async def test_a_host_name_mismatch_is_reported(one_node: KafkaCluster) -> None:
    address = f"127.0.0.1:{one_node.nodes[1].port['SSL']}"
    trusted: dict[str, Path | str] = {
        "security_protocol": "SSL",
        "ssl_truststore_location": str(_certificates(one_node).authority),
    }
    text = await _refusal(address, **trusted)
    assert address in text
    assert "issued for another" in text
    producer = Producer(bootstrap_servers=address, ssl_endpoint_identification_algorithm="", **trusted)
    async with producer:
        await producer.wait_ready(10)


async def test_an_unknown_authority_is_reported(one_node: KafkaCluster) -> None:
    text = await _refusal(
        one_node.tls_bootstrap_servers,
        security_protocol="SSL",
        ssl_truststore_location=str(_certificates(one_node).other_authority),
    )
    assert "ssl_truststore_location" in text


async def test_a_missing_client_certificate_is_reported(one_node: KafkaCluster) -> None:
    text = await _refusal(
        one_node.mutual_tls_bootstrap_servers,
        security_protocol="SSL",
        ssl_truststore_location=str(_certificates(one_node).authority),
    )
    assert "certificate" in text


async def test_a_plaintext_client_on_a_tls_port_is_reported(one_node: KafkaCluster) -> None:
    text = await _refusal(one_node.tls_bootstrap_servers)
    assert "security_protocol" in text
    assert "SSL" in text


async def test_a_tls_client_on_a_plaintext_port_is_reported(one_node: KafkaCluster) -> None:
    text = await _refusal(
        one_node.bootstrap_servers,
        security_protocol="SSL",
        ssl_truststore_location=str(_certificates(one_node).authority),
    )
    assert "security_protocol" in text
    assert "PLAINTEXT" in text
