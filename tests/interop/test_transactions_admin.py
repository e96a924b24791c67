"""Admin calls, commands and internals about transactions, against Apache Kafka and the embedded broker.

In both generations of the protocol.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid

import pytest

from aioproducer import Producer
from aioproducer.admin import Admin
from aioproducer.cli import main
from aioproducer.consumer.partition_log import AbortedTransaction, fetch_of_producer, find_marker
from aioproducer.errors import InvalidProducerEpochError, ProducerFencedError, UnsupportedVersionError, error_class
from aioproducer.record import TopicPartition
from tests.kafka.cluster import KafkaCluster
from tests.kafka.in_process import InProcessCluster

Cluster = KafkaCluster | InProcessCluster

pytestmark = pytest.mark.timeout(120)

INVALID_TXN_STATE, PRODUCER_FENCED, ID_NOT_FOUND = 48, 90, 105

# Sends one record in a transaction that it leaves open, prints a line, and waits to be killed.
STUCK = """
    import asyncio, sys
    from aioproducer import Producer

    async def main():
        servers, transactional_id, topic = sys.argv[1:]
        async with Producer(bootstrap_servers=servers, transactional_id=transactional_id) as producer:
            await producer.begin_transaction()
            await producer.send(topic, b"stuck", partition=0)
            print("open", flush=True)
            await asyncio.sleep(3600)

    asyncio.run(main())
