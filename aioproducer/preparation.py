"""What a user's interceptors and serializers make of a record before it is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aioproducer.config import ProducerConfig
from aioproducer.core.delivery import Delivery
from aioproducer.interceptors import InterceptorChain
from aioproducer.record import Record, RecordHeader, RecordMetadata
from aioproducer.serializers import BytesSerializer, resolve
from aioproducer.wire.record_batch import Buffer

Serialized = tuple[Buffer | None, Buffer | None, tuple[RecordHeader, ...]]


class Prepared(NamedTuple):
    """A record's bytes, or the awaitable that will give them."""

    key: Buffer | None
    value: Buffer | None
    headers: tuple[RecordHeader, ...]
    awaitable: Awaitable[Serialized] | None


class Preparation:
    """The configured interceptors and serializers."""

    def __init__(self, config: ProducerConfig) -> None:
        self._chain = InterceptorChain(config.interceptor_classes)
        self._serialize_key = resolve(_or_bytes(config.key_serializer), "key")
        self._serialize_value = resolve(_or_bytes(config.value_serializer), "value")
        self.wants_acknowledgements = self._chain.wants_acknowledgements
        self.is_idle = (
            config.key_serializer is None
            and config.value_serializer is None
            and not self._chain.wants_records
            and not self._chain.wants_acknowledgements
        )

    def intercept(self, record: Record) -> Record:
        return self._chain.on_send(record)

    def serialize(self, record: Record) -> Prepared:
        """Key first, then value; serializers may add headers, which are frozen afterwards.

        Raises:
            SerializationError: one failed.
        """
        headers = list(record.headers)
        key = self._serialize_key(record.topic, record.key, headers)
        value = self._serialize_value(record.topic, record.value, headers)
        if isinstance(key, Awaitable) or isinstance(value, Awaitable):

            async def finish() -> Serialized:
                done_key = await key if isinstance(key, Awaitable) else key
                done_value = await value if isinstance(value, Awaitable) else value
                return done_key, done_value, tuple(headers)

            return Prepared(None, None, tuple(headers), finish())
        return Prepared(key, value, tuple(headers), None)

    def send_failed(self, record: Record, error: BaseException) -> None:
        self._chain.on_send_error(record, record.partition, error)

    def acknowledge(self, record: Record, headers: tuple[RecordHeader, ...]) -> Callable[[Delivery], None]:
        """The callback that tells the interceptors of the record's outcome."""

        def tell(delivery: Delivery) -> None:
            unknown = RecordMetadata(record.topic, -1 if record.partition is None else record.partition, None, None)
            if delivery.cancelled():
                return
            error = delivery.exception()
            self._chain.on_acknowledgement(unknown if error else delivery.result(), error, headers)

        return tell

    def close(self) -> None:
        self._chain.close()


def _or_bytes(serializer: object) -> object:
    return BytesSerializer() if serializer is None else serializer
