"""Compiled. Conversion of messages to frames, and back.

A frame is a header and a message; a 4-byte size precedes it. Written frames begin with the size, read ones come without
it.

Bytes that are read are not trusted; they raise nothing but :class:`~aioproducer.errors.ProtocolError` and
:class:`~aioproducer.errors.UnsupportedVersionError`.

No Python form: three functions read and write the integers of a header in place if they may (``cython.compiled``).
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Final, TypeVar, cast

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol.apis import APIS, Api, ApiKey
from aioproducer.protocol.codec import message_codec
from aioproducer.protocol.messages.api_versions import ApiVersionsResponse
from aioproducer.protocol.messages.headers import RequestHeader, ResponseHeader
from aioproducer.protocol.messages.produce import ProduceResponse
from aioproducer.protocol.produce_frames import Acknowledged, PlainProduceRequest
from aioproducer.protocol.schema import Buffer, Data, Message, Request, Response
from aioproducer.protocol.values import LONGEST_FRAME, Output, StructCodec

if TYPE_CHECKING and not TYPE_CHECKING:
    # Read by Cython alone.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
else:
    # The compiled module has them from its .pxd file.
    from aioproducer.protocol.produce_frames import decode_acknowledged, encode_plain_request, read_integer

M = TypeVar("M", bound=Message)
DataT = TypeVar("DataT", bound=Data)
ResponseT = TypeVar("ResponseT", bound=Response)

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_CORRELATION_ID_AT: Final = 8
_PRODUCE: Final = int(ApiKey.PRODUCE)
"""Where a request has its correlation id: behind size, API key and version, in every version of the header."""


def encode(message: Message, version: int) -> list[Buffer]:
    """``message`` alone, without size and header, as a gather list in which records stand by reference.

    Raises:
        UnsupportedVersionError: there is no such version, or a field is set that it lacks and that must not be dropped.
        ProtocolError: a value does not fit its field.
    """
    output = Output()
    message_codec(type(message), version).write(output, message)
    return output.finish()


def decode(message_class: type[M], version: int, buffer: Buffer) -> M:
    """The message that ``buffer`` holds, and nothing else: the reverse of ``encode``.

    Records are views of ``buffer``, everything else is copied.

    Raises:
        UnsupportedVersionError: there is no such version.
        ProtocolError: the bytes are not such a message.
    """
    return _decode(message_class, version, _view(buffer), 0)


def encode_request(
    request: Request[Response] | PlainProduceRequest, version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """A whole request as a gather list: size, header and message, records by reference.

    The buffers of records must not change until the list was sent.

    Raises:
        UnsupportedVersionError: there is no such version, or a field is set that it lacks and that must not be dropped.
        ProtocolError: a value does not fit its field, or the frame would be larger than 2 GiB.
    """
    if isinstance(request, PlainProduceRequest):
        if cython.compiled:
            # Of a flexible version: others have no short way.
            start = _produce_head(version, client_id)
            buffers = encode_plain_request(start, _CORRELATION_ID_AT, request, version, correlation_id)
            if buffers is not None:
                return buffers
        request = request.message()
    message: Request[Response] = request
    codec = message_codec(type(message), version)
    schema = message.schema
    head = bytearray(_request_head(schema.api_key, version, 2 if version in schema.flexible else 1, client_id))
    try:
        _INT32.pack_into(head, _CORRELATION_ID_AT, correlation_id)
    except struct.error as error:
        raise ProtocolError(f"a request cannot have the correlation id {correlation_id}: {error}") from error
    return _frame(head, message, codec)


@functools.lru_cache(maxsize=256)
def _request_head(api_key: int, version: int, header_version: int, client_id: str | None) -> bytes:
    """Room for the size, and a header that lacks only the correlation id: the same for many requests."""
    header = RequestHeader(request_api_key=api_key, request_api_version=version, client_id=client_id)
    return b"".join([bytes(_INT32.size), *encode(header, header_version)])


# The version and client id that the last Produce request had, and how it began.
_produced: tuple[int, str | None, bytes] = (-1, None, b"")


def _produce_head(version: int, client_id: str | None) -> bytes:
    """``_request_head`` of a Produce request: as a rule the one before had the same."""
    global _produced
    last_version, last_id, head = _produced
    if version != last_version or client_id is not last_id:
        head = _request_head(_PRODUCE, version, 2, client_id)
        _produced = (version, client_id, head)
    return head


def frame_size(start: Buffer) -> int:
    """Bytes of the frame that begins with ``start``, its size in front among them."""
    if cython.compiled and type(start) is bytes and len(start) >= 4:
        return read_integer(cython.cast(cython.p_uchar, PyBytes_AS_STRING(start)), 4) + 4
    return int.from_bytes(start[:4], "big") + 4


def encode_response(message: Response, version: int, correlation_id: int) -> list[Buffer]:
    """A whole response as a gather list; as ``encode_request``."""
    codec = message_codec(type(message), version)
    header = ResponseHeader(correlation_id=correlation_id)
    head = bytearray(_INT32.size)
    for buffer in encode(header, _response_header_version(type(message), version)):
        head += buffer
    return _frame(head, message, codec)


def decode_correlation_id(frame: Buffer) -> int:
    """The correlation id of a response of which nothing else is known.

    Raises:
        ProtocolError: the frame is too short to have one.
    """
    if len(frame) < _INT32.size:
        raise ProtocolError(f"a response of {len(frame)} bytes is too short for a correlation id")
    (correlation_id,) = _INT32.unpack_from(frame)
    return int(correlation_id)


def decode_response(response_class: type[ResponseT], version: int, frame: Buffer) -> tuple[int, ResponseT]:
    """The correlation id and message of a response to a request of ``version``.

    Records are views of ``frame``, everything else is copied. What follows the message is left alone: librdkafka's mock
    broker ends some of its Metadata responses with a byte too many.

    Raises:
        UnsupportedVersionError: there is no such version.
        ProtocolError: the frame is not such a response.
    """
    view = _view(frame)
    header_codec, codec = _response_codecs(response_class, version)
    position = 0
    try:
        header, position = header_codec.read(view, 0)
        message, _ = codec.read(view, position)
    except (struct.error, IndexError) as error:
        if position:
            raise _cut_off(response_class, version, len(view) - position) from error
        raise _cut_off(ResponseHeader, _response_header_version(response_class, version), len(view)) from error
    return cast("ResponseHeader", header).correlation_id, cast("ResponseT", message)


def decode_produced(version: int, frame: Buffer) -> Acknowledged | ProduceResponse:
    """The response to a Produce request, in its short form where compiled modules find one.

    Raises:
        UnsupportedVersionError, ProtocolError: as ``decode_response``.
    """
    if cython.compiled and type(frame) is bytes:
        acknowledged = decode_acknowledged(frame, version)
        if acknowledged is not None:
            return acknowledged
    return decode_response(ProduceResponse, version, frame)[1]


@functools.cache
def _response_codecs(response_class: type[Response], version: int) -> tuple[StructCodec, StructCodec]:
    """Those of a response's header and of itself."""
    header_version = _response_header_version(response_class, version)
    return message_codec(ResponseHeader, header_version), message_codec(response_class, version)


