"""TxnOffsetCommit, and other group requests during pending offsets, have Apache Kafka's responses."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import pytest

from aioproducer.broker import BrokerCluster
from aioproducer.broker.groups.records import OffsetRecord, decode_record
from aioproducer.broker.server.peer import PeerClient
from aioproducer.protocol import Request, Response
from aioproducer.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    DeleteGroupsRequest,
    EndTxnRequest,
    EndTxnResponse,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    MetadataRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from aioproducer.protocol.messages.fetch import FetchPartition, FetchTopic
from aioproducer.protocol.messages.group_offsets import (
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from aioproducer.protocol.messages.groups import JoinGroupRequestProtocol, SyncGroupRequestAssignment
from aioproducer.protocol.messages.metadata import MetadataRequestTopic
from aioproducer.protocol.messages.transactions import TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic
from aioproducer.transport.stream import StreamConnector
from aioproducer.wire.record_batch import RecordBatch, iter_batches
from tests.kafka.cluster import KafkaCluster

pytestmark = [
    pytest.mark.interop,
]

TIMEOUT = 30.0
CONCURRENT_TRANSACTIONS, UNSTABLE_OFFSET_COMMIT = 51, 88
GROUP, TRANSACTION = 0, 1
UNKNOWN_TOPIC_ID = b"\1" * 16

ResponseT = TypeVar("ResponseT", bound=Response)
AnswerT = TypeVar("AnswerT", AddOffsetsToTxnResponse, EndTxnResponse)


def comparable(response: object) -> str:
    """Return the response without the id of the topic, which varies."""
    return re.sub(r"topic_id=(?!(00|01){16})[0-9a-f]{32}", "topic_id=TOPIC", repr(response))


class Judged:
    """A cluster, and its responses."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, port = bootstrap_servers.split(":")
        self.client = PeerClient(StreamConnector(), host, int(port), client_id="judge")
        self.topic_id = b""
        self.answers: list[str] = []

    async def ask(self, request: Request[ResponseT], version: int) -> ResponseT:
        return await self.client.request(request, version, TIMEOUT)

    async def judge(self, name: str, request: Request[Response], version: int) -> None:
        self.answers.append(f"{name}, version {version}: {comparable(await self.ask(request, version))}")

    async def judge_complete(self, name: str, request: TxnOffsetCommitRequest, version: int) -> None:
        """Judge the response after the last transaction: before its markers are written the broker says "not yet"."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                answer = await self.ask(request, version)
                if answer.topics[0].partitions[0].error_code != CONCURRENT_TRANSACTIONS:
                    break
                await asyncio.sleep(0.01)
        self.answers.append(f"{name}, version {version}: {comparable(answer)}")

    async def begin(self) -> None:
        """Wait until there are coordinators of groups and of transactions."""
        for key_type in (GROUP, TRANSACTION):
            await self._until_no_error(FindCoordinatorRequest(key_type=key_type, key="id"), 3)
        await self._until_no_error(OffsetFetchRequest(group_id="id", topics=None), 7)
        topics = [MetadataRequestTopic(name="t")]
        self.topic_id = (await self.ask(MetadataRequest(topics=topics), 12)).topics[0].topic_id

    async def _until_no_error(self, request: Request[ResponseT], version: int) -> ResponseT:
        async with asyncio.timeout(TIMEOUT):
            while True:
                answer = await self.ask(request, version)
                if not getattr(answer, "error_code", 0):
                    return answer
                await asyncio.sleep(0.05)

    async def stable(self, group_id: str) -> None:
        """Wait until the group has no pending offset: markers are written after the response to EndTxn."""
        topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])
        request = OffsetFetchRequest(group_id=group_id, topics=[topic], require_stable=True)
        async with asyncio.timeout(TIMEOUT):
            while True:
                [answer] = (await self.ask(request, 7)).topics
                if all(part.error_code != UNSTABLE_OFFSET_COMMIT for part in answer.partitions):
                    return
                await asyncio.sleep(0.01)


class Producer:
    """A transactional producer."""

    def __init__(self, judged: Judged, transactional_id: str) -> None:
        self._judged = judged
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1

    async def init(self) -> Producer:
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=60_000)
        answer = await self._judged._until_no_error(request, 5)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return self

    def commit(
        self,
        group_id: str,
        offset: int = 5,
        *partitions: int,
        topic: str = "t",
        topic_id: bytes | None = None,
        metadata: str | None = "m",
        member: tuple[int, str, str | None] = (-1, "", None),
        **changes: object,
    ) -> TxnOffsetCommitRequest:
        parts = [
            TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_leader_epoch=2, committed_metadata=metadata
            )
            for index in partitions or (0,)
        ]
        known = self._judged.topic_id if topic_id is None else topic_id
        fields: dict[str, object] = {
            "transactional_id": self.transactional_id,
            "group_id": group_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "topics": [TxnOffsetCommitRequestTopic(name=topic, topic_id=known, partitions=parts)],
        }
        if member != (-1, "", None):
            fields["generation_id_or_member_epoch"], fields["member_id"], fields["group_instance_id"] = member
        return TxnOffsetCommitRequest(**{**fields, **changes})  # type: ignore[arg-type]  # the fields by name

    async def add(self, group_id: str) -> None:
        """Send AddOffsetsToTxn, which the first generation needs."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group_id,
        )
        await self._final_response(request, 4)

    async def end(self, version: int, *, commit: bool, group_id: str) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = await self._final_response(request, version)
        if version >= 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        await self._judged.stable(group_id)

    async def _final_response(self, request: Request[AnswerT], version: int) -> AnswerT:
        async with asyncio.timeout(TIMEOUT):
            while True:
                answer = await self._judged.ask(request, version)
                if answer.error_code != CONCURRENT_TRANSACTIONS:
                    assert answer.error_code == 0, answer
                    return answer
                await asyncio.sleep(0.01)


