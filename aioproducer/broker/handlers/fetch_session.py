"""Incremental fetch sessions (KIP-227): a reader of many partitions names them once, and then only says and hears what
has changed.

The rules are those of Kafka's ``FetchSession``: a session has an epoch that rises with every request, so that neither
side can miss one; partitions without news are left out of a response; sessions are few (max.incremental.fetch.session.
cache.slots), and a new one takes the place of one that is smaller or was not used for two minutes.

Unlike there a request reads only what it names and what may have something to say: a session watches its partitions.
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
"""For how long a session that was not used, or a new one of its kind, is kept from others."""
FIRST_VERSION_WITH_IDS: Final = 13

_LAST_EPOCH: Final = 2**31 - 1
_IDS: Final = 2**31 - 1


def next_epoch(epoch: int) -> int:
    """The epoch of the request after one with ``epoch``."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _LAST_EPOCH else epoch + 1


@dataclass(slots=True)
class WantedPartition:
    """A partition that a request reads, named in it or in its session."""

    key: Key
    topic: str | None
    """``None`` where the id is unknown."""
    topic_id: bytes
    request: FetchPartition
    turn: int
    """Partitions are read in this order: who gave records stands behind who did not."""
    high_watermark: int = -1
    """What the reader was told last, where it is in a session."""
    log_start_offset: int = -1

    def has_news(self, data: PartitionData) -> bool:
        """Whether a session's response needs ``data``, which counts as told from now on."""
        news = bool(data.records) or data.error_code != 0
        news = news or data.preferred_read_replica != -1 or data.diverging_epoch.epoch >= 0
        if self.high_watermark != data.high_watermark or self.log_start_offset != data.log_start_offset:
            news = True
            self.log_start_offset = data.log_start_offset
        # After an error the partition is answered once more, when it is well again.
        self.high_watermark = -1 if data.error_code else data.high_watermark
        return news


Results: TypeAlias = Sequence[tuple[WantedPartition, PartitionData]]

_Reader: TypeAlias = tuple[int, int, int, int, int]
"""What a session's requests have in common: version, isolation level, and who the follower is, if it is one."""


@dataclass(slots=True, eq=False)
class FetchSession:
    """What a reader wants, and has been told."""

    session_id: int
    is_privileged: bool
    """A follower's."""
    uses_topic_ids: bool
    created_ms: int
    last_used_ms: int
    epoch: int
    """Of the request to come."""
    moves: FetchMoves
    partitions: dict[Key, WantedPartition] = field(default_factory=dict)
    _reader: _Reader | None = None
    _turns: Iterator[int] = field(default_factory=itertools.count)

    def add(self, partition: WantedPartition) -> None:
        """Read ``partition`` from now on, after all others."""
        self.partitions[partition.key] = partition
        partition.turn = next(self._turns)

    def gave_records(self, partition: WantedPartition) -> None:
        """Read it after all others."""
        partition.turn = next(self._turns)

    def update(self, wanted: Iterable[WantedPartition], forgotten: Iterable[Key]) -> None:
        """Take over what a request changes."""
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
        """Who reads, and how; another one may get other answers of all partitions."""
        if reader != self._reader:
            self._reader = reader
            self.moves.moved.update(self.partitions)

    def rank(self) -> tuple[bool, int, int]:
        """Sessions with the lowest rank give way first."""
        return self.is_privileged, len(self.partitions), self.session_id


class FetchContext(ABC):
    """What a request reads, and how it is answered."""

    moves: FetchMoves

    @property
    @abstractmethod
    def partitions(self) -> Mapping[Key, WantedPartition]:
        """All that the request is about, named or not."""

    @abstractmethod
    def wanted(self, *, all_partitions: bool = False) -> list[WantedPartition]:
        """The partitions to read, in this order; the others, unless asked for, can have nothing to say."""

    @abstractmethod
    def response(self, results: Results, settled: Collection[Key] = ()) -> FetchResponse:
        """The response, of what was read of all that is ``wanted`` and of what moved since.

        ``settled`` have nothing more to say before they move.
        """


class SessionlessContext(FetchContext):
    """A request of its own."""

    def __init__(self, wanted: Mapping[Key, WantedPartition]) -> None:
        self._wanted = wanted
        self.moves = FetchMoves()

    @property
    def partitions(self) -> Mapping[Key, WantedPartition]:
        return self._wanted

    def wanted(self, *, all_partitions: bool = False) -> list[WantedPartition]:
        return list(self._wanted.values())

    def response(self, results: Results, settled: Collection[Key] = ()) -> FetchResponse:
        return _response(NO_SESSION, results)


class FullContext(SessionlessContext):
    """A request that begins a session, if there is room for one."""

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

    def response(self, results: Results, settled: Collection[Key] = ()) -> FetchResponse:
        session = self._cache.create(
            len(results), self.moves, uses_topic_ids=self._uses_topic_ids, is_privileged=self._is_privileged
        )
        if session is None:
            return _response(NO_SESSION, results)
        for partition, data in results:
            partition.high_watermark = data.high_watermark
            partition.log_start_offset = data.log_start_offset
            session.add(partition)
        session.read_by(self._reader)
        session.moves.moved.difference_update(settled)
        return _response(session.session_id, results)


class IncrementalContext(FetchContext):
    """A request of a session."""

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

    def response(self, results: Results, settled: Collection[Key] = ()) -> FetchResponse:
        session = self._session
        if session.epoch != self._epoch:
            # A later request of the session was faster.
            return FetchResponse(error_code=InvalidFetchSessionEpochError.code, session_id=session.session_id)
        news = []
        for partition, data in results:
            if partition.has_news(data):
                news.append((partition, data))
                if data.records:
                    session.gave_records(partition)
        session.moves.moved.update(partition.key for partition, _ in results)
        session.moves.moved.difference_update(settled)
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
        """``now_ms`` is a clock that does not go back."""
        self._slots = slots
        self._now_ms = now_ms
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """How many partitions all sessions remember."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def context(
        self, version: int, request: FetchRequest, names: Mapping[bytes, TopicState], *, is_follower: bool
    ) -> FetchContext:
        """How to serve ``request``; its session, if any, is at its next epoch then.

        Raises:
            FetchSessionIdNotFoundError: there is no such session, or no more.
            InvalidFetchSessionEpochError: the request is not the next of its session.
            FetchSessionTopicIdError: the session's partitions go by names and the request's by ids, or the reverse.
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
        """A new session for ``size`` partitions, or ``None`` where no other one gives way to it."""
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
        """Remove a session for a new one of ``size`` partitions, if there is one that gives way.

        One that was not used for ``EVICTION_MS`` does; else the smallest one that is not larger than the new one, of
        those that are older than that, and for a follower of those of all consumers.
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
    """What a request names; of a partition that is there twice the last mention counts."""
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
