"""The fast path of Produce gives the same bytes and fields as the general codec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioproducer._client.hot_path import is_compiled
from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol import (
    decode,
    decode_produced,
    decode_response,
    encode,
    encode_request,
    encode_response,
    frame_size,
)
from aioproducer.protocol.messages.headers import RequestHeader
from aioproducer.protocol.messages.leaders import LeaderIdAndEpoch, NodeEndpoint
from aioproducer.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from aioproducer.protocol.produce_frames import Acknowledged, PlainProduceRequest

VERSIONS = st.integers(3, 13)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.one_of(st.text("abc.-_", min_size=1, max_size=249), st.text(max_size=40), st.just("n" * 249))
IDS = st.binary(min_size=16, max_size=16)
RECORDS = st.lists(
    st.one_of(
        st.binary(max_size=300),
        st.integers(0, 1100).map(bytes),
        st.binary(max_size=300).map(memoryview),
        st.binary(max_size=300).map(bytearray),
    ),
    max_size=4,
)


ANY_RECORDS = st.one_of(RECORDS, st.binary(max_size=10), st.none())


def _topics(name: str, topic_id: bytes, partitions: list[PartitionProduceData]) -> TopicProduceData:
    return TopicProduceData(name=name, topic_id=topic_id, partition_data=partitions)


MESSAGES = st.builds(
    ProduceRequest,
    transactional_id=st.one_of(st.none(), st.text(max_size=10)),
    acks=st.one_of(st.sampled_from([-1, 0, 1]), INT16),
    timeout_ms=INT32,
    topic_data=st.lists(
        st.builds(
            _topics,
            NAMES,
            IDS,
            st.lists(st.builds(PartitionProduceData, index=INT32, records=ANY_RECORDS), max_size=4),
        ),
        max_size=4,
    ),
)


def _plain(acks: Any, timeout_ms: Any, batches: Sequence[tuple[str, bytes, int, list[Any]]]) -> PlainProduceRequest:
    targets = [(name, topic_id, partition) for name, topic_id, partition, _ in batches]
    return PlainProduceRequest(acks, timeout_ms, targets, [records for *_, records in batches])


# Topics, of which some occur twice, adjacent or not.
REQUESTS = st.builds(
    _plain,
    st.one_of(st.sampled_from([-1, 0, 1]), INT16),
    INT32,
    st.lists(st.tuples(st.one_of(st.sampled_from(["one", "other"]), NAMES), IDS, INT32, RECORDS), max_size=8),
)


def _by_all_codecs(request: ProduceRequest, version: int, correlation_id: int, client_id: str | None) -> bytes:
    header = RequestHeader(
        request_api_key=0, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    frame = b"".join([*encode(header, 2 if version >= 9 else 1), *encode(request, version)])
    return len(frame).to_bytes(4, "big") + frame


@given(MESSAGES, VERSIONS, st.integers(0, 2**31 - 1), st.one_of(st.none(), st.text(max_size=400)))
@example(
    ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            _topics("n" * 249, bytes(16), [PartitionProduceData(index=p, records=[b"x" * 200]) for p in range(200)])
            for _ in range(200)
        ],
    ),
    12,
    7,
    "aioproducer",
)
@example(
    ProduceRequest(acks=1, timeout_ms=1, topic_data=[_topics("n" * 249, bytes(16), []) for _ in range(20)]), 12, 7, None
)
def test_a_message_is_encoded_like_the_general_codec(
    request: ProduceRequest, version: int, correlation_id: int, client_id: str | None
) -> None:
    try:
        expected = _by_all_codecs(request, version, correlation_id, client_id)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            encode_request(request, version, correlation_id, client_id)
        return
    assert b"".join(encode_request(request, version, correlation_id, client_id)) == expected


@given(REQUESTS, VERSIONS, st.integers(0, 2**31 - 1), st.one_of(st.none(), st.text(max_size=400)))
@example(
    _plain(-1, 30_000, [(f"{t:249}", bytes(16), p, [b"x" * 200]) for t in range(200) for p in range(200)]),
    12,
    7,
    "aioproducer",
)
@example(_plain(1, 1, [(f"{t:249}", bytes(16), 0, [b"x"]) for t in range(20)]), 12, 7, None)
@example(_plain(-1, 1, [("topic", b"", 0, [b"x"])]), 12, 7, None)
@example(_plain(-1, 1, [("topic", b"", 0, [b"x"])]), 13, 7, None)
def test_a_request_is_encoded_like_the_general_codec(
    request: PlainProduceRequest, version: int, correlation_id: int, client_id: str | None
) -> None:
    try:
        expected = _by_all_codecs(request.message(), version, correlation_id, client_id)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            encode_request(request, version, correlation_id, client_id)
        return
    frame = encode_request(request, version, correlation_id, client_id)
    assert b"".join(frame) == expected
    assert frame_size(frame[0]) == len(expected)


def test_records_of_a_request_are_passed_by_reference() -> None:
    records = [bytes(600), memoryview(bytearray(b"records"))]
    request = _plain(-1, 1, [("topic", bytes(16), 3, records)])
    _, header, body, _ = encode_request(request, 13, 1, "me")
    assert header is records[0]
    assert body is records[1]


@pytest.mark.skipif(not is_compiled(), reason="the sources have another way")
def test_a_request_of_a_small_batch_is_one_piece() -> None:
    request = _plain(-1, 1, [("topic", bytes(16), 3, [b"header", b"records"])])
    assert len(encode_request(request, 13, 1, "me")) == 1
    request.records[0][1] = memoryview(bytes(600))
    assert [type(piece) for piece in encode_request(request, 13, 1, "me")] == [bytes, memoryview, bytes]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"acks": 2**15}, "acks"),
        ({"acks": None}, "acks"),
        ({"timeout_ms": 2**31}, "timeout_ms"),
        ({"batches": [("topic", b"short", 0, [])]}, "not 16 bytes"),
        ({"batches": [("topic", bytes(16), 2**31, [])]}, "index"),
    ],
)
def test_a_request_with_values_out_of_range_is_rejected(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        encode_request(_plain(**{"acks": -1, "timeout_ms": 1, "batches": []} | wrong), 13, 1, "me")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"acks": 2**15}, "acks"),
        ({"acks": None}, "acks"),
        ({"timeout_ms": 2**31}, "timeout_ms"),
        ({"topic_data": [TopicProduceData(topic_id=b"short")]}, "not 16 bytes"),
        ({"topic_data": [TopicProduceData(topic_id=bytes(16), partition_data=None)]}, "cannot be None"),
        (
            {"topic_data": [TopicProduceData(topic_id=bytes(16), partition_data=[PartitionProduceData(index=2**31)])]},
            "index",
        ),
    ],
)
def test_a_message_with_values_out_of_range_is_rejected(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        encode_request(ProduceRequest(**wrong), 13, 1, "me")


PARTITIONS = st.builds(
    PartitionProduceResponse,
    index=INT32,
    error_code=INT16,
    base_offset=INT64,
    log_append_time_ms=INT64,
    log_start_offset=INT64,
    record_errors=st.one_of(
        st.just([]),
        st.lists(st.builds(BatchIndexAndErrorMessage, batch_index=INT32, batch_index_error_message=st.none())),
    ),
    error_message=st.one_of(st.none(), st.text(max_size=20)),
    current_leader=st.one_of(
        st.builds(LeaderIdAndEpoch), st.builds(LeaderIdAndEpoch, leader_id=INT32, leader_epoch=INT32)
    ),
)
RESPONSES = st.builds(
    ProduceResponse,
    responses=st.lists(
        st.builds(TopicProduceResponse, name=NAMES, topic_id=IDS, partition_responses=st.lists(PARTITIONS, max_size=4)),
        max_size=4,
    ),
    throttle_time_ms=INT32,
    node_endpoints=st.one_of(
        st.just([]), st.lists(st.builds(NodeEndpoint, node_id=INT32, host=st.just("h"), port=INT32), max_size=2)
    ),
)


def _frame(response: ProduceResponse, version: int, correlation_id: int) -> bytes:
    if version < 10:
        # These fields cannot be left out if they are set.
        response.node_endpoints = []
        for topic in response.responses:
            for partition in topic.partition_responses:
                partition.current_leader = LeaderIdAndEpoch()
    return b"".join(encode_response(response, version, correlation_id))[4:]


@given(RESPONSES, VERSIONS, INT32, st.binary(max_size=3))
@example(
    ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="n" * 249, partition_responses=[PartitionProduceResponse(index=p) for p in range(200)]
            )
            for _ in range(200)
        ]
    ),
    12,
    7,
    b"",
)
def test_a_response_is_decoded_like_the_general_codec(
    response: ProduceResponse, version: int, correlation_id: int, behind: bytes
) -> None:
    frame = _frame(response, version, correlation_id)
    expected = decode(ProduceResponse, version, b"".join(encode(response, version)))
    assert decode_response(ProduceResponse, version, frame + behind) == (correlation_id, expected)
    assert decode_response(ProduceResponse, version, memoryview(frame)) == (correlation_id, expected)
    _assert_same(decode_produced(version, frame + behind), expected, version)


def _assert_same(read: Acknowledged | ProduceResponse, expected: ProduceResponse, version: int) -> None:
    """Check that the result equals the message, if it is the short form."""
    if not isinstance(read, Acknowledged):
        assert read == expected
        return
    assert read.throttle_time_ms == expected.throttle_time_ms
    assert not expected.node_endpoints
    answers = [
        (topic.topic_id if version >= 13 else topic.name, each)
        for topic in expected.responses
        for each in topic.partition_responses
    ]
    assert read.batches == [(topic, each.index, each.base_offset, each.log_append_time_ms) for topic, each in answers]
    for _, each in answers:
        assert each == PartitionProduceResponse(
            index=each.index,
            base_offset=each.base_offset,
            log_append_time_ms=each.log_append_time_ms,
            log_start_offset=each.log_start_offset,
        )


@pytest.mark.parametrize("version", range(9, 14))
def test_a_compiled_build_reads_responses_without_errors_by_the_fast_path(version: int) -> None:
    answers = [PartitionProduceResponse(index=p, base_offset=p * 10, log_start_offset=0) for p in range(3)]
    response = ProduceResponse(
        responses=[TopicProduceResponse(name="topic", topic_id=b"i" * 16, partition_responses=answers)],
        throttle_time_ms=5,
    )
    read = decode_produced(version, _frame(response, version, 1))
    assert isinstance(read, Acknowledged) == is_compiled()
    _assert_same(read, decode(ProduceResponse, version, b"".join(encode(response, version))), version)


@pytest.mark.parametrize("version", [2, 14, 99])
def test_an_undescribed_version_is_rejected(version: int) -> None:
    frame = b"".join(encode_response(ProduceResponse(), 13, 1))[4:]
    with pytest.raises(UnsupportedVersionError):
        decode_response(ProduceResponse, version, frame)
    with pytest.raises(UnsupportedVersionError):
        encode_request(ProduceRequest(), version, 1, "me")
    with pytest.raises(UnsupportedVersionError):
        encode_request(_plain(-1, 1, []), version, 1, "me")
    with pytest.raises(UnsupportedVersionError):
        decode_produced(version, frame)


@given(RESPONSES, VERSIONS, st.data())
def test_a_truncated_or_malformed_response_is_rejected(
    response: ProduceResponse, version: int, data: st.DataObject
) -> None:
    frame = bytearray(_frame(response, version, 1))
    for _ in range(data.draw(st.integers(0, 2))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(frame[: data.draw(st.integers(0, len(frame)))])

    def outcome(buffer: bytes | memoryview) -> object:
        try:
            return decode_response(ProduceResponse, version, buffer)
        except ProtocolError as error:
            return str(error)

    assert outcome(cut) == outcome(memoryview(cut))
    try:
        expected = decode_response(ProduceResponse, version, cut)[1]
    except ProtocolError as error:
        with pytest.raises(ProtocolError, match=re.escape(str(error))):
            decode_produced(version, cut)
    else:
        _assert_same(decode_produced(version, cut), expected, version)
