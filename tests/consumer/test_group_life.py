"""Lives of group consumers on virtual time: closing in every state, cancellation at every wait, blocked loops."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import Consumer, RebalanceListener, TopicPartition
from aioproducer.errors import (
    AuthenticationError,
    CommitFailedError,
    ConsumerClosedError,
    FencedInstanceIdError,
    GroupAuthorizationError,
    KafkaError,
    TopicAuthorizationError,
    WrongCallerError,
)
from aioproducer.testing import EmbeddedCluster
from tests.simulation import run as run_world
from tests.simulation.sasl import PLAIN, secure
from tests.simulation.test_cancellation import CancelledAt

from .group_helpers import (
    CLICKS,
    PARTITIONS,
    PROPERTIES,
    Application,
    Heard,
    fill,
    member_of,
    offsets_of,
    until,
    values_of,
)
from .virtual import run, run_at_each_step

COUNT = 24
MOST_STEPS = 1500
LIMITS = {"request_timeout_ms": 3000, "default_api_timeout_ms": 5000, "heartbeat_interval_ms": 500}


async def started(brokers=1, **properties):
    cluster = EmbeddedCluster(brokers, transport="memory", properties={**PROPERTIES, **properties})
    await cluster.start()
    cluster.create_topic("clicks", PARTITIONS)
    return cluster


async def group_members(cluster):
    """The number of members that the group has at its coordinator."""
    for broker in cluster.broker_cluster.brokers.values():
        group = broker.groups.group("billing")
        if group is not None:
            return len(group.members)
    return 0


# Closing


async def _outcome(call):
    try:
        await call
    except StopAsyncIteration:
        return "ended"
    except ConsumerClosedError:
        return "closed"
    return "done"


@pytest.mark.parametrize("api", ["Heartbeat", "OffsetCommit", "OffsetFetch", "JoinGroup", "SyncGroup", "Metadata"])
@pytest.mark.parametrize("when", [0.0, 0.02, 0.2, 2.0])
def test_closing_ends_the_calls_in_flight_within_its_timeout_in_every_state(api, when):
    """The broker does not answer one kind of request."""

    async def scenario(loop):
        cluster = await started()
        await fill(cluster, 4)
        consumer = member_of(cluster, "clicks", **LIMITS)
        await consumer.start()
        cluster.delay(api, 600_000, times=None)
        calls = [
            asyncio.ensure_future(_outcome(call))
            for call in (
                consumer.committed(*CLICKS, timeout=600.0),
                consumer.poll(600.0),
                consumer.offsets_for_times({CLICKS[0]: 0}, timeout=600.0),
            )
        ]
        await asyncio.sleep(when)
        calls.append(asyncio.ensure_future(_outcome(_commit(consumer))))
        if when:
            await asyncio.sleep(0.01)
        began = loop.time()
        await consumer.close(1.0)
        assert loop.time() - began < 1.5
        async with asyncio.timeout(0.1):
            outcomes = await asyncio.gather(*calls)
        assert set(outcomes) <= {"done", "closed"}
        cluster.clear_faults()
        await cluster.stop()

    run(scenario)


async def _commit(consumer):
    try:
        await consumer.commit({CLICKS[0]: 1}, timeout=600.0)
    except ConsumerClosedError:
        raise
    except KafkaError:
        # The member joins at the moment.
        return


def test_an_iteration_ends_when_the_consumer_closes():
    async def scenario(loop):
        cluster = await started()
        consumer = member_of(cluster, "clicks", **LIMITS)
        await consumer.start()
        call = asyncio.ensure_future(_outcome(anext(consumer)))
        await asyncio.sleep(1)
        await consumer.close()
        assert await call == "ended"
        assert await group_members(cluster) == 0
        for late in (consumer.commit(), consumer.committed(), consumer.poll(), consumer.unsubscribe()):
            with pytest.raises(ConsumerClosedError):
                await late
        await consumer.close()
        await cluster.stop()

    run(scenario)


def test_closing_commits_inside_of_on_revoked():
    class Committing(RebalanceListener):
        async def on_revoked(self, partitions):
            await consumer.commit(dict.fromkeys(partitions, 3))

    async def scenario(loop):
        nonlocal consumer
        cluster = await started()
        await fill(cluster, 4)
        consumer = member_of(cluster, enable_auto_commit=False, **LIMITS)
        await consumer.start()
        consumer.subscribe("clicks", listener=Committing())
        await consumer.poll(10.0)
        await consumer.close()
        async with member_of(cluster) as reader:
            assert offsets_of(await reader.committed(*CLICKS)) == dict.fromkeys(range(PARTITIONS), 3)
        await cluster.stop()

    consumer = None
    run(scenario)


@pytest.mark.parametrize("ignores", [False, True])
def test_closing_does_not_wait_for_a_listener_that_hangs(ignores):
    class Hanging(RebalanceListener):
        async def on_revoked(self, partitions):
            while True:
                try:
                    await asyncio.sleep(60)
                    return
                except asyncio.CancelledError:
                    if not ignores:
                        raise

    async def scenario(loop):
        cluster = await started()
        await fill(cluster, 4)
        consumer = member_of(cluster, **LIMITS)
        await consumer.start()
        consumer.subscribe("clicks", listener=Hanging())
        await consumer.poll(10.0)
        began = loop.time()
        await consumer.close(2.0)
        assert loop.time() - began < 4
        await cluster.stop()
        await asyncio.sleep(120)

    run(scenario)


def test_closing_sends_a_commit_whose_tasks_were_cancelled():
    """``for task in asyncio.all_tasks(): task.cancel()`` cancels the task that drives the member as well."""

    async def scenario(loop):
        cluster = await started()
        await fill(cluster, 4)
        heard = Heard()
        consumer = member_of(cluster, enable_auto_commit=False, **LIMITS)
        await consumer.start()
        consumer.subscribe("clicks", listener=heard)
        await consumer.poll(10.0)
        cluster.delay("OffsetCommit", 600_000, times=None)
        commit = asyncio.ensure_future(consumer.commit(dict.fromkeys(CLICKS, 1)))
        await asyncio.sleep(0.1)
        tasks = [task for task in asyncio.all_tasks() if task is commit or "aioproducer-group" in task.get_name()]
        assert len(tasks) == 3
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        cluster.clear_faults()
        began = loop.time()
        await consumer.close(10.0)
        assert loop.time() - began < 2
        assert [word for word, _ in heard.calls] == ["assigned", "revoked"]
        assert await group_members(cluster) == 0
        async with member_of(cluster) as reader:
            assert offsets_of(await reader.committed(*CLICKS)) == dict.fromkeys(range(PARTITIONS), 1)
        await cluster.stop()

    run(scenario)


def test_closing_leaves_part_of_its_time_to_the_listener_while_a_commit_waits():
    """The topic of the commit was deleted: the group may accept it when the topic exists again."""

    async def scenario(loop):
        cluster = await started()
        cluster.create_topic("deleted", 1)
        await fill(cluster, 4)
        heard = Heard()
        consumer = member_of(cluster, auto_commit_interval_ms=600_000, **LIMITS)
        await consumer.start()
        consumer.subscribe("clicks", listener=heard)
        await values_of(consumer, 4)
        await consumer.poll(0.1)
        cluster.delete_topic("deleted")
        commit = asyncio.ensure_future(_outcome(consumer.commit({TopicPartition("deleted", 0): 1}, timeout=600.0)))
        await asyncio.sleep(0.1)
        began = loop.time()
        await consumer.close(4.0)
        assert 1.9 < loop.time() - began < 3
        assert await commit == "closed"
        assert [word for word, _ in heard.calls] == ["assigned", "revoked"]
        assert await group_members(cluster) == 0
        async with member_of(cluster) as reader:
            assert offsets_of(await reader.committed(*CLICKS)) == dict.fromkeys(range(PARTITIONS), 1)
        await cluster.stop()

    run(scenario)


def test_the_error_of_a_listener_is_raised_when_the_consumer_has_left():
    class Failing(RebalanceListener):
        async def on_revoked(self, partitions):
            raise ValueError("listener")

    async def scenario(loop):
        cluster = await started()
        await fill(cluster, 4)
        consumer = member_of(cluster, **LIMITS)
        await consumer.start()
        consumer.subscribe("clicks", listener=Failing())
        await consumer.poll(10.0)
        with pytest.raises(ValueError, match="listener"):
            await consumer.close()
        assert await group_members(cluster) == 0
        await cluster.stop()

    run(scenario)


@pytest.mark.parametrize("call", [anext, Consumer.poll, Consumer.poll_arrow])
def test_a_listener_must_not_request_records(call):
    """The request would wait for the listener, which waits for the request."""

    class Wrong(Heard):
        async def on_assigned(self, partitions):
            await super().on_assigned(partitions)
            await asyncio.sleep(0.2)
            await call(consumer)

    async def scenario(loop):
        nonlocal consumer
        cluster = await started()
        await fill(cluster, 4)
        consumer, heard = member_of(cluster, **LIMITS), Wrong()
        await consumer.start()
        consumer.subscribe("clicks", listener=heard)
        async with asyncio.timeout(30):
            while not heard.calls:
                assert not await consumer.poll(0.1)
            # No request waits when the listener makes its own.
            await asyncio.sleep(1)
            with pytest.raises(WrongCallerError, match=r"listener must not call poll\(\)"):
                await consumer.poll(5.0)
            assert sorted(await values_of(consumer, 4)) == [0, 1, 2, 3]
        await consumer.close()
        await cluster.stop()

    consumer = None
    run(scenario)


# Cancellation


async def life(consumer, heard, seen):
    """A whole life, with all that can be awaited in it."""
    await consumer.start()
    consumer.subscribe("clicks", listener=heard)
    seen.append(int((await anext(consumer)).value))
    await consumer.position(CLICKS[0])
    await consumer.committed(timeout=5)
    for _ in range(3):
        note(seen, await consumer.poll(2.0, max_records=3))
    await consumer.commit()
    await consumer.unsubscribe()
    consumer.subscribe("clicks", listener=heard)
    seen.append(int((await anext(consumer)).value))


def note(seen, found):
    for records in found.values():
        seen += [int(record.value) for record in records]


class Waiting(Heard):
    """Each call takes a moment."""

    async def on_revoked(self, partitions):
        await asyncio.sleep(0.001)
        await super().on_revoked(partitions)

    async def on_assigned(self, partitions):
        await asyncio.sleep(0.001)
        await super().on_assigned(partitions)


def test_a_caller_can_be_cancelled_wherever_it_waits():
    """Afterwards the consumer reads the rest: every record once, as it never processed one without returning it."""

    async def scenario(loop, step):
        cluster = await started()
        await fill(cluster, COUNT)
        consumer, heard, seen = member_of(cluster, **LIMITS), Waiting(), []
        caller = CancelledAt(life(consumer, heard, seen), step)
        task = asyncio.ensure_future(caller.run())
        await asyncio.wait([task])
        assert task.cancelled() == caller.was_cancelled
        await consumer.start()
        consumer.subscribe("clicks", listener=heard)
        async with asyncio.timeout(60):
            while len(set(seen)) < COUNT:
                note(seen, await consumer.poll(5.0))
        assert sorted(seen) == list(range(COUNT))
        began = loop.time()
        await consumer.close()
        assert loop.time() - began < 2.0
        assert await group_members(cluster) == 0
        words = [word for word, numbers in heard.calls]
        assert words == (["assigned", "revoked"] * len(words))[: len(words)]
        await cluster.stop()
        return not caller.was_cancelled

    run_at_each_step(scenario, more_than=10, most=MOST_STEPS)


@pytest.mark.parametrize("name", ["GroupMember._drive", "GroupMember._exchange", "GroupMember._handle"])
def test_a_task_of_the_member_can_be_cancelled_wherever_it_waits(name):
    """``for task in asyncio.all_tasks(): task.cancel()`` does this."""

    async def scenario(loop, step):
        cluster = await started()
        await fill(cluster, COUNT)
        wrapped = []

        def factory(loop, coroutine, **options):
            if coroutine.__qualname__ == name and len(wrapped) < 4:
                wrapped.append(CancelledAt(coroutine, step))
                coroutine = wrapped[-1].run()
            return asyncio.Task(coroutine, loop=loop, **options)

        consumer, seen = member_of(cluster, **LIMITS), []
        loop.set_task_factory(factory)
        await consumer.start()
        consumer.subscribe("clicks", listener=Waiting())
        async with asyncio.timeout(120):
            while len(set(seen)) < COUNT:
                note(seen, await consumer.poll(5.0, max_records=5))
        loop.set_task_factory(None)
        assert set(seen) == set(range(COUNT))
        await consumer.close()
        await cluster.stop()
        return not any(each.was_cancelled for each in wrapped)

    run_at_each_step(scenario, more_than=1, most=20)


@pytest.mark.parametrize("name", ["GroupMember._drive", "GroupMember._exchange", "GroupMember._handle"])
def test_a_task_of_the_member_can_be_cancelled_before_it_begins(name):
    async def scenario(loop):
        cluster = await started()
        await fill(cluster, COUNT)
        cancelled = []

        def factory(loop, coroutine, **options):
            task = asyncio.Task(coroutine, loop=loop, **options)
            if coroutine.__qualname__ == name and len(cancelled) < 3:
                cancelled.append(task)
                task.cancel()
            return task

        consumer, seen = member_of(cluster, **LIMITS), []
        loop.set_task_factory(factory)
        await consumer.start()
        consumer.subscribe("clicks", listener=Waiting())
        async with asyncio.timeout(120):
            while len(set(seen)) < COUNT:
                note(seen, await consumer.poll(5.0, max_records=5))
        loop.set_task_factory(None)
        assert len(cancelled) >= 1
        await consumer.close()
        await cluster.stop()

    run(scenario)


def test_closing_can_be_cancelled_twice_wherever_it_waits():
    async def scenario(loop, step):
        cluster = await started()
        await fill(cluster, COUNT)
        consumer = member_of(cluster, **LIMITS)
        await consumer.start()
        consumer.subscribe("clicks", listener=Waiting())
        await consumer.poll(10.0)
        caller = CancelledAt(consumer.close(), step, times=2)
        await asyncio.wait([asyncio.ensure_future(caller.run())])
        await consumer.close()
        assert await group_members(cluster) == 0
        await cluster.stop()
        return not caller.was_cancelled

    run_at_each_step(scenario, more_than=1, most=50)


# Automatic commits


@pytest.mark.parametrize(
    ("move", "behind"),
    [(lambda consumer: consumer.seek(CLICKS[0], 3), 3), (lambda consumer: consumer.seek_to_end(CLICKS[0]), 6)],
    ids=["seek", "seek_to_end"],
)
def test_no_automatic_commit_covers_the_record_in_progress_after_a_seek(move, behind):
    async def committed(consumer):
        return (await consumer.committed(CLICKS[0]))[CLICKS[0]].offset

    async def scenario(loop):
        cluster = await started()
        await fill(cluster, 6, partitions=1)
        async with member_of(cluster, "clicks", **{**LIMITS, "auto_commit_interval_ms": 1000}) as consumer:
            assert (await anext(consumer)).offset == 0
            move(consumer)
            await asyncio.sleep(3)
            assert await consumer.position(CLICKS[0]) == behind
            assert await committed(consumer) == 0
            await consumer.poll(0.0, max_records=1)
            await asyncio.sleep(3)
            assert await committed(consumer) == behind
        await cluster.stop()

    run(scenario)


@pytest.mark.parametrize("way", ["assign", "unsubscribe"])
def test_what_is_processed_of_a_dropped_partition_is_committed(way):
    """The partition comes back before its commit is answered: it begins behind what is processed."""

    async def scenario(loop):
        cluster = await started()
        await fill(cluster, 8, partitions=2)
        async with member_of(cluster, **{**LIMITS, "auto_commit_interval_ms": 60_000}) as consumer:
            consumer.assign(CLICKS[:2])
            seen = []
            while len(seen) < 8:
                note(seen, await consumer.poll(5.0))
            assert await consumer.poll(0.0) == {}
            cluster.fail("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS")
            cluster.delay("OffsetCommit", 500)
            if way == "assign":
                consumer.assign(CLICKS[:1])
            else:
                await consumer.unsubscribe()
            consumer.assign(CLICKS[:2])
            assert await consumer.poll(5.0) == {}
            assert await consumer.position(CLICKS[1]) == 4
            assert (await consumer.committed(CLICKS[1]))[CLICKS[1]].offset == 4
        assert cluster.pending_faults() == []
        await cluster.stop()

    run(scenario)


# Commits before a revocation


@pytest.mark.parametrize("code", ["REBALANCE_IN_PROGRESS", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"])
def test_what_is_processed_is_kept_until_its_commit_is_confirmed(code):
    """The commit before a revocation is refused three times; the other member begins where the first one ended."""

    async def scenario(loop):
        cluster = await started()
        await fill(cluster, COUNT)
        options = {**LIMITS, "auto_commit_interval_ms": 600_000, "partition_assignment_strategy": "cooperative-sticky"}
        async with member_of(cluster, **options) as first, member_of(cluster, **options) as second:
            first.subscribe("clicks")
            seen = []
            while len(seen) < COUNT:
                note(seen, await first.poll(5.0))
            cluster.fail("OffsetCommit", code, times=3)
            second.subscribe("clicks")
            others = asyncio.ensure_future(second.poll(20.0))
            while not others.done():
                note(seen, await first.poll(0.5))
            assert others.result() == {}
            assert len(second.assignment()) == 2
        assert sorted(seen) == list(range(COUNT))
        assert cluster.pending_faults() == []
        await cluster.stop()

    run(scenario)


def test_a_cancelled_request_does_not_cancel_the_commit_before_a_revocation():
    async def scenario(loop):
        cluster = await started()
        await fill(cluster, COUNT)
        options = {**LIMITS, "auto_commit_interval_ms": 600_000}
        async with member_of(cluster, **options) as first, member_of(cluster, **options) as second:
            first.subscribe("clicks")
            seen = []
            while len(seen) < COUNT:
                note(seen, await first.poll(5.0))
            cluster.delay("OffsetCommit", 400)
            second.subscribe("clicks")
            while first._membership.membership.event is None:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
            for _ in range(5):
                call = asyncio.ensure_future(first.poll(5.0))
                await asyncio.sleep(0.05)
                call.cancel()
                await asyncio.wait([call])
            others = asyncio.ensure_future(second.poll(10.0))
            while not others.done():
                note(seen, await first.poll(0.5))
            assert others.result() == {}
        assert sorted(seen) == list(range(COUNT))
        await cluster.stop()

    run(scenario)


# Losses


def test_waiting_for_records_counts_as_requesting_them():
    async def scenario(loop):
        cluster = await started()
        heard, seen = Heard(), []
        async with member_of(cluster, max_poll_interval_ms=5000, **LIMITS) as consumer:
            consumer.subscribe("clicks", listener=heard)
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(60)
            await fill(cluster, 4)
            seen.append(int((await waiting).value))
            while len(seen) < 4:
                note(seen, await consumer.poll(60.0))
            assert heard.calls == [("assigned", list(range(PARTITIONS)))]
        await cluster.stop()

    run(scenario)


class Gate:
    """A deserializer that waits until it is open."""

    def __init__(self):
        self.is_entered = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, data):
        self.is_entered.set()
        await self.open.wait()
        return data


def test_a_request_that_deserializes_while_its_member_is_fenced_raises():
    async def scenario(loop):
        cluster, gate = await started(), Gate()
        await fill(cluster, 4)
        options = {**LIMITS, "group_instance_id": "a", "enable_auto_commit": False}
        async with member_of(cluster, "clicks", value_deserializer=gate, **options) as first:
            call = asyncio.ensure_future(anext(first))
            await asyncio.wait_for(gate.is_entered.wait(), 60)
            async with member_of(cluster, "clicks", **options) as second:
                await second.poll(20.0)
                while first._membership.membership.state.name != "FENCED":  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.1)
                await asyncio.sleep(5)
                gate.open.set()
                with pytest.raises(FencedInstanceIdError):
                    async with asyncio.timeout(1):
                        await call
        await cluster.stop()

    run(scenario)


def test_a_request_that_deserializes_while_its_member_loses_its_partitions_joins_again():
    async def scenario(loop):
        cluster, gate, heard = await started(), Gate(), Heard()
        await fill(cluster, 4)
        options = {**LIMITS, "enable_auto_commit": False, "max_poll_interval_ms": 5000}
        async with member_of(cluster, value_deserializer=gate, **options) as consumer:
            consumer.subscribe("clicks", listener=heard)
            call = asyncio.ensure_future(anext(consumer))
            await asyncio.wait_for(gate.is_entered.wait(), 60)
            await asyncio.sleep(10)
            assert await group_members(cluster) == 0
            gate.open.set()
            async with asyncio.timeout(5):
                assert (await call).offset == 0
            assert heard.calls == [(word, list(range(PARTITIONS))) for word in ("assigned", "lost", "assigned")]
        await cluster.stop()

    run(scenario)


def test_each_record_of_an_iteration_counts_as_a_request():
    """Records that were decoded before come without waiting."""

    async def scenario(loop):
        cluster = await started()
        await fill(cluster, COUNT)
        heard, seen = Heard(), []
        async with member_of(cluster, max_poll_interval_ms=5000, **LIMITS) as consumer:
            consumer.subscribe("clicks", listener=heard)
            async for record in consumer:
                seen.append(int(record.value))
                await asyncio.sleep(4)
                if len(seen) == COUNT:
                    break
            assert heard.calls == [("assigned", list(range(PARTITIONS)))]
        await cluster.stop()

    run(scenario)


def test_a_member_that_requests_no_records_leaves_and_comes_back(caplog):
    async def scenario(loop):
        cluster = await started()
        await fill(cluster, 8)
        heard, seen = Heard(), []
        everything = list(range(PARTITIONS))
        async with member_of(cluster, max_poll_interval_ms=5000, auto_commit_interval_ms=600_000, **LIMITS) as consumer:
            consumer.subscribe("clicks", listener=heard)
            await anext(consumer)
            before = consumer.group_metadata()
            await asyncio.sleep(6)
            assert await group_members(cluster) == 0
            # The group refuses the offsets of this generation, also in a transaction.
            assert consumer.group_metadata() == before
            with pytest.raises(CommitFailedError):
                await consumer.commit()
            while len(seen) < 8:
                note(seen, await consumer.poll(60.0))
            assert sorted(seen) == list(range(8))
            assert heard.calls == [("assigned", everything), ("lost", everything), ("assigned", everything)]
        await cluster.stop()

    run(scenario)
    assert caplog.text.count("No records were requested within max_poll_interval_ms (5000)") == 1


@pytest.mark.parametrize("leaves", [False, True])
def test_a_revocation_that_waits_until_the_generation_is_lost_is_a_loss(leaves):
    """A handler sleeps through a rebalance and ``max_poll_interval_ms``; nothing is committed afterwards."""

    async def scenario(loop):
        cluster = await started()
        await fill(cluster, COUNT)
        heard = Heard()
        everything = list(range(PARTITIONS))
        options = {**LIMITS, "max_poll_interval_ms": 5000, "auto_commit_interval_ms": 600_000}
        consumer = member_of(cluster, **options)
        await consumer.start()
        consumer.subscribe("clicks", listener=heard)
        await values_of(consumer, 3)
        async with member_of(cluster, "clicks", **options) as other:
            application = Application(other)
            await asyncio.sleep(4.5)
            assert not application.owned
            await until(lambda: application.owned == everything, application)
            await application.stop()
            if leaves:
                await consumer.close()
            while len(heard.calls) < 2:
                await consumer.poll(0.1)
            assert heard.calls[:2] == [("assigned", everything), ("lost", everything)]
            assert set(offsets_of(await other.committed(*CLICKS)).values()) <= {None}
        await consumer.close()
        await cluster.stop()

    run(scenario)


@pytest.mark.parametrize("leave", [Consumer.close, Consumer.unsubscribe])
def test_a_member_that_leaves_after_its_loss_does_not_set_back_the_offsets_of_another(leave):
    """The listener commits: by default ``on_lost`` calls ``on_revoked``."""

    class Committing(RebalanceListener):
        def __init__(self):
            self.errors = []

        async def on_revoked(self, partitions):
            try:
                await consumer.commit()
            except KafkaError as error:
                self.errors.append(type(error))

    async def scenario(loop):
        nonlocal consumer
        cluster = await started()
        await fill(cluster, COUNT)
        listener = Committing()
        options = {**LIMITS, "max_poll_interval_ms": 5000, "enable_auto_commit": False}
        consumer = member_of(cluster, **options)
        await consumer.start()
        consumer.subscribe("clicks", listener=listener)
        await values_of(consumer, 1)
        await asyncio.sleep(6)
        async with member_of(cluster, "clicks", **options) as other:
            await values_of(other, COUNT)
            await other.commit()
        # A group without members accepts every commit that names no member.
        await leave(consumer)
        async with member_of(cluster) as reader:
            ends = dict.fromkeys(range(PARTITIONS), COUNT // PARTITIONS)
            assert offsets_of(await reader.committed(*CLICKS)) == ends
        assert listener.errors == [CommitFailedError]
        await consumer.close()
        await cluster.stop()

    consumer = None
    run(scenario)


def test_a_member_without_partitions_comes_back_too():
    async def scenario(loop):
        cluster = await started()
        cluster.create_topic("one", 1)
        await fill(cluster, 1, topic="one", partitions=1)
        options = {**LIMITS, "max_poll_interval_ms": 5000, "group_instance_id": None}
        async with member_of(cluster, **options) as first, member_of(cluster, **options) as second:
            first.subscribe("one")
            await first.poll(10.0)
            second.subscribe("one")
            async with asyncio.timeout(60):
                while await group_members(cluster) < 2 or second.group_metadata().generation_id < 0:
                    await first.poll(0.5)
                    await second.poll(0.0)
            idle = first if not first.assignment() else second
            busy = second if idle is first else first
            assert not idle.assignment()
            for _ in range(20):
                await busy.poll(0.5)
            assert await group_members(cluster) == 1
            await busy.close()
            await fill(cluster, 1, topic="one", partitions=1)
            assert await idle.poll(60.0)
        await cluster.stop()

    run(scenario)


def test_a_blocked_loop_that_costs_the_membership_is_logged_with_its_duration(caplog):
    async def scenario(loop):
        # The coordinator's clock goes on while this loop is blocked.
        cluster = await started()
        await fill(cluster, 4)
        heard = Heard()
        async with member_of(cluster, session_timeout_ms=6000, **LIMITS) as consumer:
            consumer.subscribe("clicks", listener=heard)
            await consumer.poll(10.0)
            await asyncio.sleep(3)
            loop.hold_up(42.0)
            while ("lost", list(range(PARTITIONS))) not in heard.calls:
                await consumer.poll(1.0)
            while len(heard.calls) < 3:
                await consumer.poll(1.0)
        await cluster.stop()

    run(scenario)
    blocked = [record.getMessage() for record in caplog.records if "loop was blocked" in record.getMessage()]
    assert len(blocked) == 1
    seconds = float(blocked[0].split("up to ")[1].split(" s")[0])
    assert 40.9 <= seconds <= 42.1


def test_a_listener_that_hangs_holds_up_the_group_at_most_max_poll_interval():
    """Waiting for the listener does not count as requesting records."""

    class Hanging(Heard):
        async def on_revoked(self, partitions):
            await super().on_revoked(partitions)
            if len(self.calls) == 2:
                await asyncio.sleep(30)

    async def scenario(loop):
        cluster = await started()
        await fill(cluster, COUNT)
        options = {**LIMITS, "max_poll_interval_ms": 5000}
        heard = Hanging()
        async with member_of(cluster, **options) as first, member_of(cluster, **options) as second:
            first.subscribe("clicks", listener=heard)
            seen = []
            while len(seen) < COUNT:
                note(seen, await first.poll(5.0))
            waiting = asyncio.ensure_future(first.poll(1000.0))
            second.subscribe("clicks")
            began = loop.time()
            while len(second.assignment()) < PARTITIONS:
                await second.poll(0.1)
            assert loop.time() - began < 8
            while len(first.assignment()) != 2:
                await second.poll(0.5)
            assert heard.calls[1] == ("revoked", list(range(PARTITIONS)))
            waiting.cancel()
            await asyncio.wait([waiting])
        await cluster.stop()

    run(scenario)


# Errors for the caller


@pytest.mark.parametrize("api", ["FindCoordinator", "JoinGroup", "SyncGroup", "OffsetFetch"])
def test_a_group_that_is_not_allowed_is_an_error_of_the_caller_and_not_tried_again_by_itself(api):
    async def scenario(loop):
        cluster = await started()
        await fill(cluster, 4)
        async with member_of(cluster, "clicks", **LIMITS) as consumer:
            cluster.fail(api, "GROUP_AUTHORIZATION_FAILED", times=2)
            for _ in range(2):
                with pytest.raises(GroupAuthorizationError):
                    await consumer.poll(60.0)
                # Nothing is sent before the caller asks again.
                await asyncio.sleep(30)
            assert await consumer.poll(60.0)
        await cluster.stop()

    run(scenario)


def test_a_commit_that_is_not_allowed_is_an_error_of_the_next_request():
    async def scenario(loop):
        cluster = await started()
        await fill(cluster, 4)
        async with member_of(cluster, "clicks", **LIMITS) as consumer:
            await consumer.poll(60.0)
            cluster.fail("OffsetCommit", "GROUP_AUTHORIZATION_FAILED")
            await asyncio.sleep(1)
            with pytest.raises(GroupAuthorizationError):
                await anext(_polls(consumer))
        await cluster.stop()

    run(scenario)


async def _polls(consumer):
    while True:
        if not await consumer.poll(60.0):
            yield


def test_a_topic_that_is_not_allowed_is_an_error_of_the_caller():
    async def scenario(loop):
        cluster = await started()
        await fill(cluster, 4)
        async with member_of(cluster, **LIMITS) as consumer:
            cluster.fail("Metadata", "TOPIC_AUTHORIZATION_FAILED", topic="clicks", times=1)
            consumer.subscribe("clicks")
            with pytest.raises(TopicAuthorizationError, match="clicks"):
                await consumer.poll(60.0)
            seen = []
            while len(seen) < 4:
                note(seen, await consumer.poll(60.0))
        await cluster.stop()

    run(scenario)


def test_a_rejected_login_is_an_error_of_the_caller_and_not_tried_again_by_itself():
    async def scenario(world):
        rules = secure(world.cluster)
        keys = {**PLAIN, "sasl_password": "wrong", "group_id": "billing", "bootstrap_servers": "broker1:9092"}
        async with Consumer("clicks", transport=world, **keys, **LIMITS) as consumer:
            for _ in range(2):
                with pytest.raises(AuthenticationError):
                    await consumer.poll(60.0)
                attempts = len(rules.logins)
                # An account would be locked by attempts that no caller asks for.
                await asyncio.sleep(60)
                assert len(rules.logins) <= attempts + 1

    run_world(scenario)
