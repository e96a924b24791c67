"""PLAIN (RFC 4616): user name and password in one message. Only TLS protects them."""

from __future__ import annotations

from typing import NamedTuple

from aioproducer.errors import SaslAuthenticationError
from aioproducer.security.sasl.credentials import PasswordClient, check_utf8

MECHANISM = "PLAIN"


class PlainCredentials(NamedTuple):
    """The message: ``authorization_id`` is the name to act as, empty for ``username`` itself."""

    authorization_id: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"PlainCredentials({self.authorization_id!r}, {self.username!r}, password hidden)"

    def encode(self) -> bytes:
        """
        Raises:
            ValueError: a part contains NUL, or has no UTF-8 form; the text does not contain the part.
        """
        for name, part in zip(self._fields, self, strict=True):
            if "\0" in part:
                raise ValueError(f"the SASL {name} must not contain NUL")
            check_utf8(name, part)
        return "\0".join(self).encode()

    @classmethod
    def decode(cls, data: bytes) -> PlainCredentials:
        """
        Raises:
            ValueError: the message is malformed; the text does not contain it.
        """
        try:
            parts = data.decode().split("\0")
        except UnicodeDecodeError:
            # Raised in here, the error would have this one, which contains the message, as its context.
            parts = None
        if parts is None:
            raise ValueError("a SASL PLAIN message must be UTF-8")
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise ValueError("a SASL PLAIN message must have three parts: authorization id, user name and password")
        return cls(*parts)


class PlainClient(PasswordClient):
    """Authenticates one connection by user name and password.

    Raises:
        ValueError: user name or password is empty, contains NUL or has no UTF-8 form.
    """

    step_blocks = False

    def __init__(self, username: str, password: str) -> None:
        super().__init__(MECHANISM, username, password)
        self._message: bytes | None = PlainCredentials("", username, password).encode()

    def step(self, challenge: bytes | None) -> bytes | None:
        """Return the credentials first, then None.

        Raises:
            SaslAuthenticationError: the broker's response is not empty.
        """
        message, self._message = self._message, None
        if message is not None:
            return message
        if challenge:
            raise SaslAuthenticationError(
                "The broker answered SASL PLAIN with a challenge, but PLAIN has none: check that it is a Kafka broker."
            )
        return None
