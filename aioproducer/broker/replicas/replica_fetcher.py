"""Replication of followed partitions: one task for each leading node fetches their records.

The rules are those of Kafka's ``AbstractFetcherThread``, ``ReplicaFetcherThread`` and ``FetchSessionHandler``, with
truncation by the leader's response (KIP-595) and incremental sessions (KIP-227). A Fetch names only partitions with an
offset that changed since the last one, so idle partitions cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from aioproducer.broker.replicas.partition import NO_EPOCH, Partition
from aioproducer.broker.server.peer import PeerClient
from aioproducer.errors import (
    BrokerNotAvailableError,
    FencedLeaderEpochError,
    FetchSessionIdNotFoundError,
    InconsistentTopicIdError,
    KafkaError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    broker_error,
)
from aioproducer.protocol.messages import FetchRequest, ListOffsetsRequest
from aioproducer.protocol.messages.fetch import (
    FetchPartition,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from aioproducer.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsTopic

if TYPE_CHECKING:
    from aioproducer.broker.config import BrokerConfig
    from aioproducer.broker.replicas.host import PartitionKey, ReplicaHost
    from aioproducer.protocol import Buffer, Records

logger = logging.getLogger(__name__)

FIRST_BACKOFF = 0.02
"""Seconds of backoff after the first error. Each further error doubles it, up to replica.fetch.backoff.ms.

Kafka waits that maximum at once. Here the leader is in the same process, and receives pending events of the controller
in the next passes of the loop."""

INTERRUPT_INTERVAL = 0.05
"""Minimum seconds between two Fetches that are abandoned because another partition must be fetched."""

LONGEST_TURN = 0.002
"""Seconds of small appends after which other callbacks get a turn."""

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
_LAST_SESSION_EPOCH = 2**31 - 1

_WAIT_FOR_CONTROLLER = (
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    NotLeaderOrFollowerError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
"""One of the two nodes has newer state than the other; the controller notifies both."""

FETCH_VERSION = FetchRequest.schema.versions[-1]
LIST_OFFSETS_VERSION = ListOffsetsRequest.schema.versions[-1]

_TopicIdPartition = tuple[bytes, int]
"""Topic id and partition index, which identify a partition in a Fetch."""


@dataclass(slots=True, eq=False)
class _Followed:
    """A fetched partition, in one leader epoch."""

    key: PartitionKey
    partition: Partition
    leader_epoch: int
    failures: int = 0

    @property
    def topic_id_partition(self) -> _TopicIdPartition:
        return self.partition.topic_id, self.partition.index


@dataclass(slots=True)
class _Asked:
    """The last request for a partition, which the leader's responses refer to."""

    followed: _Followed
    fetch_offset: int


class _Session:
    """The fetch session at the leader (Kafka's FetchSessionHandler)."""

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0
        """0 requests a new session, and ends the one of ``id``."""
        self.asked: dict[_TopicIdPartition, _Asked] = {}
        self.forgotten: set[_TopicIdPartition] = set()

    @property
    def is_full(self) -> bool:
        """Whether the next Fetch names all partitions."""
        return self.epoch == 0

    def reset(self, *, unknown: bool = False) -> None:
        """Request a new session with the next Fetch; with ``unknown`` the leader has no session to end."""
        self.id = 0 if unknown else self.id
        self.epoch = 0

    def answered(self, response: FetchResponse) -> None:
        """Continue the session according to the leader's response."""
        if response.session_id == 0:
            self.reset(unknown=True)
        elif self.is_full or self.epoch == _LAST_SESSION_EPOCH:
            self.id, self.epoch = response.session_id, 1
        else:
            self.epoch += 1


class FetcherHost(Protocol):
    """What a fetcher needs of the ``ReplicaManager`` that it fetches for."""

    broker: ReplicaHost

    @property
    def node_id(self) -> int: ...

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    async def flush_log(self, partition: Partition) -> None:
        """Flush the partition's log in another thread; raises ``KafkaStorageError``."""

    def give_back(self) -> None:
        """Free the memory of truncated records, a piece in each pass of the loop."""


