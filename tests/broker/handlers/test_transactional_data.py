"""Transactional batches over the wire: producing, fetching, and the description of their producers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from aioproducer.errors import TransactionCoordinatorFencedError
from aioproducer.protocol.messages import DescribeProducersRequest, ListOffsetsRequest
from aioproducer.protocol.messages.fetch import PartitionData
from aioproducer.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsTopic
from aioproducer.protocol.messages.produce import PartitionProduceResponse
from aioproducer.protocol.messages.transactions import PartitionResponse, TopicRequest
from tests.broker.scene import Scene, a_scene, loop_passes
from tests.broker.verifier import Verifier
from tests.broker.wire import batch, fetch_request, produce_request, read_values

PRODUCER = 7000
NOW = 1_700_000_000_000

(
    NETWORK,
    LOADING,
    NOT_AVAILABLE,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER,
    INVALID_EPOCH,
    INVALID_STATE,
    CONCURRENT,
) = 13, 14, 15, 16, 19, 45, 47, 48, 51
FENCED, ABORTABLE = 90, 120


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """One node with logs that do not roll, although markers have today's time and records another one."""
    async with a_scene(log__roll__ms=10**15) as scene:
        yield scene


def serve(scene: Scene, *codes: int | Mapping[int, int]) -> Verifier:
    verifier = Verifier(*codes)
    for broker in scene.cluster.brokers.values():
        broker.transactions.add_or_verify = verifier.add_or_verify  # type: ignore[method-assign]
    return verifier


def of_transaction(*values: bytes, sequence: int = 0, epoch: int = 0, producer_id: int = PRODUCER) -> bytes:
    return batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True)


async def produce(
    scene: Scene, batches: dict[int, bytes | None], version: int = 12, node_id: int = 1
) -> dict[int, PartitionProduceResponse]:
    topic = scene.topic_id if version >= 13 else "t"
    request = produce_request(topic, batches, transactional_id="id")
    response = await scene.ask(request, version, node_id)
    return {answer.index: answer for each in response.responses for answer in each.partition_responses}


async def produce_code(scene: Scene, records: bytes, version: int = 12) -> int:
    return (await produce(scene, {0: records}, version))[0].error_code


def end(scene: Scene, index: int = 0, *, committed: bool = True, epoch: int = 1, version: int = 2) -> int:
    info = scene.partition(index).append_marker(
        PRODUCER, epoch, committed=committed, coordinator_epoch=0, transaction_version=version
    )
    return info.first_offset


async def read(scene: Scene, offset: int = 0, *, committed: bool = True, version: int = 12) -> PartitionData:
    topic = scene.topic_id if version >= 13 else "t"
    request = fetch_request(topic, {0: offset}, isolation_level=int(committed), version=version)
    [answer] = (await scene.ask(request, version)).responses[0].partitions
    return answer


# Produce


@pytest.mark.parametrize("version", [3, 8, 11, 12, 13])
async def test_a_transaction_is_verified_by_its_first_batch_in_a_partition(scene: Scene, version: int) -> None:
    verifier = serve(scene)
    answers = await produce(scene, {0: of_transaction(b"a"), 1: of_transaction(b"b"), 2: batch(b"c")}, version)
    assert {index: answer.error_code for index, answer in answers.items()} == {0: 0, 1: 0, 2: 0}
    assert verifier.asked == [("id", PRODUCER, 0, (("t", 0), ("t", 1)), version < 12)]
    assert await produce_code(scene, of_transaction(b"d", sequence=1), version) == 0
    assert len(verifier.asked) == 1


async def test_a_transaction_is_verified_again_after_its_marker(scene: Scene) -> None:
    verifier = serve(scene)
    assert await produce_code(scene, of_transaction(b"a")) == 0
    end(scene)
    assert await produce_code(scene, of_transaction(b"b", sequence=1)) == INVALID_EPOCH
    assert await produce_code(scene, of_transaction(b"b", epoch=1)) == 0
    assert [each[2] for each in verifier.asked] == [0, 1]


async def test_transactional_batches_need_a_transactional_id(scene: Scene) -> None:
    serve(scene)
    response = await scene.ask(produce_request("t", {0: of_transaction(b"a"), 1: batch(b"b")}), 9)
    assert [each.error_code for each in response.responses[0].partition_responses] == [53, 53]
    assert scene.partition(1).log_end_offset == 0


