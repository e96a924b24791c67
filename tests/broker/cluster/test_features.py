"""The levels of features: given at the start, changed while the cluster runs, kept over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioproducer.broker import BrokerCluster
from aioproducer.errors import ConfigurationError
from aioproducer.transport.memory import MemoryNetwork


async def test_a_new_cluster_has_the_highest_levels() -> None:
    async with BrokerCluster(network=MemoryNetwork()) as cluster:
        assert cluster.image.features == {"transaction.version": 2}
        assert cluster.image.transaction_version == 2


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_a_given_level_is_kept_over_a_restart(tmp_path: Path, level: int) -> None:
    features = {"transaction.version": level}
    async with BrokerCluster(data_dir=tmp_path, network=MemoryNetwork(), features=features) as cluster:
        assert cluster.image.transaction_version == level
    async with BrokerCluster(data_dir=tmp_path, network=MemoryNetwork()) as cluster:
        assert (cluster.image.transaction_version, cluster.image.features_epoch) == (level, 0)


async def test_a_changed_level_is_kept_over_a_restart(tmp_path: Path) -> None:
    async with BrokerCluster(data_dir=tmp_path, network=MemoryNetwork()) as cluster:
        cluster.controller.update_features({"transaction.version": 1})
        cluster.controller.update_features({"transaction.version": 1})
    async with BrokerCluster(data_dir=tmp_path, network=MemoryNetwork()) as cluster:
        assert (cluster.image.transaction_version, cluster.image.features_epoch) == (1, 1)


@pytest.mark.parametrize("features", [{"transaction.version": 3}, {"transaction.version": -1}, {"x": 1}])
async def test_an_unknown_feature_or_level_is_rejected(features: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=r"transaction\.version"):
        await BrokerCluster(network=MemoryNetwork(), features=features).start()
