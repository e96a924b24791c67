"""Connecting to a broker: the addresses of its name, one after another, each with a timeout."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aioproducer.errors import ConnectionFailedError
from tests.io.recording import Recording
from tests.simulation import run


def test_the_connection_setup_timeout_grows():
    async def scenario(world):
        hooks = Recording()
        world.hanging.add("broker1")
        config = {"socket_connection_setup_timeout_ms": 1000, "socket_connection_setup_timeout_max_ms": 4000}
        async with world.producer(hooks=(hooks,), **config):
            await asyncio.sleep(30)
        return hooks

    hooks, _ = run(scenario, nodes=1)
    limits = [duration_ms / 1000 for _, duration_ms, _ in hooks.of("on_connect")]
    assert all(
        low <= limit <= high for limit, low, high in zip(limits, (0.8, 1.6, 3.2), (1.21, 2.41, 4.01), strict=False)
    )
    assert all(3.2 <= limit <= 4.001 for limit in limits[2:])
    error = hooks.of("on_connect")[0][2]
    assert isinstance(error, ConnectionFailedError)
    assert "socket_connection_setup_timeout_ms" in str(error)


def test_all_addresses_of_a_name_are_tried_one_after_another_without_waiting():
    async def scenario(world):
        world.loop.addresses["kafka.example"] = ["10.0.0.1", "10.0.0.2", "broker1"]
        async with world.producer(bootstrap_servers="kafka.example:9092") as producer:
            await producer.wait_ready(1)
            assert world.loop.time() < 1000.01
        return [host for _, host, _ in world.attempts], world.server_hostnames

    (hosts, names), world = run(scenario, nodes=1)
    assert hosts[:3] == ["10.0.0.1", "10.0.0.2", "broker1"]
    assert names[:3] == ["kafka.example"] * 3
    assert world.loop.resolved.count("kafka.example") == 1


def test_a_name_is_resolved_again_after_all_its_addresses_fail_and_after_a_connection():
    async def scenario(world):
        world.cluster.create_topic("clicks", leaders=[1])
        world.cluster.nodes[1].host = "kafka.example"
        world.loop.addresses["kafka.example"] = ["10.0.0.1"]
        async with world.producer(bootstrap_servers="kafka.example:9092") as producer:
            await asyncio.sleep(1)
            world.loop.addresses["kafka.example"] = ["broker1"]
            await producer.send("clicks", b"value")
            resolved = len(world.loop.resolved)
            world.disconnect(1)
            await producer.send("clicks", b"value")
            assert len(world.loop.resolved) > resolved

    run(scenario, nodes=1)


def test_a_name_that_does_not_resolve_is_retried_and_named_in_the_error(caplog):
    async def scenario(world):
        world.loop.addresses["wrong.example"] = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        async with world.producer(bootstrap_servers="wrong.example:9092") as producer:
            await asyncio.sleep(5)
            with pytest.raises(TimeoutError, match=r"host name 'wrong.example' could not be resolved"):
                await producer.wait_ready(1)
        return len(world.loop.resolved)

    tries, _ = run(scenario)
    assert 5 <= tries <= 20
    # Reported once, not with every attempt.
    assert len([record for record in caplog.records if "wrong.example" in record.getMessage()]) == 1


def test_certificates_are_checked_against_canonical_names():
    async def scenario(world):
        world.loop.addresses["kafka.example"] = ["10.0.0.1", "broker1"]
        world.loop.canonical_names.update({"10.0.0.1": "one.example", "broker1": "two.example"})
        config = {"client_dns_lookup": "resolve_canonical_bootstrap_servers_only"}
        async with world.producer(bootstrap_servers="kafka.example:9092", **config) as producer:
            await producer.wait_ready(1)
        return world.server_hostnames

    assert run(scenario, nodes=1)[0][:2] == ["one.example", "two.example"]


def test_an_unexpected_connector_error_is_retried(caplog):
    async def scenario(world):
        connect = world.connect
        world.cluster.create_topic("clicks", leaders=[1])
        failures = iter([ValueError("odd"), OSError(113, "No route to host"), TimeoutError(110, "timed out")])

        async def failing(*arguments, **options):
            for failure in failures:
                raise failure
            return await connect(*arguments, **options)

        world.connect = failing
        hooks = Recording()
        async with world.producer(hooks=(hooks,)) as producer:
            await producer.send("clicks", b"value")
        return hooks

    hooks, world = run(scenario, nodes=1)
    texts = [str(error) for _, _, error in hooks.of("on_connect") if error is not None]
    assert "ValueError('odd')" in texts[0]
    assert "cannot be reached from here" in texts[1]
    # The socket's own timeout fired before ours.
    assert "packets seem to be dropped" in texts[2]
    assert world.cluster.values("clicks") == [b"value"]
