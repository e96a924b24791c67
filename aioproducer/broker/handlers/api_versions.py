"""ApiVersions, versions 0-5: the APIs that this broker serves.

* 0: error code and versions. 1: ``throttle_time_ms``. 2: as 1.
* 3: the client's software name and version; features of the cluster (KIP-511, KIP-584). As in Kafka a feature with
  levels from 0 is supported only from version 4 on, and level 0 is not finalized.
* 4: feature levels may begin with 0 (KIP-1022). 5: the cluster and node that the client expects (KIP-1242).

A request of an unknown version cannot be read. Before it reaches a handler it is answered in version 0 with
UNSUPPORTED_VERSION and the versions of ApiVersions itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aioproducer.broker.image import SUPPORTED_FEATURES
from aioproducer.errors import InvalidRequestError, RebootstrapRequiredError
from aioproducer.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(6)

_FIRST_WITH_LEVEL_0 = 4

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def handle(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Return all APIs with a handler, by their numbers.

    Raises:
        InvalidRequestError: the software name or version is invalid, or only one of cluster and node is given.
        RebootstrapRequiredError: the client expects another broker.
    """
    if (request.cluster_id is None) != (request.node_id == -1):
        raise InvalidRequestError()
    if context.version >= 3:
        if not (
            _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            raise InvalidRequestError()
        context.connection.client_software_name = request.client_software_name
        context.connection.client_software_version = request.client_software_version
    broker = context.broker
    if request.cluster_id is not None and (request.cluster_id, request.node_id) != (
        broker.image.cluster_id,
        broker.node_id,
    ):
        raise RebootstrapRequiredError()
    api_keys = []
    for key, handler in sorted(broker.requests.handlers.items()):
        oldest, newest = handler.advertised
        api_keys.append(ApiVersion(api_key=key, min_version=oldest, max_version=newest))
    image = broker.image
    return ApiVersionsResponse(
        api_keys=api_keys,
        supported_features=[
            SupportedFeatureKey(name=name, min_version=levels[0], max_version=levels[-1])
            for name, levels in SUPPORTED_FEATURES.items()
            if levels[0] > 0 or context.version >= _FIRST_WITH_LEVEL_0
        ],
        finalized_features_epoch=image.features_epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in image.features.items()
            if level > 0
        ],
    )
