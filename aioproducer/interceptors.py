"""Compiled. Interceptors: user code that sees every record before it is sent, and every outcome (KIP-42, KIP-512).

Unlike hooks (`aioproducer.hooks`), interceptors are called for each record, and may replace it. ``on_send`` takes a
`Record`; ``on_headers``, which is for tracing, takes only the topic and the headers, and costs less. An exception that
an interceptor raises is logged and never reaches the caller, as in Kafka's ``ProducerInterceptors``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from aioproducer._common.client_log import Log
from aioproducer.record import HeaderPair, Record, RecordMetadata, normalise_in_place

_logger = logging.getLogger("aioproducer")

_Method: TypeAlias = Callable[..., object]

_METHODS = ("on_send", "on_headers", "on_acknowledgement")
_UNKNOWN_PARTITION = -1


class ProducerInterceptor:
    """Base class of interceptors: override the methods that you need.

    Any object that has one of the three methods works as well. The methods are plain functions. They run inside
    ``send`` and on the event loop, and must not block.
    """

    def on_send(self, record: Record) -> Record:
        """Return the record to send: ``record`` itself or another one.

        This is the first step of a send: key and value are not serialized yet. Topic and partition of the returned
        record are used.
        """
        return record

    def on_headers(self, topic: str, headers: list[HeaderPair]) -> None:
        """Append to the headers of a record before they are encoded, for instance a trace context.

        ``headers`` is the record's own list of ``(str, bytes or None)`` pairs. The call follows ``on_send`` and
        precedes the serializers, which may append too.
        """

    def on_acknowledgement(
        self,
        metadata: RecordMetadata,
        exception: BaseException | None,
        headers: Sequence[HeaderPair],
    ) -> None:
        """Receive the outcome of a record: acknowledged if ``exception`` is None, else failed.

        For a failed record, ``metadata`` has no offset; its partition is -1 if none was chosen before the failure. The
        exception of a withdrawn record is a ``CancelledError``. An implementation may omit ``headers`` (KIP-512) from
        its signature.

        Outcomes are reported on the event loop, in the context of the caller of ``start()``, some in each iteration of
        the loop. ``flush`` and ``close`` wait for them.
        """

    def close(self) -> None:
        """Release resources; called once, when the producer is closed."""


class InterceptorChain:
    """The configured interceptors, called in their order.

    ``wants_records``, ``wants_headers`` and ``wants_acknowledgements`` are True if an interceptor implements
    ``on_send``, ``on_headers`` or ``on_acknowledgement``. Only ``on_send`` needs a `Record`.
    """

    __slots__ = (
        "_close",
        "_log",
        "_on_acknowledgement",
        "_on_headers",
        "_on_send",
        "wants_acknowledgements",
        "wants_headers",
        "wants_records",
    )

    def __init__(self, interceptors: Iterable[object] = (), log: Log = _logger) -> None:
        """Collect the interceptors' methods; a class is instantiated without arguments.

        Raises:
            TypeError: an object has none of the three methods, or one is a coroutine function.
        """
        on_send: list[tuple[str, _Method]] = []
        on_headers: list[tuple[str, _Method]] = []
        on_acknowledgement: list[tuple[str, _Method, bool]] = []
        close: list[tuple[str, _Method]] = []
        for given in interceptors:
            interceptor = given() if inspect.isclass(given) else given
            name = type(interceptor).__qualname__
            if not any(callable(getattr(interceptor, method, None)) for method in _METHODS):
                raise TypeError(
                    f"an interceptor must have on_send(record), on_headers(topic, headers) or "
                    f"on_acknowledgement(metadata, exception, headers), but {name} has none"
                )
            if (send := _method(interceptor, "on_send")) is not None:
                on_send.append((name, send))
            if (add_headers := _method(interceptor, "on_headers")) is not None:
                on_headers.append((name, add_headers))
            if (acknowledge := _method(interceptor, "on_acknowledgement")) is not None:
                on_acknowledgement.append((name, acknowledge, _takes_headers(acknowledge)))
            if (end := _method(interceptor, "close")) is not None:
                close.append((name, end))
        self._log = log
        self._on_send = tuple(on_send)
        self._on_headers = tuple(on_headers)
        self._on_acknowledgement = tuple(on_acknowledgement)
        self._close = tuple(close)
        self.wants_records: bool = bool(on_send)
        self.wants_headers: bool = bool(on_headers)
        self.wants_acknowledgements: bool = bool(on_acknowledgement)

    def on_send(self, record: Record) -> Record:
        """Return the record to send instead of ``record``.

        An interceptor that raises or does not return a Record is logged and skipped: the next one receives the last
        valid record.
        """
        for name, intercept in self._on_send:
            try:
                answer = intercept(record)
                if not isinstance(answer, Record):
                    raise TypeError(f"{name}.on_send must return a Record, not {type(answer).__name__}")
                record = answer
            except (Exception, asyncio.CancelledError):
                self._log.warning(
                    "interceptor %s failed in on_send of a record for topic %s, partition %s; it is skipped",
                    name,
                    record.topic,
                    record.partition,
                    exc_info=True,
                )
        return record

    def on_headers(self, topic: str, headers: list[HeaderPair]) -> None:
        """Let the interceptors append to a record's headers.

        The changes of an interceptor that raises, or leaves a malformed header, are undone, and it is logged.
        """
        for name, add_headers in self._on_headers:
            before = tuple(headers)
            try:
                add_headers(topic, headers)
                normalise_in_place(headers)
            except (Exception, asyncio.CancelledError):
                headers[:] = before
                self._log.warning(
                    "interceptor %s failed in on_headers of a record for topic %s; it is skipped",
                    name,
                    topic,
                    exc_info=True,
                )

    def on_acknowledgement(
        self,
        metadata: RecordMetadata,
        exception: BaseException | None,
        headers: Sequence[HeaderPair] = (),
    ) -> None:
        """Report a record's outcome to all interceptors, in their order; exceptions are logged and do not stop it."""
        for name, acknowledge, takes_headers in self._on_acknowledgement:
            try:
                if takes_headers:
                    acknowledge(metadata, exception, headers)
                else:
                    acknowledge(metadata, exception)
            except (Exception, asyncio.CancelledError):
                self._log.warning("interceptor %s failed in on_acknowledgement of %s", name, metadata, exc_info=True)

    def on_send_error(
        self, topic: str, partition: int | None, exception: BaseException, headers: Sequence[HeaderPair]
    ) -> None:
        """Report that ``send`` did not accept a record; ``partition`` is the caller's."""
        known = partition if type(partition) is int else _UNKNOWN_PARTITION
        self.on_acknowledgement(RecordMetadata(topic, known, None, None), exception, tuple(headers))

    def close(self) -> None:
        """Close all interceptors that have ``close``; exceptions are logged and do not stop it."""
        for name, close in self._close:
            try:
                close()
            except (Exception, asyncio.CancelledError):
                self._log.exception("interceptor %s failed in close", name)


def _method(interceptor: object, name: str) -> _Method | None:
    """Return the method unless it is missing or inherited from `ProducerInterceptor`, where it does nothing."""
    if getattr(type(interceptor), name, None) is getattr(ProducerInterceptor, name):
        return None
    method: object = getattr(interceptor, name, None)
    if not callable(method):
        return None
    if inspect.iscoroutinefunction(method):
        raise TypeError(
            f"{type(interceptor).__qualname__}.{name} must not be a coroutine function: interceptors are called and "
            "not awaited"
        )
    return method


def _takes_headers(acknowledge: _Method) -> bool:
    """Return whether ``acknowledge`` takes three arguments; without KIP-512 it takes two."""
    try:
        inspect.signature(acknowledge).bind(None, None, ())
    except TypeError:
        return False
    return True
