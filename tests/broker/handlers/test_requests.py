"""From a frame to its response: refused and answered requests, and injected faults on the wire."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Iterator

import pytest

from aioproducer.broker.handlers import HANDLERS
from aioproducer.broker.handlers.context import Handler, RequestContext
from aioproducer.broker.handlers.error_responses import error_response
from aioproducer.broker.handlers.requests import Requests
from aioproducer.errors import InvalidRequestError, NotLeaderOrFollowerError, UnknownServerError
from aioproducer.protocol import (
    APIS,
    ApiKey,
    Message,
    Request,
    Response,
    decode,
    decode_response,
    encode,
    encode_request,
)
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from aioproducer.protocol.messages.group_offsets import OffsetFetchRequestGroup
from aioproducer.protocol.messages.metadata import MetadataRequestTopic
from aioproducer.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsTopic
from aioproducer.protocol.messages.topics import CreatableTopic, DeleteTopicState
from aioproducer.protocol.schema import STRING, Field
from tests.broker.scene import Scene, a_scene, no_peer
from tests.broker.wire import batch, fetch_request, produce_request


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with a_scene() as scene:
        yield scene


def frame(api_key: int, version: int, rest: bytes = b"") -> bytes:
    """A request with a header of version 1, correlation id 7 and no client id."""
    body = struct.pack(">hhih", api_key, version, 7, -1) + rest
    return struct.pack(">i", len(body)) + body


def metadata(version: int = 12, *names: str) -> bytes:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    return b"".join(encode_request(request, version, 7, "c"))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(ApiKey.PRODUCE, 2), id="a version that is said but not served"),
        pytest.param(frame(ApiKey.METADATA, 99), id="a version that nobody knows"),
        pytest.param(frame(ApiKey.METADATA, -1), id="a negative version"),
        pytest.param(frame(999, 0), id="an unknown request"),
        pytest.param(frame(ApiKey.END_TXN, 3), id="a request that is not served"),
        pytest.param(struct.pack(">i", 3) + b"abc", id="no header"),
        pytest.param(metadata()[:3] + bytes([metadata()[3] - 3]) + metadata()[4:-3], id="a body that is cut off"),
    ],
)
async def test_an_unsupported_request_ends_the_connection(scene: Scene, sent: bytes) -> None:
    async with await scene.connect() as client, await scene.connect() as other:
        await client.send_bytes(sent)
        assert await client.receive_end() == b""
        assert (await other.call(MetadataRequest(topics=[]), 12)).controller_id == 1


async def test_bytes_behind_a_request_are_ignored(scene: Scene) -> None:
    async with await scene.connect() as client:
        whole = metadata() + b"more"
        await client.send_bytes(struct.pack(">i", len(whole) - 4) + whole[4:])
        correlation_id, _ = await client.receive(MetadataRequest, 12)
        assert correlation_id == 7


@pytest.mark.parametrize("version", [6, 99, -3, 2**15 - 1])
async def test_api_versions_of_any_version_is_answered(scene: Scene, version: int) -> None:
    async with await scene.connect() as client:
        await client.send_bytes(frame(ApiKey.API_VERSIONS, version, b"\0whatever follows"))
        correlation_id, response = await client.receive(ApiVersionsRequest, 0)
        assert (correlation_id, response.error_code) == (7, 35)
        assert [(api.api_key, api.min_version, api.max_version) for api in response.api_keys] == [(18, 0, 5)]
        assert (await client.call(ApiVersionsRequest(), 0)).error_code == 0


def test_served_requests_can_be_encoded_and_decoded() -> None:
    for key, handler in HANDLERS.items():
        assert set(handler.versions) <= set(APIS[key].versions), key.name


@pytest.mark.parametrize("key", HANDLERS, ids=lambda key: key.name)
async def test_every_version_of_every_request_is_answered(scene: Scene, key: ApiKey) -> None:
    """With default fields, which make no sense for some: the responses can be decoded, and the broker continues."""
    request_class = APIS[key].request
    for version in HANDLERS[key].versions:
        async with await scene.connect() as client:
            response = await client.call(_plain(request_class), version)
            assert isinstance(response, APIS[key].response)


def _plain(request_class: type[Request[Response]]) -> Request[Response]:
    values: dict[str, object] = {"acks": -1, "topics": [], "timeout_ms": 100}
    names = request_class.schema.names
    return request_class(**{name: value for name, value in values.items() if name in names})


# Errors in a handler


def raising(error: BaseException) -> Handler:
    async def handle(context: RequestContext, request: Request[Response]) -> Response:
        raise error

    return Handler(range(14), handle)


async def answer_with(scene: Scene, handler: Handler, sent: Request[Response], version: int) -> tuple[bytes, bool]:
    """Return the response of ``handler`` to the request, and whether the connection ends."""
    broker = scene.cluster.brokers[1]
    key = ApiKey(sent.schema.api_key)
    requests = Requests(broker, {key: handler})
    received = memoryview(b"".join(encode_request(sent, version, 7, "c")))[4:]
    reply = await requests.answer(no_peer(), received)
    return b"".join(reply.buffers), reply.close


async def test_an_unexpected_exception_is_answered_in_the_shape_of_the_response_and_logged(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=5, timestamp=-1)])],
    )
    with caplog.at_level(logging.ERROR):
        answer, closes = await answer_with(scene, raising(RuntimeError("boom")), request, 4)
    _, response = decode_response(type(request).response_class(), 4, answer[4:])
    [partition] = response.topics[0].partitions
    assert (partition.partition_index, partition.error_code, partition.offset) == (5, UnknownServerError.code, -1)
    assert not closes
    [record] = [record for record in caplog.records if record.exc_info]
    assert "ListOffsetsRequest of version 4 from no peer failed" in record.getMessage()


async def test_an_unexpected_exception_without_an_expected_response_ends_the_connection(scene: Scene) -> None:
    request = produce_request("t", {0: batch(b"v")}, acks=0)
    assert await answer_with(scene, raising(RuntimeError("boom")), request, 9) == (b"", True)


async def test_an_error_of_kafka_is_answered_without_a_log_line(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    answer, closes = await answer_with(
        scene, raising(InvalidRequestError("no")), HeartbeatRequest(group_id="g", member_id="m"), 4
    )
    assert struct.unpack(">h", answer[-3:-1]) == (42,)
    assert not closes
    assert not caplog.records


async def test_a_response_that_cannot_be_encoded_is_an_error_too(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(context: RequestContext, request: Request[Response]) -> Response:
        response = HeartbeatRequest.response_class()()
        response.throttle_time_ms = 2**40
        return response

    answer, closes = await answer_with(scene, Handler(range(5), handle), HeartbeatRequest(group_id="g"), 1)
    assert struct.unpack(">h", answer[-2:]) == (-1,)
    assert not closes
    assert caplog.records


async def test_cancellation_is_not_answered(scene: Scene) -> None:
    with pytest.raises(asyncio.CancelledError):
        await answer_with(scene, raising(asyncio.CancelledError()), HeartbeatRequest(group_id="g"), 1)


# Faults


async def test_an_injected_error_is_at_each_partition_of_produce_and_nothing_is_written(scene: Scene) -> None:
    scene.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER")
    async with await scene.connect() as client:
        request = produce_request("t", {0: batch(b"v"), 1: batch(b"w")})
        [topic] = (await client.call(request, 9)).responses
        assert [(part.index, part.error_code, part.base_offset) for part in topic.partition_responses] == [
            (0, 6, -1),
            (1, 6, -1),
        ]
        [topic] = (await client.call(request, 9)).responses
        assert [(part.error_code, part.base_offset) for part in topic.partition_responses] == [(0, 0), (0, 0)]


@pytest.mark.parametrize("version", [9, 13])
async def test_an_error_of_one_partition_leaves_the_others_alone(scene: Scene, version: int) -> None:
    scene.faults.fail("Produce", 19, topic="t", partition=1)
    async with await scene.connect() as client:
        request = produce_request(scene.topic_id if version >= 13 else "t", {0: batch(b"v"), 1: batch(b"w")})
        [topic] = (await client.call(request, version)).responses
        assert {part.index: part.error_code for part in topic.partition_responses} == {0: 0, 1: 19}
    assert scene.faults.unmet() == []


async def test_an_error_without_acks_ends_the_connection(scene: Scene) -> None:
    scene.faults.fail("Produce", 6, topic="t", partition=0)
    async with await scene.connect() as client:
        await client.send(produce_request("t", {0: batch(b"v"), 1: batch(b"w")}, acks=0), 9)
        assert await client.receive_end() == b""


async def test_errors_of_topics_are_at_topics(scene: Scene) -> None:
    scene.faults.fail("Metadata", "LEADER_NOT_AVAILABLE", topic="t")
    scene.faults.fail("CreateTopics", "POLICY_VIOLATION", topic="b")
    scene.faults.fail("DeleteTopics", 29, 2)
    async with await scene.connect() as client:
        [topic] = (await client.call(MetadataRequest(topics=None), 12)).topics
        assert (topic.name, topic.error_code) == ("t", 5)
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in "ab"]
        )
        created = await client.call(request, 5)
        assert {topic.name: topic.error_code for topic in created.topics} == {"a": 0, "b": 44}
        deleted = await client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=100), 6)
        assert [(topic.name, topic.error_code) for topic in deleted.responses] == [("a", 29)]
        deleted = await client.call(DeleteTopicsRequest(topic_names=["a"], timeout_ms=100), 4)
        assert [(topic.name, topic.error_code) for topic in deleted.responses] == [("a", 29)]
    assert "a" in scene.cluster.image.topics


async def test_an_error_of_a_partition_in_metadata(scene: Scene) -> None:
    scene.faults.fail("Metadata", 5, topic="t", partition=2)
    async with await scene.connect() as client:
        [topic] = (await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)).topics
        assert [partition.error_code for partition in topic.partitions] == [0, 0, 5]


async def test_an_injected_error_applies_to_an_unknown_topic(scene: Scene) -> None:
    scene.faults.fail("Metadata", 29, topic="none")
    async with await scene.connect() as client:
        [topic] = (await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="none")]), 12)).topics
        assert topic.error_code == 29
    assert "none" not in scene.cluster.image.topics


async def test_errors_of_fetch_are_at_partitions_except_those_of_sessions(scene: Scene) -> None:
    async with await scene.connect() as client:
        scene.faults.fail("Fetch", 1, topic="t", partition=1)
        asked = fetch_request(scene.topic_id, {0: 0, 1: 0}, max_wait_ms=60_000)
        [topic] = (await client.call(asked, 18)).responses
        assert [(part.partition_index, part.error_code) for part in topic.partitions] == [(0, 0), (1, 1)]
        scene.faults.fail("Fetch", "FETCH_SESSION_ID_NOT_FOUND")
        response = await client.call(asked, 18)
        assert (response.error_code, response.responses) == (70, [])


async def test_errors_of_other_requests_are_where_clients_expect_them(scene: Scene) -> None:
    for api in ("InitProducerId", "FindCoordinator", "OffsetFetch"):
        scene.faults.fail(api, "COORDINATOR_NOT_AVAILABLE", 2)
    async with await scene.connect() as client:
        assert (await client.call(InitProducerIdRequest(transactional_id=None), 4)).error_code == 15
        old = await client.call(FindCoordinatorRequest(key="g"), 3)
        assert (old.error_code, old.node_id, old.port) == (15, -1, -1)
        [new] = (await client.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4)).coordinators
        assert (new.key, new.error_code) == ("g", 15)
        assert (await client.call(OffsetFetchRequest(group_id="g", topics=None), 7)).error_code == 15
        groups = [OffsetFetchRequestGroup(group_id="g", topics=None)]
        [group] = (await client.call(OffsetFetchRequest(groups=groups), 8)).groups
        assert (group.group_id, group.error_code) == ("g", 15)


async def written(scene: Scene) -> int:
    """The number of records in partition 0."""
    return scene.cluster.brokers[1].replicas.partitions["t", 0].log_end_offset


@pytest.mark.parametrize(("when", "records"), [("before", 0), ("after", 1), ("half", 1)])
async def test_an_injected_disconnection_ends_the_connection(scene: Scene, when: str, records: int) -> None:
    scene.faults.disconnect("Produce", when)
    async with await scene.connect() as client:
        await client.send(produce_request("t", {0: batch(b"v")}), 9)
        received = await client.receive_end()
    assert await written(scene) == records
    async with await scene.connect() as client:
        await client.send(produce_request("t", {1: batch(b"v")}), 9)
        whole = await client.receive_frame()
    assert len(received) == ((len(whole) + 4) // 2 if when == "half" else 0)


async def test_an_injected_disconnection_works_without_an_expected_response(scene: Scene) -> None:
    scene.faults.disconnect("Produce", "half")
    async with await scene.connect() as client:
        await client.send(produce_request("t", {0: batch(b"v")}, acks=0), 9)
        assert await client.receive_end() == b""
    assert await written(scene) == 1


async def test_a_delayed_request_is_processed_at_once_and_answered_later(scene: Scene) -> None:
    scene.faults.delay("Produce", 40)
    loop = asyncio.get_running_loop()
    async with await scene.connect() as client:
        begin = loop.time()
        await client.send(produce_request("t", {0: batch(b"v")}), 9)
        await client.receive_frame()
        # uvloop counts whole milliseconds, from the start of its pass.
        assert loop.time() - begin > 0.035
        begin = loop.time()


async def test_a_throttled_client_receives_the_time_and_its_next_request_waits(scene: Scene) -> None:
    scene.faults.throttle("Metadata", 50)
    loop = asyncio.get_running_loop()
    async with await scene.connect() as client:
        # The broker begins to throttle before the client has the response.
        begin = loop.time()
        assert (await client.call(MetadataRequest(topics=[]), 12)).throttle_time_ms == 50
        assert (await client.call(MetadataRequest(topics=[]), 12)).throttle_time_ms == 0
        # uvloop counts whole milliseconds, from the start of its pass.
        assert loop.time() - begin > 0.045


async def test_faults_of_one_kind_leave_the_others_alone(scene: Scene) -> None:
    scene.faults.delay("Produce", 1)
    scene.faults.fail("Produce", 6, topic="other")
    async with await scene.connect() as client:
        [topic] = (await client.call(produce_request("t", {0: batch(b"v")}), 9)).responses
        assert topic.partition_responses[0].error_code == 0
    assert [str(rule) for rule in scene.faults.unmet()] == [
        "Produce of other: NOT_LEADER_OR_FOLLOWER, 1 more times, met 0 times"
    ]


async def test_every_error_response_can_be_decoded(scene: Scene) -> None:
    """``call`` raises if the response has another version or cannot be decoded."""
    requests: dict[type[Request[Response]], Request[Response]] = {
        ProduceRequest: produce_request("t", {0: batch(b"v")}),
        FetchRequest: fetch_request("t", {0: 0}, version=12),
    }
    for key, handler in HANDLERS.items():
        scene.faults.clear()
        scene.faults.fail(key.name, 6, None)
        request_class = APIS[key].request
        for version in handler.versions:
            if request_class in requests and version > 12:
                continue
            async with await scene.connect() as client:
                await client.call(requests.get(request_class, _plain(request_class)), version)


@pytest.mark.parametrize("key", HANDLERS, ids=lambda key: key.name)
def test_an_error_has_a_field_in_every_version_of_every_response(key: ApiKey) -> None:
    """For a request with one element of everything, each response has the error once, and can be decoded."""
    request_class = APIS[key].request
    for version in HANDLERS[key].versions:
        request = decode(request_class, version, b"".join(encode(_with_one_of_each(request_class, version), version)))
        response = error_response(request, version, NotLeaderOrFollowerError("moved"))
        assert response is not None
        read = decode(APIS[key].response, version, b"".join(encode(response, version)))
        assert list(_error_codes(read)).count(NotLeaderOrFollowerError.code) >= 1, version


def _with_one_of_each(message_class: type[Message], version: int) -> Message:
    """Return a message with one element in each of its arrays, if the version has them."""
    values: dict[str, object] = {}
    for field in message_class.schema.fields:
        if version not in field.versions:
            continue
        if isinstance(field.element, type):
            element = _with_one_of_each(field.element, version)
            values[field.name] = [element] if field.is_array else element
        elif field.is_array:
            values[field.name] = ["name" if field.element is STRING else 0]
        elif field.name == "acks":
            values[field.name] = -1
    message = message_class.__new__(message_class)
    for field in message_class.schema.fields:
        setattr(message, field.name, values.get(field.name, _blank(field)))
    return message


def _blank(field: Field) -> object:
    default = field.make_default()
    if default is not None or field.nullable:
        return default
    return "" if field.element is STRING else 0


def _error_codes(message: Message) -> Iterator[int]:
    for field in message.schema.fields:
        value = getattr(message, field.name)
        if field.name in ("error_code", "partition_error_code"):
            yield value
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Message):
                yield from _error_codes(part)
