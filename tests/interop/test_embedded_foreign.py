"""Clients of other projects on the embedded broker: each reads the records of all of them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

import aiokafka
import aiokafka.admin.config_resource
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType

from tests.kafka import jars
from tests.kafka.embedded import EmbeddedProcess

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas by a function of importlib.resources that CPython 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

TOPIC = "foreign"
PARTITIONS = 3
COUNT = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Values = dict[int, list[bytes]]
"""Values in their order, by partition."""


def _values(writer: str) -> list[bytes]:
    return [b"%s:%04d" % (writer.encode(), number) for number in range(COUNT)]


# Writers: each sends its values in order; those that choose partitions spread them.


def _confluent(idempotent: bool, codec: str) -> Callable[[str, str], None]:
    def write(bootstrap_servers: str, writer: str) -> None:
        failures: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": idempotent,
                "acks": "all" if idempotent else 1,
                "compression.type": codec,
                "linger.ms": 5,
            }
        )
        for number, value in enumerate(_values(writer)):
            producer.produce(
                TOPIC,
                value,
                partition=number % PARTITIONS,
                on_delivery=lambda error, _message: failures.append(error) if error else None,
            )
        assert producer.flush(30) == 0
        assert not failures

    return write


def _aiokafka(idempotent: bool, codec: str | None) -> Callable[[str, str], None]:
    async def send(bootstrap_servers: str, writer: str) -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers, enable_idempotence=idempotent, compression_type=codec
        ) as producer:
            sent = [
                await producer.send(TOPIC, value, partition=number % PARTITIONS)
                for number, value in enumerate(_values(writer))
            ]
            await asyncio.gather(*sent)

    return lambda bootstrap_servers, writer: asyncio.run(send(bootstrap_servers, writer))


def _kafka_python(idempotent: bool, codec: str | None) -> Callable[[str, str], None]:
    def write(bootstrap_servers: str, writer: str) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap_servers,
            enable_idempotence=idempotent,
            acks="all" if idempotent else 1,
            compression_type=codec,
        )
        try:
            sent = [
                producer.send(TOPIC, value, partition=number % PARTITIONS)
                for number, value in enumerate(_values(writer))
            ]
            for future in sent:
                future.get(30)
        finally:
            producer.close(5)

    return write


def _java(main: str, *arguments: str, text: str | None = None) -> str:
    """Return the output of one of Kafka's tools."""
    classpath = f"{jars.resolve(jars.TOOLS)}/*"
    command = [jars.java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath, main]
    run = subprocess.run(
        [*command, *arguments], input=text or "", capture_output=True, text=True, timeout=90, check=False
    )
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    return run.stdout


def _console_producer(codec: str) -> Callable[[str, str], None]:
    def write(bootstrap_servers: str, writer: str) -> None:
        _java(
            "org.apache.kafka.tools.ConsoleProducer",
            *("--bootstrap-server", bootstrap_servers, "--topic", TOPIC, "--compression-codec", codec),
            text="".join(f"{value.decode()}\n" for value in _values(writer)),
        )

    return write


def _verifiable_producer(bootstrap_servers: str, _writer: str) -> None:
    output = _java(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--bootstrap-server", bootstrap_servers, "--topic", TOPIC, "--max-messages", str(COUNT), "--acks", "-1"),
        # Prefix of the numbers of its records.
        *("--value-prefix", "77"),
    )
    said = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    (total,) = [event for event in said if event["name"] == "tool_data"]
    assert (total["sent"], total["acked"]) == (COUNT, COUNT)


WRITERS: dict[str, Callable[[str, str], None]] = {
    **{f"confluent-{codec}": _confluent(True, codec) for codec in CODECS},
    "confluent-plain": _confluent(False, "none"),
    "aiokafka-idempotent": _aiokafka(True, None),
    **{f"aiokafka-{codec}": _aiokafka(False, codec) for codec in CODECS[1:]},
    "kafka-python-idempotent": _kafka_python(True, None),
    **{f"kafka-python-{codec}": _kafka_python(False, codec) for codec in CODECS[1:]},
    "ConsoleProducer": _console_producer("none"),
    "ConsoleProducer-zstd": _console_producer("zstd"),
    "VerifiableProducer": _verifiable_producer,
}


def _written_by(writer: str) -> list[bytes]:
    if writer == "VerifiableProducer":
        return [b"77.%d" % number for number in range(COUNT)]
    return _values(writer)


EXPECTED = sorted(value for writer in WRITERS for value in _written_by(writer))


# Readers: each reads all from the beginning, most of them as the only member of a group.


def _confluent_reader(bootstrap_servers: str, group: str = "confluent") -> Values:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    found: Values = {}
    deadline = time.monotonic() + 60
    try:
        consumer.subscribe([TOPIC])
        while sum(map(len, found.values())) < len(EXPECTED):
            assert time.monotonic() < deadline, {number: len(values) for number, values in found.items()}
            for message in consumer.consume(1000, timeout=0.5):
                if message.error() is not None:
                    raise KafkaException(message.error())
                partition, value = message.partition(), message.value()
                assert partition is not None
                assert value is not None
                found.setdefault(partition, []).append(value)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def _aiokafka_reader(bootstrap_servers: str) -> Values:
    async def read() -> Values:
        found: Values = {}
        async with (
            asyncio.timeout(60),
            aiokafka.AIOKafkaConsumer(
                TOPIC, bootstrap_servers=bootstrap_servers, group_id="aiokafka", auto_offset_reset="earliest"
            ) as consumer,
        ):
            while sum(map(len, found.values())) < len(EXPECTED):
                for place, records in (await consumer.getmany(timeout_ms=500)).items():
                    found.setdefault(place.partition, []).extend(record.value for record in records)
            await consumer.commit()
        return found

    return asyncio.run(read())


