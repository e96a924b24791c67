"""Offsets of a group in transactions: ``group_metadata`` fences a member that the group has replaced."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import ConsumerGroupMetadata
from aioproducer.errors import KafkaError

from .group_helpers import CLICKS, PARTITIONS, Application, cluster_of, fill, member_of, offsets_of, until, values_of

ALL = list(range(PARTITIONS))


async def _send_offsets(cluster, group):
    async with cluster.producer(transactional_id="t") as producer, producer.transaction() as transaction:
        transaction.send("out", b"x")
        await transaction.send_offsets({CLICKS[0]: 1}, group)


async def test_a_member_commits_with_a_transaction():
    async with cluster_of() as cluster:
        cluster.create_topic("out", 1)
        await fill(cluster, 4)
        async with member_of(cluster, "clicks", enable_auto_commit=False) as consumer:
            assert consumer.group_metadata() == ConsumerGroupMetadata("billing")
            await values_of(consumer, 4)
            metadata = consumer.group_metadata()
            assert metadata.generation_id >= 1
            await _send_offsets(cluster, metadata)
            assert offsets_of(await consumer.committed(CLICKS[0])) == {0: 1}


@pytest.mark.parametrize("how", ["silent", "removed", "replaced"])
async def test_a_replaced_member_cannot_commit_by_a_transaction(how):
    """Without the name of its generation the group would accept its offsets from any producer."""
    async with cluster_of() as cluster:
        cluster.create_topic("out", 1)
        await fill(cluster, 4)
        instance_id = "a" if how == "replaced" else None
        options = {"enable_auto_commit": False, "group_instance_id": instance_id}
        async with (
            member_of(cluster, "clicks", max_poll_interval_ms=300, **options) as first,
            member_of(cluster, **options) as second,
        ):
            await values_of(first, 1)
            held = first._membership.membership
            if how == "removed":
                cluster.expire_session("billing")
            second.subscribe("clicks")
            two = Application(second)
            await until(lambda: two.owned == ALL, two)
            await until(lambda: not held.generation.exists)
            for metadata in (first.group_metadata(), first.group_metadata()):
                assert metadata.generation_id >= 1
                with pytest.raises(KafkaError) as raised:
                    await _send_offsets(cluster, metadata)
                assert type(raised.value).__name__ in ("CommitFailedError", "FencedInstanceIdError")
            assert offsets_of(await second.committed(CLICKS[0])) == {0: None}
            await two.stop()
            assert cluster.records("out", committed=True) == []


async def test_after_it_has_joined_again_a_member_commits_for_what_it_reads_now():
    async with cluster_of() as cluster:
        cluster.create_topic("out", 1)
        await fill(cluster, 4)
        async with member_of(cluster, "clicks", enable_auto_commit=False) as consumer:
            await values_of(consumer, 4)
            before = consumer.group_metadata()
            cluster.expire_session("billing")
            await until(lambda: not consumer._membership.membership.generation.exists)
            assert consumer.group_metadata() == before
            assert sorted(await values_of(consumer, 4)) == [0, 1, 2, 3]
            assert consumer.group_metadata() != before
            await _send_offsets(cluster, consumer.group_metadata())


async def test_a_consumer_that_assigns_partitions_itself_commits_without_a_member():
    async with cluster_of() as cluster:
        cluster.create_topic("out", 1)
        await fill(cluster, 4)
        async with member_of(cluster, "clicks", enable_auto_commit=False) as consumer:
            await values_of(consumer, 4)
            before = consumer.group_metadata()
            await consumer.unsubscribe()
            assert consumer.group_metadata() == before
            consumer.assign([CLICKS[0]])
            assert consumer.group_metadata() == ConsumerGroupMetadata("billing")
            await _send_offsets(cluster, consumer.group_metadata())
            await asyncio.sleep(0)
