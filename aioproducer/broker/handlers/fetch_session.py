"""Incremental fetch sessions (KIP-227): a reader of many partitions lists them once; later messages contain changes.

The rules are those of Kafka's ``FetchSession``. A session has an epoch that rises with every request, so neither side
can miss one. Partitions without changes are left out of a response. The number of sessions is limited
(``max.incremental.fetch.session.cache.slots``); a new one replaces one that is smaller or was not used for two minutes.

Unlike in Kafka a request reads only the partitions that it lists or that may have changed: a session watches its
partitions.
"""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from aioproducer.broker.handlers.fetch_moves import FetchMoves, Key
from aioproducer.broker.image import TopicState
from aioproducer.errors import (
    FetchSessionIdNotFoundError,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpochError,
)
from aioproducer.protocol import ZERO_UUID
from aioproducer.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EVICTION_MS: Final = 120_000
"""Milliseconds for which an unused session, or a new one of its kind, is protected from replacement."""
FIRST_VERSION_WITH_IDS: Final = 13

_LAST_EPOCH: Final = 2**31 - 1
_IDS: Final = 2**31 - 1


def next_epoch(epoch: int) -> int:
    """Return the epoch of the request after one with ``epoch``."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _LAST_EPOCH else epoch + 1


@dataclass(slots=True)
class WantedPartition:
    """A partition that a request reads, listed in the request or its session."""

    key: Key
    topic: str | None
    """``None`` if the id is unknown."""
    topic_id: bytes
    request: FetchPartition
    turn: int
    """Partitions are read in this order: those that returned records are behind those that did not."""
    high_watermark: int = -1
    """The values in the reader's last response, if it is in a session."""
    log_start_offset: int = -1

    def has_changes(self, data: PartitionData) -> bool:
        """Whether a session's response needs ``data``; if so, its values count as sent."""
        news = bool(data.records) or data.error_code != 0
        news = news or data.preferred_read_replica != -1 or data.diverging_epoch.epoch >= 0
        news = news or self.high_watermark != data.high_watermark or self.log_start_offset != data.log_start_offset
        self.sent(data)
        return news

    def sent(self, data: PartitionData) -> None:
        """Remember the values that the reader receives.

        After an error the partition is included once more when it has recovered. After a divergence, too: a follower
        that truncates cannot use the high watermark yet. Otherwise it would not learn it before the next record.
        """
        is_used = not data.error_code and data.diverging_epoch.epoch < 0
        self.high_watermark = data.high_watermark if is_used else -1
        self.log_start_offset = data.log_start_offset


Results: TypeAlias = Sequence[tuple[WantedPartition, PartitionData]]