"""


@pytest.fixture(
    params=["one_node", "one_node_with_old_transactions", "one_embedded", "one_embedded_with_old_transactions"]
)
def kafka(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def generation(request: pytest.FixtureRequest) -> int:
    return 1 if request.node.callspec.params["kafka"].endswith("with_old_transactions") else 2


@pytest.fixture
def transactional_id() -> str:
    return f"id-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def made(kafka: Cluster, topic: str) -> str:
    return kafka.create_topic(topic, 2)


def admin_of(kafka: Cluster) -> Admin:
    return Admin(bootstrap_servers=kafka.bootstrap_servers, timeout=20)


def leave_stuck(kafka: Cluster, transactional_id: str, topic: str) -> None:
    """Let a process begin a transaction, and kill it."""
    command = [sys.executable, "-c", textwrap.dedent(STUCK), kafka.bootstrap_servers, transactional_id, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        process.kill()


async def last_stable_offset(admin: Admin, topic: str) -> int:
    return (await fetch_of_producer(admin, TopicPartition(topic, 0), 0, -1)).last_stable_offset


async def until_stable(admin: Admin, topic: str, offset: int) -> None:
    async with asyncio.timeout(20):
        while await last_stable_offset(admin, topic) < offset:  # noqa: ASYNC110  # it is in another process
            await asyncio.sleep(0.02)


def test_a_stuck_transaction_is_listed_described_and_aborted_by_commands(
    kafka, made, transactional_id, monkeypatch, capfd
):
    monkeypatch.setenv("AIOPRODUCER_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return code, *capfd.readouterr()

    leave_stuck(kafka, transactional_id, made)
    code, out, _ = call("transactions", "list", "--open-for", 0, "--pattern", f"{transactional_id}.*", "--json")
    (listed,) = json.loads(out)
    assert (code, listed["transactional_id"], listed["state"]) == (0, transactional_id, "Ongoing")
    assert transactional_id in call("transactions", "list", "--state", "Ongoing")[1]
    assert transactional_id not in call("transactions", "list", "--open-for", 3600)[1]
    (described,) = json.loads(call("transactions", "describe", transactional_id, "--json")[1])
    assert described["partitions"] == [{"topic": made, "partition": 0}]
    assert described["producer_id"] == listed["producer_id"]
    assert abs(described["start_time_ms"] / 1000 - time.time()) < 60
    (producer,) = json.loads(call("transactions", "describe", "--partition", f"{made}:0", "--json")[1])
    assert (producer["producer_id"], producer["transaction_start_offset"]) == (listed["producer_id"], 0)

    partition = ["--partition", f"{made}:0", "--producer-id", listed["producer_id"]]
    code, _, error = call("transactions", "abort", *partition)
    assert (code, f"'aioproducer transactions abort {transactional_id}'" in error) == (1, True)
    assert call("transactions", "abort", transactional_id) == (0, "", "")
    (described,) = json.loads(call("transactions", "describe", transactional_id, "--json")[1])
    assert described["state"] in ("CompleteAbort", "Empty")
    code, _, error = call("transactions", "abort", *partition)
    assert (code, "has no open transaction in" in error) == (1, True)
    code, _, error = call("transactions", "abort", f"{transactional_id}-nope")
    assert (code, "check the spelling" in error) == (1, True)


async def test_a_transaction_can_be_ended_repeatedly_by_saved_facts(kafka, made, transactional_id, generation):
    async with admin_of(kafka) as admin:
        leave_stuck(kafka, transactional_id, made)
        (facts,) = await admin.describe_transactions([transactional_id])
        arguments = transactional_id, facts.producer_id, facts.producer_epoch
        answers = [
            await admin.end_transaction(*arguments, commit=True, transaction_version=generation) for _ in range(3)
        ]
        assert len(set(answers)) == 1
        if generation == 2:
            assert answers[0] is not None
            assert answers[0].producer_epoch == facts.producer_epoch + 1
        else:
            assert answers[0] is None
        with pytest.raises(error_class(INVALID_TXN_STATE), match="The log decides"):
            await admin.end_transaction(*arguments, commit=False, transaction_version=generation)
        await until_stable(admin, made, 2)
        marker = await find_marker(admin, TopicPartition(made, 0), 0, facts.producer_id)
        assert marker is not None
        assert (marker.committed, marker.offset) == (True, 1)
        fenced = await admin.fence_producers([transactional_id])
        assert fenced[transactional_id].producer_epoch > facts.producer_epoch
        with pytest.raises(error_class(PRODUCER_FENCED)):
            await admin.end_transaction(*arguments, commit=True, transaction_version=generation)


async def test_a_marker_ends_the_transaction_in_one_partition(kafka, made, transactional_id):
    async with admin_of(kafka) as admin:
        leave_stuck(kafka, transactional_id, made)
        where = TopicPartition(made, 0)
        (producer,) = (await admin.describe_producers([where]))[where]
        await admin.abort_transaction(where, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)
        (after,) = (await admin.describe_producers([where]))[where]
        assert (after.producer_id, after.transaction_start_offset) == (producer.producer_id, None)
        fetched = await fetch_of_producer(admin, where, 0, producer.producer_id)
        assert fetched.aborted == (AbortedTransaction(producer.producer_id, 0),)
        assert [(each.offset, each.committed) for each in fetched.markers] == [(1, False)]
        assert [each.base_offset for each in fetched.batches] == [0]
        await admin.fence_producers([transactional_id])


async def test_a_fenced_producer_fails_and_its_transaction_is_aborted(kafka, made, transactional_id):
    async with admin_of(kafka) as admin:
        producer = Producer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=transactional_id)
        await producer.start()
        await producer.begin_transaction()
        await producer.send(made, b"1", partition=0)
        assert set(await admin.fence_producers([transactional_id])) == {transactional_id}
        with pytest.raises(ProducerFencedError):
            await producer.commit_transaction()
        await producer.close()
        (described,) = await admin.describe_transactions([transactional_id])
        assert described.topic_partitions == frozenset()
        await until_stable(admin, made, 2)
        fetched = await fetch_of_producer(admin, TopicPartition(made, 0), 0, -1)
        assert [each.first_offset for each in fetched.aborted] == [0]


async def test_an_unknown_id_is_reported(kafka):
    async with admin_of(kafka) as admin:
        with pytest.raises(error_class(ID_NOT_FOUND), match="'nobody'"):
            await admin.describe_transactions(["nobody"])


async def test_another_process_ends_a_transaction_and_continues(kafka, made, transactional_id, generation):
    settings = {"bootstrap_servers": kafka.bootstrap_servers, "transactional_id": transactional_id}
    async with Producer(**settings, batch_size=200) as producer:
        calls = producer._transactional_calls()
        calls.gather_facts()
        async with producer.transaction() as transaction:
            for number in range(40):
                transaction.send(made, b"x" * 50, partition=number % 2)
            facts = await calls.leave_open()
        assert facts.transaction_version == generation
        assert {where: each.record_count for where, each in facts.partitions.items()} == {
            TopicPartition(made, 0): 20,
            TopicPartition(made, 1): 20,
        }
    async with admin_of(kafka) as admin:
        (described,) = await admin.describe_transactions([transactional_id])
        assert (described.state, described.producer_id) == ("Ongoing", facts.producer_id)
        for where, each in facts.partitions.items():
            fetched = await fetch_of_producer(admin, where, each.first_offset, facts.producer_id, committed=False)
            assert sum(batch.record_count for batch in fetched.batches) == each.record_count
            assert await find_marker(admin, where, each.last_offset, facts.producer_id) is None
        following = await admin.end_transaction(
            transactional_id,
            facts.producer_id,
            facts.producer_epoch,
            commit=True,
            transaction_version=facts.transaction_version,
        )
        async with Producer(**settings) as second:
            calls = second._transactional_calls()
            if following is None:
                await calls.resume(facts.producer_id, facts.producer_epoch)
                await calls.new_epoch()
            else:
                await calls.resume(following.producer_id, following.producer_epoch)
            async with second.transaction() as transaction:
                transaction.send(made, b"y", partition=0)
            assert await transaction.outcome() == "committed"
        for where, each in facts.partitions.items():
            marker = await find_marker(admin, where, each.last_offset, facts.producer_id)
            assert marker is not None
            assert marker.committed


async def test_a_resumed_producer_that_was_replaced_is_fenced(kafka, made, transactional_id):
    settings = {"bootstrap_servers": kafka.bootstrap_servers, "transactional_id": transactional_id}
    async with admin_of(kafka) as admin:
        (first,) = (await admin.fence_producers([transactional_id])).values()
        await admin.fence_producers([transactional_id])
        async with Producer(**settings) as producer:
            calls = producer._transactional_calls()
            await calls.resume(first.producer_id, first.producer_epoch)
            with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
                async with producer.transaction() as transaction:
                    transaction.send(made, b"z", partition=0)
            with pytest.raises(ProducerFencedError):
                await producer.begin_transaction()


@pytest.mark.parametrize(
    ("input_", "code", "outcome"),
    [(b"1\n2\n3\n", 0, "committed"), (b"1\n" + b"x" * 2_000_000 + b"\n", 1, "aborted"), (b"", 0, "committed")],
    ids=["all", "too-large", "empty"],
)
def test_a_file_is_committed_completely_or_not_at_all(kafka, made, transactional_id, tmp_path, input_, code, outcome):
    (tmp_path / "rows").write_bytes(input_)
    ended = _produce(kafka, made, transactional_id, str(tmp_path / "rows"))
    assert (ended.returncode, json.loads(ended.stdout)["transaction"]) == (code, outcome), ended.stderr


def test_a_signal_aborts_the_transaction(kafka, made, transactional_id):
    command = _command(kafka, made, transactional_id, "-")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"1\n")
        process.stdin.flush()
        asyncio.run(_wait_for_records(kafka, made, 1))
        process.send_signal(signal.SIGINT)
        # The input stays open: its end would commit.
        out, error = process.stdout.read(), process.stderr.read()
    assert process.returncode == 128 + signal.SIGINT, error
    assert json.loads(out)["transaction"] == "aborted"
    assert b"interrupted: 1 record was accepted; aborting the transaction" in error


async def _wait_for_records(kafka: Cluster, topic: str, count: int) -> None:
    async with admin_of(kafka) as admin, asyncio.timeout(30):
        while sum((await admin.list_offsets(topic, {0: "latest", 1: "latest"})).values()) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _command(kafka: Cluster, topic: str, transactional_id: str, file: str) -> list[str]:
    return [
        *(sys.executable, "-m", "aioproducer", "produce", topic, file),
        *("--transaction", "--transactional-id", transactional_id, "--json", "-q"),
        *("--bootstrap-server", kafka.bootstrap_servers),
    ]


def _produce(kafka: Cluster, topic: str, transactional_id: str, file: str) -> subprocess.CompletedProcess[bytes]:
    command = _command(kafka, topic, transactional_id, file)
    return subprocess.run(command, capture_output=True, timeout=60, env=dict(os.environ), check=False)


async def test_a_transaction_can_be_ended_after_its_coordinator_is_killed(
    three_brokers: Cluster, topic: str, transactional_id: str
) -> None:
    three_brokers.create_topic(topic, 3)
    leave_stuck(three_brokers, transactional_id, topic)
    async with Admin(bootstrap_servers=three_brokers.bootstrap_servers, timeout=60) as admin:
        (facts,) = await admin.describe_transactions([transactional_id])
        three_brokers.kill(facts.coordinator)
        try:
            ended = [
                await admin.end_transaction(
                    transactional_id, facts.producer_id, facts.producer_epoch, commit=True, transaction_version=2
                )
                for _ in range(2)
            ]
            (described,) = await admin.describe_transactions([transactional_id])
        finally:
            await asyncio.to_thread(three_brokers.restart, facts.coordinator)
        assert ended[0] is not None
        assert ended[0] == ended[1]
        assert described.coordinator != facts.coordinator
        (listed,) = await admin.list_transactions(pattern=transactional_id)
        assert listed.producer_id == facts.producer_id
        await until_stable(admin, topic, 2)
        where = [TopicPartition(topic, partition) for partition in range(3)]
        producers = await admin.describe_producers(where)
        assert [len(producers[each]) for each in where] == [1, 0, 0]
    await asyncio.to_thread(three_brokers.wait_in_sync, topic)


async def test_old_brokers_list_all_ids_and_the_client_selects(
    old_broker: KafkaCluster, topic: str, transactional_id: str
) -> None:
    old_broker.create_topic(topic, 1)
    leave_stuck(old_broker, transactional_id, topic)
    async with admin_of(old_broker) as admin:
        (listed,) = await admin.list_transactions(pattern=f"{transactional_id[:-1]}.")
        assert await admin.list_transactions(pattern=transactional_id[:-1]) == []
        with pytest.raises(UnsupportedVersionError):
            await admin.list_transactions(duration_ms=1)
        (facts,) = await admin.describe_transactions([transactional_id])
        assert (listed.producer_id, listed.state) == (facts.producer_id, "Ongoing")
        with pytest.raises(UnsupportedVersionError):
            await admin.end_transaction(
                transactional_id, facts.producer_id, facts.producer_epoch, commit=True, transaction_version=2
            )
        for _ in range(2):
            await admin.end_transaction(
                transactional_id, facts.producer_id, facts.producer_epoch, commit=True, transaction_version=1
            )
