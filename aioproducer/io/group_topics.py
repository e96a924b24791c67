"""The topics of a group's member: what a subscription matches, and the partitions that metadata lists for them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from aioproducer.core.metadata.cluster_metadata import REFUSED_TOPIC_CODES, ClusterMetadata
from aioproducer.core.requests.retry import Attempts, ExponentialBackoff
from aioproducer.error_codes import NONE, UNKNOWN_TOPIC_OR_PARTITION
from aioproducer.errors import KafkaError, broker_error
from aioproducer.protocol.messages.metadata import MetadataRequest

if TYPE_CHECKING:
    from aioproducer._common.client_log import ClientLog
    from aioproducer.core.membership.membership import GroupMembership
    from aioproducer.io.client import BrokerClient

# The version from which on "all topics" is not an empty list.
_ALL_TOPICS_FROM = 1


class GroupTopics:
    """Keeps a member's topics in the metadata, and passes their partitions to the membership.

    The owner of the metadata requests its updates, and calls ``metadata_applied`` after each.

    Args:
        client: lists all topics for a subscription by pattern.
        metadata_max_age: seconds between two such lists.
        exclude_internal: whether a pattern matches no internal topic.
        allow_creation: whether requests for named topics let brokers create them.
        spawn: starts a task; its owner ends it.
        changed: called when the membership has something to do, or there is an error for the caller.
        request_metadata: called when topics without metadata were added.
    """

    def __init__(
        self,
        client: BrokerClient,
        membership: GroupMembership,
        *,
        metadata_max_age: float,
        exclude_internal: bool,
        allow_creation: bool,
        backoff: ExponentialBackoff,
        random: Random,
        changed: Callable[[], object],
        request_metadata: Callable[[], object],
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        log: ClientLog,
    ) -> None:
        self._client = client
        self._metadata: ClusterMetadata = client.metadata
        self._membership = membership
        self._metadata_max_age = metadata_max_age
        self._exclude_internal = exclude_internal
        self._allow_creation = allow_creation
        self._attempts = Attempts(backoff, random)
        self._spawn = spawn
        self._changed = changed
        self._request_metadata = request_metadata
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._version = -1
        self._pattern: re.Pattern[str] | None = None
        self._listing: asyncio.Task[None] | None = None
        self._list_again = asyncio.Event()
        self._error: KafkaError | None = None
        self.watched: frozenset[str] = frozenset()
        """The topics whose metadata the member needs; the consumer keeps them in use."""

    # Subscriptions

    def subscribe(self, names: frozenset[str]) -> None:
        """Read the topics of these names."""
        self._end_pattern()
        self._metadata.allow_topic_creation(allowed=self._allow_creation)
        self._membership.subscribe(names)
        self._changed()

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Read all topics whose whole name matches ``pattern``, also those that are created later.

        Until the first list of topics has arrived, the member does not join.
        """
        self._end_pattern()
        # A topic that was deleted must not come back because its name was requested.
        self._metadata.allow_topic_creation(allowed=False)
        self._pattern = pattern
        self._listing = self._spawn(self._list_topics(pattern), "aioproducer-group-topics")

    def unsubscribe(self) -> None:
        """Match nothing any longer."""
        self._end_pattern()
        self._metadata.allow_topic_creation(allowed=self._allow_creation)
        self._error = None

    def _end_pattern(self) -> None:
        self._pattern = None
        if self._listing is not None:
            self._listing.cancel()
            self._listing = None

    async def _list_topics(self, pattern: re.Pattern[str]) -> None:
        """Match the cluster's topics now, every ``metadata_max_age``, and when the caller has received an error."""
        while True:
            self._list_again.clear()
            try:
                names = await self._matching(pattern)
            except KafkaError as error:
                if not error.retriable:
                    self._report(error)
                    await self._list_again.wait()
                    continue
                self._log.info("The topics of the cluster cannot be listed: %s", error)
                now = self._loop.time()
                self._attempts.failed(now)
                await asyncio.sleep(self._attempts.delay(now))
                continue
            self._attempts.succeeded()
            self._membership.subscribe(names, lambda name: pattern.fullmatch(name) is not None)
            self._changed()
            try:
                async with asyncio.timeout(self._metadata_max_age):
                    await self._list_again.wait()
            except TimeoutError:
                continue

    async def _matching(self, pattern: re.Pattern[str]) -> frozenset[str]:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        timeout = self._membership.settings.request_timeout_ms / 1000
        response = await self._client.request(request, lowest=_ALL_TOPICS_FROM, timeout=timeout)
        if response.error_code:
            raise broker_error(response.error_code)
        return frozenset(
            topic.name
            for topic in response.topics
            if topic.name is not None
            # An unknown topic was deleted while the brokers made the list.
            and topic.error_code not in (UNKNOWN_TOPIC_OR_PARTITION, *REFUSED_TOPIC_CODES)
            and not (topic.is_internal and self._exclude_internal)
            and pattern.fullmatch(topic.name)
        )

    # Metadata

    def watch(self) -> bool:
        """Keep the topics of the membership in use; return whether they have changed."""
        watched = self._membership.watched_topics
        if watched == self.watched:
            return False
        self.watched = watched
        self._version = -1
        self._apply()
        self._request_metadata()
        return True

    def metadata_applied(self) -> None:
        """Pass on the partitions of newer metadata."""
        if self._pattern is not None and self._listing is not None and self._listing.cancelled():
            # All tasks of the loop were cancelled, but the program continues.
            self._listing = self._spawn(self._list_topics(self._pattern), "aioproducer-group-topics")
        if self.watched and self._metadata.version != self._version:
            self._apply()
            self._changed()

    def _apply(self) -> None:
        self._version = self._metadata.version
        now = self._loop.time()
        covered = set()
        for name in self.watched:
            # Metadata of a topic that does not exist is requested again, with a backoff.
            self._metadata.add_topic(name, now)
            code = self._metadata.topic_error(name)
            if code != NONE or self._metadata.topic(name) is not None:
                covered.add(name)
            if code in REFUSED_TOPIC_CODES and name in self._membership.subscription:
                error = broker_error(code)
                error.args = (f"topic {name}: {error}",)
                self._report(error)
        self._membership.update_metadata({name: self._racks(name) for name in self.watched}, covered)

    def _racks(self, name: str) -> tuple[frozenset[str], ...]:
        """Return the racks of the replicas of each partition of a topic; empty if it does not exist."""
        topic = self._metadata.topic(name)
        if topic is None:
            return ()
        racks = []
        for partition in topic.partitions:
            nodes = [self._metadata.node(node_id) for node_id in partition.replicas]
            racks.append(frozenset(node.rack for node in nodes if node is not None and node.rack))
        return tuple(racks)

    # Errors

    def _report(self, error: KafkaError) -> None:
        self._error = error
        self._changed()

    @property
    def has_error(self) -> bool:
        """Whether an error waits for the caller."""
        return self._error is not None

    def take_error(self) -> KafkaError | None:
        """Return an error for the caller, once; what failed is tried again."""
        error, self._error = self._error, None
        if error is None:
            return None
        self._list_again.set()
        self._metadata.request_update(self._loop.time(), f"a topic of the subscription was refused: {error}")
        self._request_metadata()
        return error.fresh()

    async def close(self) -> None:
        """End the list of topics."""
        task = self._listing
        self._end_pattern()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)
