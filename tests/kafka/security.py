"""Apache Kafka with a listener for each kind of authentication, on one broker.

Its tests are in ``tests/interop/security``. They share one broker, which starts in three seconds, and the server of its
tokens, which runs in the test process::

    pytest -m interop tests/interop/security
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Self

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from aioproducer.core.requests.authenticator import Authenticator
from aioproducer.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from aioproducer.protocol.schema import Request, Response, Struct, array, binary, int16, int32, int64, string
from aioproducer.security.sasl.plain import PlainClient
from aioproducer.security.sasl.scram import ScramClient
from tests.broker.wire import WireClient
from tests.kafka.cluster import QUICK_JVM, KafkaCluster
from tests.kafka.token_server import TokenServer

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

SASL: Final = "SASL"
"""Every mechanism, without TLS."""
SASL_TLS: Final = "SASLTLS"
"""Every mechanism, with TLS."""
SCRAM_512: Final = "SCRAM512"
"""Only SCRAM-SHA-512, without TLS."""
SHORT: Final = "SHORT"
"""Every mechanism, without TLS, in sessions of ``SESSION_MS`` (KIP-368)."""

SESSION_MS: Final = 1000

_PROTOCOLS = {SASL: "SASL_PLAINTEXT", SASL_TLS: "SASL_SSL", SCRAM_512: "SASL_PLAINTEXT", SHORT: "SASL_PLAINTEXT"}
_ENABLED = {SASL: MECHANISMS, SASL_TLS: MECHANISMS, SCRAM_512: ("SCRAM-SHA-512",), SHORT: MECHANISMS}

USERNAME: Final = "alice,=x"
PASSWORD: Final = 'pa55=word, "quoted" \\ and ümläut;'

_TIMEOUT = 30.0
_PACKAGE = "org.apache.kafka.common.security"
_MODULES = {
    "PLAIN": f"{_PACKAGE}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_PACKAGE}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_PACKAGE}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule",
}
_SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


class DelegationToken(NamedTuple):
    """A token for the user that requested it (KIP-48)."""

    id: str
    hmac: str
    """In base64, as SCRAM expects it as password with ``tokenauth``."""


class SecureCluster(KafkaCluster):
    """One broker with the listeners above and those of ``KafkaCluster``; ``tokens`` must run before it starts.

    ``USERNAME`` has ``PASSWORD`` for PLAIN and both kinds of SCRAM; ``plain_users`` has further passwords by name, only
    for PLAIN.
    """

    def __init__(self, tokens: TokenServer, plain_users: Mapping[str, str] | None = None) -> None:
        users = {USERNAME: PASSWORD, **(plain_users or {})}
        self.tokens = tokens
        super().__init__(
            1,
            tls=True,
            listeners=_PROTOCOLS,
            properties={
                "auto.create.topics.enable": "true",
                "delegation.token.secret.key": "the-brokers-secret",
                # Refuse at once: Kafka's delay is against guessing passwords.
                "connection.failed.authentication.delay.ms": "0",
                **_properties(tokens, users),
            },
            jvm_options=(
                *QUICK_JVM,
                f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.jwks_url}",
            ),
        )

    def start(self) -> Self:
        super().start()
        for mechanism in _SCRAM:
            self.set_scram_password(USERNAME, mechanism, PASSWORD)
        return self

    def sasl_bootstrap_servers(self, listener: str) -> str:
        """Return the address of one of the listeners named in this module."""
        return self.listener_bootstrap_servers(listener)

    def configuration(self, listener: str, mechanism: str, **changes: Any) -> dict[str, Any]:
        """Return keywords of this project's clients for a listener that has the mechanism, with valid credentials.

        ``changes`` adds or replaces keywords; None removes one.
        """
        found: dict[str, Any] = {
            "bootstrap_servers": self.sasl_bootstrap_servers(listener),
            "security_protocol": _PROTOCOLS[listener],
            "sasl_mechanism": mechanism,
        }
        if listener == SASL_TLS:
            found["ssl_truststore_location"] = self.truststore
        if mechanism == "OAUTHBEARER":
            found["sasl_token_provider"] = lambda: (self.tokens.token(), time.time() + self.tokens.lifetime)
        else:
            found |= {"sasl_username": USERNAME, "sasl_password": PASSWORD}
        return {name: value for name, value in (found | changes).items() if value is not None}

    @property
    def truststore(self) -> str:
        """The path of the authority that has signed the broker's certificate."""
        assert self.certificates is not None
        return str(self.certificates.authority)

    def set_scram_password(self, username: str, mechanism: str, password: str) -> None:
        """Create a user or change its password; once this returns, the broker accepts only the new password."""
        info = ScramCredentialInfo(_SCRAM[mechanism], 4096)
        self._alter_scram(UserScramCredentialUpsertion(username, info, password.encode()))
        self._wait_accepted(lambda: ScramClient(mechanism, username, password))

    def delete_scram_user(self, username: str, mechanism: str, password: str) -> None:
        """Delete the user's password for one mechanism; once this returns, the broker refuses it."""
        self._alter_scram(UserScramCredentialDeletion(username, _SCRAM[mechanism]))
        self._wait_accepted(lambda: ScramClient(mechanism, username, password), accepted=False)

    def _alter_scram(self, alteration: UserScramCredentialUpsertion | UserScramCredentialDeletion) -> None:
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        client.alter_user_scram_credentials([alteration])[alteration.user].result(_TIMEOUT)

    def _wait_accepted(self, make: Callable[[], Authenticator], accepted: bool = True) -> None:
        """Wait for the broker, because the controller answers before the broker has the change."""
        deadline = time.monotonic() + _TIMEOUT
        while (self.authenticate(make()).error_code == 0) != accepted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the broker has not applied new credentials within {_TIMEOUT:g} s")
            time.sleep(0.02)

    def authenticate(self, authenticator: Authenticator, listener: str = SASL) -> SaslAuthenticateResponse:
        """Return the broker's last answer to this side of an exchange, on a listener without TLS."""
        return asyncio.run(authenticate(self.sasl_bootstrap_servers(listener), authenticator))

    def delegation_token(self) -> DelegationToken:
        """Return a new token of ``USERNAME``, which the broker accepts."""
        token = asyncio.run(self._create_delegation_token())
        self._wait_accepted(lambda: ScramClient("SCRAM-SHA-256", token.id, token.hmac, is_token=True))
        return token

    async def _create_delegation_token(self) -> DelegationToken:
        async with await WireClient.connect(self.sasl_bootstrap_servers(SASL)) as client:
            authenticated = await _authenticate(client, PlainClient(USERNAME, PASSWORD))
            assert authenticated.error_code == 0, authenticated
            response = await client.call(_CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=600_000), 2)
            assert response.error_code == 0, response
            return DelegationToken(response.token_id, base64.b64encode(response.hmac).decode())


