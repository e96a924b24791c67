"""The transactional ids of one partition: loading, writing, ending. The partition is a stand-in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.broker.replicas.partition import Partition
from aioproducer.broker.transactions import shard as shard_module
from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.ending import End, end
from aioproducer.broker.transactions.records import TransactionRecord, decode_record, encode_record
from aioproducer.broker.transactions.shard import Shard
from aioproducer.broker.transactions.states import TransactionMetadata, TransactionState
from aioproducer.broker.transactions.transaction import Transaction
from aioproducer.errors import KafkaStorageError, NotEnoughReplicasError, NotLeaderOrFollowerError, RecordTooLargeError
from tests import waiting
from tests.broker.coordination.replica import Replica

NOW = 1_700_000_000_000
S = TransactionState


class Host:
    """The coordinator of a shard; the test writes its markers."""

    transaction_version = 2

    def __init__(self) -> None:
        self.now_ms = NOW
        self.to_mark: list[Transaction] = []

    def wall_ms(self) -> int:
        return self.now_ms

    def send_markers(self, shard: Shard, transaction: Transaction) -> None:
        self.to_mark.append(transaction)


def stored(replica: Replica) -> dict[str, TransactionMetadata]:
    """The last record of each transactional id in the log."""
    found: dict[str, TransactionMetadata] = {}
    for key, value in replica.records():
        record = decode_record(key, value)
        if record is not None and record.metadata is not None:
            found[record.transactional_id] = record.metadata
        elif record is not None:
            found.pop(record.transactional_id, None)
    return found


async def loaded(replica: Replica, host: Host | None = None) -> tuple[Shard, Host]:
    host = host or Host()
    shard = Shard(cast("Partition", replica), host)
    await shard.load()
    return shard, host


def ongoing(**fields: object) -> TransactionMetadata:
    values: dict[str, object] = {
        "timeout_ms": 60_000,
        "partitions": frozenset({("t", 0), ("t", 1)}),
        "start_ms": NOW,
        "client_version": 2,
        **fields,
    }
    return TransactionMetadata(1, 5, state=S.ONGOING, **values)  # type: ignore[arg-type]  # the fields by name


def keep(replica: Replica, metadata: TransactionMetadata | None, transactional_id: str = "id") -> None:
    replica.store(encode_record(TransactionRecord(transactional_id, metadata), 2))


def commit(transaction: Transaction) -> TransactionMetadata:
    decision = end(transaction, End(transaction.metadata.producer, True, 2), lambda: 99, NOW)
    assert isinstance(decision, TransactionMetadata)
    return decision


def answers() -> tuple[list[int], Callable[[int], None]]:
    seen: list[int] = []
    return seen, seen.append


async def test_the_last_record_of_each_id_is_loaded() -> None:
    replica = Replica()
    keep(replica, TransactionMetadata(1, 4, 60_000, S.EMPTY))
    keep(replica, TransactionMetadata(2, 0, 60_000, S.EMPTY), "gone")
    keep(replica, ongoing())
    keep(replica, None, "gone")
    replica.store((b"\x00\x09", b""), (b"\x00", b""))
    shard, _ = await loaded(replica)
    assert {name: found.metadata for name, found in shard.transactions.items()} == {"id": ongoing()}
    assert shard.coordinator_epoch == 3


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
async def test_a_loaded_outcome_is_completed(state: S) -> None:
    replica = Replica()
    keep(replica, TransactionMetadata(1, 6, 60_000, state, frozenset({("t", 0)}), NOW, client_version=2))
    shard, host = await loaded(replica)
    [transaction] = host.to_mark
    assert transaction.pending is not None
    shard.marked(transaction, ("t", 0))
    assert transaction.metadata.state is (S.COMPLETE_COMMIT if state is S.PREPARE_COMMIT else S.COMPLETE_ABORT)
    assert stored(replica)["id"].state is transaction.metadata.state


async def test_the_end_is_written_when_the_last_partition_is_marked() -> None:
    replica = Replica()
    keep(replica, ongoing())
    shard, host = await loaded(replica)
    transaction = shard.transactions["id"]
    seen, done = answers()
    shard.write(transaction, commit(transaction), done)
    assert (seen, host.to_mark) == ([0], [transaction])
    for partition in (("t", 1), ("t", 1), ("t", 7)):
        shard.marked(transaction, partition)
    assert transaction.metadata.state is S.PREPARE_COMMIT
    shard.marked(transaction, ("t", 0))
    assert transaction.metadata.state is S.COMPLETE_COMMIT
    assert [decoded.state for decoded in stored(replica).values()] == [S.COMPLETE_COMMIT]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotEnoughReplicasError(), Code.COORDINATOR_NOT_AVAILABLE),
        (NotLeaderOrFollowerError(), Code.NOT_COORDINATOR),
        (KafkaStorageError(), Code.NOT_COORDINATOR),
        (RecordTooLargeError(), Code.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_a_failed_write_changes_nothing(
    error: NotEnoughReplicasError | NotLeaderOrFollowerError | KafkaStorageError | RecordTooLargeError, code: Code
) -> None:
    replica = Replica()
    keep(replica, ongoing())
    shard, host = await loaded(replica)
    transaction = shard.transactions["id"]
    replica.append_error = error
    seen, done = answers()
    shard.write(transaction, commit(transaction), done)
    assert seen == [code]
    assert (transaction.metadata, transaction.pending, host.to_mark) == (ongoing(), None, [])


async def test_a_new_id_is_dropped_if_its_first_record_fails() -> None:
    shard, _ = await loaded(Replica())
    transaction = shard.transactions["id"] = Transaction.new("id", 1, 60_000, NOW)
    new = transaction.initialize(60_000, None, lambda: 2, NOW)
    assert isinstance(new, TransactionMetadata)
    cast("Replica", shard.partition).append_error = NotEnoughReplicasError()
    shard.write(transaction, new, answers()[1])
    assert shard.transactions == {}


async def test_the_end_is_written_again_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "RETRY_BACKOFF", 0.001)
    replica = Replica()
    keep(replica, ongoing(partitions=frozenset({("t", 0)})))
    shard, _ = await loaded(replica)
    transaction = shard.transactions["id"]
    shard.write(transaction, commit(transaction), answers()[1])
    replica.append_error = NotEnoughReplicasError()
    shard.marked(transaction, ("t", 0))
    await asyncio.sleep(0.02)
    assert transaction.pending is not None
    replica.append_error = None
    await waiting.until(lambda: transaction.metadata.state is S.COMPLETE_COMMIT)
    assert len(replica.records()) == 3


async def test_a_timed_out_write_stays_pending_until_its_outcome_is_known() -> None:
    replica = Replica()
    keep(replica, ongoing(timeout_ms=5))
    shard, host = await loaded(replica)
    transaction = shard.transactions["id"]
    replica.replicates = False
    seen, done = answers()
    shard.write(transaction, commit(transaction), done)
    await waiting.until(lambda: seen)
    assert seen == [Code.COORDINATOR_NOT_AVAILABLE]
    assert end(transaction, End(transaction.metadata.producer, True, 2), lambda: 9, NOW) == Code.CONCURRENT_TRANSACTIONS
    replica.replicate()
    assert transaction.metadata.state is S.PREPARE_COMMIT
    assert host.to_mark == [transaction]


async def test_a_closed_shard_answers_waiting_requests_and_changes_nothing() -> None:
    replica = Replica(replicates=False)
    shard, host = await loaded(replica)
    transaction = shard.transactions["id"] = Transaction("id", ongoing(), is_logged=True)
    seen, done = answers()
    shard.write(transaction, commit(transaction), done)
    shard.close(Code.NOT_COORDINATOR)
    replica.replicate()
    shard.marked(transaction, ("t", 0))
    assert (seen, transaction.metadata, host.to_mark) == ([Code.NOT_COORDINATOR], ongoing(), [])


async def test_expired_ids_get_a_tombstone() -> None:
    replica = Replica()
    keep(replica, TransactionMetadata(1, 0, 60_000, S.EMPTY, last_update_ms=NOW - 100))
    keep(replica, TransactionMetadata(2, 0, 60_000, S.COMPLETE_ABORT, last_update_ms=NOW - 99), "later")
    keep(replica, ongoing(last_update_ms=0), "busy")
    shard, _ = await loaded(replica)
    shard.expire(NOW, 100)
    assert sorted(shard.transactions) == sorted(stored(replica)) == ["busy", "later"]


async def test_a_failed_tombstone_is_written_again() -> None:
    replica = Replica()
    keep(replica, TransactionMetadata(1, 0, 60_000, S.EMPTY, last_update_ms=0))
    shard, _ = await loaded(replica)
    replica.append_error = NotEnoughReplicasError()
    shard.expire(NOW, 100)
    assert shard.transactions["id"].pending is None
    replica.append_error = None
    shard.expire(NOW, 100)
    assert shard.transactions == stored(replica) == {}


STEPS = st.lists(
    st.sampled_from(
        ["init", "add", "commit", "abort", "mark", "replicate", "append fails", "append works", "take over"]
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_the_cache_equals_the_replicated_log(steps: list[str]) -> None:
    """After any failures and changes of the leader, the next leader reads this one's state, as ``_play`` asserts."""
    asyncio.run(_play(steps))


