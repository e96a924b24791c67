"""One SASL exchange of a connection: which request follows each response (KIP-43, KIP-152, KIP-368).

The exchange begins with SaslHandshake, which names the mechanism. Each message of the mechanism travels in a
SaslAuthenticate request. The same exchange authenticates a new connection and, before its session ends, one in use.

A client without SASL may ask a listener whether it requires SASL, by a handshake that names no mechanism: a listener
with SASL answers with the mechanisms that it offers, another one that there is nothing to authenticate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aioproducer._common.diagnosis import mechanism_not_offered, sasl_not_offered, sasl_required
from aioproducer.core.requests.authenticator import Authenticator
from aioproducer.core.requests.broker_versions import BrokerVersions
from aioproducer.error_codes import ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED, UNSUPPORTED_SASL_MECHANISM
from aioproducer.errors import KafkaError, NetworkError, broker_error
from aioproducer.protocol import ApiKey, Request, Response
from aioproducer.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

# A session is renewed after a random share of its lifetime between these, as in Kafka's SaslClientAuthenticator: the
# connections of many clients must not authenticate at the same time.
EARLIEST_RENEWAL = 0.85
LATEST_RENEWAL = 0.95

# The mechanism of a handshake that only asks whether the listener requires SASL.
_NONE = ""


class SaslExchange:
    """The requests of one authentication, each made from the response before it.

    Args:
        peer: the broker in error messages, ``host:port``.
        authenticator: the mechanism; None: only ask whether the listener requires SASL.
        is_renewal: the broker has accepted this client on the connection before.
        versions: the broker's API versions.
        uses_tls: whether the connection is encrypted: for error messages only.
    """

    def __init__(
        self,
        peer: str,
        authenticator: Authenticator | None,
        versions: BrokerVersions,
        *,
        uses_tls: bool,
        is_renewal: bool = False,
    ) -> None:
        self.authenticator = authenticator
        self.is_finished: bool = False
        """Whether the broker has accepted the client; no request follows."""
        self.blocking_step: Callable[[], bytes | None] | None = None
        """The step that the driver has to run in a thread; `step_ended` receives its result."""
        self.begun_at: float = 0.0
        """When the broker had begun: the arrival of its response to the handshake."""
        self.session_lifetime_ms: int = 0
        """How long the authentication is valid (KIP-368), in milliseconds; 0: without limit."""
        self._peer = peer
        self._versions = versions
        self._uses_tls = uses_tls
        self._is_renewal = is_renewal

    def begin(self) -> Request[Response]:
        """Return the first request.

        Raises:
            IllegalSaslStateError: the listener does not use SASL.
            UnsupportedVersionError: the broker is older than Kafka 1.0.
        """
        if ApiKey.SASL_HANDSHAKE not in self._versions.apis:
            raise sasl_not_offered(self._peer, uses_tls=self._uses_tls)
        mechanism = _NONE if self.authenticator is None else self.authenticator.mechanism
        return SaslHandshakeRequest(mechanism=mechanism)

    def version(self, request: Request[Response]) -> int:
        """Return the version of a request of this exchange.

        Raises:
            UnsupportedVersionError: the broker is older than Kafka 1.0.
        """
        # From version 1 on the messages travel in SaslAuthenticate requests (KIP-152); before, as bare frames.
        is_handshake = isinstance(request, SaslHandshakeRequest)
        return self._versions.negotiate(request.schema.api_key, lowest=1 if is_handshake else 0)

    def receive(self, response: object, now: float) -> Request[Response] | None:
        """Return the request that follows a response; None if there is none, or not yet: see `blocking_step`.

        Raises:
            AuthenticationError: the broker rejects the client, or the client the broker.
        """
        if isinstance(response, SaslHandshakeResponse):
            self.begun_at = now
            return self._receive_handshake(response)
        assert isinstance(response, SaslAuthenticateResponse)
        assert self.authenticator is not None
        if response.error_code == SASL_AUTHENTICATION_FAILED:
            raise self.authenticator.rejection(response.error_message)
        if response.error_code:
            raise broker_error(response.error_code, self.authenticator.hidden(response.error_message))
        self.session_lifetime_ms = response.session_lifetime_ms
        return self._step(bytes(response.auth_bytes))

    def _receive_handshake(self, response: SaslHandshakeResponse) -> Request[Response] | None:
        code = response.error_code
        if self.authenticator is None:
            if code == UNSUPPORTED_SASL_MECHANISM:
                raise sasl_required(self._peer, response.mechanisms, uses_tls=self._uses_tls)
            # Any other answer: the listener serves clients without SASL.
            self.is_finished = True
            return None
        if code == UNSUPPORTED_SASL_MECHANISM:
            raise mechanism_not_offered(self._peer, self.authenticator.mechanism, response.mechanisms)
        if code == ILLEGAL_SASL_STATE and self._is_renewal:
            raise NetworkError(
                f"{self._peer} refused to renew the session of this connection: brokers do so within a second of the "
                "last renewal, or if sessions have no end any more."
            )
        if code == ILLEGAL_SASL_STATE:
            raise sasl_not_offered(self._peer, uses_tls=self._uses_tls)
        if code:
            raise broker_error(code)
        return self._step(None)

    def _step(self, challenge: bytes | None) -> Request[Response] | None:
        authenticator = self.authenticator
        assert authenticator is not None
        if authenticator.step_blocks:
            self.blocking_step = partial(authenticator.step, challenge)
            return None
        try:
            message = authenticator.step(challenge)
        except KafkaError:
            raise
        except Exception as error:
            # Nothing that a broker sends may raise another error; its text may contain a secret.
            name = type(error).__name__
            raise KafkaError(f"A step of SASL {authenticator.mechanism} with {self._peer} failed: {name}") from None
        return self.step_ended(message)

    def step_ended(self, message: bytes | None) -> Request[Response] | None:
        """Return the request with the message that a step has returned; None if that was the last."""
        self.blocking_step = None
        if message is None:
            self.is_finished = True
            return None
        return SaslAuthenticateRequest(auth_bytes=message)
