"""The interfaces of SASL mechanisms and of logins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aioproducer.errors import AuthenticationError

if TYPE_CHECKING:
    from concurrent.futures import Executor


class Authenticator(Protocol):
    """A SASL mechanism as a state machine without I/O; one object authenticates one connection once."""

    @property
    def mechanism(self) -> str:
        """The mechanism's name in SaslHandshake: ``PLAIN``, ``SCRAM-SHA-512``, ..."""

    @property
    def step_blocks(self) -> bool:
        """Whether the next step computes or waits for long: the driver of the connection runs it in a thread."""

    def step(self, challenge: bytes | None) -> bytes | None:
        """Return the next message to the broker, or None when both sides are authenticated.

        ``challenge`` is None for the first message (some mechanisms begin with ``b""``), later the broker's response
        (``b""`` if it only accepts). The connection is READY after the first None.

        Raises:
            KafkaError: the broker's response is not acceptable; the connection is poisoned with this error.
        """

    def rejection(self, message: str | None) -> AuthenticationError:
        """Return the error for a broker that rejects the credentials, with its ``message`` if it sent one.

        The text says what to check, and contains no secret, even if the message does.
        """

    def hidden(self, text: str | None) -> str | None:
        """Return a broker's ``text`` without the secrets that it may repeat."""


class Login(Protocol):
    """Makes the authenticator of each authentication; one object serves all connections of a client.

    ``security.login.login_from`` creates one.
    """

    @property
    def mechanism(self) -> str:
        """The SASL mechanism."""

    async def authenticator(self) -> Authenticator:
        """Return the authenticator for one authentication, with the credentials of this moment.

        Each call ends within a bounded time.

        Raises:
            KafkaError: there are no credentials now; the text gives the reason and the remedy.
        """

    @property
    def executor(self) -> Executor:
        """Threads for the steps that block."""

    def rejected(self, authenticator: Authenticator) -> None:
        """Forget these credentials, which a broker has rejected: the next ones are read or requested again."""

    def stop(self) -> None:
        """Cancel what runs in the background, without waiting for it."""

    async def close(self) -> None:
        """Cancel what runs in the background, and wait for its end."""
