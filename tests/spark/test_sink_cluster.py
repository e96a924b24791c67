"""The exactly-once sink's calls on the embedded broker: what they read, write, keep and refuse."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from aioproducer.admin import Admin
from aioproducer.broker.cluster import BrokerCluster
from aioproducer.consumer import partition_log
from aioproducer.consumer.partition_log import CommittedFetch, ProducerFetch, find_marker
from aioproducer.errors import KafkaTimeoutError
from aioproducer.producer import Producer
from aioproducer.record import TopicPartition
from aioproducer.spark import exactly_once, sink_cluster
from aioproducer.spark.exactly_once import TaskOf, commit_batch, plan_batch
from aioproducer.spark.executor import Executor
from aioproducer.spark.options import SinkOptions
from aioproducer.spark.sink_cluster import KafkaSinkCluster
from aioproducer.spark.transactional.decisions import Handle
from aioproducer.spark.transactional.rules import TaskReport
from aioproducer.spark.transactional.table import DecisionTable
from aioproducer.testing import EmbeddedClusterThread
from aioproducer.wire.record_batch import BatchRecord
from tests.interop.spark.sink_program import log, run_batch, write_tasks
from tests.spark.embedded_sink import committed, decide


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread(2, properties={"default.replication.factor": "1"}) as cluster:
        yield cluster


def open_task(options: dict[str, str], rows: list[str]) -> Handle:
    """Write rows in a transaction that is left open."""
    parsed = SinkOptions.parse(options)
    (report,) = write_tasks(parsed, plan_batch(parsed, log), TaskOf("query", 0, "run"), rows, 1)
    assert report.handle is not None
    return report.handle


def rows_left(options: dict[str, str], handle: Handle) -> list[list[bytes | None]]:
    """Return the pieces of an open transaction."""
    own = SinkOptions.parse(options)
    (where,) = handle.ranges

    async def read() -> list[list[bytes | None]]:
        config = dict(own.config)
        async with KafkaSinkCluster(config, options["sink.id"], options["decision.topic"], 20) as calls:
            pieces = []
            after = where.first_offset - 1
            while piece := await calls.rows_of(handle, where, after):
                pieces.append([each.value for each in piece])
                after = piece[-1].offset
            return pieces

    return asyncio.run(read())


def test_a_piece_of_copied_rows_is_limited_by_its_uncompressed_size(options, monkeypatch):
    rows = [f"{number}".ljust(1000, "x") for number in range(10)]
    handle = open_task({**options, "kafka.compression.type": "gzip"}, rows)
    # Keys are as large as values.
    monkeypatch.setattr(sink_cluster, "PIECE_BYTES", 6000)
    pieces = rows_left(options, handle)
    assert [len(each) for each in pieces] == [3, 3, 3, 1]
    assert [value for piece in pieces for value in piece] == [row.encode() for row in rows]


def test_rows_that_are_acknowledged_slowly_are_copied_in_shorter_pieces(cluster, topic, options, monkeypatch, capsys):
    """A piece of 32 MB took longer than the time-out of its transaction if a quota held the rows back.

    The coordinator aborted it, and each start of the query began it again.
    """
    rows = [f"{number}".ljust(1000, "x") for number in range(10)]
    decide(options, 0, rows, monkeypatch)

    async def abort_tasks() -> None:
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            found = await admin.list_transactions(states=["Ongoing"], pattern=f"{options['sink.id']}-t-.*")
            await admin.fence_producers([each.transactional_id for each in found])

    asyncio.run(abort_tasks())
    monkeypatch.setattr(sink_cluster, "PIECE_SECONDS", -1.0)
    # Keys are as large as values.
    monkeypatch.setattr(sink_cluster, "STEP_BYTES", 4000)
    capsys.readouterr()
    plan_batch(SinkOptions.parse(options), log)
    assert re.findall(r"copied (\d+) of 5 rows", capsys.readouterr().out) == ["2", "4", "5"] * 2
    assert committed(cluster, topic) == Counter(rows)


def test_a_piece_has_a_row_however_long_the_search_for_it_takes(cluster, topic, options, monkeypatch):
    """It was over after ten seconds without a row, and the rows counted as lost."""
    cluster.create_topic(f"{topic}-2", 1)
    handle = open_task(options, ["first"])

    async def append_others() -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0) as producer:
            for _ in range(3):
                await producer.send(topic, b"x" * 700_000)

    asyncio.run(append_others())
    (where,) = handle.ranges
    # As if the transaction had a row behind those of the other producer.
    later = Handle(
        handle.transactional_id,
        handle.producer_id,
        handle.producer_epoch,
        handle.version,
        0,
        (where._replace(last_offset=where.last_offset + 3),),
    )
    monkeypatch.setattr(sink_cluster, "PIECE_SECONDS", -1.0)
    assert rows_left(options, later) == [[b"first"]]


def hide_rows(monkeypatch: pytest.MonkeyPatch, handle: Handle, visible: int, times: int) -> None:
    """Let this many fetches see a new leader, whose high watermark is behind the first ``visible`` rows."""
    fetch = sink_cluster.fetch_of_producer
    (where,) = handle.ranges
    end = where.first_offset + visible
    asked: list[int] = []

    async def hidden(admin: Admin, place: TopicPartition, offset: int, producer_id: int, **more: bool) -> ProducerFetch:
        asked.append(offset)
        if offset >= end and len(asked) <= times:
            return ProducerFetch(offset, (), (), (), 0, where.first_offset, end)
        found = await fetch(admin, place, offset, producer_id, **more)
        if len(asked) > times:
            return found
        batches = tuple(each for each in found.batches if each.next_offset <= end)
        return found._replace(batches=batches, next_offset=end, high_watermark=end)

    monkeypatch.setattr(sink_cluster, "fetch_of_producer", hidden)


@pytest.mark.parametrize("visible", [0, 1])
def test_rows_above_the_high_watermark_of_a_new_leader_are_waited_for(topic, options, monkeypatch, visible):
    """They counted as lost: an empty response was taken for the end of the log."""
    # A batch has one row.
    handle = open_task({**options, "kafka.batch.size": "1"}, ["a", "b"])
    hide_rows(monkeypatch, handle, visible, times=4)
    assert [value for piece in rows_left(options, handle) for value in piece] == [b"a", b"b"]


def test_a_high_watermark_that_stays_below_the_rows_is_a_timeout(topic, options, monkeypatch):
    handle = open_task(options, ["a", "b"])
    hide_rows(monkeypatch, handle, 0, times=1_000_000)
    monkeypatch.setattr(sink_cluster, "MARKER_WITHIN", 0.0)
    with pytest.raises(KafkaTimeoutError, match=rf"^{topic}-0: the high watermark has stayed at 0 .* offset 1\."):
        rows_left(options, handle)


def test_the_search_for_a_marker_ends_where_the_log_ended_when_it_began(monkeypatch):
    """A log that grew as fast as it was read kept the search going for ever."""
    offsets: list[int] = []

    async def fetch(admin: object, where: object, offset: int, producer_id: int, **_: object) -> ProducerFetch:
        offsets.append(offset)
        assert len(offsets) < 100
        return ProducerFetch(offset + 10, (), (), (), 0, 0, 50 + 10 * len(offsets))

    monkeypatch.setattr(partition_log, "fetch_of_producer", fetch)
    assert asyncio.run(find_marker(None, TopicPartition("t", 0), 9, 1)) is None
    assert offsets == [10, 20, 30, 40, 50]


def test_the_decision_topic_has_as_many_replicas_as_the_topic(cluster, topic, options, sink):
    cluster.create_topic(f"{topic}-safe", 1, replication_factor=2)
    run_batch({**options, "topic": f"{topic}-safe"}, 0, ["a"])

    async def replicas() -> list[int]:
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            found = await admin.describe_topics([f"{sink}-decisions", f"{topic}-safe"])
            return [len(each.partitions[0].replicas) for each in found]

    assert asyncio.run(replicas()) == [2, 2]


def test_a_process_keeps_a_few_producers_whatever_the_number_of_its_tasks(cluster, topic, options):
    tasks = exactly_once.KEPT_PRODUCERS + 3
    for batch_id in range(2):
        run_batch(options, batch_id, [f"{batch_id}:{number}" for number in range(2 * tasks)], tasks=tasks)
        assert len(Executor.current()._kept) == exactly_once.KEPT_PRODUCERS
    assert committed(cluster, topic) == Counter(
        f"{batch}:{number}" for batch in range(2) for number in range(2 * tasks)
    )


def connections() -> list[object]:
    return list(Executor.current()._idle_connections.values())


def test_a_sink_stays_connected_from_one_batch_to_the_next(cluster, topic, options):
    """New connections took longer than everything else that a batch asks of the brokers."""
    run_batch(options, 0, ["0a", "0b"])
    (first,) = connections()
    producer = first._producer
    run_batch(options, 1, ["1a", "1b"])
    assert connections() == [first]
    assert first._producer is producer
    assert committed(cluster, topic) == Counter(["0a", "0b", "1a", "1b"])


def test_after_an_error_the_next_batch_has_new_connections(cluster, topic, options, monkeypatch):
    run_batch(options, 0, ["0a"])
    (first,) = connections()
    decide(options, 1, ["1a"], monkeypatch)
    assert connections() == []
    with pytest.raises(RuntimeError, match="not started"):
        _ = first.admin.client
    run_batch(options, 1, ["1a"])
    assert committed(cluster, topic) == Counter(["0a", "1a"])


def test_a_sink_survives_brokers_that_are_restarted_between_its_batches(cluster, topic, options):
    for batch_id in range(3):
        run_batch(options, batch_id, [f"{batch_id}a", f"{batch_id}b"])
        for node in (1, 2):
            cluster.kill(node)
            cluster.restart(node)
    assert committed(cluster, topic) == Counter(f"{batch_id}{row}" for batch_id in range(3) for row in "ab")


def read_scripted(monkeypatch: pytest.MonkeyPatch, responses: list[CommittedFetch], stop: int) -> tuple[int, list[int]]:
    """Read decisions up to ``stop``; return the position after it, and the offsets of the fetches."""
    asked: list[int] = []

    async def fetch(admin: Admin, place: TopicPartition, offset: int) -> CommittedFetch:
        asked.append(offset)
        return responses[len(asked) - 1]

    async def never(seconds: float) -> None:
        raise AssertionError("there is nothing to wait for")

    monkeypatch.setattr(sink_cluster, "fetch_committed", fetch)
    monkeypatch.setattr(sink_cluster.asyncio, "sleep", never)
    table = DecisionTable("s")
    table.position = 1

    async def read() -> None:
        await KafkaSinkCluster({"bootstrap.servers": "localhost:1"}, "s", "d", 1).read_up_to(table, stop)

    asyncio.run(read())
    return table.position, asked


def record_at(offset: int) -> BatchRecord:
    return BatchRecord(offset, 0, 0, b'["other","q",0]', b"{}", ())


def test_decisions_are_read_on_at_once_after_a_response_that_ends_in_a_record(monkeypatch):
    """It counted as no progress: large sinks waited after each, and failed in the end."""
    responses = [CommittedFetch(offset + 1, (record_at(offset),), 4) for offset in (1, 2, 3)]
    assert read_scripted(monkeypatch, responses, 4) == (4, [1, 2, 3])


def test_decisions_end_where_compaction_has_removed_the_last_ones(monkeypatch):
    responses = [CommittedFetch(2, (record_at(1),), 9), CommittedFetch(2, (), 9)]
    assert read_scripted(monkeypatch, responses, 9) == (9, [1, 2])


def test_an_upgrade_of_the_transaction_protocol_replaces_the_committer(cluster, options):
    """A producer learns of the newer generation with its next connection only."""
    run_batch(options, 0, ["a"])
    (sink,) = connections()
    assert sink._producer is not None
    sink._version = 1
    Executor.current().run(sink.find_version())
    assert (sink.version, sink._producer) == (2, None)
    run_batch(options, 1, ["b"])


def test_two_batches_of_a_sink_at_the_same_time_have_connections_of_their_own(options):
    """The drivers of two queries may run in one process: one fences the other, as between two processes."""
    given = SinkOptions.parse(options)
    run_batch(options, 0, ["a"])

    async def take_both() -> list[KafkaSinkCluster]:
        executor = Executor.current()
        async with exactly_once._connected(executor, given) as one, exactly_once._connected(executor, given) as other:
            return [one, other]

    one, other = Executor.current().run(take_both())
    assert one is not other
    # One is enough to be kept.
    assert connections() == [one]


def test_a_plan_reads_what_is_new_and_parses_nothing_twice(cluster, options, monkeypatch):
    applied: list[int] = []
    parsed: list[str] = []
    table = exactly_once.DecisionTable
    apply, parse = table.apply, table._parse

    def counting_apply(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        applied.append(offset)
        apply(self, offset, key, value)

    def counting_parse(self, key: str) -> object:
        parsed.append(key)
        return parse(self, key)

    monkeypatch.setattr(table, "apply", counting_apply)
    monkeypatch.setattr(table, "_parse", counting_parse)

    given = SinkOptions.parse(options)

    def cost_of_a_write(number: int) -> tuple[int, int]:
        applied.clear()
        parsed.clear()
        key = f"write:{number}"
        commit_batch(given, write_tasks(given, plan_batch(given, log, key), TaskOf(key, None, key), [], 1), log)
        return len(applied), len(parsed)

    cost_of_a_write(0)
    few = cost_of_a_write(1)
    for number in range(2, 20):
        cost_of_a_write(number)
    # The decision before, and its done note.
    assert cost_of_a_write(20) == few == (2, 1)


def test_nothing_is_kept_of_each_micro_batch_of_write_batch(options):
    before = len(exactly_once.preparation._prepared)
    for batch_id in range(3):
        plan_batch(SinkOptions.parse({**options, "write.name": "a", "write.batch": str(batch_id)}), log)
    assert len(exactly_once.preparation._prepared) == before + 1


def reports_of(options: dict[str, str], batch_id: int, rows: list[str]) -> list[TaskReport]:
    parsed = SinkOptions.parse(options)
    return write_tasks(parsed, plan_batch(parsed, log), TaskOf("query", batch_id, "run"), rows)


def test_a_decided_batch_is_finished_by_the_next_plan(cluster, topic, options, monkeypatch):
    decide(options, 0, ["a", "b"], monkeypatch)
    assert committed(cluster, topic) == Counter()
    assert all(each.skipped for each in reports_of(options, 0, ["a", "b"]))
    assert committed(cluster, topic) == Counter("ab")


def set_epochs(cluster: EmbeddedClusterThread, sink: str, epoch: int) -> None:
    """Let every transactional id of the sink be at this epoch."""

    def change(brokers: BrokerCluster) -> None:
        for broker in brokers.brokers.values():
            for shard in broker.transactions.shards.loaded():
                for name, transaction in shard.transactions.items():
                    if name.startswith(sink):
                        object.__setattr__(transaction.metadata, "producer_epoch", epoch)

    cluster._call(change)


@pytest.mark.parametrize("epoch", range(32762, 32767))
def test_epochs_roll_over_without_losing_or_doubling_a_row(cluster, topic, options, sink, monkeypatch, epoch):
    """Flink's sink loses rows there (FLINK-40689): the producer id changes with the end of a transaction."""
    run_batch(options, 0, ["0a", "0b"])
    set_epochs(cluster, sink, epoch)
    wanted = ["0a", "0b"]
    for batch_id in range(1, 4):
        rows = [f"{batch_id}a", f"{batch_id}b"]
        wanted += rows
        decide(options, batch_id, rows, monkeypatch)
        assert all(each.skipped for each in run_batch(options, batch_id, rows))
    assert committed(cluster, topic) == Counter(wanted)
