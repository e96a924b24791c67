"""The pool of transactional producers, with fake producers; tests/interop tests it against Apache Kafka."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aioproducer import TransactionPool
from aioproducer._client.transactions import TransactionContext
from aioproducer.core.transactions.states import (
    ABORTABLE_ERROR,
    COMMITTING,
    FATAL_ERROR,
    IN_TRANSACTION,
    READY,
    UNINITIALIZED,
    TransactionState,
)
from aioproducer.errors import (
    ConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionEndedError,
    TransactionStateError,
    UnknownServerError,
    WrongCallerError,
)

ARGUMENTS: dict[str, Any] = {
    "transactional_id_prefix": "orders",
    "max_producers": 2,
    "acquire_timeout_ms": 60_000,
    "bootstrap_servers": "127.0.0.1:1",
}


class FakeTransaction:
    """How the transaction ended; ``None`` while it is open."""

    ended: str | None = None

    async def outcome(self) -> str | None:
        return self.ended


class FakeTransactions:
    """The part of a producer's transactions that a pool and a context use; the test controls their ends."""

    def __init__(self) -> None:
        self.manager = SimpleNamespace(state=UNINITIALIZED, error=None)
        self.current: FakeTransaction | None = None
        self.begin_error: KafkaError | None = None
        self.commit_errors: list[tuple[TransactionState, KafkaError]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.aborts = 0
        self._aborts: list[asyncio.Task[None]] = []
        self.aborted_by_close: FakeTransaction | None = None

    def check_caller(self) -> None:
        pass

    def fail(self, error: KafkaError) -> None:
        self.manager.state, self.manager.error = FATAL_ERROR, error

    async def begin(self) -> object:
        if self.begin_error is not None:
            raise self.begin_error
        assert self.current is None, "two transactions of one producer at once"
        self.manager.state = IN_TRANSACTION
        self.current = FakeTransaction()
        return self.current

    async def commit(self) -> None:
        if self.manager.state is FATAL_ERROR:
            raise self.manager.error
        if self.commit_errors:
            self.manager.state, error = self.commit_errors.pop(0)
            raise error
        self.manager.state = COMMITTING
        await self._end("committed")

    async def abort(self) -> None:
        self.aborts += 1
        if self.manager.state is FATAL_ERROR:
            raise self.manager.error
        if self.manager.state is COMMITTING:
            await self._end("committed")
            raise TransactionEndedError("committed")
        await self._end("aborted")

    async def abort_within(self, grace: float) -> None:
        abort = asyncio.create_task(self.abort())
        self._aborts.append(abort)
        done, _ = await asyncio.wait([abort], timeout=grace)
        if done:
            abort.result()

    def abort_if_it_fails(self, transaction: object) -> None:
        """Abort the transaction for the pool."""

    async def _end(self, outcome: str) -> None:
        await self.may_end.wait()
        if self.manager.state is FATAL_ERROR:
            raise self.manager.error
        if self.current is not None:
            self.current.ended = outcome
        self.current = None
        self.manager.state = READY


class FakeProducer:
    """One producer of the pool."""

    def __init__(self, transactional_id: str, made: list[FakeProducer]) -> None:
        self.transactional_id = transactional_id
        self.config = SimpleNamespace(retry_backoff_ms=1, transaction_abort_grace_ms=10)
        self._transactions = FakeTransactions()
        self.closed: list[float | None] = []
        made.append(self)

    @property
    def transactions(self) -> FakeTransactions:
        return self._transactions

    @property
    def is_usable(self) -> bool:
        return not self.closed and self._transactions.manager.state is not FATAL_ERROR

    async def start(self) -> None:
        pass

    async def close(self, timeout: float | None = None) -> None:
        self.closed.append(timeout)
        self._transactions.may_end.set()
        if self._transactions.manager.state is IN_TRANSACTION:
            await self._transactions.abort()
        await asyncio.sleep(0)

    def transaction(self) -> TransactionContext:
        return TransactionContext(self._transactions, self.config.transaction_abort_grace_ms)  # type: ignore[arg-type]

    async def abort_transaction(self) -> None:
        if self.closed:
            raise ProducerClosedError("closed")
        await self._transactions.abort()

    def metrics(self) -> str:
        return f"of {self.transactional_id}"


class FakePool(TransactionPool):
    """A pool of ``FakeProducer``; ``made`` has all of them, without the first one, which checks the arguments."""

    def __init__(self, **arguments: Any) -> None:
        self.made: list[FakeProducer] = []
        super().__init__(**{**ARGUMENTS, **arguments})
        self._slots[0].producer = None
        self._new_producer = lambda slot: FakeProducer(slot.transactional_id, self.made)  # type: ignore[method-assign, assignment, return-value]


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not happened():  # noqa: ASYNC110  # the pool has no events for tests
            await asyncio.sleep(0.001)


async def hold(pool: TransactionPool, end: asyncio.Event) -> None:
    async with pool.transaction():
        await end.wait()


async def end_block(
    pool: FakePool, error: BaseException | None = None, *, fatal: KafkaError | None = None, slowly: bool = False
) -> None:
    """Run a block that raises ``error``; its producer fails with ``fatal``; ``slowly``: its end waits for the test."""
    async with pool.transaction():
        transactions = pool.made[-1].transactions
        if slowly:
            transactions.may_end.clear()
        if fatal is not None:
            transactions.fail(fatal)
        if error is not None:
            raise error


# Arguments


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"transactional_id_prefix": ""}, ValueError, "must not be empty: name the service"),
        ({"transactional_id_prefix": b"orders"}, TypeError, "must be a str, not bytes"),
        ({"max_producers": 0}, ValueError, "must be at least 1, not 0"),
        ({"max_producers": 2.0}, TypeError, "must be an int, not float"),
        ({"max_producers": True}, TypeError, "must be an int, not bool"),
        ({"acquire_timeout_ms": -1}, ValueError, "must be from 0 to 2147483647 ms, not -1"),
        ({"acquire_timeout_ms": float("nan")}, ValueError, "must be from 0 to 2147483647 ms, not nan"),
        ({"acquire_timeout_ms": float("inf")}, ValueError, "must be from 0 to 2147483647 ms, not inf"),
        ({"acquire_timeout_ms": "1"}, TypeError, "must be a number, not str"),
        ({"transactional_id": "orders-0"}, ConfigurationError, "pass transactional_id_prefix alone"),
        ({"enable_idempotence": False}, ConfigurationError, "transactional.id needs idempotence"),
        ({"linger": 5}, ConfigurationError, "linger"),
        ({"transport": "udp"}, ConfigurationError, "transport 'udp' does not exist"),
        ({"on_error": asyncio.sleep}, TypeError, "on_error must be a plain function"),
        ({"hooks": [object()]}, TypeError, "hook"),
    ],
)
def test_a_wrong_argument_is_rejected_at_once(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        TransactionPool(**{**ARGUMENTS, **arguments})


def test_the_memory_is_divided_and_has_to_be_enough_for_a_request() -> None:
    pool = TransactionPool(**ARGUMENTS, buffer_memory=4_000_001)
    assert pool._slots[0].producer is not None
    assert pool._slots[0].producer.config.buffer_memory == 2_000_000
    with pytest.raises(ConfigurationError, match=r"2000000 bytes are 1000000 bytes for each of 2 producers.*2097152"):
        TransactionPool(**ARGUMENTS, buffer_memory=2_000_000)
    TransactionPool(**ARGUMENTS, buffer_memory=2_000_000, max_request_size=1_000_000)


def test_producers_have_kafka_s_client_id_unless_one_is_given() -> None:
    for config, expected in (({}, "producer-orders-1"), ({"client_id": "mine"}, "mine")):
        pool = TransactionPool(**ARGUMENTS, **config)
        producer = pool._new_producer(pool._slots[1])
        assert (producer.config.client_id, producer.config.transactional_id) == (expected, "orders-1")


def test_a_pool_is_made_from_dotted_names_and_from_a_properties_file(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"transactional_id_prefix": "orders", "max_producers": 2, "acquire_timeout_ms": 1}
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers = broker:1\nbuffer.memory = 4194304\nlinger.ms = 7\n")
    mapping = {"bootstrap.servers": "broker:1", "buffer.memory": 4_194_304, "linger_ms": 7}
    for pool in (
        TransactionPool.from_config(mapping, **settings),
        TransactionPool.from_properties(path, **settings),
    ):
        config = pool._new_producer(pool._slots[1]).config
        assert (config.bootstrap_servers, config.linger_ms) == (("broker:1",), 7)
        assert (config.transactional_id, config.buffer_memory) == ("orders-1", 2_097_152)
    with pytest.raises(ConfigurationError, match="pass transactional_id_prefix alone"):
        TransactionPool.from_config({**mapping, "transactional.id": "mine"}, **settings)
    with pytest.raises(ConfigurationError, match="buffer"):
        TransactionPool.from_config({**mapping, "buffer_memory": 4_194_304}, **settings)


# The owner


async def test_a_pool_that_is_not_started_raises() -> None:
    pool = FakePool()
    assert not pool.is_usable
    with pytest.raises(WrongCallerError, match="not started: use `async with TransactionPool"):
        pool.transaction()
    await pool.close()
    with pytest.raises(ProducerClosedError, match="create a new one"):
        await pool.start()


async def test_calls_from_elsewhere_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakePool() as pool:

        async def call() -> Exception | None:
            try:
                pool.transaction()
            except WrongCallerError as error:
                return error
            return None

        assert await call() is None
        assert "belongs to another thread" in str(await asyncio.to_thread(asyncio.run, call()))
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            assert "belongs to the parent process" in str(await call())
        monkeypatch.setattr(pool, "_thread", threading.get_ident())
        other = asyncio.new_event_loop()
        try:
            monkeypatch.setattr(pool, "_loop", other)
            assert "belongs to another event loop" in str(await call())
        finally:
            monkeypatch.undo()
            other.close()
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(pool)


# Slots


async def test_producers_start_when_they_are_needed_and_idle_ones_are_used_first() -> None:
    async with FakePool(max_producers=3) as pool:
        for _ in range(3):
            async with pool.transaction():
                assert pool.busy == 1
        assert [producer.transactional_id for producer in pool.made] == ["orders-0"]
        end = asyncio.Event()
        holders = [asyncio.create_task(hold(pool, end)) for _ in range(3)]
        await until(lambda: len(pool.made) == 3)
        assert [producer.transactional_id for producer in pool.made] == ["orders-0", "orders-1", "orders-2"]
        assert pool.metrics() == {name: f"of {name}" for name in ("orders-0", "orders-1", "orders-2")}
        assert (pool.busy, repr(pool)) == (3, "<TransactionPool orders, 3 of 3 producers busy>")
        end.set()
        await asyncio.gather(*holders)
        assert pool.busy == 0
    assert all(producer.closed for producer in pool.made)


async def test_the_error_of_a_wait_has_the_number_of_busy_producers_and_advice() -> None:
    async with FakePool(acquire_timeout_ms=10) as pool:
        end = asyncio.Event()
        holders = [asyncio.create_task(hold(pool, end)) for _ in range(2)]
        await until(lambda: pool.busy == 2)
        with pytest.raises(KafkaTimeoutError, match=r"within 10 ms .* 2 producers, all busy, .* 1 caller\. Raise max_"):
            await pool.transaction().__aenter__()
        pool.made[0].transactions.may_end.clear()
        pool.made[1].transactions.may_end.clear()
        for holder in holders:
            holder.cancel()
        await asyncio.wait(holders)
        assert all(holder.cancelled() for holder in holders)
        with pytest.raises(KafkaTimeoutError, match=r"all busy \(2 of them are ending a transaction\)"):
            await pool.transaction().__aenter__()
        for producer in pool.made:
            producer.transactions.may_end.set()


async def test_a_context_is_used_once() -> None:
    async with FakePool() as pool:
        context = pool.transaction()
        async with context:
            pass
        with pytest.raises(TransactionStateError, match=r"call pool\.transaction\(\) for each"):
            await context.__aenter__()


async def test_a_cancelled_begin_gives_the_producer_back() -> None:
    async with FakePool() as pool:
        begun = asyncio.Event()

        async def begin(self: FakeTransactions) -> object:
            begun.set()
            await asyncio.sleep(60)
            raise AssertionError

        async with pool.transaction():
            pass
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FakeTransactions, "begin", begin)
            task = asyncio.create_task(hold(pool, asyncio.Event()))
            await begun.wait()
            task.cancel()
            await asyncio.wait([task])
        assert (task.cancelled(), pool.busy) == (True, 0)
        async with pool.transaction():
            assert len(pool.made) == 1


