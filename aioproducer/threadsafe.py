"""A producer for other threads than its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from aioproducer.bulk import SendManyResult
from aioproducer.bulk import Sends as SendsInBulk
from aioproducer.core.delivery import Delivery
from aioproducer.errors import ProducerClosedError
from aioproducer.record import RecordMetadata

_T = TypeVar("_T")


class Sends(SendsInBulk, Protocol):
    """The producer, as far as other threads need it."""

    @property
    def send_many(self) -> Callable[..., Coroutine[Any, Any, SendManyResult]]: ...


class ThreadsafeProducer:
    """``send``, ``send_many`` and ``flush`` for any thread but the loop's, which would wait for itself.

    What goes wrong, goes into the future: nothing but a closed loop raises here. Records of one thread keep their
    order.
    """

    def __init__(self, producer: Sends, loop: asyncio.AbstractEventLoop) -> None:
        self._producer = producer
        self._loop = loop

    def send(
        self, topic: str, value: Any = None, key: Any = None, **options: Any
    ) -> concurrent.futures.Future[RecordMetadata]:
        """``Producer.send``; cancelling the future cancels the Delivery."""
        future: concurrent.futures.Future[RecordMetadata] = concurrent.futures.Future()

        def begin() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                delivery = self._producer.send(topic, value, key, **options)
            except BaseException as error:
                future.set_exception(error)
                return
            delivery.add_done_callback(finish)

        def finish(delivery: Delivery) -> None:
            if delivery.cancelled():
                future.set_exception(concurrent.futures.CancelledError())
                return
            error = delivery.exception()
            if error is None:
                future.set_result(delivery.result())
            else:
                future.set_exception(error)

        self._call(begin)
        return future

    def send_many(self, topic: str, values: Any, **options: Any) -> concurrent.futures.Future[SendManyResult]:
        """``Producer.send_many``."""
        return self._run(lambda: self._producer.send_many(topic, values, **options))

    def flush(self) -> concurrent.futures.Future[None]:
        """``Producer.flush``: of what was sent before, this thread's sends included."""
        return self._run(self._producer.flush)

    def _run(self, make: Callable[[], Coroutine[Any, Any, _T]]) -> concurrent.futures.Future[_T]:
        if self._loop.is_closed():
            raise ProducerClosedError("this producer's event loop is closed")
        return asyncio.run_coroutine_threadsafe(make(), self._loop)

    def _call(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError as error:
            raise ProducerClosedError("this producer's event loop is closed") from error
