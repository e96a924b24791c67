"""Authentication inside Kafka's own frames: SaslHandshake and SaslAuthenticate (KIP-43, KIP-152)."""

from __future__ import annotations

from aioproducer.protocol.schema import (
    STRING,
    Request,
    Response,
    array,
    binary,
    int16,
    int64,
    string,
)


class SaslHandshakeResponse(Response, api_key=17, versions="0-1"):
    """The mechanisms that the broker offers, also if the requested one is not among them."""

    error_code: int = int16("0+")
    mechanisms: list[str] = array(STRING, "0+")


class SaslHandshakeRequest(Request[SaslHandshakeResponse], api_key=17, versions="0-1"):
    """Choose a mechanism.

    After version 0 the mechanism's own bytes follow without frames, after version 1 in SaslAuthenticate.
    """

    mechanism: str = string("0+")


class SaslAuthenticateResponse(Response, api_key=36, versions="0-2", flexible="2+"):
    """One step of the mechanism, from the broker; a session lifetime of 0 has no end (KIP-368)."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    auth_bytes: bytes = binary("0+")
    session_lifetime_ms: int = int64("1+", ignorable=True)


class SaslAuthenticateRequest(Request[SaslAuthenticateResponse], api_key=36, versions="0-2", flexible="2+"):
    """One step of the mechanism, from the client."""

    auth_bytes: bytes = binary("0+")
