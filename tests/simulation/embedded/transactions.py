"""Transactions: one after another by a producer, or several at once by a pool."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from aioproducer import Producer, TransactionPool
from aioproducer.consumer import Reader
from aioproducer.errors import (
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    TransactionOutcomeUnknownError,
)
from tests.simulation.embedded.history import TransactionHistory
from tests.simulation.embedded.senders import Recorder, drain
from tests.simulation.embedded.world import ClusterWorld, Overdue

_GIVE_UP = 60.0
"""Seconds of time-outs after which a transaction is left to the coordinator."""


class ApplicationError(Exception):
    """The application's own reason to abort."""


def begin_history(recorder: Recorder) -> TransactionHistory:
    """Write a new transaction to the history."""
    transactions = recorder.world.history.transactions
    transaction = TransactionHistory(recorder.name, len(transactions))
    transactions.append(transaction)
    return transaction


async def read(recorder: Recorder, topic: str, transaction: TransactionHistory) -> None:
    """Read the committed records of a topic to its end; what was not read for an error does not count."""
    world = recorder.world
    reads: dict[int, list[bytes]] = {}
    reader = Reader(
        topic,
        stop="end",
        isolation_level="read_committed",
        timeout=1.0,
        max_wait_ms=100,
        transport=world.network.endpoint(recorder.name),
        bootstrap_servers=world.bootstrap_servers,
        client_id=f"{recorder.name}-reads",
        request_timeout_ms=500,
    )
    try:
        async with reader:
            async for records in reader.batches():
                for record in records:
                    reads.setdefault(record.partition, []).append(record.value or b"")
    except KafkaError as error:
        # Each partition was read up to some offset, which may be within a transaction.
        world.note(f"{recorder.name} reads: {type(error).__name__}")
        return
    transaction.reads += [((topic, partition), values) for partition, values in sorted(reads.items())]


async def fill(recorder: Recorder, producer: Producer, random: Random, transaction: TransactionHistory) -> None:
    """Send some records of a transaction, some of them awaited, and read in some transactions."""
    if recorder.reads.random() < recorder.plan.reads:
        await read(recorder, recorder.reads.choice(list(recorder.read_topics)), transaction)
    for _ in range(random.choice([1, 2, 5, 20])):
        sent = recorder.send(producer, random, random.choice(list(recorder.topics)), transaction)
        match random.randrange(8):
            case 0 if sent is not None:
                await sent.delivery
            case 1 | 2:
                await asyncio.sleep(random.expovariate(1 / recorder.plan.pause))
            case 3:
                await drain(recorder, producer)


async def send_transactions(recorder: Recorder, producer: Producer, random: Random, until: float) -> None:
    """Make one transaction after another, by Kafka's calls or by the context manager, until a loop time."""
    world = recorder.world
    try:
        while world.loop.time() < until and producer.is_usable:
            await recorder.pace.begin()
            if random.random() < 0.5:
                await _by_calls(recorder, producer, random)
            else:
                await _by_context(recorder, producer, random)
            await asyncio.sleep(random.expovariate(1 / recorder.plan.pause))
    except (Overdue, ProducerClosedError):
        return


async def _by_calls(recorder: Recorder, producer: Producer, random: Random) -> None:
    world, plan = recorder.world, recorder.plan
    try:
        async with world.within(plan.longest_end, "begin_transaction"):
            await producer.begin_transaction()
    except KafkaError:
        await asyncio.sleep(0.05)
        return
    transaction = begin_history(recorder)
    began = world.loop.time()
    commits = random.random() < 0.75
    try:
        await fill(recorder, producer, random, transaction)
        if commits:
            await _repeated(world, plan.longest_end, producer.commit_transaction, "commit_transaction")
            transaction.outcome = "committed"
            return
    except TransactionOutcomeUnknownError:
        transaction.outcome = "unknown"
        return
    except KafkaError:
        pass
    try:
        await _repeated(world, plan.longest_end, producer.abort_transaction, "abort_transaction")
        transaction.outcome = "aborted"
    except KafkaError as error:
        # The producer has failed: the coordinator decides.
        transaction.outcome = "unknown"
        _check_usable(recorder, producer, began, error)


