"""Sessions of a second (KIP-368) under load: no loss, no duplicates, no change of order, and connections stay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from aioproducer import Producer
from aioproducer.consumer import Reader
from aioproducer.errors import KafkaError
from tests.kafka.ledger import Ledger, verify
from tests.kafka.load import Load
from tests.kafka.security import SESSION_MS, SHORT, SecureCluster

pytestmark = pytest.mark.timeout(120)

PARTITIONS = 3
SECONDS = 20.0


class _Sender:
    """A coroutine that sends records with keys; the records of one key have ascending numbers of one ledger."""

    def __init__(self, name: str, producer: Producer, topic: str, *, lock_step: bool) -> None:
        self.ledgers = [Ledger(f"{name}{number}") for number in range(3)]
        self._producer = producer
        self._topic = topic
        self._lock_step = lock_step

    async def run(self, ends: float) -> None:
        """Send until ``ends`` (monotonic seconds), then wait for every record's outcome."""
        outcomes: list[asyncio.Task[None]] = []
        while time.monotonic() < ends:
            for ledger in self.ledgers:
                value = ledger.next_value(100)
                delivery = self._producer.send(self._topic, value, key=ledger.sender.encode())
                if self._lock_step:
                    await self._resolve(ledger, value, delivery)
                else:
                    outcomes.append(asyncio.create_task(self._resolve(ledger, value, delivery)))
                    await self._producer.drain()
            await asyncio.sleep(0 if self._lock_step else 0.01)
        await asyncio.gather(*outcomes)

    @staticmethod
    async def _resolve(ledger: Ledger, value: bytes, delivery: Any) -> None:
        try:
            ledger.ack(value, await delivery)
        except KafkaError as error:
            ledger.fail(value, error)


async def _send(
    secure: SecureCluster, topic: str, mechanism: str, lock_step: Mapping[str, bool], **settings: Any
) -> tuple[list[Ledger], dict[str, float]]:
    """Return the records that coroutines with these names have sent through one producer, and its metrics."""
    async with Producer(**secure.configuration(SHORT, mechanism, **settings)) as producer:
        senders = [_Sender(name, producer, topic, lock_step=each) for name, each in lock_step.items()]
        ends = time.monotonic() + SECONDS
        await asyncio.gather(*(sender.run(ends) for sender in senders))
        return [ledger for sender in senders for ledger in sender.ledgers], dict(producer.metrics())


async def _read(secure: SecureCluster, topic: str, mechanism: str) -> list[bytes | None]:
    """Return the records that a Reader reads in ``SECONDS``, while they are sent."""
    found: list[bytes | None] = []
    async with Reader(topic, **secure.configuration(SHORT, mechanism)) as reader:
        try:
            async with asyncio.timeout(SECONDS + 3):
                async for record in reader:
                    found.append(record.value)
        except TimeoutError:
            return found
    raise AssertionError("the reader has ended by itself")


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_records_under_load_are_stored_once_and_in_order(secure: SecureCluster, topic: str) -> None:
    """Several producers at once: pipelined and lock-step sends, one and five requests in flight, three mechanisms."""
    pipelined, lock_step, mixed = topic, f"{topic}-lock-step", f"{topic}-mixed"
    for name in (pipelined, lock_step, mixed):
        await asyncio.to_thread(secure.create_topic, name, PARTITIONS)
    *sent, read = await asyncio.gather(
        _send(secure, pipelined, "SCRAM-SHA-512", dict.fromkeys("abcd", False), linger_ms=0),
        _send(
            secure, lock_step, "PLAIN", dict.fromkeys("efg", True), max_in_flight_requests_per_connection=1, linger_ms=0
        ),
        _send(secure, mixed, "OAUTHBEARER", {"h": False, "i": True, "j": False}, compression_type="lz4"),
        _read(secure, pipelined, "SCRAM-SHA-256"),
    )
    for name, (ledgers, metrics) in zip((pipelined, lock_step, mixed), sent, strict=True):
        for ledger in ledgers:
            assert not ledger.failed, next(iter(ledger.failed.values()))
        total = sum(ledger.sent for ledger in ledgers)
        assert total > 1000
        stored = await asyncio.to_thread(secure.read_back, name)
        assert verify(ledgers, stored) == (total, total, 0)
        # Once a second at most: Kafka rejects an earlier handshake.
        renewals = metrics["successful-reauthentication-total"]
        assert renewals > 0.5 * SECONDS * 1000 / SESSION_MS
        assert metrics["reauthentication-latency-avg"] > 0
        # One to the bootstrap address, one to the broker; on a busy machine some requests come after a session's end.
        replaced = metrics["connection-creation-total"] - 2
        assert replaced <= renewals / 4
        assert metrics["failed-reauthentication-total"] <= replaced
        if name == pipelined:
            assert sorted(value or b"" for value in read) == sorted(
                record.value or b"" for records in stored.values() for record in records
            )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_producer_continues_after_its_session_has_ended(
    secure: SecureCluster, topic: str, mechanism: str
) -> None:
    """The loop is blocked for longer than the session, and the broker closes connections with an ended session."""
    await asyncio.to_thread(secure.create_topic, topic, PARTITIONS)
    configuration = secure.configuration(SHORT, mechanism, linger_ms=0)
    async with Producer(**configuration) as producer:
        load = Load(producer, topic, PARTITIONS, size=200)
        async with load.running():
            for _ in range(2):
                await load.more(100)
                time.sleep(1.5 * SESSION_MS / 1000)  # noqa: ASYNC251  # it is the loop that hangs
                await load.more(100)
    assert not load.ledger.failed, next(iter(load.ledger.failed.values()))
    stored = await asyncio.to_thread(secure.read_back, topic)
    assert verify(load.ledger, stored) == (load.ledger.sent, load.ledger.sent, 0)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_session_may_end_while_nothing_is_sent(secure: SecureCluster, topic: str) -> None:
    async with Producer(**secure.configuration(SHORT, "SCRAM-SHA-256")) as producer:
        await producer.send(topic, b"before")
        await asyncio.sleep(2.5 * SESSION_MS / 1000)
        began = time.monotonic()
        await producer.send(topic, b"after")
        assert time.monotonic() - began < 2
    ((*stored,),) = (await asyncio.to_thread(secure.read_back, topic)).values()
    assert [record.value for record in stored] == [b"before", b"after"]
