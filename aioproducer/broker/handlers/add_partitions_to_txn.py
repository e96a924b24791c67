"""AddPartitionsToTxn, versions 0-5: add partitions to a transaction, or verify that they belong to it.

* 0, 1: from a client, one transaction. 2: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH. 3: flexible.
* 4: from other brokers, several transactions, with ``verify_only`` (KIP-890). 5: as 4.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from aioproducer.broker.transactions.codes import Code
from aioproducer.broker.transactions.states import EPOCH_FOR_EACH_TRANSACTION, ProducerIdAndEpoch, TopicPartition
from aioproducer.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext
    from aioproducer.broker.image import ClusterImage

VERSIONS = range(6)

_FIRST_WITH_PRODUCER_FENCED: Final = 2
FIRST_OF_BROKERS: Final = 4


async def handle(context: RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    """Respond when the partitions are in the log. As in Kafka one unknown partition fails all of its transaction."""
    if context.version >= FIRST_OF_BROKERS:
        answers = await asyncio.gather(*(_answer(context, transaction) for transaction in request.transactions))
        results = [
            AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=answer)
            for transaction, answer in zip(request.transactions, answers, strict=True)
        ]
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _answer(context, transaction))


async def _answer(
    context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> list[AddPartitionsToTxnTopicResult]:
    coordinator = context.broker.transactions
    partitions = list(_partitions(transaction.topics))
    unknown = [partition for partition in partitions if not _exists(context.broker.image, *partition)]
    if unknown:
        attempted = dict.fromkeys(partitions, int(Code.OPERATION_NOT_ATTEMPTED))
        return _by_topic({**attempted, **dict.fromkeys(unknown, int(Code.UNKNOWN_TOPIC_OR_PARTITION))})
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    if transaction.verify_only:
        return _by_topic(coordinator.verify_partitions(transaction.transactional_id, producer, partitions))
    code = await coordinator.add_partitions(
        transaction.transactional_id,
        producer,
        partitions,
        client_version=EPOCH_FOR_EACH_TRANSACTION if context.version >= FIRST_OF_BROKERS else 0,
    )
    if code == Code.PRODUCER_FENCED and context.version < _FIRST_WITH_PRODUCER_FENCED:
        code = Code.INVALID_PRODUCER_EPOCH
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                for index in topic.partitions
            ],
        )
        for topic in transaction.topics
    ]


def _partitions(topics: list[AddPartitionsToTxnTopic]) -> dict[TopicPartition, None]:
    """Return each partition once, in the order of the request."""
    return {(topic.name, index): None for topic in topics for index in topic.partitions}


def _exists(image: ClusterImage, topic: str, index: int) -> bool:
    known = image.topics.get(topic)
    return known is not None and 0 <= index < len(known.partitions)


def _by_topic(codes: dict[TopicPartition, int]) -> list[AddPartitionsToTxnTopicResult]:
    topics: defaultdict[str, list[AddPartitionsToTxnPartitionResult]] = defaultdict(list)
    for (topic, index), code in codes.items():
        topics[topic].append(AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code))
    return [AddPartitionsToTxnTopicResult(name=name, results_by_partition=found) for name, found in topics.items()]
