"""Produce and InitProducerId over the wire."""

from __future__ import annotations

import asyncio
import struct

import pytest

from aioproducer.protocol import encode_request
from aioproducer.protocol.messages import FindCoordinatorRequest, InitProducerIdRequest, ProduceRequest
from aioproducer.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from tests.broker.scene import Scene, a_scene, loop_passes, no_peer
from tests.broker.wire import batch, fetch_request, produce_request, read_values

UNKNOWN_ID = bytes(range(16))
GOOD = batch(b"a", b"b")


def with_magic(magic: int) -> bytes:
    changed = bytearray(GOOD)
    changed[16] = magic
    return bytes(changed)


def with_length(length: int) -> bytes:
    changed = bytearray(GOOD)
    struct.pack_into(">i", changed, 8, length)
    return bytes(changed)


def answers(response: ProduceResponse) -> dict[int, PartitionProduceResponse]:
    return {answer.index: answer for topic in response.responses for answer in topic.partition_responses}


def codes(response: ProduceResponse) -> dict[int, int]:
    return {index: answer.error_code for index, answer in answers(response).items()}


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("acks", [-1, 1])
async def test_batches_are_appended_in_every_version(scene: Scene, version: int, acks: int) -> None:
    topic = scene.topic_id if version >= 13 else "t"
    request = produce_request(topic, {0: GOOD, 2: batch(b"c")}, acks=acks)
    for first in (0, 1):
        response = await scene.ask(request, version)
        assert codes(response) == {0: 0, 2: 0}
        assert {index: answer.base_offset for index, answer in answers(response).items()} == {0: 2 * first, 2: first}
        assert answers(response)[0].log_append_time_ms == -1
        assert answers(response)[0].log_start_offset == (0 if version >= 5 else -1)
    fetched = await scene.ask(fetch_request("t", {0: 0}, version=12), 12)
    assert read_values(fetched.responses[0].partitions[0].records) == [b"a", b"b", b"a", b"b"]


async def test_the_time_of_the_append_is_returned_if_the_topic_stores_it(scene: Scene) -> None:
    scene.cluster.create_topic("stamped", 1, configs={"message.timestamp.type": "LogAppendTime"})
    before = scene.broker().wall_ms()
    answer = answers(await scene.ask(produce_request("stamped", {0: GOOD}), 9))[0]
    assert before <= answer.log_append_time_ms <= scene.broker().wall_ms()


async def test_without_acks_there_is_no_response(scene: Scene) -> None:
    async with await scene.connect() as client:
        await client.send(produce_request("t", {0: GOOD}, acks=0), 9)
        assert codes(await client.call(produce_request("t", {0: GOOD}), 9)) == {0: 0}
    assert scene.partition(0).log_end_offset == 4


async def test_without_acks_an_error_ends_the_connection_after_the_rest_was_appended(scene: Scene) -> None:
    async with await scene.connect() as client:
        await client.send(produce_request("t", {0: GOOD, 9: GOOD}, acks=0), 9)
        assert await client.receive_end() == b""
    assert scene.partition(0).log_end_offset == 2


@pytest.mark.parametrize("acks", [2, -2, 99])
async def test_other_acks_are_refused_for_every_known_partition(scene: Scene, acks: int) -> None:
    response = await scene.ask(produce_request("t", {0: GOOD, 1: GOOD, 9: GOOD, 2: b""}, acks=acks), 9)
    assert codes(response) == {0: 21, 1: 21, 9: 3, 2: 87}
    assert scene.partition(0).log_end_offset == 0


async def test_unknown_topics_and_partitions_have_their_error(scene: Scene) -> None:
    assert codes(await scene.ask(produce_request("none", {0: GOOD}), 12)) == {0: 3}
    assert codes(await scene.ask(produce_request("t", {0: GOOD, 3: GOOD, -1: GOOD}), 12)) == {0: 0, 3: 3, -1: 3}
    response = await scene.ask(produce_request(UNKNOWN_ID, {0: GOOD, 1: GOOD}), 13)
    assert codes(response) == {0: 100, 1: 100}
    assert response.responses[0].topic_id == UNKNOWN_ID
    assert "none" not in scene.cluster.image.topics


