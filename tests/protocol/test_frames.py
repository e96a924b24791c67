"""Whole requests and responses, with size and header."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol import (
    APIS,
    ApiKey,
    Buffer,
    RequestHeader,
    decode_api_versions_response,
    decode_correlation_id,
    decode_request,
    decode_request_header,
    decode_response,
    decode_version_prefixed,
    encode,
    encode_request,
    encode_response,
    encode_version_prefixed,
)
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)
from aioproducer.protocol.messages.api_versions import ApiVersion
from aioproducer.protocol.messages.consumer_protocol import TopicPartition
from aioproducer.protocol.messages.produce import PartitionProduceData, TopicProduceData


def frame_of(buffers: list[Buffer]) -> bytes:
    """Return the bytes behind the size, and check the size."""
    joined = b"".join(buffers)
    assert int.from_bytes(joined[:4], "big") == len(joined) - 4
    return joined[4:]


def test_a_request_is_encoded_as_specified() -> None:
    assert encode_request(MetadataRequest(topics=None), 1, 5, "me") == [
        b"\0\0\0\x10\0\3\0\1\0\0\0\5\0\2me\xff\xff\xff\xff"
    ]
    assert encode_request(MetadataRequest(topics=None), 12, -1, None) == [
        b"\0\0\0\x0f\0\3\0\x0c\xff\xff\xff\xff\xff\xff\0\0\1\0\0"
    ]


def test_a_response_is_decoded_as_specified() -> None:
    assert encode_response(MetadataResponse(), 0, 5) == [b"\0\0\0\x0c\0\0\0\5" + bytes(8)]
    flexible = b"\0\0\0\7\0" + bytes(4) + b"\1\0\xff\xff\xff\xff\1\0"
    assert encode_response(MetadataResponse(), 12, 7) == [len(flexible).to_bytes(4, "big") + flexible]


def test_records_are_passed_by_reference() -> None:
    records = [bytearray(b"header"), memoryview(b"body")]
    data = [TopicProduceData(topic_id=b"\1" * 16, partition_data=[PartitionProduceData(index=1, records=records)])]
    buffers = encode_request(ProduceRequest(acks=-1, topic_data=data), 13, 1, "me")
    assert buffers[1] is records[0]
    assert buffers[2] is records[1]
    frame = frame_of(buffers)
    header, message = decode_request(frame)
    assert header.request_api_version == 13
    assert isinstance(message, ProduceRequest)
    view = message.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    assert view.obj is frame
    assert view == b"headerbody"


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
def test_every_request_and_response_round_trips(api: Any, full_instance: Any) -> None:
    for version in api.versions:
        request, response = full_instance(api.request, version), full_instance(api.response, version)
        header, read = decode_request(frame_of(encode_request(request, version, 2**31 - 1, "client")))
        assert read == request
        assert header == RequestHeader(
            request_api_key=api.key, request_api_version=version, correlation_id=2**31 - 1, client_id="client"
        )
        frame = frame_of(encode_response(response, version, 77))
        assert decode_correlation_id(frame) == 77
        assert decode_response(api.response, version, frame) == (77, response)


def test_the_header_of_an_unknown_version_is_read() -> None:
    """A broker responds to an ApiVersions request of any version, and must read its header first."""
    frame = b"\0\x12\0\x63\0\0\0\5\0\2me\1\0\1xwhatever"
    header, body = decode_request_header(frame)
    assert header == RequestHeader(
        request_api_key=ApiKey.API_VERSIONS, request_api_version=99, correlation_id=5, client_id="me"
    )
    assert body == b"whatever"
    with pytest.raises(UnsupportedVersionError, match="ApiVersionsRequest has no version 99: use 0 to 5"):
        decode_request(frame)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"\0\3\0", "a request of 3 bytes is too short for a header"),
        (b"\0\3\0\1\0\0\0", "RequestHeader of version 1 is cut off after 7 bytes"),
        (b"\0\4" + bytes(8), "unknown API key 4"),
        (b"\x7f\xff" + bytes(8), "unknown API key 32767"),
        (b"\0\3\0\1" + bytes(4) + b"\0\0", "MetadataRequest of version 1 is cut off after 0 bytes"),
        (b"\0\3\0\1" + bytes(4) + b"\0\0" + bytes(5), "MetadataRequest of version 1 is followed by 1 more bytes"),
    ],
)
def test_a_malformed_request_is_rejected(frame: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(text)):
        decode_request(frame)


def test_a_malformed_response_is_rejected() -> None:
    with pytest.raises(ProtocolError, match="a response of 3 bytes is too short for a correlation id"):
        decode_correlation_id(b"\0\0\0")
    with pytest.raises(ProtocolError, match="ResponseHeader of version 0 is cut off after 3 bytes"):
        decode_response(MetadataResponse, 0, b"\0\0\0")
    with pytest.raises(ProtocolError, match="ResponseHeader of version 1 is cut off after 4 bytes"):
        decode_response(MetadataResponse, 12, b"\0\0\0\1")


def test_tags_of_a_response_header_are_skipped() -> None:
    body = b"".join(encode(MetadataResponse(), 12))
    assert decode_response(MetadataResponse, 12, b"\0\0\0\1\1\3\2xy" + body) == (1, MetadataResponse())


def test_a_surplus_byte_after_a_response_is_ignored() -> None:
    body = b"".join(encode(MetadataResponse(), 9))
    assert decode_response(MetadataResponse, 9, b"\0\0\0\1\0" + body + b"\0") == (1, MetadataResponse())


class TestApiVersions:
    apis: ClassVar = [ApiVersion(api_key=18, min_version=0, max_version=2)]

    @pytest.mark.parametrize("version", range(6))
    def test_the_response_always_has_the_oldest_header(self, version: int) -> None:
        response = ApiVersionsResponse(error_code=42, api_keys=self.apis)
        frame = frame_of(encode_response(response, version, 3))
        assert frame[:6] == b"\0\0\0\3\0\x2a"
        assert decode_api_versions_response(version, frame) == (3, response)
        assert decode_response(ApiVersionsResponse, version, frame) == (3, response)

    def test_a_broker_without_the_version_responds_in_version_0(self) -> None:
        answer = ApiVersionsResponse(error_code=35, api_keys=self.apis)
        frame = frame_of(encode_response(answer, 0, 3))
        assert decode_api_versions_response(4, frame) == (3, answer)

    def test_any_other_error_has_the_requested_version(self) -> None:
        answer = ApiVersionsResponse(error_code=42, api_keys=self.apis, throttle_time_ms=9)
        assert decode_api_versions_response(4, frame_of(encode_response(answer, 4, 3))) == (3, answer)

    def test_a_malformed_response_is_rejected(self) -> None:
        for length in range(6):
            with pytest.raises(ProtocolError, match="is cut off"):
                decode_api_versions_response(4, b"\0\0\0\1\0\x23"[:length])
        with pytest.raises(ProtocolError, match="is cut off"):
            decode_api_versions_response(0, b"\0\0\0\1\0\0\0\0")

    def test_an_unreadable_rest_after_unsupported_version_yields_no_versions(self) -> None:
        # The response of librdkafka's mock broker to versions above its own.
        body = bytes.fromhex("0023 01 0012 0000 0002 00 00000000")
        nothing_named = ApiVersionsResponse(error_code=35)
        assert decode_api_versions_response(3, b"\0\0\0\7" + body) == (7, nothing_named)

    def test_the_request_names_the_client_software_only_in_versions_with_that_field(self) -> None:
        request = ApiVersionsRequest(client_software_name="aioproducer", client_software_version="1", cluster_id="c")
        assert b"aioproducer" in frame_of(encode_request(request, 3, 1, None))
        assert frame_of(encode_request(request, 0, 1, None)) == b"\0\x12\0\0\0\0\0\1\xff\xff"


class TestVersionPrefixed:
    subscription = ConsumerProtocolSubscription(
        topics=["t"], owned_partitions=[TopicPartition(topic="t", partitions=[1])], generation_id=4, rack_id="r"
    )

    def test_round_trip(self) -> None:
        encoded = encode_version_prefixed(self.subscription, 3)
        assert encoded[:2] == b"\0\3"
        assert decode_version_prefixed(ConsumerProtocolSubscription, encoded) == self.subscription

    def test_a_newer_version_is_read_up_to_the_known_fields(self) -> None:
        newer = b"\0\x09" + encode_version_prefixed(self.subscription, 3)[2:] + b"what is new"
        assert decode_version_prefixed(ConsumerProtocolSubscription, newer) == self.subscription

    def test_a_message_can_be_decoded_as_another_version_than_it_states(self) -> None:
        said = encode_version_prefixed(self.subscription, 3)
        first = decode_version_prefixed(ConsumerProtocolSubscription, said, as_version=0)
        assert first.topics == self.subscription.topics
        assert first == decode_version_prefixed(ConsumerProtocolSubscription, b"\0\0" + said[2:])
        assert first == decode_version_prefixed(ConsumerProtocolSubscription, b"\xff\xff" + said[2:], as_version=0)

    def test_malformed(self) -> None:
        with pytest.raises(
            ProtocolError, match="1 bytes are too short for the version of a ConsumerProtocolAssignment"
        ):
            decode_version_prefixed(ConsumerProtocolAssignment, b"\0")
        with pytest.raises(ProtocolError, match="invalid version -1 of ConsumerProtocolAssignment"):
            decode_version_prefixed(ConsumerProtocolAssignment, b"\xff\xff\0\0")
        with pytest.raises(ProtocolError, match="ConsumerProtocolAssignment of version 0 is cut off after 3 bytes"):
            decode_version_prefixed(ConsumerProtocolAssignment, b"\0\0\0\0\0")


def test_a_frame_has_at_most_2_gib() -> None:
    mebibyte = bytes(2**20)
    data = [
        TopicProduceData(partition_data=[PartitionProduceData(index=i, records=[mebibyte] * 1024) for i in range(2)])
    ]
    with pytest.raises(ProtocolError, match=r"ProduceRequest takes \d+ bytes \(a frame has at most 2147483647\)"):
        encode_request(ProduceRequest(topic_data=data), 13, 1, None)


def test_every_api_lists_its_versions() -> None:
    produce = APIS[ApiKey.PRODUCE]
    assert produce.request is ProduceRequest
    assert (produce.min_version, produce.max_version) == (3, 13)
    assert 9 in produce.flexible
    assert 8 not in produce.flexible
    assert [key.value for key in APIS] == sorted(APIS)


def test_each_client_version_and_id_has_its_own_header() -> None:
    for version in (3, 9, 13, 9):
        for client_id in ("one", None, "", "another", "one"):
            for correlation_id in (0, 7, 2**31 - 1):
                data = b"".join(encode_request(ProduceRequest(), version, correlation_id, client_id))
                assert int.from_bytes(data[:4], "big") == len(data) - 4
                header, message = decode_request(data[4:])
                assert header == RequestHeader(
                    request_api_key=0, request_api_version=version, correlation_id=correlation_id, client_id=client_id
                )
                assert message == ProduceRequest()


@pytest.mark.parametrize("correlation_id", [2**31, -(2**31) - 1])
def test_a_correlation_id_has_32_bits(correlation_id: int) -> None:
    with pytest.raises(ProtocolError, match=f"invalid correlation id {correlation_id}"):
        encode_request(ProduceRequest(), 13, correlation_id, "client")
