"""A group's offsets in whole transactions, with the coordinators of both, in both generations of the protocol."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest

from aioproducer.broker.groups.codes import Code
from aioproducer.protocol import Request
from aioproducer.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from aioproducer.protocol.messages.group_offsets import OffsetFetchRequestTopic
from aioproducer.protocol.messages.transactions import TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic

from .world import TIMEOUT, World, until, world

CONCURRENT_TRANSACTIONS = 51
PROPERTIES = {"transaction.state.log.num.partitions": 1, "transaction.state.log.min.isr": 1}
TRANSACTION = 1

AnswerT = TypeVar("AnswerT", AddOffsetsToTxnResponse, EndTxnResponse)


class Producer:
    """A transactional producer of one generation of the protocol: 1, or 2 with an epoch for each transaction."""

    def __init__(self, made: World, generation: int) -> None:
        self._made = made
        self._generation = generation
        self._node = 0
        self._producer_id = -1
        self._epoch = -1

    async def begin(self) -> None:
        """Find the coordinator, and get the producer id."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=["id"])
                [found] = (await self._made.ask(request, 6)).coordinators
                if not found.error_code:
                    self._node = found.node_id
                    asked = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
                    answer = await self._made.ask(asked, 5, self._node)
                    if not answer.error_code:
                        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
                        return
                await asyncio.sleep(0.01)

    async def commit(self, group_node: int, offset: int) -> int:
        if self._generation == 1:
            add = AddOffsetsToTxnRequest(
                transactional_id="id", producer_id=self._producer_id, producer_epoch=self._epoch, group_id="group"
            )
            await self._settled(add, 4, self._node)
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        commit = TxnOffsetCommitRequest(
            transactional_id="id",
            group_id="group",
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[TxnOffsetCommitRequestTopic(name="orders", partitions=[partition])],
        )
        async with asyncio.timeout(TIMEOUT):
            while True:
                response = await self._made.ask(commit, 5 if self._generation == 2 else 4, group_node)
                code = response.topics[0].partitions[0].error_code
                if code != CONCURRENT_TRANSACTIONS:
                    return code

    async def end(self, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id="id", producer_id=self._producer_id, producer_epoch=self._epoch, committed=commit
        )
        answer = await self._settled(request, 5 if self._generation == 2 else 4, self._node)
        if self._generation == 2:
            self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    async def _settled(self, request: Request[AnswerT], version: int, node: int) -> AnswerT:
        """Return the response when no other transition of the transaction is in progress."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                answer = await self._made.ask(request, version, node)
                if answer.error_code != CONCURRENT_TRANSACTIONS:
                    assert answer.error_code == Code.NONE
                    return answer


async def stable_offset(made: World, node: int) -> tuple[int, int]:
    """Return code and offset for a consumer that requests stable offsets."""
    topic = OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
    request = OffsetFetchRequest(group_id="group", topics=[topic], require_stable=True)
    [partition] = (await made.ask(request, 7, node)).topics[0].partitions
    return partition.error_code, partition.committed_offset


async def shows(made: World, node: int, expected: int) -> None:
    """Wait until the offset is stable: EndTxn is answered before the markers are written."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            if await stable_offset(made, node) == (Code.NONE, expected):
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("nodes", [1, 3])
async def test_offsets_become_visible_with_their_transaction_or_not_at_all(generation: int, nodes: int) -> None:
    async with world(nodes, **PROPERTIES) as made:
        node = await made.coordinator()
        producer = Producer(made, generation)
        await producer.begin()
        expected = -1
        for offset, commit in enumerate((True, False, True, True, False)):
            assert await producer.commit(node, offset) == Code.NONE
            assert await stable_offset(made, node) == (Code.UNSTABLE_OFFSET_COMMIT, -1)
            await producer.end(commit=commit)
            expected = offset if commit else expected
            await shows(made, node, expected)


@pytest.mark.parametrize("generation", [1, 2])
async def test_markers_reach_a_moved_group_coordinator(generation: int) -> None:
    async with world(2, **PROPERTIES) as made:
        first = await made.coordinator()
        producer = Producer(made, generation)
        await producer.begin()
        assert await producer.commit(first, 7) == Code.NONE
        made.cluster.controller.elect_leader("__consumer_offsets", 0, 3 - first)
        await until(lambda: made.cluster.brokers[3 - first].groups.group("group") is not None)
        await producer.end(commit=True)
        await shows(made, 3 - first, 7)