async def test_batches_of_two_producers_are_refused_as_a_whole(scene: Scene) -> None:
    verifier = serve(scene)
    answers = await produce(scene, {0: of_transaction(b"a"), 1: of_transaction(b"b", epoch=1)})
    assert {answer.error_code for answer in answers.values()} == {49}
    assert (verifier.asked, scene.partition(0).log_end_offset) == ([], 0)


@pytest.mark.parametrize(
    ("code", "answers"),
    [
        # In versions up to 10, in 11, from 12 on.
        (INVALID_STATE, (INVALID_STATE, INVALID_STATE, INVALID_STATE)),
        (ABORTABLE, (INVALID_STATE, ABORTABLE, ABORTABLE)),
        (FENCED, (INVALID_EPOCH, INVALID_EPOCH, INVALID_EPOCH)),
        (INVALID_EPOCH, (INVALID_EPOCH, INVALID_EPOCH, INVALID_EPOCH)),
        (CONCURRENT, (NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS, 0)),
        (NETWORK, (NOT_ENOUGH_REPLICAS,) * 3),
        (LOADING, (NOT_ENOUGH_REPLICAS,) * 3),
        (NOT_AVAILABLE, (NOT_ENOUGH_REPLICAS,) * 3),
        (NOT_COORDINATOR, (NOT_ENOUGH_REPLICAS,) * 3),
        (49, (49, 49, 49)),
    ],
)
async def test_errors_of_the_coordinator_are_translated_for_older_clients(
    scene: Scene, code: int, answers: tuple[int, int, int]
) -> None:
    for version, expected in zip((10, 11, 12), answers, strict=True):
        serve(scene, {0: code})
        found = await produce(scene, {0: of_transaction(b"a"), 2: batch(b"b")}, version)
        assert (found[0].error_code, found[2].error_code) == (expected, 0)
        if expected:
            assert (found[0].base_offset, found[0].log_start_offset) == (-1, -1)
        if expected == INVALID_STATE:
            assert found[0].error_message == "Partition was not added to the transaction"
        if expected == NOT_ENOUGH_REPLICAS:
            assert "Unable to verify the partition has been added to the transaction" in (found[0].error_message or "")


async def test_a_transaction_that_is_ending_is_awaited_for_a_while() -> None:
    async with a_scene(add__partitions__to__txn__retry__backoff__ms=1) as scene:
        verifier = serve(scene, CONCURRENT, CONCURRENT)
        assert await produce_code(scene, of_transaction(b"a")) == 0
        assert len(verifier.asked) == 3


async def test_a_transaction_that_does_not_end_is_answered_as_concurrent() -> None:
    async with a_scene(
        add__partitions__to__txn__retry__backoff__ms=1, add__partitions__to__txn__retry__backoff__max__ms=5
    ) as scene:
        serve(scene, *[CONCURRENT] * 1000)
        assert await produce_code(scene, of_transaction(b"a")) == CONCURRENT


async def test_a_marker_during_verification_refuses_the_batch(scene: Scene) -> None:
    """The verified transaction has ended, so the batch would begin one that has no end."""
    verifier = serve(scene)
    verifier.meanwhile = lambda: end(scene, epoch=0, version=1)
    assert await produce_code(scene, of_transaction(b"a"), 11) == INVALID_STATE
    verifier.meanwhile = lambda: None
    assert await produce_code(scene, of_transaction(b"a"), 11) == 0


async def test_verification_can_be_switched_off_for_older_clients() -> None:
    async with a_scene(transaction__partition__verification__enable=False) as scene:
        verifier = serve(scene)
        assert await produce_code(scene, of_transaction(b"a"), 11) == 0
        assert verifier.asked == []
        end(scene, epoch=0, version=1)
        assert await produce_code(scene, of_transaction(b"b", sequence=1), 12) == 0
        assert len(verifier.asked) == 1


async def test_a_producer_with_an_open_transaction_writes_nothing_outside_of_it(scene: Scene) -> None:
    serve(scene)
    assert await produce_code(scene, of_transaction(b"a")) == 0
    plain = batch(b"b", producer_id=PRODUCER, producer_epoch=0, base_sequence=1)
    assert await produce_code(scene, plain) == INVALID_STATE


