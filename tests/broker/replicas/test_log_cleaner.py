"""The log cleaner of a node: which logs it cleans, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aioproducer import OffsetAndMetadata, Producer, TopicPartition
from aioproducer.broker import BrokerCluster
from aioproducer.broker.image import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from aioproducer.broker.log import Log
from aioproducer.broker.log.checkpoints import read_offsets
from aioproducer.broker.log.cleaner.selection import Cleanable
from aioproducer.broker.log.cleaner.steps import Steps, Work
from aioproducer.broker.log.cleaning import cleanable
from aioproducer.broker.log.manager import CLEANER_CHECKPOINT
from aioproducer.broker.log.storage import DirectoryStorage
from aioproducer.broker.replicas import log_cleaner as log_cleaner_module
from aioproducer.broker.replicas.log_cleaner import LARGE_WORK, LogCleaner
from aioproducer.broker.replicas.partition import Partition
from aioproducer.broker.replicas.replica_manager import ReplicaManager
from aioproducer.errors import KafkaStorageError
from aioproducer.transport.memory import MemoryNetwork
from tests.broker.log.building import batch
from tests.broker.log.cleaning import Row, latest, rows

TOPIC = "compacted"
NOW = 1_700_000_000_000
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "500",
    "min.cleanable.dirty.ratio": "0.1",
}
# The tests call the cleaner themselves.
PROPERTIES = {
    "log.cleaner.enable": False,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.min.isr": 1,
}


@pytest.fixture
async def cluster() -> AsyncIterator[BrokerCluster]:
    async with BrokerCluster(network=MemoryNetwork(), wall_ms=lambda: NOW, properties=PROPERTIES) as started:
        started.create_topic(TOPIC, 3, configs=COMPACTED)
        yield started


@pytest.fixture
def manager(cluster: BrokerCluster) -> ReplicaManager:
    return cluster.brokers[1].replicas


async def write(manager: ReplicaManager, count: int, *, index: int = 0, keys: int = 3, topic: str = TOPIC) -> None:
    for number in range(count):
        records = batch(1, key=b"k%d" % (number % keys), value=b"v%d" % number, timestamp=NOW)
        await manager.append({(topic, index): records}, acks=-1, timeout_ms=10_000)


async def test_the_dirtiest_log_is_cleaned_first_and_a_log_that_is_clean_enough_not_at_all(
    cluster: BrokerCluster, manager: ReplicaManager
) -> None:
    cluster.controller.alter_topic_configs(TOPIC, {**COMPACTED, "min.cleanable.dirty.ratio": "0.4"})
    logs = [manager.partition(TOPIC, index).log for index in range(3)]
    for index in range(3):
        await write(manager, 30, index=index, keys=30)
    for _ in range(3):
        assert await manager.cleaner.clean_dirtiest()
    assert not await manager.cleaner.clean_dirtiest()
    # What is clean does not count: 30 records, behind which 8, 40 and 80 are dirty.
    for index, count in enumerate((8, 40, 80)):
        await write(manager, count, index=index)
    clean = [log.cleaned_to for log in logs]
    assert await manager.cleaner.clean_dirtiest()
    assert [log.cleaned_to for log in logs] == [*clean[:2], logs[2].active_base_offset]
    assert await manager.cleaner.clean_dirtiest()
    assert [log.cleaned_to for log in logs] == [clean[0], logs[1].active_base_offset, logs[2].active_base_offset]
    assert not await manager.cleaner.clean_dirtiest()


async def test_a_topic_that_is_not_compacted_is_left_alone(cluster: BrokerCluster, manager: ReplicaManager) -> None:
    cluster.controller.alter_topic_configs(TOPIC, {**COMPACTED, "cleanup.policy": "delete"})
    await write(manager, 30)
    assert not await manager.cleaner.clean_dirtiest()
    cluster.controller.alter_topic_configs(TOPIC, {**COMPACTED, "cleanup.policy": "compact,delete"})
    assert await manager.cleaner.clean_dirtiest()


async def test_it_runs_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = asyncio.Event()
    clean_dirtiest = LogCleaner.clean_dirtiest

    async def observed(cleaner: LogCleaner) -> bool:
        found = await clean_dirtiest(cleaner)
        if found:
            cleaned.set()
        return found

    monkeypatch.setattr(LogCleaner, "clean_dirtiest", observed)
    properties = {"log.cleaner.backoff.ms": 10}
    async with BrokerCluster(network=MemoryNetwork(), wall_ms=lambda: NOW, properties=properties) as cluster:
        cluster.create_topic(TOPIC, configs=COMPACTED)
        manager = cluster.brokers[1].replicas
        await write(manager, 30)
        async with asyncio.timeout(30):
            await cleaned.wait()
        assert manager.partition(TOPIC, 0).log.cleaned_to


async def test_a_round_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = asyncio.Semaphore(0)
    failures: list[Exception] = [KafkaStorageError("disk is full"), RuntimeError("unexpected")]

    async def fail(cleaner: LogCleaner) -> bool:
        tries.release()
        if failures:
            raise failures.pop(0)
        return False

    monkeypatch.setattr(LogCleaner, "clean_dirtiest", fail)
    monkeypatch.setattr(log_cleaner_module, "_AFTER_FAILURE", 0.01)
    properties = {"log.cleaner.backoff.ms": 0}
    async with BrokerCluster(network=MemoryNetwork(), properties=properties), asyncio.timeout(30):
        for _ in range(3):
            await tries.acquire()
    assert "disk is full" in caplog.text
    assert "unexpected" in caplog.text


async def test_a_damaged_log_is_left_and_the_others_are_cleaned(
    manager: ReplicaManager, caplog: pytest.LogCaptureFixture
) -> None:
    for index in range(2):
        await write(manager, 30, index=index)
    view = memoryview(manager.partition(TOPIC, 0).log.segments[0].file.peek(0, 400))
    owner = view.obj
    assert isinstance(owner, bytearray)
    owner[70] ^= 1
    rounds = 0
    while await manager.cleaner.clean_dirtiest():
        rounds += 1
    assert rounds == 2
    assert [manager.partition(TOPIC, index).log.cleaned_to is None for index in range(2)] == [True, False]
    assert caplog.text.count("cannot be compacted") == 1


@pytest.fixture
def clock(manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the cleaner sees, as the only entry."""
    time = [1000.0]
    monkeypatch.setattr(manager, "now", lambda: time[0])
    return time


