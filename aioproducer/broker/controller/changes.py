"""The controller's decisions as data: written to the journal, read back from it, and applied to the image.

Nothing else changes the image while the cluster runs. Therefore a restart that replays the journal gets the same image.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TypedDict

from aioproducer.broker.image import BrokerRegistration, ClusterImage, PartitionState, TopicState


@dataclass(frozen=True, slots=True)
class ProducerIds:
    """A block of producer ids was allocated; the next block begins here."""

    next_producer_id: int


@dataclass(frozen=True, slots=True)
class Features:
    """The levels of all features, and the number of this change."""

    levels: dict[str, int]
    epoch: int


@dataclass(frozen=True, slots=True)
class NodeConfigs:
    """The configurations set for a node (its id in decimal) or for all (``CLUSTER_DEFAULT``)."""

    node: str
    configs: dict[str, str]


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """The configurations set for a topic."""

    topic_id: bytes
    configs: dict[str, str]


@dataclass(frozen=True, slots=True)
class TopicRemoval:
    """A topic is deleted."""

    topic_id: bytes


Change = (
    TopicState
    | PartitionState
    | BrokerRegistration
    | TopicConfigs
    | TopicRemoval
    | NodeConfigs
    | ProducerIds
    | Features
)
"""A part of an event. A ``TopicState`` is a new topic, a ``PartitionState`` a new or changed partition."""


class _PartitionLine(TypedDict):
    index: int
    replicas: list[int]
    isr: list[int]
    leader: int
    leader_epoch: int
    partition_epoch: int
    last_known_leader: int


class ChangeLine(TypedDict, total=False):
    """A change as JSON: one key determines its kind, the others hold its values."""

    topic: str
    topic_id: str
    configs: dict[str, str]
    partitions: list[_PartitionLine]
    changed: _PartitionLine
    removed: bool
    node: dict[str, int | str | bool | None]
    configs_of_node: str
    next_producer_id: int
    features: dict[str, int]
    features_epoch: int


@dataclass(slots=True)
class Notification:
    """The part of an event that nodes must follow."""

    changed: list[PartitionState] = field(default_factory=list)
    removed: list[PartitionState] = field(default_factory=list)
    topic_configs: list[str] = field(default_factory=list)
    """Topics whose configurations have changed."""
    node_configs: bool = False
    """Whether configurations of nodes have changed."""


def _text(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def _topic_id(text: str) -> bytes:
    topic_id = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    if len(topic_id) != 16:
        raise ValueError(f"a topic id has 16 bytes, {text!r} has {len(topic_id)}")
    return topic_id


def _partition_line(state: PartitionState) -> _PartitionLine:
    return {
        "index": state.index,
        "replicas": state.replicas,
        "isr": state.isr,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        "last_known_leader": state.last_known_leader,
    }


def to_json(change: Change) -> ChangeLine:
    """Return ``change`` in the form of the journal."""
    match change:
        case PartitionState():
            return {"topic": change.topic, "topic_id": _text(change.topic_id), "changed": _partition_line(change)}
        case TopicState():
            return {
                "topic": change.name,
                "topic_id": _text(change.topic_id),
                "configs": change.configs,
                "partitions": [_partition_line(partition) for partition in change.partitions],
            }
        case BrokerRegistration():
            return {"node": asdict(change)}
        case TopicConfigs():
            return {"topic_id": _text(change.topic_id), "configs": change.configs}
        case TopicRemoval():
            return {"topic_id": _text(change.topic_id), "removed": True}
        case NodeConfigs():
            return {"configs_of_node": change.node, "configs": change.configs}
        case ProducerIds():
            return {"next_producer_id": change.next_producer_id}
        case Features():
            return {"features": change.levels, "features_epoch": change.epoch}


def from_json(line: ChangeLine) -> Change:
    """Return the change that ``to_json`` encoded as ``line``.

    Raises:
        KeyError, TypeError, ValueError: ``line`` is not the form of a change.
    """
    if "changed" in line:
        return PartitionState(line["topic"], _topic_id(line["topic_id"]), **line["changed"])
    if "partitions" in line:
        name, topic_id = line["topic"], _topic_id(line["topic_id"])
        partitions = [PartitionState(name, topic_id, **partition) for partition in line["partitions"]]
        return TopicState(name, topic_id, partitions, line["configs"])
    if "node" in line:
        return BrokerRegistration(**line["node"])  # type: ignore[arg-type]  # values of JSON: the journal's checksum vouches for their types
    if "removed" in line:
        return TopicRemoval(_topic_id(line["topic_id"]))
    if "configs_of_node" in line:
        return NodeConfigs(line["configs_of_node"], line["configs"])
    if "next_producer_id" in line:
        return ProducerIds(line["next_producer_id"])
    if "features" in line:
        return Features(line["features"], line["features_epoch"])
    return TopicConfigs(_topic_id(line["topic_id"]), line["configs"])


def apply(image: ClusterImage, changes: Iterable[Change]) -> Notification:
    """Apply ``changes`` to ``image``; return the notification for the nodes.

    Raises:
        KafkaError: a change names a topic that does not exist.
    """
    notification = Notification()
    for change in changes:
        match change:
            case PartitionState():
                partitions = image.topic_by_id(change.topic_id).partitions
                partitions[change.index : change.index + 1] = [change]
                notification.changed.append(change)
            case TopicState():
                image.topics[change.name] = change
                image.topics_by_id[change.topic_id] = change
                notification.changed += change.partitions
            case BrokerRegistration():
                image.nodes[change.node_id] = change
                _choose_controller(image)
            case TopicConfigs():
                topic = image.topic_by_id(change.topic_id)
                topic.configs = change.configs
                notification.topic_configs.append(topic.name)
            case TopicRemoval():
                topic = image.topics_by_id.pop(change.topic_id)
                del image.topics[topic.name]
                notification.removed += topic.partitions
            case NodeConfigs():
                image.node_configs[change.node] = change.configs
                notification.node_configs = True
            case ProducerIds():
                image.next_producer_id = change.next_producer_id
            case Features():
                image.features = change.levels
                image.features_epoch = change.epoch
    return notification


def _choose_controller(image: ClusterImage) -> None:
    """Choose the node that clients see as the controller. The node stays the same as long as it is alive.

    The real controller is an object outside of all nodes.
    """
    if not image.is_alive(image.controller_id):
        image.controller_id = min((node.node_id for node in image.alive_nodes()), default=-1)


def snapshot(image: ClusterImage) -> list[Change]:
    """Return the changes that make an empty image equal to ``image``."""
    changes: list[Change] = [ProducerIds(image.next_producer_id)]
    if image.features:
        changes.append(Features(image.features, image.features_epoch))
    # The node that clients see as the controller comes first, so that it is chosen again.
    nodes = sorted(image.nodes.values(), key=lambda node: (node.node_id != image.controller_id, node.node_id))
    changes += nodes
    changes += [NodeConfigs(node, configs) for node, configs in image.node_configs.items()]
    changes += image.topics.values()
    return changes