def _check_usable(recorder: Recorder, producer: Producer, began: float, error: KafkaError) -> None:
    """A producer whose id has no other user fails for good by the time-out of its transaction only."""
    plan, now = recorder.plan, recorder.world.loop.time()
    timeout = plan.config["transaction_timeout_ms"] / 1000 - recorder.world.clock_error
    if not producer.is_usable and not plan.crashes and now - began < timeout:
        recorder.world.violated("no failure without a cause", f"{recorder.name} after {now - began:.1f} s: {error!r}")


async def _repeated(world: ClusterWorld, bound: float, call: Callable[[], Awaitable[None]], what: str) -> None:
    """Make a call again after each time-out of its own, as its documentation asks for.

    The time-out of a record is another class: the transaction has to be aborted then.
    """
    gives_up = world.loop.time() + _GIVE_UP
    while True:
        try:
            async with world.within(bound, what):
                await call()
        except KafkaTimeoutError as error:
            if type(error) is not KafkaTimeoutError or world.loop.time() > gives_up:
                raise
        else:
            return


async def _by_context(recorder: Recorder, producer: Producer, random: Random) -> None:
    """One transaction as a block; its outcome is what ``Transaction.outcome`` returns."""
    history: TransactionHistory | None = None
    began = recorder.world.loop.time()
    try:
        async with producer.transaction() as transaction:
            history = begin_history(recorder)
            recorder.world.history.blocks.append((history, transaction))
            await fill(recorder, producer, random, history)
            if random.random() < 0.25:
                raise ApplicationError
        history.outcome = "committed"
    except (KafkaError, ApplicationError) as error:
        if isinstance(error, KafkaError):
            _check_usable(recorder, producer, began, error)
        await asyncio.sleep(0.05)


async def send_by_pool(recorder: Recorder, pool: TransactionPool, random: Random, until: float) -> None:
    """Make one transaction after another by a pool until a loop time; some callers are cancelled."""
    world, plan = recorder.world, recorder.plan
    try:
        while world.loop.time() < until and pool.is_usable:
            await recorder.pace.begin()
            task = asyncio.ensure_future(_pooled(recorder, pool, random))
            if random.random() < 0.1:
                await asyncio.sleep(random.expovariate(20))
                task.cancel()
            # A producer of the pool, its transaction and its end, each within its own limit.
            async with world.within(_GIVE_UP + plan.longest_end * 4, "a transaction of the pool"):
                await asyncio.wait([task])
            if not task.cancelled():
                task.result()
            await asyncio.sleep(random.expovariate(1 / plan.pause))
    except (Overdue, ProducerClosedError):
        return


async def _pooled(recorder: Recorder, pool: TransactionPool, random: Random) -> None:
    try:
        async with pool.transaction() as transaction:
            history = begin_history(recorder)
            recorder.world.history.blocks.append((history, transaction))
            if recorder.reads.random() < recorder.plan.reads:
                await read(recorder, recorder.reads.choice(list(recorder.read_topics)), history)
            for _ in range(random.choice([1, 2, 5, 20])):
                recorder.send(transaction, random, random.choice(list(recorder.topics)), history)
                if random.random() < 0.1:
                    await asyncio.sleep(random.expovariate(1 / recorder.plan.pause))
            if random.random() < 0.25:
                raise ApplicationError
        history.outcome = "committed"
    except (KafkaError, ApplicationError):
        await asyncio.sleep(0.05)


async def settle_blocks(world: ClusterWorld) -> None:
    """Take over the outcome of each transaction of a block, once every client is closed."""
    for history, transaction in world.history.blocks:
        if history.outcome == "committed":
            continue
        try:
            async with asyncio.timeout(0.001):
                history.outcome = await transaction.outcome()
        except (KafkaError, TimeoutError):
            history.outcome = "unknown"
