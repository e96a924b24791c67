"""OIDC client credentials (KIP-768, Kafka's ClientCredentialsJwtRetriever)."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

from aioproducer.errors import ConfigurationError
from aioproducer.security.oauth.endpoint import TokenEndpoint
from aioproducer.security.tokens import OAuthBearerToken

if TYPE_CHECKING:
    from aioproducer.security.settings import TokenSettings

_PREFIX = "sasl.oauthbearer.client.credentials"


class ClientCredentials:
    """Provides the token that the token endpoint issues for client id and secret.

    Raises:
        ConfigurationError: client id, secret or the URL are missing or not allowed, or httpx is not installed.
    """

    def __init__(self, settings: TokenSettings) -> None:
        self._endpoint = TokenEndpoint(settings)
        client_id = (settings.sasl_oauthbearer_client_credentials_client_id or "").strip()
        secret = settings.sasl_oauthbearer_client_credentials_client_secret
        client_secret = secret.value.strip() if secret is not None else ""
        for name, value in (("client.id", client_id), ("client.secret", client_secret)):
            if not value:
                raise ConfigurationError(
                    f"{_PREFIX}.{name} is missing: set it, or for assertions "
                    "sasl.oauthbearer.jwt.retriever.class to JwtBearerJwtRetriever"
                )
        pair = [client_id, client_secret]
        if settings.sasl_oauthbearer_header_urlencode:
            pair = [_form_encoded(part) for part in pair]
        credentials = b64encode(":".join(pair).encode()).decode()
        self._headers = {"Authorization": f"Basic {credentials}"}
        self._form = {"grant_type": "client_credentials"}
        scope = (settings.sasl_oauthbearer_scope or "").strip()
        if scope:
            self._form["scope"] = scope
        self._secrets = (client_secret, _form_encoded(client_secret), credentials)

    async def __call__(self) -> OAuthBearerToken:
        """
        Raises:
            TokenProviderError: the endpoint gave no token, or none that Kafka can use.
            ConfigurationError: a trust store cannot be read.
        """
        return await self._endpoint.fetch(
            self._form, self._headers, self._secrets, "client id, client secret and scope"
        )


def _form_encoded(text: str) -> str:
    """Encode for RFC 6749, section 2.3.1, as Java's URLEncoder does (KIP-1025)."""
    return quote_plus(text, safe="*").replace("~", "%7E")
