"""Consumers in groups, against the embedded cluster."""

from __future__ import annotations

import asyncio
import re

import pytest

from aioproducer import OffsetAndMetadata, RebalanceListener, TopicPartition
from aioproducer.errors import (
    CommitFailedError,
    ConfigurationError,
    FencedInstanceIdError,
    GroupAuthorizationError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    RebalanceInProgressError,
    SubscriptionError,
    TopicAuthorizationError,
    WrongCallerError,
)

from .group_helpers import (
    CLICKS,
    PARTITIONS,
    TIMEOUT,
    Application,
    Heard,
    cluster_of,
    fill,
    member_of,
    offsets_of,
    until,
    values_of,
)

ALL = list(range(PARTITIONS))


# Reading in a group


async def test_a_member_reads_its_topics_and_goes_on_where_the_group_has_committed():
    async with cluster_of() as cluster:
        await fill(cluster, 20)
        async with member_of(cluster, "clicks") as consumer:
            assert sorted(await values_of(consumer, 20)) == list(range(20))
            assert consumer.assignment() == set(CLICKS)
            await consumer.commit()
        await fill(cluster, 4, first=20)
        async with member_of(cluster, "clicks") as consumer:
            assert sorted(await values_of(consumer, 4)) == [20, 21, 22, 23]


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_members_share_the_partitions_and_read_every_record_once(assignor):
    async with cluster_of() as cluster:
        await fill(cluster, 40)
        options = {"partition_assignment_strategy": [assignor]}
        async with member_of(cluster, "clicks", **options) as first, member_of(cluster, **options) as second:
            one = Application(first)
            await until(lambda: len(one.values) == 40, one)
            second.subscribe("clicks")
            two = Application(second)
            await until(lambda: len(one.owned) == len(two.owned) == 2, one, two)
            await fill(cluster, 40, first=40)
            await until(lambda: len(one.values) + len(two.values) == 80, one, two)
            assert sorted(one.values + two.values) == list(range(80))
            await two.stop()
            await second.close()
            await until(lambda: one.owned == ALL, one)
            await one.stop()


async def test_poll_returns_the_records_of_a_member():
    async with cluster_of() as cluster:
        await fill(cluster, 20)
        async with member_of(cluster) as consumer:
            consumer.subscribe(["clicks"])
            seen = []
            async with asyncio.timeout(TIMEOUT):
                while len(seen) < 20:
                    for records in (await consumer.poll(1.0, max_records=3)).values():
                        seen += [int(record.value) for record in records]
            assert sorted(seen) == list(range(20))


async def test_a_pattern_matches_whole_names_and_finds_new_topics():
    async with cluster_of(partitions=1) as cluster:
        cluster.create_topic("clicks-eu", 1)
        cluster.create_topic("other", 1)
        async with member_of(cluster, metadata_max_age_ms=50, fetch_max_wait_ms=10) as consumer:
            consumer.subscribe(re.compile("clicks-.*"))
            one = Application(consumer)
            await until(lambda: {each.topic for each in consumer.assignment()} == {"clicks-eu"}, one)
            cluster.create_topic("clicks-us", 1)
            await until(lambda: {each.topic for each in consumer.assignment()} == {"clicks-eu", "clicks-us"}, one)
            cluster.delete_topic("clicks-eu")
            await until(lambda: {each.topic for each in consumer.assignment()} == {"clicks-us"}, one)
            assert "clicks-eu" not in cluster.topics()
            await one.stop()


async def test_a_subscription_can_change():
    async with cluster_of(partitions=1) as cluster:
        cluster.create_topic("orders", 1)
        await fill(cluster, 1, topic="orders", partitions=1)
        await fill(cluster, 2, partitions=1)
        heard = Heard()
        async with member_of(cluster) as consumer:
            consumer.subscribe("clicks", listener=heard)
            assert await values_of(consumer, 2) == [0, 1]
            consumer.subscribe("orders", listener=heard)
            assert (await anext(consumer)).topic == "orders"
            assert consumer.assignment() == {TopicPartition("orders", 0)}
            assert set(consumer._fetcher.metadata.topics_in_use) == {"orders"}
        assert [word for word, _ in heard.calls] == ["assigned", "revoked", "assigned", "revoked"]


