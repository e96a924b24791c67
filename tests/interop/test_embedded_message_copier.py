"""Apache Kafka's TransactionalMessageCopier on three embedded brokers, of which some are killed and restarted."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from aioproducer.admin import Admin
from tests.kafka import jars
from tests.kafka.in_process import InProcessCluster
from tests.kafka.process import Process

pytestmark = pytest.mark.timeout(180)

MESSAGES = 10_000
OF_A_TRANSACTION = 100


class Copier:
    """A copier that aborts some of its transactions and copies their messages again."""

    def __init__(self, servers: str, source: str, target: str, log: Path) -> None:
        command = [jars.java(), "-Xmx256m", *jars.SHORT_LIVED, "-cp", f"{jars.resolve(jars.TOOLS)}/*"]
        command += ["org.apache.kafka.tools.TransactionalMessageCopier", "--broker-list", servers]
        command += ["--input-topic", source, "--input-partition", "0", "--output-topic", target]
        command += ["--consumer-group", source, "--transactional-id", source]
        command += ["--transaction-size", str(OF_A_TRANSACTION), "--enable-random-aborts", "--use-group-metadata"]
        self._process = Process(command, log)

    @property
    def remaining(self) -> int:
        """Number of messages that it has not copied yet, by its last report."""
        lines = [line for line in self._process.log.read_text().splitlines() if line.startswith("{")]
        return int(json.loads(lines[-1])["remaining"]) if lines else MESSAGES

    def wait_for(self, copied: int) -> None:
        """Wait until it has copied that many messages, but not all."""
        deadline = time.monotonic() + 60
        while MESSAGES - (remaining := self.remaining) < copied:
            assert self._process.returncode is None, self._process.tail()
            assert time.monotonic() < deadline, self._process.tail()
            time.sleep(0.01)
        assert remaining > 0, "it has copied all before a node was killed"

    def end(self) -> None:
        """Wait until it has copied all."""
        try:
            assert self._process.wait(90) == 0, self._process.tail()
        finally:
            self._process.kill()
        assert self.remaining == 0, self._process.tail()


def _fill(servers: str, topic: str) -> list[bytes]:
    values = [b"%d" % number for number in range(MESSAGES)]
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    return values


def _coordinator(servers: str, transactional_id: str) -> int:
    async def ask() -> int:
        async with Admin(bootstrap_servers=servers) as admin:
            (described,) = await admin.describe_transactions([transactional_id])
            return described.coordinator

    return asyncio.run(ask())


def test_all_messages_are_copied_once_although_nodes_restart(
    three_embedded: InProcessCluster, topic: str, tmp_path: Path
) -> None:
    source, target, servers = f"{topic}-in", f"{topic}-out", three_embedded.bootstrap_servers
    for each in (source, target):
        three_embedded.create_topic(each, 1)
    values = _fill(servers, source)
    copier = Copier(servers, source, target, tmp_path / "copier.log")
    for part, role in enumerate(("coordinator", "leader"), 1):
        copier.wait_for(part * MESSAGES // 4)
        node_id = _coordinator(servers, source) if role == "coordinator" else three_embedded.leader(target, 0)
        three_embedded.kill(node_id)
        time.sleep(0.5)
        three_embedded.restart(node_id)
        three_embedded.wait_in_sync(target)
    copier.end()
    copied = three_embedded.read_back(target, committed=True)[0]
    assert [record.value for record in copied] == values
    # Aborts leave records that only readers of uncommitted records see.
    assert len(three_embedded.read_back(target)[0]) > MESSAGES
