"""The end of the session of a gateway that logs in (KIP-368): no response is lost, and no request repeated."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from aioproducer.protocol import ApiKey
from tests.gateway.gated import correlation_ids, gated, login_of, metadata_request
from tests.simulation import Fault, run
from tests.simulation.sasl import PLAIN, SCRAM, secure


async def ask_until_the_end(world, client, in_flight):
    """Send requests without a pause; return their number."""
    asked = 0
    while not client.lost:
        if asked - len(correlation_ids(client.received, whole=False)) < in_flight:
            client.send(metadata_request(asked))
            asked += 1
        await asyncio.sleep(world.random.uniform(0.001, 0.01))
    return asked


@pytest.mark.parametrize("delay", [0.0, 0.02])
@pytest.mark.parametrize("seed", range(2))
def test_the_end_of_a_session_loses_no_response_and_repeats_none(delay, seed):
    """Passed requests are answered in order; other requests are not executed."""

    async def scenario(world):
        secure(world.cluster, session_lifetime=3.0)
        world.cluster.faults.append(Fault(api=ApiKey.METADATA, answer_delay=delay, times=10**9))
        done = 0
        async with gated(world, login_of(**PLAIN)) as scene:
            for _ in range(4):
                client = await scene.client()
                began = world.loop.time()
                asked = await ask_until_the_end(world, client, 5)
                assert 0.85 * 3 <= world.loop.time() - began <= 3.1
                answered = correlation_ids(client.received)
                assert answered == list(range(len(answered)))
                assert asked - 5 <= len(answered) <= asked
                assert len(answered) > 100
                done += len(answered)
                assert len(world.events(ApiKey.METADATA, what="did")) == done
            assert scene.metric("sessions_cut_short") == 4

    _, world = run(scenario, nodes=1, seed=seed)
    assert not world.events(what="not authenticated")


@pytest.mark.parametrize("seed", range(4))
def test_a_broker_that_ends_the_session_early_executes_no_unanswered_request(seed):
    """Its queue takes longer than the rest of the session: a broker checks the session at each request."""

    async def scenario(world):
        secure(world.cluster, session_lifetime=3.0)
        world.cluster.faults.append(Fault(api=ApiKey.METADATA, delay=0.3, times=10**9))
        async with gated(world, login_of(**PLAIN)) as scene:
            client = await scene.client()
            await ask_until_the_end(world, client, 20)
            answered = correlation_ids(client.received)
            assert answered == list(range(len(answered)))
            assert len(world.events(ApiKey.METADATA, what="did")) == len(answered)
            await world.until(lambda: not scene.metric("connections"))

    _, world = run(scenario, nodes=1, seed=seed)
    assert world.events(what="not authenticated")


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("delay", [0.0, 0.01, 0.2])
def test_sessions_end_under_load_without_a_loss_a_duplicate_or_another_order(idempotent, delay):
    async def scenario(world):
        rules = secure(world.cluster, session_lifetime=1.0)
        world.cluster.faults.append(Fault(api=ApiKey.PRODUCE, answer_delay=delay, times=10**9))
        config = {"enable_idempotence": idempotent, "max_in_flight_requests_per_connection": 5 if idempotent else 1}
        sent = {number: [] for number in range(5)}
        end = world.loop.time() + 6
        async with gated(world, login_of(**SCRAM)) as scene, scene.producer(linger_ms=0, **config) as producer:

            async def send_in_turn(number):
                for count in itertools.count():
                    if world.loop.time() > end:
                        return
                    sent[number].append(b"%d:%d" % (number, count))
                    await producer.send("clicks", sent[number][-1])
                    await asyncio.sleep(0.02)

            await asyncio.gather(*(send_in_turn(number) for number in sent))
            assert scene.metric("sessions_cut_short") >= 5
            assert scene.metric("login_failures") == 0
        written = world.cluster.values("clicks")
        for number, values in sent.items():
            assert [value for value in written if value.startswith(b"%d:" % number)] == values
        assert all(accepted for *_, accepted in rules.logins)

    _, world = run(scenario, nodes=1)
    # No request reached the broker after the end of its session.
    assert not world.events(what="not authenticated")


def test_an_idle_client_is_disconnected_at_the_end_of_the_session():
    async def scenario(world):
        secure(world.cluster, session_lifetime=100.0)
        async with gated(world, login_of(**PLAIN)) as scene:
            began = world.loop.time()
            clients = [await scene.client() for _ in range(20)]
            await asyncio.sleep(1)
            # They do not all connect again at the same time.
            ends = {timer.when() for timer in world.loop.pending_timers() if "_cut_short" in str(timer)}
            assert len(ends) == 20
            assert began + 85 <= min(ends) < began + 88
            assert began + 92 < max(ends) <= began + 96
            await asyncio.sleep(95)
            assert all(client.lost == [None] for client in clients)
            assert scene.metric("sessions_cut_short") == 20
            assert not scene.metric("connections")

    run(scenario, nodes=1)


def test_a_client_that_ends_before_its_session_leaves_no_timer():
    async def scenario(world):
        secure(world.cluster, session_lifetime=100.0)
        async with gated(world, login_of(**PLAIN)) as scene:
            client = await scene.client()
            client.send(metadata_request(0))
            await world.until(lambda: client.received)
            assert [timer for timer in world.loop.pending_timers() if "_cut_short" in str(timer)]
            client.transport.close()
            await world.until(lambda: not scene.metric("connections"))
            assert not world.loop.pending_timers()
            assert scene.metric("sessions_cut_short") == 0

    run(scenario, nodes=1)


def test_a_session_without_an_end_has_no_timer():
    async def scenario(world):
        secure(world.cluster)
        async with gated(world, login_of(**PLAIN)) as scene:
            client = await scene.client()
            client.send(metadata_request(0))
            await world.until(lambda: client.received)
            await asyncio.sleep(100_000)
            assert not client.lost
            client.transport.close()

    run(scenario, nodes=1)
