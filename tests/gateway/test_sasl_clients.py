"""SASL between a client and the broker passes through a gateway without credentials, in the middle of requests too."""

from __future__ import annotations

import asyncio
import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer import Producer
from aioproducer.errors import SaslAuthenticationError, UnsupportedSaslMechanismError
from aioproducer.gateway import AddressMap, Gateway
from aioproducer.gateway.requests import Exchange, Expected, RequestStream
from aioproducer.gateway.responses import ResponseStream
from aioproducer.protocol import ApiKey, encode_request
from aioproducer.protocol.messages import HeartbeatRequest, HeartbeatResponse, SaslHandshakeRequest
from aioproducer.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from aioproducer.testing.verbs import SimulatedFabric
from aioproducer.transport.listening import StreamListener
from aioproducer.transport.memory import MemoryNetwork
from aioproducer.transport.rdma import RdmaListener
from aioproducer.transport.stream import StreamConnector
from tests.gateway.gated import BROKER, SecureBroker, gated
from tests.gateway.messages import pieces_of, response_frame
from tests.simulation import Fault, run
from tests.simulation.sasl import PLAIN, SCRAM, secure

BOTH = pytest.mark.parametrize("config", [PLAIN, SCRAM], ids=["PLAIN", "SCRAM"])


def token_config(world, rules, lifetime):
    """A provider of tokens, each valid for so long."""

    def provide():
        import time

        token = f"token{len(rules.tokens)}"
        rules.tokens[token] = world.loop.time() + lifetime
        return token, time.time() + lifetime

    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_token_provider": provide,
    }


@BOTH
def test_a_producer_authenticates_to_the_broker_behind_a_gateway(config):
    async def scenario(world):
        rules = secure(world.cluster)
        async with gated(world) as scene, scene.producer(**config) as producer:
            for number in range(10):
                await producer.send("clicks", b"%d" % number)
            assert producer.metrics()["successful-authentication-total"] == len(rules.logins)
        assert world.cluster.values("clicks") == [b"%d" % number for number in range(10)]
        assert {(who, accepted) for _, who, accepted in rules.logins} == {("alice", True)}

    run(scenario, nodes=1)


def test_a_rejection_of_the_broker_reaches_the_producer():
    async def scenario(world):
        rules = secure(world.cluster, passwords={"alice": "new"})
        password = "old"
        async with gated(world) as scene:
            async with scene.producer(**{**PLAIN, "sasl_password": lambda: password}) as producer:
                with pytest.raises(SaslAuthenticationError, match="Invalid credentials"):
                    await producer.send("clicks", b"value")
                password = "new"
                await producer.send("clicks", b"value")
            rules.mechanisms = ("OAUTHBEARER",)
            async with scene.producer(**SCRAM) as producer:
                with pytest.raises(UnsupportedSaslMechanismError, match="it offers: OAUTHBEARER"):
                    await producer.send("clicks", b"value")

    run(scenario, nodes=1)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
@pytest.mark.parametrize("delay", [0.0, 0.01])
def test_a_producer_authenticates_again_in_the_middle_of_its_requests(mechanism, delay):
    """The session's lifetime passes too: the broker would disconnect a client that ignored it."""

    async def scenario(world):
        is_token = mechanism == "OAUTHBEARER"
        rules = secure(world.cluster, session_lifetime=0.0 if is_token else 1.2)
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=delay, times=10**9))
        config = token_config(world, rules, 1.5) if is_token else {**PLAIN, "sasl_mechanism": mechanism}
        sent = {number: [] for number in range(4)}
        end = world.loop.time() + 8
        async with gated(world) as scene, scene.producer(linger_ms=0, **config) as producer:

            async def send_in_turn(number):
                for count in itertools.count():
                    if world.loop.time() > end:
                        return
                    sent[number].append(b"%d:%d" % (number, count))
                    await producer.send("clicks", sent[number][-1])
                    await asyncio.sleep(0.01)

            await asyncio.gather(*(send_in_turn(number) for number in sent))
            snapshot = producer.metrics()
            connections = scene.metric("connections_accepted")
        written = world.cluster.values("clicks")
        for number, values in sent.items():
            assert [value for value in written if value.startswith(b"%d:" % number)] == values
        assert rules.renewals >= 4
        assert snapshot["successful-reauthentication-total"] == rules.renewals
        assert all(accepted for *_, accepted in rules.logins)
        # The connections are those of the beginning: bootstrap and broker.
        assert connections <= 2

    _, world = run(scenario, nodes=1)
    assert not world.events(what="not authenticated")