def _kafka_python_reader(bootstrap_servers: str) -> Values:
    consumer = kafka.KafkaConsumer(
        TOPIC, bootstrap_servers=bootstrap_servers, group_id="kafka-python", auto_offset_reset="earliest"
    )
    found: Values = {}
    deadline = time.monotonic() + 60
    try:
        while sum(map(len, found.values())) < len(EXPECTED):
            assert time.monotonic() < deadline, {number: len(values) for number, values in found.items()}
            for place, records in consumer.poll(timeout_ms=500).items():
                found.setdefault(place.partition, []).extend(record.value for record in records)
        consumer.commit()
    finally:
        consumer.close()
    return found


def _console_consumer(*arguments: str) -> Callable[[str], Values]:
    def read(bootstrap_servers: str) -> Values:
        output = _java(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", bootstrap_servers, "--topic", TOPIC, "--from-beginning"),
            *("--max-messages", str(len(EXPECTED)), "--timeout-ms", "30000"),
            *("--formatter-property", "print.partition=true"),
            *arguments,
        )
        found: Values = {}
        for line in output.splitlines():
            partition, value = line.removeprefix("Partition:").split("\t", 1)
            found.setdefault(int(partition), []).append(value.encode())
        return found

    return read


READERS: dict[str, Callable[[str], Values]] = {
    "confluent-kafka": _confluent_reader,
    "aiokafka": _aiokafka_reader,
    "kafka-python": _kafka_python_reader,
    "ConsoleConsumer": _console_consumer(),
    "ConsoleConsumer-group": _console_consumer("--group", "console"),
}


class Written:
    """A cluster, and the writers that have written to it."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._done: set[str] = set()

    def by(self, writers: Sequence[str]) -> None:
        """Run the writers that have not written yet."""
        for writer in writers:
            if writer not in self._done:
                WRITERS[writer](self.bootstrap_servers, writer)
                self._done.add(writer)


@pytest.fixture(scope="module")
def written() -> Iterator[Written]:
    """Three nodes in a separate process."""
    properties = {"min.insync.replicas": "2", "group.initial.rebalance.delay.ms": "0"}
    with EmbeddedProcess(3, properties=properties) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        yield Written(cluster.bootstrap_servers)


@pytest.mark.parametrize("writer", WRITERS)
def test_each_client_writes(written: Written, writer: str) -> None:
    """Each writer raises the errors of its records; the readers' tests compare the values."""
    written.by([writer])


@pytest.mark.parametrize("reader", READERS)
def test_each_client_reads_the_records_of_all(written: Written, reader: str) -> None:
    written.by(list(WRITERS))
    found = READERS[reader](written.bootstrap_servers)
    assert sorted(value for values in found.values() for value in values) == EXPECTED
    for values in found.values():
        for writer in WRITERS:
            own = _written_by(writer)
            mine = set(own)
            stored = [own.index(value) for value in values if value in mine]
            assert stored == sorted(stored), f"{writer}'s records are out of order"


def test_groups_offsets_are_read_by_another_client(written: Written) -> None:
    written.by(list(WRITERS))
    found = _confluent_reader(written.bootstrap_servers, "confluent-offsets")
    ends = {partition: len(values) for partition, values in found.items()}
    other = kafka.KafkaConsumer(bootstrap_servers=written.bootstrap_servers, group_id="confluent-offsets")
    try:
        places = [kafka.TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        assert {place.partition: other.committed(place) for place in places} == ends
    finally:
        other.close()


# aiokafka sets a topic's configurations only by AlterConfigs, which removes keys that are not named.


def _confluent_sets(bootstrap_servers: str, topic: str, configs: dict[str, str]) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config=configs)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    with pytest.warns(DeprecationWarning, match="incremental_alter_configs"):
        (outcome,) = admin.alter_configs([resource]).values()
    outcome.result(30)


def _aiokafka_sets(bootstrap_servers: str, topic: str, configs: dict[str, str]) -> None:
    async def alter() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
        await admin.start()
        try:
            resource = aiokafka.admin.config_resource.ConfigResource(
                aiokafka.admin.config_resource.ConfigResourceType.TOPIC, topic, configs
            )
            (response,) = await admin.alter_configs([resource])
        finally:
            await admin.close()
        assert [answer[0] for answer in response.resources] == [0], response

    asyncio.run(alter())


@pytest.mark.parametrize("setter", [_confluent_sets, _aiokafka_sets])
def test_configurations_are_set_by_alter_configs(
    setter: Callable[[str, str, dict[str, str]], None],
) -> None:
    with EmbeddedProcess(1) as cluster:
        cluster.create_topic("t", 1)

        def configuration() -> dict[str, str]:
            resource = ConfigResource(ResourceType.TOPIC, "t")
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
            (outcome,) = admin.describe_configs([resource]).values()
            set_for_topic = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
            return {name: entry.value for name, entry in outcome.result(30).items() if entry.source == set_for_topic}

        setter(cluster.bootstrap_servers, "t", {"retention.ms": "86400000", "flush.ms": "7"})
        assert configuration() == {"retention.ms": "86400000", "flush.ms": "7"}
        setter(cluster.bootstrap_servers, "t", {"flush.ms": "8"})
        assert configuration() == {"flush.ms": "8"}
