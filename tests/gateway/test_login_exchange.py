"""The exchange of a login, with the broker's bytes split in every way."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from aioproducer.errors import KafkaError, ProtocolError, SaslAuthenticationError
from aioproducer.gateway.login import Authentication
from aioproducer.security.sasl.plain import PlainClient
from aioproducer.transport.memory import MemoryNetwork
from tests.gateway.gated import gated, login_of
from tests.simulation import run
from tests.simulation.broker import BrokerConnection
from tests.simulation.sasl import PLAIN, secure


class Wire:
    """A transport that records writes, and completes them at once or later."""

    peer = "broker1:9092"

    def __init__(self, takes=True):
        self.written = bytearray()
        self.takes = takes

    def write(self, buffers):
        self.written += b"".join(buffers)
        return self.takes


class Behind:
    """The handler that follows the exchange."""

    def __init__(self):
        self.received = bytearray()
        self.completed = 0
        self.lost = []

    def data_received(self, data):
        self.received += data

    def write_completed(self, count):
        self.completed += count

    def connection_lost(self, exception):
        self.lost.append(exception)


class Login:
    """Counts rejections; the tests provide the authenticator."""

    mechanism = "PLAIN"

    def __init__(self):
        self.rejections = 0

    async def authenticator(self):
        raise AssertionError("nobody asks for it")

    def rejected(self, authenticator):
        self.rejections += 1

    async def close(self):
        raise AssertionError("nobody closes it")


class Exchange:
    """An authentication with bytes from the test instead of a broker."""

    def __init__(self, takes=True):
        self.wire = Wire(takes)
        self.behind = Behind()
        self.login = Login()
        self.authentication = Authentication(
            "broker1:9092", self.login, PlainClient("alice", "right"), self.behind, client_id="gateway", uses_tls=False
        )
        deadline = asyncio.get_running_loop().time() + 60
        self.task = asyncio.ensure_future(self.authentication.run(self.wire, deadline, 60))

    async def outcome(self):
        """Return the error, if there is one so far."""
        for _ in range(3):
            await asyncio.sleep(0)
        return self.task.exception() if self.task.done() else "in progress"

    async def end(self):
        self.task.cancel()
        await asyncio.wait([self.task])


def responses(password="right"):
    """Return the broker's responses in an exchange of PLAIN, one by one."""

    async def scenario(world):
        secure(world.cluster, passwords={"alice": password}, session_lifetime=60.0)
        answers = []
        taken = MemoryNetwork()

        class Recorder(BrokerConnection):
            def __init__(self, transport):
                super().__init__(world, world.cluster.nodes[1], transport)
                write = transport.write
                transport.write = lambda buffers: (answers.append(b"".join(buffers)), write(buffers))[1]

        taken.listen("broker1", 9092, Recorder)
        async with gated(world, login_of(**PLAIN), taken) as scene:
            client = await scene.client()
            await world.until(lambda: len(answers) == 3)
            client.transport.abort()
        return answers

    return run(scenario, nodes=1)[0]


@pytest.fixture(scope="module")
def answers():
    return responses()


@pytest.fixture(scope="module")
def rejection():
    return responses("other")


async def feed(exchange, pieces):
    for piece in pieces:
        exchange.authentication.data_received(piece)
        await asyncio.sleep(0)


async def test_the_brokers_responses_may_be_split_anywhere(answers):
    whole = b"".join(answers)
    for cut in range(len(whole) + 1):
        exchange = Exchange()
        await asyncio.sleep(0)
        # A response before its request is an error, so each is fed after its request.
        position = 0
        for answer in answers:
            at = min(max(cut - position, 0), len(answer))
            await feed(exchange, [piece for piece in (answer[:at], answer[at:]) if piece])
            position += len(answer)
        assert await exchange.outcome() is None, cut
        assert not exchange.behind.received
        exchange.authentication.data_received(b"of the client")
        assert exchange.behind.received == b"of the client"


async def test_the_exchange_ends_exactly_with_its_last_byte(answers):
    exchange = Exchange()
    await asyncio.sleep(0)
    for count, byte in enumerate(b"".join(answers), 1):
        assert await exchange.outcome() == "in progress", count
        exchange.authentication.data_received(bytes([byte]))
    assert await exchange.outcome() is None
    assert 50 <= exchange.authentication.seconds_until_end(Random(1)) <= 60


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 12, 100])
async def test_bytes_in_one_piece_with_the_last_response_are_refused(answers, count):
    """No request belongs to them, whatever they are."""
    exchange = Exchange()
    await asyncio.sleep(0)
    more = (b"\x00\x00\x00\x08\x00\x00\x00\x03\x00\x00\x00\x00" * 10)[:count]
    await feed(exchange, [*answers[:-1], answers[-1] + more])
    assert isinstance(await exchange.outcome(), ProtocolError)
    assert not exchange.behind.received


@pytest.mark.parametrize("seed", range(8))
async def test_any_response_of_a_hostile_broker_is_an_error_or_incomplete(answers, seed):
    random = Random(seed)
    for _ in range(150):
        exchange = Exchange()
        await asyncio.sleep(0)
        for answer in answers:
            changed = bytearray(answer)
            for _ in range(random.choice([0, 1, 1, 4])):
                changed[random.randrange(len(changed))] = random.randrange(256)
            cut = random.choice([len(changed), random.randrange(len(changed) + 1)])
            await feed(exchange, [bytes(changed[:cut]), bytes(changed[cut:])])
        outcome = await exchange.outcome()
        assert outcome is None or outcome == "in progress" or isinstance(outcome, KafkaError), outcome
        if random.random() < 0.5:
            exchange.authentication.connection_lost(None)
            assert await exchange.outcome() != "in progress"
        await exchange.end()


async def test_writes_of_the_exchange_are_not_reported_as_those_of_the_client(answers):
    exchange = Exchange(takes=False)
    await asyncio.sleep(0)
    await feed(exchange, answers)
    assert await exchange.outcome() is None
    # Three requests of the exchange, and two of the client's, completed together.
    exchange.authentication.write_completed(2)
    assert exchange.behind.completed == 0
    exchange.authentication.write_completed(3)
    assert exchange.behind.completed == 2
    exchange.authentication.write_completed(1)
    assert exchange.behind.completed == 3


async def test_bytes_before_the_first_request_are_refused(answers):
    exchange = Exchange()
    exchange.authentication.data_received(answers[0])
    assert isinstance(await exchange.outcome(), ProtocolError)
    assert not exchange.wire.written


async def test_a_rejection_reaches_the_login(rejection):
    exchange = Exchange()
    await asyncio.sleep(0)
    await feed(exchange, rejection)
    assert isinstance(await exchange.outcome(), SaslAuthenticationError)
    assert exchange.login.rejections == 1
