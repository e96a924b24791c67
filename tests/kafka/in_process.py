"""The embedded broker with the interfaces of ``KafkaCluster`` and ``MockCluster``, to run the same scenarios on all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from aioproducer.testing import EmbeddedClusterThread
from tests.kafka import consuming, dump
from tests.kafka.cluster import KEEP_RECORDS, free_ports
from tests.kafka.mock import API_VERSIONS, DISCONNECT, INIT_PRODUCER_ID, METADATA, PRODUCE

_NAMES = {
    PRODUCE: "Produce",
    METADATA: "Metadata",
    API_VERSIONS: "ApiVersions",
    INIT_PRODUCER_ID: "InitProducerId",
}


class InProcessCluster:
    """``nodes`` embedded brokers in a thread of this process, with their logs on disk; a context manager."""

    def __init__(
        self,
        nodes: int = 1,
        *,
        properties: Mapping[str, str] | None = None,
        features: Mapping[str, int] | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="aioproducer-embedded-"))
        self.embedded = EmbeddedClusterThread(
            nodes,
            properties={**KEEP_RECORDS, **(properties or {})},
            data_dir=self.folder,
            features=features,
            ports=free_ports(nodes),
        )

    def __enter__(self) -> Self:
        self.embedded.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.embedded.stop()
        shutil.rmtree(self.folder)

    @property
    def bootstrap_servers(self) -> str:
        return self.embedded.bootstrap_servers

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        self.embedded.create_topic(
            name,
            partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            configs=config,
        )
        return name

    def delete_topic(self, name: str) -> None:
        self.embedded.delete_topic(name)

    def leader(self, topic: str, partition: int) -> int:
        return self.embedded.leader(topic, partition)

    def in_sync_replicas(self, topic: str, partition: int) -> list[int]:
        return sorted(self.embedded.in_sync_replicas(topic, partition))

    def wait_in_sync(self, topic: str, timeout: float = 60) -> None:
        self.embedded.wait_in_sync(timeout)

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        self.embedded.wait_in_sync()
        self.embedded.move_leader(topic, partition, node_id)

    def kill(self, node_id: int) -> None:
        self.embedded.kill(node_id)

    def restart(self, node_id: int, *, timeout: float = 60) -> None:
        self.embedded.restart(node_id)

    def read_back(
        self, topic: str, *, at_least: int = 0, committed: bool = False, timeout: float = 60
    ) -> dict[int, list[consuming.StoredRecord]]:
        return consuming.read_back(
            self.bootstrap_servers, topic, at_least=at_least, committed=committed, timeout=timeout
        )

    def dump_log(self, topic: str, partition: int) -> list[dump.StoredBatch]:
        """Return the batches in the leader's log, as Kafka's DumpLogSegments reads them."""
        (folder,) = self.folder.glob(f"*{self.leader(topic, partition)}/{topic}-{partition}")
        return dump.dump_log(folder)

    # Faults, as for librdkafka's mock

    def set_leader(self, topic: str, partition: int, broker_id: int) -> None:
        self.move_leader(topic, partition, broker_id)

    def push_errors(self, api_key: int, codes: Sequence[int]) -> None:
        """Let the next requests of that API fail with these codes, one each; nothing of them is stored."""
        for code in codes:
            if code == DISCONNECT:
                self.embedded.disconnect(_NAMES[api_key], "before")
            else:
                self.embedded.fail(_NAMES[api_key], code)

    def set_round_trip(self, milliseconds: int, broker_id: int = -1) -> None:
        """Delay each Produce request from now on."""
        self.embedded.clear_faults()
        if milliseconds:
            self.embedded.delay("Produce", milliseconds, times=None)