async def test_a_log_that_fails_is_passed_over_for_longer_each_time_and_the_others_are_cleaned(
    manager: ReplicaManager, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bad disk stopped the compaction of the whole node."""
    for index in range(2):
        await write(manager, 30, index=index)
    logs = [manager.partition(TOPIC, index).log for index in range(2)]

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(logs[0], "new_cleaned_segment", fail)
        with pytest.raises(OSError, match="Input/output error"):
            await manager.cleaner.clean_dirtiest()
        assert await manager.cleaner.clean_dirtiest()
        assert [log.cleaned_to is None for log in logs] == [True, False]
        for seconds in (60, 120, 240):
            clock[0] += seconds - 1
            assert not await manager.cleaner.clean_dirtiest()
            clock[0] += 1
            with pytest.raises(OSError, match="Input/output error"):
                await manager.cleaner.clean_dirtiest()
    clock[0] += 3600
    assert await manager.cleaner.clean_dirtiest()
    assert logs[0].cleaned_to == logs[0].active_base_offset
    assert not manager.cleaner._failed


async def test_a_log_that_fails_is_passed_over_for_longer_than_the_pause_of_the_cleaner(
    cluster: BrokerCluster, manager: ReplicaManager, clock: list[float]
) -> None:
    await write(manager, 30)
    partition = manager.partition(TOPIC, 0)
    for backoff_ms, seconds in ((100_000, 200), (1000, 400), (10_000_000, 20_000), (1000, 3600)):
        cluster.controller.alter_node_configs(1, {"log.cleaner.backoff.ms": str(backoff_ms)})
        manager.cleaner._pass_over(partition)
        assert manager.cleaner._failed[partition].until == clock[0] + seconds


async def test_a_log_that_cannot_be_looked_at_does_not_stop_the_others(
    manager: ReplicaManager, clock: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for index in range(2):
        await write(manager, 30, index=index)
    logs = [manager.partition(TOPIC, index).log for index in range(2)]

    def look(log: Log, now_ms: int, high_watermark: int) -> Cleanable:
        if log is logs[0]:
            raise OSError(5, "Input/output error")
        return cleanable(log, now_ms, high_watermark)

    with monkeypatch.context() as patched:
        patched.setattr(log_cleaner_module, "cleanable", look)
        assert await manager.cleaner.clean_dirtiest()
        assert not await manager.cleaner.clean_dirtiest()
    assert [log.cleaned_to is None for log in logs] == [True, False]
    assert caplog.text.count("the log cleaner cannot read the log: [Errno 5] Input/output error") == 1
    clock[0] += 60
    assert await manager.cleaner.clean_dirtiest()
    assert logs[0].cleaned_to == logs[0].active_base_offset


async def test_readers_and_writers_go_on_during_a_round(manager: ReplicaManager) -> None:
    await write(manager, 30)
    log = manager.partition(TOPIC, 0).log
    expected = latest(rows(log))
    seen = 0

    async def read_and_write() -> None:
        nonlocal seen
        while not done.is_set():
            assert latest(rows(log)).keys() == expected.keys()
            await write(manager, 1)
            seen += 1
            await asyncio.sleep(0)

    done = asyncio.Event()
    log_cleaner_turn = log_cleaner_module.LONGEST_TURN
    try:
        log_cleaner_module.LONGEST_TURN = -1.0  # type: ignore[misc]
        reader = asyncio.create_task(read_and_write())
        assert await manager.cleaner.clean_dirtiest()
    finally:
        log_cleaner_module.LONGEST_TURN = log_cleaner_turn  # type: ignore[misc]
        done.set()
        await reader
    assert seen > 10


async def test_others_get_a_turn_after_each_step_that_takes_long(
    manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cleaner_module, "LONGEST_TURN", -1.0)
    turns: list[int] = []

    def steps() -> Steps[str]:
        for number in range(3):
            turns.append(number)
            yield None
        return "end"

    task = asyncio.create_task(manager.cleaner._drive(steps()))
    for number in range(1, 4):
        await asyncio.sleep(0)
        assert turns == list(range(number))
    assert await task == "end"


async def test_large_work_and_slow_work_run_in_a_thread_and_small_work_at_once(manager: ReplicaManager) -> None:
    threads: list[threading.Thread] = []

    def count() -> int:
        threads.append(threading.current_thread())
        return len(threads)

    def steps() -> Steps[list[int]]:
        results = []
        for size, is_slow in ((LARGE_WORK - 1, False), (LARGE_WORK, False), (0, True)):
            results.append((yield Work(size, count, is_slow)))
        try:
            yield Work(0, lambda: 1 // 0, True)
        except ZeroDivisionError:
            results.append(-1)
        return results

    assert await manager.cleaner._drive(steps()) == [1, 2, 3, -1]
    here = threading.current_thread()
    assert [thread is here for thread in threads] == [True, False, False]


async def test_a_partition_that_is_deleted_during_its_round_ends_it(
    cluster: BrokerCluster, manager: ReplicaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cleaner_module, "LONGEST_TURN", -1.0)
    await write(manager, 30)
    cleaning = asyncio.create_task(manager.cleaner.clean_dirtiest())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not cleaning.done()
    cluster.controller.delete_topic(TOPIC)
    assert await cleaning
    assert not await manager.cleaner.clean_dirtiest()


async def test_stopping_a_node_in_the_middle_of_a_round_loses_nothing(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cleaner_module, "LONGEST_TURN", -1.0)
    broker = cluster.brokers[1]
    await write(broker.replicas, 60)
    before = latest(rows(broker.replicas.partition(TOPIC, 0).log))
    for stop in (broker.kill, broker.stop):
        for pauses in range(0, 200, 20):
            cleaning = asyncio.create_task(broker.replicas.cleaner.clean_dirtiest())
            for _ in range(pauses):
                await asyncio.sleep(0)
            cleaning.cancel()
            await asyncio.wait([cleaning])
            await stop()
            await broker.start()
            assert latest(rows(broker.replicas.partition(TOPIC, 0).log)) == before
            await write(broker.replicas, 1, topic=TOPIC, index=1)


async def test_the_checkpoint_is_kafkas_and_survives_a_restart(tmp_path: Path) -> None:
    options: dict[str, Any] = {"network": MemoryNetwork(), "wall_ms": lambda: NOW, "properties": PROPERTIES}
    async with BrokerCluster(data_dir=tmp_path, **options) as cluster:
        cluster.create_topic(TOPIC, configs=COMPACTED)
        manager = cluster.brokers[1].replicas
        await write(manager, 30)
        assert await manager.cleaner.clean_dirtiest()
        log = manager.partition(TOPIC, 0).log
        cleaned_to, found = log.active_base_offset, rows(log)
        assert checkpoint_under(tmp_path) == {(TOPIC, 0): cleaned_to}
    async with BrokerCluster(data_dir=tmp_path, **options) as cluster:
        log = cluster.brokers[1].replicas.partition(TOPIC, 0).log
        assert (log.cleaned_to, rows(log)) == (cleaned_to, found)
        assert not await cluster.brokers[1].replicas.cleaner.clean_dirtiest()


def checkpoint_under(folder: Path) -> dict[tuple[str, int], int]:
    [path] = folder.rglob(CLEANER_CHECKPOINT)
    return read_offsets(DirectoryStorage(path.parent), CLEANER_CHECKPOINT)


async def test_a_checkpoint_outside_of_the_log_is_replaced(
    cluster: BrokerCluster, manager: ReplicaManager, caplog: pytest.LogCaptureFixture
) -> None:
    await write(manager, 30)
    log = manager.partition(TOPIC, 0).log
    log.cleaned_to = 1000
    assert await manager.cleaner.clean_dirtiest()
    assert log.cleaned_to == log.active_base_offset
    assert "checkpoint 1000 is outside" in caplog.text


async def test_a_follower_cleans_its_own_log_and_fetches_across_the_gaps_of_its_leader() -> None:
    network = MemoryNetwork()
    properties = {**PROPERTIES, "replica.fetch.wait.max.ms": 20}
    async with BrokerCluster(2, network=network, wall_ms=lambda: NOW, properties=properties) as cluster:
        cluster.create_topic(TOPIC, assignments={0: [1, 2]}, configs=COMPACTED)
        leader = cluster.brokers[1].replicas
        await write(leader, 10)
        await cluster.brokers[2].stop()
        await write(leader, 40)
        while await leader.cleaner.clean_dirtiest():
            pass
        await cluster.brokers[2].start()
        follower = cluster.brokers[2].replicas
        await caught_up(leader.partition(TOPIC, 0), follower.partition(TOPIC, 0))
        await write(leader, 10)
        await caught_up(leader.partition(TOPIC, 0), follower.partition(TOPIC, 0))
        logs: list[Log] = [each.partition(TOPIC, 0).log for each in (leader, follower)]
        while await follower.cleaner.clean_dirtiest() or await leader.cleaner.clean_dirtiest():
            pass
        assert latest(rows(logs[0])) == latest(rows(logs[1]))
        assert len(rows(logs[1])) < 60


async def caught_up(leader: Partition, follower: Partition) -> None:
    """Wait until ``follower`` has all and is in sync."""
    moved = asyncio.Event()
    follower.add_watcher(moved.set)
    leader.add_watcher(moved.set)
    async with asyncio.timeout(30):
        while follower.log_end_offset < leader.log_end_offset or len(leader.isr) < 2:
            moved.clear()
            await moved.wait()


@pytest.mark.parametrize("stops", ["stop", "kill"])
async def test_coordinators_find_their_state_after_their_topics_were_cleaned(stops: str) -> None:
    async with BrokerCluster(properties={**PROPERTIES, "replica.fetch.wait.max.ms": 20}) as cluster:
        cluster.create_topic("input")
        cluster.create_topic("output")
        broker = cluster.brokers[1]

        async def copy(count: int, start: int) -> None:
            async with Producer(
                bootstrap_servers=cluster.bootstrap_servers, transactional_id="copier", linger_ms=0
            ) as producer:
                for number in range(start, start + count):
                    async with producer.transaction():
                        await producer.send("output", b"%d" % number)
                        offsets = {TopicPartition("input", 0): OffsetAndMetadata(number + 1)}
                        await producer.send_offsets_to_transaction(offsets, "group")

        await copy(1, 0)
        for topic in (TRANSACTION_STATE_TOPIC, GROUP_METADATA_TOPIC):
            cluster.controller.alter_topic_configs(topic, COMPACTED)
        await copy(12, 1)
        sizes = []
        for topic in (TRANSACTION_STATE_TOPIC, GROUP_METADATA_TOPIC):
            log = broker.replicas.partition(topic, 0).log
            sizes.append(len(rows(log)))
        while await broker.replicas.cleaner.clean_dirtiest():
            pass
        for topic, size in zip((TRANSACTION_STATE_TOPIC, GROUP_METADATA_TOPIC), sizes, strict=True):
            log = broker.replicas.partition(topic, 0).log
            assert log.cleaned_to
            assert len(rows(log)) < size / 2
        await (broker.stop() if stops == "stop" else broker.kill())
        await broker.start()
        await copy(2, 13)
        values = [row.value for row in await committed_rows(broker.replicas.partition("output", 0))]
        assert values == [b"%d" % number for number in range(15)]
        committed = latest(await committed_rows(broker.replicas.partition(GROUP_METADATA_TOPIC, 0)))
        assert len(committed) == 1


async def committed_rows(partition: Partition) -> list[Row]:
    """Every committed record, once all transactions have their markers: a commit may return before they are written."""
    moved = asyncio.Event()
    partition.add_watcher(moved.set)
    try:
        async with asyncio.timeout(30):
            while partition.last_stable_offset < partition.log_end_offset:
                moved.clear()
                await moved.wait()
    finally:
        partition.remove_watcher(moved.set)
    return rows(partition.log, committed=True)
