"""Single requests: to a given node or to any node, and what ends the wait."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer._client.factory import connector_for
from aioproducer._common.client_log import ClientLog
from aioproducer.admin import make_client
from aioproducer.config import ProducerConfig
from aioproducer.errors import (
    ConnectionFailedError,
    KafkaTimeoutError,
    NetworkError,
    UnsupportedVersionError,
)
from aioproducer.protocol.messages import DescribeClusterRequest, MetadataRequest
from aioproducer.testing import EmbeddedCluster

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


async def test_a_missing_response_ends_the_connection_and_another_is_made():
    async with EmbeddedCluster(transport="memory") as cluster:
        client = client_of(cluster)
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
        client = client_of(cluster)
        cluster.delay("Metadata", 10_000)
        with pytest.raises(KafkaTimeoutError):
            await client.request(MetadataRequest(topics=[]), timeout=0.1)
        node = client.node(-1)
        async with asyncio.timeout(5):
            await node.disconnected()
        loop = client._loop
        # Just before the backoff ends, and after it.
        times = iter([node.retry_at() - 0.001, node.retry_at() + 0.001])

        class Clock:
            def __getattr__(self, name):
                return getattr(loop, name)

            def time(self):
                return next(times, None) or loop.time()

        client._loop = Clock()
        async with asyncio.timeout(5):
            assert await client._any_usable() is node
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
        cluster.disconnect("Metadata")
        await client.renew_metadata(5)
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
        await client.request(MetadataRequest(topics=[]), node_id=1, timeout=5)
        began = asyncio.get_running_loop().time()
        await client.request(MetadataRequest(topics=[]), node_id=1, timeout=5)
        assert asyncio.get_running_loop().time() - began > 0.05
        await client.close()
