"""OAUTHBEARER (RFC 7628) with Kafka's extensions (KIP-255, KIP-342): a bearer token in one message."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from aioproducer.errors import SaslAuthenticationError
from aioproducer.security.redaction import without_secrets

MECHANISM = "OAUTHBEARER"

_SEPARATOR = "\x01"
# The client's response to the server's error, which then ends the exchange (RFC 7628, section 3.2.3).
_ERROR_ACKNOWLEDGED = b"\x01"

_TOKEN = re.compile(r"[-A-Za-z0-9._~+/]+=*")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x20-\x7e\t\r\n]*")
_STATUS = re.compile(r'"status"\s*:\s*"([a-z_]{1,50})"')
_MESSAGE = re.compile(
    r"n,(?:a=(?P<authorization>[^,\x01]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)+)\x01", re.DOTALL
)


class BearerToken(NamedTuple):
    """The message: a token and the SASL extensions beside it."""

    token: str
    extensions: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"BearerToken(hidden, extensions {', '.join(sorted(self.extensions)) or 'none'})"

    def encode(self) -> bytes:
        """
        Raises:
            ValueError: the token or an extension has characters that are not allowed; the text contains neither.
        """
        if not _TOKEN.fullmatch(self.token):
            raise ValueError("the bearer token is empty or has characters that no token has (RFC 6750)")
        for name, value in self.extensions.items():
            if not _EXTENSION_NAME.fullmatch(name) or name.lower() == "auth":
                raise ValueError(f"a SASL extension must have a name of letters, other than 'auth', not {name!r}")
            if not _EXTENSION_VALUE.fullmatch(value):
                raise ValueError(f"the value of SASL extension {name!r} must be printable ASCII")
        pairs = {"auth": f"Bearer {self.token}", **self.extensions}
        text = "".join(f"{name}={value}{_SEPARATOR}" for name, value in pairs.items())
        return f"n,,{_SEPARATOR}{text}{_SEPARATOR}".encode()

    @classmethod
    def decode(cls, data: bytes) -> BearerToken:
        """
        Raises:
            ValueError: the message is malformed; the text does not contain it.
        """
        try:
            found = _MESSAGE.fullmatch(data.decode("ascii"))
        except UnicodeDecodeError:
            found = None
        if found is None:
            raise ValueError("the SASL OAUTHBEARER message is malformed")
        pairs = dict(pair.split("=", 1) for pair in found["pairs"].split(_SEPARATOR)[:-1])
        scheme, _, token = pairs.pop("auth", "").partition(" ")
        if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
            raise ValueError("the SASL OAUTHBEARER message has no bearer token")
        return cls(token, pairs)


class OAuthBearerClient:
    """Authenticates one connection by a token.

    Args:
        validity: returns until when the token is valid, as part of a sentence for errors.

    Raises:
        ValueError: the token or an extension has characters that are not allowed.
    """

    mechanism = MECHANISM
    step_blocks = False

    def __init__(
        self,
        token: str,
        extensions: Mapping[str, str] | None = None,
        validity: Callable[[], str] | None = None,
    ) -> None:
        self._message: bytes | None = BearerToken(token, extensions or {}).encode()
        self._token = token
        self._validity = validity
        self._error: str | None = None

    def step(self, challenge: bytes | None) -> bytes | None:
        """Return the token first, then None; or the acknowledgement of the broker's error, which follows by its code.

        Raises:
            SaslAuthenticationError: the broker accepts the connection after it has reported an error.
        """
        message, self._message = self._message, None
        if message is not None:
            return message
        if self._error is not None:
            raise self.rejection()
        if challenge:
            self._error = challenge.decode(errors="replace")
            return _ERROR_ACKNOWLEDGED
        return None

    def hidden(self, text: str | None) -> str | None:
        """Return a broker's text in printable form, without the token and parts of it; None for None."""
        return None if text is None else without_secrets(text, (self._token,))

    def rejection(self, message: str | None = None) -> SaslAuthenticationError:
        """Return the error for a broker that rejected the token (error code 58), with what to check.

        Args:
            message: the broker's text beside the error code, if any. Its error in the exchange is known already.
        """
        reported = self._error or message or ""
        status = _status(reported)
        shown = self.hidden(status or reported)
        reason = f" ({shown})" if shown else ""
        validity = f"; {self._validity()}" if self._validity is not None else ""
        if status == "insufficient_scope":
            advice = "Set sasl.oauthbearer.scope to the scope that the broker requires"
        else:
            advice = (
                "Check that issuer and audience of the token are those that the broker expects, that it has not "
                "expired, and the clocks of both machines"
            )
        return SaslAuthenticationError(
            f"The broker rejected the bearer token{reason}{validity}. {advice}; the broker's log has the reason."
        )


def _status(reported: str) -> str:
    """Return the status of a broker's error: ``invalid_token`` in ``{"status":"invalid_token"}`` (RFC 7628)."""
    found = _STATUS.search(reported)
    return found[1] if found else ""
