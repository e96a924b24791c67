"""Spark drivers in processes of their own: to be given any master, to be killed, to be waited for with a deadline."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import psutil
import pyspark
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.kafka import jars
from tests.kafka.process import Process, Startable

P = ParamSpec("P")
T = TypeVar("T")

ROOT = Path(__file__).parents[3]
_TESTS = "tests.interop.spark."
_PROGRAM = Path(__file__).with_name("driver_program.py")

_CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # As the brokers of these tests: quick to start, and light.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
}


class JobFailedError(Exception):
    """What the driver's user would see: a traceback, and Spark's text."""


class DriverGoneError(Exception):
    """The driver's process has ended."""


class SparkDriver(Startable):
    """A Spark session in a process of its own; a context manager.

    python
        What runs it; what runs the tasks is the configuration's, ``spark.pyspark.python``, or the same.
    environment
        Of the driver, over this process's; ``None`` takes a variable away.
    sees_checkout
        Whether this project can be imported by the driver, and by what it starts.

    It runs in the folder ``cwd``, which is empty but for what a test puts there.
    """

    def __init__(
        self,
        master: str,
        *,
        python: str = sys.executable,
        configuration: Mapping[str, str] | None = None,
        environment: Mapping[str, str | None] | None = None,
        sees_checkout: bool = True,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="aioproducer-spark-"))
        self.cwd = self.folder / "cwd"
        self.cwd.mkdir()
        self._master = master
        self._python = python
        self._configuration = dict(configuration or {})
        self._environment = dict(environment or {})
        self._sees_checkout = sees_checkout
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._gone = False
        self._stack = ExitStack()
        self._process: Process | None = None
        self._process_id = 0
        self._connection: Connection | None = None
        self._reader: threading.Thread | None = None

    # Life

    @property
    def log(self) -> Path:
        """What Spark's processes write to stderr: the driver's, and in local mode those of the tasks."""
        return self.folder / "driver.log"

    def start(self, timeout: float = 120) -> Self:
        jars.java()
        home = own_spark_home(self.folder / "spark")
        configuration = {
            **_CONFIGURATION,
            "spark.master": self._master,
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            **self._configuration,
        }
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")},
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": self._python,
            **({"PYTHONPATH": str(ROOT)} if self._sees_checkout else {}),
        }
        for name, value in self._environment.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        address = str(self.folder / "socket")
        listener = self._stack.enter_context(Listener(address))
        # Process adds to this process's environment, where there are things that the driver may not have.
        command = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
        command += [self._python, str(_PROGRAM), address, json.dumps(configuration)]
        self._process = Process(["env", "-C", str(self.cwd), *command], self.log)
        watching = threading.Thread(target=self._accept, args=(listener,), daemon=True)
        watching.start()
        deadline = time.monotonic() + timeout
        while self._connection is None:
            if self._process.returncode is not None:
                raise DriverGoneError(f"the driver ended by itself: {self._process.tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the driver was not ready within {timeout:g} s: {self._process.tail()}")
            time.sleep(0.01)
        watching.join()
        self._reader = threading.Thread(target=self._read, args=(self._connection,), daemon=True)
        self._reader.start()
        return self

    def _accept(self, listener: Listener) -> None:
        try:
            connection = listener.accept()
            self._process_id = connection.recv()
        except (OSError, EOFError):
            return
        self._connection = connection

    def _read(self, connection: Connection) -> None:
        try:
            while True:
                number, kind, value = connection.recv()
                future = self._waiting.pop(number)
                if kind == "result":
                    future.set_result(value)
                else:
                    future.set_exception(JobFailedError(value))
        except (EOFError, OSError):
            with self._lock:
                self._gone = True
            for future in self._waiting.values():
                future.set_exception(DriverGoneError("the driver's process has ended"))

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM and, in local mode, with that for its executor."""
        assert self._process is not None
        self._process.kill()

    def kill_without_workers(self) -> list[psutil.Process]:
        """SIGKILL for the driver, its JVM and the daemons of Python workers; return the workers, now orphans.

        A worker that waits for its JVM ends by itself. A daemon that is left would end those that are busy, too.
        """
        family = self.family()
        workers = [each for each in family if _is_worker(each) and not each.children()]
        others = [each for each in family if each not in workers]
        for process in sorted(others, key=_is_worker, reverse=True):
            process.kill()
        psutil.Process(self._process_id).kill()
        return workers

    def stop(self) -> None:
        """End the session, and what is left of its processes; the log is kept if the block raised."""
        family = self.family()
        if self._connection is not None:
            self._say_goodbye(self._connection)
        if self._process is not None:
            self._process.kill()
        if self._reader is not None:
            self._reader.join()
        if self._connection is not None:
            self._connection.close()
        self._stack.close()
        _, alive = psutil.wait_procs(family, timeout=10)
        for process in alive:
            process.kill()
        if not self.failed:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _say_goodbye(self, connection: Connection) -> None:
        assert self._process is not None
        try:
            connection.send(None)
            self._process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            # It was killed, or hangs: there is nothing to be polite to.
            return

    # Jobs

    def submit(self, job: Callable[Concatenate[SparkSession, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have ``job(spark, ...)`` run in the driver; it may be a function of a test module, and use others of it."""
        assert not kwargs
        assert self._connection is not None
        future: Future[T] = Future()
        number = next(self._numbers)
        pickled = _by_value((job, args))
        with self._lock:
            if self._gone:
                raise DriverGoneError("the driver's process has ended")
            self._waiting[number] = future
            self._connection.send((number, pickled))
        return future

    def call(self, job: Callable[Concatenate[SparkSession, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As ``submit``, and wait.

        Raises:
            JobFailedError: it raised.
            TimeoutError: it did not end within four minutes.
        """
        return self.submit(job, *args, **kwargs).result(240)

    # Processes

    def family(self) -> list[psutil.Process]:
        """Every process that the driver has started, and those in turn."""
        try:
            return psutil.Process(self._process_id).children(recursive=True) if self._process_id else []
        except psutil.NoSuchProcess:
            return []

    def workers_at(self, bootstrap_servers: str) -> list[psutil.Process]:
        """Python workers that have a connection to one of these brokers."""
        ports = {int(address.rpartition(":")[2]) for address in bootstrap_servers.split(",")}
        return [each for each in self.family() if _is_worker(each) and ports & _connected_ports(each)]

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks, on a cluster."""
        return [each for each in self.family() if "CoarseGrainedExecutorBackend" in _command(each)]


def _by_value(thing: object) -> bytes:
    """Pickled with what these tests define: no driver and no executor need have them."""
    modules = [module for name, module in sys.modules.items() if name.startswith(_TESTS)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled: bytes = cloudpickle.dumps(thing)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    return pickled


def own_spark_home(folder: Path) -> Path:
    """Spark as it is installed, but what it writes into its home, such as a cluster's work, is here."""
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name in ("bin", "jars", "python", "sbin"):
            (folder / entry.name).symlink_to(entry)
    return folder


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _is_worker(process: psutil.Process) -> bool:
    command = _command(process)
    return "pyspark.daemon" in command or "daemon pyspark.worker" in command or "-m pyspark.sql.worker" in command


def _connected_ports(process: psutil.Process) -> set[int]:
    try:
        return {each.raddr.port for each in process.net_connections() if each.raddr and each.status == "ESTABLISHED"}
    except psutil.Error:
        return set()


def eventually(condition: Callable[[], T], what: str, timeout: float = 240) -> T:
    """The first value of ``condition()`` that is true."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(0.02)
