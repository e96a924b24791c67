"""Invented credentials for AWS, and a check of tokens that are signed with them.

A token is a URL that is signed for the action ``kafka-cluster:Connect`` (Signature Version 4), in base64url.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
import urllib.parse
from datetime import UTC, datetime
from pathlib import Path

REGION = "eu-central-1"
ACCESS_KEY_ID = "AKIAMADEUPFORTHETEST"
SECRET_ACCESS_KEY = "made/up+for/the/test"

UNSET = ("AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_PROFILE")
"""Environment variables that would change the signature."""


def environment(folder: Path, region: str = REGION) -> dict[str, str]:
    """Return variables with the credentials, and without this machine's: ``folder`` has no files of AWS."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
        "AWS_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(folder / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "no-credentials"),
    }


def check_token(token: str, session_token: str | None = None, region: str = REGION) -> None:
    """Check a token as AWS does, with the secret key of the key id."""
    assert "=" not in token
    url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    parts = urllib.parse.urlsplit(url)
    host = f"kafka.{region}.amazonaws.com"
    assert (parts.scheme, parts.netloc, parts.path) == ("https", host, "/")
    query = dict(urllib.parse.parse_qsl(parts.query, strict_parsing=True))
    assert query["Action"] == "kafka-cluster:Connect"
    assert query["X-Amz-Algorithm"] == "AWS4-HMAC-SHA256"
    assert query["X-Amz-SignedHeaders"] == "host"
    assert 0 < int(query["X-Amz-Expires"]) <= 900
    signed_at = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    assert abs(signed_at - time.time()) < 60
    key_id, scope = query["X-Amz-Credential"].split("/", 1)
    assert key_id == ACCESS_KEY_ID
    assert scope == f"{query['X-Amz-Date'][:8]}/{region}/kafka-cluster/aws4_request"
    assert query.get("X-Amz-Security-Token") == session_token
    signature = query.pop("X-Amz-Signature")
    # Appended after signing.
    query.pop("User-Agent", None)
    canonical = urllib.parse.urlencode(sorted(query.items()), quote_via=urllib.parse.quote, safe="-_.~")
    request = f"GET\n/\n{canonical}\nhost:{host}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
    to_sign = f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{SECRET_ACCESS_KEY}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    assert signature == hmac.new(key, to_sign.encode(), "sha256").hexdigest()
