"""Spark's standalone cluster on this machine: a master and workers, each a process of its own."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Self

from tests.interop.spark.driver import own_spark_home
from tests.kafka import jars
from tests.kafka.cluster import free_ports
from tests.kafka.process import Process, Startable


class StandaloneCluster(Startable):
    """A master, and workers of one core; a context manager.

    Each worker has a loopback address of its own: Spark runs no second attempt of a task on the host of the first.
    """

    def __init__(self, workers: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="aioproducer-standalone-"))
        (self._port,) = free_ports(1)
        self._hosts = [f"127.0.0.{number}" for number in range(2, 2 + workers)]
        self._processes: list[Process] = []

    @property
    def master(self) -> str:
        """The address for ``SparkDriver``."""
        return f"spark://127.0.0.1:{self._port}"

    def start(self, timeout: float = 120) -> Self:
        """Start all processes, and wait until the master knows every worker."""
        jars.java()
        home = own_spark_home(self._folder / "spark")
        master = self._run(
            home, "master.Master", "127.0.0.1", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"
        )
        deadline = time.monotonic() + timeout
        self._wait(master, "I have been elected leader", 1, deadline)
        for host in self._hosts:
            work = self._folder / f"work-{host}"
            arguments = ["--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            self._run(home, "worker.Worker", host, *arguments, "--work-dir", str(work), self.master)
        self._wait(master, "Registering worker", len(self._hosts), deadline)
        return self

    def _run(self, home: Path, name: str, host: str, *arguments: str) -> Process:
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        process = Process(command, self._folder / f"{name}-{host}.log", environment)
        self._processes.append(process)
        return process

    def _wait(self, process: Process, text: str, times: int, deadline: float) -> None:
        while process.log.read_text(errors="replace").count(text) < times:
            for each in self._processes:
                assert each.returncode is None, each.tail()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the master does not tell {text!r} {times} times: {process.tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill all processes; the logs are kept if the block raised."""
        for process in self._processes:
            process.kill()
        if not self.failed:
            shutil.rmtree(self._folder, ignore_errors=True)
