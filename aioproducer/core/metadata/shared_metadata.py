"""Metadata that several producers of one cluster share: a response to one of them answers requests of the others."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from aioproducer.error_codes import NONE
from aioproducer.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic


class SharedAnswer(NamedTuple):
    """An earlier response, as far as it concerns the requested topics."""

    response: MetadataResponse
    """Without topics."""
    topics: list[MetadataResponseTopic]
    version: int
    """Version of the Metadata API."""
    requested_at: float
    """Loop time at which the oldest part was requested."""


class _Topic(NamedTuple):
    topic: MetadataResponseTopic
    requested_at: float


class SharedMetadata:
    """The latest response, and the latest data of each topic without an error. Times are loop seconds.

    Args:
        max_age: age in seconds at which a topic is dropped: ``metadata.max.age.ms``.
    """

    def __init__(self, max_age: float) -> None:
        self._max_age = max_age
        self._latest: SharedAnswer | None = None
        self._topics: dict[str, _Topic] = {}
        self._next_removal = -math.inf

    def store(
        self, response: MetadataResponse, topics: Collection[MetadataResponseTopic], version: int, requested_at: float
    ) -> None:
        """Store a usable response to a request that was made at ``requested_at``."""
        latest = self._latest
        if latest is not None and (latest.version, latest.response.cluster_id) != (version, response.cluster_id):
            # Fields of the topics have another meaning, or the topics are those of another cluster.
            self._topics.clear()
        self._latest = SharedAnswer(response, [], version, requested_at)
        for topic in topics:
            if topic.name is None:
                continue
            if topic.error_code == NONE:
                self._topics[topic.name] = _Topic(topic, requested_at)
            else:
                self._topics.pop(topic.name, None)
        if requested_at >= self._next_removal:
            self._next_removal = requested_at + self._max_age
            oldest = requested_at - self._max_age
            self._topics = {name: stored for name, stored in self._topics.items() if stored.requested_at > oldest}

    def clear(self) -> None:
        """Drop everything: it was of no use to a producer."""
        self._latest = None
        self._topics.clear()

    def answer(self, names: Collection[str], since: float) -> SharedAnswer | None:
        """Return brokers and topics that were requested at ``since`` or later; None unless all of them were."""
        latest = self._latest
        if latest is None or latest.requested_at < since:
            return None
        found = [self._topics.get(name) for name in names]
        topics = [stored for stored in found if stored is not None and stored.requested_at >= since]
        if len(topics) < len(found):
            return None
        oldest = min((stored.requested_at for stored in topics), default=latest.requested_at)
        return latest._replace(topics=[stored.topic for stored in topics], requested_at=oldest)
