"""What proves to a broker who the client is."""

from __future__ import annotations

from typing import Protocol


class Authenticator(Protocol):
    """A SASL mechanism as a step machine without I/O; one object authenticates one connection once."""

    @property
    def mechanism(self) -> str:
        """The name that SaslHandshake carries: ``PLAIN``, ``SCRAM-SHA-512``, ..."""

    def step(self, challenge: bytes | None) -> bytes | None:
        """The next message to the broker, or None when there is nothing left to say and the broker is believed.

        ``challenge`` is None for the first message (some mechanisms begin with ``b""``), later what the broker answered
        (``b""`` where it said nothing but yes). The connection is READY after the first None.

        Raises:
            KafkaError: the broker's answer is not acceptable; the connection is poisoned with it.
        """
