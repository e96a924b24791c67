"""Members of a group on asyncio, against the embedded cluster in memory."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from aioproducer.core.membership.assignors import ASSIGNORS
from aioproducer.core.membership.states import FENCED, STABLE, UNJOINED
from aioproducer.core.transactions.requests import Result
from aioproducer.errors import FencedInstanceIdError, KafkaError, RebalanceInProgressError
from aioproducer.offsets import OffsetAndMetadata
from aioproducer.protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic
from aioproducer.record import TopicPartition
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.simulation import Simulation

from .group_application import Application

TIMEOUT = 20.0
PROPERTIES = {
    "group.initial.rebalance.delay.ms": 50,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 1,
}
ORDERS = [TopicPartition("orders", number) for number in range(4)]


def application(cluster: EmbeddedCluster | Simulation, assignor: str = "range", **settings: object) -> Application:
    # No member leaves because the machine is busy.
    patient = {"session_timeout_ms": 30_000, "max_poll_interval_ms": 30_000, "request_timeout_ms": 30_000, **settings}
    return Application(cluster.bootstrap_servers, cluster.transport, assignor, **patient)


@asynccontextmanager
async def group(brokers: int = 1, **properties: object) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(brokers, transport="memory", properties={**PROPERTIES, **properties}) as cluster:
        cluster.broker_cluster.create_topic("orders", 4, brokers)
        yield cluster


async def until(condition: object, *applications: Application) -> None:
    """Wait for a condition; the applications must not fail during that."""
    assert callable(condition)
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            for application in applications:
                if application.task is not None and application.task.done():
                    await application.task
            await asyncio.sleep(0.01)


def shared(*applications: Application) -> bool:
    states = {application.member.membership.state for application in applications}
    return states == {STABLE} and sorted(number for one in applications for number in one.owned) == [0, 1, 2, 3]


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
async def test_members_share_partitions_and_take_over_those_of_one_that_leaves(assignor: str) -> None:
    async with group() as cluster:
        first, second = application(cluster, assignor), application(cluster, assignor)
        first.start()
        await until(lambda: shared(first), first)
        second.start()
        await until(lambda: shared(first, second), first, second)
        assert [len(first.owned), len(second.owned)] == [2, 2]
        assert second.assignments[-1] == 2
        await second.stop()
        assert second.events[-1][0] == "revoked"
        await until(lambda: shared(first), first)
        assert ("lost", []) not in first.events
        await first.stop()


async def test_offsets_are_committed_and_fetched() -> None:
    async with group() as cluster:
        one = application(cluster)
        one.start()
        await until(lambda: shared(one), one)
        await one.member.commit({ORDERS[1]: OffsetAndMetadata(7, "m")}, TIMEOUT)
        found = await one.member.committed(ORDERS, TIMEOUT)
        assert found == {ORDERS[1]: OffsetAndMetadata(7, "m")}
        await one.stop()


async def test_a_fence_is_news_before_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for records that came between the response and the next turn returned records of a fenced member."""
    async with group() as cluster:
        one = application(cluster)
        one.start()
        await until(lambda: shared(one), one)
        member, loop = one.member, asyncio.get_running_loop()
        seen: list[bool] = []

        def fence(*_: object) -> None:
            member.membership._stop(FENCED, FencedInstanceIdError())
            loop.call_soon(lambda: seen.append(member.has_news))

        monkeypatch.setattr(member.membership, "answered", fence)
        commit = asyncio.create_task(member.commit({ORDERS[1]: OffsetAndMetadata(7)}, TIMEOUT))
        await until(lambda: seen)
        assert seen[0]
        commit.cancel()
        await one.stop()
        await asyncio.wait([commit])


async def test_offsets_can_be_committed_while_partitions_are_revoked() -> None:
    async with group() as cluster:
        first, second = application(cluster), application(cluster)

        async def commit(partitions: Collection[TopicPartition]) -> None:
            if partitions:
                await first.member.commit({where: OffsetAndMetadata(3) for where in partitions}, TIMEOUT)

        first.on_revoked = commit  # type: ignore[method-assign]  # as a subclass does
        first.start()
        await until(lambda: shared(first), first)
        second.start()
        await until(lambda: shared(first, second), first, second)
        assert len(await second.member.committed(ORDERS, TIMEOUT)) == 4
        await first.stop()
        await second.stop()


async def test_coordinator_that_moves_is_found_again_without_a_loss() -> None:
    async with group(2, **{"offsets.topic.replication.factor": 2}) as cluster:
        one = application(cluster)
        one.start()
        await until(lambda: shared(one), one)
        before = one.member.membership.coordinator
        assert before is not None
        await cluster.kill(before)
        await until(lambda: one.member.membership.coordinator not in (None, before), one)
        await one.member.commit({ORDERS[0]: OffsetAndMetadata(1)}, TIMEOUT)
        assert shared(one)
        assert [word for word, _ in one.events] == ["assigned"]
        await one.stop()