def decode_api_versions_response(version: int, frame: Buffer) -> tuple[int, ApiVersionsResponse]:
    """The response to an ApiVersions request of ``version``, which may be of version 0 instead (KIP-511).

    A broker that does not know the request's version answers with error code 35 (UNSUPPORTED_VERSION) in a version that
    everybody can read; ``api_keys`` then says at least which versions of ApiVersions the broker knows. Java's
    ``ApiVersionsResponse.parse`` decides by trying; the error code stands at the same place in every version. Where
    what follows the error code makes no sense, as with librdkafka's mock broker, no versions are named.
    """
    view = _view(frame)
    if len(view) < 6 or _INT16.unpack_from(view, 4) != (UnsupportedVersionError.code,):
        return decode_response(ApiVersionsResponse, version, view)
    try:
        return decode_response(ApiVersionsResponse, 0, view)
    except ProtocolError:
        return decode_correlation_id(view), ApiVersionsResponse(error_code=UnsupportedVersionError.code)


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, memoryview]:
    """The header of a request, of whatever version, and what follows it.

    Raises:
        ProtocolError: the frame has no such header, or the api key is none of ``APIS``.
    """
    view = _view(frame)
    if len(view) < 4:
        raise ProtocolError(f"a request of {len(view)} bytes is too short for a header")
    (api_key,) = _INT16.unpack_from(view, 0)
    (version,) = _INT16.unpack_from(view, 2)
    api = _api(api_key)
    header, position = _decode_prefix(RequestHeader, 2 if version in api.flexible else 1, view, 0)
    return header, view[position:]