@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(b"", 87, id="no batch"),
        pytest.param(GOOD[:-1], 87, id="an incomplete batch alone"),
        pytest.param(GOOD + GOOD, 87, id="two batches"),
        pytest.param(with_magic(0), 87, id="an old format"),
        pytest.param(with_magic(1), 87, id="another old format"),
        pytest.param(GOOD[:-1] + b"x", 2, id="a wrong checksum"),
        pytest.param(GOOD + with_length(3), 2, id="an impossible length behind the batch"),
        pytest.param(GOOD + with_length(-1)[:13], 2, id="an impossible length at the end"),
        pytest.param(GOOD + with_magic(9), 2, id="an unknown format behind the batch"),
    ],
)
async def test_a_partition_without_exactly_one_batch_fails_alone(scene: Scene, records: bytes, code: int) -> None:
    response = await scene.ask(produce_request("t", {0: records, 1: GOOD}), 9)
    assert codes(response) == {0: code, 1: 0}
    answer = answers(response)[0]
    # As in Kafka there is a text only if single records are invalid.
    assert (answer.base_offset, answer.log_start_offset, answer.error_message) == (-1, -1, None)
    assert scene.partition(0).log_end_offset == 0


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (with_magic(9), "Invalid magic found in record: 9"),
        (with_magic(255), "Invalid magic found in record: -1"),
        (with_length(5), "Record size 5 is less than the minimum record overhead (14)"),
        (with_length(-1), "Record size -1 is less than the minimum record overhead (14)"),
    ],
)
async def test_impossible_batches_fail_the_whole_request(scene: Scene, records: bytes, text: str) -> None:
    response = await scene.ask(produce_request("t", {0: records, 1: GOOD}), 9)
    assert {(answer.error_code, answer.error_message) for answer in answers(response).values()} == {(2, text)}
    assert scene.partition(1).log_end_offset == 0


async def test_null_records_have_an_error(scene: Scene) -> None:
    assert codes(await scene.ask(produce_request("t", {0: None, 1: GOOD}), 9)) == {0: -1, 1: -1}


@pytest.mark.parametrize("size", [5, 13, 40])
async def test_an_incomplete_batch_behind_a_whole_one_is_dropped(scene: Scene, size: int) -> None:
    assert codes(await scene.ask(produce_request("t", {0: GOOD + GOOD[:size]}), 9)) == {0: 0}
    assert scene.partition(0).log_end_offset == 2
    assert codes(await scene.ask(produce_request("t", {0: GOOD}), 9)) == {0: 0}


@pytest.mark.parametrize(("version", "code"), [(6, 76), (7, 0)])
async def test_zstd_needs_a_version_that_has_it(scene: Scene, version: int, code: int) -> None:
    request = produce_request("t", {0: batch(b"a", compression_type="zstd")})
    assert codes(await scene.ask(request, version)) == {0: code}


async def test_invalid_single_records_are_returned(scene: Scene) -> None:
    scene.cluster.create_topic("strict", 1, configs={"message.timestamp.after.max.ms": "1000"})
    request = produce_request("strict", {0: batch(b"a", b"b", timestamp=99_999_999_999_999)})
    answer = answers(await scene.ask(request, 9))[0]
    assert (answer.error_code, answer.log_start_offset) == (32, 0)
    assert answer.error_message == "One or more records have been rejected due to invalid timestamp"
    assert answer.record_errors
    assert "is out of range" in str(answer.record_errors[0].batch_index_error_message)
    answer = answers(await scene.ask(request, 7))[0]
    assert (answer.error_code, answer.record_errors) == (32, [])


async def test_clients_may_not_write_to_internal_topics(scene: Scene) -> None:
    await scene.ask(FindCoordinatorRequest(key="g"), 3)
    request = produce_request("__consumer_offsets", {0: batch(b"v", key=b"k")})
    assert codes(await scene.ask(request, 9)) == {0: 17}
    async with await scene.connect(client_id="__admin_client") as client:
        assert codes(await client.call(request, 9)) == {0: 0}


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize(
    ("first", "last", "code"),
    [(batch(b"first"), batch(b"last"), 0), (GOOD + GOOD, batch(b"last"), 0), (batch(b"first"), GOOD + GOOD, 87)],
    ids=["both good", "the first one bad", "the last one bad"],
)
async def test_of_two_batches_for_one_partition_the_last_counts_and_is_answered_alone(
    scene: Scene, version: int, first: bytes, last: bytes, code: int
) -> None:
    topic = scene.topic_id if version >= 13 else "t"
    await scene.write(0, b"before")
    request = produce_request(topic, {0: first})
    request.topic_data[0].partition_data += produce_request(topic, {0: last}).topic_data[0].partition_data
    response = await scene.ask(request, version)
    assert [
        (answer.index, answer.error_code, answer.base_offset)
        for topic_response in response.responses
        for answer in topic_response.partition_responses
    ] == [(0, code, -1 if code else 1)]
    fetched = await scene.ask(fetch_request("t", {0: 0}, version=12), 12)
    # A batch that was answered with an error is not stored.
    assert read_values(fetched.responses[0].partitions[0].records) == [b"before"] + [b"last"] * (code == 0)