async def test_the_subscription_is_what_is_read():
    async with cluster_of() as cluster:
        await fill(cluster, 4)
        async with member_of(cluster) as consumer:
            assert consumer.subscription() == frozenset()
            consumer.subscribe(["clicks", "views"])
            assert consumer.subscription() == {"clicks", "views"}
            consumer.subscribe(re.compile("cl.*"))
            await values_of(consumer, 4)
            assert consumer.subscription() == {"clicks"}
            await consumer.unsubscribe()
            assert consumer.subscription() == frozenset()


async def test_metrics_tell_of_the_group():
    async with cluster_of() as cluster:
        await fill(cluster, 8)
        heard = Heard()
        async with member_of(cluster, enable_auto_commit=False, heartbeat_interval_ms=100) as consumer:
            assert consumer.metrics()["last-rebalance-seconds-ago"] == -1
            consumer.subscribe("clicks", listener=heard)
            await values_of(consumer, 8)
            await consumer.commit()
            await consumer.committed(CLICKS[0])
            await until(lambda: consumer.metrics()["heartbeat-total"] >= 1)
            metrics = consumer.metrics()
            for name in ("rebalance", "join", "sync", "commit"):
                assert metrics[f"{name}-total"] == 1
            assert metrics["failed-rebalance-total"] == 0
            assert metrics["assigned-partitions"] == PARTITIONS
            assert metrics["rebalance-latency-max"] >= metrics["sync-time-max"] > 0
            assert metrics["partition-assigned-latency-max"] >= 0
            assert metrics["commit-sync-time-ns-total"] > 0
            assert metrics["committed-time-ns-total"] > 0
            for name in ("last-poll-seconds-ago", "last-rebalance-seconds-ago", "last-heartbeat-seconds-ago"):
                assert 0 <= metrics[name] < TIMEOUT


async def test_unsubscribing_leaves_the_group_and_allows_assign():
    async with cluster_of() as cluster:
        await fill(cluster, 4)
        heard = Heard()
        async with member_of(cluster) as consumer:
            consumer.subscribe("clicks", listener=heard)
            await values_of(consumer, 4)
            with pytest.raises(SubscriptionError):
                consumer.assign([CLICKS[0]])
            await consumer.unsubscribe()
            assert heard.calls == [("assigned", ALL), ("revoked", ALL)]
            assert consumer.assignment() == set()
            consumer.assign([CLICKS[1]])
            with pytest.raises(SubscriptionError):
                consumer.subscribe("clicks")
            await consumer.unsubscribe()
            consumer.subscribe("clicks", listener=heard)
            await until(lambda: consumer._membership.membership.event is not None)
            assert await consumer.poll(TIMEOUT)
            assert heard.calls[-1] == ("assigned", ALL)


async def test_topics_that_are_no_longer_read_leave_the_metadata():
    """With auto-creation a deleted topic came back, as requests for metadata still named it."""
    async with cluster_of(**{"auto.create.topics.enable": "true"}) as cluster:
        async with member_of(cluster, metadata_max_age_ms=50) as consumer:
            consumer.subscribe("clicks")
            await until(lambda: bool(consumer.assignment()), Application(consumer))
        async with member_of(cluster, metadata_max_age_ms=50) as consumer:
            metadata = consumer._fetcher.metadata
            consumer.assign([CLICKS[0]])
            await consumer.position(CLICKS[0])
            await consumer.offsets_for_times({TopicPartition("clicks", 1): 1})
            consumer.assign([])
            await until(lambda: not list(metadata.topics_in_use))


# Arguments