async def test_a_begin_that_fails_gives_the_producer_back() -> None:
    async with FakePool() as pool:
        async with pool.transaction():
            pass
        pool.made[0].transactions.begin_error = KafkaTimeoutError("no coordinator")
        with pytest.raises(KafkaTimeoutError, match="no coordinator"):
            await pool.transaction().__aenter__()
        assert pool.busy == 0
        pool.made[0].transactions.begin_error = None
        async with pool.transaction():
            assert len(pool.made) == 1


# The end of a transaction


async def test_a_producer_is_busy_until_its_abort_has_ended() -> None:
    async with FakePool(max_producers=1) as pool:
        with pytest.raises(ValueError, match="mine"):
            await end_block(pool, ValueError("mine"), slowly=True)
        assert pool.busy == 1
        next_one = asyncio.create_task(hold(pool, asyncio.Event()))
        await asyncio.sleep(0.02)
        assert pool.waiting == 1
        pool.made[0].transactions.may_end.set()
        await until(lambda: pool.waiting == 0)
        next_one.cancel()
        await asyncio.wait([next_one])


async def test_a_commit_that_fails_after_its_caller_was_cancelled_is_aborted() -> None:
    async with FakePool(max_producers=1) as pool:
        await end_block(pool)
        transactions = pool.made[0].transactions
        transactions.commit_errors = [(COMMITTING, KafkaTimeoutError("still committing"))]
        with pytest.raises(KafkaTimeoutError, match="still committing"):
            await end_block(pool, slowly=True)
        transactions.manager.state = ABORTABLE_ERROR
        transactions.may_end.set()
        await until(lambda: pool.busy == 0)
        assert (transactions.aborts, transactions.manager.state) == (1, READY)


