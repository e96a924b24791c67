"""ApiVersions over the wire."""

from __future__ import annotations

import pytest

from aioproducer.broker.handlers import HANDLERS
from aioproducer.protocol import ApiKey
from aioproducer.protocol.messages import ApiVersionsRequest
from tests.broker.scene import Scene


def asking(
    name: str = "aioproducer", version: str = "1.0", cluster_id: str | None = None, node_id: int = -1
) -> ApiVersionsRequest:
    return ApiVersionsRequest(
        client_software_name=name, client_software_version=version, cluster_id=cluster_id, node_id=node_id
    )


@pytest.mark.parametrize("version", range(6))
async def test_exactly_the_requests_with_a_handler_are_listed(scene: Scene, version: int) -> None:
    response = await scene.ask(asking(), version)
    listed = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert response.error_code == 0
    assert list(listed) == sorted(HANDLERS)
    # librdkafka compresses only if Produce begins with version 0.
    assert listed[ApiKey.PRODUCE] == (0, 13)
    assert listed[ApiKey.FETCH] == (4, 18)
    assert listed[ApiKey.INIT_PRODUCER_ID] == (0, 5)


async def test_features_are_supported_and_finalized(scene: Scene) -> None:
    response = await scene.ask(asking(), 4)
    [supported], [finalized] = response.supported_features, response.finalized_features
    assert (supported.name, supported.min_version, supported.max_version) == ("transaction.version", 0, 2)
    assert (finalized.name, finalized.min_version_level, finalized.max_version_level) == ("transaction.version", 2, 2)
    assert response.finalized_features_epoch == 0


async def test_version_3_has_no_feature_with_a_level_0(scene: Scene) -> None:
    response = await scene.ask(asking(), 3)
    assert (response.supported_features, len(response.finalized_features)) == ([], 1)


async def test_a_change_of_a_feature_is_seen_at_once(scene: Scene) -> None:
    scene.cluster.controller.update_features({"transaction.version": 1})
    response = await scene.ask(asking(), 4)
    assert (response.finalized_features[0].max_version_level, response.finalized_features_epoch) == (1, 1)
    scene.cluster.controller.update_features({"transaction.version": 0})
    response = await scene.ask(asking(), 4)
    assert (response.finalized_features, response.finalized_features_epoch) == ([], 2)


async def test_the_connection_remembers_the_software(scene: Scene) -> None:
    async with await scene.connect() as client:
        await client.call(asking("some-client", "2.1"), 3)
        [connection] = [known for known in scene.broker().server.connections if known.client_software_name]
        assert (connection.client_software_name, connection.client_software_version) == ("some-client", "2.1")


@pytest.mark.parametrize("wrong", ["", "-a", "a-", "a b", "a_b", "ä", "."])
async def test_an_invalid_software_name_is_refused(scene: Scene, wrong: str) -> None:
    for request in (asking(name=wrong), asking(version=wrong)):
        response = await scene.ask(request, 3)
        assert (response.error_code, response.api_keys) == (42, [])
    assert (await scene.ask(asking(wrong, wrong), 2)).error_code == 0


async def test_a_client_that_expects_another_broker_is_refused(scene: Scene) -> None:
    """KIP-1242."""
    cluster_id = scene.cluster.image.cluster_id
    codes = {
        (cluster_id, 1): 0,
        (cluster_id, 2): 129,
        ("other", 1): 129,
        (cluster_id, -1): 42,
        (None, 1): 42,
        (None, -1): 0,
    }
    for (cluster, node_id), code in codes.items():
        assert (await scene.ask(asking(cluster_id=cluster, node_id=node_id), 5)).error_code == code
