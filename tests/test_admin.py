"""Admin calls against the embedded broker: changes, results and retries."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random

import pytest

from aioproducer.admin import Admin, NoSuchTopicError
from aioproducer.errors import (
    ConfigurationError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    TopicAuthorizationError,
    TopicExistsError,
    error_class,
)
from aioproducer.protocol.messages import CreatePartitionsRequest, MetadataRequest
from aioproducer.protocol.messages.topics import CreatePartitionsTopic
from aioproducer.testing import EmbeddedCluster
from tests.simulation.loop import VirtualLoop
from tests.virtual_time import run_to_end
from tests.waiting import until

INVALID_REPLICATION_FACTOR = 38


def administer(cluster, timeout=5.0, **config):
    return Admin(
        bootstrap_servers=cluster.bootstrap_servers,
        transport=cluster.transport,
        timeout=timeout,
        retry_backoff_ms=5,
        **config,
    )


async def test_topics_can_be_created_and_deleted():
    async with EmbeddedCluster(3, transport="memory") as cluster, administer(cluster) as admin:
        await admin.create_topic("b", 2, 3, configs={"retention.ms": "1000"})
        await admin.create_topic("a")
        assert await admin.list_topics() == ["a", "b"]
        (topic,) = await admin.describe_topics(["b"])
        assert (topic.name, topic.is_internal, len(topic.topic_id)) == ("b", False, 16)
        assert [(each.partition, each.leader is None, sorted(each.replicas)) for each in topic.partitions] == [
            (0, False, [1, 2, 3]),
            (1, False, [1, 2, 3]),
        ]
        entries = {entry.name: entry for entry in await admin.topic_config("b")}
        assert (entries["retention.ms"].value, entries["retention.ms"].is_set) == ("1000", True)
        assert entries["cleanup.policy"].is_set is False
        with pytest.raises(TopicExistsError, match="'b' already exists"):
            await admin.create_topic("b")
        with pytest.raises(error_class(INVALID_REPLICATION_FACTOR)):
            await admin.create_topic("c", 1, 4)
        await admin.delete_topic("b")
        assert await admin.list_topics() == ["a"]


async def test_internal_topics_are_listed_on_demand():
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        cluster.create_topic("a")
        cluster.create_topic("__consumer_offsets")
        assert await admin.list_topics() == ["a"]
        assert await admin.list_topics(internal=True) == ["__consumer_offsets", "a"]


async def test_a_missing_topic_is_reported_and_not_created():
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        for call in (
            admin.describe_topics(["nope"]),
            admin.delete_topic("nope"),
            admin.topic_config("nope"),
            admin.list_offsets("nope", {0: "latest"}),
        ):
            with pytest.raises(NoSuchTopicError, match="There is no topic 'nope' in this cluster"):
                await call
        await admin.create_topic("a", 2)
        with pytest.raises(NoSuchTopicError, match="Topic a has no partition 2: it has 2, numbered from 0"):
            await admin.list_offsets("a", {2: "latest"})
        assert await admin.list_topics() == ["a"]
        with pytest.raises(TypeError, match=r"names must be an iterable of topic names, not str: pass \['a'\]"):
            await admin.describe_topics("a")


async def test_describe_cluster_lists_the_brokers():
    async with EmbeddedCluster(2, transport="memory") as cluster, administer(cluster) as admin:
        described = await admin.describe_cluster()
        assert [node.id for node in described.nodes] == [1, 2]
        assert described.cluster_id == cluster.broker_cluster.image.cluster_id
        assert described.controller in (1, 2)


async def test_offsets_can_be_listed_by_position_and_by_time():
    async with EmbeddedCluster(3, transport="memory") as cluster, administer(cluster) as admin:
        cluster.create_topic("a", 3)
        async with cluster.producer() as producer:
            for number in range(4):
                await producer.send("a", b"v", partition=1, timestamp_ms=1000 * number)
        assert await admin.list_offsets("a", {0: "latest", 1: "latest", 2: "earliest"}) == {0: 0, 1: 4, 2: 0}

        def at(seconds):
            return datetime.fromtimestamp(seconds, UTC)

        # A time after the last record means the end, as does any time in an empty partition.
        assert await admin.list_offsets("a", {0: at(1), 1: at(1.5)}) == {0: 0, 1: 2}
        assert await admin.list_offsets("a", {1: at(99)}) == {1: 4}
        # These numbers have special meanings: the latest, the earliest, and others in newer brokers.
        for before in (-0.001, -0.002, -3600):
            assert await admin.list_offsets("a", {1: at(before)}) == {1: 0}
        with pytest.raises(ValueError, match="must be 'earliest', 'latest' or a datetime, not 'beginning'"):
            await admin.list_offsets("a", {1: "beginning"})


async def test_listing_offsets_follows_a_moved_leader():
    async with EmbeddedCluster(3, transport="memory") as cluster, administer(cluster) as admin:
        cluster.create_topic("a")
        await cluster.wait_in_sync()
        assert await admin.list_offsets("a", {0: "latest"}) == {0: 0}
        cluster.move_leader("a", 0, cluster.leader("a", 0) % 3 + 1)
        assert await admin.list_offsets("a", {0: "latest"}) == {0: 0}
        cluster.disconnect("ListOffsets", times=2)
        assert await admin.list_offsets("a", {0: "latest"}) == {0: 0}
        assert cluster.pending_faults() == []
        await cluster.kill(cluster.leader("a", 0))
        assert await admin.list_offsets("a", {0: "latest"}) == {0: 0}


async def test_a_topic_deleted_during_a_call_is_reported():
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        cluster.create_topic("a")
        await admin.list_offsets("a", {0: "latest"})
        cluster.delete_topic("a")
        with pytest.raises(NoSuchTopicError, match="'a'"):
            await admin.list_offsets("a", {0: "latest"})


@pytest.mark.parametrize("error", ["NOT_CONTROLLER", "REQUEST_TIMED_OUT"])
async def test_retriable_errors_are_retried(error):
    async with EmbeddedCluster(3, transport="memory") as cluster, administer(cluster) as admin:
        cluster.fail("CreateTopics", error, times=2)
        await admin.create_topic("a")
        cluster.fail("DeleteTopics", error, times=1)
        await admin.delete_topic("a")
        assert cluster.pending_faults() == []


async def test_create_topic_waits_until_all_brokers_know_the_topic():
    async with EmbeddedCluster(3, transport="memory") as cluster, administer(cluster) as admin:
        for node in cluster.nodes:
            cluster.fail("Metadata", "UNKNOWN_TOPIC_OR_PARTITION", topic="a", node=node, times=2)
        cluster.fail("Metadata", "LEADER_NOT_AVAILABLE", topic="a", node=2)
        await admin.create_topic("a")
        assert cluster.pending_faults() == []


async def test_a_deleted_topic_of_the_same_name_is_not_mistaken_for_the_new_one(monkeypatch):
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        await admin.create_topic("a")
        (deleted,) = await admin.describe_topics(["a"])
        await admin.delete_topic("a")
        answered = []
        request = admin.client.request

        async def late(asked, **options):
            answer = await request(asked, **options)
            if isinstance(asked, MetadataRequest):
                answered.append(answer)
                if len(answered) < 3:
                    answer.topics[0].topic_id = deleted.topic_id
            return answer

        monkeypatch.setattr(admin.client, "request", late)
        await admin.create_topic("a")
        # Twice about the deleted topic, once about the new one, and once by the id from broker 1.
        assert len(answered) == 4


def reached_by_node_1(cluster, timeout):
    return Admin(
        bootstrap_servers=cluster.bootstrap_servers.split(",")[0],
        transport=cluster.transport,
        timeout=timeout,
        retry_backoff_ms=5,
    )


def test_create_topic_succeeds_though_brokers_do_not_report_the_topic(caplog):
    """On virtual time: the timeout also bounds the connection and the creation."""

    async def create():
        async with EmbeddedCluster(3, transport="memory") as cluster, reached_by_node_1(cluster, 0.3) as admin:
            cluster.delay("Metadata", 60_000, node=2)
            cluster.fail("Metadata", "UNKNOWN_TOPIC_OR_PARTITION", topic="a", node=3, times=None)
            await admin.create_topic("a")
            assert cluster.topics() == ["a"]

    run_to_end(VirtualLoop(Random(1)), create())
    hanging, late = sorted(line for line in caplog.messages if "was created" in line)
    # Either of two timers gives the reason.
    assert "The topic a was created, but broker 2 did not confirm it: " in hanging
    assert late.endswith("The topic a was created, but broker 3 does not know it yet")


@pytest.mark.parametrize("transport", ["memory", "tcp"])
async def test_create_topic_does_not_wait_for_a_broker_that_dies(transport, caplog, monkeypatch):
    monkeypatch.setattr("aioproducer.admin._PROPAGATION_TIMEOUT", 60)
    async with EmbeddedCluster(3, transport=transport) as cluster, reached_by_node_1(cluster, 60) as admin:
        cluster.delay("Metadata", 60_000, node=2)
        creating = asyncio.ensure_future(admin.create_topic("a"))
        await until(lambda: not cluster.pending_faults())
        await cluster.kill(2)
        async with asyncio.timeout(30):
            await creating
        # A wait that ends by a timeout leaves such a line.
        assert [line for line in caplog.messages if "was created" in line] == []


async def test_a_dead_controller_does_not_use_up_the_whole_timeout():
    async with EmbeddedCluster(3, transport="memory") as cluster, administer(cluster) as admin:
        await admin.create_topic("a")
        await cluster.kill(admin.client.metadata.controller_id)
        await admin.create_topic("b", replication_factor=2)
        await admin.delete_topic("a")
        assert cluster.topics() == ["b"]


async def test_a_broker_that_hangs_does_not_use_up_the_whole_timeout():
    """One attempt had the time of all: a broker that hung on an open connection failed the call, beside others."""
    async with (
        EmbeddedCluster(2, transport="memory") as cluster,
        administer(cluster, timeout=60.0, request_timeout_ms=200) as admin,
        asyncio.timeout(10),
    ):
        cluster.create_topic("a")
        await admin.list_topics()
        cluster.delay("Metadata", 60_000)
        assert await admin.list_topics() == ["a"]


async def test_a_topic_that_has_grown_has_its_new_partitions():
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        cluster.create_topic("a", 1)
        assert await admin.list_offsets("a", {0: "latest"}) == {0: 0}
        grown = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="a", count=2, assignments=None)], timeout_ms=5000
        )
        (grew,) = (await admin.client.request(grown, timeout=5)).results
        assert grew.error_code == 0, grew
        assert await admin.list_offsets("a", {1: "latest"}) == {1: 0}
        with pytest.raises(NoSuchTopicError, match="has no partition 2: it has 2"):
            await admin.list_offsets("a", {2: "latest"})


async def test_non_retriable_errors_are_raised_at_once_and_others_after_the_timeout():
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("a")
        async with administer(cluster) as admin:
            cluster.fail("Metadata", "TOPIC_AUTHORIZATION_FAILED", topic="a")
            with pytest.raises(TopicAuthorizationError):
                await admin.describe_topics(["a"])
            cluster.fail("ListOffsets", "TOPIC_AUTHORIZATION_FAILED", topic="a")
            with pytest.raises(TopicAuthorizationError):
                await admin.list_offsets("a", {0: "latest"})
        async with administer(cluster, timeout=0.5) as admin:
            # The last error says more than a plain timeout.
            cluster.fail("Metadata", "LEADER_NOT_AVAILABLE", topic="a", times=None)
            with pytest.raises(LeaderNotAvailableError):
                await admin.describe_topics(["a"])
            cluster.clear_faults()
            cluster.delay("Metadata", 5000)
            with pytest.raises(KafkaTimeoutError, match=r"No broker answered within 0\.5 s"):
                await admin.describe_topics(["a"])


async def test_an_unreachable_cluster_raises_a_timeout_with_the_reason():
    async with Admin(bootstrap_servers="127.0.0.1:1", timeout=0.3, reconnect_backoff_ms=50) as admin:
        with pytest.raises(KafkaTimeoutError, match=r"within 0\.3 s\. Nothing listens at 127\.0\.0\.1:1"):
            await admin.list_topics()


async def test_requests_wait_for_a_cluster_that_starts_late():
    async with EmbeddedCluster() as first:
        address = first.bootstrap_servers
        cluster = first.broker_cluster
        await first.stop()
        async with Admin(bootstrap_servers=address, timeout=10, reconnect_backoff_ms=20) as admin:
            asking = asyncio.ensure_future(admin.list_topics())
            await asyncio.sleep(0)
            await cluster.start()
            assert await asking == []
            await cluster.stop()


async def test_if_no_known_node_is_reachable_the_bootstrap_address_is_used_again():
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("a")
        async with Admin(
            bootstrap_servers=cluster.bootstrap_servers, timeout=10, reconnect_backoff_ms=20, retry_backoff_ms=5
        ) as admin:
            await admin.list_offsets("a", {0: "latest"})
            # Simulate a broker that advertises an unreachable address.
            metadata = admin.client.metadata
            elsewhere = metadata.node(1)._replace(port=1)
            metadata._nodes = {1: elsewhere}
            admin.client.node(1).set_address(elsewhere)
            assert await admin.list_offsets("a", {0: "latest"}) == {0: 0}
            assert metadata.node(1).port != 1


async def test_concurrent_calls_share_a_connection():
    async with EmbeddedCluster(transport="memory") as cluster, administer(cluster) as admin:
        await asyncio.gather(*(admin.create_topic(f"t{number}") for number in range(20)))
        assert len(await admin.list_topics()) == 20


async def test_configuration_is_checked_and_calls_before_start_raise():
    with pytest.raises(ConfigurationError, match="did you mean 'bootstrap_servers'"):
        Admin(bootstrap_server="localhost:9092")
    admin = Admin.from_config({"bootstrap.servers": "localhost:9092"})
    with pytest.raises(RuntimeError, match="async with Admin"):
        await admin.list_topics()
    await admin.start()
    await admin.start()
    await admin.close()
    await admin.close()


def test_an_unknown_transport_is_rejected_by_the_constructor():
    with pytest.raises(ConfigurationError, match="transport 'udp' does not exist"):
        Admin(bootstrap_servers="localhost:9092", transport="udp")
