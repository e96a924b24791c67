"""The example of consume, transform, produce on Apache Kafka, with kills; confluent-kafka is the judge."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import confluent_kafka as ck
import pytest

from aioproducer.admin import Admin
from tests.exactly_once import EXAMPLE, check_results
from tests.kafka.cluster import KafkaCluster

PARTITIONS = 4
TIMEOUT = 120


class Service:
    """Instances of the example, and their topics; names are unique to the test."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self.group = f"shout-{uuid.uuid4().hex[:8]}"
        self.source = cluster.create_topic(f"{self.group}-lines", PARTITIONS)
        self.target = cluster.create_topic(f"{self.group}-shouted", 2)
        self.inputs: list[bytes] = []
        self._instances: dict[str, subprocess.Popen[str]] = {}
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
        self._producer = ck.Producer({**settings, "enable.idempotence": True})

    def start(self, instance: str) -> None:
        """Start an instance, and wait until it has ended what a former one has left open."""
        command = [sys.executable, str(EXAMPLE), self.source, self.target, "--group", self.group]
        command += ["--instance", f"{self.group}-{instance}", "--bootstrap-servers", self._cluster.bootstrap_servers]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._instances[instance] = process
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def kill(self, instance: str) -> None:
        """End an instance by SIGKILL."""
        process = self._instances.pop(instance)
        process.kill()
        with process:
            process.wait()

    def stop(self) -> None:
        """End every instance by SIGTERM; each ends without an error."""
        for process in self._instances.values():
            process.terminate()
        for process in self._instances.values():
            process.communicate(timeout=TIMEOUT)
            assert process.returncode == 0

    def close(self) -> None:
        """Leave no process behind."""
        for instance in list(self._instances):
            self.kill(instance)

    def send(self, count: int) -> None:
        """Write further inputs."""
        for number in range(len(self.inputs), len(self.inputs) + count):
            self.inputs.append(b"line-%05d" % number)
            self._producer.produce(self.source, self.inputs[-1], partition=number % PARTITIONS)
        assert self._producer.flush(TIMEOUT) == 0

    def wait_committed(self, count: int) -> None:
        """Wait until the group has committed ``count`` inputs."""
        asyncio.run(self._wait_committed(count))

    async def _wait_committed(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT), Admin(bootstrap_servers=self._cluster.bootstrap_servers) as admin:
            while True:
                offsets = (await admin.list_group_offsets([self.group]))[self.group]
                if sum(each.offset for each in offsets.values()) >= count:
                    return
                await asyncio.sleep(0.05)

    def check(self) -> None:
        """Compare what a reader of committed records sees with the inputs."""
        read = self._cluster.read_back(self.target, committed=True)
        check_results(self.inputs, [each.value or b"" for records in read.values() for each in records])


@pytest.fixture
def serving() -> Iterator[Callable[[KafkaCluster], Service]]:
    services: list[Service] = []

    def serve(cluster: KafkaCluster) -> Service:
        services.append(Service(cluster))
        return services[-1]

    yield serve
    for each in services:
        each.close()


def test_killed_instances_repeat_and_lose_nothing(
    one_node: KafkaCluster, serving: Callable[[KafkaCluster], Service]
) -> None:
    service = serving(one_node)
    service.start("a")
    service.start("b")
    service.send(500)
    service.wait_committed(500)
    for instance in "abab":
        # Killed while it works on these, at any point.
        service.send(500)
        service.kill(instance)
        service.start(instance)
    service.wait_committed(len(service.inputs))
    service.stop()
    service.check()


@pytest.mark.soak
def test_killed_brokers_and_instances_repeat_and_lose_nothing(
    three_nodes: KafkaCluster, serving: Callable[[KafkaCluster], Service]
) -> None:
    service = serving(three_nodes)
    for instance in "abc":
        service.start(instance)
    for round_ in range(6):
        service.send(2000)
        service.wait_committed(len(service.inputs) - 1500)
        node = 1 + round_ % 3
        three_nodes.kill(node)
        service.send(1000)
        instance = "abc"[round_ % 3]
        service.kill(instance)
        service.start(instance)
        three_nodes.restart(node)
        three_nodes.wait_in_sync(service.target)
    service.wait_committed(len(service.inputs))
    service.stop()
    service.check()
