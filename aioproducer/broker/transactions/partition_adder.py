"""A leader's requests to coordinators: verify that a partition is in a transaction, or add it (KIP-890).

Each node gets one AddPartitionsToTxn request at a time, with all transactions that wait for it (Kafka's
``AddPartitionsToTxnManager``).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from aioproducer.broker.image import BrokerRegistration
from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.states import ProducerIdAndEpoch, TopicPartition
from aioproducer.errors import KafkaError
from aioproducer.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from aioproducer.broker.server.peer import PeerClient

VERSION: Final = 5
REQUEST_TIMEOUT: Final = 30.0
"""Timeout of a request in seconds (Kafka's ``request.timeout.ms``)."""

Codes: TypeAlias = dict[TopicPartition, int]


class AdderHost(Protocol):
    """What the adder needs from its node."""

    def peer_client(self, node: BrokerRegistration) -> PeerClient:
        """Return a new client for a node; it connects at its first request."""


@dataclass(slots=True, eq=False)
class _PendingRequest:
    producer: ProducerIdAndEpoch
    partitions: Sequence[TopicPartition]
    verify_only: bool
    answer: asyncio.Future[Codes]

    def fail(self, code: int) -> None:
        self.complete(dict.fromkeys(self.partitions, code))

    def complete(self, codes: Codes) -> None:
        if not self.answer.done():
            self.answer.set_result(codes)

    def encoded(self, transactional_id: str) -> AddPartitionsToTxnTransaction:
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, index in self.partitions:
            topics[topic].append(index)
        return AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            verify_only=self.verify_only,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
        )


class PartitionAdder:
    """Sends requests to the coordinators of transactional ids for one node."""

    def __init__(self, host: AdderHost) -> None:
        self._host = host
        self._waiting: dict[int, dict[str, _PendingRequest]] = {}
        """By node id and transactional id: requests that wait until the previous one is answered."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._clients: dict[int, PeerClient] = {}
        self._is_closed = False

    async def ask(
        self,
        node: BrokerRegistration | None,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> Codes:
        """Return the code of each partition. ``node`` coordinates the transactional id; ``None`` if none does at
        present.

        Of two requests about one transactional id, one fails at once: with INVALID_PRODUCER_EPOCH the one with the
        lower epoch, with NETWORK_EXCEPTION the earlier one of equal epochs, since its producer repeats it.
        """
        if node is None or self._is_closed:
            return dict.fromkeys(partitions, Code.COORDINATOR_NOT_AVAILABLE)
        waiting = self._waiting.setdefault(node.node_id, {})
        earlier = waiting.get(transactional_id)
        if earlier is not None:
            if earlier.producer.epoch > producer.epoch:
                return dict.fromkeys(partitions, Code.INVALID_PRODUCER_EPOCH)
            is_older = earlier.producer.epoch < producer.epoch
            earlier.fail(Code.INVALID_PRODUCER_EPOCH if is_older else Code.NETWORK_EXCEPTION)
        answer: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()
        waiting[transactional_id] = _PendingRequest(producer, partitions, verify_only, answer)
        if node.node_id not in self._tasks:
            self._tasks[node.node_id] = asyncio.create_task(
                self._serve(node), name=f"partitions for transactions at {node.node_id}"
            )
        return await answer

    async def close(self) -> None:
        """Stop sending; waiting requests are answered with COORDINATOR_NOT_AVAILABLE."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, node: BrokerRegistration) -> None:
        sent: dict[str, _PendingRequest] = {}
        try:
            while sent := self._waiting.pop(node.node_id, {}):
                await self._send(node, sent)
        finally:
            self._tasks.pop(node.node_id, None)
            for pending in (*sent.values(), *self._waiting.pop(node.node_id, {}).values()):
                pending.fail(Code.COORDINATOR_NOT_AVAILABLE)

    async def _send(self, node: BrokerRegistration, sent: Mapping[str, _PendingRequest]) -> None:
        transactions = [pending.encoded(transactional_id) for transactional_id, pending in sent.items()]
        client = self._clients.get(node.node_id)
        if client is None:
            client = self._clients[node.node_id] = self._host.peer_client(node)
        try:
            request = AddPartitionsToTxnRequest(transactions=transactions)
            response = await client.request(request, VERSION, REQUEST_TIMEOUT)
        except (OSError, KafkaError):
            for pending in sent.values():
                pending.fail(Code.NETWORK_EXCEPTION)
            return
        _answer(sent, response)


def _answer(sent: Mapping[str, _PendingRequest], response: AddPartitionsToTxnResponse) -> None:
    results = {result.transactional_id: _codes(result) for result in response.results_by_transaction}
    for transactional_id, pending in sent.items():
        if response.error_code:
            pending.fail(response.error_code)
            continue
        found = results.get(transactional_id, {})
        pending.complete(
            {partition: found.get(partition, Code.UNKNOWN_SERVER_ERROR) for partition in pending.partitions}
        )


def _codes(result: AddPartitionsToTxnResult) -> Codes:
    """Return the code of each partition; a fenced producer expects INVALID_PRODUCER_EPOCH."""
    return {
        (topic.name, partition.partition_index): Code.INVALID_PRODUCER_EPOCH
        if partition.partition_error_code == Code.PRODUCER_FENCED
        else partition.partition_error_code
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