async def _play(steps: list[str]) -> None:
    replica = Replica(replicates=False)
    keep(replica, TransactionMetadata(1, 0, 60_000, S.EMPTY, start_ms=-1, previous_producer_id=1))
    replica.replicate()
    shard, host = await loaded(replica)
    for step in steps:
        transaction = shard.transactions["id"]
        producer = transaction.metadata.producer
        decision: object = None
        if step == "init":
            decision = transaction.initialize(60_000, None, lambda: 50, NOW)
            if transaction.is_fencing:
                decision = end(transaction, End(producer, False, 2, is_from_client=False), lambda: 60, NOW)
        elif step == "add":
            decision = transaction.add_partitions(producer, [("t", 0), ("t", 1)], NOW, 2)
        elif step in ("commit", "abort"):
            decision = end(transaction, End(producer, step == "commit", 2), lambda: 70, NOW)
        elif step == "mark":
            for partition in list(transaction.unmarked)[:1]:
                shard.marked(transaction, partition)
        elif step == "replicate":
            replica.replicate()
        elif step.startswith("append"):
            replica.append_error = NotEnoughReplicasError() if step.endswith("fails") else None
        else:
            # The new leader truncates records that are not replicated.
            replica.batches = [batch for batch in replica.batches if batch.next_offset <= replica.high_watermark]
            shard.close(Code.NOT_COORDINATOR)
            shard, host = await loaded(replica, host)
        if isinstance(decision, TransactionMetadata):
            shard.write(transaction, decision, lambda code: None)
        replicated = Replica()
        replicated.batches = [batch for batch in replica.batches if batch.next_offset <= replica.high_watermark]
        cached = shard.transactions["id"].metadata
        expected = stored(replicated)["id"]
        # The last epoch is not in the log.
        assert (cached.state, cached.producer, cached.partitions) == (
            expected.state,
            expected.producer,
            expected.partitions,
        )
        assert (cached.start_ms, cached.previous_producer_id, cached.next_producer_id) == (
            expected.start_ms,
            expected.previous_producer_id,
            expected.next_producer_id,
        )
    shard.close(Code.NOT_COORDINATOR)
