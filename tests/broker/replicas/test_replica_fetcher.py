"""What a follower asks of its leader, and what it makes of the answers; the leader is played by the test."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import pytest

from aioproducer.broker.config import BrokerConfig
from aioproducer.broker.image import BrokerRegistration, PartitionState
from aioproducer.broker.log import Log, LogConfig, MemoryStorage
from aioproducer.broker.replicas import replica_fetcher as replica_fetcher_module
from aioproducer.broker.replicas.partition import Partition
from aioproducer.broker.replicas.replica_fetcher import FETCH_VERSION, LIST_OFFSETS_VERSION, ReplicaFetcher
from aioproducer.errors import (
    BrokerError,
    FencedLeaderEpochError,
    FetchSessionIdNotFoundError,
    InvalidFetchSessionEpochError,
    KafkaStorageError,
    KafkaTimeoutError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    UnknownServerError,
    UnknownTopicIdError,
)
from aioproducer.protocol import decode_request, encode_request
from aioproducer.protocol.messages import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from aioproducer.protocol.messages.fetch import EpochEndOffset, FetchableTopicResponse, PartitionData
from aioproducer.protocol.messages.offsets import ListOffsetsPartitionResponse, ListOffsetsTopicResponse
from tests.broker.replicas.nodes import TOPIC, Nodes, batch

LEADER, FOLLOWER = 1, 2
TOPIC_ID = b"t" * 16


@dataclass
class Leader:
    """Holds each request until the test has answered it."""

    requests: asyncio.Queue[FetchRequest] = field(default_factory=asyncio.Queue)
    answers: asyncio.Queue[FetchResponse | Exception] = field(default_factory=asyncio.Queue)
    offsets: dict[int, int | BrokerError | OSError] = field(default_factory=dict)
    asked_offsets: list[tuple[int, int]] = field(default_factory=list)
    clients: int = 0
    closed: int = 0
    cancelled: int = 0

    async def request(
        self, message: FetchRequest | ListOffsetsRequest, version: int, timeout: float
    ) -> FetchResponse | ListOffsetsResponse:
        # What cannot be encoded could not be sent.
        frame = b"".join(encode_request(message, version, 1, None))
        _, message = decode_request(frame[4:])
        assert timeout == 30.5
        if isinstance(message, ListOffsetsRequest):
            assert version == LIST_OFFSETS_VERSION
            return self._list_offsets(message)
        assert version == FETCH_VERSION
        self.requests.put_nowait(message)
        try:
            answer = await self.answers.get()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        asked = request.topics[0].partitions[0]
        assert request.replica_id == FOLLOWER
        self.asked_offsets.append((asked.timestamp, asked.current_leader_epoch))
        offset = self.offsets[asked.timestamp]
        if isinstance(offset, OSError):
            raise offset
        answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        if isinstance(offset, BrokerError):
            answer.error_code = offset.code
        else:
            answer.offset = offset
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=[answer])])

    def close(self) -> None:
        self.closed += 1


@dataclass
class FakeBroker:
    """What a fetcher sees of its node."""

    leader: Leader
    nodes: Nodes
    config: BrokerConfig = field(default_factory=lambda: BrokerConfig({}))
    node_id: int = FOLLOWER

    @property
    def image(self) -> object:
        return self.nodes.controller.image

    def peer_client(self, node: BrokerRegistration) -> Leader:
        assert node.node_id == LEADER
        self.leader.clients += 1
        return self.leader


class FakeManager:
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.node_id = FOLLOWER
        self.flushed: list[Partition] = []
        self.flush_error: KafkaStorageError | None = None
        self.flush_failed = asyncio.Event()
        # How often the fetcher had something of a log freed.
        self.given_back = 0
        # While this is a time, the clock stands still: no backoff ends, however long the machine stalls.
        self.stopped_at: float | None = None

    def now(self) -> float:
        return asyncio.get_running_loop().time() if self.stopped_at is None else self.stopped_at

    async def flush_log(self, partition: Partition) -> None:
        if self.flush_error is not None:
            self.flush_failed.set()
            raise self.flush_error
        partition.log.flush()
        self.flushed.append(partition)

    def give_back(self) -> None:
        self.given_back += 1


class Scene:
    """A fetcher of three partitions between a played leader and real logs."""

    def __init__(self) -> None:
        self.nodes = Nodes(2)
        self.leader = Leader()
        self.broker = FakeBroker(self.leader, self.nodes)
        self.manager = FakeManager(self.broker)
        self.fetcher = ReplicaFetcher(self.manager, LEADER)  # type: ignore[arg-type]  # the parts that it uses
        self.partitions = [self.partition(index) for index in range(3)]

    def partition(self, index: int, **config: int) -> Partition:
        log = Log.open(
            MemoryStorage(),
            LogConfig(**config),  # type: ignore[arg-type]  # numbers only
            topic=TOPIC,
            partition=index,
            wall_ms=lambda: 1_700_000_000_000,
            clean=True,
        )
        state = PartitionState(TOPIC, TOPIC_ID, index, [1, 2], [1, 2], LEADER, 5, 0)
        partition = Partition(self.nodes.nodes[FOLLOWER], state, log)
        partition.apply(state)
        return partition

    async def asked(self) -> FetchRequest:
        async with asyncio.timeout(10):
            return await self.leader.requests.get()

    def answer(self, *partitions: PartitionData, session_id: int = 7, error: type[BrokerError] | None = None) -> None:
        topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(partitions))] if partitions else []
        self.leader.answers.put_nowait(
            FetchResponse(session_id=session_id, responses=topics, error_code=0 if error is None else error.code)
        )

    async def begin(self, *indexes: int) -> FetchRequest:
        """Fetch these partitions; the first request, which is not answered yet."""
        for index in indexes:
            self.fetcher.add(self.partitions[index])
        self.fetcher.start()
        return await self.asked()


def named(request: FetchRequest) -> dict[int, int]:
    """The partitions in a request and their offsets."""
    return {part.partition: part.fetch_offset for topic in request.topics for part in topic.partitions}


def forgotten(request: FetchRequest) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


def records(index: int, offset: int, *, epoch: int = 5, high_watermark: int = 0) -> PartitionData:
    return PartitionData(
        partition_index=index,
        high_watermark=high_watermark,
        log_start_offset=0,
        records=batch(b"a", base_offset=offset, partition_leader_epoch=epoch),
    )


def failed(index: int, error: type[BrokerError]) -> PartitionData:
    return PartitionData(partition_index=index, error_code=error.code, high_watermark=-1, records=b"")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.fetcher.close()
    await made.fetcher.close()
    assert made.leader.closed == made.leader.clients


async def test_a_fetch_contains_offset_epoch_and_log_start(scene: Scene) -> None:
    scene.partitions[0].append_fetched(batch(b"a", partition_leader_epoch=3), 1, 0)
    request = await scene.begin(0)
    assert request.replica_state.replica_id == FOLLOWER
    assert request.replica_state.replica_epoch == scene.nodes.controller.image.nodes[FOLLOWER].epoch
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 10 * 2**20)
    (topic,) = request.topics
    (part,) = topic.partitions
    assert topic.topic_id == TOPIC_ID
    assert (part.fetch_offset, part.last_fetched_epoch, part.current_leader_epoch) == (1, 3, 5)
    assert (part.log_start_offset, part.partition_max_bytes) == (0, 2**20)


async def test_a_session_names_only_changed_partitions(scene: Scene) -> None:
    request = await scene.begin(0, 1, 2)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert named(request) == {0: 0, 1: 0, 2: 0}
    scene.answer(records(1, 0))
    request = await scene.asked()
    assert (request.session_id, request.session_epoch) == (7, 1)
    assert named(request) == {1: 1}
    assert scene.partitions[1].log_end_offset == 1
    scene.answer(PartitionData(partition_index=1, high_watermark=1, log_start_offset=0, records=b""))
    request = await scene.asked()
    assert (request.session_epoch, named(request)) == (2, {})
    assert scene.partitions[1].high_watermark == 1
    scene.fetcher.touch((TOPIC, 2))
    scene.fetcher.touch((TOPIC, 9))
    scene.answer()
    assert named(await scene.asked()) == {2: 0}
    scene.fetcher.remove((TOPIC, 0))
    scene.answer()
    request = await scene.asked()
    assert (named(request), forgotten(request)) == ({}, [0])


async def test_without_a_session_every_fetch_names_all_partitions(scene: Scene) -> None:
    await scene.begin(0, 1)
    scene.answer(records(0, 0), session_id=0)
    request = await scene.asked()
    assert (request.session_id, request.session_epoch) == (0, 0)
    # A partition that got records is behind the others.
    assert list(named(request).items()) == [(1, 0), (0, 1)]


@pytest.mark.parametrize(("error", "next_id"), [(FetchSessionIdNotFoundError, 0), (InvalidFetchSessionEpochError, 7)])
async def test_an_unknown_session_is_replaced(scene: Scene, error: type[BrokerError], next_id: int) -> None:
    await scene.begin(0, 1)
    scene.answer()
    await scene.asked()
    scene.answer(error=error, session_id=0)
    request = await scene.asked()
    assert (request.session_id, request.session_epoch) == (next_id, 0)
    assert named(request) == {0: 0, 1: 0}


async def test_session_epochs_wrap_around(scene: Scene) -> None:
    await scene.begin(0)
    scene.answer()
    await scene.asked()
    scene.fetcher._session.epoch = 2**31 - 1
    scene.answer()
    assert (await scene.asked()).session_epoch == 1


async def test_a_new_partition_does_not_wait_for_the_end_of_a_long_poll(scene: Scene) -> None:
    await scene.begin(0)
    scene.answer()
    await scene.asked()
    # Twice at once: one more fetch is enough.
    scene.fetcher.add(scene.partitions[1])
    scene.fetcher.add(scene.partitions[2])
    request = await scene.asked()
    assert (request.session_id, request.session_epoch) == (7, 0)
    assert named(request) == {0: 0, 1: 0, 2: 0}
    assert scene.leader.cancelled == 1
    scene.answer(session_id=8)
    request = await scene.asked()
    assert (request.session_id, request.session_epoch) == (8, 1)


async def test_a_response_to_an_outdated_request_is_dropped(scene: Scene) -> None:
    await scene.begin(0, 1, 2)
    scene.fetcher.remove((TOPIC, 0))
    scene.partitions[1].append_fetched(batch(b"other", partition_leader_epoch=5), 0, 0)
    newer = replace(scene.partitions[2].state, leader_epoch=6, partition_epoch=1)
    scene.partitions[2].apply(newer)
    scene.answer(records(0, 0), records(1, 0), records(2, 0))
    await scene.asked()
    assert [partition.log_end_offset for partition in scene.partitions] == [0, 1, 0]


async def test_diverging_records_are_truncated(scene: Scene) -> None:
    for offset in range(3):
        scene.partitions[0].append_fetched(batch(b"a", base_offset=offset, partition_leader_epoch=4), 1, 0)
    await scene.begin(0)
    scene.answer(
        PartitionData(partition_index=0, high_watermark=9, diverging_epoch=EpochEndOffset(epoch=4, end_offset=2))
    )
    request = await scene.asked()
    assert named(request) == {0: 2}
    # Nothing else of that answer is believed.
    assert scene.partitions[0].high_watermark == 1
    assert scene.manager.given_back == 1


async def test_without_leader_epochs_only_committed_records_are_kept(scene: Scene) -> None:
    for offset in range(3):
        scene.partitions[0].append_fetched(batch(b"a", base_offset=offset, partition_leader_epoch=4), 1, 0)
    scene.partitions[0].log.leader_epochs.clear()
    assert named(await scene.begin(0)) == {0: 1}


@pytest.mark.parametrize(
    "error", [FencedLeaderEpochError, NotLeaderOrFollowerError, UnknownTopicIdError, UnknownServerError]
)
async def test_a_partitions_error_delays_only_that_partition(
    scene: Scene, error: type[BrokerError], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await scene.begin(0, 1)
    scene.manager.stopped_at = scene.manager.now()
    scene.answer(failed(0, error), records(1, 0))
    request = await scene.asked()
    assert (named(request), forgotten(request)) == ({1: 1}, [0])
    assert bool(caplog.records) == (error is UnknownServerError)
    scene.manager.stopped_at = None
    while 0 not in named(request):
        scene.answer()
        request = await scene.asked()
    assert named(request) == {0: 0}


async def test_the_fetcher_waits_if_all_partitions_are_delayed(scene: Scene) -> None:
    await scene.begin(0)
    scene.answer(failed(0, NotLeaderOrFollowerError))
    request = await scene.asked()
    assert (request.session_epoch, named(request)) == (0, {0: 0})


async def test_records_that_cannot_be_appended_are_fetched_again(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.begin(0)
    broken = records(0, 0)
    assert isinstance(broken.records, bytearray)
    broken.records[-1] ^= 1
    scene.answer(broken)
    assert named(await scene.asked()) == {0: 0}
    assert "cannot be fetched" in caplog.text
    scene.answer(records(0, 0))
    assert named(await scene.asked()) == {0: 1}


async def test_an_unexpected_error_does_not_stop_the_fetcher(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("a bug")

    await scene.begin(0, 1)
    monkeypatch.setattr(scene.partitions[0], "append_fetched", fail)
    scene.answer(records(0, 0), records(1, 0))
    assert named(await scene.asked()) == {1: 1}
    assert "a bug" in caplog.text
    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr(scene.fetcher, "_apply_response", fail)
        scene.answer()
        await scene.asked()
    assert "a bug" in caplog.text


async def test_an_unreachable_leader_is_retried_and_logged_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    await scene.begin(0)
    for error in (ConnectionRefusedError("refused"), KafkaTimeoutError("too late"), ConnectionResetError("gone")):
        scene.leader.answers.put_nowait(error)
        request = await scene.asked()
        assert named(request) == {0: 0}
        assert request.session_epoch == 0
    assert caplog.text.count("cannot fetch from node 1") == 1
    scene.answer(records(0, 0))
    await scene.asked()
    scene.leader.answers.put_nowait(ConnectionRefusedError("again"))
    await scene.asked()
    assert caplog.text.count("cannot fetch from node 1") == 2


async def test_an_error_of_the_first_fetch_is_retried(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    await scene.begin(0)
    scene.answer(error=UnknownServerError, session_id=0)
    assert named(await scene.asked()) == {0: 0}
    assert "cannot fetch from node 1" in caplog.text


async def test_a_restarted_leader_gets_a_new_connection(scene: Scene) -> None:
    await scene.begin(0)
    scene.nodes.nodes[LEADER].kill()
    scene.nodes.nodes[LEADER].restart()
    scene.leader.answers.put_nowait(ConnectionResetError("gone"))
    await scene.asked()
    assert (scene.leader.clients, scene.leader.closed) == (2, 1)


async def test_the_fetcher_waits_for_the_address_of_its_leader(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    image = scene.nodes.controller.image
    node = image.nodes.pop(LEADER)
    scene.fetcher.add(scene.partitions[0])
    scene.fetcher.start()
    async with asyncio.timeout(10):
        while not caplog.records:  # noqa: ASYNC110  # a log has no event
            await asyncio.sleep(0)
    assert "The address of node 1 is unknown" in caplog.text
    image.nodes[LEADER] = node
    assert named(await scene.asked()) == {0: 0}


@pytest.mark.parametrize(
    ("latest", "earliest", "expected"),
    [
        pytest.param(2, 0, (0, 2), id="the leader lost its end"),
        pytest.param(9, 5, (5, 5), id="the leader deleted its beginning"),
        pytest.param(9, 0, (0, 3), id="it was only a moment"),
    ],
)
async def test_an_offset_out_of_range_is_replaced_by_one_that_the_leader_has(
    scene: Scene, latest: int, earliest: int, expected: tuple[int, int]
) -> None:
    partition = scene.partitions[0]
    for offset in range(3):
        partition.append_fetched(batch(b"a", base_offset=offset, partition_leader_epoch=4), 1, 0)
    scene.leader.offsets = {-1: latest, -2: earliest}
    await scene.begin(0)
    scene.answer(failed(0, OffsetOutOfRangeError))
    assert named(await scene.asked()) == {0: expected[1]}
    assert (partition.log_start_offset, partition.log_end_offset) == expected
    assert scene.leader.asked_offsets == [(-1, 5), (-2, 5)]


@pytest.mark.parametrize("trouble", [NotLeaderOrFollowerError(), ConnectionResetError("gone")])
async def test_an_offset_out_of_range_is_retried_if_the_leader_is_unreachable(
    scene: Scene, trouble: BrokerError | OSError
) -> None:
    scene.leader.offsets = {-1: trouble, -2: 0}
    await scene.begin(0)
    scene.answer(failed(0, OffsetOutOfRangeError))
    await scene.asked()
    assert scene.partitions[0].log_end_offset == 0


async def test_records_are_flushed_before_the_next_fetch_confirms_them(scene: Scene) -> None:
    scene.partitions[0] = scene.partition(0, flush_messages=1)
    await scene.begin(0)
    scene.answer(records(0, 0))
    assert named(await scene.asked()) == {0: 1}
    assert scene.manager.flushed == [scene.partitions[0]]
    scene.manager.flush_error = KafkaStorageError("disk is gone")
    scene.answer(records(0, 1))
    await scene.manager.flush_failed.wait()
    scene.manager.flush_failed.clear()
    await scene.manager.flush_failed.wait()
    assert scene.leader.requests.empty()
    scene.manager.flush_error = None
    assert named(await scene.asked()) == {0: 2}
    assert scene.partitions[0].log.recovery_point == 2


async def test_a_large_response_gives_other_callbacks_a_turn(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_fetcher_module, "LONGEST_TURN", -1.0)
    await scene.begin(0, 1, 2)
    scene.answer(*(records(index, 0) for index in range(3)))
    seen = set()
    while scene.leader.requests.empty():
        seen.add(sum(partition.log_end_offset for partition in scene.partitions))
        await asyncio.sleep(0)
    assert seen >= {1, 2, 3}


async def test_a_fetcher_without_partitions_sends_nothing(scene: Scene) -> None:
    await scene.begin(0)
    scene.fetcher.remove((TOPIC, 0))
    scene.answer()
    for _ in range(10):
        await asyncio.sleep(0)
    assert scene.leader.requests.empty()
    scene.fetcher.add(scene.partitions[1])
    assert named(await scene.asked()) == {1: 0}


@pytest.mark.parametrize("shape", [lambda data: data, lambda data: [data[:30], data[30:]], lambda data: [data]])
async def test_records_in_several_buffers_are_appended(scene: Scene, shape: Callable[[bytearray], object]) -> None:
    await scene.begin(0, 1)
    data = records(0, 0)
    assert isinstance(data.records, bytearray)
    data.records = shape(data.records)  # type: ignore[assignment]  # one of those that records may be
    nothing = PartitionData(partition_index=1, high_watermark=0, log_start_offset=0, records=None)
    scene.answer(data, nothing)
    assert named(await scene.asked()) == {0: 1}
