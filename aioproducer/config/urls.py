"""Restricts the URLs in the configuration: a stray one must reach neither files nor other hosts (CVE-2025-27817)."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from aioproducer.errors import ConfigurationError

TOKEN_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"

_ALLOWED = "allowed are https URLs, and http URLs of this machine alone (localhost, 127.0.0.1, [::1])"


def shown(url: str) -> str:
    """Return a URL for messages: without user info, query and fragment, which may hold secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "[malformed URL]"
    if not parts.scheme:
        return "[URL without a scheme]"
    host = parts.netloc.rpartition("@")[2]
    # Without a host, what looks like the path may be a password: https:user:password@host.
    return f"{parts.scheme}://{host}{parts.path}" if host or parts.scheme == "file" else "[malformed URL]"


def is_file(url: str) -> bool:
    """Return whether a URL names a file."""
    return url.strip()[:5].lower() == "file:"


def http_url(key: str, url: str) -> str:
    """Return the URL of a token endpoint, without surrounding blanks.

    Raises:
        ConfigurationError: the URL is malformed, has user info or a fragment, or could send secrets in clear text.
    """
    parts = _split(key, url)
    scheme = parts.scheme.lower()
    if scheme not in ("http", "https"):
        files = f"; only {TOKEN_ENDPOINT} may name a file" if scheme == "file" and key != TOKEN_ENDPOINT else ""
        problem = f"the scheme {scheme!r} cannot be used" if scheme else "the scheme is missing"
        raise ConfigurationError(f"{key}: {problem}: {_ALLOWED}{files}")
    if not parts.hostname:
        raise ConfigurationError(f"{key} has no host: {_ALLOWED}")
    if "@" in parts.netloc:
        raise ConfigurationError(
            f"{key} has a user name or password in the URL: set sasl.oauthbearer.client.credentials.client.id and "
            "sasl.oauthbearer.client.credentials.client.secret instead"
        )
    if parts.fragment:
        raise ConfigurationError(f"{key} {shown(url)} has a fragment (#...), which no token endpoint has")
    if scheme == "http" and not is_loopback(parts.hostname):
        raise ConfigurationError(f"{key} {shown(url)} would send secrets in clear text: {_ALLOWED}")
    return url.strip()


def file_path(key: str, url: str) -> Path:
    """Return the path of a ``file:`` URL.

    Raises:
        ConfigurationError: the URL names another machine, has a query, or no absolute path.
    """
    parts = _split(key, url)
    path = unquote(parts.path)
    if parts.scheme.lower() != "file" or parts.netloc.lower() not in ("", "localhost") or parts.query or parts.fragment:
        raise ConfigurationError(f"{key} must have the form file:///absolute/path to name a file")
    if not path.startswith("/") or "\0" in path:
        raise ConfigurationError(f"{key} must name an absolute path: file:///absolute/path")
    return Path(path)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(key: str, url: str) -> SplitResult:
    text = url.strip()
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise ConfigurationError(f"{key} has characters that no URL has: encode them as %XX")
    try:
        parts = urlsplit(text)
        # Raises ValueError if it is no port.
        _ = parts.port
    except ValueError:
        raise ConfigurationError(f"{key} is no URL: {_ALLOWED}") from None
    return parts
