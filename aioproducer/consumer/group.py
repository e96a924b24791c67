"""``ConsumerGroup``: the part of a consumer with ``group_id`` that subscribes, rebalances and commits.

The membership says which partitions are owned. New ones, and those that are about to be revoked, are *held*: assigned,
so that a listener can seek and commit them, but neither fetched nor returned.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from aioproducer.consumer.positions import CommitLedger, delivered_positions, processed_positions
from aioproducer.consumer_metrics import ConsumerMetrics
from aioproducer.errors import (
    AuthenticationError,
    AuthorizationError,
    CommitFailedError,
    FencedInstanceIdError,
    GroupAuthorizationError,
    KafkaError,
    KafkaTimeoutError,
    RebalanceInProgressError,
    UnknownTopicOrPartitionError,
)
from aioproducer.io.group_member import RebalanceListener

if TYPE_CHECKING:
    from aioproducer._common.client_log import ClientLog
    from aioproducer.consumer.membership import Membership
    from aioproducer.core.fetching.fetcher import Fetcher
    from aioproducer.core.membership.events import LeaveOperation
    from aioproducer.core.transactions.requests import Result
    from aioproducer.metrics import Sensor
    from aioproducer.offsets import ConsumerGroupMetadata, OffsetAndMetadata
    from aioproducer.record import TopicPartition

_LEAST_INTERVAL = 0.01
"""Seconds between two automatic commits, at least."""
_COMMIT_PART = 0.5
"""Of the time that the group waits for a member, the part that the commit before a revocation may take."""
_COMMIT_PAUSE = 0.1
"""Seconds between two attempts of this commit."""

_OF_THE_GROUP = (CommitFailedError, FencedInstanceIdError, GroupAuthorizationError, RebalanceInProgressError)
"""A commit that fails with one of these was refused for all partitions."""


class ConsumerGroup(RebalanceListener):
    """The part of a consumer that concerns its group.

    Args:
        changed: called when partitions have changed, or topics are watched.
        commit_interval: seconds between automatic commits; None without them.
        request_timeout: the longest time, in seconds, that the commit before a revocation takes.
    """

    membership: Membership
    """Set before the first use: it calls this object."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fetcher: Fetcher,
        *,
        changed: Callable[[], object],
        commit_interval: float | None,
        request_timeout: float,
        log: ClientLog,
        metrics: ConsumerMetrics | None = None,
    ) -> None:
        self._loop = loop
        self._fetcher = fetcher
        self._changed = changed
        self._commit_interval = commit_interval
        self._request_timeout = request_timeout
        self._log = log
        self._metrics = metrics or ConsumerMetrics()
        self._ledger = CommitLedger()
        self._listener = RebalanceListener()
        self._timer: asyncio.TimerHandle | None = None
        self._automatic: Result | None = None
        # The commits in progress of partitions that the caller has dropped.
        self._dropped: dict[Result, frozenset[TopicPartition]] = {}
        self._is_closing = False
        self._error: KafkaError | None = None
        self.is_subscribed = False

    def start(self) -> None:
        """Begin to send requests, and to commit automatically."""
        self.membership.start()
        self._arm()

    # The subscription

    def subscribe(self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None) -> None:
        """Read topics as a member of the group, instead of those that were subscribed before."""
        self._listener = listener or RebalanceListener()
        self.is_subscribed = True
        if isinstance(topics, re.Pattern):
            self.membership.subscribe_pattern(topics)
        else:
            self.membership.subscribe(frozenset(topics))

    @property
    def assigns(self) -> bool:
        """Whether the partitions are those of the member, and not of the caller."""
        return self.is_subscribed or self.membership.is_leaving

    async def unsubscribe(self) -> None:
        """Commit, run the listener for all partitions, and leave the group."""
        self.is_subscribed = False
        await self.membership.leave()

    def caller_assigns(self, wanted: Collection[TopicPartition]) -> None:
        """The caller is about to assign these partitions itself."""
        self.drop_others(wanted)
        self.membership.forget_generation()

    def drop_others(self, kept: Collection[TopicPartition]) -> None:
        """The caller is about to drop all other partitions: begin to commit what is processed of them."""
        if self._commit_interval is not None:
            offsets = {name: offset for name, offset in self._uncommitted().items() if name not in kept}
            if offsets:
                # The timer no longer sees them: this commit is tried again.
                result = self._begin_automatic(offsets, self._request_timeout, retries=True)
                self._dropped[result] = frozenset(offsets)
                result.add_callback(lambda: self._drop_ended(result))
        self._ledger.retain(kept)

    def _drop_ended(self, result: Result) -> None:
        self._dropped.pop(result, None)

    # Rebalances

    def assigned(self, owned: frozenset[TopicPartition], readable: frozenset[TopicPartition]) -> None:
        """The member owns these partitions; those that are not readable are about to come or go."""
        fetcher = self._fetcher
        if owned != fetcher.partitions.keys():
            kept = [name for name in fetcher.partitions if name in owned]
            fetcher.assign([*kept, *sorted(owned.difference(kept))], self._loop.time())
            self._ledger.retain(owned)
        fetcher.hold(owned - readable)
        self._changed()

    async def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Commit what is processed, then run the caller's ``on_revoked``.

        Raises:
            Exception: as the listener does.
        """
        if self._commit_interval is not None:
            wait = self._request_timeout
            if not self._is_closing:
                wait = min(wait, self.membership.revocation_time() * _COMMIT_PART)
            await self._commit_processed(wait)
        await self._timed(self._listener.on_revoked(partitions), self._metrics.revoked_latency)

    async def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Run the caller's ``on_assigned``."""
        await self._timed(self._listener.on_assigned(partitions), self._metrics.assigned_latency)

    async def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Run the caller's ``on_lost``."""
        await self._timed(self._listener.on_lost(partitions), self._metrics.lost_latency)

    async def _timed(self, call: Awaitable[None], latency: Sensor) -> None:
        """Wait for a call of the caller's listener, and record how long it took."""
        began = self._loop.time()
        await call
        now = self._loop.time()
        latency.record((now - began) * 1000, now)

    # Requests for records

    @property
    def has_news(self) -> bool:
        """Whether ``handle_news`` has something to do, or an error to raise."""
        return self.membership.has_news or self._error is not None

    async def handle_news(self, timeout: float | None) -> bool:
        """Run the listener for a rebalance; return whether it ended within ``timeout`` seconds.

        Raises:
            KafkaError: the member is fenced, has failed, or is not allowed to commit.
            Exception: the listener raised it.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error.fresh()
        return await self.membership.handle_events(timeout)

    # Offsets

    @property
    def watched_topics(self) -> frozenset[str]:
        """The topics whose metadata has to be kept."""
        return self.membership.watched_topics

    def metadata_applied(self) -> None:
        """Use newer metadata if there is some."""
        self.membership.metadata_applied()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the group and the member, as transactions need them."""
        return self.membership.group_metadata()

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets; partitions without one are missing.

        Raises:
            KafkaError: the coordinator rejects the request, or does not answer in time.
        """
        deadline = self._loop.time() + timeout
        await self._drops_ended(partitions, timeout)
        return await self.membership.committed(partitions, max(deadline - self._loop.time(), 0.0))

    async def _drops_ended(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        """Wait for the commits of these partitions that were begun when the caller dropped them."""
        commits = [result for result, names in self._dropped.items() if not names.isdisjoint(partitions)]
        if not commits:
            return
        # Failures have been logged. After a time-out the fetch of the offsets has no time left, and reports it.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                for result in commits:
                    with suppress(KafkaError):
                        await self.membership.ended(result)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, timeout: float) -> None:
        """Commit offsets, by default those behind the last returned records. Cancelling the call does not cancel it.

        Raises:
            KafkaError: the group does not accept the offsets.
        """
        partitions = self._fetcher.partitions
        self._ledger.forget_recreated(partitions.values())
        chosen = delivered_positions(partitions.values()) if offsets is None else offsets
        result = self.membership.begin_commit(chosen, timeout)
        own = {name: offset for name, offset in chosen.items() if name in partitions}
        self._ledger.explicit_begins(own)
        count = len(chosen)
        result.add_callback(lambda: self._explicit_ended(own, count, result.error))
        await self.membership.ended(result)

    def _explicit_ended(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], count: int, error: KafkaError | None
    ) -> None:
        may_be_accepted = error is not None and _may_be_accepted(error, count)
        self._ledger.explicit_ends(offsets, is_confirmed=error is None, may_be_accepted=may_be_accepted)

    # Automatic commits

    def _arm(self) -> None:
        if self._commit_interval is not None:
            self._timer = self._loop.call_later(max(self._commit_interval, _LEAST_INTERVAL), self._commit_by_timer)

    def _commit_by_timer(self) -> None:
        self._arm()
        if self._automatic is not None:
            return
        offsets = self._uncommitted()
        if offsets:
            self._automatic = self._begin_automatic(offsets, self._request_timeout)

    def _uncommitted(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what is processed and not committed, of all partitions."""
        partitions = self._fetcher.partitions.values()
        self._ledger.forget_recreated(partitions)
        return self._ledger.automatic(processed_positions(partitions))

    def _begin_automatic(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float, *, retries: bool = False
    ) -> Result:
        result = self.membership.begin_commit(offsets, timeout, retries=retries)
        result.add_callback(lambda: self._automatic_ended(result, offsets))
        return result

    def _automatic_ended(self, result: Result, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if self._automatic is result:
            self._automatic = None
        error = result.error
        if error is None:
            self._ledger.confirmed(
                {name: offset for name, offset in offsets.items() if name in self._fetcher.partitions}
            )
        elif isinstance(error, AuthenticationError | AuthorizationError):
            # Further attempts would fail as well.
            self._error = error
            self._changed()
        elif _may_pass(error):
            self._log.info("Automatic commit: %s", error)
        else:
            self._log.warning("Automatic commit: %s", error)

    async def _commit_processed(self, timeout: float) -> None:
        """Commit what is processed within ``timeout`` seconds, also while the group rebalances."""
        deadline = self._loop.time() + timeout
        while offsets := self._uncommitted():
            left = deadline - self._loop.time()
            if left <= 0:
                self._log.warning("Offsets were not committed within %.3g s: others read these records again", timeout)
                return
            result = self._begin_automatic(offsets, left)
            try:
                await self.membership.ended(result)
            except UnknownTopicOrPartitionError:
                # The topic was deleted. The group has accepted the other offsets.
                return
            except KafkaError as error:
                # It has been logged, or goes to the caller.
                if not _may_pass(error):
                    return
                await asyncio.sleep(_COMMIT_PAUSE)

    async def close(self, timeout: float, operation: LeaveOperation) -> None:
        """Commit what is processed, run the listener, and leave the group, within ``timeout`` seconds.

        Raises:
            Exception: the listener raised it.
        """
        deadline = self._loop.time() + timeout
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._commit_interval is not None and not self.is_subscribed and timeout > 0:
                # A member commits when its partitions are revoked.
                await self._commit_processed(timeout)
        finally:
            await self.membership.close(max(deadline - self._loop.time(), 0.0), operation)


def _may_pass(error: KafkaError) -> bool:
    """Return whether another commit may succeed."""
    return error.retriable or isinstance(error, RebalanceInProgressError)


def _may_be_accepted(error: KafkaError, count: int) -> bool:
    """Return whether the group may have some of ``count`` offsets although their commit has failed with ``error``.

    Groups judge the member for all partitions together, but topics and metadata for each partition. A commit without an
    answer in time may have arrived.
    """
    if isinstance(error, _OF_THE_GROUP):
        return False
    return count > 1 or isinstance(error, KafkaTimeoutError)
