"""The pool of transactional producers on Apache Kafka and the embedded broker: readers see all or nothing."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from aioproducer import Delivery, Transaction, TransactionPool
from aioproducer.admin import Admin
from aioproducer.errors import InvalidTxnStateError, ProducerClosedError, ProducerFencedError
from tests.kafka import consuming, jars
from tests.kafka.cluster import KafkaCluster
from tests.kafka.in_process import InProcessCluster

Cluster = KafkaCluster | InProcessCluster

PARTITIONS = 4
RECORDS = 5
"""Records of each transaction, so that it has several partitions."""

PROPERTIES = {
    "auto.create.topics.enable": "true",
    "num.partitions": str(PARTITIONS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
"""Properties of brokers that abort transactions soon after their timeout."""


@pytest.fixture(scope="module", params=[jars.NEWEST, jars.OLD, "embedded"])
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One broker: Apache Kafka of each generation of the protocol, then the embedded one."""
    if request.param == "embedded":
        with InProcessCluster(1, properties=PROPERTIES) as embedded:
            yield embedded
    else:
        with KafkaCluster(1, version=request.param, properties=PROPERTIES) as cluster:
            yield cluster


def pool_of(kafka: Cluster, prefix: str, max_producers: int, **config: int) -> TransactionPool:
    return TransactionPool(
        transactional_id_prefix=prefix,
        max_producers=max_producers,
        acquire_timeout_ms=30_000,
        bootstrap_servers=kafka.bootstrap_servers,
        **config,  # type: ignore[arg-type]  # all of them are ints
    )


def send(transaction: Transaction, topic: str, number: int) -> list[Delivery]:
    return [
        transaction.send(topic, b"%d:%d" % (number, record), partition=(number + record) % PARTITIONS)
        for record in range(RECORDS)
    ]


async def committed(kafka: Cluster, topic: str) -> Counter[int]:
    """Return the number of committed records of each transaction."""
    partitions = await asyncio.to_thread(consuming.read_back, kafka.bootstrap_servers, topic, committed=True)
    values = [record.value for records in partitions.values() for record in records]
    assert len(values) == len(set(values))
    return Counter(int((value or b"").partition(b":")[0]) for value in values)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not happened():  # noqa: ASYNC110  # the pool has no events for tests
            await asyncio.sleep(0.01)


async def test_concurrent_transactions_are_visible_completely_or_not_at_all(kafka: Cluster, topic: str) -> None:
    async with pool_of(kafka, topic, 4) as pool:

        async def one(number: int) -> bool:
            try:
                async with pool.transaction() as transaction:
                    send(transaction, topic, number)
                    if number % 3 == 0:
                        raise ValueError(number)
            except ValueError:
                assert await transaction.outcome() == "aborted"
                return False
            assert await transaction.outcome() == "committed"
            return True

        kept = await asyncio.gather(*(one(number) for number in range(60)))
        assert sorted(pool.metrics()) == [f"{topic}-{number}" for number in range(4)]
    assert await committed(kafka, topic) == {number: RECORDS for number in range(60) if kept[number]}


async def test_cancelled_callers_leave_complete_transactions_and_no_busy_producer(kafka: Cluster, topic: str) -> None:
    chance = random.Random(4)
    begun: dict[int, Transaction] = {}
    kafka.create_topic(topic, PARTITIONS)
    async with pool_of(kafka, topic, 3, transaction_abort_grace_ms=2) as pool:
        # Started producers, so that some callers commit before they are cancelled.
        await asyncio.gather(*(_commit(pool, topic, 2000 + number, wait=0.1) for number in range(3)))

        async def one(number: int) -> None:
            async with pool.transaction() as transaction:
                begun[number] = transaction
                send(transaction, topic, number)
                # Some are still open when they are cancelled; others may be in any state.
                await asyncio.sleep(60 if number % 10 == 0 else chance.random() / 50)

        async def cancelled(number: int) -> None:
            task = asyncio.create_task(one(number))
            await asyncio.wait([task], timeout=1 if number == 0 else chance.random())
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None

        await asyncio.gather(*(cancelled(number) for number in range(100)))
        await until(lambda: pool.busy == 0)
        outcomes = {number: await transaction.outcome() for number, transaction in begun.items()}
        async with pool.transaction() as transaction:
            send(transaction, topic, 1000)
    assert set(outcomes.values()) == {"committed", "aborted"}
    expected = {number: RECORDS for number, outcome in outcomes.items() if outcome == "committed"}
    warm = dict.fromkeys(range(2000, 2003), RECORDS)
    assert await committed(kafka, topic) == expected | warm | {1000: RECORDS}


