"""Incremental fetch sessions (KIP-227), from the client's side: Kafka's ``FetchSessionHandler``.

In a session the broker remembers the partitions and their positions; a request contains only what has changed. The
session belongs to one node. The epoch counts requests: 0 asks for a new session, -1 ends the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aioproducer.protocol.messages.fetch import (
    FetchPartition,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from aioproducer.record import TopicPartition

INVALID_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_LAST_EPOCH = 2**31 - 1

FETCH_SESSION_ID_NOT_FOUND = 70

NO_TOPIC_ID = bytes(16)


class SessionPartition(NamedTuple):
    """What a Fetch request says about a partition."""

    topic_id: bytes
    offset: int
    max_bytes: int
    leader_epoch: int


class SessionRequest(NamedTuple):
    """The part of a Fetch request that a session decides."""

    session_id: int
    epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]


class FetchSession:
    """The session with one node. ``build`` and ``answered`` or ``failed`` alternate."""

    __slots__ = ("_epoch", "_id", "_names", "_partitions", "_uses_ids")

    def __init__(self) -> None:
        self._id = INVALID_SESSION_ID
        self._epoch = INITIAL_EPOCH
        # The partitions of the session as the broker knows them.
        self._partitions: dict[TopicPartition, SessionPartition] = {}
        self._names: dict[bytes, str] = {}
        self._uses_ids = True

    @property
    def id(self) -> int:
        """The session's id; 0 without a session."""
        return self._id

    @property
    def is_full(self) -> bool:
        """Whether the next request contains every partition."""
        return self._epoch == INITIAL_EPOCH

    def build(self, wanted: Mapping[TopicPartition, SessionPartition]) -> SessionRequest:
        """Return the request that fetches the ``wanted`` partitions, in their order."""
        uses_ids = all(each.topic_id != NO_TOPIC_ID for each in wanted.values())
        if uses_ids != self._uses_ids:
            # A session refers to topics either by id or by name.
            self._uses_ids = uses_ids
            self._epoch = INITIAL_EPOCH
        known = {} if self.is_full else self._partitions
        sent = [(key, each) for key, each in wanted.items() if known.get(key) != each]
        gone = [
            (key, old) for key, old in known.items() if (new := wanted.get(key)) is None or new.topic_id != old.topic_id
        ]
        self._partitions = dict(wanted)
        self._names = {each.topic_id: key.topic for key, each in wanted.items()}
        return SessionRequest(self._id, self._epoch, _topics(sent), _forgotten(gone))

    def names(self, response: FetchResponse) -> list[str | None]:
        """Return the topic's name for each element of ``responses``; None for an id that is not in the session."""
        return [topic.topic or self._names.get(topic.topic_id) for topic in response.responses]

    def answered(self, response: FetchResponse) -> None:
        """Apply a response, with an error or without."""
        if response.error_code:
            if response.error_code == FETCH_SESSION_ID_NOT_FOUND:
                self._id = INVALID_SESSION_ID
            self._epoch = INITIAL_EPOCH
            return
        if response.session_id == INVALID_SESSION_ID:
            # The broker has no room for a session, or has closed this one.
            self._id, self._epoch = INVALID_SESSION_ID, INITIAL_EPOCH
            return
        self._id = response.session_id
        self._epoch = 1 if self._epoch >= _LAST_EPOCH else self._epoch + 1

    def failed(self) -> None:
        """Apply a failure: whether the broker has seen the request is unknown, so the next one replaces the session."""
        self._epoch = INITIAL_EPOCH

    def end(self) -> SessionRequest | None:
        """Return the request that ends the session; None without a session."""
        if self._id == INVALID_SESSION_ID:
            return None
        ended = SessionRequest(self._id, FINAL_EPOCH, [], [])
        self._id, self._epoch = INVALID_SESSION_ID, INITIAL_EPOCH
        return ended


def _topics(partitions: Sequence[tuple[TopicPartition, SessionPartition]]) -> list[FetchTopic]:
    """Group by topic; neighbours only, so that the order of the partitions stays."""
    topics: list[FetchTopic] = []
    for key, each in partitions:
        if not topics or topics[-1].topic != key.topic or topics[-1].topic_id != each.topic_id:
            topics.append(FetchTopic(topic=key.topic, topic_id=each.topic_id, partitions=[]))
        topics[-1].partitions.append(
            FetchPartition(
                partition=key.partition,
                current_leader_epoch=each.leader_epoch,
                fetch_offset=each.offset,
                partition_max_bytes=each.max_bytes,
            )
        )
    return topics


def _forgotten(partitions: Sequence[tuple[TopicPartition, SessionPartition]]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, bytes], ForgottenTopic] = {}
    for key, each in partitions:
        topic = topics.setdefault(
            (key.topic, each.topic_id), ForgottenTopic(topic=key.topic, topic_id=each.topic_id, partitions=[])
        )
        topic.partitions.append(key.partition)
    return list(topics.values())
