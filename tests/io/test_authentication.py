"""SASL on the connections of a producer: logins, sessions and their renewal, rejections."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging

import pytest

from aioproducer._common.client_log import ClientLog
from aioproducer.admin import make_client
from aioproducer.config import ProducerConfig
from aioproducer.core.requests.connection import Connection
from aioproducer.errors import (
    AuthenticationError,
    KafkaError,
    MetadataTimeoutError,
    SaslAuthenticationError,
    TokenProviderError,
)
from aioproducer.io.authentication import Session
from aioproducer.protocol import ApiKey
from aioproducer.protocol.messages import MetadataRequest
from aioproducer.security.sasl.plain import PlainClient
from tests.simulation import Fault, run
from tests.simulation.sasl import PLAIN, SCRAM, SaslRules, secure
from tests.virtual_time import SteppedClock


class Tokens:
    """A token provider: each token is valid for ``lifetime`` seconds, on brokers and by the wall clock."""

    def __init__(self, world, rules, lifetime):
        self.world, self.rules, self.lifetime = world, rules, lifetime
        self.count = 0
        self.failure = None
        self.hangs = False

    async def __call__(self):
        import time

        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.failure is not None:
            raise self.failure
        self.count += 1
        token = f"token{self.count}"
        self.rules.tokens[token] = self.world.loop.time() + self.lifetime
        return token, time.time() + self.lifetime

    def config(self, **more):
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_token_provider": self,
            **more,
        }


@pytest.mark.parametrize("config", [PLAIN, SCRAM], ids=["PLAIN", "SCRAM"])
def test_every_connection_authenticates_before_its_first_request(config):
    async def scenario(world):
        rules = secure(world.cluster, 3)
        async with world.producer(**config) as producer:
            for partition in range(3):
                await producer.send("clicks", b"value", partition=partition)
            snapshot = producer.metrics()
        assert all(accepted for _, _, accepted in rules.logins)
        assert len(rules.logins) == 4
        assert snapshot["successful-authentication-total"] == 4
        assert snapshot["failed-authentication-total"] == 0

    _, world = run(scenario, nodes=3)
    for node in range(1, 4):
        names = world.requests(node=node)
        first = next(index for index, name in enumerate(names) if name in ("METADATA", "PRODUCE"))
        assert "SASL_AUTHENTICATE" in names[:first]
    assert not world.events(what="not authenticated")


def test_a_rejection_fails_pending_records_at_once_and_the_next_send_logs_in_again():
    async def scenario(world):
        rules = secure(world.cluster, passwords={"alice": "new"})
        password = "old"
        async with world.producer(**{**PLAIN, "sasl_password": lambda: password}) as producer:
            sends = [producer.send("clicks", b"%d" % number) for number in range(3)]
            began = world.loop.time()
            for send in sends:
                with pytest.raises(SaslAuthenticationError, match="Invalid credentials") as caught:
                    await send
                assert not caught.value.may_have_been_written
            assert world.loop.time() - began < 1
            assert producer.is_usable
            attempts = len(rules.logins)
            await asyncio.sleep(120)
            # A wrong password that is tried again and again would lock the account.
            assert len(rules.logins) == attempts
            password = "new"
            await producer.send("clicks", b"after")
            assert producer.metrics()["failed-authentication-total"] == attempts
        assert world.cluster.values("clicks") == [b"after"]

    run(scenario, nodes=1)


def test_a_rejection_ends_the_calls_that_wait_for_metadata():
    async def scenario(world):
        secure(world.cluster, passwords={"alice": "new"})
        async with world.producer(**PLAIN) as producer:
            began = world.loop.time()
            with pytest.raises(SaslAuthenticationError):
                await producer.wait_ready(60)
            with pytest.raises(SaslAuthenticationError):
                await producer.partitions_for("clicks")
            assert world.loop.time() - began < 3

    run(scenario, nodes=1)


def test_a_broker_that_rejects_the_client_fails_only_the_records_for_its_partitions():
    async def scenario(world):
        secure(world.cluster, 2)
        async with world.producer(**PLAIN, linger_ms=5) as producer:
            await producer.send("clicks", b"value", partition=0)
            world.cluster.nodes[2].sasl = SaslRules(passwords={})
            world.disconnect(2)
            first, second = (producer.send("clicks", b"value", partition=number) for number in range(2))
            with pytest.raises(SaslAuthenticationError):
                await second
            await first
            await producer.send("clicks", b"value", partition=0)
        assert world.cluster.values("clicks", 0) == [b"value"] * 3
        assert world.cluster.values("clicks", 1) == []

    run(scenario, nodes=2)


@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("coroutines", [1, 7])
@pytest.mark.parametrize("delay", [0.0, 0.003, 0.4])
def test_sessions_are_renewed_under_load_without_a_loss_a_duplicate_or_another_order(in_flight, coroutines, delay):
    async def scenario(world):
        rules = secure(world.cluster, 2, session_lifetime=1.0)
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=delay, times=10**9))
        config = {**SCRAM, "max_in_flight_requests_per_connection": in_flight, "linger_ms": 0}
        sent = {number: [] for number in range(coroutines)}
        end = world.loop.time() + 7
        async with world.producer(**config) as producer:

            async def send_in_turn(number):
                for count in itertools.count():
                    if world.loop.time() > end:
                        return
                    value = b"%d:%d" % (number, count)
                    await producer.send("clicks", value, partition=number % 2)
                    sent[number].append(value)
                    await asyncio.sleep(0.005)

            await asyncio.gather(*(send_in_turn(number) for number in range(coroutines)))
            snapshot = producer.metrics()
        written = [world.cluster.values("clicks", partition) for partition in range(2)]
        for number, values in sent.items():
            mine = [value for value in written[number % 2] if value.startswith(b"%d:" % number)]
            assert mine == values
        assert rules.renewals >= 4
        assert snapshot["successful-reauthentication-total"] == rules.renewals
        assert snapshot["failed-reauthentication-total"] == 0
        assert snapshot["reauthentication-latency-max"] >= 0
        assert all(accepted for _, _, accepted in rules.logins)
        # No session ended before its renewal, so no connection did.
        assert not world.events(what="not authenticated")
        assert not world.failures

    run(scenario, nodes=1)


@pytest.mark.parametrize("lifetime", [0.01, 0.2, 0.7])
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.3])
def test_a_broker_that_cuts_expired_sessions_loses_no_record(lifetime, delay):
    """A session shorter than the second that brokers demand between two renewals ends before its renewal."""

    async def scenario(world):
        secure(world.cluster, session_lifetime=lifetime)
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=delay, times=10**9))
        async with world.producer(**PLAIN, retry_backoff_ms=10) as producer:
            for number in range(40):
                await producer.send("clicks", b"%d" % number)
                await asyncio.sleep(0.05)
        assert world.cluster.values("clicks") == [b"%d" % number for number in range(40)]

    run(scenario, nodes=1)


def test_a_failed_renewal_fails_no_record_and_the_next_connection_has_new_credentials():
    async def scenario(world):
        rules = secure(world.cluster, session_lifetime=2.0)

        def password():
            return "right" if all(accepted for _, _, accepted in rules.logins) else "changed"

        async with world.producer(**{**PLAIN, "sasl_password": password}) as producer:
            await producer.send("clicks", b"before")
            rules.passwords["alice"] = "changed"
            count = 0
            while all(accepted for _, _, accepted in rules.logins):
                count += 1
                await producer.send("clicks", b"during")
                await asyncio.sleep(0.001)
            await producer.send("clicks", b"after")
            snapshot = producer.metrics()
        assert snapshot["failed-reauthentication-total"] >= 1
        assert snapshot["failed-authentication-total"] == 0
        assert world.cluster.values("clicks") == [b"before", *[b"during"] * count, b"after"]
        assert not world.failures

    run(scenario, nodes=1)


def test_an_idle_connection_is_closed_although_its_session_is_renewed():
    async def scenario(world):
        rules = secure(world.cluster, session_lifetime=5.0)
        async with world.producer(**PLAIN, connections_max_idle_ms=20_000, metadata_max_age_ms=10**7) as producer:
            await producer.send("clicks", b"value")
            await asyncio.sleep(18)
            assert rules.renewals >= 3
            await asyncio.sleep(30)
            assert not world.connections
            renewals = rules.renewals
            await asyncio.sleep(60)
            assert rules.renewals == renewals

    run(scenario, nodes=1)


@pytest.mark.parametrize("at", [0.0, 0.5, 3.0])
def test_a_producer_closes_in_the_middle_of_a_login_and_of_a_renewal(at):
    async def scenario(world):
        secure(world.cluster, session_lifetime=1.0)
        for api in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
            world.cluster.faults.append(Fault(api=api, answer_delay=0.4, times=10**9))
        async with world.producer(**SCRAM) as producer:
            send = producer.send("clicks", b"value")
            await asyncio.sleep(at)
            await producer.close(timeout=0)
        assert send.done()
        with contextlib.suppress(KafkaError):
            await send

    run(scenario, nodes=1)


def test_a_broker_that_does_not_answer_a_login_is_left_after_the_request_timeout():
    async def scenario(world):
        secure(world.cluster)
        world.cluster.faults.append(Fault(api=ApiKey.SASL_AUTHENTICATE, answer="silence"))
        async with world.producer(**PLAIN, request_timeout_ms=3000, delivery_timeout_ms=20_000) as producer:
            began = world.loop.time()
            await producer.send("clicks", b"value")
            assert 3 <= world.loop.time() - began < 5

    run(scenario, nodes=1)


@pytest.mark.parametrize(("what", "request_timeout_ms"), [("fails", 5000), ("hangs", 5000), ("hangs", 30_000)])
def test_records_wait_for_a_token_provider_until_their_own_deadlines(what, request_timeout_ms):
    async def scenario(world):
        rules = secure(world.cluster)
        tokens = Tokens(world, rules, 3600.0)
        tokens.hangs = what == "hangs"
        tokens.failure = ConnectionRefusedError("no route to the provider") if what == "fails" else None
        config = tokens.config(max_block_ms=20_000, request_timeout_ms=request_timeout_ms)
        async with world.producer(**config) as producer:
            began = world.loop.time()
            with pytest.raises(MetadataTimeoutError) as caught:
                await producer.send("clicks", b"lost")
            assert 20 <= world.loop.time() - began < 21
            assert isinstance(caught.value.__cause__, TokenProviderError)
            tokens.hangs, tokens.failure = False, None
            await producer.send("clicks", b"delivered")
        assert world.cluster.values("clicks") == [b"delivered"]

    run(scenario, nodes=1)


def test_a_provider_that_is_down_at_the_end_of_a_session_delays_records_and_loses_none():
    async def scenario(world):
        rules = secure(world.cluster)
        tokens = Tokens(world, rules, 400.0)
        async with world.producer(**tokens.config()) as producer:
            await producer.send("clicks", b"0")
            tokens.failure = ConnectionRefusedError("no route to the provider")
            await asyncio.sleep(500)
            send = producer.send("clicks", b"1")
            await asyncio.sleep(30)
            assert not send.done()
            tokens.failure = None
            await send
        assert world.cluster.values("clicks") == [b"0", b"1"]

    run(scenario, nodes=1)


def test_tokens_are_renewed_on_the_connection_before_they_expire():
    async def scenario(world):
        rules = secure(world.cluster)
        tokens = Tokens(world, rules, 600.0)
        async with world.producer(**tokens.config(connections_max_idle_ms=-1)) as producer:
            for number in range(200):
                await producer.send("clicks", b"%d" % number)
                await asyncio.sleep(20)
        assert 5 <= tokens.count <= 20
        assert rules.renewals >= 5
        assert not world.events(what="not authenticated")
        assert world.cluster.values("clicks") == [b"%d" % number for number in range(200)]

    run(scenario, nodes=1)


def test_a_rejected_token_is_not_used_again():
    async def scenario(world):
        rules = secure(world.cluster)
        tokens = Tokens(world, rules, 3600.0)
        async with world.producer(**tokens.config()) as producer:
            await producer.send("clicks", b"before")
            rules.tokens.clear()
            world.disconnect(1)
            with pytest.raises(SaslAuthenticationError):
                await producer.send("clicks", b"lost")
            await producer.send("clicks", b"after")
        assert tokens.count == 2
        assert world.cluster.values("clicks") == [b"before", b"after"]

    run(scenario, nodes=1)


def test_a_client_without_sasl_learns_in_seconds_that_the_listener_requires_it():
    async def scenario(world):
        secure(world.cluster)
        async with world.producer() as producer:
            began = world.loop.time()
            with pytest.raises(AuthenticationError, match=r"requires SASL.*PLAIN, SCRAM-SHA-256, OAUTHBEARER"):
                await producer.send("clicks", b"value")
            assert world.loop.time() - began < 2

    run(scenario, nodes=1)


def test_a_client_with_sasl_learns_at_once_that_the_listener_does_not_use_it():
    async def scenario(world):
        world.cluster.create_topic("clicks")
        began = world.loop.time()
        async with world.producer(**PLAIN) as producer:
            with pytest.raises(AuthenticationError, match="does not use SASL"):
                await producer.send("clicks", b"value")
            assert world.loop.time() - began < 1

    run(scenario, nodes=1)


def test_a_mechanism_that_is_not_enabled_fails_at_once_and_the_enabled_ones_are_named():
    async def scenario(world):
        secure(world.cluster, mechanisms=("SCRAM-SHA-512",))
        began = world.loop.time()
        async with world.producer(**PLAIN) as producer:
            with pytest.raises(AuthenticationError, match="it offers: SCRAM-SHA-512"):
                await producer.send("clicks", b"value")
            assert world.loop.time() - began < 1

    run(scenario, nodes=1)


def test_a_broker_that_ends_its_first_connection_is_no_listener_that_requires_sasl():
    async def scenario(world):
        world.cluster.create_topic("clicks")
        world.cluster.faults.append(Fault(api=ApiKey.METADATA, disconnect="before"))
        async with world.producer() as producer:
            await producer.send("clicks", b"value")
        assert world.cluster.values("clicks") == [b"value"]

    run(scenario, nodes=1)


@pytest.mark.parametrize("when", ["before", "after", "half"])
@pytest.mark.parametrize("api", [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE])
@pytest.mark.parametrize("number", range(4))
def test_a_connection_that_ends_in_a_login_or_a_renewal_loses_no_record(when, api, number):
    async def scenario(world):
        secure(world.cluster, session_lifetime=1.5)
        async with world.producer(**SCRAM, linger_ms=0) as producer:
            if number == 0:
                world.cluster.faults.append(Fault(api=api, disconnect=when))
            for count in range(300):
                if count == 50 * number:
                    world.cluster.faults.append(Fault(api=api, disconnect=when))
                await producer.send("clicks", b"%d" % count)
                await asyncio.sleep(0.03)
        assert world.cluster.values("clicks") == [b"%d" % count for count in range(300)]

    run(scenario, nodes=1)


def test_an_unread_rejection_is_logged_once_per_text(caplog):
    caplog.set_level(logging.WARNING)

    async def scenario(world):
        secure(world.cluster, passwords={})
        async with world.producer(**PLAIN) as producer:
            for _ in range(3):
                with pytest.raises(SaslAuthenticationError):
                    await producer.send("clicks", b"value")

    run(scenario, nodes=1)
    warnings = [record.getMessage() for record in caplog.records if "Invalid credentials" in record.getMessage()]
    assert len([text for text in warnings if "Broker" in text]) == 1
    assert "right" not in caplog.text


@pytest.mark.parametrize("nodes", [1, 3])
def test_an_idle_producer_does_not_log_in_again_after_a_rejection_although_it_knows_its_topics(nodes):
    async def scenario(world):
        rules = secure(world.cluster, nodes)
        async with world.producer(**PLAIN) as producer:
            for partition in range(nodes):
                await producer.send("clicks", b"before", partition=partition)
            rules.passwords["alice"] = "new"
            for node in range(1, nodes + 1):
                world.disconnect(node)
            for send in [producer.send("clicks", b"lost", partition=partition) for partition in range(nodes)]:
                with pytest.raises(SaslAuthenticationError):
                    await send
            await asyncio.sleep(1)
            logins = len(rules.logins)
            await asyncio.sleep(3600)
            assert len(rules.logins) == logins

    run(scenario, nodes=nodes)


def test_a_broker_that_rejects_is_left_alone_while_nothing_is_for_it_although_others_serve():
    async def scenario(world):
        secure(world.cluster, 2)
        async with world.producer(**PLAIN) as producer:
            for partition in range(2):
                await producer.send("clicks", b"before", partition=partition)
            rejecting = world.cluster.nodes[2].sasl = SaslRules(passwords={})
            world.disconnect(2)
            with pytest.raises(SaslAuthenticationError):
                await producer.send("clicks", b"lost", partition=1)
            await asyncio.sleep(1)
            logins = len(rejecting.logins)
            for _ in range(60):
                await producer.send("clicks", b"more", partition=0)
                await asyncio.sleep(10)
            assert len(rejecting.logins) <= logins + 3

    run(scenario, nodes=2)


def test_an_idle_producer_does_not_ask_a_provider_that_fails_again_and_again():
    async def scenario(world):
        rules = secure(world.cluster)
        tokens = Tokens(world, rules, 3600.0)
        calls = []

        async def provider():
            calls.append(world.loop.time())
            return await tokens()

        tokens.failure = TokenProviderError("The token endpoint returned status 401 (invalid_client).")
        config = tokens.config(sasl_token_provider=provider, max_block_ms=2000)
        async with world.producer(**config) as producer:
            with pytest.raises(MetadataTimeoutError):
                await producer.send("clicks", b"lost")
            await asyncio.sleep(5)
            count = len(calls)
            await asyncio.sleep(3600)
            assert len(calls) == count
            tokens.failure = None
            await producer.send("clicks", b"delivered")

    run(scenario, nodes=1)


@pytest.mark.parametrize("config", [{"enable_idempotence": False}, {"retries": 0}], ids=["plain", "no retries"])
def test_requests_in_flight_at_the_end_of_a_session_that_cannot_be_renewed_are_answered(config, caplog):
    async def scenario(world):
        secure(world.cluster, session_lifetime=60.0)
        down = False

        async def password():
            if down:
                raise OSError("the vault is sealed")
            return "right"

        async with world.producer(**{**PLAIN, **config, "sasl_password": password}, linger_ms=0) as producer:
            await producer.send("clicks", b"0")
            down = True
            await asyncio.sleep(58.5)
            world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=5))
            first = producer.send("clicks", b"1")
            await asyncio.sleep(8)
            assert first.done()
            second = producer.send("clicks", b"2")
            await asyncio.sleep(10)
            down = False
            await first
            await second
        assert world.cluster.values("clicks") == [b"0", b"1", b"2"]

    run(scenario, nodes=1)
    assert len([record for record in caplog.records if "cannot be renewed yet" in record.getMessage()]) == 1


def session_of(world, connection, login):
    """A session of a connection without a transport."""
    return Session(
        world.loop,
        connection,
        login,
        PlainClient("alice", "right"),
        proceed=lambda buffers, now: None,
        poison=connection.eof,
        step_timeout=1.0,
        random=world.random,
        log=ClientLog("Producer", "simulated"),
    )


def test_a_connection_may_end_in_the_iteration_in_which_its_renewal_is_due():
    async def scenario(world):
        connection = Connection(peer="broker1:9092", client_id=None)
        login = Tokens(world, SaslRules(), 1.0)
        session = session_of(world, connection, login)
        session.renew_at(world.loop.time() + 5)
        running = asyncio.ensure_future(session.run())
        await asyncio.sleep(1)

        def end_after_the_timer():
            # The timer has run, but not the task that waits for it.
            if session._wait.expired():
                connection.eof()
                session.ended()
            else:
                world.loop.call_soon(end_after_the_timer)

        world.loop.call_at(world.loop.time() + 4 - 1e-5, end_after_the_timer)
        await running
        assert world.loop.time() >= 5

    run(scenario, nodes=1)


def test_a_renewal_that_cannot_begin_leaves_the_loop_to_others():
    class Login:
        mechanism = "PLAIN"
        asked = 0

        async def authenticator(self):
            self.asked += 1
            return PlainClient("alice", "right")

    async def scenario(world):
        # It is not ready: it was never started.
        connection = Connection(peer="broker1:9092", client_id=None)
        login = Login()
        session = session_of(world, connection, login)
        session.renew_at(world.loop.time() + 5)
        running = asyncio.ensure_future(session.run())
        await asyncio.sleep(10)
        assert login.asked == 1
        connection.eof()
        session.ended()
        await running

    run(scenario, nodes=1)


def test_a_client_of_single_requests_survives_the_cancellation_of_all_tasks():
    async def scenario(world):
        secure(world.cluster, session_lifetime=10.0)
        config = ProducerConfig.from_kwargs(bootstrap_servers="broker1:9092", **PLAIN, connections_max_idle_ms=-1)
        client = make_client(config, world.loop, world, ClientLog("AdminClient", "admin"))
        assert await client.partition_count("clicks", 5) == 1
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(11)
        await client.renew_metadata(5)
        await client.close()

    run(scenario, nodes=1)


def test_a_request_of_the_last_moment_of_a_session_is_sent_or_waits():
    """The time of the check is the time of the request: a session that ended in between was once an error."""

    async def scenario(world):
        secure(world.cluster, session_lifetime=10.0)
        config = ProducerConfig.from_kwargs(bootstrap_servers="broker1:9092", **PLAIN)
        client = make_client(config, world.loop, world, ClientLog("AdminClient", "admin"))
        await client.renew_metadata(5)
        await client.request(MetadataRequest(topics=[]), node_id=1, timeout=5)
        loop, node = client._loop, client.node(1)
        end = loop.time()
        while node.can_send(end + 0.001):
            end += 0.001
        # When the request begins, when the node is checked, and the next moment.
        times = [end, end, end + 0.001]
        client._loop = SteppedClock(loop, times)
        assert await client.request(MetadataRequest(topics=[]), node_id=1, timeout=5)
        await client.close()

    run(scenario, nodes=1)


def test_a_client_of_single_requests_fails_at_once_when_it_is_rejected_and_works_with_the_next_password():
    async def scenario(world):
        rules = secure(world.cluster, passwords={"alice": "new"})
        password = "old"
        config = ProducerConfig.from_kwargs(
            bootstrap_servers="broker1:9092", **{**PLAIN, "sasl_password": lambda: password}
        )
        client = make_client(config, world.loop, world, ClientLog("AdminClient", "admin"))
        began = world.loop.time()
        with pytest.raises(SaslAuthenticationError):
            await client.partition_count("clicks", 60)
        assert world.loop.time() - began < 1
        logins = len(rules.logins)
        await asyncio.sleep(600)
        assert len(rules.logins) == logins
        password = "new"
        assert await client.partition_count("clicks", 60) == 1
        await client.close()

    run(scenario, nodes=1)
