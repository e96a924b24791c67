"""Compiled. Conversion of messages to frames, and back.

A frame is a header and a message, behind a 4-byte size. Encoded frames begin with the size, decoded ones come without
it.

Bytes to decode are not trusted: the only errors are :class:`~aioproducer.errors.ProtocolError` and
:class:`~aioproducer.errors.UnsupportedVersionError`.

No Python form: three functions read and write the integers of a header in place if ``cython.compiled``.
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
    # Only Cython needs this.
    import cython
else:
    from aioproducer._common.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
else:
    # The compiled module has these from its .pxd file.
    from aioproducer.protocol.produce_frames import decode_acknowledged, encode_plain_request
    from aioproducer.wire.record_batch import read_integer

M = TypeVar("M", bound=Message)
DataT = TypeVar("DataT", bound=Data)
ResponseT = TypeVar("ResponseT", bound=Response)

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_CORRELATION_ID_AT: Final = 8
_PRODUCE: Final = int(ApiKey.PRODUCE)
"""The position of a request's correlation id: behind size, API key and version, in every version of the header."""


def encode(message: Message, version: int) -> list[Buffer]:
    """Encode ``message`` alone, without size and header, as a gather list with records by reference.

    Raises:
        UnsupportedVersionError: the version does not exist, or lacks a field that is set and not ignorable.
        ProtocolError: a value does not fit its field.
    """
    output = Output()
    message_codec(type(message), version).write(output, message)
    return output.finish()


def decode(message_class: type[M], version: int, buffer: Buffer) -> M:
    """Decode the message in ``buffer``, which contains nothing else: the reverse of ``encode``.

    Records are views of ``buffer``, everything else is copied.

    Raises:
        UnsupportedVersionError: there is no such version.
        ProtocolError: the bytes are not such a message.
    """
    return _decode(message_class, version, _view(buffer), 0)


