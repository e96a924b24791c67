"""The gateway authenticates to its broker: before a client's bytes, within a deadline, and never past a session."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aioproducer.errors import (
    AuthenticationError,
    ConfigurationError,
    KafkaTimeoutError,
    SaslAuthenticationError,
    TokenProviderError,
)
from aioproducer.gateway import AddressMap, Gateway
from aioproducer.protocol import ApiKey, encode_request
from aioproducer.protocol.messages import ApiVersionsRequest, SaslHandshakeRequest
from aioproducer.transport.memory import MemoryNetwork
from tests.gateway.gated import GATEWAY, PASSES, correlation_ids, gated, login_of, metadata_request, without_threads
from tests.simulation import Fault, World, run
from tests.simulation.sasl import PLAIN, SCRAM, secure

SASL_STEPS = [ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
BOTH = pytest.mark.parametrize("config", [PLAIN, SCRAM], ids=["PLAIN", "SCRAM"])


class Watched:
    """A login that records its calls."""

    def __init__(self, login):
        self._login = login
        self.mechanism = login.mechanism
        self.rejections = []
        self.closed = 0

    async def authenticator(self):
        return await self._login.authenticator()

    def rejected(self, authenticator):
        self.rejections.append(authenticator)
        self._login.rejected(authenticator)

    @property
    def executor(self):
        return self._login.executor

    def stop(self):
        self._login.stop()

    async def close(self):
        self.closed += 1
        await self._login.close()


class Watching:
    """Makes logins that record their calls."""

    def __init__(self, **keys):
        self._make = login_of(**keys)
        self.made = []

    def __call__(self):
        self.made.append(Watched(self._make()))
        return self.made[-1]


class Without:
    """A login without credentials."""

    mechanism = "OAUTHBEARER"

    def __init__(self, error=None):
        self._error = error

    async def authenticator(self):
        if self._error is None:
            await asyncio.get_running_loop().create_future()
        raise self._error

    def rejected(self, authenticator):
        raise AssertionError("nobody has rejected anything")

    # The simulated loop has its own threads.
    executor = None

    def stop(self):
        pass

    async def close(self):
        pass


class Blocking:
    """An authenticator with a first step that runs in a thread."""

    mechanism = "PLAIN"
    step_blocks = True

    def __init__(self, error):
        self._error = error

    def step(self, challenge):
        raise self._error

    def rejection(self, message):
        raise AssertionError("it never gets so far")


class OneStep(Without):
    async def authenticator(self):
        return Blocking(self._error)


@BOTH
def test_a_gateway_logs_in_before_a_byte_of_a_client_passes(config):
    async def scenario(world):
        rules = secure(world.cluster)
        async with gated(world, login_of(**config), client_id="of the gateway") as scene:
            client = await scene.client()
            client.send(metadata_request(0) + metadata_request(1))
            await world.until(lambda: client.received)
            await asyncio.sleep(1)
            # The client's correlation ids are its own, without those of the exchange.
            assert correlation_ids(client.received) == [0, 1]
            client.transport.close()
        return rules

    rules, world = run(scenario, nodes=1)
    events = world.events()
    assert [event.api for event in events[:3]] == SASL_STEPS
    assert [event.api for event in events[-2:]] == [ApiKey.METADATA] * 2
    assert {event.client_id for event in events[:-2]} == {"of the gateway"}
    assert [(who, accepted) for _, who, accepted in rules.logins] == [("alice", True)]


@BOTH
def test_a_producer_without_sasl_sends_through_a_gateway_that_logs_in(config):
    async def scenario(world):
        rules = secure(world.cluster)
        async with gated(world, login_of(**config)) as scene, scene.producer() as producer:
            for number in range(20):
                await producer.send("clicks", b"%d" % number)
        assert world.cluster.values("clicks") == [b"%d" % number for number in range(20)]
        assert len(rules.logins) == scene.metric("connections_accepted")
        assert scene.metric("login_failures") == scene.metric("upstream_failures") == 0

    _, world = run(scenario, nodes=1)
    assert not world.events(what="not authenticated")


@BOTH
def test_a_wrong_password_ends_the_client_and_is_logged_once_a_minute(config, caplog):
    caplog.set_level(logging.DEBUG)

    async def scenario(world):
        rules = secure(world.cluster, passwords={"alice": "other"})
        making = Watching(**{**config, "sasl_password": "wr0ng-passw0rd"})
        async with gated(world, making) as scene:

            async def try_once():
                client = await scene.client()
                client.send(metadata_request(0))
                await world.until(lambda: client.lost)
                assert not client.received

            for _ in range(3):
                await try_once()
            (login,) = making.made
            assert scene.metric("login_failures") == len(rules.logins) == len(login.rejections) == 3
            assert len(set(login.rejections)) == 3
            assert caplog.text.count("cannot authenticate") == 1
            await asyncio.sleep(60)
            await try_once()
            assert caplog.text.count("cannot authenticate") == 2
            await world.until(lambda: not scene.metric("connections"))
        assert login.closed == 1

    run(scenario, nodes=1)
    assert "The gateway cannot authenticate to the broker at broker1:9092 for client:1: " in caplog.text
    assert "wr0ng-passw0rd" not in caplog.text


def test_a_password_that_was_changed_serves_the_next_client():
    async def scenario(world):
        rules = secure(world.cluster, passwords={"alice": "new"})
        password = "old"
        async with gated(world, login_of(**{**PLAIN, "sasl_password": lambda: password})) as scene:
            first = await scene.client()
            await world.until(lambda: first.lost)
            password = "new"
            client = await scene.client()
            client.send(metadata_request(5))
            await world.until(lambda: client.received)
            client.transport.close()
        assert [accepted for *_, accepted in rules.logins] == [False, True]

    run(scenario, nodes=1)


@pytest.mark.parametrize("api", SASL_STEPS, ids=lambda api: api.name)
@pytest.mark.parametrize("config", [PLAIN, SCRAM], ids=["PLAIN", "SCRAM"])
def test_a_broker_that_hangs_in_the_exchange_is_disconnected(config, api, caplog):
    async def scenario(world):
        secure(world.cluster)
        world.cluster.faults.append(Fault(api=api, answer="silence"))
        async with gated(world, login_of(**config), connect_timeout=5) as scene:
            client = await scene.client()
            began = world.loop.time()
            await world.until(lambda: client.lost)
            assert 4.9 < world.loop.time() - began < 5.1
            await world.until(lambda: not world.connections)
            assert scene.metric("login_failures") == 1
            assert scene.metric("connections") == 0

    run(scenario, nodes=1)
    name = config["sasl_mechanism"]
    assert f"broker1:9092 has not finished SASL {name} within 5 s after the gateway began to connect." in caplog.text


def test_connecting_and_authenticating_share_one_deadline(caplog):
    async def scenario(world):
        secure(world.cluster)
        world.latency = lambda: 4.0
        world.cluster.faults.append(Fault(api=ApiKey.SASL_AUTHENTICATE, answer_delay=2.0, times=1))
        async with gated(world, login_of(**PLAIN), connect_timeout=5) as scene:
            client = await scene.client()
            began = world.loop.time()
            await world.until(lambda: client.lost)
            assert world.loop.time() - began < 5.1
            assert scene.metric("login_failures") == 1
            world.latency = lambda: 6.0
            client = await scene.client()
            await world.until(lambda: client.lost)
            assert scene.metric("upstream_failures") == 1
            # A late response changes nothing.
            await asyncio.sleep(10)

    run(scenario, nodes=1)
    assert "No connection to the broker at broker1:9092 for client:2: no answer within 5 s" in caplog.text


@pytest.mark.parametrize("api", SASL_STEPS, ids=lambda api: api.name)
@pytest.mark.parametrize(
    "fault", [{"disconnect": "before"}, {"disconnect": "half"}, {"answer": "garbage"}, {"answer": "wrong id"}], ids=str
)
def test_a_broker_that_fails_in_the_exchange_ends_the_client_at_once(api, fault, caplog):
    async def scenario(world):
        secure(world.cluster)
        world.cluster.faults.append(Fault(api=api, **fault))
        async with gated(world, login_of(**SCRAM)) as scene:
            client = await scene.client()
            began = world.loop.time()
            await world.until(lambda: client.lost)
            assert world.loop.time() - began < 1
            assert scene.metric("login_failures") == 1
            await world.until(lambda: not world.connections)
            # The next client is not affected.
            client = await scene.client()
            client.send(metadata_request(1))
            await world.until(lambda: client.received)
            client.transport.close()

    run(scenario, nodes=1)
    assert "The gateway cannot authenticate" in caplog.text
    assert "is lost" not in caplog.text


def test_a_listener_without_sasl_is_named(caplog):
    async def scenario(world):
        world.cluster.create_topic("clicks")
        async with gated(world, login_of(**PLAIN)) as scene:
            client = await scene.client()
            await world.until(lambda: client.lost)

    run(scenario, nodes=1)
    assert "The listener broker1:9092 does not use SASL" in caplog.text


def test_a_mechanism_that_the_broker_does_not_offer_is_named(caplog):
    async def scenario(world):
        secure(world.cluster, mechanisms=("OAUTHBEARER",))
        async with gated(world, login_of(**SCRAM)) as scene:
            client = await scene.client()
            await world.until(lambda: client.lost)

    run(scenario, nodes=1)
    assert "does not accept the SASL mechanism SCRAM-SHA-256; it offers: OAUTHBEARER" in caplog.text


@pytest.mark.parametrize("kind", [TokenProviderError, KafkaTimeoutError])
def test_without_credentials_no_connection_to_the_broker_is_made(kind, caplog):
    async def scenario(world):
        secure(world.cluster)
        async with gated(world, lambda: Without(kind("The token endpoint is down."))) as scene:
            client = await scene.client()
            await world.until(lambda: client.lost)
            assert scene.metric("login_failures") == 1
        assert not world.attempts

    run(scenario, nodes=1)
    assert "The token endpoint is down." in caplog.text


def test_a_login_that_hangs_has_the_deadline_too(caplog):
    async def scenario(world):
        secure(world.cluster)
        async with gated(world, Without, connect_timeout=3) as scene:
            client = await scene.client()
            began = world.loop.time()
            await world.until(lambda: client.lost)
            assert 2.9 < world.loop.time() - began < 3.1
        assert not world.attempts

    run(scenario, nodes=1)
    assert "No credentials for SASL OAUTHBEARER within 3 s." in caplog.text


@pytest.mark.parametrize(
    "error", [SaslAuthenticationError("no proof"), KafkaTimeoutError("too slow"), ValueError("a defect")]
)
def test_a_step_that_fails_in_a_thread_ends_the_client(error, caplog):
    async def scenario(world):
        secure(world.cluster)
        async with gated(world, lambda: OneStep(error)) as scene:
            client = await scene.client()
            await world.until(lambda: client.lost)
            await world.until(lambda: not world.connections)
            assert not scene.metric("connections")

    run(scenario, nodes=1)
    assert str(error) in caplog.text


def test_a_step_that_hangs_in_a_thread_has_the_deadline(monkeypatch, caplog):
    async def scenario(world):
        secure(world.cluster)
        async with gated(world, lambda: OneStep(None), connect_timeout=2) as scene:
            monkeypatch.setattr(world.loop, "run_in_executor", lambda *_: world.loop.create_future())
            client = await scene.client()
            await world.until(lambda: client.lost)
            assert scene.metric("login_failures") == 1

    run(scenario, nodes=1)
    assert "has not finished SASL OAUTHBEARER within 2 s" in caplog.text


def test_scram_computes_in_a_thread():
    async def scenario(world):
        secure(world.cluster)
        async with gated(world, login_of(**SCRAM)) as scene:
            before = world.loop.executor_calls
            client = await scene.client()
            client.send(metadata_request(0))
            await world.until(lambda: client.received)
            # The password is read in one call.
            assert world.loop.executor_calls == before + 2
            client.transport.close()

    run(scenario, nodes=1)


@BOTH
@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_client_that_disconnects_during_the_login_leaves_nothing(config, how):
    """At every pass of the loop."""

    def play(passes):
        async def scenario(world):
            secure(world.cluster)
            without_threads(world)
            async with gated(world, login_of(**config)) as scene:
                client = await scene.client()
                client.send(metadata_request(0))
                for _ in range(passes):
                    await asyncio.sleep(0)
                getattr(client.transport, how)()
                await world.until(lambda: not scene.metric("connections"))
                await world.until(lambda: not world.connections)
                assert scene.metric("login_failures") == 0
                return bool(client.received)

        return run(scenario, nodes=1)[0]

    assert any(play(passes) for passes in range(PASSES))


@BOTH
def test_stopping_during_the_login_leaves_nothing(config, caplog):
    """At every pass of the loop."""
    caplog.set_level(logging.WARNING)

    def play(passes):
        async def scenario(world):
            secure(world.cluster)
            without_threads(world)
            making = Watching(**config)
            async with gated(world, making) as scene:
                client = await scene.client()
                for _ in range(passes):
                    await asyncio.sleep(0)
                began = world.loop.time()
                await scene.gateway.stop()
                assert world.loop.time() - began < 0.1
                assert not scene.metric("connections")
                assert making.made[0].closed == 1
                await world.until(lambda: client.lost)
                return len(world.events())

        return run(scenario, nodes=1)[0]

    seen = {play(passes) for passes in range(PASSES)}
    # It was stopped before connecting, in each step of the exchange, and after it.
    assert seen >= set(range(4))
    assert not [record for record in caplog.records if record.name.startswith("aioproducer.gateway")]


def test_a_gateway_starts_again_with_a_new_login():
    async def scenario(world):
        secure(world.cluster)
        making = Watching(**PLAIN)
        async with gated(world, making) as scene:
            await scene.gateway.stop()
            await scene.gateway.start(*GATEWAY)
            client = await scene.client()
            client.send(metadata_request(0))
            await world.until(lambda: client.received)
            client.transport.close()
        assert [login.closed for login in making.made] == [1, 1]

    run(scenario, nodes=1)


async def test_a_port_in_use_closes_the_login():
    network = MemoryNetwork()
    network.listen(*GATEWAY, lambda transport: None)
    making = Watching(**PLAIN)
    gateway = Gateway(network, network, ("broker1", 9092), AddressMap({}), make_login=making)
    with pytest.raises(OSError, match="something listens"):
        await gateway.start(*GATEWAY)
    assert [login.closed for login in making.made] == [1]


async def test_a_wrong_configuration_is_an_error_of_the_start():
    def make_login():
        raise ConfigurationError("sasl.mechanism is wrong")

    network = MemoryNetwork()
    gateway = Gateway(network, network, ("broker1", 9092), AddressMap({}), make_login=make_login)
    with pytest.raises(ConfigurationError):
        await gateway.start(*GATEWAY)
    assert not network.listeners


@BOTH
def test_a_producer_with_sasl_has_an_error_at_a_gateway_that_offers_none(config):
    async def scenario(world):
        secure(world.cluster)
        async with gated(world, login_of(**PLAIN)) as scene, scene.producer(**config) as producer:
            with pytest.raises(AuthenticationError, match="The listener gateway:9192 does not use SASL") as caught:
                await producer.send("clicks", b"value")
            assert type(caught.value).__name__ == "IllegalSaslStateError"

    run(scenario, nodes=1)


@pytest.mark.parametrize("lifetime", [0.0, 10.0])
def test_a_sasl_request_that_was_not_offered_does_not_reach_the_broker(lifetime, caplog):
    async def scenario(world):
        secure(world.cluster, session_lifetime=lifetime)
        async with gated(world, login_of(**PLAIN)) as scene:
            client = await scene.client()
            versions = ApiVersionsRequest(client_software_name="test", client_software_version="1")
            client.send(b"".join(encode_request(versions, 4, 1, "client")))
            client.send(b"".join(encode_request(SaslHandshakeRequest(mechanism="PLAIN"), 1, 2, "client")))
            await world.until(lambda: client.lost)
            # Earlier requests are answered.
            assert correlation_ids(client.received) == [1]

    _, world = run(scenario, nodes=1)
    assert len(world.events(ApiKey.SASL_HANDSHAKE)) == 1
    assert "sent a SASL request, although this gateway authenticates to the broker itself" in caplog.text


@pytest.mark.parametrize("window", [1, 2, 7])
@BOTH
def test_a_broker_may_answer_byte_by_byte(config, window):
    class Slow:
        """The gateway receives few bytes at a time from the broker."""

        def __init__(self, world: World):
            self._world = world

        async def resolve(self, host, port):
            return await self._world.resolve(host, port)

        async def connect(self, host, port, handler, *, server_hostname=None):
            transport = await self._world.connect(host, port, handler, server_hostname=server_hostname)
            transport.receive_window = window
            return transport

    async def scenario(world):
        secure(world.cluster)
        async with gated(world, login_of(**config), Slow(world)) as scene, scene.producer() as producer:
            await producer.send("clicks", b"value")
        assert world.cluster.values("clicks") == [b"value"]

    run(scenario, nodes=1)
