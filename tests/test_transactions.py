"""Transactions of a producer in asyncio's terms: cancellation, closing, callers, on the embedded broker."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from aioproducer import Node, Producer, Record, TransactionPool
from aioproducer.core.transactions import manager
from aioproducer.errors import (
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
    TransactionStateError,
    WrongCallerError,
)
from aioproducer.protocol import ApiKey
from aioproducer.testing import EmbeddedCluster
from tests.waiting import until

pytestmark = pytest.mark.kafka_cluster(transport="memory")

TOPIC = "topic"


@pytest.fixture
async def topic(kafka_cluster: EmbeddedCluster) -> str:
    kafka_cluster.create_topic(TOPIC, 2)
    return TOPIC


def new(cluster: EmbeddedCluster, **config: object) -> Producer:
    settings: dict[str, object] = {"linger_ms": 0, "transactional_id": "t", **config}
    return cluster.producer(**settings)  # type: ignore[arg-type]


def committed(cluster: EmbeddedCluster) -> list[bytes | None]:
    return [record.value for record in cluster.records(TOPIC, committed=True)]


async def test_a_block_cancelled_at_any_point_is_all_or_nothing(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    """The task is cancelled after each number of iterations of the loop, until the block has ended before."""
    expected: set[bytes | None] = set()
    async with new(kafka_cluster) as producer:
        await producer.init_transactions()
        for step in range(200):
            values = [b"%d-%d" % (step, number) for number in range(4)]
            begun: list[object] = []

            async def work(values: list[bytes] = values, begun: list[object] = begun) -> str:
                async with producer.transaction() as transaction:
                    begun.append(transaction)
                    await transaction.send(TOPIC, values[0], partition=0)
                    transaction.send(TOPIC, values[1], partition=1)
                    await transaction.drain()
                    await transaction.send(TOPIC, values[2], partition=1)
                    await transaction.send_offsets({(TOPIC, 0): 1}, "group")
                    transaction.send(TOPIC, values[3], partition=0)
                return await transaction.outcome()

            task = asyncio.create_task(work())
            for _ in range(step):
                await asyncio.sleep(0)
            ended = task.done()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            # The next call waits for the end that the cancelled one has begun.
            async with producer.transaction():
                pass
            seen = set(committed(kafka_cluster)) - expected
            if begun and await begun[0].outcome() == "committed":  # type: ignore[attr-defined]
                assert seen == set(values)
                expected |= seen
            else:
                assert seen == set()
            if ended:
                break
        else:
            pytest.fail("the block never ended before its cancellation")
    assert len(committed(kafka_cluster)) == len(expected)


async def test_an_exception_propagates_after_the_grace_period_while_the_abort_continues(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    async with new(kafka_cluster, transaction_abort_grace_ms=50) as producer:
        kafka_cluster.delay("EndTxn", 300)
        with suppress(LookupError):
            async with producer.transaction() as transaction:
                await transaction.send(topic, b"1")
                raise LookupError
        assert "aborting" in repr(transaction)
        assert await transaction.outcome() == "aborted"
        assert "aborted" in repr(transaction)
        async with producer.transaction() as transaction:
            await transaction.send(topic, b"2")
    assert committed(kafka_cluster) == [b"2"]


async def test_an_abort_waits_for_a_cancelled_commit_and_says_that_it_came_too_late(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    async with new(kafka_cluster) as producer:
        transaction = await producer.begin_transaction()
        await transaction.send(topic, b"1")
        kafka_cluster.delay("EndTxn", 100)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await producer.commit_transaction()
        with pytest.raises(TransactionEndedError, match="was committed"):
            await producer.abort_transaction()
        assert await transaction.outcome() == "committed"
        transaction = await producer.begin_transaction()
        await transaction.send(topic, b"2")
        kafka_cluster.delay("EndTxn", 100)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await producer.commit_transaction()
        await producer.commit_transaction()
        assert await transaction.outcome() == "committed"
    assert committed(kafka_cluster) == [b"1", b"2"]


async def test_an_ended_transaction_rejects_records_while_the_next_one_is_open(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    async with new(kafka_cluster) as producer:
        for end in (producer.commit_transaction, producer.abort_transaction):
            ended = await producer.begin_transaction()
            await ended.send(topic, b"1")
            await end()
            async with producer.transaction() as transaction:
                # The producer accepts records, and the earlier transaction does not.
                with pytest.raises(TransactionEndedError, match="this transaction has ended"):
                    ended.send(topic, b"late")
                with pytest.raises(TransactionEndedError, match="this transaction has ended"):
                    ended.send_record(Record(topic, b"late"))
                await transaction.send(topic, b"2")
    assert committed(kafka_cluster) == [b"1", b"2", b"2"]


async def test_the_first_batch_waits_for_the_markers_of_the_transaction_before(
    kafka_cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "SETTLING", 0.1)
    loop = asyncio.get_running_loop()
    async with new(kafka_cluster) as producer:
        async with producer.transaction() as transaction:
            transaction.send(topic, b"1", partition=0)
            # Before the response to EndTxn, from which the time counts.
            ended = loop.time()
        async with producer.transaction() as transaction:
            # The partition of the earlier transaction, and another one.
            await asyncio.gather(*[transaction.send(topic, b"2", partition=partition) for partition in range(2)])
            # The clock of libuv has whole milliseconds, and is read once an iteration.
            assert loop.time() - ended > 0.09
    assert committed(kafka_cluster) == [b"1", b"2", b"2"]


async def test_a_commit_that_is_not_answered_in_time_can_be_awaited_again(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    # Long enough for the begin on a busy machine.
    async with new(kafka_cluster, max_block_ms=1500) as producer:
        await producer.begin_transaction()
        await producer.send(topic, b"1")
        kafka_cluster.delay("EndTxn", 2000)
        with pytest.raises(KafkaTimeoutError, match=r"within 1500 ms \(max\.block\.ms\).* same call again"):
            await producer.commit_transaction()
        with pytest.raises(TransactionEndedError):
            await producer.send_offsets_to_transaction({(topic, 0): 1}, "group")
        while True:
            try:
                await producer.commit_transaction()
                break
            except KafkaTimeoutError:
                continue
    assert committed(kafka_cluster) == [b"1"]


async def test_a_block_of_a_fenced_producer_raises_that_it_is_fenced(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    """The leader of the partition answers INVALID_PRODUCER_EPOCH, which does not name the fence."""
    async with new(kafka_cluster) as producer:
        await producer.init_transactions()
        with pytest.raises(ProducerFencedError) as raised:
            await _be_fenced(kafka_cluster, producer, None)
        assert isinstance(raised.value.__cause__, KafkaError)
    async with new(kafka_cluster) as producer:
        own = ValueError("of the program")
        with pytest.raises(ValueError, match="of the program") as other:
            await _be_fenced(kafka_cluster, producer, own)
        assert other.value is own
        assert "could not be aborted" in own.__notes__[0]
    assert committed(kafka_cluster) == []


async def _be_fenced(cluster: EmbeddedCluster, producer: Producer, error: Exception | None) -> None:
    async with producer.transaction() as transaction:
        async with new(cluster) as newer:
            await newer.init_transactions()
        delivery = transaction.send(TOPIC, b"fenced")
        if error is None:
            await delivery
        else:
            await asyncio.wait([delivery])
            raise error


async def test_a_lost_end_is_sent_again(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with new(kafka_cluster) as producer:
        for when in ("before", "after"):
            kafka_cluster.disconnect("EndTxn", when)
            async with producer.transaction() as transaction:
                # Without a partition the send after the disconnect may choose another one.
                await transaction.send(topic, when.encode(), partition=0)
    assert committed(kafka_cluster) == [b"before", b"after"]


@pytest.mark.parametrize("state", ["ready", "open", "failed", "committing", "aborting", "initializing"])
@pytest.mark.parametrize("timeout", [None, 0])
async def test_a_producer_closes_in_each_state(
    kafka_cluster: EmbeddedCluster, topic: str, state: str, timeout: float | None
) -> None:
    producer = new(kafka_cluster, max_request_size=1000)
    await producer.start()
    call: asyncio.Task[object] | None = None
    transaction = None
    if state == "initializing":
        kafka_cluster.delay("InitProducerId", 200)
        call = asyncio.create_task(producer.init_transactions())
        await until(lambda: not kafka_cluster.pending_faults())
    else:
        async with producer.transaction() as first:
            await first.send(topic, b"first")
    if state in ("open", "failed", "committing", "aborting"):
        transaction = await producer.begin_transaction()
        await transaction.send(topic, b"second")
        if state == "failed":
            with pytest.raises(KafkaError):
                await transaction.send(topic, b"x" * 2000)
        if state in ("committing", "aborting"):
            kafka_cluster.delay("EndTxn", 200)
            end = producer.commit_transaction if state == "committing" else producer.abort_transaction
            call = asyncio.create_task(end())
            await until(lambda: not kafka_cluster.pending_faults())
    await producer.close(timeout)
    if call is not None and (timeout == 0 or state == "initializing"):
        expected = TransactionOutcomeUnknownError if state == "committing" else ProducerClosedError
        with pytest.raises(expected):
            await call
    elif call is not None:
        await call
    if transaction is not None:
        if timeout is None:
            assert await transaction.outcome() == ("committed" if state == "committing" else "aborted")
        elif state in ("open", "failed"):
            # The response to the abort may arrive within the iterations of the loop that the close takes.
            with suppress(ProducerClosedError):
                assert await transaction.outcome() == "aborted"
        else:
            with pytest.raises(KafkaError):
                await transaction.outcome()
        with pytest.raises(TransactionEndedError):
            transaction.send(topic, b"late")
    with pytest.raises(ProducerClosedError):
        producer.send(topic, b"late")
    with pytest.raises(ProducerClosedError):
        await producer.begin_transaction()


async def test_the_error_of_a_commit_abandoned_by_close_says_how_to_find_its_outcome(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    producer = new(kafka_cluster)
    await producer.start()
    transaction = await producer.begin_transaction()
    await transaction.send(topic, b"1")
    kafka_cluster.delay("EndTxn", 200)
    commit = asyncio.create_task(producer.commit_transaction())
    await until(lambda: not kafka_cluster.pending_faults())
    await producer.close(0)
    with pytest.raises(TransactionOutcomeUnknownError, match=r"isolation\.level=read_committed") as raised:
        await commit
    assert raised.value.transactional_id == "t"
    assert raised.value.producer_id >= 0
    assert raised.value.producer_epoch >= 0
    with pytest.raises(TransactionOutcomeUnknownError):
        await transaction.outcome()


async def test_calls_outside_a_transaction_say_what_to_do(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with new(kafka_cluster) as producer:
        with pytest.raises(TransactionStateError, match=r"async with producer.transaction\(\)"):
            producer.send(topic, b"1")
        with pytest.raises(TransactionStateError):
            await producer.send_many(topic, [b"1"])
        with pytest.raises(TransactionStateError, match="begin_transaction"):
            await producer.commit_transaction()
        with pytest.raises(TransactionStateError):
            await producer.abort_transaction()
        with pytest.raises(TransactionStateError):
            await producer.send_offsets_to_transaction({(topic, 0): 1}, "group")
        await producer.init_transactions()
        with pytest.raises(TransactionStateError, match="initialized already"):
            await producer.init_transactions()
        async with producer.transaction() as transaction:
            with pytest.raises(TransactionStateError, match="TransactionPool"):
                await producer.begin_transaction()
            await transaction.send(topic, b"1")
        with pytest.raises(TransactionEndedError):
            await transaction.drain()
        context = producer.transaction()
        async with context:
            pass
        with pytest.raises(TransactionStateError, match="used before"):
            async with context:
                pass
    assert committed(kafka_cluster) == [b"1"]


class _MetadataRequests:
    """A hook that counts the Metadata requests of all producers."""

    count = 0

    def on_request_written(self, node: Node, api_key: int, api_version: int, correlation_id: int, size: int) -> None:
        self.count += api_key == ApiKey.METADATA


async def test_producers_of_a_pool_share_metadata(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    """One producer requests the brokers and the topic for all."""
    requests, all_open = _MetadataRequests(), asyncio.Barrier(4)
    settings: dict[str, Any] = {"linger_ms": 0, "transport": kafka_cluster.transport, "hooks": [requests]}
    async with TransactionPool(
        transactional_id_prefix="t",
        max_producers=4,
        acquire_timeout_ms=10_000,
        bootstrap_servers=kafka_cluster.bootstrap_servers,
        **settings,
    ) as pool:

        async def commit(number: int) -> None:
            async with pool.transaction() as transaction:
                await transaction.send(TOPIC, b"%d" % number, partition=number % 2)
                await all_open.wait()

        async with pool.transaction() as transaction:
            await transaction.send(TOPIC, b"first")
        assert requests.count == 2
        await asyncio.gather(*map(commit, range(4)))
        assert requests.count == 2
    assert len(committed(kafka_cluster)) == 5


async def test_a_producer_without_a_transactional_id_has_no_transactions(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    async with new(kafka_cluster, transactional_id=None) as producer:
        with pytest.raises(TransactionStateError, match="set transactional_id"):
            producer.transaction()
        with pytest.raises(TransactionStateError):
            await producer.init_transactions()


async def test_offsets_are_checked_before_they_are_sent(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with new(kafka_cluster) as producer:
        await producer.begin_transaction()
        for offsets, group, error in (
            ([("t", 0)], "group", TypeError),
            ({"t": 1}, "group", TypeError),
            ({("t", 0): "1"}, "group", TypeError),
            ({("t", 0): -1}, "group", ValueError),
            ({("t", "0"): 1}, "group", TypeError),
            ({("t", None): 1}, "group", TypeError),
            ({("t", -1): 1}, "group", ValueError),
            ({("t", 2**31): 1}, "group", ValueError),
            ({("", 0): 1}, "group", ValueError),
            ({("t", 0): 1}, "", ValueError),
            ({("t", 0): 1}, 7, TypeError),
        ):
            with pytest.raises(error):
                await producer.send_offsets_to_transaction(offsets, group)  # type: ignore[arg-type]
        await producer.send_offsets_to_transaction({}, "group")
        await producer.commit_transaction()


async def test_offsets_are_sent_by_topic_id_once_metadata_has_the_topics(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    versions: list[int] = []

    class Written:
        def on_request_written(self, node: object, api_key: int, version: int, *rest: int) -> None:
            if api_key == 28:
                versions.append(version)

    async with new(kafka_cluster, hooks=[Written()]) as producer:
        for _ in range(2):
            async with producer.transaction() as transaction:
                await transaction.send_offsets({(topic, 0): 1}, "group")
                await producer.partitions_for(topic)
    assert versions == [5, 6]


async def test_every_way_to_send_belongs_to_the_transaction(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with new(kafka_cluster) as producer:
        with suppress(LookupError):
            async with producer.transaction() as transaction:
                await transaction.send_many(topic, [b"1", b"2"])
                producer.send(topic, b"3")
                raise LookupError
        async with producer.transaction() as transaction:
            result = await transaction.send_many(topic, [b"4", b"5"], partition=0)
            assert result.acked == 2
            await producer.send(topic, b"6", partition=0)
    assert committed(kafka_cluster) == [b"4", b"5", b"6"]


async def test_records_behind_an_async_serializer_belong_to_the_transaction(
    kafka_cluster: EmbeddedCluster, topic: str
) -> None:
    async def slow(value: str) -> bytes:
        await asyncio.sleep(0.02)
        return value.encode()

    async with new(kafka_cluster, value_serializer=slow) as producer:
        async with producer.transaction() as transaction:
            transaction.send(topic, "1")
        await producer.begin_transaction()
        delivery = producer.send(topic, "2")
        await producer.abort_transaction()
        with pytest.raises(TransactionAbortedError):
            await delivery
    assert committed(kafka_cluster) == [b"1"]


async def test_other_threads_send_into_the_open_transaction(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with new(kafka_cluster) as producer:
        threadsafe = producer.threadsafe()
        with pytest.raises(TransactionStateError):
            await asyncio.wrap_future(await asyncio.to_thread(threadsafe.send, topic, b"0"))
        async with producer.transaction():
            await asyncio.wrap_future(await asyncio.to_thread(threadsafe.send, topic, b"1"))
            errors: list[Exception] = []

            def send() -> None:
                try:
                    producer.send(topic, b"2")
                except WrongCallerError as error:
                    errors.append(error)

            thread = threading.Thread(target=send)
            thread.start()
            await asyncio.to_thread(thread.join)
            assert errors
    assert committed(kafka_cluster) == [b"1"]


async def test_more_records_than_memory_fit_into_one_transaction(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with (
        new(kafka_cluster, buffer_memory=65536, batch_size=16384, linger_ms=5) as producer,
        producer.transaction() as transaction,
    ):
        for number in range(1000):
            transaction.send(topic, b"%1000d" % number, partition=number % 2)
            await transaction.drain()
    assert len(committed(kafka_cluster)) == 1000


async def test_metrics_count_the_time_of_each_call(kafka_cluster: EmbeddedCluster, topic: str) -> None:
    async with new(kafka_cluster) as producer:
        async with producer.transaction() as transaction:
            await transaction.send_offsets({(topic, 0): 1}, "group")
        with suppress(LookupError):
            async with producer.transaction():
                raise LookupError
        metrics = producer.metrics()
        for call in ("init", "begin", "send-offsets", "commit", "abort"):
            assert metrics[f"txn-{call}-time-ns-total"] > 0
