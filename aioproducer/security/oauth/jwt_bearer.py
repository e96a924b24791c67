"""The grant jwt-bearer (RFC 7523, KIP-1139, Kafka's JwtBearerJwtRetriever): a signed assertion for an access token."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aioproducer.errors import ConfigurationError, KafkaError
from aioproducer.security.oauth.endpoint import INSTALL, TokenEndpoint
from aioproducer.security.oauth.files import read_bytes, read_text
from aioproducer.security.oauth.packages import require_package
from aioproducer.security.tokens import OAuthBearerToken

if TYPE_CHECKING:
    from aioproducer.security.settings import TokenSettings

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"

_PREFIX = "sasl.oauthbearer.assertion"
_KEY_FILE, _PASSPHRASE = f"{_PREFIX}.private.key.file", f"{_PREFIX}.private.key.passphrase"
_TEMPLATE = f"{_PREFIX}.template.file"
_KEY_TYPES = {"RS256": "RSA", "ES256": "EC"}


class JwtBearer:
    """Provides the token that the token endpoint issues for an assertion.

    The assertion is ready in a file, or signed here for each token. The files are read for each token.

    Raises:
        ConfigurationError: a key is missing or contradicts another, the URL is not allowed, or httpx or joserfc is not
            installed.
    """

    def __init__(self, settings: TokenSettings, wall_clock: Callable[[], float] = time.time) -> None:
        self._endpoint = TokenEndpoint(settings)
        self._scope = (settings.sasl_oauthbearer_scope or "").strip()
        file = settings.sasl_oauthbearer_assertion_file
        if file and settings.sasl_oauthbearer_assertion_private_key_file:
            raise ConfigurationError(f"give {_PREFIX}.file or {_KEY_FILE}, not both")
        self._assertion: Callable[[], str]
        if file:
            self._assertion = lambda: read_text(f"{_PREFIX}.file", file)
        else:
            self._assertion = _Signer(settings, wall_clock)

    async def __call__(self) -> OAuthBearerToken:
        """
        Raises:
            TokenProviderError: a file cannot be read, or the endpoint gave no token, or none that Kafka can use.
            ConfigurationError: the private key or the template is invalid.
        """
        assertion = await asyncio.get_running_loop().run_in_executor(self._endpoint.executor, self._assertion)
        form = {"grant_type": GRANT_TYPE, "assertion": assertion}
        if self._scope:
            form["scope"] = self._scope
        return await self._endpoint.fetch(form, {}, (assertion,), "the assertion's key and claims, and scope")


class _Signer:
    """Makes assertions: claims of the template file, then the fixed ones of the configuration, then the times."""

    def __init__(self, settings: TokenSettings, wall_clock: Callable[[], float]) -> None:
        self._algorithm = settings.sasl_oauthbearer_assertion_algorithm.upper()
        if self._algorithm not in _KEY_TYPES:
            raise ConfigurationError(f"{_PREFIX}.algorithm must be one of {', '.join(_KEY_TYPES)}")
        key_file = settings.sasl_oauthbearer_assertion_private_key_file
        if not key_file:
            raise ConfigurationError(f"{_KEY_FILE} is missing: set it, or {_PREFIX}.file to a ready assertion")
        require_package("joserfc", f"Signed assertions need the package joserfc: {INSTALL}")
        self._key_file = key_file
        passphrase = settings.sasl_oauthbearer_assertion_private_key_passphrase
        self._passphrase = passphrase.value if passphrase is not None else None
        self._template_file = settings.sasl_oauthbearer_assertion_template_file
        fixed = {
            "aud": settings.sasl_oauthbearer_assertion_claim_aud,
            "iss": settings.sasl_oauthbearer_assertion_claim_iss,
            "sub": settings.sasl_oauthbearer_assertion_claim_sub,
        }
        self._fixed = {name: value for name, value in fixed.items() if value}
        self._valid_for_s = settings.sasl_oauthbearer_assertion_claim_exp_seconds
        self._valid_since_s = settings.sasl_oauthbearer_assertion_claim_nbf_seconds
        self._has_jti = settings.sasl_oauthbearer_assertion_claim_jti_include
        self._wall_clock = wall_clock

    def __call__(self) -> str:
        """Return a new assertion; blocks.

        Raises:
            TokenProviderError: a file cannot be read.
            ConfigurationError: the private key or the template is invalid.
        """
        now = int(self._wall_clock())
        header, claims = self._template()
        claims |= self._fixed
        claims |= {"iat": now, "exp": now + self._valid_for_s, "nbf": now - self._valid_since_s}
        if self._has_jti:
            import uuid

            claims["jti"] = str(uuid.uuid4())
        header |= {"alg": self._algorithm, "typ": "JWT"}
        try:
            return self._signed(header, claims)
        except KafkaError:
            raise
        # joserfc checks the template's header, and the permitted uses of a key.
        except Exception as error:
            problem = type(error).__name__
        # Raised here, so that neither its context nor its frames contain the key.
        raise ConfigurationError(
            f"the assertion cannot be signed with {self._key_file} by {self._algorithm} ({problem}): check {_KEY_FILE} "
            f"and {_TEMPLATE}"
        )

    def _signed(self, header: dict[str, Any], claims: dict[str, Any]) -> str:
        from joserfc import jwt

        return jwt.encode(header, claims, self._key(), algorithms=[self._algorithm])

    def _key(self) -> Any:
        from joserfc import jwk

        pem = read_bytes(_KEY_FILE, self._key_file)
        if b"PRIVATE KEY-----" not in pem:
            raise ConfigurationError(f"{_KEY_FILE} {self._key_file} holds no private key as PEM")
        is_encrypted = b"ENCRYPTED" in pem
        if is_encrypted and self._passphrase is None:
            raise ConfigurationError(f"{_KEY_FILE} {self._key_file} is encrypted: set {_PASSPHRASE}")
        kind = _KEY_TYPES[self._algorithm]
        key_class: Any = {"RSA": jwk.RSAKey, "EC": jwk.ECKey}[kind]
        try:
            return key_class.import_key(pem, password=self._passphrase if is_encrypted else None)
        # cryptography and joserfc raise errors of many classes here.
        except Exception as error:
            problem = type(error).__name__
        del pem
        wrong = f"{_PASSPHRASE} is wrong, or " if is_encrypted else ""
        raise ConfigurationError(
            f"{_KEY_FILE} {self._key_file} cannot be read ({problem}): {wrong}it is no {kind} key, which "
            f"{self._algorithm} needs"
        )

    def _template(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self._template_file:
            return {}, {}
        try:
            template = json.loads(read_bytes(_TEMPLATE, self._template_file))
        except (ValueError, RecursionError):
            template = None
        header, payload = (
            (template.get("header", {}), template.get("payload", {})) if isinstance(template, dict) else (None, None)
        )
        if not isinstance(header, dict) or not isinstance(payload, dict):
            raise ConfigurationError(
                f"{_TEMPLATE} {self._template_file} must be a JSON object with the objects header and payload"
            )
        return dict(header), dict(payload)
