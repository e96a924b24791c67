"""The sources of a node's configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.broker.config.describing import ConfigSources
from aioproducer.broker.image import CLUSTER_DEFAULT

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import BrokerNode


def sources_of(broker: BrokerNode) -> ConfigSources:
    """Return the node's configuration from its start, and the dynamic ones for it and for all nodes."""
    configs = broker.image.node_configs
    return ConfigSources(broker.config, configs.get(CLUSTER_DEFAULT, {}), configs.get(str(broker.node_id), {}))
