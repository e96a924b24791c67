"""Compiled. Delay before the next attempt: exponential backoff with jitter (KIP-144, KIP-580, KIP-601).

One rule serves reconnecting to a node, requesting metadata again, resending a batch, and the time-out of connection
set-up. Time and random numbers are arguments, so a test can replay every delay.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

RETRY_JITTER = 0.2
"""Kafka's jitter for every backoff of a client: 20 % in either direction."""


class ExponentialBackoff:
    """Delays that grow from ``initial_ms`` by ``multiplier`` with every attempt, up to ``maximum_ms``.

    The rule is that of Kafka's ``ExponentialBackoff``. The delay before attempt ``k`` (0 is the first retry) is
    ``initial_ms * multiplier**k``, at most ``maximum_ms``. It is multiplied by a uniform random factor from
    ``1 - jitter`` to ``1 + jitter``, and again limited to ``maximum_ms``. At the maximum the delays spread over
    ``maximum_ms * (1 - jitter)`` to ``maximum_ms``. If ``initial_ms`` is not below ``maximum_ms``, no delay grows and
    each is exactly ``maximum_ms``.

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
        """The first delay before jitter, in seconds."""
        self.maximum: float = maximum_ms / 1000
        """The longest delay, in seconds."""
        self._multiplier: float = multiplier
        self._jitter: float = jitter
        # Every attempt beyond this exponent has the longest delay: without the limit the power overflows for a node
        # that is down for days.
        # Like Kafka's, it counts from at least 1 ms: with an initial delay of 0 every delay is 0.
        self._growth: float = 0.0
        if maximum_ms > initial_ms:
            self._growth = math.log(maximum_ms / max(initial_ms, 1)) / math.log(multiplier)

    def delay(self, attempt: int, random: Random) -> float:
        """Return the seconds to wait before retry number ``attempt``; 0 is the first."""
        if self._growth <= 0:
            return self.initial
        base = self.initial * math.pow(self._multiplier, min(attempt, self._growth))
        if self._jitter:
            base *= random.uniform(1 - self._jitter, 1 + self._jitter)
        return min(base, self.maximum)


class Attempts:
    """Consecutive failures of one operation, and the time of the next attempt: reconnecting, requesting metadata.

    ``failures`` counts since the last success. ``retry_at`` is the monotonic time from which the next attempt is
    allowed, minus infinity while no attempt has failed.
    """

    __slots__ = ("_backoff", "_random", "failures", "retry_at")

    def __init__(self, backoff: ExponentialBackoff, random: Random) -> None:
        self._backoff: ExponentialBackoff = backoff
        self._random: Random = random
        self.failures: int = 0
        self.retry_at: float = -math.inf

    def failed(self, now: float) -> None:
        """Count a failure: the next attempt waits longer, from ``now`` on."""
        self.retry_at = now + self._backoff.delay(self.failures, self._random)
        self.failures += 1

    def succeeded(self) -> None:
        """Return to the first backoff; an attempt is allowed at once."""
        self.failures = 0
        self.retry_at = -math.inf

    def skip_backoff(self, now: float) -> None:
        """Allow the next attempt at ``now``; its failures count on."""
        self.retry_at = now

    def delay(self, now: float) -> float:
        """Return the seconds from ``now`` until an attempt is allowed; 0 if it is."""
        return max(0.0, self.retry_at - now)
