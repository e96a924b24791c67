"""Apache Kafka on this machine: KRaft nodes, each broker and controller in one JVM."""

from __future__ import annotations

import base64
import errno
import os
import random
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.kafka import admin, class_archive, consuming, dump, jars
from tests.kafka.certificates import Certificates
from tests.kafka.process import Process, Startable

# C1 alone and the serial collector: a broker opens its port in about 2 s and leaves the second core to the clients.
QUICK_JVM = ("-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_LOGGING = {
    "org.slf4j.simpleLogger.defaultLogLevel": "warn",
    "org.slf4j.simpleLogger.showDateTime": "true",
    "org.slf4j.simpleLogger.dateTimeFormat": "HH:mm:ss.SSS",
}
# kafka-server 4.x contains log4j's API without a configuration.
_LOGGING_OPTIONS = tuple(f"-D{key}={value}" for key, value in _LOGGING.items())

# Tests write timestamps of any year. The default retention would delete such records, every five minutes: a test would
# rarely lose some of its records.
KEEP_RECORDS = {"log.retention.ms": "-1"}

_DEFAULTS = {
    **KEEP_RECORDS,
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.enable": "false",
    "auto.leader.rebalance.enable": "false",
    # A killed broker is noticed after seconds instead of Kafka's 9 s, and a dead controller replaced at once.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1500",
    "controller.quorum.election.backoff.max.ms": "200",
    "controller.quorum.request.timeout.ms": "1000",
}

_TLS_LISTENERS = {"SSL": "SSL", "MUTUAL": "SSL"}


class ClusterError(Exception):
    """A broker did not carry out a test's operation; the text ends with the broker's log."""


class Node:
    """One broker: its ports, its folder and, while it runs, its process."""

    def __init__(self, node_id: int, folder: Path, ports: Mapping[str, int]) -> None:
        self.id = node_id
        self.folder = folder
        self.log_dir = folder / "data"
        self.properties_path = folder / "server.properties"
        self.process: Process | None = None
        self.port = dict(ports)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def server_log(self) -> Path:
        return self.folder / "server.log"