async def test_a_failed_producer_is_closed_and_replaced_by_one_with_the_same_id() -> None:
    async with FakePool(max_producers=1) as pool:
        with pytest.raises(UnknownServerError):
            await end_block(pool, fatal=UnknownServerError("failed"))
        await until(lambda: pool.busy == 0)
        assert pool.made[0].closed == [0]
        async with pool.transaction():
            assert [producer.transactional_id for producer in pool.made] == ["orders-0", "orders-0"]
        assert pool.is_usable


async def test_a_producer_that_fails_while_it_is_idle_is_replaced() -> None:
    async with FakePool(max_producers=1) as pool:
        async with pool.transaction():
            pass
        pool.made[0].transactions.fail(UnknownServerError("failed"))
        async with pool.transaction():
            assert len(pool.made) == 2
        assert pool.made[0].closed == [0]


# Fencing


async def test_a_fenced_producer_closes_the_pool_and_its_caller_gets_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakePool(max_producers=1) as pool:
        end = asyncio.Event()
        holder = asyncio.create_task(hold(pool, end))
        await until(lambda: pool.busy == 1)
        waiting = asyncio.create_task(hold(pool, end))
        await until(lambda: pool.waiting == 1)
        pool.made[0].transactions.fail(ProducerFencedError("fenced"))
        end.set()
        with pytest.raises(ProducerFencedError, match=r"transactional id prefix 'orders': .* a different prefix"):
            await holder
        with pytest.raises(ProducerFencedError, match="this pool is closed"):
            await waiting
        with pytest.raises(ProducerFencedError, match="this pool is closed"):
            pool.transaction()
        assert not pool.is_usable
        await until(lambda: bool(pool.made[0].closed))
    assert ["this pool is closed" in record.getMessage() for record in caplog.records] == [True]


