"""Requests that the producer makes for itself: metadata, a producer id."""

from __future__ import annotations

from collections.abc import Callable

from aioproducer.core.connection import Completed
from aioproducer.errors import KafkaError
from aioproducer.io.node import NodeConnection, RequestContext


class InternalRequest(RequestContext):
    """The context of a request of which two functions hear; its buffers are its own."""

    __slots__ = ("_given_up", "_on_answer", "_on_failure")

    def __init__(self, on_answer: Callable[[Completed], None], on_failure: Callable[[KafkaError], None]) -> None:
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._given_up = False

    def give_up(self) -> None:
        """Nobody wants to hear of this request any more."""
        self._given_up = True

    def answered(self, node: NodeConnection, completed: Completed | None) -> None:
        assert completed is not None
        if not self._given_up:
            self._on_answer(completed)

    def failed(self, node: NodeConnection, error: KafkaError) -> None:
        if not self._given_up:
            self._on_failure(error)
