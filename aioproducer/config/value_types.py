"""Types of the values that are neither numbers nor text, for type checkers: what plug-in keys and logins accept.

They accept everything that the client accepts. The parameters of methods have no names here: the client passes them by
position, so that an implementation may name them as it likes.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, SupportsIndex, TypeAlias

from aioproducer.config.definition import Password
from aioproducer.partitioner import ClusterView
from aioproducer.record import HeaderPair, Record
from aioproducer.serializers import Serialized


class SerializerObject(Protocol):
    """An object that serializes keys or values."""

    # Any: a serializer may accept values of one type only.
    def serialize(self, topic: str, value: Any, headers: list[HeaderPair], /) -> Serialized | Awaitable[Serialized]: ...


class DeserializerObject(Protocol):
    """An object that deserializes keys or values."""

    def deserialize(self, topic: str, data: bytes | None, headers: tuple[HeaderPair, ...], /) -> object: ...


class PartitionerObject(Protocol):
    """An object that chooses the partitions of records."""

    def partition(
        self, topic: str, key: bytes | None, value: bytes | None, cluster: ClusterView, /
    ) -> SupportsIndex: ...


class SendInterceptor(Protocol):
    """An object that receives each record before it is sent."""

    def on_send(self, record: Record, /) -> Record: ...


class HeadersInterceptor(Protocol):
    """An object that receives the headers of each record, and may append to them."""

    def on_headers(self, topic: str, headers: list[HeaderPair], /) -> object: ...


class AcknowledgementInterceptor(Protocol):
    """An object that receives the outcome of each record: metadata and exception, and the headers if it takes them."""

    @property
    def on_acknowledgement(self) -> Callable[..., object]: ...


SerializerValue: TypeAlias = (
    SerializerObject | type[SerializerObject] | Callable[[Any], Serialized | Awaitable[Serialized]] | str
)
"""An object or a class with ``serialize``, a function of the value, or the name of one of them."""

DeserializerValue: TypeAlias = DeserializerObject | type[DeserializerObject] | Callable[[bytes], object] | str
"""An object or a class with ``deserialize``, a function of the bytes, or the name of one of them."""

PartitionerValue: TypeAlias = (
    PartitionerObject
    | type[PartitionerObject]
    | Callable[[str, bytes | None, bytes | None, ClusterView], SupportsIndex]
    | str
)
"""An object or a class with ``partition``, a function of the same arguments, or the name of one of them."""

InterceptorValue: TypeAlias = (
    SendInterceptor
    | type[SendInterceptor]
    | HeadersInterceptor
    | type[HeadersInterceptor]
    | AcknowledgementInterceptor
    | type[AcknowledgementInterceptor]
    | str
)
"""An object or a class with ``on_send``, ``on_headers`` or ``on_acknowledgement``, or the name of one of them."""

PasswordValue: TypeAlias = str | Password | Callable[[], str | Password | Awaitable[str | Password]]
"""A password, or a function that returns it."""

Token: TypeAlias = tuple[str, float] | tuple[str, float, str] | tuple[str, float, str, Mapping[str, str]]
"""Token, its expiry in seconds since 1970, its principal and its SASL extensions; ``OAuthBearerToken`` is one."""

TokenProviderValue: TypeAlias = Callable[[], Token | Awaitable[Token]] | str
"""A function that returns a token, plain or async, or ``"module:attribute"``."""

# Any: the ProducerConfig; its module imports these types.
EngineFactoryValue: TypeAlias = Callable[[Any], ssl.SSLContext] | str
"""A function of the ``ProducerConfig`` that returns an ``ssl.SSLContext``, or its name."""