async def test_partitions_led_elsewhere_are_not_verified() -> None:
    async with a_scene(2) as scene:
        verifier = serve(scene)
        other = next(index for index in range(3) if scene.leader(index) != 1)
        mine = next(index for index in range(3) if scene.leader(index) == 1)
        answers = await produce(scene, {other: of_transaction(b"a"), mine: of_transaction(b"b")})
        assert (answers[other].error_code, answers[mine].error_code) == (6, 0)
        assert [each[3] for each in verifier.asked] == [(("t", mine),)]


# Fetch and ListOffsets


async def test_readers_of_committed_records_read_up_to_the_last_stable_offset(scene: Scene) -> None:
    serve(scene)
    await scene.write(0, b"plain")
    await produce_code(scene, of_transaction(b"a", b"b"))
    await scene.write(0, b"behind")
    answer = await read(scene)
    assert read_values(answer.records) == [b"plain"]
    assert (answer.last_stable_offset, answer.high_watermark, answer.aborted_transactions) == (1, 4, [])
    answer = await read(scene, committed=False)
    assert read_values(answer.records) == [b"plain", b"a", b"b", b"behind"]
    assert (answer.last_stable_offset, answer.aborted_transactions) == (1, None)
    assert len(read_values((await read(scene, 1)).records)) == 0
    end(scene)
    answer = await read(scene)
    assert answer.last_stable_offset == answer.high_watermark == 5
    assert read_values(answer.records)[:-1] == [b"plain", b"a", b"b", b"behind"]


@pytest.mark.parametrize("version", [4, 11, 12, 18])
async def test_aborted_transactions_are_listed_to_readers_of_committed_records(scene: Scene, version: int) -> None:
    serve(scene)
    await produce_code(scene, of_transaction(b"a", b"b"))
    end(scene, committed=False)
    await produce_code(scene, of_transaction(b"c", epoch=1))
    end(scene, epoch=2)
    await produce_code(scene, of_transaction(b"d", epoch=2))
    end(scene, epoch=3, committed=False)

    async def listed(offset: int) -> list[tuple[int, int]]:
        found = (await read(scene, offset, version=version)).aborted_transactions
        assert found is not None
        return [(each.producer_id, each.first_offset) for each in found]

    assert await listed(0) == [(PRODUCER, 0), (PRODUCER, 5)]
    assert await listed(2) == [(PRODUCER, 0), (PRODUCER, 5)]
    assert await listed(3) == [(PRODUCER, 5)]
    assert await listed(7) == []
    assert (await read(scene, committed=False, version=version)).aborted_transactions is None


@pytest.mark.parametrize("committed", [True, False])
async def test_a_waiting_reader_of_committed_records_wakes_when_the_transaction_ends(
    scene: Scene, committed: bool
) -> None:
    serve(scene)
    await produce_code(scene, of_transaction(b"a"))
    request = fetch_request("t", {0: 0}, isolation_level=1, max_wait_ms=60_000)
    waiting = scene.answering(request, 12)
    await scene.write(0, b"behind")
    await loop_passes()
    assert not waiting.done()
    end(scene, committed=committed)
    await asyncio.wait_for(waiting, 5)
    answer = (await scene.answered(request, 12)).responses[0].partitions[0]
    assert [bool(answer.aborted_transactions)] == [not committed]
    assert answer.last_stable_offset == 3


async def test_a_transaction_is_stable_once_its_marker_is_replicated() -> None:
    async with a_scene(2, replica__fetch__wait__max__ms=50) as scene:
        serve(scene)
        leader = scene.leader(0)
        answers = await produce(scene, {0: of_transaction(b"a")}, node_id=leader)
        assert answers[0].error_code == 0
        partition, follower = scene.partition(0), scene.partition(0, 3 - leader)
        assert partition.last_stable_offset == 0
        offset = end(scene, committed=False)
        assert (partition.log_end_offset, partition.last_stable_offset) == (offset + 1, 0)
        async with asyncio.timeout(10):
            while follower.last_stable_offset != offset + 1:
                assert partition.last_stable_offset <= partition.high_watermark
                assert follower.last_stable_offset <= follower.high_watermark
                await asyncio.sleep(0.01)
        assert partition.last_stable_offset == offset + 1
        [aborted] = follower.log.read_committed(0, 1000, up_to=2, min_one_batch=True)[1]
        assert aborted == (PRODUCER, 0, 1, 2)


