"""A cluster in memory with transactional ids, and a stand-in for the logs that receive markers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from aioproducer.broker.cluster import BrokerCluster
from aioproducer.broker.log import AppendInfo
from aioproducer.broker.replicas.partition import Partition
from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.states import ProducerIdAndEpoch
from aioproducer.broker.transactions.transaction import Transaction
from aioproducer.errors import KafkaError
from aioproducer.protocol.messages import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from aioproducer.protocol.messages.described_transactions import TransactionState
from aioproducer.protocol.messages.transactions import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction
from aioproducer.transport.memory import MemoryNetwork
from tests.broker.scene import Scene

WALL_MS = 1_700_000_000_000
TIMEOUT = 20.0
NEW = ProducerIdAndEpoch(-1, -1)


class Marked(NamedTuple):
    """A marker as a partition receives it."""

    node_id: int
    topic: str
    index: int
    producer_id: int
    epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


@dataclass
class Markers:
    """A stand-in for the logs: keeps markers, which count as replicated at once."""

    written: list[Marked] = field(default_factory=list)
    errors: list[KafkaError] = field(default_factory=list)
    """Errors that are raised, one by one, instead of writing a marker."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make every partition write its markers here."""
        markers = self

        def append_marker(
            partition: Partition,
            producer_id: int,
            producer_epoch: int,
            *,
            committed: bool,
            coordinator_epoch: int,
            transaction_version: int,
        ) -> AppendInfo:
            partition._check_leader()
            if markers.errors:
                raise markers.errors.pop(0)
            marked = Marked(
                partition._host.node_id,
                partition.topic,
                partition.index,
                producer_id,
                producer_epoch,
                committed,
                coordinator_epoch,
                transaction_version,
            )
            markers.written.append(marked)
            end = partition.high_watermark - 1
            return AppendInfo(end, end, -1, -1, 0, False, 0)

        monkeypatch.setattr(Partition, "append_marker", append_marker, raising=False)

    def outcomes(self) -> list[tuple[str, int, bool]]:
        """The partition of each marker, and whether it commits."""
        return [(marked.topic, marked.index, marked.committed) for marked in self.written]


