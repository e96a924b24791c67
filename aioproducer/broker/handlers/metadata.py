"""Metadata, versions 0-13: nodes, topics, and the replicas of their partitions.

* 0: an empty list means all topics; replicas that are not alive are left out. 1: null means all topics; rack,
  controller, and a flag for internal topics. 2: cluster id. 3: throttling. 4: ``allow_auto_topic_creation``.
* 5: offline replicas. 7: leader epochs. 8: authorized operations, of the cluster until 10.
* 9: flexible. 10: topic ids in the response. 11: no cluster's operations. 12: topics by id. 13: an error for all.

A topic that this request creates is still unknown in its response, as with a KRaft broker.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aioproducer.broker.controller.controller import TopicSpec
from aioproducer.broker.controller.topic_rules import check_name
from aioproducer.broker.groups import offsets_topic_spec
from aioproducer.broker.handlers.leaders import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, has_live_leader
from aioproducer.broker.image import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    NO_LEADER,
    TRANSACTION_STATE_TOPIC,
    ClusterImage,
    PartitionState,
    TopicState,
)
from aioproducer.broker.transactions import transactions_topic_spec
from aioproducer.broker.yielding import LoopYielder
from aioproducer.errors import (
    InvalidRequestError,
    InvalidTopicError,
    KafkaError,
    LeaderNotAvailableError,
    ReplicaNotAvailableError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aioproducer.protocol import ZERO_UUID
from aioproducer.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import BrokerNode, RequestContext

VERSIONS = range(14)

_logger = logging.getLogger(__name__)


async def handle(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Return the nodes that are alive, and the requested topics.

    Raises:
        InvalidRequestError: a topic without a name, or with an id, before version 12.
    """
    image = context.broker.image
    requested = request.topics
    if requested is None or (context.version == 0 and not requested):
        topics = await _topics(context, list(image.topics.values()))
    else:
        topics = await _requested_topics(context, requested, request.allow_auto_topic_creation)
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code != UnknownTopicIdError.code:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in image.alive_nodes()
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


async def _topics(context: RequestContext, topics: list[TopicState]) -> list[MetadataResponseTopic]:
    yielder = LoopYielder()
    described = []
    for topic in topics:
        described.append(await _topic(context, topic, yielder))
        await yielder.pause()
    return described


async def _requested_topics(
    context: RequestContext, requested: list[MetadataRequestTopic], may_create: bool
) -> list[MetadataResponseTopic]:
    if context.version < 12:
        _check_names(requested, context.version)
    image = context.broker.image
    ids = dict.fromkeys(topic.topic_id for topic in requested if topic.topic_id != ZERO_UUID)
    if ids:
        known = [image.topics_by_id[topic_id] for topic_id in ids if topic_id in image.topics_by_id]
        unknown = [topic_id for topic_id in ids if topic_id not in image.topics_by_id]
        return [
            MetadataResponseTopic(error_code=UnknownTopicIdError.code, name=None, topic_id=topic_id)
            for topic_id in unknown
        ] + await _topics(context, known)
    yielder = LoopYielder()
    topics = []
    for name in dict.fromkeys(topic.name or "" for topic in requested):
        topic = image.topics.get(name)
        if topic is not None:
            topics.append(await _topic(context, topic, yielder))
        elif (error := context.error_for(name, None)) is not None:
            topics.append(_absent(name, error))
        else:
            may_create = may_create and context.broker.config.auto_create_topics_enable
            topics.append(_absent(name, _why_absent(context.broker, name, may_create)))
        await yielder.pause()
    return topics


def _check_names(requested: list[MetadataRequestTopic], version: int) -> None:
    for topic in requested:
        if topic.name is None:
            raise InvalidRequestError(f"Topic name can not be null for version {version}")
        if topic.topic_id != ZERO_UUID:
            raise InvalidRequestError(f"Topic IDs are not supported in requests for version {version}")


def _absent(name: str, error: KafkaError) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=getattr(error, "code", -1), name=name, topic_id=ZERO_UUID, is_internal=name in INTERNAL_TOPICS
    )


def _why_absent(broker: BrokerNode, name: str, may_create: bool) -> KafkaError:
    """Create a topic that does not exist, if that is allowed; return the error for the response."""
    try:
        check_name(name)
    except InvalidTopicError as error:
        return error
    if may_create:
        create_on_demand(broker, name)
    return UnknownTopicOrPartitionError()


def create_on_demand(broker: BrokerNode, name: str) -> None:
    """Create a topic that a client requested; as in Kafka a refusal by the controller is only logged.

    Internal topics get the partitions and replicas of their coordinators' settings (Kafka's
    ``AutoTopicCreationManager``).
    """
    try:
        if name == GROUP_METADATA_TOPIC:
            spec = offsets_topic_spec(broker.config, broker.image)
        elif name == TRANSACTION_STATE_TOPIC:
            spec = transactions_topic_spec(broker.config, broker.image)
        else:
            spec = TopicSpec(name)
        broker.controller.create_topic(spec)
    except KafkaError as error:
        _logger.warning("Creating the requested topic %r failed: %s", name, error)


async def _topic(context: RequestContext, topic: TopicState, yielder: LoopYielder) -> MetadataResponseTopic:
    error = context.error_for(topic.name, None)
    if error is not None:
        return MetadataResponseTopic(
            error_code=error.code, name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal
        )
    image = context.broker.image
    describe = _partition_without_dead if context.version == 0 else describe_partition
    partitions = []
    for state in topic.partitions:
        partition = describe(image, state)
        error = context.error_for(topic.name, state.index)
        if error is not None:
            partition.error_code = error.code
        partitions.append(partition)
        await yielder.pause()
    return MetadataResponseTopic(
        name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal, partitions=partitions
    )


def describe_partition(image: ClusterImage, state: PartitionState) -> MetadataResponsePartition:
    """Describe one partition; LEADER_NOT_AVAILABLE while it has no leader.

    The lists of a published state never change, so the response can refer to them.
    """
    partition = MetadataResponsePartition(
        partition_index=state.index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        offline_replicas=[node for node in state.replicas if not image.is_alive(node)],
    )
    if not has_live_leader(image, state.leader):
        partition.error_code = LeaderNotAvailableError.code
        partition.leader_id = NO_LEADER
    return partition


def _partition_without_dead(image: ClusterImage, state: PartitionState) -> MetadataResponsePartition:
    """Describe a partition for version 0: REPLICA_NOT_AVAILABLE if a replica is left out because it is not alive."""
    partition = describe_partition(image, state)
    partition.replica_nodes = [node for node in state.replicas if image.is_alive(node)]
    partition.isr_nodes = [node for node in state.isr if image.is_alive(node)]
    is_short = len(partition.replica_nodes) < len(state.replicas) or len(partition.isr_nodes) < len(state.isr)
    if partition.error_code == 0 and is_short:
        partition.error_code = ReplicaNotAvailableError.code
    return partition
