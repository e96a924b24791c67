"""AlterConfigs, versions 0-2: replace the configurations of topics, of this node and of all nodes.

* 2: flexible.

A key that was set and is not in the request is removed. IncrementalAlterConfigs replaces this API (KIP-339), but older
clients have only this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.broker.handlers.config_changes import alter_each, check_keys, configs_of, make_changes
from aioproducer.protocol.messages.legacy_configs import AlterConfigsRequest, AlterConfigsResource, AlterConfigsResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(3)


async def handle(context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Set the configurations of each resource; the failure of one does not affect the others."""
    broker = context.broker

    def alter(resource: AlterConfigsResource) -> None:
        given = {config.name: config.value for config in resource.configs}
        check_keys(
            [config.name for config in resource.configs],
            [config.name for config in resource.configs if config.value is None],
        )
        changes = dict.fromkeys(configs_of(broker, resource)) | given
        make_changes(broker, resource, changes, validate_only=request.validate_only)

    return AlterConfigsResponse(responses=alter_each(request.resources, alter))
