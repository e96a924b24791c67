"""The structure of JSON web tokens (RFC 7519), read without verification, as Kafka's ClientJwtValidator does."""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode
from typing import NamedTuple

# More than milliseconds since the epoch will be for 30,000 years.
_LATEST = 1e15


class Claims(NamedTuple):
    """The claims of an access token that the client reads."""

    expires_at: float
    """Seconds since the epoch."""
    principal: str


def payload_of(token: str) -> dict[str, object]:
    """Return the claims of a JWT, unverified.

    Raises:
        ValueError: it is no JWT; the text does not contain it.
    """
    parts = token.split(".")
    if len(parts) != 3 or not all(parts):
        raise ValueError("is no JWT, which has three parts: header, payload and signature")
    claims: object
    try:
        payload = urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims = json.loads(payload, parse_constant=_reject_constant)
    # Of these, UnicodeDecodeError and JSONDecodeError, both of them ValueErrors, contain the payload: an error that is
    # raised in here would have them as its context.
    except (ValueError, binascii.Error, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise ValueError("is no JWT: its payload is no base64 of a JSON object")
    return claims


def claims_of(token: str, *, scope_claim: str = "scope", subject_claim: str = "sub") -> Claims:
    """Return the claims that Kafka's ClientJwtValidator reads, after the same checks.

    Args:
        scope_claim: name of the claim with the scope (``sasl.oauthbearer.scope.claim.name``).
        subject_claim: name of the claim with the principal (``sasl.oauthbearer.sub.claim.name``).

    Raises:
        ValueError: it is no JWT, or a claim is missing or wrong; the text contains no claim's value.
    """
    claims = payload_of(token)
    expires_at = _time(claims, "exp")
    if expires_at is None:
        raise ValueError("has no claim exp: the identity provider must issue tokens that expire")
    _time(claims, "iat")
    subject = claims.get(subject_claim)
    if not isinstance(subject, str) or not subject.strip():
        raise ValueError(
            f"has no claim {subject_claim} with a text: set sasl.oauthbearer.sub.claim.name "
            "to the claim with the principal"
        )
    scope = claims.get(scope_claim)
    scopes = scope if isinstance(scope, list) else [] if scope is None else [scope]
    if not all(isinstance(item, str) and item.strip() for item in scopes) or len(set(scopes)) < len(scopes):
        raise ValueError(f"has a claim {scope_claim} that is neither a text nor a list of different texts")
    return Claims(expires_at, subject.strip())


def not_before(token: str) -> float | None:
    """Return the claim ``nbf`` in seconds since the epoch; None if there is none, or the token is no JWT."""
    try:
        return _time(payload_of(token), "nbf")
    except ValueError:
        return None


def _time(claims: dict[str, object], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LATEST:
        raise ValueError(f"has a claim {name} that is no number of seconds since the epoch")
    return float(value)


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