# The embedded broker has no separate process to stop.
@pytest.mark.parametrize("kafka", [jars.NEWEST, jars.OLD], indirect=True)
async def test_an_abort_that_outlasts_the_grace_keeps_its_producer_busy(kafka: Cluster, topic: str) -> None:
    assert isinstance(kafka, KafkaCluster)
    process = kafka.nodes[1].process
    assert process is not None
    async with pool_of(kafka, topic, 1, transaction_abort_grace_ms=50) as pool:
        async with pool.transaction() as transaction:
            send(transaction, topic, 1)
        with pytest.raises(ValueError, match="mine"):
            await _fail_while_stopped(pool, topic, process.send_signal)
        try:
            assert pool.busy == 1
        finally:
            process.send_signal(signal.SIGCONT)
        async with pool.transaction() as transaction:
            send(transaction, topic, 3)
    assert await committed(kafka, topic) == {1: RECORDS, 3: RECORDS}


async def _fail_while_stopped(pool: TransactionPool, topic: str, send_signal: Callable[[signal.Signals], None]) -> None:
    async with pool.transaction() as transaction:
        await transaction.send(topic, b"2:0")
        send_signal(signal.SIGSTOP)
        # Threads of the broker may run on for some milliseconds.
        await asyncio.sleep(0.3)
        raise ValueError("mine")


async def test_a_second_pool_with_the_prefix_fences_the_first(kafka: Cluster, topic: str) -> None:
    async with pool_of(kafka, topic, 2) as first, pool_of(kafka, topic, 2) as second:
        async with first.transaction() as transaction:
            send(transaction, topic, 1)
        async with second.transaction() as transaction:
            send(transaction, topic, 2)
        with pytest.raises(ProducerFencedError, match=f"uses the transactional id prefix '{topic}'"):
            await _commit(first, topic, 3)
        with pytest.raises(ProducerFencedError, match="this pool is closed"):
            first.transaction()
        async with second.transaction() as transaction:
            send(transaction, topic, 4)
    assert await committed(kafka, topic) == {1: RECORDS, 2: RECORDS, 4: RECORDS}


async def _commit(pool: TransactionPool, topic: str, number: int, wait: float = 0) -> None:
    async with pool.transaction() as transaction:
        send(transaction, topic, number)
        await asyncio.sleep(wait)


async def test_a_restarted_pool_aborts_the_open_transactions_of_the_last_one(kafka: Cluster, topic: str) -> None:
    left = pool_of(kafka, topic, 1)
    await left.start()
    open_one = await left.transaction().__aenter__()
    await open_one.send(topic, b"1:0", partition=1)
    async with pool_of(kafka, topic, 1) as pool:
        async with pool.transaction() as transaction:
            send(transaction, topic, 2)
        assert await committed(kafka, topic) == {2: RECORDS}
    await left.close(0)


async def _time_out(pool: TransactionPool, admin: Admin, topic: str) -> None:
    """Commit a transaction that the coordinator has aborted."""
    async with pool.transaction() as transaction:
        await asyncio.gather(*send(transaction, topic, 1))
        (name,) = pool.metrics()
        async with asyncio.timeout(30):
            while (await admin.describe_transactions([name]))[0].state != "CompleteAbort":  # noqa: ASYNC110  # in a broker
                await asyncio.sleep(0.1)


async def test_a_producer_whose_transaction_timed_out_is_replaced(kafka: Cluster, topic: str) -> None:
    kafka.create_topic(topic, PARTITIONS)
    async with (
        pool_of(kafka, topic, 1, transaction_timeout_ms=3000) as pool,
        Admin(bootstrap_servers=kafka.bootstrap_servers) as admin,
    ):
        with pytest.raises((InvalidTxnStateError, ProducerFencedError)) as raised:
            await _time_out(pool, admin, topic)
        assert "after 3 s (transaction_timeout_ms)" in "".join(raised.value.__notes__)
        await _commit(pool, topic, 2)
        assert pool.is_usable
    assert await committed(kafka, topic) == {2: RECORDS}


