"""Producers over RDMA, through a gateway, to Apache Kafka: the guest runs the producers and the gateway.

Kafka runs on this machine and advertises an address that the guest does not use: it reaches Kafka as 10.0.2.2. The
stored records are read here, by another project's consumer.
"""

from __future__ import annotations

import json
import os
import sys
import uuid

import pytest

from tests.kafka import jars
from tests.kafka.cluster import KafkaCluster
from tests.rdma import gateway_load
from tests.rdma.guest import machine

# Number of records over all codecs; more in a soak.
RECORDS = int(os.environ.get("AIOPRODUCER_RDMA_RECORDS", "10000"))

# An emulated machine takes a minute, and three times as long if other work leaves it only a part of a processor.
_LIMIT_SECONDS = 420 + RECORDS / 500

pytestmark = pytest.mark.timeout(_LIMIT_SECONDS + 240)


@pytest.fixture(scope="module")
def cluster():
    if os.environ.get("AIOPRODUCER_TEST_GUEST") != "1":
        pytest.skip("`make test-rdma` runs this: it boots a guest, and downloads one at first")
    properties = {"message.max.bytes": "2000000", "auto.create.topics.enable": "false"}
    try:
        with KafkaCluster(properties=properties) as started:
            yield started
    except jars.HarnessUnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def steps(cluster):
    """The guest's output for each of its steps; the topics can be read by every test."""
    prefix = f"topic-{uuid.uuid4().hex[:8]}"
    for name in (*gateway_load.CODECS, "restarts", "killed"):
        cluster.create_topic(gateway_load.topic_of(prefix, name), gateway_load.PARTITIONS)
    port = cluster.nodes[1].port["PLAINTEXT"]
    said = bytearray()

    def hear(data: bytes) -> None:
        said.extend(data)
        # Shown for a failed test, and at once with `pytest -s`.
        print(data.decode(errors="replace"), end="", flush=True)

    command = [sys.executable, "-X", "faulthandler", "-m", "tests.rdma.gateway_load"]
    arguments = [f"10.0.2.2:{port}", cluster.bootstrap_servers, prefix, str(RECORDS)]
    code = machine.run([*command, *arguments], limit=_LIMIT_SECONDS, output=hear)
    text = said.decode(errors="replace")
    assert code == 0, text
    told = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {"prefix": prefix} | {step["step"]: step for step in told}


def read(cluster, steps, name, at_least=0):
    topic = gateway_load.topic_of(steps["prefix"], name)
    return cluster.read_back(topic, at_least=at_least, timeout=120)


def check_each_once_in_order(found, values):
    for partition in range(gateway_load.PARTITIONS):
        expected = values[partition :: gateway_load.PARTITIONS]
        # Not compared as lists: their difference would be a text of megabytes.
        assert len(found[partition]) == len(expected), partition
        for record, value in zip(found[partition], expected, strict=True):
            assert record.value == value, (partition, record.offset)


@pytest.mark.parametrize("codec", gateway_load.CODECS)
def test_every_record_is_there_once_in_order(cluster, steps, codec):
    values = [gateway_load.small_value(number) for number in range(RECORDS // len(gateway_load.CODECS))]
    values += [gateway_load.large_value(codec, number) for number in range(gateway_load.LARGE_COUNT)]
    assert steps[codec]["sent"] == len(values)
    check_each_once_in_order(read(cluster, steps, codec), values)


@pytest.mark.parametrize("codec", gateway_load.CODECS)
def test_records_are_copied_as_rarely_as_possible(steps, codec):
    """Uncompressed records are not copied, compressed ones only once."""
    copies = steps[codec]["bytes_copied"] / steps[codec]["bytes_sent"]
    assert copies < 0.05 if codec == "none" else copies <= 1


def test_a_restarted_gateway_loses_nothing_under_load(cluster, steps):
    assert steps["restarts"]["lost_connections"] >= gateway_load.RESTARTS
    values = [gateway_load.small_value(number) for number in range(gateway_load.RESTART_RECORDS)]
    assert steps["restarts"]["sent"] == len(values)
    check_each_once_in_order(read(cluster, steps, "restarts"), values)


def test_acknowledged_records_of_a_killed_producer_are_stored(cluster, steps):
    """The stored records are a prefix of the sent ones, and contain all acknowledged ones."""
    acknowledged = steps["killed"]["acknowledged"]
    assert acknowledged >= gateway_load.KILLED_AFTER
    for partition, found in read(cluster, steps, "killed").items():
        assert len(found) >= len(range(partition, acknowledged, gateway_load.PARTITIONS))
        numbers = range(partition, partition + len(found) * gateway_load.PARTITIONS, gateway_load.PARTITIONS)
        assert [record.value for record in found] == [gateway_load.small_value(number) for number in numbers]


def test_the_gateway_ends_on_sigterm(steps):
    assert "stopped; 0 clients" in steps["stopped"]["said"]
    assert "Traceback" not in steps["stopped"]["said"]
