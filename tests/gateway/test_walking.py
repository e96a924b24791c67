"""Walking over any message, in pieces."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError
from aioproducer.gateway.plans import plan_of
from aioproducer.gateway.share import ShareAcknowledgeResponse, ShareFetchResponse
from aioproducer.gateway.versions import NEWEST_VERSIONS
from aioproducer.gateway.walking import (
    Walker,
    field_steps,
    steps_of,
    walk,
    walk_length,
    walk_over,
    walk_sized,
    walk_varint,
)
from aioproducer.protocol import APIS, encode
from aioproducer.protocol.messages import DescribeClusterRequest, MetadataResponse
from tests.gateway.messages import pieces_of
from tests.protocol.instances import instances

MESSAGES = [
    (message_class, version)
    for api in APIS.values()
    for message_class in (api.request, api.response)
    for version in message_class.schema.versions
] + [(message_class, version) for message_class in (ShareFetchResponse, ShareAcknowledgeResponse) for version in (0, 2)]


def _steps(message_class, version, **between):
    return steps_of(message_class, version, version in message_class.schema.flexible, **between)


@settings(max_examples=150)
@given(st.data(), st.sampled_from(MESSAGES), st.lists(st.integers(0, 10_000), max_size=5))
def test_a_walk_over_any_message_ends_at_its_end(data, which, cuts):
    message_class, version = which
    encoded = b"".join(encode(data.draw(instances(message_class, version)), version))
    walker = Walker(walk(_steps(message_class, version)))
    behind = b"behind"
    walked = 0
    for piece in pieces_of(encoded, cuts):
        walked += walker.feed(piece)
    assert walker.feed(behind) == 0 if walker.done else walked == len(encoded)
    assert walked == len(encoded)
    assert walker.done
    # All at once, with further bytes behind, and cut anywhere inside.
    assert walk_over(walk(_steps(message_class, version)), memoryview(encoded + behind), 0)[1] == len(encoded)
    if encoded:
        short = memoryview(encoded)[: data.draw(st.integers(0, len(encoded) - 1))]
        with pytest.raises(ProtocolError, match="ends inside"):
            walk_over(walk(_steps(message_class, version)), short, 0)


@settings(max_examples=100)
@given(st.data(), st.sampled_from(range(14)))
def test_the_parts_of_a_walk_equal_the_whole(data, version):
    encoded = memoryview(b"".join(encode(data.draw(instances(MetadataResponse, version)), version)))
    _, start = walk_over(walk(_steps(MetadataResponse, version, until="brokers")), encoded, 0)
    over = field_steps(MetadataResponse, version, version in MetadataResponse.schema.flexible, "brokers")
    _, end = walk_over(walk(over), encoded, start)
    _, tags_at = walk_over(walk(_steps(MetadataResponse, version, after="brokers", tags=False)), encoded, end)
    _, all_of_it = walk_over(walk(_steps(MetadataResponse, version, after="brokers")), encoded, end)
    assert start == (4 if version >= 3 else 0)
    assert all_of_it == len(encoded)
    assert tags_at == len(encoded) - (version >= 9)


def test_adjacent_fields_of_fixed_size_are_skipped_at_once():
    assert _steps(DescribeClusterRequest, 2, tags=False) == (3,)


@pytest.mark.parametrize(
    ("generator", "data", "text"),
    [
        (walk_varint(), b"\xff" * 5, "a varint has more than 5 bytes"),
        (walk_length(struct.Struct(">h")), b"\xff\xfe", "invalid length -2"),
        (walk_sized(struct.Struct(">i")), b"\x80\x00\x00\x00", "invalid length -2147483648"),
    ],
)
def test_invalid_lengths_are_refused(generator, data, text):
    with pytest.raises(ProtocolError, match=text):
        Walker(generator).feed(data)


@pytest.mark.parametrize(
    ("encoded", "value"), [(b"\x00", 0), (b"\x7f", 127), (b"\x80\x01", 128), (b"\xff\xff\x03", 65535)]
)
def test_a_varint_is_walked_over_in_any_pieces(encoded, value):
    assert walk_over(walk_varint(), memoryview(encoded), 0) == (value, len(encoded))


def test_every_known_request_has_a_plan_or_none_in_each_version():
    planned = {
        (api_key, version)
        for api_key, newest in NEWEST_VERSIONS.items()
        for version in range(newest + 1)
        if plan_of(api_key, version) is not None
    }
    expected = {(18, version) for version in range(6)}
    expected |= {(3, version) for version in range(14)} | {(10, version) for version in range(7)}
    expected |= {(60, version) for version in range(3)}
    expected |= {(0, version) for version in range(10, 14)} | {(1, version) for version in range(16, 19)}
    expected |= {(api_key, version) for api_key in (78, 79) for version in range(3)}
    assert planned == expected


def test_all_supported_requests_can_be_used_through_a_gateway():
    for key, api in APIS.items():
        assert NEWEST_VERSIONS[key] >= api.max_version
