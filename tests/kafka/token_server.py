"""An OAuth authorization server in the test process: a token endpoint, and the keys that verify its tokens.

Kafka's own validator fetches the keys (JWKS, RFC 7517) and checks signature, issuer, audience and times of each token.
The JSON Web Tokens are made here with ``cryptography`` only, so that no JWT library is on both sides of a test.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import time
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.kafka.process import Startable

CLIENT_CREDENTIALS = "client_credentials"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class SigningKey:
    """An RSA key with the id that tokens contain."""

    def __init__(self) -> None:
        self.private: RSAPrivateKey = generate_private_key(public_exponent=65537, key_size=2048)
        self.id = uuid.uuid4().hex

    @property
    def pem(self) -> bytes:
        """The private key as PKCS#8, without a passphrase."""
        return self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def jwk(self) -> dict[str, str]:
        """The public key (RFC 7518, section 6.3.1)."""
        numbers = self.private.public_key().public_numbers()
        return {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": self.id,
            "n": _encode(numbers.n.to_bytes(256, "big")),
            "e": _encode(numbers.e.to_bytes(3, "big")),
        }

    def sign(self, claims: dict[str, Any]) -> str:
        """Return a token with these claims, signed with RS256."""
        header = {"alg": "RS256", "typ": "JWT", "kid": self.id}
        signed = f"{_encode(json.dumps(header).encode())}.{_encode(json.dumps(claims).encode())}"
        return f"{signed}.{_encode(self.private.sign(signed.encode(), PKCS1v15(), SHA256()))}"


def verified_claims(token: str, key: RSAPublicKey) -> dict[str, Any]:
    """Return the claims of a token that ``key`` has signed with RS256.

    Raises:
        ValueError: the token is malformed or its signature is wrong.
    """
    try:
        header, payload, signature = token.split(".")
        key.verify(_decode(signature), f"{header}.{payload}".encode(), PKCS1v15(), SHA256())
        if json.loads(_decode(header))["alg"] != "RS256":
            raise ValueError("the token is not signed with RS256")
        claims: dict[str, Any] = json.loads(_decode(payload))
    except (InvalidSignature, binascii.Error, KeyError) as error:
        raise ValueError(f"not a token of this key: {error!r}") from error
    return claims


class TokenRequest(NamedTuple):
    """One request to the token endpoint: its form, and the credentials of its Authorization header."""

    form: dict[str, str]
    client_id: str
    client_secret: str


class TokenServer(Startable):
    """Tokens for the clients in ``clients``, on a loopback port; a context manager.

    ``lifetime`` is that of new tokens, in seconds. ``failures`` are HTTP status codes that the token endpoint returns
    before it issues a token again.
    """

    issuer = "https://tokens.example.org"
    audience = "kafka"
    client_id = "orders-service"
    client_secret = "c1ient-s3cret/+="

    def __init__(self) -> None:
        self.key = SigningKey()
        self.assertion_key = SigningKey()
        """Signs the assertions of the JWT bearer grant; the server has its public key."""
        self.clients = {self.client_id: self.client_secret}
        """Secrets by client id."""
        self.lifetime = 300.0
        self.failures: list[int] = []
        self.requests: list[TokenRequest] = []
        self.issued: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"tokens": self}))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="token-server", daemon=True
        )

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The address before the paths."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def token_url(self) -> str:
        """The token endpoint (RFC 6749, section 3.2)."""
        return f"{self.url}/token"

    @property
    def jwks_url(self) -> str:
        """The public keys."""
        return f"{self.url}/jwks"

    def token(self, *, key: SigningKey | None = None, **claims: Any) -> str:
        """Return a token that Kafka accepts, changed by ``claims``; None removes a claim."""
        now = int(time.time())
        all_claims = {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": self.client_id,
            "scope": "produce",
            "iat": now,
            "exp": now + self.lifetime,
            "jti": uuid.uuid4().hex,
            **claims,
        }
        return (key or self.key).sign({name: value for name, value in all_claims.items() if value is not None})

    def grant(self, request: TokenRequest) -> tuple[int, dict[str, Any]]:
        """Return HTTP status and body of the answer to a token request."""
        self.requests.append(request)
        if self.failures:
            return self.failures.pop(0), {"error": "temporarily_unavailable"}
        match request.form.get("grant_type"):
            case "client_credentials":
                if not request.client_id or self.clients.get(request.client_id) != request.client_secret:
                    return 401, {"error": "invalid_client", "error_description": "unknown client or wrong secret"}
                subject = request.client_id
            case "urn:ietf:params:oauth:grant-type:jwt-bearer":
                try:
                    claims = verified_claims(request.form.get("assertion", ""), self.assertion_key.private.public_key())
                except ValueError:
                    return 400, {"error": "invalid_grant", "error_description": "the assertion is not valid"}
                if not claims["iat"] - 60 <= time.time() < claims["exp"] or claims["aud"] != self.token_url:
                    return 400, {
                        "error": "invalid_grant",
                        "error_description": "the assertion is for another time or place",
                    }
                subject = claims["sub"]
            case other:
                return 400, {"error": "unsupported_grant_type", "error_description": f"{other}"}
        token = self.token(sub=subject, scope=request.form.get("scope", "produce"))
        self.issued.append(token)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.lifetime)}


class _Handler(BaseHTTPRequestHandler):
    tokens: TokenServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/jwks":
            self._answer(200, {"keys": [self.tokens.key.jwk]})
        else:
            self._answer(404, {"error": "not found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.path != "/token":
            self._answer(404, {"error": "not found"})
            return
        form = dict(urllib.parse.parse_qsl(body, keep_blank_values=True))
        client_id, client_secret = form.get("client_id", ""), form.get("client_secret", "")
        scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            # RFC 6749, section 2.3.1 demands form-encoding of both inside, which Kafka's client omits.
            client_id, _, client_secret = base64.b64decode(encoded).decode().partition(":")
            if self.tokens.clients.get(client_id) != client_secret:
                client_id, client_secret = (
                    urllib.parse.unquote_plus(client_id),
                    urllib.parse.unquote_plus(client_secret),
                )
        self._answer(*self.tokens.grant(TokenRequest(form, client_id, client_secret)))

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: the requests are kept for the tests."""


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