async def test_close_waits_for_open_transactions_and_aborts_those_that_last(kafka: Cluster, topic: str) -> None:
    pool = pool_of(kafka, topic, 2)
    await pool.start()
    stored: list[int] = []
    ends = asyncio.Event(), asyncio.Event()

    async def block(number: int, end: asyncio.Event) -> None:
        async with pool.transaction() as transaction:
            await asyncio.gather(*send(transaction, topic, number))
            stored.append(number)
            await end.wait()

    short, long = (asyncio.create_task(block(number, end)) for number, end in enumerate(ends, 1))
    await until(lambda: len(stored) == 2)
    closing = asyncio.create_task(pool.close(timeout=3))
    await asyncio.sleep(0)
    ends[0].set()
    await short
    await closing
    assert not long.done()
    # At once: the open transaction was aborted, and does not have to time out.
    async with asyncio.timeout(20):
        assert await committed(kafka, topic) == {1: RECORDS}
    ends[1].set()
    with pytest.raises(
        ProducerClosedError, match="closed before the end of this block, and its transaction was aborted"
    ):
        await long


async def test_offsets_are_committed_with_their_transaction(kafka: Cluster, topic: str) -> None:
    async with pool_of(kafka, topic, 1) as pool:
        async with pool.transaction() as transaction:
            send(transaction, topic, 1)
            await transaction.send_offsets({(topic, 0): 7}, topic)  # type: ignore[dict-item]  # any pair
        # Kafka 3.3 acknowledges a marker before its group coordinator has applied it. If offsets of the next
        # transaction arrive before that, the late commit includes them.
        await _until_committed(kafka, topic, 7)
        with pytest.raises(ValueError, match="aborted"):
            await _offsets_aborted(pool, topic)
    await _until_committed(kafka, topic, 7)


async def _until_committed(kafka: Cluster, topic: str, offset: int) -> None:
    """Wait until the group with the topic's name has an offset, and check it."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic})
    try:
        async with asyncio.timeout(20):
            while True:
                found = await asyncio.to_thread(consumer.committed, [ConfluentPartition(topic, 0)], 20)
                if found[0].offset >= 0:
                    break
                await asyncio.sleep(0.05)
        assert [partition.offset for partition in found] == [offset]
    finally:
        consumer.close()


async def _offsets_aborted(pool: TransactionPool, topic: str) -> None:
    async with pool.transaction() as transaction:
        await transaction.send_offsets({(topic, 0): 9}, topic)  # type: ignore[dict-item]  # any pair
        raise ValueError("aborted")


@pytest.mark.timeout(120)
async def test_a_restarted_broker_leaves_complete_transactions(kafka: Cluster, topic: str) -> None:
    """The embedded broker is killed; a killed single node of Kafka may end transactions without their markers."""
    end = kafka.terminate if isinstance(kafka, KafkaCluster) else kafka.kill
    outcomes: dict[int, str] = {}
    numbers = iter(range(1_000_000))
    restarted = asyncio.Event()
    chance = random.Random(5)
    limits = {"request_timeout_ms": 2000, "delivery_timeout_ms": 20_000}

    async def one(pool: TransactionPool, number: int) -> None:
        transaction = None
        try:
            async with asyncio.timeout(chance.choice([0.02, 1, 20])), pool.transaction() as transaction:
                send(transaction, topic, number)
        except TimeoutError:
            if transaction is None:
                return
        outcomes[number] = await transaction.outcome()

    async def work(pool: TransactionPool) -> None:
        while not restarted.is_set():
            await one(pool, next(numbers))
            await asyncio.sleep(0.02)
        await one(pool, next(numbers))

    async with pool_of(kafka, topic, 3, **limits) as pool:
        workers = [asyncio.create_task(work(pool)) for _ in range(6)]
        await asyncio.sleep(1)
        await asyncio.to_thread(end, 1)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(kafka.restart, 1)
        restarted.set()
        await asyncio.gather(*workers)
        await until(lambda: pool.busy == 0)
    expected = {number: RECORDS for number, outcome in outcomes.items() if outcome == "committed"}
    assert expected
    assert await committed(kafka, topic) == expected
