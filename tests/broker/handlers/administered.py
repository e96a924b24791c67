"""A node without logs and sockets: the real controller, image and configurations, for their handlers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

from aioproducer.broker.config import BrokerConfig
from aioproducer.broker.controller.controller import Controller, TopicSpec
from aioproducer.broker.controller.journal import Journal
from aioproducer.broker.image import BrokerRegistration, ClusterImage
from aioproducer.broker.log.storage import MemoryStorage
from aioproducer.protocol import Request, Response, decode, encode
from aioproducer.protocol.messages import AlterConfigsRequest, IncrementalAlterConfigsRequest

ResponseT = TypeVar("ResponseT", bound=Response)


@dataclass
class Node:
    """The part of a ``Broker`` that the handlers of topics and configurations use."""

    node_id: int
    image: ClusterImage
    controller: Controller
    config: BrokerConfig


@dataclass
class Context:
    """The part of a ``RequestContext`` that they use."""

    broker: Node
    version: int


def administered(nodes: int = 1, properties: Mapping[str, object] | None = None) -> Node:
    """Return node 1 of a cluster of ``nodes`` nodes."""
    config = BrokerConfig(properties)
    image = ClusterImage("cluster")
    storage = MemoryStorage()
    storage.make()
    journal = Journal(storage)
    image = journal.load("cluster")
    controller = Controller(image, journal, config)
    controller.begin(nodes)
    controller.register(
        *(
            BrokerRegistration(node_id, "here", 9091 + node_id, None, is_alive=True, epoch=-1)
            for node_id in range(1, nodes + 1)
        )
    )
    return Node(1, image, controller, config)


def with_topics(*names: str, **configs: str | None) -> Node:
    """Return node 1 of 2 with these topics; in keys ``_`` stands for a dot."""
    node = administered(2)
    overrides = {name.replace("_", "."): value for name, value in configs.items()}
    for name in names:
        node.controller.create_topic(TopicSpec(name, configs=overrides))
    return node


async def altered(
    node: Node,
    handler: ModuleType,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    version: int,
) -> list[tuple[int, str | None]]:
    """Return code and text of each resource of ``request``, and check that the response has them in its order."""
    response = await ask(node, handler, request, version)
    assert [(result.resource_type, result.resource_name) for result in response.responses] == [
        (resource.resource_type, resource.resource_name) for resource in request.resources
    ]
    return [(result.error_code, result.error_message) for result in response.responses]


async def ask(node: Node, handler: ModuleType, request: Request[ResponseT], version: int | None = None) -> ResponseT:
    """Send ``request`` through the encoding of ``version`` (by default the newest), and return the response."""
    version = handler.VERSIONS[-1] if version is None else version
    assert version in handler.VERSIONS
    received = decode(type(request), version, b"".join(encode(request, version)))
    response = await handler.handle(Context(node, version), received)
    answer: ResponseT = decode(type(request).response_class(), version, b"".join(encode(response, version)))
    return answer