async def fetched(judged: Judged, name: str, group_id: str) -> None:
    """Request the group's offsets, in versions with ``require_stable`` and without it."""
    named = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1, 9])]
    for topics in (named, None):
        for stable in (True, False):
            request = OffsetFetchRequest(group_id=group_id, topics=topics, require_stable=stable)
            await judged.judge(name, request, 7)
    for version in (8, 9, 10):
        wanted = [OffsetFetchRequestTopics(name="t", topic_id=judged.topic_id, partition_indexes=[0, 1, 9])]
        for topics_of in (wanted, None):
            groups = [OffsetFetchRequestGroup(group_id=group_id, topics=topics_of)]
            await judged.judge(name, OffsetFetchRequest(groups=groups, require_stable=True), version)


async def generations(judged: Judged) -> None:
    """Transactions in every version, of the producers that use it."""
    for version in range(7):
        group_id = f"version {version}"
        producer = await Producer(judged, f"id {version}").init()
        end_version = 4 if version < 5 else 5
        if version < 5:
            await judged.judge("not added", producer.commit(group_id), version)
        for offset, commit in ((5, True), (6, False), (7, True)):
            if version < 5:
                await producer.add(group_id)
            await judged.judge("added", producer.commit(group_id, offset, 0, 1), version)
            await judged.judge("again", producer.commit(group_id, offset, 1), version)
            await fetched(judged, f"pending of {version}", group_id)
            await producer.end(end_version, commit=commit, group_id=group_id)
            await fetched(judged, f"ended, {commit}", group_id)


async def refusals(judged: Judged) -> None:
    """Commits that are refused, by the transaction or by their content."""
    producer = await Producer(judged, "refused").init()
    for version in (1, 3, 4, 5, 6):
        if version < 5:
            await producer.add("r")
        wrong = {
            "other producer id": {"producer_id": producer.producer_id + 1000},
            "newer epoch": {"producer_epoch": producer.epoch + 5},
            "unknown transactional id": {"transactional_id": "nobody"},
        }
        for name, changes in wrong.items():
            await judged.judge(name, producer.commit("r", **changes), version)
        await judged.judge("no group", producer.commit(""), version)
        await judged.judge("no partition", producer.commit("r", 5, 9, 0), version)
        await judged.judge("no topic", producer.commit("r", topic="u", topic_id=UNKNOWN_TOPIC_ID), version)
        await judged.judge("long metadata", producer.commit("r", metadata="x" * 5000), version)
        await judged.judge("no metadata", producer.commit("r", metadata=None), version)
        older = producer.commit("r")
        await producer.end(4 if version < 5 else 5, commit=True, group_id="r")
        if version >= 5:
            await judged.judge("older epoch", older, version)
        else:
            await judged.judge_complete("after the end", older, version)


