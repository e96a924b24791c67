"""Requests on their way to the broker."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.gateway.requests import Exchange, Expected, RequestStream
from aioproducer.protocol import APIS, ApiKey, encode_request
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tests.gateway.messages import pieces_of
from tests.protocol.instances import instances

MAX = 1_000_000
cuts = st.lists(st.integers(0, 10_000), max_size=6)


def frame(request, version, correlation_id=7, client_id="client"):
    return b"".join(encode_request(request, version, correlation_id, client_id))


def streaming(max_request_size=MAX):
    exchange = Exchange()
    return exchange, RequestStream(exchange, max_request_size)


def refusal(stream, data):
    """Return why ``data`` was refused."""
    stream.feed(data)
    return str(stream.failure)


def feed(stream, pieces):
    return b"".join(b"".join(stream.feed(piece)) for piece in pieces)


REQUESTS = [(api.key, api.request, version) for api in APIS.values() for version in api.request.schema.versions]


@settings(max_examples=150)
@given(
    st.lists(
        st.sampled_from(REQUESTS).flatmap(lambda which: st.tuples(st.just(which), instances(which[1], which[2]))),
        max_size=4,
    ),
    st.none() | st.just("") | st.just("client"),
    cuts,
)
def test_requests_pass_and_expected_responses_are_recorded(requests, client_id, cuts):
    sent, expected = b"", []
    for number, ((key, _, version), request) in enumerate(requests):
        sent += frame(request, version, number, client_id)
        if key != ApiKey.PRODUCE or request.acks != 0:
            expected.append(Expected(number, key, version))
    exchange, stream = streaming()
    assert feed(stream, pieces_of(sent, cuts)) == sent
    # Raw tokens are possible after SaslHandshake of version 0; a frame that begins like a request is one.
    assert list(exchange.expected) == expected
    assert exchange.requests == len(requests)
    assert stream.between_requests


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("transactional_id", [None, "", "transaction"])
@pytest.mark.parametrize("client_id", [None, "", "c" * 300])
def test_a_request_without_acks_leaves_nothing_behind(version, transactional_id, client_id):
    exchange, stream = streaming()
    for acks in (0, -1, 0, 1, 0):
        request = ProduceRequest(acks=acks, transactional_id=transactional_id)
        for byte in frame(request, version, acks, client_id):
            stream.feed(bytes([byte]))
    assert [request.correlation_id for request in exchange.expected] == [-1, 1]


def test_an_old_produce_request_has_its_acks_first():
    """Produce of versions 0 to 2 has no transactional id; whether the broker accepts it does not matter here."""
    exchange, stream = streaming()
    for acks in (0, 1):
        body = struct.pack(">hhihhii", 0, 2, acks, -1, acks, 1000, 0)
        stream.feed(struct.pack(">i", len(body)) + body)
    assert [request.correlation_id for request in exchange.expected] == [1]


@pytest.mark.parametrize("size", [8, 9, 14])
def test_a_produce_request_that_ends_before_its_acks_is_refused(size):
    _, stream = streaming()
    data = struct.pack(">ihhih", size, 0, 9, 1, 1000) + bytes(size - 10 if size > 10 else 0)
    assert "a Produce request that ends before its acks" in refusal(stream, data)


@settings(max_examples=50)
@given(cuts, st.sampled_from([6, 7, 300, 32767]))
def test_an_unknown_version_of_api_versions_becomes_one_that_no_broker_has(cuts, version):
    """The gateway could not read the response of a broker with that version; now the broker returns its versions."""
    sent = bytearray(frame(ApiVersionsRequest(client_software_name="x"), 5))
    struct.pack_into(">h", sent, 6, version)
    exchange, stream = streaming()
    got = feed(stream, pieces_of(bytes(sent), cuts))
    assert struct.unpack_from(">h", got, 6) == (32767,)
    assert got[:6] + got[8:] == sent[:6] + sent[8:]
    assert list(exchange.expected) == [Expected(7, 18, version)]


@pytest.mark.parametrize(("api_key", "version"), [(3, 14), (3, -1), (4, 0), (95, 0), (-1, 0), (18, -1), (22, 7)])
def test_requests_that_were_not_offered_are_refused(api_key, version):
    _, stream = streaming()
    text = f"API key {api_key} in version {version}, which clients were not offered"
    assert text in refusal(stream, struct.pack(">ihhi", 100, api_key, version, 1))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (-1, "a request of -1 bytes (minimum 8, maximum 1000000)"),
        (MAX + 1, "a request of 1000001 bytes"),
        (2**31 - 1, "it may use another protocol than Kafka's"),
        (7, "a request of 7 bytes, too short for its header"),
        (0, "a request of 0 bytes, too short"),
    ],
)
def test_an_impossible_size_is_refused(size, text):
    _, stream = streaming()
    assert text in refusal(stream, struct.pack(">i", size))


def test_the_largest_request_passes():
    exchange, stream = streaming()
    stream.feed(struct.pack(">ihhi", MAX, 12, 4, 1))
    left = MAX - 8
    while left:
        assert not stream.between_requests
        piece = bytes(min(left, 65_536))
        assert b"".join(stream.feed(piece)) == piece
        left -= len(piece)
    assert stream.between_requests
    assert exchange.requests == 1


@settings(max_examples=100)
@given(
    cuts,
    st.lists(
        st.sampled_from(
            [
                b"",
                b"\x00",
                b"\x00user\x00password",
                b"a\x00b\x00c",
                b"\x00A\x00p",
                b"n,,n=user,r=nonce",
                b"c=biws,r=n,p=x",
            ]
            + [b"n,,\x01auth=Bearer x\x01\x01", b"\x60\x82\x01\x02" + bytes(90), b"\x05\x04\x04\xff" + bytes(28)]
        ),
        max_size=4,
    ),
)
def test_raw_tokens_do_not_count_as_requests(cuts, tokens):
    """After SaslHandshake of version 0 a client sends tokens with only a size, then requests again."""
    sent = frame(SaslHandshakeRequest(mechanism="PLAIN"), 0, 1)
    sent += b"".join(struct.pack(">i", len(token)) + token for token in tokens)
    exchange, stream = streaming()
    assert feed(stream, pieces_of(sent, cuts)) == sent
    assert exchange.raw_tokens
    assert stream.between_requests
    assert list(exchange.expected) == [Expected(1, 17, 0)]
    after = frame(MetadataRequest(), 12, 2)
    assert feed(stream, pieces_of(after, cuts)) == after
    assert not exchange.raw_tokens
    assert list(exchange.expected) == [Expected(1, 17, 0), Expected(2, 3, 12)]
    assert "too short for its header" in refusal(stream, b"\x00\x00\x00\x00")


def test_tokens_in_requests_count_as_requests():
    exchange, stream = streaming()
    stream.feed(frame(SaslHandshakeRequest(mechanism="PLAIN"), 1, 1))
    stream.feed(frame(SaslAuthenticateRequest(auth_bytes=b"\x00user\x00password"), 2, 2))
    assert not exchange.raw_tokens
    assert [request.api_key for request in exchange.expected] == [17, 36]


@settings(max_examples=100)
@given(st.integers(0, 200), cuts)
def test_stopping_lets_the_rest_of_a_request_pass(at, cuts):
    requests = frame(MetadataRequest(), 12, 1), frame(ProduceRequest(acks=1), 9, 2), frame(MetadataRequest(), 12, 3)
    sent = b"".join(requests)
    at %= len(sent)
    exchange, stream = streaming()
    got = feed(stream, pieces_of(sent[:at], cuts))
    begun = exchange.requests
    stream.stop()
    got += feed(stream, pieces_of(sent[at:], cuts))
    assert stream.between_requests
    assert got == b"".join(requests[:begun])
    assert exchange.requests == begun


@settings(max_examples=100)
@given(st.binary(max_size=200), cuts, st.booleans())
def test_random_bytes_are_refused_or_pass(data, cuts, raw):
    exchange, stream = streaming(max_request_size=2**31 - 1)
    exchange.raw_tokens = raw
    got = feed(stream, pieces_of(data, cuts))
    if stream.failure is None:
        assert data.startswith(got[:6])
        assert len(data) - len(got) < 12


@settings(max_examples=50)
@given(st.integers(0, 3), cuts)
def test_only_requests_before_an_invalid_one_pass(good, cuts):
    """Requests of the same receive were once dropped with it."""
    frames = b"".join(frame(MetadataRequest(), 12, number) for number in range(good))
    exchange, stream = streaming()
    bad = struct.pack(">i", -1)
    behind = frame(MetadataRequest(), 12, good)
    assert feed(stream, pieces_of(frames + bad + behind, cuts)) == frames
    assert "a request of -1 bytes" in str(stream.failure)
    assert [request.correlation_id for request in exchange.expected] == list(range(good))