async def authenticate(address: str, authenticator: Authenticator) -> SaslAuthenticateResponse:
    """Return the broker's last answer to one side of an exchange, without TLS and without the client under test."""
    async with await WireClient.connect(address) as client:
        return await _authenticate(client, authenticator)


async def _authenticate(client: WireClient, authenticator: Authenticator) -> SaslAuthenticateResponse:
    handshake = await client.call(SaslHandshakeRequest(mechanism=authenticator.mechanism), 1)
    if handshake.error_code:
        raise AssertionError(f"refused: {handshake}")
    message = authenticator.step(None)
    while True:
        assert message is not None
        response = await client.call(SaslAuthenticateRequest(auth_bytes=message), 2)
        if response.error_code:
            return response
        message = authenticator.step(response.auth_bytes)
        if message is None:
            return response


def _properties(tokens: TokenServer, users: Mapping[str, str]) -> dict[str, str]:
    passwords = {f"user_{name}": password for name, password in users.items()}
    found = {"sasl.enabled.mechanisms": ",".join(MECHANISMS)}
    for listener, mechanisms in _ENABLED.items():
        of_listener = f"listener.name.{listener.lower()}"
        found[f"{of_listener}.sasl.enabled.mechanisms"] = ",".join(mechanisms)
        for mechanism in mechanisms:
            prefix = f"{of_listener}.{mechanism.lower()}"
            jaas = _jaas(_MODULES[mechanism], passwords if mechanism == "PLAIN" else {})
            found[f"{prefix}.sasl.jaas.config"] = properties_value(jaas)
            if listener == SHORT:
                found[f"{prefix}.connections.max.reauth.ms"] = str(SESSION_MS)
        if "OAUTHBEARER" in mechanisms:
            found |= {
                f"{of_listener}.oauthbearer.sasl.server.callback.handler.class": (
                    f"{_PACKAGE}.oauthbearer.OAuthBearerValidatorCallbackHandler"
                ),
                f"{of_listener}.sasl.oauthbearer.jwks.endpoint.url": tokens.jwks_url,
                f"{of_listener}.sasl.oauthbearer.expected.audience": tokens.audience,
                f"{of_listener}.sasl.oauthbearer.expected.issuer": tokens.issuer,
                f"{of_listener}.sasl.oauthbearer.clock.skew.seconds": "1",
            }
    return found


def _jaas(module: str, options: Mapping[str, str]) -> str:
    """Return an entry in the form that Kafka reads: JAAS' grammar, values in quotes."""
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in options.items()}
    return " ".join([module, "required", *(f'"{name}"="{value}"' for name, value in quoted.items())]) + ";"


def properties_value(value: str) -> str:
    """Return ``value`` escaped for a properties file, which is read as Latin-1."""
    doubled = value.replace("\\", "\\\\")
    return "".join(each if each.isascii() else f"\\u{ord(each):04x}" for each in doubled)


class _Renewer(Struct):
    principal_type: str = string("0+")
    principal_name: str = string("0+")


class _CreateDelegationTokenResponse(Response, api_key=38, versions="2-2", flexible="2+"):
    error_code: int = int16("0+")
    principal_type: str = string("0+")
    principal_name: str = string("0+")
    issue_timestamp_ms: int = int64("0+")
    expiry_timestamp_ms: int = int64("0+")
    max_timestamp_ms: int = int64("0+")
    token_id: str = string("0+")
    hmac: bytes = binary("0+")
    throttle_time_ms: int = int32("0+")


class _CreateDelegationTokenRequest(Request[_CreateDelegationTokenResponse], api_key=38, versions="2-2", flexible="2+"):
    """Request a delegation token (KIP-48), in a version that brokers since 2.4 support; no Python client has this."""

    renewers: list[_Renewer] = array(_Renewer, "0+")
    max_lifetime_ms: int = int64("0+")
