"""Responses on their way to the client."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError
from aioproducer.gateway.addresses import AddressMap
from aioproducer.gateway.plans import plan_of
from aioproducer.gateway.requests import Exchange, Expected
from aioproducer.gateway.responses import ResponseStream
from aioproducer.gateway.share import ShareAcknowledgeResponse, ShareFetchResponse
from aioproducer.gateway.versions import NEWEST_VERSIONS
from aioproducer.protocol import APIS, ApiKey, decode_api_versions_response, decode_response
from aioproducer.protocol.messages import (
    ApiVersionsResponse,
    FetchResponse,
    HeartbeatResponse,
    MetadataResponse,
    ProduceResponse,
)
from aioproducer.protocol.messages.api_versions import ApiVersion
from aioproducer.protocol.messages.fetch import FetchableTopicResponse, PartitionData
from aioproducer.protocol.messages.leaders import NodeEndpoint
from aioproducer.protocol.messages.metadata import MetadataResponseBroker
from aioproducer.wire.varint import encode_unsigned_varint
from tests.gateway.messages import mapped, pieces_of, response_frame
from tests.protocol.instances import instances

RESPONSES = {key: api.response for key, api in APIS.items()} | {
    ApiKey.SHARE_FETCH: ShareFetchResponse,
    ApiKey.SHARE_ACKNOWLEDGE: ShareAcknowledgeResponse,
}
HEADS = [
    (key, version)
    for key in (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER)
    for version in RESPONSES[key].schema.versions
]
TAILS = [(ApiKey.PRODUCE, version) for version in range(10, 14)]
TAILS += [(ApiKey.FETCH, version) for version in range(16, 19)]
TAILS += [(key, version) for key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE) for version in range(3)]
OTHERS = [
    (key, version)
    for key, response in RESPONSES.items()
    for version in response.schema.versions
    if key != ApiKey.API_VERSIONS and plan_of(key, version) is None
]
LARGE = 2**20
cuts = st.lists(st.integers(0, 10_000), max_size=6)
renamings = st.sampled_from(["", "g", "gateway", "gateway" * 30])


def renaming(prefix):
    return lambda host, port: (prefix + host, port ^ 1)


class Passing:
    """A stream, and the requests that it receives responses to."""

    def __init__(self, translate, *expected, max_held=LARGE, whole_limit=LARGE):
        self.exchange = Exchange()
        self.exchange.expected.extend(expected)
        self.stream = ResponseStream(self.exchange, translate, max_held, whole_limit)

    def feed(self, pieces):
        passed = b"".join(b"".join(self.stream.feed(piece)) for piece in pieces)
        if self.stream.failure is not None:
            raise self.stream.failure
        return passed


def sized(frames):
    """Return the frames in ``frames``, each without its size."""
    found = []
    while frames:
        (size,) = struct.unpack_from(">i", frames)
        assert len(frames) >= 4 + size
        found.append(frames[4 : 4 + size])
        frames = frames[4 + size :]
    return found


@settings(max_examples=150)
@given(st.data(), st.sampled_from(HEADS + TAILS), cuts, renamings)
def test_only_addresses_change(data, which, cuts, prefix):
    """The client receives exactly the broker's bytes, except addresses; bytes behind a response are unchanged."""
    key, version = which
    response = data.draw(instances(RESPONSES[key], version))
    frame = response_frame(response, version, 5)
    other = response_frame(data.draw(instances(RESPONSES[ApiKey.HEARTBEAT], 4)), 4, 6)
    passing = Passing(renaming(prefix), Expected(5, key, version), Expected(6, ApiKey.HEARTBEAT, 4))
    got = passing.feed(pieces_of(frame + other, cuts))
    first, second = sized(got)
    assert second == other[4:]
    expected = mapped(response, version, renaming(prefix))
    assert decode_response(RESPONSES[key], version, first) == (5, expected)
    # Equal in every bit to the response of a broker with those addresses.
    assert first == response_frame(expected, version, 5)[4:]
    assert passing.exchange.rewritten == (expected != response)
    assert passing.stream.between_responses
    assert not passing.exchange.expected
    assert passing.exchange.responses == 2


@settings(max_examples=150)
@given(st.data(), st.sampled_from(TAILS), cuts, renamings)
def test_a_large_response_keeps_its_size(data, which, cuts, prefix):
    """Its size is sent before its addresses arrive, so they are fitted or left out."""
    key, version = which
    response = data.draw(instances(RESPONSES[key], version))
    frame = response_frame(response, version, 5)
    passing = Passing(renaming(prefix), Expected(5, key, version), whole_limit=0)
    got = passing.feed(pieces_of(frame, cuts))
    assert len(got) == len(frame)
    correlation_id, decoded = decode_response(RESPONSES[key], version, got[4:])
    expected = mapped(response, version, renaming(prefix))
    assert correlation_id == 5
    if passing.exchange.shortened:
        assert prefix
        assert response.node_endpoints
        expected.node_endpoints = []
    assert decoded == expected
    # Addresses that are not longer are never left out.
    assert not (passing.exchange.shortened and not prefix)


