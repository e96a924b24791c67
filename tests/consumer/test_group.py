"""The group side of a consumer on values: a membership that a test commands, and no broker."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import OffsetAndMetadata
from aioproducer._common.client_log import ClientLog
from aioproducer.consumer.group import ConsumerGroup
from aioproducer.core.fetching.partition import FetchPosition
from aioproducer.core.membership.events import LeaveOperation
from aioproducer.core.transactions.requests import Result
from aioproducer.errors import (
    CommitFailedError,
    GroupAuthorizationError,
    KafkaTimeoutError,
    NetworkError,
    RebalanceInProgressError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
)
from tests.core.fetching_world import FetchingWorld

from .group_helpers import Heard


class Membership:
    """Notes what the group asks for; a test ends the commits."""

    def __init__(self):
        self.has_news = False
        self.commits = []
        self.answers = []
        self.was_left = False

    def start(self):
        """Nothing is sent."""

    def revocation_time(self):
        return 10.0

    def begin_commit(self, offsets, timeout=None, *, retries=True):
        assert timeout is None or timeout > 0
        result = Result()
        self.commits.append((dict(offsets), result))
        if self.answers:
            result.end(self.answers.pop(0))
        return result

    async def ended(self, result):
        ended = asyncio.Event()
        result.add_callback(ended.set)
        await ended.wait()
        if result.error is not None:
            raise result.error

    async def handle_events(self, timeout=None):
        return True

    def subscribe(self, topics):
        self.topics = topics

    def forget_generation(self):
        """There is none."""

    async def close(self, timeout, operation):
        self.was_left = operation


class World:
    def __init__(self, *, interval=1000.0):
        self.fetching = FetchingWorld(partitions=3).start()
        self.fetcher = self.fetching.fetcher
        self.names = self.fetching.names
        self.membership = Membership()
        self.changes = 0
        self.group = ConsumerGroup(
            asyncio.get_running_loop(),
            self.fetcher,
            changed=self._changed,
            commit_interval=interval,
            request_timeout=5.0,
            log=ClientLog("Consumer", "tests"),
        )
        self.group.membership = self.membership
        self.heard = Heard()
        self.group.subscribe(["a"], self.heard)
        self.listener = self.group

    def _changed(self):
        self.changes += 1

    def own(self, *numbers, held=()):
        owned = frozenset(self.names[number] for number in numbers)
        self.group.assigned(owned, owned - {self.names[number] for number in held})

    def process(self, number, offset):
        """Let the records before ``offset`` be processed."""
        self.fetcher.seek(self.names[number], FetchPosition(offset))

    def paused(self):
        return {name.partition for name, each in self.fetcher.partitions.items() if each.is_paused}

    def committed(self):
        return [
            {name.partition: each.offset for name, each in offsets.items()} for offsets, _ in self.membership.commits
        ]


# Holding


async def test_partitions_that_come_or_go_are_held_and_released():
    world = World()
    world.own(0, 1, 2, held=[2])
    assert world.paused() == {2}
    assert world.fetcher.paused() == frozenset()
    world.own(0, 1, 2)
    assert world.paused() == set()
    world.own(0, 1, 2, held=[0, 1])
    assert world.paused() == {0, 1}
    world.own(2)
    assert [name.partition for name in world.fetcher.partitions] == [2]
    assert world.changes == 4


async def test_a_partition_that_the_caller_pauses_while_it_is_held_stays_paused():
    world = World()
    name = world.names[2]
    world.own(0, 1, 2, held=[2])
    world.fetcher.pause(name)
    assert world.fetcher.paused() == {name}
    world.own(0, 1, 2)
    assert world.paused() == {2}
    assert world.fetcher.paused() == {name}
    world.fetcher.resume(name)
    assert world.paused() == set()


async def test_resuming_does_not_release_a_partition_that_is_held():
    world = World()
    name = world.names[2]
    world.fetcher.pause(name)
    world.own(0, 1, 2, held=[2])
    assert world.fetcher.paused() == {name}
    world.fetcher.resume(name)
    assert world.fetcher.paused() == frozenset()
    assert world.paused() == {2}
    world.own(0, 1, 2)
    assert world.paused() == set()


async def test_partitions_that_stay_keep_their_state():
    world = World()
    before = world.fetcher.partitions[world.names[1]]
    world.own(1, 2)
    assert world.fetcher.partitions[world.names[1]] is before
    world.own(0, 1)
    assert world.fetcher.partitions[world.names[1]] is before


# Revocation


async def test_what_is_processed_is_committed_before_the_listener_runs():
    world = World()
    world.process(0, 7)
    world.membership.answers = [None]
    await world.listener.on_revoked({world.names[0]})
    assert world.committed() == [{0: 7, 1: 0, 2: 0}]
    assert world.heard.calls == [("revoked", [0])]
    # Everything is confirmed.
    await world.listener.on_revoked({world.names[0]})
    assert len(world.membership.commits) == 1


@pytest.mark.parametrize("error", [RebalanceInProgressError, NetworkError])
async def test_a_commit_that_may_pass_is_repeated_before_the_listener_runs(error):
    world = World()
    world.process(0, 7)
    world.membership.answers = [error(), error(), None]
    await world.listener.on_revoked({world.names[0]})
    assert [each[0] for each in world.committed()] == [7, 7, 7]
    assert world.heard.calls == [("revoked", [0])]


@pytest.mark.parametrize("error", [CommitFailedError, UnknownTopicOrPartitionError, GroupAuthorizationError])
async def test_the_listener_runs_after_a_commit_that_failed_for_good(error):
    world = World()
    world.process(0, 7)
    world.membership.answers = [error()]
    await world.listener.on_revoked({world.names[0]})
    assert len(world.membership.commits) == 1
    assert world.heard.calls == [("revoked", [0])]


async def test_without_automatic_commits_the_listener_alone_runs():
    world = World(interval=None)
    world.process(0, 7)
    await world.listener.on_revoked({world.names[0]})
    assert world.membership.commits == []
    assert world.heard.calls == [("revoked", [0])]


async def test_lost_partitions_are_not_committed():
    world = World()
    world.process(0, 7)
    await world.listener.on_lost({world.names[0]})
    assert world.membership.commits == []
    assert world.heard.calls == [("lost", [0])]


# The timer


async def test_one_automatic_commit_is_in_progress_at_a_time():
    world = World()
    world.process(0, 7)
    world.group._commit_by_timer()
    world.process(0, 8)
    world.group._commit_by_timer()
    assert world.committed() == [{0: 7, 1: 0, 2: 0}]
    world.membership.commits[0][1].end()
    world.group._commit_by_timer()
    assert world.committed()[1:] == [{0: 8}]
    await world.group.close(0.0, LeaveOperation.DEFAULT)
    assert world.membership.was_left is LeaveOperation.DEFAULT


async def test_an_error_of_authorization_goes_to_the_caller_once():
    world = World()
    world.process(0, 7)
    world.group._commit_by_timer()
    world.membership.commits[0][1].end(GroupAuthorizationError())
    assert world.group.has_news
    with pytest.raises(GroupAuthorizationError):
        await world.group.handle_news(None)
    assert not world.group.has_news
    await world.group.close(0.0, LeaveOperation.DEFAULT)


async def test_an_explicit_commit_takes_the_positions_of_all_partitions():
    world = World()
    world.process(0, 7)
    world.membership.answers = [None]
    await world.group.commit(None, 5.0)
    assert world.committed() == [{0: 7, 1: 0, 2: 0}]
    world.membership.answers = [None]
    await world.group.commit({world.names[1]: OffsetAndMetadata(3)}, 5.0)
    world.process(1, 2)
    assert world.group._uncommitted() == {}


@pytest.mark.parametrize(
    ("error", "due"),
    [
        (TopicAuthorizationError(), {}),
        (KafkaTimeoutError(), {}),
        (CommitFailedError(), {0: 7, 1: 0, 2: 0}),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_the_timer_sets_back_no_offset_of_a_commit_that_failed_in_part(error, due):
    """The group may have accepted the offset of one partition, and refused the other."""
    world = World()
    world.process(0, 7)
    world.membership.answers = [error]
    with pytest.raises(type(error)):
        await world.group.commit({name: OffsetAndMetadata(100) for name in world.names}, 5.0)
    world.group._commit_by_timer()
    assert world.committed()[1:] == [due] * bool(due)
    world.process(0, 100)
    world.group._automatic = None
    world.group._commit_by_timer()
    assert world.committed()[-1][0] == 100
    await world.group.close(0.0, LeaveOperation.DEFAULT)
