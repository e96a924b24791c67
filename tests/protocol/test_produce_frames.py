"""Produce frames by the short way are those of the codec of all messages, byte for byte and field for field."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol import decode, decode_response, encode, encode_request, encode_response
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

VERSIONS = st.integers(3, 13)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.one_of(st.text("abc.-_", min_size=1, max_size=249), st.text(max_size=40), st.just("n" * 249))
IDS = st.binary(min_size=16, max_size=16)
RECORDS = st.one_of(
    st.lists(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(memoryview)), max_size=4),
    st.binary(max_size=10),
    st.none(),
)


def _topics(name: str, topic_id: bytes, partitions: list[PartitionProduceData]) -> TopicProduceData:
    return TopicProduceData(name=name, topic_id=topic_id, partition_data=partitions)


REQUESTS = st.builds(
    ProduceRequest,
    transactional_id=st.one_of(st.none(), st.text(max_size=10)),
    acks=st.one_of(st.sampled_from([-1, 0, 1]), INT16),
    timeout_ms=INT32,
    topic_data=st.lists(
        st.builds(
            _topics,
            NAMES,
            IDS,
            st.lists(st.builds(PartitionProduceData, index=INT32, records=RECORDS), max_size=4),
        ),
        max_size=4,
    ),
)


def _by_all_codecs(request: ProduceRequest, version: int, correlation_id: int, client_id: str | None) -> bytes:
    header = RequestHeader(
        request_api_key=0, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    frame = b"".join([*encode(header, 2 if version >= 9 else 1), *encode(request, version)])
    return len(frame).to_bytes(4, "big") + frame


@given(REQUESTS, VERSIONS, st.integers(0, 2**31 - 1), st.one_of(st.none(), st.text(max_size=400)))
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
def test_a_request(request: ProduceRequest, version: int, correlation_id: int, client_id: str | None) -> None:
    try:
        expected = _by_all_codecs(request, version, correlation_id, client_id)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            encode_request(request, version, correlation_id, client_id)
        return
    assert b"".join(encode_request(request, version, correlation_id, client_id)) == expected


def test_records_of_a_request_are_given_by_reference() -> None:
    records = [b"header", memoryview(bytearray(b"records"))]
    topic = TopicProduceData(topic_id=bytes(16), partition_data=[PartitionProduceData(index=3, records=records)])
    _, header, body, _ = encode_request(ProduceRequest(acks=-1, timeout_ms=1, topic_data=[topic]), 13, 1, "me")
    assert header is records[0]
    assert body is records[1]


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
def test_what_does_not_fit_is_refused(wrong: dict[str, object], message: str) -> None:
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
        # Neither can be left out where it is set.
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
def test_a_response(response: ProduceResponse, version: int, correlation_id: int, behind: bytes) -> None:
    frame = _frame(response, version, correlation_id)
    # A view is read by the codec of all messages.
    expected = decode_response(ProduceResponse, version, memoryview(frame))
    assert decode_response(ProduceResponse, version, frame + behind) == expected
    assert expected[0] == correlation_id
    assert expected[1] == decode(ProduceResponse, version, b"".join(encode(response, version)))


@pytest.mark.parametrize("version", [2, 14, 99])
def test_a_version_that_nobody_has_described_is_refused(version: int) -> None:
    frame = b"".join(encode_response(ProduceResponse(), 13, 1))[4:]
    with pytest.raises(UnsupportedVersionError):
        decode_response(ProduceResponse, version, frame)
    with pytest.raises(UnsupportedVersionError):
        encode_request(ProduceRequest(), version, 1, "me")


@given(RESPONSES, VERSIONS, st.data())
def test_a_response_that_is_cut_off_or_wrong(response: ProduceResponse, version: int, data: st.DataObject) -> None:
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
