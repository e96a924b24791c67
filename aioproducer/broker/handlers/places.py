"""Where a node's configurations come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.broker.config.describing import Places
from aioproducer.broker.image import CLUSTER_DEFAULT

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import BrokerNode


def places_of(broker: BrokerNode) -> Places:
    """What the node was given at its start, and what was set for it and for all nodes since."""
    configs = broker.image.node_configs
    return Places(broker.config, configs.get(CLUSTER_DEFAULT, {}), configs.get(str(broker.node_id), {}))