@pytest.mark.parametrize("version", [9, 13])
async def test_a_repeated_topic_is_answered_once(scene: Scene, version: int) -> None:
    topic: str | bytes = scene.topic_id if version >= 13 else "t"
    unknown: str | bytes = UNKNOWN_ID if version >= 13 else "unknown"
    request = produce_request(topic, {0: GOOD})
    for again in (produce_request(unknown, {0: GOOD}), produce_request(topic, {1: GOOD, 0: batch(b"last")})):
        request.topic_data += again.topic_data
    request.topic_data += produce_request(unknown, {3: GOOD}).topic_data
    response = await scene.ask(request, version)
    code = 100 if version >= 13 else 3
    assert [
        [(answer.index, answer.error_code, answer.base_offset) for answer in found.partition_responses]
        for found in response.responses
    ] == [[(0, 0, 0), (1, 0, 0)], [(0, code, -1), (3, code, -1)]]
    assert [scene.partition(index).log_end_offset for index in (0, 1)] == [1, 2]
    # The same if the request fails as a whole.
    request.topic_data += produce_request(topic, {1: with_length(5)}).topic_data
    response = await scene.ask(request, version)
    assert [
        [(answer.index, answer.error_code) for answer in found.partition_responses] for found in response.responses
    ] == [[(0, 2), (1, 2)], [(0, 2), (3, 2)]]


async def test_the_text_for_a_compacted_topic_is_that_of_kafka(scene: Scene) -> None:
    scene.cluster.create_topic("compacted", 1, configs={"cleanup.policy": "compact"})
    answer = answers(await scene.ask(produce_request("compacted", {0: batch(b"a")}), 9))[0]
    message = "Compacted topic cannot accept message without key in topic partition compacted-0"
    assert answer.error_message == (
        "One or more records have been rejected due to 1 record errors in total, and only showing the first three "
        f"errors at most: [RecordError(batchIndex=0, message='{message}')]"
    )


async def test_a_request_without_topics(scene: Scene) -> None:
    assert (await scene.ask(ProduceRequest(acks=-1, timeout_ms=100), 9)).responses == []


# Transactions and idempotence


@pytest.mark.parametrize("version", range(6))
async def test_every_idempotent_producer_gets_its_own_id(version: int) -> None:
    async with a_scene(2) as scene:
        ids = set()
        for node_id in (1, 2, 1):
            response = await scene.ask(InitProducerIdRequest(transactional_id=None), version, node_id)
            assert (response.error_code, response.producer_epoch) == (0, 0)
            ids.add(response.producer_id)
        assert len(ids) == 3


async def test_an_idempotent_producer_that_states_its_id_gets_another_one(scene: Scene) -> None:
    """As in Kafka, where only transactional producers keep theirs."""
    first = await scene.ask(InitProducerIdRequest(transactional_id=None), 4)
    again = InitProducerIdRequest(transactional_id=None, producer_id=first.producer_id, producer_epoch=3)
    second = await scene.ask(again, 4)
    assert (second.error_code, second.producer_epoch) == (0, 0)
    assert second.producer_id != first.producer_id


@pytest.mark.parametrize(
    "request_",
    [
        InitProducerIdRequest(transactional_id=""),
        InitProducerIdRequest(transactional_id=None, producer_id=5),
        InitProducerIdRequest(transactional_id=None, producer_epoch=5),
    ],
)
async def test_half_a_producer_id_is_refused(scene: Scene, request_: InitProducerIdRequest) -> None:
    response = await scene.ask(request_, 4)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (42, -1, -1)