async def test_the_error_of_a_batch_gives_way_to_the_fence_behind_it() -> None:
    async with FakePool() as pool:
        with pytest.raises(ProducerFencedError, match="Another process") as raised:
            await end_block(pool, TransactionAbortableError("of a batch"), fatal=ProducerFencedError("fenced"))
        assert isinstance(raised.value.__cause__, TransactionAbortableError)


async def test_a_fence_after_the_transaction_s_time_out_is_a_failure_of_that_producer_alone() -> None:
    """In the first generation of the protocol a transaction that timed out ends with the error code of a fence."""
    async with FakePool(max_producers=1, transaction_timeout_ms=20) as pool:
        async with pool.transaction():
            pass
        pool.made[0].transactions.commit_errors = [(FATAL_ERROR, ProducerFencedError("fenced"))]
        pool.made[0].transactions.manager.error = ProducerFencedError("fenced")
        with pytest.raises(ProducerFencedError, match=r"^fenced") as raised:
            await _hold_for(pool, 0.03)
        assert re.fullmatch(
            r"The transaction was open for .* after 0.02 s \(transaction_timeout_ms\)\. .*", *raised.value.__notes__
        )
        assert pool.is_usable
        async with pool.transaction():
            assert len(pool.made) == 2


async def _hold_for(pool: TransactionPool, seconds: float) -> None:
    async with pool.transaction():
        await asyncio.sleep(seconds)