async def test_new_partitions_lead_to_a_rebalance() -> None:
    async with group() as cluster:
        one = application(cluster)
        one.start()
        await until(lambda: shared(one), one)
        topic = CreatePartitionsTopic(name="orders", count=6, assignments=None)
        response = await one.member._client.request(
            CreatePartitionsRequest(topics=[topic], timeout_ms=5000), timeout=TIMEOUT
        )
        assert response.results[0].error_code == 0
        await until(lambda: one.owned == [0, 1, 2, 3, 4, 5], one)
        await one.stop()


async def test_silent_application_leaves_the_group_and_returns() -> None:
    async with group() as cluster:
        first, second = application(cluster, max_poll_interval_ms=400), application(cluster)
        first.start()
        second.start()
        await until(lambda: shared(first, second), first, second)
        await first.pause()
        await until(lambda: shared(second), second)
        assert first.member.membership.state is UNJOINED
        first.task = asyncio.create_task(first._read())
        await until(lambda: shared(first, second), first, second)
        assert "lost" in [word for word, _ in first.events]
        await first.stop()
        await second.stop()


@pytest.mark.simulated(seeds=[1], brokers=1, properties=PROPERTIES)
async def test_member_leaves_while_it_joins(simulation: Simulation) -> None:
    """Its JoinGroup waits for the other member with a silent application; LeaveGroup uses another connection."""
    simulation.create_topic("orders", 4)
    first, second = application(simulation), application(simulation)
    first.start()
    await until(lambda: shared(first), first)
    await first.pause()
    second.start()
    await until(lambda: second.member.membership.generation.member_id != "", second)
    await asyncio.sleep(0.1)
    began = simulation.loop.time()
    await second.stop()
    assert simulation.loop.time() - began < 2
    known = simulation.cluster.brokers[1].groups.group("group")
    assert known is not None
    assert len(known.members) == 1
    await first.stop()


async def test_commit_during_a_rebalance_is_rejected() -> None:
    async with group() as cluster:
        one = application(cluster)
        one.join()
        with pytest.raises(RebalanceInProgressError):
            await one.member.commit({ORDERS[0]: OffsetAndMetadata(1)}, TIMEOUT)
        await one.stop()


async def test_listener_that_fails_raises_and_the_rebalance_continues() -> None:
    async with group() as cluster:
        one = application(cluster)

        async def fail(partitions: Collection[TopicPartition]) -> None:
            raise ValueError("listener")

        one.on_assigned = fail  # type: ignore[method-assign]  # as a subclass does
        one.join()
        await one.member.wait_changed()
        with pytest.raises(ValueError, match="listener"):
            await one.member.before_records()
        assert shared(one)
        await one.stop()


async def test_error_of_the_member_is_raised_and_the_next_call_tries_again() -> None:
    async with group(**{"group.min.session.timeout.ms": 2000}) as cluster:
        one = application(cluster, session_timeout_ms=1000)
        one.join()
        for _ in range(2):
            await one.member.wait_changed()
            with pytest.raises(KafkaError) as raised:
                await one.member.handle_events()
            assert getattr(raised.value, "error_name", "") == "INVALID_SESSION_TIMEOUT"
        await one.stop()


async def test_fenced_member_raises_from_then_on() -> None:
    async with group() as cluster:
        first, second = application(cluster, group_instance_id="a"), application(cluster, group_instance_id="a")
        first.start()
        await until(lambda: shared(first), first)
        second.start()
        assert first.task is not None
        with pytest.raises(FencedInstanceIdError):
            await first.task
        await until(lambda: shared(second), second)
        first.task = None
        await first.stop()
        assert first.events[-1][0] == "lost"
        await second.stop()


@pytest.mark.simulated(seeds=[1], brokers=1, properties=PROPERTIES)
async def test_close_is_bounded_when_the_coordinator_is_gone(simulation: Simulation) -> None:
    simulation.create_topic("orders", 4)
    one = application(simulation)
    one.start()
    await until(lambda: shared(one), one)
    await one.pause()
    await simulation.cluster.kill(1)
    one.member.begin_commit({ORDERS[0]: OffsetAndMetadata(1)})
    began = simulation.loop.time()
    await one.stop(1.0)
    assert simulation.loop.time() - began < 1.1


async def test_close_ends_calls_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    # Their addresses may ascend: a set of them would have their order by chance.
    monkeypatch.setattr(Result, "__hash__", lambda result: hash((id(result),)))
    async with group() as cluster:
        one = application(cluster)
        one.start()
        await until(lambda: shared(one), one)
        await one.pause()
        await cluster.kill(1)
        ended: list[int] = []
        for number in range(50):
            call = one.member.begin_commit({ORDERS[0]: OffsetAndMetadata(number)})
            call.add_callback(functools.partial(ended.append, number))
        await one.stop(0.1)
        assert ended == list(range(50))