_Reader: TypeAlias = tuple[int, int, int, int, int]
"""The common properties of a session's requests: version, isolation level, and the follower's id if it is one."""


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions of a reader, and the state that it has received."""

    session_id: int
    is_privileged: bool
    """Whether it belongs to a follower."""
    uses_topic_ids: bool
    created_ms: int
    last_used_ms: int
    epoch: int
    """The epoch of the next request."""
    moves: FetchMoves
    partitions: dict[Key, WantedPartition] = field(default_factory=dict)
    _reader: _Reader | None = None
    _turns: Iterator[int] = field(default_factory=itertools.count)

    def add(self, partition: WantedPartition) -> None:
        """Read ``partition`` from now on, after all others."""
        self.partitions[partition.key] = partition
        partition.turn = next(self._turns)

    def move_to_end(self, partition: WantedPartition) -> None:
        """Read it after all others."""
        partition.turn = next(self._turns)

    def update(self, wanted: Iterable[WantedPartition], forgotten: Iterable[Key]) -> None:
        """Apply the changes in a request."""
        for partition in wanted:
            known = self.partitions.get(partition.key)
            if known is None:
                self.add(partition)
            else:
                known.request = partition.request
            self.moves.moved.add(partition.key)
        for key in forgotten:
            self.partitions.pop(key, None)
            self.moves.forget(key)

    def read_by(self, reader: _Reader) -> None:
        """Set the reader; another one may get other results, so all partitions are read again."""
        if reader != self._reader:
            self._reader = reader
            self.moves.moved.update(self.partitions)

    def rank(self) -> tuple[bool, int, int]:
        """Sessions with the lowest rank are replaced first."""
        return self.is_privileged, len(self.partitions), self.session_id


class FetchContext(ABC):
    """The partitions of a request, and its kind of response."""

    moves: FetchMoves

    @property
    @abstractmethod
    def partitions(self) -> Mapping[Key, WantedPartition]:
        """All partitions of the request or its session, listed in it or not."""

    @abstractmethod
    def wanted(self, *, all_partitions: bool = False) -> list[WantedPartition]:
        """Return the partitions to read, in order; the others, left out by default, have no changes."""

    @abstractmethod
    def response(self, results: Results, idle: Collection[Key] = ()) -> FetchResponse:
        """Build the response from the results of all ``wanted`` partitions and of those that changed since.

        ``idle`` partitions have nothing to return before they change.
        """


class SessionlessContext(FetchContext):
    """A request without a session."""

    def __init__(self, wanted: Mapping[Key, WantedPartition]) -> None:
        self._wanted = wanted
        self.moves = FetchMoves()

    @property
    def partitions(self) -> Mapping[Key, WantedPartition]:
        return self._wanted

    def wanted(self, *, all_partitions: bool = False) -> list[WantedPartition]:
        return list(self._wanted.values())

    def response(self, results: Results, idle: Collection[Key] = ()) -> FetchResponse:
        return _response(NO_SESSION, results)


class FullContext(SessionlessContext):
    """A request that creates a session if there is room for one."""

    def __init__(
        self,
        cache: FetchSessionCache,
        wanted: Mapping[Key, WantedPartition],
        reader: _Reader,
        *,
        uses_topic_ids: bool,
        is_privileged: bool,
    ) -> None:
        super().__init__(wanted)
        self._cache = cache
        self._reader = reader
        self._uses_topic_ids = uses_topic_ids
        self._is_privileged = is_privileged

    def response(self, results: Results, idle: Collection[Key] = ()) -> FetchResponse:
        session = self._cache.create(
            len(results), self.moves, uses_topic_ids=self._uses_topic_ids, is_privileged=self._is_privileged
        )
        if session is None:
            return _response(NO_SESSION, results)
        for partition, data in results:
            partition.sent(data)
            session.add(partition)
        session.read_by(self._reader)
        session.moves.moved.difference_update(idle)
        return _response(session.session_id, results)


class IncrementalContext(FetchContext):
    """A later request of a session."""

    def __init__(self, session: FetchSession, names: Mapping[bytes, TopicState]) -> None:
        self._session = session
        self._epoch = session.epoch
        self._names = names
        self.moves = session.moves

    @property
    def partitions(self) -> Mapping[Key, WantedPartition]:
        return self._session.partitions

    def wanted(self, *, all_partitions: bool = False) -> list[WantedPartition]:
        known = self._session.partitions
        keys = known if all_partitions else self._session.moves.moved
        wanted = sorted([known[key] for key in keys], key=lambda partition: partition.turn)
        for partition in wanted:
            if partition.topic is None and partition.topic_id in self._names:
                partition.topic = self._names[partition.topic_id].name
        return wanted

    def response(self, results: Results, idle: Collection[Key] = ()) -> FetchResponse:
        session = self._session
        if session.epoch != self._epoch:
            # A later request of the session was faster.
            return FetchResponse(error_code=InvalidFetchSessionEpochError.code, session_id=session.session_id)
        news = []
        for partition, data in results:
            if partition.has_changes(data):
                news.append((partition, data))
                if data.records:
                    session.move_to_end(partition)
        session.moves.moved.update(partition.key for partition, _ in results)
        session.moves.moved.difference_update(idle)
        return _response(session.session_id, news)


def _response(session_id: int, results: Results) -> FetchResponse:
    topics: list[FetchableTopicResponse] = []
    previous: tuple[str | None, bytes] | None = None
    for partition, data in results:
        topic = (partition.topic, partition.topic_id)
        if topic != previous:
            topics.append(FetchableTopicResponse(topic=partition.topic or "", topic_id=partition.topic_id))
            previous = topic
        topics[-1].partitions.append(data)
    return FetchResponse(session_id=session_id, responses=topics)


class FetchSessionCache:
    """The sessions of a node."""

    def __init__(self, slots: int, now_ms: Callable[[], int]) -> None:
        """``now_ms`` is a monotonic clock."""
        self._slots = slots
        self._now_ms = now_ms
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Number of partitions in all sessions."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def context(
        self, version: int, request: FetchRequest, names: Mapping[bytes, TopicState], *, is_follower: bool
    ) -> FetchContext:
        """Return the context that serves ``request``; its session, if any, moves to its next epoch.

        Raises:
            FetchSessionIdNotFoundError: the session does not exist, or no longer.
            InvalidFetchSessionEpochError: the request is not the next one of its session.
            FetchSessionTopicIdError: the session identifies topics by name and the request by id, or the reverse.
        """
        uses_topic_ids = version >= FIRST_VERSION_WITH_IDS
        wanted = _wanted(request, names, uses_topic_ids=uses_topic_ids)
        follower = request.replica_state
        reader = version, request.isolation_level, request.replica_id, follower.replica_id, follower.replica_epoch
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._end(request.session_id)
            if request.session_epoch == FINAL_EPOCH:
                return SessionlessContext(wanted)
            return FullContext(self, wanted, reader, uses_topic_ids=uses_topic_ids, is_privileged=is_follower)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionIdNotFoundError(f"There is no fetch session {request.session_id}.")
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpochError(f"Epoch {session.epoch} is expected, not {request.session_epoch}.")
        if session.uses_topic_ids != uses_topic_ids:
            raise FetchSessionTopicIdError()
        session.update(wanted.values(), _forgotten(request, uses_topic_ids=uses_topic_ids))
        if not session.partitions:
            self._end(session.session_id)
            return SessionlessContext(wanted)
        session.read_by(reader)
        session.last_used_ms = self._now_ms()
        session.epoch = next_epoch(session.epoch)
        return IncrementalContext(session, names)

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.moves.end()

    def create(self, size: int, moves: FetchMoves, *, uses_topic_ids: bool, is_privileged: bool) -> FetchSession | None:
        """Create a session for ``size`` partitions; return ``None`` if no other session can be replaced."""
        now = self._now_ms()
        if len(self._sessions) >= self._slots and not self._evict(size, is_privileged=is_privileged, now=now):
            return None
        session_id = random.randrange(1, _IDS)
        while session_id in self._sessions:
            session_id = random.randrange(1, _IDS)
        session = FetchSession(session_id, is_privileged, uses_topic_ids, now, now, next_epoch(INITIAL_EPOCH), moves)
        moves.keep()
        self._sessions[session_id] = session
        return session

    def _evict(self, size: int, *, is_privileged: bool, now: int) -> bool:
        """Remove a session for a new one of ``size`` partitions, if one can be replaced.

        A session that was not used for ``EVICTION_MS`` can be. Otherwise it is the smallest of those older than that,
        if it is not larger than the new one; for a follower any consumer's session qualifies.
        """
        if not self._sessions:
            return False
        stalest = min(self._sessions.values(), key=lambda session: (session.last_used_ms, session.session_id))
        if now - stalest.last_used_ms > EVICTION_MS:
            self._end(stalest.session_id)
            return True
        candidates = [
            session
            for session in self._sessions.values()
            if now - session.created_ms > EVICTION_MS or (is_privileged and not session.is_privileged)
        ]
        smallest = min(candidates, key=FetchSession.rank, default=None)
        if smallest is None or (is_privileged, size, 0) < smallest.rank():
            return False
        self._end(smallest.session_id)
        return True


def _wanted(
    request: FetchRequest, names: Mapping[bytes, TopicState], *, uses_topic_ids: bool
) -> dict[Key, WantedPartition]:
    """Return the partitions listed in a request; of a repeated partition the last entry counts."""
    wanted: dict[Key, WantedPartition] = {}
    for topic in request.topics:
        name: str | None = topic.topic
        topic_id = ZERO_UUID
        if uses_topic_ids:
            topic_id = topic.topic_id
            state = names.get(topic_id)
            name = None if state is None else state.name
        for partition in topic.partitions:
            key = (topic_id if uses_topic_ids else topic.topic, partition.partition)
            wanted[key] = WantedPartition(key, name, topic_id, partition, len(wanted))
    return wanted


def _forgotten(request: FetchRequest, *, uses_topic_ids: bool) -> list[Key]:
    return [
        (topic.topic_id if uses_topic_ids else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
