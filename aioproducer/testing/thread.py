"""``EmbeddedClusterThread``: brokers in their own event loop and thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from aioproducer.testing.cluster import EmbeddedCluster
from aioproducer.testing.control import ClusterControl

if TYPE_CHECKING:
    from aioproducer.broker import BrokerCluster
    from aioproducer.config import ConsumerConfigDict, ProducerConfigDict
    from aioproducer.consumer.consumer import Consumer
    from aioproducer.consumer.decoding import OnDeserializationError
    from aioproducer.io.failure_reporter import OnError
    from aioproducer.producer import Producer
    from aioproducer.transport.base import Connector

T = TypeVar("T")


class EmbeddedClusterThread(ClusterControl):
    """The same cluster for callers without a loop, or with another one.

    It is a plain context manager (``with``), and its methods block and may be called from any thread.

    For blocking clients (confluent-kafka, kafka-python) in the test's own process, and for fixtures of module or
    session scope, which outlive the loops of their tests.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        properties: Mapping[str, object] | None = None,
        data_dir: str | Path | None = None,
        features: Mapping[str, int] | None = None,
        ports: Sequence[int] | None = None,
    ) -> None:
        self._inner = EmbeddedCluster(brokers, properties=properties, data_dir=data_dir, features=features, ports=ports)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None:
            coroutine.close()
            raise RuntimeError("the cluster is not running: use it inside `with EmbeddedClusterThread()`")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("called from the cluster's own thread, which would wait for itself")
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def _call(self, function: Callable[[BrokerCluster], T]) -> T:
        async def call() -> T:
            return self._inner._call(function)

        return self._run(call())

    def producer(
        self,
        *,
        transport: str | Connector = "tcp",
        on_error: OnError | None = None,
        hooks: Sequence[object] = (),
        **configuration: Unpack[ProducerConfigDict],
    ) -> Producer:
        """A ``Producer`` for this cluster that belongs to the caller's loop: ``async with cluster.producer() as p``."""
        from aioproducer.producer import Producer

        configuration.setdefault("bootstrap_servers", self.bootstrap_servers)
        return Producer(transport=transport, on_error=on_error, hooks=hooks, **configuration)

    def consumer(
        self,
        *topics: str,
        transport: str | Connector = "tcp",
        on_deserialization_error: OnDeserializationError | None = None,
        **configuration: Unpack[ConsumerConfigDict],
    ) -> Consumer:
        """A ``Consumer`` for this cluster that belongs to the caller's loop: ``async with cluster.consumer() as c``.

        With topics it joins a group: ``cluster.consumer("clicks", group_id="billing")``.
        """
        from aioproducer.consumer.consumer import Consumer

        configuration.setdefault("bootstrap_servers", self.bootstrap_servers)
        return Consumer(
            *topics, transport=transport, on_deserialization_error=on_deserialization_error, **configuration
        )

    def start(self) -> None:
        """Start every node; ``with`` does.

        Raises:
            OSError, KafkaError: the cluster could not start; nothing is left running.
        """
        if self._thread is not None:
            return
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._thread = threading.Thread(target=_serve, args=(loop,), name="aioproducer-embedded-cluster", daemon=True)
        self._thread.start()
        try:
            self._run(self._inner.start())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Stop every node and end the thread."""
        if self._thread is None:
            return
        try:
            self._run(self._inner.stop())
        finally:
            self._end()

    def _end(self) -> None:
        loop, thread = self._loop, self._thread
        assert loop is not None
        assert thread is not None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        self._loop = self._thread = None

    def kill(self, node: int) -> None:
        """End a node as SIGKILL would: it sends and writes nothing more; its log stays for ``restart``."""
        self._run(self._inner.kill(node))

    def restart(self, node: int) -> None:
        """Start a node again at its address; a running node is stopped first."""
        self._run(self._inner.restart(node))

    def wait_in_sync(self, timeout: float = 30.0) -> None:
        """Wait until every replica on a running node is in sync.

        Raises:
            TimeoutError: ``timeout`` seconds have passed; the text names a partition that is not in sync.
        """
        self._run(self._inner.wait_in_sync(timeout))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, then close it here: the stopping thread may be running another loop."""
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