def encode_request(
    request: Request[Response] | PlainProduceRequest, version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """Encode a whole request as a gather list: size, header and message, records by reference.

    The buffers of records must not change until the list was sent.

    Raises:
        UnsupportedVersionError: the version does not exist, or lacks a field that is set and not ignorable.
        ProtocolError: a value does not fit its field, or the frame would be larger than 2 GiB.
    """
    if isinstance(request, PlainProduceRequest):
        if cython.compiled:
            # Only flexible versions have a short form.
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
        raise ProtocolError(f"invalid correlation id {correlation_id}: {error}") from error
    return _frame(head, message, codec)


@functools.lru_cache(maxsize=256)
def _request_head(api_key: int, version: int, header_version: int, client_id: str | None) -> bytes:
    """Return room for the size, and a header that lacks only the correlation id: the same for many requests."""
    header = RequestHeader(request_api_key=api_key, request_api_version=version, client_id=client_id)
    return b"".join([bytes(_INT32.size), *encode(header, header_version)])


# Version, client id and start of the last Produce request.
_produced: tuple[int, str | None, bytes] = (-1, None, b"")


def _produce_head(version: int, client_id: str | None) -> bytes:
    """``_request_head`` of a Produce request, cached: usually the previous request had the same."""
    global _produced
    last_version, last_id, head = _produced
    if version != last_version or client_id is not last_id:
        head = _request_head(_PRODUCE, version, 2, client_id)
        _produced = (version, client_id, head)
    return head


def frame_size(start: Buffer) -> int:
    """Return the size of the frame that begins with ``start``, including its size field."""
    if cython.compiled and type(start) is bytes and len(start) >= 4:
        return read_integer(cython.cast(cython.p_uchar, PyBytes_AS_STRING(start)), 4) + 4
    return int.from_bytes(start[:4], "big") + 4


def encode_response(message: Response, version: int, correlation_id: int) -> list[Buffer]:
    """Encode a whole response as a gather list; see ``encode_request``."""
    codec = message_codec(type(message), version)
    header = ResponseHeader(correlation_id=correlation_id)
    head = bytearray(_INT32.size)
    for buffer in encode(header, _response_header_version(type(message), version)):
        head += buffer
    return _frame(head, message, codec)


def decode_correlation_id(frame: Buffer) -> int:
    """Return the correlation id of an unknown response.

    Raises:
        ProtocolError: the frame is too short to have one.
    """
    if len(frame) < _INT32.size:
        raise ProtocolError(f"a response of {len(frame)} bytes is too short for a correlation id")
    (correlation_id,) = _INT32.unpack_from(frame)
    return int(correlation_id)


def decode_response(response_class: type[ResponseT], version: int, frame: Buffer) -> tuple[int, ResponseT]:
    """Return the correlation id and message of a response to a request of ``version``.

    Records are views of ``frame``, everything else is copied. Bytes behind the message are ignored: librdkafka's mock
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
    """Decode the response to a Produce request, into its short form if the compiled modules support it.

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
    """Return the codecs of a response's header and message."""
    header_version = _response_header_version(response_class, version)
    return message_codec(ResponseHeader, header_version), message_codec(response_class, version)


def decode_api_versions_response(version: int, frame: Buffer) -> tuple[int, ApiVersionsResponse]:
    """Decode the response to an ApiVersions request of ``version``, which may be of version 0 instead (KIP-511).

    A broker that does not know the request's version answers with error code 35 (UNSUPPORTED_VERSION) in version 0;
    ``api_keys`` then contains at least the versions of ApiVersions that the broker knows. Java's
    ``ApiVersionsResponse.parse`` tries both; here the error code decides, which has the same position in every version.
    If the bytes behind it are invalid, as with librdkafka's mock broker, the result has no versions.
    """
    view = _view(frame)
    if len(view) < 6 or _INT16.unpack_from(view, 4) != (UnsupportedVersionError.code,):
        return decode_response(ApiVersionsResponse, version, view)
    try:
        return decode_response(ApiVersionsResponse, 0, view)
    except ProtocolError:
        return decode_correlation_id(view), ApiVersionsResponse(error_code=UnsupportedVersionError.code)


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, memoryview]:
    """Decode the header of a request of any version, and return it with the bytes behind it.

    Raises:
        ProtocolError: the frame has no such header, or its API key is not in ``APIS``.
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
    """Decode the header and message of a request.

    Records are views of ``frame``, everything else is copied.

    Raises:
        UnsupportedVersionError: the request's version is unknown; ``decode_request_header`` can read the header.
        ProtocolError: the frame is not a request, or its API key is not in ``APIS``.
    """
    header, body = decode_request_header(frame)
    return header, decode(_api(header.request_api_key).request, header.request_api_version, body)


def encode_version_prefixed(message: Data, version: int) -> bytes:
    """Encode ``message`` behind its version, as subscriptions and assignments of consumers in bytes fields."""
    return b"".join([_INT16.pack(version), *encode(message, version)])


def decode_version_prefixed(data_class: type[DataT], buffer: Buffer, as_version: int | None = None) -> DataT:
    """The reverse of ``encode_version_prefixed``.

    A newer version than the newest known one is decoded as that, and the bytes behind it are ignored (Kafka's
    ``ConsumerProtocol``). With ``as_version`` the bytes are decoded as that version, whatever version they state.

    Raises:
        ProtocolError: the bytes are not such a message.
    """
    view = _view(buffer)
    if len(view) < _INT16.size:
        raise ProtocolError(f"{len(view)} bytes are too short for the version of a {data_class.__name__}")
    version = as_version
    if version is None:
        (stated,) = _INT16.unpack_from(view)
        if stated < 0:
            raise ProtocolError(f"invalid version {stated} of {data_class.__name__}")
        version = min(stated, data_class.schema.versions[-1])
    message, _ = _decode_prefix(data_class, version, view, _INT16.size)
    return message


def _api(api_key: int) -> Api:
    try:
        return APIS[ApiKey(api_key)]
    except (KeyError, ValueError):
        raise ProtocolError(f"unknown API key {api_key}") from None


def _response_header_version(response_class: type[Response], version: int) -> int:
    """Return 0 or 1; always 0 for ApiVersions, since its reader does not know the broker's versions yet (KIP-511)."""
    return int(version in response_class.schema.flexible and response_class is not ApiVersionsResponse)


def _frame(head: bytearray, message: Message, codec: StructCodec) -> list[Buffer]:
    """Append the message to ``head``, which begins with room for the size."""
    output = Output()
    output.tail = head
    codec.write(output, message)
    size = output.size - _INT32.size
    if size > LONGEST_FRAME:
        raise ProtocolError(f"{type(message).__name__} takes {size} bytes (a frame has at most {LONGEST_FRAME})")
    _INT32.pack_into(head, 0, size)
    return output.finish()


def _view(buffer: Buffer) -> memoryview:
    """Return ``buffer`` as single bytes."""
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