def free_ports(count: int) -> list[int]:
    """Return free ports outside the range of outgoing connections, which could take a port while its broker is down.

    Each process of pytest-xdist has a separate range, and a process without pytest-xdist has the last one.
    AIOPRODUCER_PORT_RANGE is the range of the first process, if two runs of pytest-xdist share a machine.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    first = int(os.environ.get("AIOPRODUCER_PORT_RANGE", "0"))
    process = 7 if worker is None else (first + int(worker.removeprefix("gw"))) % 8
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            candidate = random.randrange(10_000 + 2_750 * process, 12_750 + 2_750 * process)
            if candidate in found:
                # With the option below, Linux binds two sockets to one port if they do not listen yet.
                continue
            listening = held.enter_context(socket.socket())
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind(("127.0.0.1", candidate))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                found.append(candidate)
    return found


class KafkaCluster(Startable):
    """A cluster of ``nodes`` Apache Kafka brokers; a context manager.

    ``properties`` are set on every broker, over the defaults here; ``{node}`` in a value is its id. With ``tls`` each
    broker also has a TLS listener and one that requires the client's certificate, see ``tls_bootstrap_servers``.
    ``listeners`` are further ones: names and their security protocols; see ``listener_bootstrap_servers``. ``features``
    are levels to format with, such as ``{"transaction.version": 1}``; the others have the newest.

    ``start`` raises ``jars.HarnessUnavailableError`` if Java or the jars are missing.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        version: str = jars.NEWEST,
        properties: Mapping[str, str] | None = None,
        tls: bool = False,
        listeners: Mapping[str, str] | None = None,
        features: Mapping[str, int] | None = None,
        jvm_options: Sequence[str] = QUICK_JVM,
    ) -> None:
        self.version = version
        self.certificates: Certificates | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="aioproducer-kafka-"))
        self._properties = dict(properties or {})
        self._jvm_options = tuple(jvm_options)
        self._features = dict(features or {})
        self._protocols = {
            "PLAINTEXT": "PLAINTEXT",
            "CONTROLLER": "PLAINTEXT",
            **(_TLS_LISTENERS if tls else {}),
            **(listeners or {}),
        }
        if any(protocol.endswith("SSL") for protocol in self._protocols.values()):
            self.certificates = Certificates.make(self.folder / "certificates")
        ports = iter(free_ports(nodes * len(self._protocols)))
        self.nodes = {
            number: Node(number, self.folder / f"node-{number}", {name: next(ports) for name in self._protocols})
            for number in range(1, nodes + 1)
        }

    # Life

    def start(self) -> Self:
        """Format and start every node, and wait until all of them are in the metadata."""
        classpath = f"{jars.resolve(jars.BROKER[self.version])}/*"
        # Kafka's identifiers are unpadded base64. As in Kafka, none begins like an option of a command line.
        cluster_id = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        formatting: list[tuple[Node, Process]] = []
        for node in self.nodes.values():
            node.folder.mkdir(parents=True)
            node.properties_path.write_text(self._server_properties(node))
            arguments = ["format", "-t", cluster_id, "-c", str(node.properties_path)]
            for name, level in self._features.items():
                arguments += ["--feature", f"{name}={level}"]
            formatting.append((node, self._java(classpath, node, "kafka.tools.StorageTool", arguments)))
        try:
            for node, process in formatting:
                if process.wait(60) != 0:
                    raise ClusterError(f"kafka.tools.StorageTool format failed on node {node.id}: {process.tail()}")
        finally:
            for _, process in formatting:
                process.kill()
        for node in self.nodes.values():
            self._launch(node)
        self.wait_ready()
        return self

    def stop(self) -> None:
        """Kill running nodes and remove the data; keep the folder if the cluster did not start or its block raised."""
        for node in self.nodes.values():
            if node.process is not None:
                node.process.kill()
        if not self.failed:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self, node_id: int) -> None:
        """Send SIGKILL, as if the machine failed: nothing is flushed, and leadership is not moved before."""
        self._process(node_id).kill()

    def terminate(self, node_id: int, timeout: float = 60) -> int:
        """Send SIGTERM, wait for the controlled shutdown, and return the exit code: that of a JVM is 143."""
        process = self._process(node_id)
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout)

    def restart(self, node_id: int, *, timeout: float = 60) -> None:
        """Start a killed node again with its data, and wait until it is in the metadata."""
        node = self.nodes[node_id]
        if node.running:
            raise ClusterError(f"node {node_id} runs already")
        self._launch(node)
        self.wait_ready(timeout)

    def wait_fenced(self, node_id: int, timeout: float = 60) -> None:
        """Wait until no running node lists an ended node as a broker."""
        deadline = time.monotonic() + timeout
        for node in self.nodes.values():
            while node.running:
                try:
                    if node_id not in self._listed(node):
                        break
                    last = f"lists node {node_id}"
                except KafkaException as error:
                    last = f"does not answer: {error}"
                if time.monotonic() > deadline:
                    raise ClusterError(f"node {node.id} still {last} after {timeout:g} s")
                time.sleep(0.1)

    def wait_ready(self, timeout: float = 60) -> None:
        """Wait until every running node lists every running node as a broker."""
        deadline = time.monotonic() + timeout
        expected = {node.id for node in self.nodes.values() if node.running}
        for node in self.nodes.values():
            if not node.running:
                continue
            while True:
                self._check_running(node)
                try:
                    listed = self._listed(node)
                    if expected <= listed:
                        break
                    last = f"it lists the brokers {listed or 'none'}"
                except KafkaException as error:
                    if not error.args[0].retriable() and error.args[0].code() >= 0:
                        raise
                    last = str(error)
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"node {node.id} was not ready within {timeout:g} s, {last}: {self._log_with_threads(node)}"
                    )

    def _listed(self, node: Node) -> set[int]:
        """Return the brokers in a node's metadata.

        By a new client each time: one that has received metadata without a broker waits for ever (``admin._ask``).

        Raises:
            KafkaException: the node does not answer.
        """
        client = AdminClient({"bootstrap.servers": self._address(node, "PLAINTEXT"), "log_level": 0})
        return set(client.list_topics(timeout=1).brokers)

    def _process(self, node_id: int) -> Process:
        process = self.nodes[node_id].process
        if process is None:
            raise ClusterError(f"node {node_id} was never started")
        return process

    def _launch(self, node: Node) -> None:
        classpath = f"{jars.resolve(jars.BROKER[self.version])}/*"
        node.process = self._java(classpath, node, "kafka.Kafka", [str(node.properties_path)])

    def _java(self, classpath: str, node: Node, main: str, arguments: Sequence[str]) -> Process:
        options = (*self._jvm_options, *self._sharing(), *_LOGGING_OPTIONS)
        return Process([jars.java(), *options, "-cp", classpath, main, *arguments], node.server_log)

    def _sharing(self) -> tuple[str, ...]:
        """Return class sharing options for the version that most tests start, with the JVM options of tests."""
        if self.version != jars.NEWEST or self._jvm_options[: len(QUICK_JVM)] != QUICK_JVM:
            return ()
        return class_archive.options(jars.resolve(jars.BROKER[self.version]), _record_classes)

    def _check_running(self, node: Node) -> None:
        if not node.running:
            raise ClusterError(f"node {node.id} ended by itself: {self.server_log(node.id)}")

    # Configuration

    def _server_properties(self, node: Node) -> str:
        replication = str(min(3, len(self.nodes)))
        voters = ",".join(f"{other.id}@{self._address(other, 'CONTROLLER')}" for other in self.nodes.values())
        client_listeners = [name for name in node.port if name != "CONTROLLER"]
        values = {
            **_DEFAULTS,
            "node.id": str(node.id),
            "log.dirs": str(node.log_dir),
            "controller.quorum.voters": voters,
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in node.port.items()),
            "advertised.listeners": ",".join(f"{name}://{self._address(node, name)}" for name in client_listeners),
            "listener.security.protocol.map": ",".join(f"{name}:{self._protocols[name]}" for name in node.port),
            "offsets.topic.replication.factor": replication,
            "transaction.state.log.replication.factor": replication,
            "transaction.state.log.min.isr": str(min(2, len(self.nodes))),
            "default.replication.factor": replication,
            "share.coordinator.state.topic.replication.factor": replication,
            "share.coordinator.state.topic.min.isr": "1",
            **self._tls_properties(),
            **{key: value.replace("{node}", str(node.id)) for key, value in self._properties.items()},
        }
        return "".join(f"{key}={value}\n" for key, value in values.items())

    def _tls_properties(self) -> dict[str, str]:
        if self.certificates is None:
            return {}
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.authority),
            "listener.name.ssl.ssl.client.auth": "none",
            "listener.name.mutual.ssl.client.auth": "required",
        }

    # Addresses and logs

    def _address(self, node: Node, listener: str) -> str:
        # The certificate is only for localhost.
        host = "localhost" if self._protocols[listener].endswith("SSL") else "127.0.0.1"
        return f"{host}:{node.port[listener]}"

    def listener_bootstrap_servers(self, listener: str) -> str:
        """Return the addresses of the listeners with this name."""
        return ",".join(self._address(node, listener) for node in self.nodes.values())

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the plaintext listeners."""
        return self.listener_bootstrap_servers("PLAINTEXT")

    @property
    def tls_bootstrap_servers(self) -> str:
        """The addresses of the TLS listeners that require no client certificate."""
        return self.listener_bootstrap_servers("SSL")

    @property
    def mutual_tls_bootstrap_servers(self) -> str:
        """The addresses of the TLS listeners that require a client certificate."""
        return self.listener_bootstrap_servers("MUTUAL")

    def server_log(self, node_id: int, characters: int = 3000) -> str:
        """Return the end of a node's log."""
        log = self.nodes[node_id].server_log
        return log.read_text(errors="replace")[-characters:] if log.exists() else "(no log)"

    def _log_with_threads(self, node: Node) -> str:
        """Return the end of the log, with the stack of each thread of the JVM, to show where it hangs."""
        log = self.server_log(node.id)
        if node.process is not None:
            node.process.send_signal(signal.SIGQUIT)
            # A hanging JVM may write them late or never.
            time.sleep(2)
        return f"{log}\n{self.server_log(node.id, 60_000)}"

    # Operations

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic; return its name once all running brokers know the leaders and the leaders serve it."""
        replicas = min(3, len(self.nodes)) if replication_factor is None else replication_factor
        try:
            admin.create_topic(self.bootstrap_servers, name, partitions, replicas, config or {})
        except TimeoutError as error:
            logs = "\n".join(self._log_with_threads(node) for node in self.nodes.values())
            raise ClusterError(f"topic {name} was not created in time: {logs}") from error
        self._wait_known(name, partitions)
        admin.wait_until_served(self.bootstrap_servers, name, partitions)
        return name

    def _wait_known(self, name: str, partitions: int) -> None:
        for node in self.nodes.values():
            if node.running:
                admin.wait_for_leaders(self._address(node, "PLAINTEXT"), name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until the brokers no longer list it."""
        admin.delete_topic(self.bootstrap_servers, name)

    def leader(self, topic: str, partition: int) -> int:
        """Return the broker that leads the partition now, -1 for none."""
        return admin.leader(self.bootstrap_servers, topic, partition)

    def in_sync_replicas(self, topic: str, partition: int) -> list[int]:
        """Return the brokers in sync now."""
        return admin.in_sync_replicas(self.bootstrap_servers, topic, partition)

    def wait_in_sync(self, topic: str, timeout: float = 60) -> None:
        """Wait until every replica of every partition is in sync again."""
        admin.wait_in_sync(self.bootstrap_servers, topic, timeout)

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make ``node_id``, one of the replicas, the leader, and wait until it is."""
        admin.move_leader(self.bootstrap_servers, topic, partition, node_id)

    def set_producer_quota(self, client_id: str, bytes_per_second: float | None) -> None:
        """Limit the produce rate of a client id; ``None`` removes the limit (KIP-546)."""
        admin.set_producer_quota(self.bootstrap_servers, client_id, bytes_per_second)

    def read_back(
        self, topic: str, *, at_least: int = 0, committed: bool = False, timeout: float = 60
    ) -> dict[int, list[consuming.StoredRecord]]:
        """Return every record, or every committed one, of every partition, as confluent-kafka reads it."""
        return consuming.read_back(
            self.bootstrap_servers, topic, at_least=at_least, committed=committed, timeout=timeout
        )

    def dump_log(self, topic: str, partition: int) -> list[dump.StoredBatch]:
        """Return the batches in the leader's log, as Kafka's DumpLogSegments reads them."""
        node = self.nodes[self.leader(topic, partition)]
        return dump.dump_log(node.log_dir / f"{topic}-{partition}")


class NodeByNode:
    """Ends the nodes of a cluster in turn, one at a time, so that the others go on."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._node = 0

    def kill(self) -> None:
        """Send SIGKILL to the next node."""
        self._cluster.kill(self._next())

    def terminate(self) -> int:
        """Send SIGTERM to the next node, and return its exit code."""
        return self._cluster.terminate(self._next())

    def start(self) -> None:
        """Start the ended node again once it is fenced, and wait until it has all records of the others.

        A killed leader that is back before broker.session.timeout.ms is over leads on in the same epoch, with records
        that no other replica has. As a coordinator it loads the commit of a transaction from them, and writes its
        markers. The next leader, without these records, aborts the transaction: Kafka 4.4 tore one in 25 to 65 kills.
        """
        self._cluster.wait_fenced(self._node)
        self._cluster.restart(self._node)
        for topic in admin.topics(self._cluster.bootstrap_servers):
            self._cluster.wait_in_sync(topic)

    def _next(self) -> int:
        self._node = self._node % len(self._cluster.nodes) + 1
        return self._node


class _RecordedCluster(KafkaCluster):
    """Run a broker that writes its loaded classes to ``archive`` when it ends."""

    def __init__(self, archive: Path) -> None:
        super().__init__()
        self._archive = archive

    def _sharing(self) -> tuple[str, ...]:
        return (f"-XX:ArchiveClassesAtExit={self._archive}",)


def _record_classes(archive: Path) -> None:
    with _RecordedCluster(archive) as cluster:
        # Formatting has left an archive of its own classes.
        archive.unlink(missing_ok=True)
        cluster.terminate(1)