async def test_calls_of_groups_need_a_group():
    with pytest.raises(ConfigurationError, match="topics needs group_id"):
        async with cluster_of() as cluster:
            cluster.consumer("clicks")
    async with cluster_of() as cluster, cluster.consumer() as consumer:
        with pytest.raises(ConfigurationError, match="subscribe needs group_id"):
            consumer.subscribe("clicks")
        with pytest.raises(ConfigurationError, match="commit needs group_id"):
            await consumer.commit()
        with pytest.raises(ConfigurationError, match="committed needs group_id"):
            await consumer.committed(CLICKS[0])
        with pytest.raises(ConfigurationError, match="group_metadata needs group_id"):
            consumer.group_metadata()


async def test_wrong_arguments_are_errors():
    async with cluster_of() as cluster, member_of(cluster) as consumer:
        for wrong in ([], [""], ()):
            with pytest.raises(ValueError, match="topic"):
                consumer.subscribe(wrong)
        for wrong in ([b"clicks"], re.compile(b"c")):
            with pytest.raises(TypeError):
                consumer.subscribe(wrong)
        with pytest.raises(TypeError, match="RebalanceListener"):
            consumer.subscribe("clicks", listener=print)
        with pytest.raises(ValueError, match="offset must be between"):
            await consumer.commit({CLICKS[0]: -1})
        with pytest.raises(TypeError, match="a partition is"):
            await consumer.commit({"clicks": 1})
        with pytest.raises(ValueError, match="group_membership_operation must be one of"):
            await consumer.close(group_membership_operation="stay")


# Offsets


async def test_offsets_are_committed_and_read():
    async with cluster_of() as cluster:
        await fill(cluster, 8)
        async with member_of(cluster, enable_auto_commit=False) as consumer:
            assert offsets_of(await consumer.committed(*CLICKS)) == dict.fromkeys(ALL)
            consumer.assign([CLICKS[0], CLICKS[1]])
            await consumer.commit({CLICKS[0]: 1, CLICKS[1]: OffsetAndMetadata(2, "m")})
            assert (await consumer.committed(CLICKS[1]))[CLICKS[1]] == OffsetAndMetadata(2, "m")
            assert offsets_of(await consumer.committed()) == {0: 1, 1: 2}
        async with member_of(cluster, enable_auto_commit=False) as consumer:
            consumer.assign([CLICKS[0], CLICKS[1]])
            assert await values_of(consumer, 1) == [4]
            await consumer.commit()
            assert offsets_of(await consumer.committed()) == {0: 2, 1: 2}


async def test_automatic_commits_never_pass_the_record_that_is_being_processed():
    async with cluster_of(partitions=1) as cluster:
        await fill(cluster, 3, partitions=1)
        async with member_of(cluster, "clicks") as consumer:
            await values_of(consumer, 2)
            await until(lambda: consumer._group._ledger._confirmed.get(CLICKS[0]) == 1)
            assert offsets_of(await consumer.committed(CLICKS[0])) == {0: 1}
        async with member_of(cluster, "clicks") as consumer:
            # Closing has not committed the second record: the next one was not requested.
            assert await values_of(consumer, 2) == [1, 2]
            assert await consumer.poll(0.05) == {}
        async with member_of(cluster, enable_auto_commit=False) as consumer:
            assert offsets_of(await consumer.committed(CLICKS[0])) == {0: 3}


async def test_an_automatic_commit_does_not_set_back_an_explicit_one():
    async with cluster_of(partitions=1) as cluster:
        await fill(cluster, 5, partitions=1)
        async with member_of(cluster, "clicks") as consumer:
            await values_of(consumer, 2)
            await consumer.commit({CLICKS[0]: 4})
            await values_of(consumer, 1)
            await asyncio.sleep(0.1)
            assert offsets_of(await consumer.committed(CLICKS[0])) == {0: 4}
        async with member_of(cluster, enable_auto_commit=False) as consumer:
            assert offsets_of(await consumer.committed(CLICKS[0])) == {0: 4}