async def test_a_duplicate_is_answered_with_its_first_offset(scene: Scene) -> None:
    producer_id = (await scene.ask(InitProducerIdRequest(transactional_id=None), 4)).producer_id

    async def produce(sequence: int) -> PartitionProduceResponse:
        records = batch(b"a", producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        return answers(await scene.ask(produce_request("t", {0: records}), 9))[0]

    assert [(await produce(sequence)).base_offset for sequence in (0, 1, 0, 1)] == [0, 1, 0, 1]
    assert (await produce(5)).error_code == 45
    assert scene.partition(0).log_end_offset == 2


# Several nodes


@pytest.mark.parametrize("version", [9, 10, 13])
async def test_another_node_returns_the_leader(version: int) -> None:
    async with a_scene(3) as scene:
        leader = scene.leader(0)
        other = leader % 3 + 1
        topic = scene.topic_id if version >= 13 else "t"
        response = await scene.ask(produce_request(topic, {0: GOOD}), version, other)
        answer = answers(response)[0]
        assert answer.error_code == 6
        if version >= 10:
            assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (leader, 0)
            [endpoint] = response.node_endpoints
            node = scene.cluster.image.nodes[leader]
            assert (endpoint.node_id, endpoint.host, endpoint.port) == (leader, node.host, node.port)
        else:
            assert (answer.current_leader.leader_id, response.node_endpoints) == (-1, [])


async def test_a_dead_leader_has_no_address() -> None:
    async with a_scene(2) as scene:
        scene.cluster.create_topic("alone", assignments={0: [2]})
        await scene.cluster.kill(2)
        response = await scene.ask(produce_request("alone", {0: GOOD}), 10)
        assert codes(response) == {0: 6}
        assert (answers(response)[0].current_leader.leader_id, response.node_endpoints) == (-1, [])


async def test_all_in_sync_replicas_have_acknowledged_records() -> None:
    async with a_scene(3) as scene:
        await scene.write(0, b"a", b"b")
        assert scene.partition(0).high_watermark == 2
        assert [scene.partition(0, node).log_end_offset for node in (1, 2, 3)] == [2, 2, 2]


async def test_too_few_in_sync_replicas_are_an_error() -> None:
    async with a_scene(2, min__insync__replicas="2") as scene:
        other = scene.leader(0) % 2 + 1
        await scene.cluster.kill(other)
        leader = scene.leader(0)
        assert codes(await scene.ask(produce_request("t", {0: GOOD}), 9, leader)) == {0: 19}
        assert codes(await scene.ask(produce_request("t", {0: GOOD}, acks=1), 9, leader)) == {0: 0}


async def test_slow_replicas_time_the_request_out() -> None:
    async with a_scene(2) as scene:
        # The follower makes no progress while its fetches are cut.
        scene.faults.disconnect("Fetch", "before", None)
        await loop_passes()
        for first in (0, 2):
            response = await scene.ask(produce_request("t", {0: GOOD}, timeout_ms=50), 9, scene.leader(0))
            assert codes(response) == {0: 7}
            # The response contains the batch's offset anyway.
            answer = answers(response)[0]
            assert (answer.base_offset, answer.log_start_offset, answer.log_append_time_ms) == (first, 0, -1)


async def test_a_leader_change_ends_the_wait_for_replicas() -> None:
    async with a_scene(2) as scene:
        leader = scene.leader(0)
        await scene.write(0, b"a", b"b")
        # The follower is disconnected before it knows that this is committed, so the next batch cannot be.
        scene.faults.disconnect("Fetch", "before", None)
        await loop_passes()
        asked = asyncio.create_task(scene.answered(produce_request("t", {0: GOOD}, timeout_ms=60_000), 10, leader))
        await loop_passes()
        assert not asked.done()
        scene.cluster.controller.elect_leader("t", 0, leader % 2 + 1)
        answer = answers(await asked)[0]
        assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (6, 2, 0)
        assert answer.current_leader.leader_id == leader % 2 + 1


async def test_a_request_that_is_cancelled_leaves_nothing_behind() -> None:
    async with a_scene(2) as scene:
        scene.faults.disconnect("Fetch", "before", None)
        await loop_passes()
        leader = scene.leader(0)
        asked = scene.answering(produce_request("t", {0: GOOD}, timeout_ms=60_000), 9, leader)
        await loop_passes()
        assert scene.partition(0).watcher_count == 1
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert scene.partition(0).watcher_count == 0


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_one_node_answers_without_yielding(scene: Scene, acks: int) -> None:
    frame = memoryview(bytearray(b"".join(encode_request(produce_request("t", {0: GOOD}, acks=acks), 9, 7, "c"))[4:]))
    answering = scene.broker().requests.answer(no_peer(), frame)
    with pytest.raises(StopIteration) as answered:
        answering.send(None)
    assert bool(answered.value.value.buffers) is bool(acks)
    assert scene.partition(0).log_end_offset == 2
