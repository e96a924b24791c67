"""Interceptors: user code that sees every record go out and every outcome come back (KIP-42, KIP-512).

They may replace records, which hooks (`aioproducer.hooks`) cannot; in return each record becomes a `Record` object.
What an interceptor raises is logged and never reaches the sender, as in Kafka's ``ProducerInterceptors``.
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
    """What an interceptor may do. Override some of it; an object of any class that has some of these methods will do.

    The methods are plain ones: they run inside ``send`` and on the loop, and must not block.
    """

    def on_send(self, record: Record) -> Record:
        """See a record before anything else is done with it, and return it or another in its place.

        Keys and values are not yet serialized. A change of topic or partition is heeded.
        """
        return record

    def on_acknowledgement(
        self,
        metadata: RecordMetadata,
        exception: BaseException | None,
        headers: Sequence[HeaderPair],
    ) -> None:
        """See how a record ended: acknowledged (``exception`` is None) or failed.

        Of a failed record ``metadata`` has no offset, and partition -1 when it failed before it had one. ``headers``
        (KIP-512) may be left out of the signature.
        """

    def close(self) -> None:
        """The producer is closed; called once."""


class InterceptorChain:
    """The configured interceptors, called in their order.

    ``wants_records`` and ``wants_acknowledgements`` say whether anybody has a use for those calls: without interceptors
    both are False, and the caller can spare itself the `Record`.
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
        """Classes among ``interceptors`` are instantiated without arguments.

        Raises TypeError for an object that has neither ``on_send`` nor ``on_acknowledgement``, and for coroutine
        functions.
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
                    f"an interceptor has on_send(record) or on_acknowledgement(...), but {name} has neither"
                )
            if (send := _method(interceptor, "on_send")) is not None:
                on_send.append((name, send))
            if (acknowledge := _method(interceptor, "on_acknowledgement")) is not None:
                on_acknowledgement.append((name, _with_headers(acknowledge)))
            if (end := _method(interceptor, "close")) is not None:
                close.append((name, end))
        self._log = log
        # Only who has interceptors pays for the import, and once: it takes a microsecond where all is there already.
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
        """The record that is to be sent in the place of ``record``.

        An interceptor that raises, or returns no Record, is logged and passed over: the next one gets the last record
        that was one.
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
                    "interceptor %s failed in on_send of a record for topic %s, partition %s; it is passed over",
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
        """Tell all of a record's outcome, in their order; one that raises is logged and keeps no other from hearing."""
        for name, acknowledge in self._on_acknowledgement:
            try:
                acknowledge(metadata, exception, headers)
            except (Exception, asyncio.CancelledError):
                self._log.warning("interceptor %s failed in on_acknowledgement of %s", name, metadata, exc_info=True)

    def on_send_error(self, record: Record, partition: int | None, exception: BaseException) -> None:
        """Tell all that ``record`` failed before it was in a batch; ``partition`` is the one chosen, if any."""
        chosen = record.partition if partition is None else partition
        metadata = RecordMetadata(record.topic, _UNKNOWN_PARTITION if chosen is None else chosen, None, None)
        self.on_acknowledgement(metadata, exception, record.headers)

    def close(self) -> None:
        """Close all that can be closed; one that raises is logged and keeps no other from being closed."""
        for name, close in self._close:
            try:
                close()
            except (Exception, asyncio.CancelledError):
                self._log.exception("interceptor %s failed in close", name)


def _method(interceptor: object, name: str) -> Callable[..., object] | None:
    """The method if the object has it and does not merely inherit `ProducerInterceptor`'s, which does nothing."""
    if getattr(type(interceptor), name, None) is getattr(ProducerInterceptor, name):
        return None
    method: object = getattr(interceptor, name, None)
    if not callable(method):
        return None
    if inspect.iscoroutinefunction(method):
        raise TypeError(f"{type(interceptor).__qualname__}.{name} must not be a coroutine function: nobody awaits it")
    return method


def _with_headers(acknowledge: Callable[..., object]) -> _OnAcknowledgement:
    """``acknowledge`` as a function of three arguments, also where it was written before KIP-512 with two."""
    try:
        inspect.signature(acknowledge).bind(None, None, ())
    except TypeError:
        return lambda metadata, exception, headers: acknowledge(metadata, exception)
    return acknowledge
