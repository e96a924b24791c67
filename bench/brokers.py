"""Apache Kafka for the bench: starting, warming up, creating topics, and counting stored records."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psutil
from confluent_kafka import KafkaException

from tests.kafka.cluster import ClusterError, KafkaCluster

# Its just-in-time compiler, garbage collector and threads have their defaults, unlike in the tests.
JVM = ("-Xms1g", "-Xmx1g")
# Creating topics: the controller takes at most 10,000 metadata records in one request.
TOPICS_A_REQUEST = 500
LONGEST_CREATION = 300.0
# A broker maps two index files of 10 MiB for each partition. Faults in 40,000 of them read so far ahead that the page
# cache thrashes, and a produce request then takes seconds.
SMALL_INDEXES = {"segment.index.bytes": "65536"}


class BrokerError(Exception):
    """A broker did not carry out an operation of the bench."""


class Brokers:
    """Brokers that store records on disk, with one replica of each partition."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap_servers
        # Found by the file on each broker's command line.
        files = {str(node.properties_path) for node in cluster.nodes.values()}
        self._processes = [child for child in psutil.Process().children() if files & set(child.cmdline())]
        if len(self._processes) != len(files):
            raise BrokerError(f"{len(self._processes)} of {len(files)} processes of brokers were found")
        self._many: set[str] = set()

    def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, and wait until its leaders are known."""
        with _broker_errors():
            self._cluster.create_topic(topic, partitions, replication_factor=1, config=config)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until metadata no longer lists it."""
        with _broker_errors():
            self._cluster.delete_topic(topic)

    def cpu_seconds(self) -> float:
        """Return the user and system CPU time of all brokers so far."""
        used = [process.cpu_times() for process in self._processes]
        return sum(one.user + one.system for one in used)

    def create_many(self, prefix: str, topics: int, partitions: int) -> list[str]:
        """Return the names of ``topics`` topics, which the first call creates."""
        names = [f"{prefix}-{number}" for number in range(topics)]
        if not self._many >= set(names):
            with _broker_errors():
                self._create_missing(names, partitions)
        return names

    def _create_missing(self, names: list[str], partitions: int) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for start in range(0, len(names), TOPICS_A_REQUEST):
            wanted = [name for name in names[start : start + TOPICS_A_REQUEST] if name not in self._many]
            if not wanted:
                continue
            made = client.create_topics(
                [
                    NewTopic(name, num_partitions=partitions, replication_factor=1, config=SMALL_INDEXES)
                    for name in wanted
                ],
                operation_timeout=120,
                request_timeout=120,
            )
            for name in wanted:
                made[name].result(120)
            self._many |= set(wanted)
        # Brokers create the partitions' files long after the controller's response.
        deadline = time.monotonic() + LONGEST_CREATION
        while True:
            try:
                self.stored(names, partitions)
                return
            except BrokerError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def stored(self, topics: list[str], partitions: int) -> int:
        """Return the number of records in the topics, by their offsets."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient, OffsetSpec

        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        wanted = {
            TopicPartition(topic, number): OffsetSpec.latest() for topic in topics for number in range(partitions)
        }
        with _broker_errors():
            found = client.list_offsets(wanted, request_timeout=120)
            return sum(future.result(120).offset for future in found.values())


@contextmanager
def _broker_errors() -> Iterator[None]:
    try:
        yield
    except (KafkaException, ClusterError, TimeoutError) as error:
        raise BrokerError(str(error)) from error


@contextmanager
def brokers(count: int, properties: Mapping[str, str] | None = None) -> Iterator[Brokers]:
    """Run brokers during the block; ``properties`` are set on each of them."""
    with KafkaCluster(count, jvm_options=JVM, properties=properties) as cluster:
        yield Brokers(cluster)
