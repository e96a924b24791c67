"""TLS and SASL for the connections to brokers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioproducer.security.oauth.msk import msk_iam_provider
    from aioproducer.security.renewal import RenewedContext, context_source_from
    from aioproducer.security.tls import client_context, ssl_context_from
    from aioproducer.security.tokens import OAuthBearerToken

__all__ = [
    "OAuthBearerToken",
    "RenewedContext",
    "client_context",
    "context_source_from",
    "msk_iam_provider",
    "ssl_context_from",
]

# The module of each name, imported at its first use: a client with TLS needs no tokens, one with a password no TLS.
_HOMES = {
    "OAuthBearerToken": "aioproducer.security.tokens",
    "RenewedContext": "aioproducer.security.renewal",
    "client_context": "aioproducer.security.tls",
    "context_source_from": "aioproducer.security.renewal",
    "msk_iam_provider": "aioproducer.security.oauth.msk",
    "ssl_context_from": "aioproducer.security.tls",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value
