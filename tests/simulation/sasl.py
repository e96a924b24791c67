"""A listener that requires SASL: what Kafka's SaslServerAuthenticator and KafkaChannel allow, and when."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aioproducer.protocol import ApiKey, Request, Response
from aioproducer.protocol.messages.api_versions import ApiVersionsRequest
from aioproducer.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from aioproducer.security.sasl.oauthbearer import BearerToken
from aioproducer.security.sasl.plain import PlainCredentials
from aioproducer.security.sasl.scram import (
    ClientFinal,
    ClientFirst,
    ScramKeys,
    ServerFinal,
    ServerFirst,
    is_proof_valid,
    server_signature,
)

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster

UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34
SASL_AUTHENTICATION_FAILED = 58

SASL_APIS = {ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}

PLAIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "alice",
    "sasl_password": "right",
}
"""A producer's keys for what `secure` accepts."""
SCRAM = {**PLAIN, "sasl_mechanism": "SCRAM-SHA-256"}

# Kafka's MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS.
MIN_RENEWAL_INTERVAL = 1.0


@dataclass
class SaslRules:
    """What the listeners of a cluster accept; a test changes it while clients run."""

    passwords: dict[str, str] = field(default_factory=dict)
    """For PLAIN and SCRAM-SHA-256, by user name."""
    tokens: dict[str, float] = field(default_factory=dict)
    """For OAUTHBEARER: the end of each token's life, in seconds of the loop."""
    mechanisms: tuple[str, ...] = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
    session_lifetime: float = 0.0
    """Seconds (``connections.max.reauth.ms``); 0: without end, but for that of a token."""
    logins: list[tuple[float, str, bool]] = field(default_factory=list)
    """Each authentication that has ended: when, whose, and whether it was accepted."""
    renewals: int = 0


def secure(cluster: SimulatedCluster, partitions: int = 1, **rules: Any) -> SaslRules:
    """Let the brokers of the cluster, which gets the topic ``clicks``, require SASL."""
    rules.setdefault("passwords", {"alice": "right"})
    cluster.create_topic("clicks", partitions)
    sasl = SaslRules(**rules)
    cluster.require_sasl(sasl)
    return sasl


class SaslSide:
    """The broker's side of the authentications of one connection."""

    def __init__(self, rules: SaslRules) -> None:
        self._rules = rules
        self._mechanism: str | None = None
        self._is_authenticated = False
        self._session_end = float("inf")
        self._last_renewal = -float("inf")
        self._scram: tuple[ClientFirst, ServerFirst, ScramKeys, bytes] | None = None

    def answer(self, request: Request[Response], now: float) -> tuple[Response | None, bool]:
        """What the listener answers instead of the broker, if anything, and whether the connection ends then."""
        if isinstance(request, SaslHandshakeRequest):
            return self._handshake(request.mechanism, now)
        if isinstance(request, SaslAuthenticateRequest) and self._mechanism is not None:
            return self._authenticate(request.auth_bytes, now)
        if self._is_authenticated and self._mechanism is None and now < self._session_end:
            return None, isinstance(request, SaslAuthenticateRequest)
        return None, self._is_authenticated or not isinstance(request, ApiVersionsRequest)

    def _handshake(self, mechanism: str, now: float) -> tuple[Response, bool]:
        if self._is_authenticated:
            if self._session_end == float("inf") or now < self._last_renewal + MIN_RENEWAL_INTERVAL:
                return SaslHandshakeResponse(error_code=ILLEGAL_SASL_STATE), False
            self._last_renewal = now
            self._rules.renewals += 1
        if mechanism not in self._rules.mechanisms:
            names = list(self._rules.mechanisms)
            return SaslHandshakeResponse(error_code=UNSUPPORTED_SASL_MECHANISM, mechanisms=names), True
        self._mechanism = mechanism
        return SaslHandshakeResponse(mechanisms=list(self._rules.mechanisms)), False

    def _authenticate(self, message: bytes, now: float) -> tuple[Response, bool]:
        rules = self._rules
        lifetime = rules.session_lifetime
        if self._mechanism == "PLAIN":
            credentials = PlainCredentials.decode(message)
            accepted = rules.passwords.get(credentials.username) == credentials.password
            return self._decided(credentials.username, accepted, b"", lifetime, now)
        if self._mechanism == "OAUTHBEARER":
            token = BearerToken.decode(message).token
            left = rules.tokens.get(token, now) - now
            return self._decided(token, left > 0, b"", min(lifetime or left, left), now)
        if self._scram is None:
            first = ClientFirst.decode(message)
            server_first = ServerFirst(first.nonce + secrets.token_urlsafe(8), b"salt", 4096)
            keys = ScramKeys.derive("SCRAM-SHA-256", rules.passwords.get(first.username, "?"), b"salt", 4096)
            self._scram = first, server_first, keys, server_first.encode()
            return SaslAuthenticateResponse(auth_bytes=server_first.encode()), False
        first, _, keys, challenge = self._scram
        self._scram = None
        final = ClientFinal.decode(message)
        signed = b",".join([first.bare.encode(), challenge, final.without_proof.encode()])
        accepted = is_proof_valid("SCRAM-SHA-256", keys.stored_key, final.proof, signed)
        signature = ServerFinal(server_signature("SCRAM-SHA-256", keys, signed)).encode()
        return self._decided(first.username, accepted, signature, lifetime, now)

    def _decided(self, who: str, accepted: bool, last: bytes, lifetime: float, now: float) -> tuple[Response, bool]:
        self._rules.logins.append((now, who, accepted))
        self._mechanism = None
        if not accepted:
            text = "Authentication failed: Invalid credentials"
            return SaslAuthenticateResponse(error_code=SASL_AUTHENTICATION_FAILED, error_message=text), True
        self._is_authenticated = True
        self._session_end = now + lifetime if lifetime else float("inf")
        return SaslAuthenticateResponse(auth_bytes=last, session_lifetime_ms=int(lifetime * 1000)), False
