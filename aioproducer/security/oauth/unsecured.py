"""Unsigned tokens for development listeners (Kafka's OAuthBearerUnsecuredLoginCallbackHandler, KIP-255).

Every client can make such tokens: a broker that accepts them does not authenticate its clients.
"""

from __future__ import annotations

import json
import math
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping

from aioproducer.errors import ConfigurationError
from aioproducer.security.tokens import OAuthBearerToken

PREFIX = "unsecuredLogin"

_STRING, _NUMBER, _LIST = f"{PREFIX}StringClaim_", f"{PREFIX}NumberClaim_", f"{PREFIX}ListClaim_"
_EXTENSION = f"{PREFIX}Extension_"
_PRINCIPAL_NAME, _SCOPE_NAME = f"{PREFIX}PrincipalClaimName", f"{PREFIX}ScopeClaimName"
_LIFETIME = f"{PREFIX}LifetimeSeconds"
_LONGEST_LIFETIME_S = 10 * 365 * 86_400


class UnsecuredTokens:
    """Provides tokens with the claims of the login module's options in ``sasl.jaas.config``.

    ``unsecuredLoginStringClaim_NAME``, ``unsecuredLoginNumberClaim_NAME``, ``unsecuredLoginListClaim_NAME`` (the first
    character separates the items), ``unsecuredLoginExtension_NAME``, ``unsecuredLoginLifetimeSeconds`` (3600),
    ``unsecuredLoginPrincipalClaimName`` (sub) and ``unsecuredLoginScopeClaimName`` (scope).

    Raises:
        ConfigurationError: an option is unknown or wrong, or there is no claim with the principal.
    """

    def __init__(self, options: Mapping[str, str], wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._claims: dict[str, object] = {}
        self._extensions: dict[str, str] = {}
        principal_name = "sub"
        self._lifetime_s = 3600
        for option, value in options.items():
            if option.startswith(_EXTENSION):
                self._extensions[option.removeprefix(_EXTENSION)] = value
            elif option == _PRINCIPAL_NAME:
                principal_name = value.strip() or "sub"
            elif option == _LIFETIME:
                self._lifetime_s = _lifetime_s(value)
            elif option.startswith((_STRING, _NUMBER, _LIST)):
                self._add_claim(option, value)
            elif option.startswith(PREFIX) and option != _SCOPE_NAME:
                raise ConfigurationError(f"sasl.jaas.config has an unknown option {option}")
        principal = self._claims.get(principal_name)
        if not isinstance(principal, str) or not principal.strip():
            raise ConfigurationError(f'sasl.jaas.config needs the principal: {_STRING}{principal_name}="NAME"')
        self._principal = principal

    def _add_claim(self, option: str, value: str) -> None:
        kind, _, name = option.partition("_")
        if name in ("", "iat", "exp"):
            raise ConfigurationError(
                f"sasl.jaas.config: {option} cannot set a claim; iat and exp are set for each token"
            )
        if kind + "_" == _NUMBER:
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                raise ConfigurationError(f"sasl.jaas.config: {option} must be a number")
            self._claims[name] = number
        elif kind + "_" == _LIST:
            self._claims[name] = value[1:].split(value[0]) if len(value) > 1 else []
        else:
            self._claims[name] = value

    def __call__(self) -> OAuthBearerToken:
        now = self._wall_clock()
        claims = {"exp": now + self._lifetime_s, "iat": now, **self._claims}
        token = f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."
        return OAuthBearerToken(token, now + self._lifetime_s, self._principal, self._extensions)


def _lifetime_s(value: str) -> int:
    text = value.strip()
    if not text.isascii() or not text.isdigit() or not 0 < len(text) < 12 or not 0 < int(text) <= _LONGEST_LIFETIME_S:
        raise ConfigurationError(
            f"sasl.jaas.config: {_LIFETIME} must be a whole number of seconds from 1 to {_LONGEST_LIFETIME_S}"
        )
    return int(text)


def _encoded(part: Mapping[str, object]) -> str:
    return urlsafe_b64encode(json.dumps(part, separators=(",", ":")).encode()).decode().rstrip("=")