async def test_an_explicit_commit_does_not_hold_back_those_of_a_topic_that_was_created_again():
    async with cluster_of(partitions=1) as cluster:
        await fill(cluster, 10, partitions=1)
        async with member_of(cluster, auto_commit_interval_ms=600_000) as consumer:
            consumer.assign([CLICKS[0]])
            await values_of(consumer, 10)
            await consumer.commit()
            cluster.recreate_topic("clicks")
            await fill(cluster, 3, partitions=1)
            assert await values_of(consumer, 3) == [0, 1, 2]
        async with member_of(cluster) as consumer:
            assert offsets_of(await consumer.committed(CLICKS[0])) == {0: 2}


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_positions_in_a_deleted_topic_do_not_become_those_of_a_new_one(assignor):
    async with cluster_of(partitions=1) as cluster:
        await fill(cluster, 30, partitions=1)
        options = {
            "partition_assignment_strategy": [assignor],
            "auto_commit_interval_ms": 600_000,
            "allow_auto_create_topics": False,
        }
        async with member_of(cluster, "clicks", metadata_max_age_ms=20, **options) as consumer:
            assert await values_of(consumer, 30) == list(range(30))
            await consumer.poll()
            # The handler of these records takes long: nothing is requested while the topic goes and comes.
            cluster.delete_topic("clicks")
            partition = consumer._fetcher.partitions[CLICKS[0]]
            await until(lambda: partition.is_missing)
            cluster.create_topic("clicks")
            await fill(cluster, 50, first=100, partitions=1)
            assert await values_of(consumer, 50) == list(range(100, 150))


async def test_without_automatic_commits_nothing_is_committed():
    async with cluster_of() as cluster:
        await fill(cluster, 8)
        async with member_of(cluster, "clicks", enable_auto_commit=False) as consumer:
            await values_of(consumer, 8)
            await consumer.poll(0.05)
        async with member_of(cluster) as consumer:
            assert offsets_of(await consumer.committed(*CLICKS)) == dict.fromkeys(ALL)


async def test_a_partition_without_an_offset_and_without_a_reset_is_an_error():
    async with cluster_of(partitions=1) as cluster, member_of(cluster, "clicks", auto_offset_reset="none") as consumer:
        with pytest.raises(NoOffsetForPartitionError):
            await consumer.poll(TIMEOUT)
        consumer.seek(CLICKS[0], 0)
        await fill(cluster, 1, partitions=1)
        assert await values_of(consumer, 1) == [0]


async def test_by_duration_begins_at_the_records_of_the_last_time():
    async with cluster_of(partitions=1) as cluster:
        async with cluster.producer() as producer:
            await producer.send("clicks", b"0", timestamp_ms=1000)
            await producer.send("clicks", b"1")
        async with member_of(cluster, "clicks", auto_offset_reset="by_duration:PT1H") as consumer:
            assert await values_of(consumer, 1) == [1]


# Errors of commits


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ILLEGAL_GENERATION", CommitFailedError),
        ("UNKNOWN_MEMBER_ID", CommitFailedError),
        ("FENCED_INSTANCE_ID", FencedInstanceIdError),
        ("REBALANCE_IN_PROGRESS", RebalanceInProgressError),
        ("GROUP_AUTHORIZATION_FAILED", GroupAuthorizationError),
        ("TOPIC_AUTHORIZATION_FAILED", TopicAuthorizationError),
    ],
)
async def test_errors_of_commits_are_those_of_kafka(code, kind):
    async with cluster_of() as cluster:
        await fill(cluster, 4)
        async with member_of(cluster, "clicks", enable_auto_commit=False) as consumer:
            await values_of(consumer, 4)
            cluster.fail("OffsetCommit", code)
            with pytest.raises(kind):
                await consumer.commit()


@pytest.mark.parametrize("code", ["COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"])
async def test_a_commit_is_repeated_after_errors_that_pass(code):
    async with cluster_of() as cluster:
        await fill(cluster, 4)
        async with member_of(cluster, "clicks", enable_auto_commit=False) as consumer:
            await values_of(consumer, 4)
            cluster.fail("OffsetCommit", code, times=2)
            await consumer.commit()
            assert offsets_of(await consumer.committed()) == dict.fromkeys(ALL, 1)


