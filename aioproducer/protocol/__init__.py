"""The Kafka protocol: every message is declared once for all of its versions, and encoded and decoded by that.

Sans-IO, for both sides: the producer writes requests and reads responses, the embedded broker the reverse, by the same
declarations.

* ``aioproducer.protocol.messages`` has the requests and responses; their structs are in the module of their family, for
  example ``aioproducer.protocol.messages.produce.PartitionProduceData``. ``schema`` describes declarations.
* ``ApiKey`` has the numbers of all of Kafka's requests, ``APIS`` the supported requests with their versions.
  ``ProduceRequest.response_class()`` is ``ProduceResponse``, also to a type checker.
* ``encode_request`` and ``encode_response`` return whole frames as gather lists, records by reference;
  ``decode_request`` and ``decode_response`` read frames without their 4-byte size, records as views of the frame,
  everything else copied. ``encode`` and ``decode`` do the same for a message alone.
* ``aioproducer.protocol.produce_frames`` has the short form of Produce that producers use: ``encode_request`` accepts
  it, ``decode_produced`` returns it.

A malformed frame raises ``ProtocolError``. A version that is not in ``APIS`` raises ``UnsupportedVersionError``. So
does a field that is set but missing in the version, unless it is declared ``ignorable``.
"""

from __future__ import annotations

from aioproducer.protocol.apis import APIS, Api, ApiKey
from aioproducer.protocol.frames import (
    decode,
    decode_api_versions_response,
    decode_correlation_id,
    decode_produced,
    decode_request,
    decode_request_header,
    decode_response,
    decode_version_prefixed,
    encode,
    encode_request,
    encode_response,
    encode_version_prefixed,
    frame_size,
)
from aioproducer.protocol.messages.headers import RequestHeader, ResponseHeader
from aioproducer.protocol.schema import ZERO_UUID, Buffer, Message, Records, Request, Response

__all__ = [
    "APIS",
    "ZERO_UUID",
    "Api",
    "ApiKey",
    "Buffer",
    "Message",
    "Records",
    "Request",
    "RequestHeader",
    "Response",
    "ResponseHeader",
    "decode",
    "decode_api_versions_response",
    "decode_correlation_id",
    "decode_produced",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "decode_version_prefixed",
    "encode",
    "encode_request",
    "encode_response",
    "encode_version_prefixed",
    "frame_size",
]
