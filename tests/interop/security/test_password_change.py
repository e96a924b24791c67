"""Passwords that change while a producer runs: new connections and sessions use the new one."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path

import pytest

from aioproducer import Producer
from aioproducer.errors import SaslAuthenticationError
from tests.kafka.ledger import verify
from tests.kafka.load import Load
from tests.kafka.security import PASSWORD, SASL, SCRAM_512, SHORT, SecureCluster
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

MECHANISM = "SCRAM-SHA-512"


@pytest.fixture
def user(secure: SecureCluster) -> str:
    """A user with the password ``old``."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    secure.set_scram_password(name, MECHANISM, "old")
    return name


async def _change_password(secure: SecureCluster, user: str) -> None:
    await asyncio.to_thread(secure.set_scram_password, user, MECHANISM, "new")


async def _stored(secure: SecureCluster, topic: str) -> list[bytes | None]:
    ((*records,),) = (await asyncio.to_thread(secure.read_back, topic)).values()
    return [record.value for record in records]


async def _wait_for_idle_close(producer: Producer) -> None:
    await until(lambda: producer.metrics()["connection-count"] == 0, pause=0.02)


async def test_old_connections_stay_and_new_ones_use_the_new_password(
    secure: SecureCluster, topic: str, user: str
) -> None:
    password = "old"
    configuration = secure.configuration(
        SCRAM_512, MECHANISM, sasl_username=user, sasl_password=lambda: password, connections_max_idle_ms=700
    )
    async with Producer(**configuration) as producer:
        await producer.send(topic, b"with the old one")
        await _change_password(secure, user)
        authenticated = producer.metrics()["successful-authentication-total"]
        await producer.send(topic, b"on an old connection")
        assert producer.metrics()["successful-authentication-total"] == authenticated
        password = "new"
        await _wait_for_idle_close(producer)
        await producer.send(topic, b"with the new one")
        assert producer.metrics()["successful-authentication-total"] > authenticated
    assert await _stored(secure, topic) == [b"with the old one", b"on an old connection", b"with the new one"]


async def test_a_placeholder_is_resolved_for_each_connection(
    secure: SecureCluster, topic: str, user: str, tmp_path: Path
) -> None:
    """The file of ``${file:...}`` (KIP-297) is read again."""
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("password=old\n")
    settings = secure.configuration(
        SCRAM_512, MECHANISM, sasl_username=None, sasl_password=None, connections_max_idle_ms=700
    )
    configuration = {name.replace("_", "."): value for name, value in settings.items()} | {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{user}" password="${{file:{secrets}:password}}";'
        ),
    }
    async with Producer.from_config(configuration) as producer:
        await producer.send(topic, b"with the old one")
        await _change_password(secure, user)
        secrets.write_text("password=new\n")
        await _wait_for_idle_close(producer)
        await producer.send(topic, b"with the new one")
    assert await _stored(secure, topic) == [b"with the old one", b"with the new one"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_producer_stays_usable_after_a_wrong_password(
    secure: SecureCluster, topic: str, mechanism: str
) -> None:
    """Pending records fail at once; the next send requests the password again."""
    password = "wrong"
    producer = Producer(**secure.configuration(SASL, mechanism, sasl_password=lambda: password))
    await producer.start()
    try:
        began = time.monotonic()
        pending = [producer.send(topic, b"%d" % number) for number in range(10)]
        failures = await asyncio.gather(*pending, return_exceptions=True)
        assert time.monotonic() - began < 5
        assert {type(failure) for failure in failures} == {SaslAuthenticationError}
        password = PASSWORD
        began = time.monotonic()
        await producer.send(topic, b"after")
        assert time.monotonic() - began < 5
    finally:
        await producer.close()
    assert await _stored(secure, topic) == [b"after"]


async def test_a_failed_reauthentication_fails_only_pending_records(
    secure: SecureCluster, topic: str, user: str
) -> None:
    """Acknowledged records are stored, none twice, and the producer continues with the new password."""
    await asyncio.to_thread(secure.create_topic, topic, 1)
    password = "old"
    configuration = secure.configuration(
        SHORT, MECHANISM, sasl_username=user, sasl_password=lambda: password, linger_ms=0, max_block_ms=5000
    )
    async with Producer(**configuration) as producer:
        load = Load(producer, topic, size=50)
        async with load.running():
            await load.more(100)
            await _change_password(secure, user)
            await until(lambda: producer.metrics()["failed-authentication-total"] >= 1, pause=0.02)
            password = "new"
            await _sends_again(load)
    failures = set(map(type, load.ledger.failed.values()))
    assert failures <= {SaslAuthenticationError}
    stored = await asyncio.to_thread(secure.read_back, topic)
    # A record that was being sent when the session ended may have failed.
    verdict = verify(load.ledger, stored)
    assert verdict.acked > 200
    assert verdict.stored == verdict.acked + verdict.unacknowledged


async def _sends_again(load: Load) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await load.more(100)
            except SaslAuthenticationError:
                await asyncio.sleep(0.05)
            else:
                return