async def test_a_commit_without_an_answer_ends_with_a_timeout():
    async with cluster_of() as cluster:
        await fill(cluster, 4)
        async with member_of(cluster, "clicks", enable_auto_commit=False) as consumer:
            await values_of(consumer, 4)
            cluster.delay("OffsetCommit", 600_000, times=None)
            with pytest.raises(KafkaTimeoutError):
                await consumer.commit(timeout=0.05)
            cluster.clear_faults()


# Rebalances


async def test_partitions_are_revoked_when_their_last_record_is_processed():
    """Until the caller requests the next record, the other member gets nothing."""
    async with cluster_of() as cluster:
        await fill(cluster, 8)
        heard = Heard()
        async with member_of(cluster) as first, member_of(cluster) as second:
            first.subscribe("clicks", listener=heard)
            record = await anext(first)
            second.subscribe("clicks")
            two = Application(second)
            await until(lambda: first._membership.membership.event is not None, two)
            await asyncio.sleep(0.1)
            assert two.owned == []
            assert first.assignment() == set(CLICKS)
            assert heard.calls == [("assigned", ALL)]
            one = Application(first)
            await until(lambda: len(one.owned) == len(two.owned) == 2, one, two)
            await until(lambda: len(one.values) + len(two.values) == 7, one, two)
            # The record counts as processed, and the other member does not get it.
            assert sorted([int(record.value), *one.values, *two.values]) == list(range(8))
            await one.stop()
            await two.stop()


async def test_a_listener_can_commit_and_seek():
    class Committing(Heard):
        async def on_revoked(self, partitions):
            await super().on_revoked(partitions)
            await consumer.commit({name: await consumer.position(name) for name in partitions})

        async def on_assigned(self, partitions):
            await super().on_assigned(partitions)
            for name in partitions:
                consumer.seek(name, 1)
            consumer.pause(CLICKS[3])

    async with cluster_of() as cluster:
        await fill(cluster, 12)
        async with member_of(cluster, enable_auto_commit=False) as consumer:
            consumer.subscribe("clicks", listener=Committing())
            assert sorted(await values_of(consumer, 6)) == [4, 5, 6, 8, 9, 10]
            assert consumer.paused() == {CLICKS[3]}
            consumer.resume(CLICKS[3])
            assert sorted(await values_of(consumer, 2)) == [7, 11]
        async with member_of(cluster) as consumer:
            assert offsets_of(await consumer.committed(*CLICKS)) == dict.fromkeys(ALL, 3)


async def test_cooperative_rebalances_keep_what_stays():
    async with cluster_of() as cluster:
        await fill(cluster, 400)
        heard = Heard()
        options = {"partition_assignment_strategy": "cooperative-sticky"}
        async with member_of(cluster, **options) as first, member_of(cluster, **options) as second:
            first.subscribe("clicks", listener=heard)
            await values_of(first, 4)
            await until(lambda: all(each.buffered or each.ready for each in first._fetcher.partitions.values()))
            before = dict(first._fetcher.partitions)
            second.subscribe("clicks")
            two = Application(second)
            one = Application(first)
            await until(lambda: len(one.owned) == len(two.owned) == 2, one, two)
            kept = first._fetcher.partitions
            assert all(before[name] is each for name, each in kept.items())
            assert [word for word, _ in heard.calls[:3]] == ["assigned", "revoked", "assigned"]
            assert heard.calls[1] == ("revoked", sorted(set(ALL).difference(one.owned)))
            await until(lambda: len(one.values) + len(two.values) == 396, one, two)
            await one.stop()
            await two.stop()


