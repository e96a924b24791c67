"""ApiVersions, and requests of unknown kinds and versions."""

from __future__ import annotations

from aioproducer.protocol import APIS, ApiKey
from aioproducer.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from tests.interop.differential.scenario import Run, scenario, versions


@scenario()
async def api_versions(run: Run) -> None:
    for version in versions(ApiVersionsRequest):
        request = ApiVersionsRequest(client_software_name="differential", client_software_version="1.0")
        answer = await run.quietly(request, version)
        assert isinstance(answer, ApiVersionsResponse)
        ours = {ApiKey(api) for api in APIS}
        # Only requests that the embedded broker may serve; its documentation lists them.
        answer.api_keys = [found for found in answer.api_keys if ApiKey(found.api_key) in ours]
        run.observe(f"version {version}", answer, version)


@scenario()
async def client_software_names(run: Run) -> None:
    names = ["", " ", "a", "-a", "a-", "a.b-c", "a b", "ä", "a" * 300, "a/b"]
    for version in (3, 5):
        for name in names:
            for field, software, release in (("name", name, "1.0"), ("version", "name", name)):
                connection = await run.nodes.connect()
                request = ApiVersionsRequest(client_software_name=software, client_software_version=release)
                answer = await run.quietly(request, version, connection=connection)
                outcome = answer.error_code if isinstance(answer, ApiVersionsResponse) else answer.value
                run.observe(f"version {version} {field} {name[:10]!r}", {"error_code": outcome})


@scenario()
async def expected_cluster_and_node(run: Run) -> None:
    for label, cluster_id, node_id in (
        ("nothing", None, -1),
        ("this node", None, 1),
        ("another node", None, 7),
        ("another cluster", "no-such-cluster-id-00", -1),
        ("both wrong", "no-such-cluster-id-00", 7),
    ):
        connection = await run.nodes.connect()
        request = ApiVersionsRequest(
            client_software_name="a", client_software_version="1", cluster_id=cluster_id, node_id=node_id
        )
        answer = await run.quietly(request, 5, connection=connection)
        outcome = answer.error_code if isinstance(answer, ApiVersionsResponse) else answer.value
        run.observe(label, {"error_code": outcome})
