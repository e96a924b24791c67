"""Interceptors: user code that sees every record before it is sent, and every outcome (KIP-42, KIP-512).

Unlike hooks (`aioproducer.hooks`), interceptors may replace records; the price is a `Record` object for each record. An
exception that an interceptor raises is logged and never reaches the caller, as in Kafka's ``ProducerInterceptors``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from aioproducer._common.client_log import Log
from aioproducer.record import HeaderPair, RecordMetadata

if TYPE_CHECKING:
    from aioproducer.producer_record import Record

_logger = logging.getLogger("aioproducer")

_OnSend: TypeAlias = Callable[["Record"], object]
_OnAcknowledgement: TypeAlias = Callable[[RecordMetadata, BaseException | None, Sequence[HeaderPair]], object]

_UNKNOWN_PARTITION = -1


class ProducerInterceptor:
    """Base class of interceptors: override the methods that you need.

    Any object that has ``on_send`` or ``on_acknowledgement`` works as well. The methods are plain functions. They run
    inside ``send`` and on the event loop, and must not block.
    """

    def on_send(self, record: Record) -> Record:
        """Return the record to send: ``record`` itself or another one.

        This is the first step of a send: key and value are not serialized yet. Topic and partition of the returned
        record are used.
        """
        return record

    def on_acknowledgement(
        self,
        metadata: RecordMetadata,
        exception: BaseException | None,
        headers: Sequence[HeaderPair],
    ) -> None:
        """Receive the outcome of a record: acknowledged if ``exception`` is None, else failed.

        For a failed record, ``metadata`` has no offset; its partition is -1 if none was chosen before the failure. An
        implementation may omit ``headers`` (KIP-512) from its signature.
        """

    def close(self) -> None:
        """Release resources; called once, when the producer is closed."""


class InterceptorChain:
    """The configured interceptors, called in their order.

    ``wants_records`` and ``wants_acknowledgements`` are True if an interceptor implements that call. Without
    interceptors both are False, and the caller need not create a `Record`.
    """

    __slots__ = (
        "_close",
        "_log",
        "_on_acknowledgement",
        "_on_send",
        "record_class",
        "wants_acknowledgements",
        "wants_records",
    )

    def __init__(self, interceptors: Iterable[object] = (), log: Log = _logger) -> None:
        """Collect the interceptors' methods; a class is instantiated without arguments.

        Raises:
            TypeError: an object has neither ``on_send`` nor ``on_acknowledgement``, or one is a coroutine function.
        """
        on_send: list[tuple[str, _OnSend]] = []
        on_acknowledgement: list[tuple[str, _OnAcknowledgement]] = []
        close: list[tuple[str, Callable[[], object]]] = []
        for given in interceptors:
            interceptor = given() if inspect.isclass(given) else given
            name = type(interceptor).__qualname__
            if not callable(getattr(interceptor, "on_send", None)) and not callable(
                getattr(interceptor, "on_acknowledgement", None)
            ):
                raise TypeError(
                    f"an interceptor must have on_send(record) or on_acknowledgement(metadata, exception, headers), "
                    f"but {name} has neither"
                )
            if (send := _method(interceptor, "on_send")) is not None:
                on_send.append((name, send))
            if (acknowledge := _method(interceptor, "on_acknowledgement")) is not None:
                on_acknowledgement.append((name, _with_headers(acknowledge)))
            if (end := _method(interceptor, "close")) is not None:
                close.append((name, end))
        self._log = log
        # Imported once, and only with interceptors: even a repeated import takes a microsecond.
        self.record_class: type[Record] | None = None
        if on_send or on_acknowledgement:
            from aioproducer.producer_record import Record

            self.record_class = Record
        self._on_send = tuple(on_send)
        self._on_acknowledgement = tuple(on_acknowledgement)
        self._close = tuple(close)
        self.wants_records: bool = bool(on_send)
        self.wants_acknowledgements: bool = bool(on_acknowledgement)

    def on_send(self, record: Record) -> Record:
        """Return the record to send instead of ``record``.

        An interceptor that raises or does not return a Record is logged and skipped: the next one receives the last
        valid record.
        """
        record_class = self.record_class
        if record_class is None:
            return record
        for name, intercept in self._on_send:
            try:
                answer = intercept(record)
                if not isinstance(answer, record_class):
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

    def on_acknowledgement(
        self,
        metadata: RecordMetadata,
        exception: BaseException | None,
        headers: Sequence[HeaderPair] = (),
    ) -> None:
        """Report a record's outcome to all interceptors, in their order; exceptions are logged and do not stop it."""
        for name, acknowledge in self._on_acknowledgement:
            try:
                acknowledge(metadata, exception, headers)
            except (Exception, asyncio.CancelledError):
                self._log.warning("interceptor %s failed in on_acknowledgement of %s", name, metadata, exc_info=True)

    def on_send_error(self, record: Record, partition: int | None, exception: BaseException) -> None:
        """Report that ``record`` failed before it was in a batch; ``partition`` is the chosen one, if any."""
        chosen = record.partition if partition is None else partition
        metadata = RecordMetadata(record.topic, _UNKNOWN_PARTITION if chosen is None else chosen, None, None)
        self.on_acknowledgement(metadata, exception, record.headers)

    def close(self) -> None:
        """Close all interceptors that have ``close``; exceptions are logged and do not stop it."""
        for name, close in self._close:
            try:
                close()
            except (Exception, asyncio.CancelledError):
                self._log.exception("interceptor %s failed in close", name)


def _method(interceptor: object, name: str) -> Callable[..., object] | None:
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


def _with_headers(acknowledge: Callable[..., object]) -> _OnAcknowledgement:
    """Return ``acknowledge`` as a function of three arguments; without KIP-512 it takes two."""
    try:
        inspect.signature(acknowledge).bind(None, None, ())
    except TypeError:
        return lambda metadata, exception, headers: acknowledge(metadata, exception)
    return acknowledge