class ReplicaFetcher:
    """Fetches partitions from one leader. ``add`` and ``remove`` may be called before ``start``."""

    def __init__(self, manager: FetcherHost, leader_id: int) -> None:
        self.leader_id = leader_id
        self.partitions: dict[PartitionKey, _Followed] = {}
        self._manager = manager
        self._session = _Session()
        self._moved: set[PartitionKey] = set()
        """The partitions that the next Fetch names."""
        self._delayed: dict[PartitionKey, float] = {}
        """The end of the backoff of partitions with an error."""
        self._work = asyncio.Event()
        self._waiting: asyncio.Timeout | None = None
        self._last_interrupt = float("-inf")
        self._peer: PeerClient | None = None
        self._leader_epoch = -1
        """The broker epoch of the leader that ``_peer`` was made for."""
        self._task: asyncio.Task[None] | None = None
        self._is_logged = False

    @property
    def _config(self) -> BrokerConfig:
        return self._manager.broker.config

    def start(self) -> None:
        """Start fetching."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"fetch from {self.leader_id}")

    async def close(self) -> None:
        """Stop fetching, and close the connection."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._disconnect()

    def add(self, partition: Partition) -> None:
        """Fetch the partition in its current leader epoch, from the end of its log on."""
        key = (partition.topic, partition.index)
        self.remove(key)
        if partition.log.leader_epochs.latest_epoch is None and partition.log_end_offset > partition.high_watermark:
            # Without an epoch to compare with the leader's, uncommitted records may be of another leader.
            partition.truncate_to(partition.high_watermark)
        self.partitions[key] = _Followed(key, partition, partition.leader_epoch)
        self._moved.add(key)
        self._work.set()
        self._interrupt()

    def remove(self, key: PartitionKey) -> None:
        """Stop fetching the partition. A response in flight is dropped."""
        followed = self.partitions.pop(key, None)
        if followed is not None:
            self._forget(followed)
            self._delayed.pop(key, None)
            self._moved.discard(key)

    def touch(self, key: PartitionKey) -> None:
        """Send the partition's new log start with the next Fetch."""
        if key in self.partitions and key not in self._delayed:
            self._moved.add(key)

    def _forget(self, followed: _Followed) -> None:
        if self._session.asked.pop(followed.topic_id_partition, None) is not None:
            self._session.forgotten.add(followed.topic_id_partition)

    def _interrupt(self) -> None:
        """Abandon the Fetch that waits for records at the leader, because another partition must be fetched."""
        if self._waiting is not None:
            now = self._manager.now()
            self._last_interrupt = max(now, self._last_interrupt + INTERRUPT_INTERVAL)
            self._waiting.reschedule(self._last_interrupt)
            self._waiting = None

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._end_backoffs()
            request = self._next_request()
            if request is None:
                await self._wait_for_work()
                continue
            try:
                response = await self._fetch(request)
                failures = 0
                self._is_logged = False
                if response is not None:
                    await self._apply_response(response)
            except Exception as error:
                failures += 1
                self._session.reset()
                if isinstance(error, OSError | KafkaError):
                    self._log_failure(error)
                else:
                    logger.exception("node %d cannot fetch from node %d", self._manager.node_id, self.leader_id)
                await asyncio.sleep(self._backoff(failures))

    async def _wait_for_work(self) -> None:
        """Wait until a partition is added or the backoff of one ends."""
        self._work.clear()
        until = min(self._delayed.values(), default=None)
        try:
            async with asyncio.timeout_at(until):
                await self._work.wait()
        except TimeoutError:
            pass

    def _backoff(self, failures: int) -> float:
        longest = self._config.replica_fetch_backoff_ms / 1000
        return min(longest, FIRST_BACKOFF * 2.0 ** min(failures - 1, 20))

    def _log_failure(self, error: Exception) -> None:
        """Warn once for each time that the leader cannot be reached."""
        level = logging.DEBUG if self._is_logged else logging.WARNING
        logger.log(level, "node %d cannot fetch from node %d: %s", self._manager.node_id, self.leader_id, error)
        self._is_logged = True

    def _back_off(self, followed: _Followed) -> None:
        """Exclude the partition for its backoff."""
        followed.failures += 1
        self._delayed[followed.key] = self._manager.now() + self._backoff(followed.failures)
        self._moved.discard(followed.key)
        self._forget(followed)

    async def _end_backoffs(self) -> None:
        """Include partitions again after their backoff."""
        if self._delayed:
            now = self._manager.now()
            for key in [key for key, until in self._delayed.items() if until <= now]:
                followed = self.partitions.get(key)
                if followed is not None and await self._flush(followed) and self.partitions.get(key) is followed:
                    del self._delayed[key]
                    self._moved.add(key)

    # Requests

    def _next_request(self) -> FetchRequest | None:
        """Return the next Fetch; ``None`` if no partition can be fetched."""
        session = self._session
        if session.is_full:
            session.asked.clear()
            session.forgotten.clear()
            named: Iterable[PartitionKey] = [key for key in self.partitions if key not in self._delayed]
        else:
            named = self._moved
        topics: dict[bytes, list[FetchPartition]] = {}
        for key in named:
            followed = self.partitions[key]
            topics.setdefault(followed.partition.topic_id, []).append(self._fetch_partition(followed))
        self._moved.clear()
        if not session.asked:
            # The leader expires an incremental session without partitions.
            session.reset()
            return None
        forgotten: dict[bytes, list[int]] = {}
        for topic_id, index in session.forgotten - session.asked.keys():
            forgotten.setdefault(topic_id, []).append(index)
        session.forgotten.clear()
        config = self._config
        node = self._manager.broker.image.nodes.get(self._manager.node_id)
        return FetchRequest(
            replica_state=ReplicaState(
                replica_id=self._manager.node_id, replica_epoch=-1 if node is None else node.epoch
            ),
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=session.id,
            session_epoch=session.epoch,
            topics=[FetchTopic(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=indexes) for topic_id, indexes in forgotten.items()
            ],
        )

    def _fetch_partition(self, followed: _Followed) -> FetchPartition:
        partition = followed.partition
        self._session.asked[followed.topic_id_partition] = _Asked(followed, partition.log_end_offset)
        last_fetched_epoch = partition.log.leader_epochs.latest_epoch
        return FetchPartition(
            partition=partition.index,
            current_leader_epoch=followed.leader_epoch,
            fetch_offset=partition.log_end_offset,
            last_fetched_epoch=NO_EPOCH if last_fetched_epoch is None else last_fetched_epoch,
            log_start_offset=partition.log_start_offset,
            partition_max_bytes=self._config.replica_fetch_max_bytes,
        )

    async def _fetch(self, request: FetchRequest) -> FetchResponse | None:
        """Send a Fetch; return ``None`` if it was abandoned, or if only the session must be renewed."""
        peer = self._connection()
        try:
            async with asyncio.timeout(None) as self._waiting:
                response = await peer.request(request, FETCH_VERSION, self._request_timeout)
        except TimeoutError:
            if self._waiting is not None:
                raise
            # Abandoned for another partition; the session's state at the leader is unknown.
            self._session.reset()
            return None
        finally:
            self._waiting = None
        if response.error_code:
            error = broker_error(response.error_code)
            self._session.reset(unknown=isinstance(error, FetchSessionIdNotFoundError))
            if request.session_epoch == 0:
                raise error
            return None
        self._session.answered(response)
        return response

    @property
    def _request_timeout(self) -> float:
        return (self._config.replica_socket_timeout_ms + self._config.replica_fetch_wait_max_ms) / 1000

    def _connection(self) -> PeerClient:
        """Return the connection to the leader; a new one after the leader was restarted, perhaps at another address."""
        broker = self._manager.broker
        node = broker.image.nodes.get(self.leader_id)
        if node is None:
            raise BrokerNotAvailableError(f"The address of node {self.leader_id} is unknown.")
        if self._peer is None or self._leader_epoch != node.epoch:
            self._disconnect()
            self._peer = broker.peer_client(node)
            self._leader_epoch = node.epoch
        return self._peer

    def _disconnect(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    # Responses

    async def _apply_response(self, response: FetchResponse) -> None:
        """Append the fetched records. Other callbacks get turns in between, and may add or remove partitions."""
        turn_ends = self._manager.now() + LONGEST_TURN
        to_flush = []
        for topic in response.responses:
            for data in topic.partitions:
                asked = self._session.asked.get((topic.topic_id, data.partition_index))
                if asked is None or not self._is_current(asked):
                    continue
                followed = asked.followed
                try:
                    await self._apply_partition(followed, data)
                except KafkaError as error:
                    level = logging.DEBUG if isinstance(error, _WAIT_FOR_CONTROLLER) else logging.WARNING
                    logger.log(level, "%r: cannot be fetched: %s", followed.partition, error)
                    self._back_off(followed)
                except Exception:
                    logger.exception("%r: cannot be fetched", followed.partition)
                    self._back_off(followed)
                else:
                    to_flush.append(followed)
                if self._manager.now() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = self._manager.now() + LONGEST_TURN
        # The next Fetch confirms these records to the leader, so they must be flushed if flush.messages requires it.
        for followed in to_flush:
            if await self._flush(followed):
                followed.failures = 0

    def _is_current(self, asked: _Asked) -> bool:
        followed = asked.followed
        return (
            self.partitions.get(followed.key) is followed
            and asked.fetch_offset == followed.partition.log_end_offset
            and followed.leader_epoch == followed.partition.leader_epoch
        )

    async def _apply_partition(self, followed: _Followed, data: PartitionData) -> None:
        partition = followed.partition
        if data.error_code == OffsetOutOfRangeError.code:
            await self._find_offset(followed)
        elif data.error_code:
            raise broker_error(data.error_code)
        elif data.diverging_epoch.epoch >= 0:
            partition.truncate_to_leader(data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
            self._manager.give_back()
            self._moved.add(followed.key)
        else:
            before = partition.log_end_offset, partition.log_start_offset
            partition.append_fetched(_joined(data.records), data.high_watermark, data.log_start_offset)
            if before != (partition.log_end_offset, partition.log_start_offset):
                self._moved.add(followed.key)
                # Behind the others: if responses have no room for all partitions, each gets its turn.
                self.partitions[followed.key] = self.partitions.pop(followed.key)

    async def _flush(self, followed: _Followed) -> bool:
        """Flush the log if flush.messages requires it. If that fails, exclude the partition and return False."""
        if not followed.partition.log.flush_due:
            return True
        try:
            await self._manager.flush_log(followed.partition)
        except KafkaError as error:
            logger.error("%r: the log cannot be flushed to disk: %s", followed.partition, error)
            if self.partitions.get(followed.key) is followed:
                self._back_off(followed)
            return False
        return True

    async def _find_offset(self, followed: _Followed) -> None:
        """Find an offset that the leader has, as it does not have the requested one.

        The leader may have lost the end of its log (an unclean election), or deleted the beginning while this node was
        down.
        """
        partition = followed.partition
        latest = await self._list_offset(followed, LATEST_TIMESTAMP)
        earliest = await self._list_offset(followed, EARLIEST_TIMESTAMP)
        if self.partitions.get(followed.key) is not followed:
            return
        if latest < partition.log_end_offset:
            logger.warning("%r: the leader's log ends at %d, before this one", partition, latest)
            partition.truncate_to(latest)
        elif earliest > partition.log_end_offset:
            logger.warning("%r: the leader's log begins at %d, behind this one", partition, earliest)
            partition.truncate_fully_and_start_at(earliest)
        self._manager.give_back()
        self._moved.add(followed.key)

    async def _list_offset(self, followed: _Followed, timestamp: int) -> int:
        request = ListOffsetsRequest(
            replica_id=self._manager.node_id,
            topics=[
                ListOffsetsTopic(
                    name=followed.partition.topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=followed.partition.index,
                            current_leader_epoch=followed.leader_epoch,
                            timestamp=timestamp,
                        )
                    ],
                )
            ],
        )
        try:
            response = await self._connection().request(request, LIST_OFFSETS_VERSION, self._request_timeout)
        except OSError as error:
            raise BrokerNotAvailableError(f"Cannot get the offsets of node {self.leader_id}: {error}") from error
        found = response.topics[0].partitions[0]
        if found.error_code:
            raise broker_error(found.error_code)
        return found.offset


def _joined(records: Records) -> Buffer:
    if records is None:
        return b""
    if isinstance(records, bytes | bytearray | memoryview):
        return records
    return records[0] if len(records) == 1 else b"".join(records)