def decode_request(frame: Buffer) -> tuple[RequestHeader, Request[Response]]:
    """The header and message of a request.

    Records are views of ``frame``, everything else is copied.

    Raises:
        UnsupportedVersionError: the request's version is not known; ``decode_request_header`` can read the header.
        ProtocolError: the frame is not a request, or its api key is none of ``APIS``.
    """
    header, body = decode_request_header(frame)
    return header, decode(_api(header.request_api_key).request, header.request_api_version, body)


def encode_version_prefixed(message: Data, version: int) -> bytes:
    """``message`` behind its version, as the consumer's subscription and assignment are kept in bytes fields."""
    return b"".join([_INT16.pack(version), *encode(message, version)])


def decode_version_prefixed(data_class: type[DataT], buffer: Buffer, as_version: int | None = None) -> DataT:
    """The reverse of ``encode_version_prefixed``.

    A version newer than ours is read as our newest and what follows is left alone (Kafka's ``ConsumerProtocol``);
    with ``as_version`` it is read as that one, whatever version it says it is.

    Raises:
        ProtocolError: the bytes are not such a message.
    """
    view = _view(buffer)
    if len(view) < _INT16.size:
        raise ProtocolError(f"{len(view)} bytes are too short for the version of a {data_class.__name__}")
    version = as_version
    if version is None:
        (said,) = _INT16.unpack_from(view)
        if said < 0:
            raise ProtocolError(f"{data_class.__name__} cannot have the version {said}")
        version = min(said, data_class.schema.versions[-1])
    message, _ = _decode_prefix(data_class, version, view, _INT16.size)
    return message


def _api(api_key: int) -> Api:
    try:
        return APIS[ApiKey(api_key)]
    except (KeyError, ValueError):
        raise ProtocolError(f"no request with the api key {api_key} is known") from None


def _response_header_version(response_class: type[Response], version: int) -> int:
    """0 or 1; always 0 for ApiVersions, whose reader cannot know yet what the broker speaks (KIP-511)."""
    return int(version in response_class.schema.flexible and response_class is not ApiVersionsResponse)


def _frame(head: bytearray, message: Message, codec: StructCodec) -> list[Buffer]:
    """The message behind ``head``, which begins with room for the size."""
    output = Output()
    output.tail = head
    codec.write(output, message)
    size = output.size - _INT32.size
    if size > LONGEST_FRAME:
        raise ProtocolError(f"{type(message).__name__} takes {size} bytes, but a frame has at most {LONGEST_FRAME}")
    _INT32.pack_into(head, 0, size)
    return output.finish()


def _view(buffer: Buffer) -> memoryview:
    """``buffer`` as single bytes."""
    view = memoryview(buffer)
    if isinstance(buffer, bytes):
        return view
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _decode(message_class: type[M], version: int, view: memoryview, position: int) -> M:
    message, end = _decode_prefix(message_class, version, view, position)
    if end != len(view):
        raise ProtocolError(
            f"{message_class.__name__} of version {version} is followed by {len(view) - end} more bytes"
        )
    return message


def _decode_prefix(message_class: type[M], version: int, view: memoryview, position: int) -> tuple[M, int]:
    codec = message_codec(message_class, version)
    try:
        message, end = codec.read(view, position)
    except (struct.error, IndexError) as error:
        raise _cut_off(message_class, version, len(view) - position) from error
    return cast("M", message), end


def _cut_off(message_class: type[Message], version: int, there: int) -> ProtocolError:
    return ProtocolError(f"{message_class.__name__} of version {version} is cut off after {there} bytes")
