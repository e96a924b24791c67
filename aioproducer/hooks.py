"""Hooks: user code that observes the producer (after franz-go's ``kgo/hooks.go``).

Each hook is a protocol with one method. Users pass objects that have some of these methods. A method that no object has
costs one test for an empty tuple. Hooks are called per connection, request and batch, but per record only for failed
ones: interceptors see and may change every record.

Hooks run on the event loop as plain calls: they must be quick and must not block. An exception that a hook raises is
logged; it affects neither the producer nor the other hooks. Times are milliseconds, sizes are bytes.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ParamSpec, Protocol, runtime_checkable

from aioproducer._common.client_log import Log
from aioproducer.record import Node, Record, TopicPartition

if TYPE_CHECKING:
    from aioproducer.errors import KafkaError

_logger = logging.getLogger("aioproducer")

_P = ParamSpec("_P")


@runtime_checkable
class OnConnect(Protocol):
    """Called at the end of each attempt to connect, successful or not."""

    def on_connect(self, node: Node, duration_ms: float, error: BaseException | None) -> None:
        """``error`` is None if the connection is open; authentication, if configured, follows."""
        ...


@runtime_checkable
class OnReady(Protocol):
    """Called when a connection is ready for requests."""

    def on_ready(self, node: Node, duration_ms: float) -> None:
        """``duration_ms`` is the time that version negotiation and authentication took after the connection opened."""
        ...


@runtime_checkable
class OnDisconnect(Protocol):
    """Called when an open connection has ended."""

    def on_disconnect(self, node: Node, error: BaseException | None) -> None:
        """``error`` is None if the producer closed the connection: idle, no longer needed, or at ``close``."""
        ...


@runtime_checkable
class OnRequestWritten(Protocol):
    """Called for each request passed to a transport."""

    def on_request_written(self, node: Node, api_key: int, api_version: int, correlation_id: int, size: int) -> None:
        """``size`` counts the whole frame."""
        ...


@runtime_checkable
class OnResponseRead(Protocol):
    """Called for each response after it is decoded."""

    def on_response_read(
        self, node: Node, api_key: int, api_version: int, correlation_id: int, size: int, latency_ms: float
    ) -> None:
        """``size`` counts the whole frame, ``latency_ms`` the time since the request was passed to the transport."""
        ...


@runtime_checkable
class OnThrottle(Protocol):
    """Called when a broker throttles the client (KIP-219)."""

    def on_throttle(self, node: Node, throttle_time_ms: int) -> None:
        """The producer sends nothing to ``node`` for ``throttle_time_ms``."""
        ...


@runtime_checkable
class OnMetadataUpdated(Protocol):
    """Called after the producer's metadata was updated."""

    def on_metadata_updated(self, nodes: Sequence[Node], topics: Sequence[str]) -> None:
        """``nodes`` are the brokers known now, ``topics`` those with partitions in the response."""
        ...


@runtime_checkable
class OnBatchSent(Protocol):
    """Called for each batch that goes into a produce request."""

    def on_batch_sent(
        self,
        topic_partition: TopicPartition,
        record_count: int,
        size: int,
        uncompressed_size: int,
        queue_time_ms: float,
        attempt: int,
    ) -> None:
        """``queue_time_ms`` is counted from the batch's creation, ``attempt`` from 1."""
        ...


@runtime_checkable
class OnBatchRetried(Protocol):
    """Called for each batch that returns to its queue after an error."""

    def on_batch_retried(
        self, topic_partition: TopicPartition, record_count: int, attempt: int, error: BaseException
    ) -> None:
        """``attempt``, counted from 1, is the attempt that failed with ``error``."""
        ...


@runtime_checkable
class OnBatchSplit(Protocol):
    """Called for each batch that is split because a broker found it too large."""

    def on_batch_split(self, topic_partition: TopicPartition, record_count: int, parts: int) -> None:
        """``record_count`` records are now in ``parts`` batches."""
        ...


@runtime_checkable
class OnBatchAcked(Protocol):
    """Called for each batch that is acknowledged."""

    def on_batch_acked(
        self, topic_partition: TopicPartition, record_count: int, base_offset: int | None, latency_ms: float
    ) -> None:
        """``base_offset`` is None if the broker returned none (``acks=0``); ``latency_ms`` counts from its creation."""
        ...


@runtime_checkable
class OnBatchFailed(Protocol):
    """Called for each batch that has failed for good."""

    def on_batch_failed(self, topic_partition: TopicPartition, record_count: int, error: BaseException) -> None:
        """All ``record_count`` Deliveries fail with ``error``, or with an error made of it for the single record."""
        ...


