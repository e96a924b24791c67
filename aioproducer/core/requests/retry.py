"""How long to wait before the next attempt: exponential backoff with jitter (KIP-144, KIP-580, KIP-601).

One rule serves reconnecting to a node, asking for metadata again, sending a batch again and the time a connection may
take to be set up. Everything is told the time and given its random numbers, so a test can replay any of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

RETRY_JITTER = 0.2
"""Kafka's jitter for every backoff of a client: 20 % either way."""


class ExponentialBackoff:
    """Waiting times that grow from ``initial_ms`` by ``multiplier`` with every attempt, up to ``maximum_ms``.

    The rule is that of Kafka's ``ExponentialBackoff``. The wait before attempt ``k`` (0 is the first retry) is
    ``initial_ms * multiplier**k``, at most ``maximum_ms``, times a factor drawn evenly from ``1 - jitter`` to
    ``1 + jitter``, and never more than ``maximum_ms`` after that: at the ceiling the waits spread over
    ``maximum_ms * (1 - jitter)`` to ``maximum_ms``. Where ``initial_ms`` is not below ``maximum_ms`` there is nothing
    to grow, and every wait is ``maximum_ms`` exactly.

    Raises:
        ValueError: a time is negative, ``multiplier`` is not above 1 or ``jitter`` is not within 0 and 1.
    """

    __slots__ = ("_growth", "_jitter", "_multiplier", "initial", "maximum")

    def __init__(
        self, initial_ms: float, maximum_ms: float, multiplier: float = 2, jitter: float = RETRY_JITTER
    ) -> None:
        if initial_ms < 0 or maximum_ms < 0:
            raise ValueError(f"a backoff must not be negative, but is {initial_ms} to {maximum_ms} ms")
        if multiplier <= 1:
            raise ValueError(f"multiplier must be above 1, but is {multiplier}")
        if not 0 <= jitter <= 1:
            raise ValueError(f"jitter must be between 0 and 1, but is {jitter}")
        self.initial: float = min(initial_ms, maximum_ms) / 1000
        """The first wait before jitter, in seconds."""
        self.maximum: float = maximum_ms / 1000
        """The longest wait there is, in seconds."""
        self._multiplier: float = multiplier
        self._jitter: float = jitter
        # Beyond this exponent the ceiling holds whatever the attempt: without it the power overflows for a node that is
        # down for days.
        # Like Kafka's, it counts from at least 1 ms: with an initial wait of 0 every wait is 0.
        self._growth: float = 0.0
        if maximum_ms > initial_ms:
            self._growth = math.log(maximum_ms / max(initial_ms, 1)) / math.log(multiplier)

    def delay(self, attempt: int, random: Random) -> float:
        """Seconds to wait before retry number ``attempt``; 0 is the first."""
        if self._growth <= 0:
            return self.initial
        base = self.initial * math.pow(self._multiplier, min(attempt, self._growth))
        if self._jitter:
            base *= random.uniform(1 - self._jitter, 1 + self._jitter)
        return min(base, self.maximum)


class Attempts:
    """Failures in a row of one thing, and when it may be tried again: a node's reconnecting, metadata's asking.

    ``failures`` counts since the last success; ``retry_at`` is the monotonic time from which on the next attempt is
    allowed, minus infinity while nothing has failed.
    """

    __slots__ = ("_backoff", "_random", "failures", "retry_at")

    def __init__(self, backoff: ExponentialBackoff, random: Random) -> None:
        self._backoff: ExponentialBackoff = backoff
        self._random: Random = random
        self.failures: int = 0
        self.retry_at: float = -math.inf

    def failed(self, now: float) -> None:
        """One more attempt failed: the next waits longer, counted from ``now``."""
        self.retry_at = now + self._backoff.delay(self.failures, self._random)
        self.failures += 1

    def succeeded(self) -> None:
        """Back to the first backoff; an attempt is allowed at once."""
        self.failures = 0
        self.retry_at = -math.inf

    def delay(self, now: float) -> float:
        """Seconds from ``now`` until an attempt is allowed; 0 when it is."""
        return max(0.0, self.retry_at - now)