class Stage(Scene):
    """A cluster with a wall clock that a test moves, and requests about transactions."""

    def __init__(self, cluster: BrokerCluster, network: MemoryNetwork, clock: Clock, markers: Markers) -> None:
        super().__init__(cluster, network)
        self.clock = clock
        self.markers = markers

    async def coordinator(self, transactional_id: str = "id") -> int:
        """Return the node that coordinates a transactional id, after it has loaded the id's partition."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                node = self.cluster.image.alive_nodes()[0].node_id
                found = await self.ask(FindCoordinatorRequest(key_type=1, key=transactional_id), 3, node)
                if found.error_code == Code.NONE:
                    described = await self.describe(transactional_id, found.node_id)
                    if described.error_code in (Code.NONE, Code.TRANSACTIONAL_ID_NOT_FOUND):
                        return found.node_id
                await asyncio.sleep(0.005)

    async def init(
        self,
        expected: ProducerIdAndEpoch = NEW,
        *,
        transactional_id: str = "id",
        timeout_ms: int = 60_000,
        version: int = 5,
        node_id: int | None = None,
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
        )
        return await self.ask(request, version, node_id or await self.coordinator(transactional_id))

    async def begun(
        self, *partitions: int, version: int = 4, transactional_id: str = "id", **options: object
    ) -> ProducerIdAndEpoch:
        """Return a producer with an open transaction of partitions of ``t``; from version 4 on a leader adds them."""
        producer = await self.initialized(transactional_id=transactional_id, **options)
        code = await self.add(producer, *partitions, version=version, transactional_id=transactional_id)
        assert code == Code.NONE
        return producer

    async def initialized(self, **options: object) -> ProducerIdAndEpoch:
        """Return a producer after its previous transaction has ended."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                answer = await self.init(**options)  # type: ignore[arg-type]  # the options of init
                if answer.error_code != Code.CONCURRENT_TRANSACTIONS:
                    assert answer.error_code == Code.NONE
                    return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
                await asyncio.sleep(0.005)

    async def add(
        self,
        producer: ProducerIdAndEpoch,
        *partitions: int,
        topic: str = "t",
        transactional_id: str = "id",
        version: int = 3,
        verify_only: bool = False,
        node_id: int | None = None,
    ) -> int:
        """Add partitions to a transaction; return the code of all of them."""
        codes = await self.added(
            producer,
            {topic: list(partitions)},
            transactional_id=transactional_id,
            version=version,
            verify_only=verify_only,
            node_id=node_id,
        )
        [code] = set(codes.values())
        return code

    async def added(
        self,
        producer: ProducerIdAndEpoch,
        topics: Mapping[str, list[int]],
        *,
        transactional_id: str = "id",
        version: int = 3,
        verify_only: bool = False,
        node_id: int | None = None,
    ) -> dict[tuple[str, int], int]:
        """Add partitions to a transaction; return the code of each."""
        named = [AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()]
        node = node_id or await self.coordinator(transactional_id)
        if version < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=named,
            )
            results = (await self.ask(request, version, node)).results_by_topic_v3_and_below
        else:
            transaction = AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                verify_only=verify_only,
                topics=named,
            )
            response = await self.ask(AddPartitionsToTxnRequest(transactions=[transaction]), version, node)
            [result] = response.results_by_transaction
            results = result.topic_results
        return {
            (topic.name, partition.partition_index): partition.partition_error_code
            for topic in results
            for partition in topic.results_by_partition
        }

    async def end(
        self,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool = True,
        version: int = 5,
        transactional_id: str = "id",
        node_id: int | None = None,
    ) -> EndTxnResponse:
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        return await self.ask(request, version, node_id or await self.coordinator(transactional_id))

    async def ended(self, producer: ProducerIdAndEpoch, *, commit: bool = True, version: int = 5) -> int:
        """End a transaction, repeated until the response is final; return its code."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                answer = await self.end(producer, commit=commit, version=version)
                if answer.error_code != Code.CONCURRENT_TRANSACTIONS:
                    return answer.error_code
                await asyncio.sleep(0.005)

    async def finished(
        self, producer: ProducerIdAndEpoch, *, commit: bool = True, version: int = 5
    ) -> TransactionState:
        """End a transaction and wait until all of its markers are written."""
        assert await self.ended(producer, commit=commit, version=version) == Code.NONE
        return await self.until("CompleteCommit" if commit else "CompleteAbort")

    async def describe(self, transactional_id: str = "id", node_id: int | None = None) -> TransactionState:
        node = node_id or await self.coordinator(transactional_id)
        response = await self.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0, node)
        [state] = response.transaction_states
        return state

    async def until(self, state: str, transactional_id: str = "id") -> TransactionState:
        """Wait until a transactional id is in a state."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                described = await self.describe(transactional_id)
                if described.transaction_state == state:
                    return described
                await asyncio.sleep(0.005)

    def transaction(self, node_id: int = 1, transactional_id: str = "id") -> Transaction:
        """Return the coordinator's state of a transactional id."""
        found = self.broker(node_id).transactions.transaction(transactional_id)
        assert found is not None
        return found


class Clock:
    """The wall clock of the cluster."""

    def __init__(self) -> None:
        self.ms = WALL_MS

    def __call__(self) -> int:
        return self.ms


@asynccontextmanager
async def staged(
    monkeypatch: pytest.MonkeyPatch,
    nodes: int = 1,
    *,
    transaction_version: int = 2,
    **properties: object,
) -> AsyncIterator[Stage]:
    """A cluster with one partition of ``__transaction_state``; a double underscore stands for a dot."""
    network, clock, markers = MemoryNetwork(), Clock(), Markers()
    markers.install(monkeypatch)
    dotted = {name.replace("__", "."): value for name, value in properties.items()}
    cluster = BrokerCluster(
        nodes,
        network=network,
        wall_ms=clock,
        features={"transaction.version": transaction_version},
        properties={"transaction.state.log.num.partitions": 1, **dotted},
    )
    async with cluster:
        yield Stage(cluster, network, clock, markers)
