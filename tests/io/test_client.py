"""Single requests: to a given node or to any node, and what ends the wait."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer._client.factory import connector_for
from aioproducer._common.client_log import ClientLog
from aioproducer.admin import make_client
from aioproducer.config import ProducerConfig
from aioproducer.core.transactions.requests import CoordinatorType
from aioproducer.errors import (
    ConnectionFailedError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NetworkError,
    UnsupportedVersionError,
)
from aioproducer.io.coordinators import find_coordinators
from aioproducer.protocol.messages import DescribeClusterRequest, MetadataRequest, MetadataResponse
from aioproducer.testing import EmbeddedCluster
from tests.virtual_time import SteppedClock

LOG = ClientLog("AdminClient", "tests")


def client_of(cluster, **config):
    config = ProducerConfig.from_kwargs(
        bootstrap_servers=cluster.bootstrap_servers, retry_backoff_ms=5, reconnect_backoff_ms=5, **config
    )
    return make_client(config, asyncio.get_running_loop(), connector_for(config, cluster.transport), LOG)


async def test_requests_go_to_any_node_before_and_after_the_cluster_is_known():
    async with EmbeddedCluster(3, transport="memory") as cluster:
        client = client_of(cluster)
        response = await client.request(MetadataRequest(topics=[]), timeout=5)
        assert sorted(broker.node_id for broker in response.brokers) == [1, 2, 3]
        await client.renew_metadata(5)
        for node_id in (1, 2, 3):
            response = await client.request(DescribeClusterRequest(), node_id=node_id, timeout=5)
            assert len(response.brokers) == 3
        await client.close()


async def test_a_request_to_an_unknown_or_unreachable_node_fails():
    async with EmbeddedCluster(2) as cluster:
        client = client_of(cluster)
        await client.renew_metadata(5)
        with pytest.raises(NetworkError, match="no longer lists broker 7"):
            await client.request(MetadataRequest(topics=[]), node_id=7, timeout=5)
        await cluster.kill(2)
        with pytest.raises(ConnectionFailedError, match="connection refused"):
            await client.request(MetadataRequest(topics=[]), node_id=2, timeout=5)
        # The others still do, and after a while metadata names no more than those.
        assert await client.request(MetadataRequest(topics=[]), timeout=5)
        await client.renew_metadata(5)
        assert list(client.metadata.nodes) == [1]
        await client.close()


async def test_a_request_for_a_node_that_metadata_drops_while_connecting_fails_at_once():
    async with EmbeddedCluster(2, transport="memory") as cluster:
        client = client_of(cluster)
        await client.renew_metadata(5)
        await client.request(DescribeClusterRequest(), node_id=1, timeout=5)
        lost = client.metadata.node(2)
        connecting = asyncio.Event()
        connect = client._pool._connector.connect

        async def connect_or_hang(host, port, handler, *, server_hostname=None):
            if (host, port) == (lost.host, lost.port):
                connecting.set()
                await asyncio.Event().wait()
            return await connect(host, port, handler, server_hostname=server_hostname)

        client._pool._connector.connect = connect_or_hang
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            request = tasks.create_task(_refused(client, 2))
            await connecting.wait()
            await cluster.kill(2)
            while 2 in client.metadata.nodes:
                await client.renew_metadata(5)
            assert "no longer lists broker 2" in await request
        del client._pool._connector.connect
        await client.close()


async def _refused(client, node_id):
    with pytest.raises(NetworkError) as error:
        await client.request(MetadataRequest(topics=[]), node_id=node_id, timeout=60)
    return str(error.value)


async def test_a_caller_with_little_time_leaves_the_connection_to_the_others():
    async with EmbeddedCluster(transport="memory") as cluster:
        client = client_of(cluster)
        await client.request(DescribeClusterRequest(), timeout=5)
        made_at = client.node(-1).last_attempt
        cluster.delay("DescribeCluster", 60_000)
        patient = asyncio.ensure_future(client.request(MetadataRequest(topics=[]), timeout=5))
        with pytest.raises(KafkaTimeoutError, match=r"within 0\.05 s"):
            await client.request(DescribeClusterRequest(), timeout=0.05)
        cluster.clear_faults()
        assert (await patient).brokers
        assert client.node(-1).last_attempt == made_at
        await client.close()


async def test_a_missing_response_ends_the_connection_and_another_is_made():
    async with EmbeddedCluster(transport="memory") as cluster:
        client = client_of(cluster, request_timeout_ms=500)
        # The request is sent within its time if there is a connection.
        await client.request(DescribeClusterRequest(), timeout=5)
        cluster.delay("Metadata", 10_000)
        with pytest.raises(KafkaTimeoutError, match=r"within (0\.5 s|500 ms)"):
            await client.request(MetadataRequest(topics=[]), timeout=0.5)
        node = client.node(-1)
        async with asyncio.timeout(5):
            await node.disconnected()
        assert await client.request(MetadataRequest(topics=[]), timeout=5)
        await client.close()


async def test_a_backoff_that_ends_during_the_check_is_not_waited_for():
    async with EmbeddedCluster(transport="memory") as cluster:
        client = client_of(cluster, request_timeout_ms=100)
        # The request is sent within its time if there is a connection.
        await client.request(DescribeClusterRequest(), timeout=5)
        cluster.delay("Metadata", 10_000)
        with pytest.raises(KafkaTimeoutError):
            await client.request(MetadataRequest(topics=[]), timeout=0.1)
        node = client.node(-1)
        async with asyncio.timeout(5):
            await node.disconnected()
        loop = client._loop
        # Just before the backoff ends, and after it.
        times = [node.retry_at() - 0.001, node.retry_at() + 0.001]
        client._loop = SteppedClock(loop, times)
        async with asyncio.timeout(5):
            assert (await client._any_usable())[0] is node
        await client.close()


async def test_concurrent_metadata_requests_are_sent_once():
    async with EmbeddedCluster(transport="memory") as cluster:
        client = client_of(cluster)
        await asyncio.gather(*(client.renew_metadata(5) for _ in range(10)))
        assert client.metadata.version == 1
        # A caller that gives up leaves no trace of its request.
        cluster.delay("Metadata", 10_000)
        with pytest.raises(KafkaTimeoutError):
            await client.renew_metadata(0.3)
        assert not client.metadata.update_in_flight
        # Its response comes after all, and is dropped.
        cluster.clear_faults()
        cluster.disconnect("Metadata")
        await client.renew_metadata(5)
        await client.close()


async def test_the_brokers_are_returned_at_once_however_often_nothing_has_changed():
    """Listing transactions or groups took up to a second more each time: it renewed metadata, after its backoff."""
    async with EmbeddedCluster(2, transport="memory") as cluster:
        client = client_of(cluster, retry_backoff_max_ms=60_000)
        async with asyncio.timeout(5):
            for _ in range(20):
                assert sorted(await client.broker_ids(60)) == [1, 2]
        version = client.metadata.version
        assert await client.broker_ids(5)
        assert client.metadata.version == version
        await client.close()


async def test_metadata_lists_a_broker_that_has_joined_since():
    async with EmbeddedCluster(2, transport="memory") as cluster:
        await cluster.kill(2)
        client = client_of(cluster)
        assert await client.broker_ids(5) == [1]
        await cluster.restart(2)
        assert sorted(await client.broker_ids(5)) == [1, 2]
        assert 2 in client.metadata.nodes
        await client.close()


async def test_a_broker_that_knows_of_no_brokers_yet_is_an_error_that_is_retried():
    """No broker was asked for its transactions then, and the list was empty."""
    async with EmbeddedCluster(transport="memory") as cluster:
        client = client_of(cluster)
        with pytest.MonkeyPatch.context() as patch:

            async def starting(request, **_):
                return MetadataResponse(brokers=[])

            patch.setattr(client, "request", starting)
            with pytest.raises(LeaderNotAvailableError, match="lists no brokers"):
                await client.broker_ids(5)
        assert await client.broker_ids(5) == [1]
        await client.close()


async def test_metadata_is_renewed_for_a_broker_with_another_address():
    async with EmbeddedCluster(2, transport="memory") as cluster:
        client = client_of(cluster)
        await client.broker_ids(5)
        version = client.metadata.version
        node = client.metadata.nodes[2]
        client.metadata._nodes[2] = node._replace(port=node.port + 1)
        assert sorted(await client.broker_ids(5)) == [1, 2]
        assert client.metadata.version == version + 1
        assert client.metadata.nodes[2] == node
        await client.close()


async def test_a_new_client_can_send_to_the_coordinator_that_it_has_found():
    """It knew the bootstrap addresses only, and each first call failed once and waited for its backoff."""
    async with EmbeddedCluster(2, transport="memory") as cluster, cluster.producer(transactional_id="payments") as one:
        await one.init_transactions()
        client = client_of(cluster)
        found = await find_coordinators(client, CoordinatorType.TRANSACTION, ["payments"], 5)
        response = await client.request(DescribeClusterRequest(), node_id=found["payments"], timeout=5)
        assert len(response.brokers) == 2
        await client.close()


async def test_a_request_that_the_node_does_not_support_fails():
    async with EmbeddedCluster(transport="memory") as cluster:
        client = client_of(cluster)
        with pytest.raises(UnsupportedVersionError):
            await client.request(MetadataRequest(topics=[]), highest=-1, timeout=5)
        assert await client.request(MetadataRequest(topics=[]), timeout=5)
        await client.close()


async def test_requests_wait_for_a_throttled_node():
    async with EmbeddedCluster(transport="memory") as cluster:
        client = client_of(cluster)
        await client.renew_metadata(5)
        cluster.throttle("Metadata", 100)
        began = asyncio.get_running_loop().time()
        for _ in range(2):
            await client.request(MetadataRequest(topics=[]), node_id=1, timeout=5)
        assert asyncio.get_running_loop().time() - began > 0.05
        await client.close()