@runtime_checkable
class OnRecordFailed(Protocol):
    """Called for each failed record, with the whole record, for a dead-letter handler."""

    def on_record_failed(self, record: Record, error: KafkaError) -> None:
        """``record`` holds the bytes that would have been sent, ``error`` is that of its Delivery.

        ``record.partition`` is None if no partition was chosen yet. If an async serializer had not finished, key and
        value are the caller's arguments.

        The hook is not called for withdrawn records, nor for those that ``send`` rejects with an exception. The call
        follows soon after the Delivery has failed; ``close`` waits for the remaining calls.
        """
        ...


HOOKS: tuple[type, ...] = (
    OnConnect,
    OnReady,
    OnDisconnect,
    OnRequestWritten,
    OnResponseRead,
    OnThrottle,
    OnMetadataUpdated,
    OnBatchSent,
    OnBatchRetried,
    OnBatchSplit,
    OnBatchAcked,
    OnBatchFailed,
    OnRecordFailed,
)
"""All hooks."""


class Hooks:
    """The configured hooks, grouped by event::

        if hooks.batch_acked:
            for on_batch_acked in hooks.batch_acked:
                on_batch_acked(topic_partition, record_count, base_offset, latency_ms)

    Each attribute is a tuple of functions in the order given; calling one never raises.
    """

    __slots__ = (
        "batch_acked",
        "batch_failed",
        "batch_retried",
        "batch_sent",
        "batch_split",
        "connect",
        "disconnect",
        "metadata_updated",
        "ready",
        "record_failed",
        "request_written",
        "response_read",
        "throttle",
    )

    def __init__(self, hooks: Iterable[object] = (), log: Log = _logger) -> None:
        """Group the methods of these hooks.

        Raises:
            TypeError: an object has none of the hooks' methods, or one is a coroutine function.
        """

        def guard(method: Callable[_P, None]) -> Callable[_P, None]:
            return _guard(method, log)

        given = tuple(hooks)
        for hook in given:
            _check(hook)
        self.connect = tuple(guard(hook.on_connect) for hook in given if isinstance(hook, OnConnect))
        self.ready = tuple(guard(hook.on_ready) for hook in given if isinstance(hook, OnReady))
        self.disconnect = tuple(guard(hook.on_disconnect) for hook in given if isinstance(hook, OnDisconnect))
        self.request_written = tuple(
            guard(hook.on_request_written) for hook in given if isinstance(hook, OnRequestWritten)
        )
        self.response_read = tuple(guard(hook.on_response_read) for hook in given if isinstance(hook, OnResponseRead))
        self.throttle = tuple(guard(hook.on_throttle) for hook in given if isinstance(hook, OnThrottle))
        self.metadata_updated = tuple(
            guard(hook.on_metadata_updated) for hook in given if isinstance(hook, OnMetadataUpdated)
        )
        self.batch_sent = tuple(guard(hook.on_batch_sent) for hook in given if isinstance(hook, OnBatchSent))
        self.batch_retried = tuple(guard(hook.on_batch_retried) for hook in given if isinstance(hook, OnBatchRetried))
        self.batch_split = tuple(guard(hook.on_batch_split) for hook in given if isinstance(hook, OnBatchSplit))
        self.batch_acked = tuple(guard(hook.on_batch_acked) for hook in given if isinstance(hook, OnBatchAcked))
        self.record_failed = tuple(guard(hook.on_record_failed) for hook in given if isinstance(hook, OnRecordFailed))
        self.batch_failed = tuple(guard(hook.on_batch_failed) for hook in given if isinstance(hook, OnBatchFailed))


def _method_names() -> list[str]:
    return [name for hook in HOOKS for name in vars(hook) if name.startswith("on_")]


def _check(hook: object) -> None:
    kind = type(hook).__qualname__
    if inspect.isclass(hook):
        raise TypeError(f"a hook must be an object, not the class {hook.__qualname__}: pass {hook.__qualname__}()")
    methods = [name for name in _method_names() if hasattr(hook, name)]
    if not methods:
        raise TypeError(f"a hook must have at least one of {', '.join(_method_names())}, but {kind} has none")
    for name in methods:
        if not callable(getattr(hook, name)):
            raise TypeError(f"{kind}.{name} must be a method, not {type(getattr(hook, name)).__name__}")
        if inspect.iscoroutinefunction(getattr(hook, name)):
            raise TypeError(f"{kind}.{name} must not be a coroutine function: hooks are called and not awaited")


def _guard(method: Callable[_P, None], log: Log) -> Callable[_P, None]:
    """Wrap the method so that its exceptions are logged."""

    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except (Exception, asyncio.CancelledError):
            owner = type(getattr(method, "__self__", method)).__qualname__
            log.exception("hook %s.%s failed", owner, getattr(method, "__name__", method))

    return guarded
