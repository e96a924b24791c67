"""Following: one task for each node that leads partitions followed here, which fetches what the leader has.

The rules are those of Kafka's ``AbstractFetcherThread``, ``ReplicaFetcherThread`` and ``FetchSessionHandler`` with
truncation by what the leader answers (KIP-595) and incremental sessions (KIP-227): a Fetch names only partitions whose
offset has moved since the last, so that idle partitions cost nothing.
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
"""Seconds to wait after a first error; twice as long after each more, up to replica.fetch.backoff.ms.

Kafka waits that long at once. Here the leader is in the same process, and what it has not heard of yet it hears in
the next turns of the loop."""

INTERRUPT_INTERVAL = 0.05
"""Seconds between two Fetches that are given up because there is another partition to fetch."""

LONGEST_TURN = 0.002
"""For how many seconds the loop is held by many small appends before others get a turn."""

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
"""One of the two nodes knows more than the other; the controller tells both."""

FETCH_VERSION = FetchRequest.schema.versions[-1]
LIST_OFFSETS_VERSION = ListOffsetsRequest.schema.versions[-1]

_Place = tuple[bytes, int]
"""Topic id and partition index, which is how partitions are called in a Fetch."""


@dataclass(slots=True, eq=False)
class _Followed:
    """A partition that is fetched, in one leader epoch."""

    key: PartitionKey
    partition: Partition
    leader_epoch: int
    failures: int = 0

    @property
    def place(self) -> _Place:
        return self.partition.topic_id, self.partition.index


@dataclass(slots=True)
class _Asked:
    """What the leader was asked last for a partition, and so what its answers are about."""

    followed: _Followed
    fetch_offset: int


class _Session:
    """What the leader remembers of the Fetches before (Kafka's FetchSessionHandler)."""

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0
        """0 asks for a new session, and ends the one of ``id``."""
        self.asked: dict[_Place, _Asked] = {}
        self.forgotten: set[_Place] = set()

    @property
    def is_full(self) -> bool:
        """Whether the next Fetch names everything."""
        return self.epoch == 0

    def reset(self, *, unknown: bool = False) -> None:
        """Begin anew; with ``unknown`` the leader has no session to end."""
        self.id = 0 if unknown else self.id
        self.epoch = 0

    def answered(self, response: FetchResponse) -> None:
        """The leader's answer says how the session goes on."""
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
        """Bring the partition's log to disk, in another thread; raises ``KafkaStorageError``."""

    def give_back(self) -> None:
        """Free what was cut off logs, a piece in each turn of the loop."""


class ReplicaFetcher:
    """Fetches from one leader. ``add`` and ``remove`` say what; they may be called before ``start``."""

    def __init__(self, manager: FetcherHost, leader_id: int) -> None:
        self.leader_id = leader_id
        self.partitions: dict[PartitionKey, _Followed] = {}
        self._manager = manager
        self._session = _Session()
        self._moved: set[PartitionKey] = set()
        """What the next Fetch names."""
        self._delayed: dict[PartitionKey, float] = {}
        """Until when partitions with an error are left out."""
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
        """Begin to fetch."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"fetch from {self.leader_id}")

    async def close(self) -> None:
        """Stop, and end the connection."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._disconnect()

    def add(self, partition: Partition) -> None:
        """Fetch the partition in its leader epoch, from the end of its log on."""
        key = (partition.topic, partition.index)
        self.remove(key)
        if partition.log.leader_epochs.latest_epoch is None and partition.log_end_offset > partition.high_watermark:
            # No epoch to compare with the leader's: what is not known to be committed may be another's.
            partition.truncate_to(partition.high_watermark)
        self.partitions[key] = _Followed(key, partition, partition.leader_epoch)
        self._moved.add(key)
        self._work.set()
        self._interrupt()

    def remove(self, key: PartitionKey) -> None:
        """Fetch the partition no more. What is under way for it is dropped when it comes."""
        followed = self.partitions.pop(key, None)
        if followed is not None:
            self._forget(followed)
            self._delayed.pop(key, None)
            self._moved.discard(key)

    def touch(self, key: PartitionKey) -> None:
        """The partition's log start has moved: the leader is told with the next Fetch."""
        if key in self.partitions and key not in self._delayed:
            self._moved.add(key)

    def _forget(self, followed: _Followed) -> None:
        if self._session.asked.pop(followed.place, None) is not None:
            self._session.forgotten.add(followed.place)

    def _interrupt(self) -> None:
        """Give up the Fetch that the leader holds until something comes: there is more to ask for."""
        if self._waiting is not None:
            now = self._manager.now()
            self._last_interrupt = max(now, self._last_interrupt + INTERRUPT_INTERVAL)
            self._waiting.reschedule(self._last_interrupt)
            self._waiting = None

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._end_delays()
            request = self._next_request()
            if request is None:
                await self._wait_for_work()
                continue
            try:
                response = await self._fetch(request)
                failures = 0
                self._is_logged = False
                if response is not None:
                    await self._take(response)
            except Exception as error:
                failures += 1
                self._session.reset()
                if isinstance(error, OSError | KafkaError):
                    self._log_failure(error)
                else:
                    logger.exception("node %d cannot fetch from node %d", self._manager.node_id, self.leader_id)
                await asyncio.sleep(self._backoff(failures))

    async def _wait_for_work(self) -> None:
        """Until a partition was added or the delay of one is over."""
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
        """Once for each time that the leader is out of reach."""
        level = logging.DEBUG if self._is_logged else logging.WARNING
        logger.log(level, "node %d cannot fetch from node %d: %s", self._manager.node_id, self.leader_id, error)
        self._is_logged = True

    def _delay(self, followed: _Followed) -> None:
        """Leave the partition out for a while."""
        followed.failures += 1
        self._delayed[followed.key] = self._manager.now() + self._backoff(followed.failures)
        self._moved.discard(followed.key)
        self._forget(followed)

    async def _end_delays(self) -> None:
        """Ask again for partitions whose delay is over."""
        if self._delayed:
            now = self._manager.now()
            for key in [key for key, until in self._delayed.items() if until <= now]:
                followed = self.partitions.get(key)
                if followed is not None and await self._flush(followed) and self.partitions.get(key) is followed:
                    del self._delayed[key]
                    self._moved.add(key)

    # Asking.

    def _next_request(self) -> FetchRequest | None:
        """What to ask for next; ``None`` when no partition can be asked for."""
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
            # An incremental session that has nothing in it any more is left to the leader to forget.
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
        self._session.asked[followed.place] = _Asked(followed, partition.log_end_offset)
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
        """Ask the leader; ``None`` where the answer was not waited for or says nothing."""
        peer = self._connection()
        try:
            async with asyncio.timeout(None) as self._waiting:
                response = await peer.request(request, FETCH_VERSION, self._request_timeout)
        except TimeoutError:
            if self._waiting is not None:
                raise
            # Given up to ask for more; what the leader made of it is unknown.
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
        """The connection to the leader; to where it is now, after it has come back somewhere else."""
        broker = self._manager.broker
        node = broker.image.nodes.get(self.leader_id)
        if node is None:
            raise BrokerNotAvailableError(f"Where node {self.leader_id} is reached is not known.")
        if self._peer is None or self._leader_epoch != node.epoch:
            self._disconnect()
            self._peer = broker.peer_client(node)
            self._leader_epoch = node.epoch
        return self._peer

    def _disconnect(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    # What the leader answered.

    async def _take(self, response: FetchResponse) -> None:
        """Append what came. A turn is given to others in between, during which partitions may come and go."""
        turn_ends = self._manager.now() + LONGEST_TURN
        to_flush = []
        for topic in response.responses:
            for data in topic.partitions:
                asked = self._session.asked.get((topic.topic_id, data.partition_index))
                if asked is None or not self._is_current(asked):
                    continue
                followed = asked.followed
                try:
                    await self._take_partition(followed, data)
                except KafkaError as error:
                    level = logging.DEBUG if isinstance(error, _WAIT_FOR_CONTROLLER) else logging.WARNING
                    logger.log(level, "%r: cannot be fetched: %s", followed.partition, error)
                    self._delay(followed)
                except Exception:
                    logger.exception("%r: cannot be fetched", followed.partition)
                    self._delay(followed)
                else:
                    to_flush.append(followed)
                if self._manager.now() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = self._manager.now() + LONGEST_TURN
        # The next Fetch tells the leader that this node has all of it, so it must be where flush.messages wants it.
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

    async def _take_partition(self, followed: _Followed, data: PartitionData) -> None:
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
                # Behind the others: where a full Fetch does not get all that it asked for, each has its turn.
                self.partitions[followed.key] = self.partitions.pop(followed.key)

    async def _flush(self, followed: _Followed) -> bool:
        """Whether what flush.messages wants on disk is there; if not, the partition is left out for a while."""
        if not followed.partition.log.flush_due:
            return True
        try:
            await self._manager.flush_log(followed.partition)
        except KafkaError as error:
            logger.error("%r: cannot be brought to disk: %s", followed.partition, error)
            if self.partitions.get(followed.key) is followed:
                self._delay(followed)
            return False
        return True

    async def _find_offset(self, followed: _Followed) -> None:
        """The leader does not have the offset that was asked for: find one that it has.

        It may have lost the end of its log (an unclean election), or deleted its beginning while this node was away.
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
            raise BrokerNotAvailableError(f"Node {self.leader_id} cannot be asked for its offsets: {error}") from error
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
