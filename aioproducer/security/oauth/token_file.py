"""A token in a file, e.g. a projected service account token of Kubernetes (Kafka's FileJwtRetriever)."""

from __future__ import annotations

from pathlib import Path

from aioproducer.config.urls import TOKEN_ENDPOINT
from aioproducer.errors import TokenProviderError
from aioproducer.security.oauth.files import read_text
from aioproducer.security.oauth.jwt import claims_of
from aioproducer.security.tokens import OAuthBearerToken


class TokenFile:
    """Provides the JWT in a file, which is read at each call: blocks."""

    def __init__(self, path: Path, scope_claim: str = "scope", subject_claim: str = "sub") -> None:
        self._path = path
        self._scope_claim = scope_claim
        self._subject_claim = subject_claim

    def __call__(self) -> OAuthBearerToken:
        """
        Raises:
            TokenProviderError: the file cannot be read, or holds no JWT with the claims that Kafka needs.
        """
        token = read_text(TOKEN_ENDPOINT, self._path)
        try:
            claims = claims_of(token, scope_claim=self._scope_claim, subject_claim=self._subject_claim)
            return OAuthBearerToken(token, claims.expires_at, claims.principal)
        except ValueError as error:
            problem = str(error)
        # Raised here, so that neither its context nor its frames contain the token.
        del token
        raise TokenProviderError(f"The token in {self._path} {problem}.")
