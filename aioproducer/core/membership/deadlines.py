"""The deadlines of a member: its next heartbeat, its session, and the application's next request for records."""

from __future__ import annotations

from random import Random

from aioproducer.core.requests.retry import ExponentialBackoff


class Deadlines:
    """Kafka's ``Heartbeat``; all times in seconds of the owner's clock.

    Args:
        heartbeat_interval: between two heartbeats (``heartbeat.interval.ms``).
        session_timeout: without a heartbeat's response the coordinator counts as lost (``session.timeout.ms``).
        poll_interval: without a request for records the member leaves (``max.poll.interval.ms``).
        backoff: the waits after failed heartbeats.
    """

    def __init__(
        self,
        heartbeat_interval: float,
        session_timeout: float,
        poll_interval: float,
        backoff: ExponentialBackoff,
        random: Random,
    ) -> None:
        self._heartbeat_interval = heartbeat_interval
        self._session_timeout = session_timeout
        self._poll_interval = poll_interval
        self._backoff = backoff
        self._random = random
        self._failures = 0
        self.heartbeat_at = float("inf")
        self.session_until = float("inf")
        self.poll_until = float("inf")

    def begin(self, now: float, *, follows: bool) -> None:
        """Begin a generation.

        Args:
            follows: the member was in a generation when it joined. It may have joined without the application, whose
                last request for records counts as before: a rebalance must not keep a member that hangs.
        """
        self.heartbeat_at = now + self._heartbeat_interval
        self.session_until = now + self._session_timeout
        if not follows:
            self.poll_until = now + self._poll_interval
        self._failures = 0

    def polled(self, now: float) -> None:
        """The application asked for records."""
        self.poll_until = now + self._poll_interval

    def extend_session(self, now: float) -> None:
        """A coordinator was found, and gets the time of a session to answer."""
        self.session_until = now + self._session_timeout

    def heartbeat_sent(self, now: float) -> None:
        self.heartbeat_at = now + self._heartbeat_interval

    def heartbeat_received(self, now: float) -> None:
        self._failures = 0
        self.session_until = now + self._session_timeout

    def heartbeat_failed(self, now: float) -> None:
        """The next heartbeat comes after a backoff instead of the interval."""
        self.heartbeat_at = now + self._backoff.delay(self._failures, self._random)
        self._failures += 1