@pytest.mark.parametrize(("key", "version"), [(ApiKey.FETCH, 18), (ApiKey.SHARE_FETCH, 2)])
@pytest.mark.parametrize("old", [1, 14, 100, 140, 300, 16_400])
def test_every_difference_in_length_is_filled(key, version, old):
    """Also differences that no single tagged field has."""
    lengths = range(max(1, old - 300), old + 3)
    for length in lengths:
        response = RESPONSES[key](node_endpoints=[NodeEndpoint(node_id=1, host="b" * old, port=9, rack="r")])
        frame = response_frame(response, version)
        passing = Passing(lambda host, port: ("g" * length, port), Expected(7, key, version), whole_limit=0)  # noqa: B023  # called within the turn
        got = passing.feed([frame])
        assert len(got) == len(frame)
        _, decoded = decode_response(RESPONSES[key], version, got[4:])
        if passing.exchange.shortened:
            assert length > old or old - length in (1, 2)
            assert decoded.node_endpoints == []
        else:
            assert [endpoint.host for endpoint in decoded.node_endpoints] == ["g" * length]
        assert passing.exchange.rewritten == (
            length != old or passing.exchange.shortened > 0 or "g" * length != "b" * old
        )


def test_a_large_response_is_not_held():
    """Of a Fetch response of 20 MB at most one piece and the end are held."""
    records = bytes(2**20)
    topics = [
        FetchableTopicResponse(
            topic_id=bytes(16),
            partitions=[PartitionData(partition_index=index, records=records) for index in range(20)],
        )
    ]
    endpoints = [NodeEndpoint(node_id=1, host="broker-1.example.org", port=9092)]
    response = FetchResponse(responses=topics, node_endpoints=endpoints)
    frame = response_frame(response, 18)
    passing = Passing(lambda host, port: ("gw", 1), Expected(7, 1, 18), max_held=4096, whole_limit=1024)
    sent = 0
    got = bytearray()
    for start in range(0, len(frame), 65536):
        piece = frame[start : start + 65536]
        out = b"".join(passing.stream.feed(piece))
        sent += len(piece)
        got += out
        assert sent - len(got) <= 4096
    _, decoded = decode_response(FetchResponse, 18, bytes(got[4:]))
    assert [(endpoint.host, endpoint.port) for endpoint in decoded.node_endpoints] == [("gw", 1)]
    assert len(got) == len(frame)


@settings(max_examples=100)
@given(st.data(), st.sampled_from(OTHERS), cuts)
def test_responses_without_addresses_pass_unchanged(data, which, cuts):
    key, version = which
    frame = response_frame(data.draw(instances(RESPONSES[key], version)), version)
    passing = Passing(None, Expected(7, key, version))
    held = 0
    for piece in pieces_of(frame, cuts):
        held += len(piece) - sum(map(len, passing.stream.feed(piece)))
        assert 0 <= held < 8
    assert held == 0
    assert passing.exchange.rewritten == 0