@pytest.mark.parametrize("version", [2, 7, 11])
async def test_the_end_for_readers_of_committed_records_is_the_last_stable_offset(scene: Scene, version: int) -> None:
    serve(scene)
    await scene.write(0, b"plain", timestamp=NOW)
    await produce_code(scene, of_transaction(b"a"))
    await scene.write(0, b"behind", timestamp=NOW + 50)

    async def offset(timestamp: int, level: int) -> int:
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topic = ListOffsetsTopic(name="t", partitions=[partition])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=[topic])
        return (await scene.ask(request, version)).topics[0].partitions[0].offset

    assert [await offset(-1, level) for level in (0, 1)] == [3, 1]
    assert [await offset(NOW, level) for level in (0, 1)] == [0, 0]
    assert [await offset(NOW + 50, level) for level in (0, 1)] == [2, -1]
    if version >= 7:
        assert [await offset(-3, level) for level in (0, 1)] == [2, -1]
    end(scene)
    assert [await offset(-1, level) for level in (0, 1)] == [4, 4]


async def test_deleting_records_moves_the_last_stable_offset(scene: Scene) -> None:
    serve(scene)
    await produce_code(scene, of_transaction(b"a", b"b"))
    partition = scene.partition(0)
    partition.delete_records(1)
    assert partition.last_stable_offset == 1
    end(scene, committed=False)
    answer = await read(scene, 1)
    assert answer.last_stable_offset == 3
    assert [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()] == [(PRODUCER, 0)]


async def test_a_marker_of_a_replaced_coordinator_is_refused(scene: Scene) -> None:
    serve(scene)
    partition = scene.partition(0)
    partition.append_marker(PRODUCER, 0, committed=True, coordinator_epoch=2, transaction_version=1)
    with pytest.raises(TransactionCoordinatorFencedError):
        partition.append_marker(PRODUCER, 0, committed=True, coordinator_epoch=1, transaction_version=1)
    assert partition.replicated(1)


# DescribeProducers


async def described(scene: Scene, topic: str, *indexes: int, node_id: int = 1) -> list[PartitionResponse]:
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=list(indexes))])
    [answer] = (await scene.ask(request, 0, node_id)).topics
    assert answer.name == topic
    return answer.partitions


async def test_producers_are_described_with_their_transactions(scene: Scene) -> None:
    serve(scene)
    await produce_code(scene, batch(b"p", producer_id=1, producer_epoch=4, base_sequence=9, timestamp=NOW))
    await produce_code(scene, of_transaction(b"a", b"b"))
    found = {each.producer_id: each for each in (await described(scene, "t", 0))[0].active_producers}
    plain, transactional = found[1], found[PRODUCER]
    assert (plain.producer_epoch, plain.last_sequence, plain.last_timestamp) == (4, 9, NOW)
    assert (plain.coordinator_epoch, plain.current_txn_start_offset) == (-1, -1)
    assert (transactional.last_sequence, transactional.last_timestamp) == (1, NOW + 1)
    assert (transactional.coordinator_epoch, transactional.current_txn_start_offset) == (-1, 1)
    end(scene)
    [ended] = [each for each in (await described(scene, "t", 0))[0].active_producers if each.producer_id == PRODUCER]
    assert (ended.producer_epoch, ended.last_sequence, ended.current_txn_start_offset) == (1, -1, -1)
    assert ended.coordinator_epoch == 0


async def test_producers_of_unknown_partitions_are_not_described(scene: Scene) -> None:
    known, unknown = await described(scene, "t", 1, 9)
    assert (known.error_code, known.active_producers) == (0, [])
    assert (unknown.error_code, unknown.active_producers) == (3, [])
    assert [each.error_code for each in await described(scene, "absent", 0)] == [3]
    [invalid] = await described(scene, "not/valid", 0)
    assert invalid.error_code == 17
    assert "not/valid" in (invalid.error_message or "")


async def test_followers_describe_producers_too() -> None:
    async with a_scene(2) as scene:
        assert [each.error_code for each in await described(scene, "t", 0, node_id=1)] == [0]
        assert [each.error_code for each in await described(scene, "t", 0, node_id=2)] == [0]
