"""The handshake's bytes: messages are parsed from any pieces, and malformed ones are refused with a reason."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.protocol import encode_request
from aioproducer.protocol.messages import ApiVersionsRequest
from aioproducer.transport.rdma.handshake import (
    MAGIC,
    MAX_RING_BYTES,
    MAX_SLOTS,
    MIN_CONTROLS,
    MIN_RING_BYTES,
    Facts,
    HandshakeError,
    HandshakeReader,
    Kind,
    NotRdmaError,
    Ready,
    Refusal,
    RingFacts,
    encode,
    ended_early,
)
from aioproducer.transport.rdma.verbs import QueuePairFacts

NO_TOKEN = bytes(16)
TOKEN = bytes(range(16))
RING = RingFacts(address=0x7F00_0000_1000, key=0xDEADBEEF, size=65536, slots=128, controls=8)
QUEUE_PAIR = QueuePairFacts(number=17, gid=b"\0" * 10 + b"\xff\xff\x7f\0\0\1", packet_number=99, mtu=1024)
HELLO = Facts(Kind.HELLO, TOKEN, NO_TOKEN, QUEUE_PAIR, RING)

some_bytes = st.binary(min_size=16, max_size=16).filter(any)
rings = st.builds(
    RingFacts,
    address=st.integers(1, 2**63),
    key=st.integers(0, 2**32 - 1),
    size=st.integers(MIN_RING_BYTES, MAX_RING_BYTES),
    slots=st.integers(1, MAX_SLOTS),
    controls=st.integers(MIN_CONTROLS, MAX_SLOTS),
)
queue_pairs = st.builds(
    QueuePairFacts,
    number=st.integers(0, 2**24 - 1),
    gid=some_bytes,
    packet_number=st.integers(0, 2**24 - 1),
    mtu=st.sampled_from([256, 512, 1024, 2048, 4096]),
)
messages = st.one_of(
    st.builds(Facts, st.just(Kind.HELLO), some_bytes, st.just(NO_TOKEN), queue_pairs, rings),
    st.builds(Facts, st.just(Kind.WELCOME), some_bytes, some_bytes, queue_pairs, rings),
    st.builds(Ready, some_bytes),
    st.builds(Refusal, st.text(max_size=500)),
)


def read(data, *, accepting=True):
    return HandshakeReader("10.0.0.1:9092", accepting=accepting).feed(data)


@given(said=st.lists(messages, max_size=4), cuts=st.lists(st.integers(0, 500), max_size=12))
def test_messages_are_parsed_from_any_pieces(said, cuts):
    data = b"".join(map(encode, said))
    reader = HandshakeReader("peer", accepting=False)
    received = []
    ends = sorted(min(cut, len(data)) for cut in cuts)
    for start, end in zip([0, *ends], [*ends, len(data)], strict=True):
        received += reader.feed(memoryview(data)[start:end])
    assert received == said
    assert not reader.has_begun


@given(data=st.binary(max_size=300), prefixed=st.booleans())
def test_any_bytes_are_a_message_or_a_handshake_error(data, prefixed):
    """No other exception is raised."""
    if prefixed:
        data = MAGIC + data
    with contextlib.suppress(HandshakeError):
        read(data)


@given(message=messages, position=st.integers(0, 200), byte=st.integers(0, 255))
def test_one_wrong_byte_is_refused_or_changes_the_message(message, position, byte):
    data = bytearray(encode(message))
    position %= len(data)
    data[position] = byte
    try:
        received = read(bytes(data))
    except HandshakeError:
        return
    # The byte was unchanged, or the length grew and the rest is awaited.
    for other in received:
        if isinstance(other, Facts):
            assert other.ring.size >= MIN_RING_BYTES
            assert 0 < other.ring.slots <= MAX_SLOTS
            assert other.ring.address + other.ring.size <= 2**64


def facts_with(**changes):
    fields = {
        "token": TOKEN,
        "echo": NO_TOKEN,
        "number": 17,
        "gid": QUEUE_PAIR.gid,
        "packet_number": 1,
        "mtu": 1024,
        "address": 4096,
        "key": 1,
        "size": 4096,
        "slots": 4,
        "controls": 4,
        **changes,
    }
    body = struct.pack(">16s16sI16sIHQIIHH", *fields.values())
    return MAGIC + struct.pack(">HHH", 1, Kind.HELLO, len(body)) + body


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"token": NO_TOKEN}, "invalid token"),
        ({"echo": TOKEN}, "invalid echo"),
        ({"number": 2**24}, "invalid queue pair: 16777216"),
        ({"gid": bytes(16)}, "invalid GID"),
        ({"packet_number": 2**24}, "invalid packet number"),
        ({"mtu": 1500}, "invalid MTU: 1500"),
        ({"address": 0}, "invalid ring address: 0x0"),
        ({"address": 2**64 - 1}, "invalid ring address"),
        ({"size": 1023}, "invalid ring size: 1023"),
        ({"size": 2**30 + 1}, "invalid ring size"),
        ({"slots": 0}, "invalid number of slots: 0"),
        ({"slots": MAX_SLOTS + 1}, "invalid number of slots"),
        ({"controls": 1}, "invalid number of controls: 1"),
    ],
)
def test_impossible_facts_are_refused(changes, complaint):
    with pytest.raises(HandshakeError, match=complaint):
        read(facts_with(**changes))
    assert len(read(facts_with())) == 1


def framed(kind, body, version=1):
    return MAGIC + struct.pack(">HHH", version, kind, len(body)) + body


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (framed(Kind.HELLO, b"short"), "HELLO has 5 bytes instead of"),
        (framed(Kind.READY, b"short"), "READY has 5 bytes instead of 16"),
        (framed(9, b""), "unknown kind 9"),
        (MAGIC + struct.pack(">HHH", 1, 1, 5000), "a message of 5000 bytes \\(maximum 2048\\)"),
        (framed(Kind.HELLO, b"", version=2), "speaks version 2 of the RDMA handshake, this side version 1"),
    ],
)
def test_malformed_messages_are_refused(data, complaint):
    with pytest.raises(HandshakeError, match=complaint):
        read(data)


def test_a_refusal_of_any_version_is_understood():
    assert read(framed(Kind.REFUSAL, "zu früh".encode(), version=7)) == [Refusal("zu früh")]


def test_a_long_refusal_is_shortened():
    assert read(encode(Refusal("x" * 5000))) == [Refusal("x" * 2048)]


def test_a_kafka_client_is_recognized():
    request = b"".join(encode_request(ApiVersionsRequest(), 3, 1, "a client"))
    with pytest.raises(NotRdmaError, match=r"a Kafka client that speaks plain TCP.*takes RDMA clients only"):
        read(request)


def test_tls_is_recognized():
    with pytest.raises(NotRdmaError, match="speaks TLS"):
        read(b"\x16\x03\x01\x02\x00")
    with pytest.raises(NotRdmaError, match="speaks TLS"):
        read(b"\x15\x03\x01\x00\x02\x02\x46", accepting=False)


def test_a_foreign_protocol_is_refused_at_its_first_byte():
    with pytest.raises(NotRdmaError, match=r"it said b'G'.*takes RDMA clients only"):
        read(b"G")
    with pytest.raises(NotRdmaError, match=r"it said b'HTTP/1\.1 400 Bad'.*not a plain Kafka port"):
        read(b"HTTP/1.1 400 Bad Request", accepting=False)


def test_kafka_reads_the_handshake_as_a_negative_size():
    assert int.from_bytes(encode(HELLO)[:4], "big", signed=True) < 0


def test_the_error_of_an_early_end_depends_on_received_data():
    assert "not a plain Kafka port" in str(ended_early("a:1", received=False, accepting=False))
    assert "before the RDMA handshake was over" in str(ended_early("a:1", received=True, accepting=False))
    assert isinstance(ended_early("a:1", received=False, accepting=False), NotRdmaError)
    assert not isinstance(ended_early("a:1", received=False, accepting=True), NotRdmaError)