@settings(max_examples=100)
@given(st.data(), cuts)
def test_an_unknown_tagged_field_is_kept(data, cuts):
    """A newer broker may add one to an existing version (KIP-482)."""
    response = MetadataResponse(brokers=[MetadataResponseBroker(node_id=1, host="b", port=1, rack="r")])
    frame = bytearray(response_frame(response, 12)[4:])
    unknown = b"\x01" + encode_unsigned_varint(9) + b"\x03abc"
    # The tagged fields of the broker, of the message, of the header: from the last to the first.
    at = frame.index(b"\x02r") + 2
    assert frame[at] == frame[-1] == frame[4] == 0
    for position in (len(frame) - 1, at, 4):
        frame[position : position + 1] = unknown
    whole = struct.pack(">i", len(frame)) + frame
    passing = Passing(lambda host, port: ("longer", 2), Expected(7, ApiKey.METADATA, 12))
    (got,) = sized(passing.feed(pieces_of(whole, cuts)))
    assert got == bytes(frame).replace(b"\x02b\x00\x00\x00\x01", b"\x07longer\x00\x00\x00\x02")
    produced = bytearray(response_frame(ProduceResponse(node_endpoints=[NodeEndpoint(host="b", port=1)]), 12)[4:])
    # Behind the correlation id, the header's tagged fields, no topic and the throttle time: one tagged field.
    assert produced[10] == 1
    produced[10] = 2
    produced += b"\x09\x03abc"
    whole = struct.pack(">i", len(produced)) + produced
    passing = Passing(lambda host, port: ("longer", 2), Expected(7, ApiKey.PRODUCE, 12))
    (got,) = sized(passing.feed(pieces_of(whole, cuts)))
    assert got.endswith(b"\x09\x03abc")
    assert decode_response(ProduceResponse, 12, got)[1].node_endpoints[0].host == "longer"


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(-1, 100), st.integers(0, 40), st.integers(-1, 40)), max_size=12),
    st.sampled_from(range(7)),
    st.booleans(),
    cuts,
)
@example([(18, 0, 6)], 6, True, [])
def test_offered_versions_are_limited_to_known_ones(apis, version, unsupported, cuts):
    """Clients are offered no request whose response may have unknown addresses."""
    keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in apis]
    response = ApiVersionsResponse(error_code=35 if unsupported else 0, api_keys=keys, throttle_time_ms=0)
    # A broker without the version answers in version 0 (KIP-511).
    written = 0 if unsupported else min(version, 5)
    frame = response_frame(response, written)
    passing = Passing(None, Expected(7, ApiKey.API_VERSIONS, version))
    (got,) = sized(passing.feed(pieces_of(frame, cuts)))
    _, decoded = decode_api_versions_response(written, got)
    expected = [
        ApiVersion(api_key=key, min_version=low, max_version=min(high, NEWEST_VERSIONS[key]))
        for key, low, high in apis
        if key in NEWEST_VERSIONS and low <= min(high, NEWEST_VERSIONS[key])
    ]
    assert decoded.api_keys == expected
    assert decoded.error_code == response.error_code
    assert passing.exchange.rewritten == (expected != keys)


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("sasl_passes", [True, False])
def test_sasl_is_offered_unless_the_gateway_authenticates_itself(version, sasl_passes):
    keys = [ApiVersion(api_key=key, min_version=0, max_version=1) for key in (0, 17, 18, 36)]
    passing = Passing(None, Expected(7, ApiKey.API_VERSIONS, version))
    passing.exchange.sasl_passes = sasl_passes
    (got,) = sized(passing.feed([response_frame(ApiVersionsResponse(api_keys=keys), version)]))
    _, decoded = decode_api_versions_response(version, got)
    assert [api.api_key for api in decoded.api_keys] == ([0, 17, 18, 36] if sasl_passes else [0, 18])


@pytest.mark.parametrize(
    ("expected", "data", "text"),
    [
        ([], struct.pack(">ii", 4, 1), "a response of 4 bytes without a request"),
        ([Expected(1, 18, 3)], b"\x15\x03\x03\x00\x02", r"a TLS alert: it expects TLS, so set security.protocol=SSL"),
        ([Expected(1, 12, 4)], struct.pack(">i", 3), "a response of 3 bytes without a request"),
        ([Expected(1, 12, 4)], struct.pack(">i", -5), "a response of -5 bytes without a request"),
        ([Expected(1, 12, 4)], struct.pack(">ii", 8, 2), "answered the request 2 instead of 1, which is next"),
        ([Expected(1, 3, 0)], struct.pack(">iii", 8, 1, 1), "the METADATA response ends before its addresses"),
        ([Expected(1, 0, 12)], struct.pack(">iiB", 5, 1, 0), "the message ends inside a field"),
        ([Expected(1, 3, 0)], struct.pack(">iiii", 50, 1, 1, 0) + b"\x00\x01\xff" + bytes(31), "is not UTF-8"),
        ([Expected(1, 3, 12)], struct.pack(">ii", 200_000, 1) + b"\x00" * 5 + b"\x02" + bytes(4) + b"\xff\xff\x7f"
         + bytes(110_000), "the METADATA response has more than 100000 bytes that must be held"),
        ([Expected(1, 0, 12)], struct.pack(">iiBBiBBB", 13, 1, 0, 1, 0, 1, 0, 9), "ends inside a tagged field"),
        ([Expected(1, 3, 0)], struct.pack(">iiiihc", 17, 1, 1, 1, 1, b"b") + bytes(2), "ends before its addresses"),
        ([Expected(1, 18, 3)], struct.pack(">ii", 200_000, 1), "the API_VERSIONS response has more than"),
    ],
)  # fmt: skip
def test_invalid_responses_are_refused(expected, data, text):
    passing = Passing(lambda host, port: (host, port), *expected, max_held=100_000)
    with pytest.raises(ProtocolError, match=text):
        passing.feed([data])


