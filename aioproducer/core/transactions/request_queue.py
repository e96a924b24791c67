"""The transactional requests of a producer in their order, and the coordinators that they go to."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from aioproducer.core.requests.retry import ExponentialBackoff
from aioproducer.core.transactions.requests import (
    CoordinatorType,
    RequestKind,
    Result,
    TransactionalRequest,
    find_coordinator_message,
)


class RequestQueue:
    """One request is in flight; the others wait: the lowest priority number first, then the order of the calls.

    A request with an unknown coordinator waits for its lookup, which is a request as well.

    Args:
        backoff: the waits between attempts of a request.
    """

    def __init__(self, backoff: ExponentialBackoff, random: Random) -> None:
        self.waiting: list[TransactionalRequest] = []
        self.in_flight: TransactionalRequest | None = None
        self.coordinators: dict[CoordinatorType, tuple[str, int]] = {}
        """The node of each known coordinator, with the transactional id or group that it coordinates."""
        self._backoff = backoff
        self._random = random

    def __iter__(self) -> Iterator[TransactionalRequest]:
        """Iterate over the requests that wait or are in flight."""
        yield from self.waiting
        if self.in_flight is not None:
            yield self.in_flight

    def add(self, request: TransactionalRequest) -> None:
        """Let a new request wait behind the others of its priority."""
        self.waiting.append(request)

    def first(self) -> TransactionalRequest | None:
        """Return the request that is sent next, None while one is in flight.

        A lookup that no request needs any more is dropped: its retries would hold up the end of the transaction.
        """
        while self.waiting and self.in_flight is None:
            # Usually one request waits: this runs several times in each transaction.
            request = self.waiting[0] if len(self.waiting) == 1 else min(self.waiting, key=_priority)
            if request.kind is not RequestKind.FIND_COORDINATOR or self._is_needed(request):
                return request
            self.remove(request)
        return None

    def remove(self, request: TransactionalRequest) -> None:
        """Take out a request that waits."""
        self.waiting.remove(request)

    def take_all(self) -> list[TransactionalRequest]:
        """Take out all requests that wait."""
        waiting, self.waiting = self.waiting, []
        return waiting

    def node_of(self, request: TransactionalRequest) -> int | None:
        """Return the id of the node that a request goes to; None for any node."""
        if request.kind is RequestKind.FIND_COORDINATOR:
            return None
        return self.coordinators[request.coordinator][1]

    def sent(self, request: TransactionalRequest) -> None:
        """Move a request from those that wait into flight."""
        self.waiting.remove(request)
        request.attempts += 1
        self.in_flight = request

    def ended(self, request: TransactionalRequest) -> None:
        """Take out the request in flight."""
        assert self.in_flight is request
        self.in_flight = None

    def retry(self, request: TransactionalRequest, now: float) -> None:
        """Let a request wait for its next attempt, in front of later ones of its priority."""
        self.waiting.insert(0, request)
        request.retry_at = now + self._backoff.delay(max(request.attempts - 1, 0), self._random)

    # Coordinators

    def forget_coordinator(self, request: TransactionalRequest) -> None:
        """Forget the coordinator of a request: it has moved, or cannot be reached."""
        if request.kind is not RequestKind.FIND_COORDINATOR:
            self.coordinators.pop(request.coordinator, None)

    def needs_lookup(self, request: TransactionalRequest) -> bool:
        """Return whether the coordinator of a request is unknown; then its lookup is sent before."""
        if request.kind is RequestKind.FIND_COORDINATOR:
            return False
        known = self.coordinators.get(request.coordinator)
        if known is not None and known[0] == request.key:
            return False
        # The lookup is on behalf of the request, and observes its backoff.
        self._add_lookup(request, request.retry_at)
        request.retry_at = float("-inf")
        return True

    def unreachable(self, request: TransactionalRequest, now: float) -> None:
        """Look for the coordinator of a request again after a backoff: its node cannot be reached."""
        self.coordinators.pop(request.coordinator, None)
        self._add_lookup(request, now + self._backoff.delay(0, self._random))

    def _add_lookup(self, request: TransactionalRequest, retry_at: float) -> None:
        key, coordinator = request.key, request.coordinator
        lookup = TransactionalRequest(
            RequestKind.FIND_COORDINATOR,
            key,
            coordinator,
            request.version,
            Result(),
            lambda version: find_coordinator_message(key, coordinator, version),
        )
        lookup.retry_at = retry_at
        self.waiting.append(lookup)

    def _is_needed(self, lookup: TransactionalRequest) -> bool:
        return any(
            request.coordinator is lookup.coordinator and request.key == lookup.key
            for request in self.waiting
            if request.kind is not RequestKind.FIND_COORDINATOR
        )


def _priority(request: TransactionalRequest) -> int:
    return request.kind.priority
