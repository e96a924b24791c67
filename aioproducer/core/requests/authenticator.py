"""The interface of SASL mechanisms."""

from __future__ import annotations

from typing import Protocol


class Authenticator(Protocol):
    """A SASL mechanism as a state machine without I/O; one object authenticates one connection once."""

    @property
    def mechanism(self) -> str:
        """The mechanism's name in SaslHandshake: ``PLAIN``, ``SCRAM-SHA-512``, ..."""

    def step(self, challenge: bytes | None) -> bytes | None:
        """Return the next message to the broker, or None when both sides are authenticated.

        ``challenge`` is None for the first message (some mechanisms begin with ``b""``), later the broker's response
        (``b""`` if it only accepts). The connection is READY after the first None.

        Raises:
            KafkaError: the broker's response is not acceptable; the connection is poisoned with this error.
        """
