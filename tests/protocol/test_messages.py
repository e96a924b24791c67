"""Properties of every message in every version."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol import (
    APIS,
    Message,
    RequestHeader,
    ResponseHeader,
    decode,
    decode_request,
    decode_request_header,
    decode_response,
    decode_version_prefixed,
    encode,
)
from aioproducer.protocol.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription

MESSAGES: list[type[Message]] = [
    RequestHeader,
    ResponseHeader,
    ConsumerProtocolSubscription,
    ConsumerProtocolAssignment,
    *[message for api in APIS.values() for message in (api.request, api.response)],
]

every_message = pytest.mark.parametrize("message_class", MESSAGES, ids=lambda message_class: message_class.__name__)

FullInstance = Callable[[type[Message], int], Message]
ExtremeInstances = Callable[[type[Message], int], list[Message]]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message_class=st.sampled_from(MESSAGES), data=st.data())
def test_written_messages_are_read_back(message_class: type[Message], instances: Any, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(message_class.schema.versions))
    message = data.draw(instances(message_class, version))
    assert decode(message_class, version, b"".join(encode(message, version))) == message


@every_message
def test_full_extreme_and_empty_messages_of_every_version(
    message_class: type[Message], full_instance: FullInstance, extreme_instances: ExtremeInstances
) -> None:
    for version in message_class.schema.versions:
        extremes = extreme_instances(message_class, version)
        for message in (full_instance(message_class, version), *extremes, message_class()):
            assert decode(message_class, version, b"".join(encode(message, version))) == message


@every_message
def test_other_versions_are_rejected(message_class: type[Message]) -> None:
    versions = message_class.schema.versions
    for version in (versions[0] - 1, versions[-1] + 1):
        text = f"{message_class.__name__} has no version {version}: use {versions[0]} to {versions[-1]}"
        with pytest.raises(UnsupportedVersionError, match=text):
            encode(message_class(), version)
        with pytest.raises(UnsupportedVersionError, match=text):
            decode(message_class, version, b"")


@every_message
def test_truncated_messages_and_surplus_bytes_are_rejected(
    message_class: type[Message], full_instance: FullInstance
) -> None:
    for version in {message_class.schema.versions[0], message_class.schema.versions[-1]}:
        encoded = b"".join(encode(full_instance(message_class, version), version))
        for length in range(len(encoded)):
            with pytest.raises(ProtocolError):
                decode(message_class, version, encoded[:length])
        with pytest.raises(ProtocolError, match="followed by 1 more bytes"):
            decode(message_class, version, encoded + b"\0")


@every_message
def test_hostile_bytes_give_a_protocol_error_or_a_message(
    message_class: type[Message], full_instance: FullInstance
) -> None:
    """Random bytes, and full messages with some bytes replaced, removed or added."""
    random = Random(message_class.__name__)
    for _ in range(60):
        version = random.choice(message_class.schema.versions)
        hostile = bytearray(b"".join(encode(full_instance(message_class, version), version)))
        if random.random() < 0.3:
            hostile = bytearray(random.randbytes(random.randint(0, 40)))
        for _ in range(random.randint(1, 4)):
            start = random.randint(0, len(hostile))
            others = [random.randbytes(random.randint(0, 6)), bytes(4), b"\xff\xff\xff\xff\x07", b"\x7f" * 4]
            hostile[start : start + random.randint(0, 4)] = random.choice(others)
        try:
            message = decode(message_class, version, hostile)
        except ProtocolError:
            continue
        except Exception as error:
            error.add_note(f"version {version} of {hostile.hex()}")
            raise
        assert decode(message_class, version, b"".join(encode(message, version))) == message, (version, hostile.hex())


@settings(max_examples=150, deadline=None)
@given(
    start=st.builds(
        lambda key, version: key.to_bytes(2, "big") + version.to_bytes(2, "big"), st.integers(0, 95), st.integers(0, 20)
    ),
    rest=st.binary(max_size=60),
)
def test_hostile_frames_give_a_protocol_error_or_a_message(start: bytes, rest: bytes) -> None:
    """Any other exception fails the test."""
    frame = start + rest
    for read in (
        decode_request_header,
        lambda frame: decode_version_prefixed(ConsumerProtocolSubscription, frame[2:]),
        *[
            lambda frame, api=api: decode_response(api.response, api.max_version, frame)
            for api in (APIS[key] for key in list(APIS)[:5])
        ],
    ):
        try:
            read(frame)
        except ProtocolError:
            pass
    try:
        decode_request(frame)
    except (ProtocolError, UnsupportedVersionError):
        pass


CLAIMS = [b"\x7f" * 24, b"\xff\xff\xff\xff\x07" * 5, b"\x7f\xff\xff\xff" * 6, b"\xff\xff\xff\xff\x0f" * 5]


@every_message
def test_a_claimed_size_does_not_allocate_memory(message_class: type[Message], full_instance: FullInstance) -> None:
    """Lengths and counts of up to 4 GiB at every position of a short frame."""
    for version in {message_class.schema.versions[0], message_class.schema.versions[-1]}:
        encoded = b"".join(encode(full_instance(message_class, version), version))
        hostile = [encoded[:cut] + claim for cut in range(0, len(encoded), 3) for claim in CLAIMS]
        for frame in hostile[: len(CLAIMS)]:
            with pytest.raises(ProtocolError):
                decode(message_class, version, frame + b"\xff")
        tracemalloc.start()
        try:
            for frame in hostile:
                try:
                    decode(message_class, version, frame)
                except ProtocolError:
                    pass
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 100_000
