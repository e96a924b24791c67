"""Clients in processes of their own, which tests end and start again, and a reader of their results meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.kafka import consuming
from tests.kafka.process import Process, Startable

# A JVM that SIGTERM ends has run its shutdown hooks, and exits with 128 + 15. A program that has not installed its
# handler yet ends by the signal.
_ENDED: Final = (0, 128 + signal.SIGTERM, -signal.SIGTERM)

STALLED: Final = 90.0
"""Seconds without a result after which something hangs: more than any timeout of the clients and of the brokers."""


class Bounced(Protocol):
    """What a test ends hard or cleanly, and starts again."""

    def kill(self) -> object: ...

    def terminate(self) -> object: ...

    def start(self) -> object: ...


class Program(Startable):
    """A client that runs until SIGTERM, or until all is done; a context manager."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: Process | None = None

    def start(self) -> Self:
        """Start the process, once or after it has ended."""
        self._process = Process(self._command, self._log)
        return self

    def stop(self) -> None:
        """Kill the process if it runs."""
        if self._process is not None:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL: nothing is flushed or sent."""
        self._running.kill()

    def terminate(self, timeout: float = 60) -> None:
        """Send SIGTERM, and wait until the process has ended as it should."""
        self._running.send_signal(signal.SIGTERM)
        code = self._running.wait(timeout)
        assert code in _ENDED, f"{self._log.stem} ended with {code}: {self._running.tail()}"

    def check(self) -> None:
        """Raise ``AssertionError`` if the process has failed."""
        code = self._running.returncode
        assert code in (None, 0), f"{self._log.stem} ended by itself with {code}: {self.tail()}"

    def tail(self) -> str:
        """Return the end of its output."""
        return self._running.tail()

    @property
    def _running(self) -> Process:
        assert self._process is not None, "it was never started"
        return self._process


class Watcher(Startable):
    """Reads the committed records of a topic in a thread, while they are written; a context manager.

    A position that the log no longer has ends the thread with an error, which the next call raises: no record that was
    read may disappear.
    """

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.records: dict[int, list[consuming.StoredRecord]] = {partition: [] for partition in range(partitions)}
        self._settings = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "aioproducer-watcher",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        self._topic = topic
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {topic}", daemon=True)

    def start(self) -> Self:
        """Begin to read at the first record."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()

    @property
    def count(self) -> int:
        """Number of committed records so far."""
        return sum(map(len, self.records.values()))

    def wait_for(self, count: int, programs: Sequence[Program]) -> None:
        """Wait until there are ``count`` committed records; raise if a program fails, or none comes for long."""
        seen, since = self.count, time.monotonic()
        while seen < count:
            time.sleep(0.02)
            if self._failure is not None:
                raise self._failure
            for program in programs:
                program.check()
            now = time.monotonic()
            if self.count > seen:
                seen, since = self.count, now
            elif now > since + STALLED:
                outputs = "\n".join(program.tail() for program in programs)
                ends = {partition: len(records) for partition, records in self.records.items()}
                raise TimeoutError(
                    f"{seen} of {count} records, none more in {STALLED:g} s; by partition {ends}; {outputs}"
                )

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        try:
            consumer.assign([TopicPartition(self._topic, partition, 0) for partition in self.records])
            while not self._stopping.is_set():
                for message in consumer.consume(1000, timeout=0.1):
                    error = message.error()
                    if error is None:
                        self.records[message.partition()].append(consuming.stored(message))
                    elif not consuming.passes(error):
                        raise KafkaException(error)
        except BaseException as failure:
            self._failure = failure
        finally:
            consumer.close()
