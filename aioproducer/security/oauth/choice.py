"""Which provider of tokens a configuration names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aioproducer.config.urls import TOKEN_ENDPOINT, file_path, is_file
from aioproducer.errors import ConfigurationError

if TYPE_CHECKING:
    from aioproducer.security.settings import TokenSettings

_RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer."
_DEFAULT, _CLIENT_CREDENTIALS = "DefaultJwtRetriever", "ClientCredentialsJwtRetriever"
_JWT_BEARER, _FILE = "JwtBearerJwtRetriever", "FileJwtRetriever"
_KNOWN = (_DEFAULT, _CLIENT_CREDENTIALS, _JWT_BEARER, _FILE)


def provider_from(settings: TokenSettings, wall_clock: Callable[[], float]) -> Callable[[], object]:
    """Return the user's provider, else that for Amazon MSK, else the one of ``sasl.oauthbearer.jwt.retriever.class``.

    Without a token endpoint, the unsecured claims of ``sasl.jaas.config`` make tokens for development.

    Raises:
        ConfigurationError: there is no provider, its keys are wrong, or a package is not installed.
    """
    if settings.sasl_token_provider is not None:
        return settings.sasl_token_provider
    options = settings.sasl_jaas.options if settings.sasl_jaas is not None else {}
    if settings.sasl_msk_iam is not None:
        from aioproducer.security.oauth.msk import provider_from_options

        return provider_from_options(settings.sasl_msk_iam, [host for host, _ in settings.bootstrap_addresses])
    retriever = _retriever(settings.sasl_oauthbearer_jwt_retriever_class)
    if not isinstance(retriever, str):
        return retriever
    url = settings.sasl_oauthbearer_token_endpoint_url or ""
    if not url.strip():
        if any(name.startswith("unsecuredLogin") for name in options):
            from aioproducer.security.oauth.unsecured import UnsecuredTokens

            return UnsecuredTokens(options, wall_clock)
        raise ConfigurationError(
            f"OAUTHBEARER has no source of tokens: set sasl_token_provider to a callable, or {TOKEN_ENDPOINT}"
        )
    if retriever == _DEFAULT:
        retriever = _FILE if is_file(url) else _CLIENT_CREDENTIALS
    if retriever == _FILE:
        from aioproducer.security.oauth.token_file import TokenFile

        return TokenFile(
            file_path(TOKEN_ENDPOINT, url),
            settings.sasl_oauthbearer_scope_claim_name,
            settings.sasl_oauthbearer_sub_claim_name,
        )
    if retriever == _JWT_BEARER:
        from aioproducer.security.oauth.jwt_bearer import JwtBearer

        return JwtBearer(settings, wall_clock)
    from aioproducer.security.oauth.client_credentials import ClientCredentials

    return ClientCredentials(settings)


def _retriever(given: object) -> str | Callable[[], object]:
    """Return the name of one of Kafka's classes without its package, or the callable that is given."""
    if given is None:
        return _DEFAULT
    if isinstance(given, str):
        name = given.strip().removeprefix(_PACKAGE)
        if name in _KNOWN:
            return name
        raise ConfigurationError(
            f"{_RETRIEVER} {given!r} is unknown: use one of {', '.join(_KNOWN)}, or give sasl_token_provider"
        )
    if not callable(given):
        raise ConfigurationError(f"{_RETRIEVER} must be a name or a callable, not {type(given).__name__}")
    return given
