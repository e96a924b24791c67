"""The embedded broker in its own process, for blocking clients and for tests that kill it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaError, KafkaException

from tests.kafka import admin, consuming, dump
from tests.kafka.cluster import KEEP_RECORDS, ClusterError, free_ports
from tests.kafka.process import Process, Startable

_SCRIPT = Path(__file__).with_name("embedded_process.py")
_ROOT = Path(__file__).parents[2]


class EmbeddedProcess(Startable):
    """An embedded cluster of ``nodes`` nodes in one process, at ports that stay the same; a context manager.

    With ``on_disk`` its logs are under ``data``, and survive ``kill`` and ``start``.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        on_disk: bool = False,
        properties: Mapping[str, str] | None = None,
        features: Mapping[str, int] | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="aioproducer-embedded-"))
        self.data = self.folder / "data" if on_disk else None
        self.ports = free_ports(nodes)
        self.properties = {**KEEP_RECORDS, **(properties or {})}
        self.features = dict(features or {})
        self._process: Process | None = None

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def start(self, timeout: float = 30) -> Self:
        """Start the process and wait until its nodes listen."""
        assert self._process is None or self._process.returncode is not None, "it runs already"
        log = self.folder / "broker.log"
        offset = log.stat().st_size if log.exists() else 0
        command = [sys.executable, str(_SCRIPT), "--nodes", str(len(self.ports)), "--ports", *map(str, self.ports)]
        if self.data is not None:
            command += ["--data", str(self.data)]
        for key, value in self.properties.items():
            command += ["--property", f"{key}={value}"]
        for name, level in self.features.items():
            command += ["--feature", f"{name}={level}"]
        self._process = Process(command, log, {"PYTHONPATH": str(_ROOT)})
        deadline = time.monotonic() + timeout
        while not any(line.startswith("ready ") for line in self._output(offset).splitlines()):
            if self._process.returncode is not None:
                raise ClusterError(f"the embedded broker ended by itself: {self._output(offset)[-3000:]}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the embedded broker was not ready in {timeout:g} s: {self._output(offset)[-3000:]}"
                )
            time.sleep(0.005)
        return self

    def _output(self, offset: int) -> str:
        with open(self.folder / "broker.log", "rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")

    @property
    def output(self) -> str:
        """Return all output of this process and earlier ones."""
        return self._output(0)

    def kill(self) -> None:
        """Send SIGKILL: nothing is flushed or sent."""
        assert self._process is not None
        self._process.kill()

    def terminate(self, timeout: float = 30) -> int:
        """Send SIGTERM, and return the exit code."""
        assert self._process is not None
        os.kill(int(re.findall(r"^process (\d+)$", self.output, re.MULTILINE)[-1]), signal.SIGTERM)
        return self._process.wait(timeout)

    def stop(self) -> None:
        """Kill the process and remove the data; the folder is kept if the block raised."""
        if self._process is not None:
            self._process.kill()
        if not self.failed:
            shutil.rmtree(self.folder, ignore_errors=True)

    # Operations

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic and return its name."""
        replicas = len(self.ports) if replication_factor is None else replication_factor
        admin.create_topic(self.bootstrap_servers, name, partitions, replicas, config or {})
        admin.wait_for_leaders(self.bootstrap_servers, name, partitions)
        return name

    def read_back(
        self, topic: str, *, at_least: int = 0, committed: bool = False
    ) -> dict[int, list[consuming.StoredRecord]]:
        """Return every record of every partition, up to its high watermark, as confluent-kafka reads it.

        With ``committed``, return only records of committed transactions. If the high watermark is unknown just after
        a restart, wait for it.
        """
        deadline = time.monotonic() + 30
        while True:
            try:
                return consuming.read_back(self.bootstrap_servers, topic, at_least=at_least, committed=committed)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.OFFSET_NOT_AVAILABLE or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def log_folders(self, topic: str, partition: int) -> list[Path]:
        """Return the folders with the partition's segments, one for each replica."""
        assert self.data is not None, "it keeps its logs in memory"
        return sorted(folder for folder in self.data.rglob(f"{topic}-{partition}") if folder.is_dir())

    def dump_log(self, topic: str, partition: int) -> list[dump.StoredBatch]:
        """Return the batches of the first replica, as Kafka's DumpLogSegments reads them."""
        return dump.dump_log(self.log_folders(topic, partition)[0])
