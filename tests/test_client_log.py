"""Log lines identify the client in a process with several."""

from __future__ import annotations

import logging

import pytest

from aioproducer import Producer
from aioproducer._common.client_log import ClientLog
from aioproducer.admin import Admin
from aioproducer.consumer.reader import Reader
from aioproducer.errors import KafkaError
from aioproducer.testing import EmbeddedCluster
from tests.waiting import until

NOWHERE = "127.0.0.1:1"

pytestmark = pytest.mark.kafka_cluster(transport="memory")


class FailingHook:
    def on_ready(self, node: object, duration_ms: float) -> None:
        raise ZeroDivisionError


class FailingInterceptor:
    def on_send(self, record: object) -> object:
        raise ZeroDivisionError


def test_a_log_line_starts_with_the_client_and_keeps_its_source_location(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog("Producer", "100%s\n")
    log.warning("%d of %s", 3, "%d")
    log.error("50% done")
    log.debug("not enabled: %s", 1)
    assert caplog.messages == [
        r"[Producer clientId=100%s\n] 3 of %d",
        r"[Producer clientId=100%s\n] 50% done",
    ]
    assert {(record.name, record.filename) for record in caplog.records} == {("aioproducer", "test_client_log.py")}
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        log.exception("failed")
    assert caplog.records[-1].exc_info is not None


async def test_log_lines_of_producer_nodes_hooks_and_interceptors_name_the_client(
    kafka_cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "aioproducer")
    kafka_cluster.create_topic("topic")
    async with (
        kafka_cluster.producer(client_id="a", hooks=[FailingHook()], interceptor_classes=[FailingInterceptor]) as first,
        Producer(bootstrap_servers=NOWHERE, client_id="b", max_block_ms=1) as second,
    ):
        await first.send("topic", b"v")
        with pytest.raises(KafkaError):
            await second.send("topic", b"v")
        await until(lambda: any("Nothing listens" in message for message in caplog.messages))
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("aioproducer")]
    lines = [line for line in lines if not line.startswith("[Producer clientId=a] ")]
    lines = [line for line in lines if not line.startswith("[Producer clientId=b] ")]
    assert lines == []
    for text in (
        "[Producer clientId=a] Broker",
        "[Producer clientId=a] hook FailingHook.on_ready failed",
        "[Producer clientId=a] interceptor FailingInterceptor failed in on_send",
        "[Producer clientId=b] Broker",
        "[Producer clientId=b] 1 record for topic failed",
    ):
        assert any(message.startswith(text) for message in caplog.messages), text


async def test_log_lines_of_admins_and_readers_name_their_kind(caplog: pytest.LogCaptureFixture) -> None:
    async with Admin(bootstrap_servers=NOWHERE, client_id="c", timeout=0.05) as admin:
        with pytest.raises(KafkaError):
            await admin.list_topics()
    with pytest.raises(KafkaError):
        await Reader("topic", bootstrap_servers=NOWHERE, client_id="d", timeout=0.05).start()
    assert any(message.startswith("[AdminClient clientId=c] Broker") for message in caplog.messages)
    assert any(message.startswith("[Consumer clientId=d] Broker") for message in caplog.messages)