async def test_a_listener_that_fails_raises_from_the_request_and_reading_goes_on():
    class Failing(RebalanceListener):
        async def on_assigned(self, partitions):
            raise ValueError("listener")

    async with cluster_of() as cluster:
        await fill(cluster, 4)
        async with member_of(cluster) as consumer:
            consumer.subscribe("clicks", listener=Failing())
            with pytest.raises(ValueError, match="listener"):
                await consumer.poll(TIMEOUT)
            assert sorted(await values_of(consumer, 4)) == [0, 1, 2, 3]


async def test_a_cancelled_request_does_not_cancel_the_listener():
    class Slow(Heard):
        async def on_assigned(self, partitions):
            began.set()
            await go_on.wait()
            await super().on_assigned(partitions)

    began, go_on, heard = asyncio.Event(), asyncio.Event(), Slow()
    async with cluster_of() as cluster:
        await fill(cluster, 4)
        async with member_of(cluster) as consumer:
            consumer.subscribe("clicks", listener=heard)
            call = asyncio.ensure_future(consumer.poll(TIMEOUT))
            await asyncio.wait_for(began.wait(), TIMEOUT)
            call.cancel()
            await asyncio.wait([call])
            assert await consumer.poll(0.05) == {}
            go_on.set()
            assert sorted(await values_of(consumer, 4)) == [0, 1, 2, 3]
            assert heard.calls == [("assigned", ALL)]


async def test_a_listener_must_not_close_or_unsubscribe():
    class Wrong(RebalanceListener):
        async def on_assigned(self, partitions):
            with pytest.raises(WrongCallerError):
                await consumer.close()
            with pytest.raises(WrongCallerError):
                await consumer.unsubscribe()
            self.was_called = True

    async with cluster_of() as cluster:
        await fill(cluster, 4)
        async with member_of(cluster) as consumer:
            listener = Wrong()
            consumer.subscribe("clicks", listener=listener)
            await values_of(consumer, 4)
            assert listener.was_called


# Lost memberships


async def test_a_static_member_that_is_replaced_is_fenced():
    async with cluster_of() as cluster:
        await fill(cluster, 4)
        heard = Heard()
        async with member_of(cluster, group_instance_id="a") as first:
            first.subscribe("clicks", listener=heard)
            await values_of(first, 1)
            async with member_of(cluster, "clicks", group_instance_id="a") as second:
                two = Application(second)
                await until(lambda: first._membership.membership.state.name == "FENCED", two)
                for _ in range(2):
                    with pytest.raises(FencedInstanceIdError):
                        await first.poll(TIMEOUT)
                with pytest.raises(CommitFailedError):
                    await first.commit({CLICKS[0]: 1})
                await until(lambda: len(two.values) == 4, two)
                await two.stop()
        assert heard.calls == [("assigned", ALL), ("lost", ALL)]


async def test_a_commit_that_raises_does_not_keep_close_from_leaving_the_group(monkeypatch):
    async with cluster_of() as cluster:
        await fill(cluster, 4)
        consumer = member_of(cluster)
        await consumer.start()
        consumer.assign(CLICKS)
        await values_of(consumer, 4)

        def refuse(*_, **__):
            raise ValueError("mine")

        monkeypatch.setattr(consumer._group, "_begin_automatic", refuse)
        with pytest.raises(ValueError, match="mine"):
            await consumer.close()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("aioproducer-group")]


@pytest.mark.parametrize(
    ("operation", "instance_id", "stays"),
    [
        ("default", None, False),
        ("leave_group", None, False),
        ("remain_in_group", None, True),
        ("default", "a", True),
        ("leave_group", "a", False),
        ("remain_in_group", "a", True),
    ],
)
async def test_closing_leaves_the_group_as_it_is_told(operation, instance_id, stays):
    async with cluster_of() as cluster:
        await fill(cluster, 4)
        consumer = member_of(cluster, "clicks", group_instance_id=instance_id)
        await consumer.start()
        await values_of(consumer, 4)
        await consumer.close(group_membership_operation=operation)
        group = cluster.broker_cluster.brokers[1].groups.group("billing")
        assert len(group.members) == stays