async def members(judged: Judged) -> None:
    """Commits of members, and of others, to a group with a static member."""
    producer = await Producer(judged, "member").init()
    for version in (3, 4, 5, 6):
        if version < 5:
            await producer.add("g")
        await judged.judge("no group", producer.commit("none", member=(3, "m", None)), version)
    await producer.end(5, commit=False, group_id="g")
    joined = [await judged.ask(join, 9) for join in [_join()] * 2]
    first, second = joined
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=second.generation_id,
        member_id=second.member_id,
        group_instance_id="one",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=second.member_id, assignment=b"")],
    )
    await judged.judge("sync", sync, 5)
    generation = second.generation_id
    for version in (2, 3, 4, 5, 6):
        if version < 5:
            await producer.add("g")
        await judged.judge("no member", producer.commit("g"), version)
        if version > 2:
            for name, member in {
                "the member": (generation, second.member_id, "one"),
                "without instance": (generation, second.member_id, None),
                "other generation": (generation + 1, second.member_id, "one"),
                "no generation": (-1, second.member_id, "one"),
                "replaced": (generation, first.member_id, "one"),
                "unknown member": (generation, "nobody", None),
                "unknown instance": (generation, second.member_id, "two"),
                "generation alone": (generation, "", None),
            }.items():
                await judged.judge(name, producer.commit("g", member=member), version)
    await producer.end(5, commit=True, group_id="g")


def _join() -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        group_instance_id="one",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"x")],
    )


async def deletions(judged: Judged) -> None:
    """Groups and offsets that are deleted while offsets are pending."""
    producer = await Producer(judged, "deleted").init()
    await judged.judge("commit", producer.commit("d", 5, 0, 1), 5)
    topic = OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    await judged.judge("delete an offset", OffsetDeleteRequest(group_id="d", topics=[topic]), 0)
    await fetched(judged, "one deleted", "d")
    await producer.end(5, commit=True, group_id="d")
    await fetched(judged, "one deleted, ended", "d")
    await judged.judge("commit", producer.commit("d", 6, 0, 1), 5)
    await judged.judge("delete a group", DeleteGroupsRequest(groups_names=["d"]), 3)
    await judged.judge("delete it again", DeleteGroupsRequest(groups_names=["d"]), 3)
    await fetched(judged, "group deleted", "d")
    await producer.end(5, commit=True, group_id="d")
    await fetched(judged, "group deleted, ended", "d")


async def written(judged: Judged) -> None:
    """Return the batches and markers of transactions in ``__consumer_offsets``."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2**24)
    topic = FetchTopic(topic="__consumer_offsets", partitions=[partition])
    fetch = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic])
    [answer] = (await judged.ask(fetch, 12)).responses[0].partitions
    assert answer.records
    for batch in iter_batches(answer.records):
        if batch.is_transactional:
            records = [_content(batch, record.key, record.value) for record in batch.records()]
            head = batch.is_control, batch.producer_epoch, batch.base_sequence, batch.compression_id
            judged.answers.append(f"batch {head}: {records}")


def _content(batch: RecordBatch, key: bytes | None, value: bytes | None) -> object:
    """Return a record without the time of the commit and the id of the topic."""
    if batch.is_control:
        return key, value
    record = decode_record(key, value)
    assert isinstance(record, OffsetRecord)
    if record.value is not None:
        assert any(record.value.topic_id)
        record.value.commit_timestamp, record.value.topic_id = 0, b""
    return record


async def answers_of(bootstrap_servers: str) -> list[str]:
    judged = Judged(bootstrap_servers)
    try:
        await judged.begin()
        for part in (generations, refusals, members, deletions, written):
            await part(judged)
    finally:
        judged.client.close()
    return judged.answers


@pytest.fixture(scope="module")
def kafka_s_answers() -> list[str]:
    """Apache Kafka's responses."""
    with KafkaCluster(1) as kafka:
        kafka.create_topic("t", 2)
        return asyncio.run(answers_of(kafka.bootstrap_servers))


async def test_offsets_in_transactions_are_answered_as_by_apache_kafka(kafka_s_answers: list[str]) -> None:
    properties = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.min.isr": 1,
    }
    async with BrokerCluster(1, properties=properties) as cluster:
        cluster.create_topic("t", 2)
        answers = await answers_of(cluster.bootstrap_servers)
    assert len(kafka_s_answers) > 300
    pairs = zip(answers, kafka_s_answers, strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]] == []
