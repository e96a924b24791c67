"""Where redirects of token endpoints may lead: credentials must not reach another server (CVE-2025-27817's class)."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def redirected(url: str, location: str) -> str | None:
    """Return where a redirect leads, or None if it leaves scheme, host or port of ``url``."""
    try:
        parts, target = urlsplit(url), urlsplit(location)
        if not target.scheme and not target.netloc:
            if not target.path.startswith("/"):
                return None
            return parts._replace(path=target.path, query=target.query, fragment="").geturl()
        if _origin(parts) != _origin(target) or "@" in target.netloc:
            return None
    except ValueError:
        return None
    return target._replace(fragment="").geturl()


def _origin(parts: SplitResult) -> tuple[str, str, int | None]:
    scheme = parts.scheme.lower()
    port = parts.port if parts.port is not None else {"https": 443, "http": 80}.get(scheme)
    return scheme, (parts.hostname or "").lower(), port
