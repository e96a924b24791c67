"""AlterConfigs, versions 0-2: sets all of the configurations of topics, of this node and of all nodes.

* 2: flexible.

A key that is set and not named any more is taken away. IncrementalAlterConfigs has followed it (KIP-339); older clients
know nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.broker.handlers.config_changes import alter_each, check_keys, configs_of, make_changes
from aioproducer.protocol.messages.legacy_configs import AlterConfigsRequest, AlterConfigsResource, AlterConfigsResponse

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(3)


async def handle(context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Set what each resource is to have; one that fails keeps no other from being changed."""
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
