"""DescribeCluster, versions 0-2: the nodes of the cluster.

* 0: the base. 1: the client selects brokers or controllers (KIP-919). 2: also fenced brokers (KIP-1073).

A broker knows no addresses of controllers: it answers UNSUPPORTED_ENDPOINT_TYPE or MISMATCHED_ENDPOINT_TYPE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.broker.handlers.leaders import CLUSTER_OPERATIONS
from aioproducer.errors import KafkaError, MismatchedEndpointTypeError, UnsupportedEndpointTypeError
from aioproducer.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(3)

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


async def handle(context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Return the nodes that are alive, and in version 2 on request also the others.

    Raises:
        MismatchedEndpointTypeError: the request is for controllers.
        UnsupportedEndpointTypeError: the request is for neither brokers nor controllers.
    """
    _check(request.endpoint_type)
    image = context.broker.image
    nodes = [node for _, node in sorted(image.nodes.items())] if request.include_fenced_brokers else image.alive_nodes()
    response = DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack, is_fenced=not node.is_alive
            )
            for node in nodes
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    if context.version < 2:
        for broker in response.brokers:
            broker.is_fenced = False
    return response


def _check(endpoint_type: int) -> None:
    error: KafkaError
    if endpoint_type == _BROKERS:
        return
    if endpoint_type == _CONTROLLERS:
        error = MismatchedEndpointTypeError(
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        )
    else:
        error = UnsupportedEndpointTypeError(f"Unsupported endpoint type {endpoint_type}")
    raise error
