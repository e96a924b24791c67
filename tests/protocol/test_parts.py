"""A response read in parts equals the response read as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol import decode_response, encode_response
from aioproducer.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aioproducer.protocol.parts import ELEMENTS_PER_STEP, ResponseInParts

VERSIONS = MetadataResponse.schema.versions


def frame(response: MetadataResponse, version: int) -> bytearray:
    return bytearray(b"".join(bytes(buffer) for buffer in encode_response(response, version, 7))[4:])


def in_parts(data: bytearray, version: int) -> ResponseInParts[MetadataResponse, MetadataResponseTopic]:
    return ResponseInParts(MetadataResponse, MetadataResponseTopic, version, data)


def response(version: int, partition_counts: list[int]) -> MetadataResponse:
    return MetadataResponse(
        throttle_time_ms=30 if version >= 3 else 0,
        brokers=[MetadataResponseBroker(node_id=1, host="one", port=9092)],
        cluster_id="cluster" if version >= 2 else None,
        controller_id=1 if version >= 1 else -1,
        topics=[
            MetadataResponseTopic(
                name=f"topic-{number}",
                error_code=number % 3,
                topic_id=bytes([number]) * 16 if version >= 10 else bytes(16),
                partitions=[
                    MetadataResponsePartition(
                        partition_index=index,
                        leader_id=1,
                        leader_epoch=index if version >= 7 else -1,
                        replica_nodes=[1, 2],
                        isr_nodes=[1],
                        offline_replicas=[2] if version >= 5 else [],
                    )
                    for index in range(count)
                ],
            )
            for number, count in enumerate(partition_counts)
        ],
        error_code=41 if version >= 13 else 0,
    )


@settings(max_examples=60, deadline=None)
@given(version=st.sampled_from(VERSIONS), counts=st.lists(st.integers(0, 3 * ELEMENTS_PER_STEP), max_size=4))
def test_the_parts_together_equal_the_whole(version: int, counts: list[int]) -> None:
    data = frame(response(version, counts), version)
    _, whole = decode_response(MetadataResponse, version, data)
    parts = in_parts(data, version)
    assert parts.throttle_time_ms == whole.throttle_time_ms
    assert parts.head.brokers == whole.brokers
    assert parts.head.error_code == 0
    steps = list(parts.elements())
    assert [topic for topic in steps if topic is not None] == whole.topics
    assert parts.head.error_code == whole.error_code
    assert steps.count(None) == sum(count // ELEMENTS_PER_STEP for count in counts)


def test_unknown_tagged_fields_are_skipped() -> None:
    data = frame(response(13, [1]), 13)
    assert data[-1] == 0
    data[-1:] = bytes([1, 9, 2]) + b"xy"
    parts = in_parts(data, 13)
    assert [topic.name for topic in parts.elements() if topic is not None] == ["topic-0"]
    assert parts.head.error_code == 41


@settings(max_examples=100, deadline=None)
@given(version=st.sampled_from(VERSIONS), data=st.data())
def test_truncated_or_changed_bytes_give_a_protocol_error_or_another_response(
    version: int, data: st.DataObject
) -> None:
    """If the parts can be decoded, the whole can be too. Any other exception fails the test."""
    whole = frame(response(version, [2, 20]), version)
    cut = data.draw(st.integers(4, len(whole)))
    damaged = whole[:cut]
    for _ in range(data.draw(st.integers(0, 2))):
        damaged[data.draw(st.integers(4, len(damaged)) if len(damaged) > 4 else st.just(4)) - 1] = data.draw(
            st.integers(0, 255)
        )
    try:
        list(in_parts(damaged, version).elements())
    except ProtocolError:
        return
    decode_response(MetadataResponse, version, damaged)


def test_a_truncation_error_names_the_position() -> None:
    data = frame(response(9, [2]), 9)
    with pytest.raises(ProtocolError, match="MetadataResponse of version 9 is cut off after 5 bytes"):
        in_parts(data[:5], 9)
    parts = in_parts(data[:-3], 9)
    with pytest.raises(ProtocolError, match="MetadataResponse of version 9 is cut off"):
        list(parts.elements())


def test_impossible_counts_are_rejected_before_anything_is_read() -> None:
    version = 1
    data = frame(response(version, []), version)
    data[-4:] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match=r"MetadataResponse.topics of version 1 states 2147483647 elements"):
        list(in_parts(data, version).elements())
    data[-4:] = b"\xff" * 4
    with pytest.raises(ProtocolError, match=r"MetadataResponse.topics of version 1 is null"):
        list(in_parts(data, version).elements())


def test_an_unknown_version_is_rejected() -> None:
    with pytest.raises(UnsupportedVersionError, match="MetadataResponse has no version 99"):
        in_parts(bytearray(40), 99)