def test_a_large_response_that_ends_early_is_refused():
    frame = response_frame(FetchResponse(responses=[FetchableTopicResponse(topic_id=bytes(16))]), 18)
    cut = struct.pack(">i", len(frame) - 4 - 10) + frame[4:-10]
    passing = Passing(None, Expected(7, 1, 18), whole_limit=0)
    with pytest.raises(ProtocolError, match="the FETCH response ends before its addresses"):
        passing.feed([cut])


def test_a_large_response_with_too_many_bytes_behind_its_start_is_refused():
    frame = response_frame(FetchResponse(node_endpoints=[NodeEndpoint(host="b" * 200)]), 18)
    passing = Passing(None, Expected(7, 1, 18), max_held=100)
    with pytest.raises(ProtocolError, match="the FETCH response has more than 100 bytes that must be held"):
        passing.feed([frame])


def test_a_frame_that_would_be_too_large_is_refused():
    frame = response_frame(MetadataResponse(brokers=[MetadataResponseBroker(host="b", port=1)]), 12)
    passing = Passing(lambda host, port: ("longer", port), Expected(7, 3, 12))
    with pytest.raises(ProtocolError, match=f"the response has {2**31 + 4} bytes, more than a frame may have"):
        passing.feed([struct.pack(">i", 2**31 - 1) + frame[4:]])


@pytest.mark.parametrize("name", ["gw", "a longer name than before"])
def test_a_large_response_keeps_unknown_tagged_fields(name):
    frame = bytearray(response_frame(FetchResponse(node_endpoints=[NodeEndpoint(host="broker", port=1)]), 18)[4:])
    # Behind the correlation id, the header's tagged fields, throttle time, error code, session id and no topic.
    assert frame[16] == 1
    frame[16] = 2
    frame += b"\x09\x03abc"
    passing = Passing(lambda host, port: (name, port), Expected(7, 1, 18), whole_limit=0)
    (got,) = sized(passing.feed([struct.pack(">i", len(frame)) + frame]))
    assert len(got) == len(frame)
    assert b"\x09\x03abc" in got
    endpoints = decode_response(FetchResponse, 18, got)[1].node_endpoints
    assert [endpoint.host for endpoint in endpoints] == (["gw"] if name == "gw" else [])


def test_an_address_for_a_client_that_does_not_fit_is_refused():
    frame = response_frame(MetadataResponse(brokers=[MetadataResponseBroker(host="b", port=1)]), 12)
    passing = Passing(lambda host, port: ("g" * 32768, port), Expected(7, 3, 12))
    with pytest.raises(ProtocolError, match="a host name of 32768 bytes does not fit a string"):
        passing.feed([frame])


def test_raw_tokens_pass_until_the_first_request():
    """After SaslHandshake of version 0 a token has nothing but its size before it."""
    passing = Passing(None)
    passing.exchange.raw_tokens = True
    tokens = b"\x00\x00\x00\x00" + b"\x00\x00\x00\x02ok" + b"\x00\x00\x00\x10" + b"r=nonce,s=salt,i"
    for cut in range(len(tokens)):
        assert passing.feed([tokens[:cut], tokens[cut:]]) == tokens
    with pytest.raises(ProtocolError, match="a response of -1 bytes"):
        passing.feed([b"\xff\xff\xff\xff"])


@settings(max_examples=150)
@given(st.binary(max_size=300), st.sampled_from(HEADS + TAILS + OTHERS + [(18, 3)]), st.integers(0, 60), st.booleans())
def test_random_bytes_are_refused_or_pass(data, which, size, held):
    key, version = which
    address_map = AddressMap({}, port=1)
    passing = Passing(address_map.translate, Expected(7, key, version), whole_limit=LARGE if held else 0)
    try:
        got = passing.feed([struct.pack(">ii", size + 4, 7), data])
    except ProtocolError:
        return
    assert len(got) <= 8 + 2 * len(data) + 200


@settings(max_examples=50)
@given(st.integers(0, 3), cuts)
def test_only_responses_before_an_invalid_one_pass(good, cuts):
    """Frames of the same receive were thrown away with it."""
    frames = b"".join(response_frame(HeartbeatResponse(), 4, number) for number in range(good))
    stream = Passing(None, *(Expected(number, 12, 4) for number in range(good + 1))).stream
    bad = response_frame(HeartbeatResponse(), 4, 99)
    behind = response_frame(HeartbeatResponse(), 4, good)
    assert b"".join(b"".join(stream.feed(piece)) for piece in pieces_of(frames + bad + behind, cuts)) == frames
    assert "answered the request 99" in str(stream.failure)