@BOTH
async def test_a_producer_by_rdma_authenticates(config, monkeypatch):
    """``Producer(transport="rdma")``, with the double in the place of the card."""
    fabric = SimulatedFabric()
    monkeypatch.setattr("aioproducer.transport.rdma.connecting.default_verbs", lambda: fabric)
    broker = SecureBroker()
    network = MemoryNetwork()
    network.listen(*BROKER, broker.accept)
    addresses = AddressMap({})
    async with Gateway(RdmaListener(fabric), network, BROKER, addresses) as gateway:
        await gateway.start("127.0.0.1", 0)
        addresses.add(BROKER, ("127.0.0.1", gateway.port))
        servers = f"127.0.0.1:{gateway.port}"
        async with Producer(bootstrap_servers=servers, transport="rdma", **config) as producer:
            for number in range(5):
                await producer.send("clicks", b"%d" % number)
            assert producer.metrics()["rdma-bytes-sent-total"] > 0
    assert broker.world.cluster.values("clicks") == [b"%d" % number for number in range(5)]
    assert all(accepted for *_, accepted in broker.rules.logins)


@BOTH
async def test_a_producer_by_tcp_authenticates(config):
    broker = SecureBroker()
    listening = await StreamListener().listen("127.0.0.1", 0, broker.accept)
    addresses = AddressMap({})
    async with Gateway(StreamListener(), StreamConnector(), ("127.0.0.1", listening.port), addresses) as gateway:
        await gateway.start("127.0.0.1", 0)
        addresses.add(BROKER, ("127.0.0.1", gateway.port))
        async with Producer(bootstrap_servers=f"127.0.0.1:{gateway.port}", **config) as producer:
            await producer.send("clicks", b"value")
    listening.close()
    await listening.wait_closed()
    assert broker.world.cluster.values("clicks") == [b"value"]


# The messages


def tagged(frame, *tags):
    """A flexible message with other tagged fields than none at its end."""
    assert frame[-1] == 0
    fields = b"".join(bytes([number, len(value)]) + value for number, value in tags)
    body = frame[4:-1] + bytes([len(tags)]) + fields
    return struct.pack(">i", len(body)) + body


TAGS = [(), ((0, b"x"),), ((5, b""), (9, bytes(100)))]


def frame(request, version, correlation_id):
    return b"".join(encode_request(request, version, correlation_id, "client"))


@settings(max_examples=60)
@given(
    st.integers(0, 2),
    st.sampled_from(TAGS),
    st.integers(0, 2**62),
    st.binary(max_size=300),
    st.lists(st.integers(0, 10_000), max_size=6),
    st.lists(st.integers(0, 10_000), max_size=6),
)
def test_an_authentication_between_requests_passes_unchanged(version, tags, lifetime, message, cuts, answer_cuts):
    """In each version, with fields that are not known yet, in any pieces."""
    if version < 2:
        tags = ()
    authenticate = frame(SaslAuthenticateRequest(auth_bytes=message), version, 3)
    answer = SaslAuthenticateResponse(
        auth_bytes=message[::-1], error_message=None, session_lifetime_ms=lifetime if version else 0
    )
    answered = response_frame(answer, version, 3)
    if version == 2:
        authenticate, answered = tagged(authenticate, *tags), tagged(answered, *tags)
    requests = [
        frame(HeartbeatRequest(), 4, 1),
        frame(SaslHandshakeRequest(mechanism="PLAIN"), 1, 2),
        authenticate,
        frame(HeartbeatRequest(), 4, 4),
    ]
    exchange = Exchange()
    stream = RequestStream(exchange, 1_000_000)
    sent = b"".join(requests)
    assert b"".join(b"".join(stream.feed(piece)) for piece in pieces_of(sent, cuts)) == sent
    assert stream.failure is None
    assert list(exchange.expected) == [
        Expected(1, ApiKey.HEARTBEAT, 4),
        Expected(2, ApiKey.SASL_HANDSHAKE, 1),
        Expected(3, ApiKey.SASL_AUTHENTICATE, version),
        Expected(4, ApiKey.HEARTBEAT, 4),
    ]
    back = ResponseStream(exchange, lambda host, port: (host, port), 1_000_000, 1_000_000)
    answers = b"".join(
        [
            response_frame(HeartbeatResponse(), 4, 1),
            response_frame(SaslHandshakeResponse(mechanisms=["PLAIN", "SCRAM-SHA-256"]), 1, 2),
            answered,
            response_frame(HeartbeatResponse(), 4, 4),
        ]
    )
    assert b"".join(b"".join(back.feed(piece)) for piece in pieces_of(answers, answer_cuts)) == answers
    assert back.failure is None
    assert (exchange.responses, exchange.rewritten, exchange.raw_tokens) == (4, 0, False)


def test_a_gateway_with_credentials_lets_no_sasl_request_pass():
    for request, version in [
        (SaslHandshakeRequest(mechanism="PLAIN"), 0),
        (SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (SaslAuthenticateRequest(auth_bytes=b"x"), 2),
    ]:
        exchange = Exchange(sasl_passes=False)
        stream = RequestStream(exchange, 1_000_000)
        assert b"".join(stream.feed(frame(HeartbeatRequest(), 4, 1) + frame(request, version, 2))) == frame(
            HeartbeatRequest(), 4, 1
        )
        assert "a SASL request, although this gateway authenticates" in str(stream.failure)
        assert not exchange.raw_tokens
