"""Hooks: user code that watches the producer at work (after franz-go's ``kgo/hooks.go``).

Each hook is a protocol of one method. A user passes objects that have some of these methods; a method that none has
costs one test for an empty tuple. Hooks are called per connection, request and batch, and of records only for those
that failed: to see or change all records there are interceptors.

They run on the event loop, as plain calls: they must be quick and must not block. What one raises is logged and keeps
neither the producer nor the other hooks from their work. Times are milliseconds, sizes bytes.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ParamSpec, Protocol, runtime_checkable

from aioproducer._common.client_log import Log
from aioproducer.record import Node, TopicPartition

if TYPE_CHECKING:
    from aioproducer.errors import KafkaError
    from aioproducer.producer_record import Record

_logger = logging.getLogger("aioproducer")

_P = ParamSpec("_P")


@runtime_checkable
class OnConnect(Protocol):
    """Told of each attempt to connect, once it came to an end."""

    def on_connect(self, node: Node, duration_ms: float, error: BaseException | None) -> None:
        """``error`` is None when the connection is open; authentication, if any, comes after."""
        ...


@runtime_checkable
class OnReady(Protocol):
    """Told when a connection may carry requests."""

    def on_ready(self, node: Node, duration_ms: float) -> None:
        """``duration_ms`` is what negotiation of versions and authentication took since the connection opened."""
        ...


@runtime_checkable
class OnDisconnect(Protocol):
    """Told when a connection that was open is no more."""

    def on_disconnect(self, node: Node, error: BaseException | None) -> None:
        """``error`` is None when the producer closed it of its own accord: idle, not needed, or at its close."""
        ...


@runtime_checkable
class OnRequestWritten(Protocol):
    """Told of each request given to a transport."""

    def on_request_written(self, node: Node, api_key: int, api_version: int, correlation_id: int, size: int) -> None:
        """``size`` counts the whole frame."""
        ...


@runtime_checkable
class OnResponseRead(Protocol):
    """Told of each response, after it was decoded."""

    def on_response_read(
        self, node: Node, api_key: int, api_version: int, correlation_id: int, size: int, latency_ms: float
    ) -> None:
        """``size`` counts the whole frame, ``latency_ms`` the time since the request was given to the transport."""
        ...


@runtime_checkable
class OnThrottle(Protocol):
    """Told when a broker throttles the client (KIP-219)."""

    def on_throttle(self, node: Node, throttle_time_ms: int) -> None:
        """Nothing is sent to ``node`` for ``throttle_time_ms``."""
        ...


@runtime_checkable
class OnMetadataUpdated(Protocol):
    """Told when the producer's metadata was renewed."""

    def on_metadata_updated(self, nodes: Sequence[Node], topics: Sequence[str]) -> None:
        """``nodes`` are the brokers known now, ``topics`` those whose partitions the response told."""
        ...


@runtime_checkable
class OnBatchSent(Protocol):
    """Told of each batch that goes into a produce request."""

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
    """Told of each batch that goes back into its queue."""

    def on_batch_retried(
        self, topic_partition: TopicPartition, record_count: int, attempt: int, error: BaseException
    ) -> None:
        """``attempt``, counted from 1, is the one that failed with ``error``."""
        ...


@runtime_checkable
class OnBatchSplit(Protocol):
    """Told of each batch that is split because a broker found it too large."""

    def on_batch_split(self, topic_partition: TopicPartition, record_count: int, parts: int) -> None:
        """``record_count`` records now make ``parts`` batches."""
        ...


@runtime_checkable
class OnBatchAcked(Protocol):
    """Told of each batch that is acknowledged."""

    def on_batch_acked(
        self, topic_partition: TopicPartition, record_count: int, base_offset: int | None, latency_ms: float
    ) -> None:
        """``base_offset`` is None where the broker told none (``acks=0``); ``latency_ms`` counts from its creation."""
        ...


@runtime_checkable
class OnBatchFailed(Protocol):
    """Told of each batch that is given up."""

    def on_batch_failed(self, topic_partition: TopicPartition, record_count: int, error: BaseException) -> None:
        """All ``record_count`` deliveries fail with ``error``, or with what it says of the single record."""
        ...


@runtime_checkable
class OnRecordFailed(Protocol):
    """Given each record that failed, as a handler of dead letters needs it."""

    def on_record_failed(self, record: Record, error: KafkaError) -> None:
        """``record`` has the bytes that would have been sent, ``error`` is that of its Delivery.

        ``record.partition`` is None where none was chosen yet. Of a record whose async serializer was not done, key and
        value are what the caller gave.

        Records that were withdrawn, and those for which ``send`` raises, are not given. The call comes soon after the
        Delivery has failed; ``close`` waits for those that are left.
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
"""Every hook there is."""


class Hooks:
    """The configured hooks, sorted by what they want to hear::

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
        """Raises TypeError for an object without any hook's method, and for coroutine functions."""

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
        raise TypeError(f"a hook is an object, but {hook.__qualname__} is a class: pass {hook.__qualname__}()")
    methods = [name for name in _method_names() if hasattr(hook, name)]
    if not methods:
        raise TypeError(f"a hook has at least one of {', '.join(_method_names())}, but {kind} has none")
    for name in methods:
        if not callable(getattr(hook, name)):
            raise TypeError(f"{kind}.{name} must be a method")
        if inspect.iscoroutinefunction(getattr(hook, name)):
            raise TypeError(f"{kind}.{name} must not be a coroutine function: nobody awaits it")


def _guard(method: Callable[_P, None], log: Log) -> Callable[_P, None]:
    """The method as a function that logs what it raises."""

    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except (Exception, asyncio.CancelledError):
            owner = type(getattr(method, "__self__", method)).__qualname__
            log.exception("hook %s.%s failed", owner, getattr(method, "__name__", method))

    return guarded
