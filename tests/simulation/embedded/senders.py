"""Senders without transactions: closed loops, which await each send, and open loops, which do not."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Protocol

from aioproducer import Delivery, Producer
from aioproducer.errors import BufferExhaustedError, KafkaError, ProducerClosedError, SendManyError
from tests.simulation.embedded.administrator import ADMINISTERED
from tests.simulation.embedded.history import Sent, TransactionHistory
from tests.simulation.embedded.story import ClientPlan, Loop
from tests.simulation.embedded.world import ClusterWorld, Overdue

_SIZES = (0, 20, 300)


class RecordSink(Protocol):
    """A producer, or a transaction of one."""

    def send(self, topic: str, value: bytes, key: bytes | None = None, *, partition: int | None = None) -> Delivery: ...


class Pace:
    """Rounds of a task, with a limit for each second."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rate: float) -> None:
        self._loop = loop
        self._rate = rate
        self._next = 0.0

    async def begin(self) -> None:
        """Wait until another round may begin."""
        now = self._loop.time()
        if now < self._next:
            await asyncio.sleep(self._next - now)
        self._next = max(now, self._next) + 1 / self._rate


class Recorder:
    """Sends records by one producer, and writes them to the history."""

    def __init__(self, world: ClusterWorld, plan: ClientPlan, name: str, topics: dict[str, int]) -> None:
        self.world = world
        self.plan = plan
        self.name = name
        self.topics = topics
        self.sent: list[Sent] = []
        self.reads = Random(f"{world.seed} {name} reads")
        """Draws which transactions read, and what."""
        self.read_topics = [topic for topic in topics if topic not in ADMINISTERED]
        self.is_alone = len(plan.loops) == 1
        """Whether no other task sends by the same producer."""
        self.pace = Pace(world.loop, plan.pace)
        self._count = 0

    def next_value(self, random: Random) -> bytes:
        """A value that no other record has."""
        self._count += 1
        return f"{self.name}/{self._count}/".encode() + b"x" * random.choice(_SIZES)

    def send(
        self, producer: RecordSink, random: Random, topic: str, transaction: TransactionHistory | None = None
    ) -> Sent | None:
        """Send a record; ``None`` if the queue is full."""
        value = self.next_value(random)
        key = random.choice([None, b"key%d" % (self._count % 5)])
        partition = random.choice([None, random.randrange(self.topics[topic])])
        sent = self.submit(producer, topic, value, key, partition, transaction)
        if sent is not None and random.random() < 0.5:
            sent.delivery.add_done_callback(lambda _: self.world.note(f"{self.name}/{sent.number} {outcome_of(sent)}"))
        return sent

    def submit(
        self,
        producer: RecordSink,
        topic: str,
        value: bytes,
        key: bytes | None,
        partition: int | None,
        transaction: TransactionHistory | None = None,
    ) -> Sent | None:
        """Send this record; ``None`` if the queue is full."""
        world = self.world
        try:
            delivery = producer.send(topic, value, key, partition=partition)
        except BufferExhaustedError:
            return None
        sender = self.name
        if self.plan.kind == "pool" and transaction is not None:
            sender += f".{transaction.number}"
        sent = Sent(
            sender,
            self._count,
            topic,
            value,
            delivery,
            world.loop.time(),
            is_idempotent=self.plan.kind != "plain",
            acks=self.plan.config["acks"],
            transaction=transaction,
        )
        world.history.sent.append(sent)
        self.sent.append(sent)
        if transaction is not None:
            transaction.sent.append(sent)
        world.expect(self.plan.longest_send, delivery.done, lambda: f"{sent.value[:20]!r} has no outcome")
        return sent


def outcome_of(sent: Sent) -> str:
    """The outcome of a record that has one, in a few words."""
    if sent.delivery.cancelled():
        return "cancelled"
    error = sent.delivery.exception()
    return "acknowledged" if error is None else type(error).__name__


async def send_records(recorder: Recorder, producer: Producer, loop: Loop, random: Random, until: float) -> None:
    """Send to the topics of the world until ``until``, a loop time."""
    world = recorder.world
    try:
        while world.loop.time() < until:
            await recorder.pace.begin()
            topic = random.choice(list(recorder.topics))
            if loop == "closed":
                await _send_and_wait(recorder, producer, random, topic)
            else:
                await _send_some(recorder, producer, random, topic)
    except (Overdue, ProducerClosedError):
        return


async def _send_and_wait(recorder: Recorder, producer: Producer, random: Random, topic: str) -> None:
    sent = recorder.send(producer, random, topic)
    if sent is None:
        await asyncio.sleep(0.005)
        return
    try:
        await sent.delivery
    except KafkaError:
        # Otherwise a producer that has failed would send without a pause.
        await asyncio.sleep(0.02)
    if random.random() < 0.2:
        # The other sends come at once: they find what the response has just freed.
        await asyncio.sleep(random.expovariate(0.2 / recorder.plan.pause))


async def _send_some(recorder: Recorder, producer: Producer, random: Random, topic: str) -> None:
    world, plan = recorder.world, recorder.plan
    last: Sent | None = None
    for _ in range(random.choice([1, 1, 3, 20])):
        sent = recorder.send(producer, random, topic)
        if sent is None:
            break
        last = sent
    match random.randrange(12):
        case 0 if last is not None:
            last.delivery.cancel()
        case 1:
            async with world.within(plan.longest_send, "flush"):
                await producer.flush()
        case 2 | 3:
            await drain(recorder, producer)
        case 4:
            await _send_column(recorder, producer, random, topic)
        case 5:
            # The call of a cancelled caller leaves nothing behind.
            task = asyncio.ensure_future(random.choice([producer.flush, producer.drain])())
            await asyncio.sleep(random.expovariate(20))
            task.cancel()
            await asyncio.wait([task])
        case _:
            await asyncio.sleep(random.expovariate(0.5 / plan.pause))


async def drain(recorder: Recorder, producer: Producer) -> None:
    """Call ``drain``: it returns within its limit, and at once when all earlier records have ended."""
    world = recorder.world
    earlier = [sent.delivery for sent in recorder.sent[-200:] if not sent.delivery.done()]
    async with world.within(recorder.plan.max_block, "drain"):
        draining = asyncio.ensure_future(producer.drain())
        if earlier and recorder.is_alone:
            have_ended = asyncio.ensure_future(asyncio.wait(earlier))
            await asyncio.wait([draining, have_ended], return_when=asyncio.FIRST_COMPLETED)
            if not draining.done():
                async with world.within(0.0, "drain after the end of all earlier records"):
                    await asyncio.wait([draining])
            have_ended.cancel()
            await asyncio.wait([have_ended])
        await draining


async def _send_column(recorder: Recorder, producer: Producer, random: Random, topic: str) -> None:
    """Send a column. Its records have no Delivery: they are acknowledged together, or have an unknown outcome."""
    world, plan = recorder.world, recorder.plan
    values = [recorder.next_value(random) for _ in range(random.choice([1, 10, 50]))]
    began = world.loop.time()
    whole: asyncio.Future[None] = world.loop.create_future()
    for value in values:
        number = int(value.split(b"/")[1])
        world.history.sent.append(
            Sent(recorder.name, number, topic, value, whole, began, plan.kind != "plain", plan.config["acks"])
        )
    bound = plan.longest_send + len(values) * plan.max_block
    try:
        async with world.within(bound, f"send_many of {len(values)} records"):
            await producer.send_many(topic, values)
        whole.set_result(None)
    except (SendManyError, BufferExhaustedError):
        # Which of the records were written is not known.
        await asyncio.sleep(0.02)
    finally:
        whole.cancel()