@pytest.mark.parametrize("error", [ValueError("mine"), asyncio.CancelledError()])
async def test_an_exception_that_is_not_kafka_s_propagates_through_a_fenced_pool(error: BaseException) -> None:
    async with FakePool() as pool:
        with pytest.raises(type(error)):
            await end_block(pool, error, fatal=ProducerFencedError("fenced"))
        assert not pool.is_usable


async def test_a_fence_that_shows_in_a_background_abort_closes_the_pool() -> None:
    async with FakePool() as pool:
        with pytest.raises(ValueError, match="mine"):
            await end_block(pool, ValueError("mine"), slowly=True)
        assert pool.is_usable
        pool.made[0].transactions.fail(ProducerFencedError("fenced"))
        pool.made[0].transactions.may_end.set()
        await until(lambda: not pool.is_usable)


# Closing


async def test_close_waits_for_open_transactions_and_fails_callers_that_wait() -> None:
    pool = FakePool(max_producers=1)
    await pool.start()
    end = asyncio.Event()
    holder = asyncio.create_task(hold(pool, end))
    await until(lambda: pool.busy == 1)
    waiting = asyncio.create_task(hold(pool, end))
    await until(lambda: pool.waiting == 1)
    closing = asyncio.create_task(pool.close())
    with pytest.raises(ProducerClosedError, match="this pool is closed"):
        await waiting
    await asyncio.sleep(0.01)
    assert not closing.done()
    assert not pool.made[0].closed
    end.set()
    await asyncio.gather(holder, closing)
    assert pool.made[0].closed == [0.01]
    await pool.close()


async def test_the_wait_of_close_is_limited_and_a_second_call_shortens_it() -> None:
    pool = FakePool(max_producers=1)
    await pool.start()
    holder = asyncio.create_task(hold(pool, asyncio.Event()))
    await until(lambda: pool.busy == 1)
    closing = asyncio.create_task(pool.close(float("inf")))
    await asyncio.sleep(0.01)
    assert not closing.done()
    await pool.close(0.01)
    await closing
    assert pool.made[0].closed
    holder.cancel()
    await asyncio.wait([holder])


async def test_a_cancelled_close_closes_the_producers_at_once() -> None:
    pool = FakePool(max_producers=1)
    await pool.start()
    holder = asyncio.create_task(hold(pool, asyncio.Event()))
    await until(lambda: pool.busy == 1)
    closing = asyncio.create_task(pool.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert pool.made[0].closed
    holder.cancel()
    await asyncio.wait([holder])


async def test_close_waits_for_an_abort_in_the_background() -> None:
    pool = FakePool(max_producers=1)
    await pool.start()
    with pytest.raises(ValueError, match="mine"):
        await end_block(pool, ValueError("mine"), slowly=True)
    closing = asyncio.create_task(pool.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    pool.made[0].transactions.may_end.set()
    await closing
    assert pool.made[0].transactions.current is None


async def test_close_ends_when_the_last_caller_is_cancelled_with_its_slot_on_its_way() -> None:
    pool = FakePool(max_producers=1)
    await pool.start()
    await pool.transaction().__aenter__()
    slot = pool._slots[0]
    caller = asyncio.create_task(hold(pool, asyncio.Event()))
    await until(lambda: pool.waiting == 1)
    pool._queue.give_back(slot)
    closing = asyncio.create_task(pool.close())
    caller.cancel()
    async with asyncio.timeout(1):
        await closing
    assert (caller.cancelled(), pool.busy) == (True, 0)


async def test_a_block_whose_transaction_was_aborted_by_close_does_not_end_as_if_it_were_committed() -> None:
    pool = FakePool(max_producers=1)
    await pool.start()
    end = asyncio.Event()
    holder = asyncio.create_task(hold(pool, end))
    await until(lambda: pool.busy == 1)
    await pool.close(0)
    end.set()
    with pytest.raises(ProducerClosedError, match="its transaction was aborted: none of its records is stored"):
        await holder


@pytest.mark.parametrize("timeout", ["1", float("nan")])
async def test_a_wrong_timeout_of_close_changes_nothing(timeout: Any) -> None:
    async with FakePool() as pool:
        with pytest.raises((TypeError, ValueError), match="timeout must be a number"):
            await pool.close(timeout)
        assert pool.is_usable
