"""SCRAM-SHA-256 and SCRAM-SHA-512 as Kafka has them (RFC 5802, RFC 7677, KIP-84).

Both sides prove that they know the password without sending it. Kafka encodes names and passwords in UTF-8 without
SASLprep, uses no channel binding, and marks delegation tokens by the extension ``tokenauth=true`` (KIP-48).

The exchange: client-first, server-first (salt and iterations), client-final (proof), server-final (signature). The
client's second step derives a key, which takes milliseconds to a second: ``step_blocks`` says so in advance.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Final, NamedTuple

from aioproducer.errors import SaslAuthenticationError
from aioproducer.security.redaction import described
from aioproducer.security.sasl.credentials import PasswordClient

# By mechanism: hashlib's name of the hash.
MECHANISMS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

MIN_ITERATIONS = 4096
MAX_ITERATIONS = 1_000_000
"""More would let a hostile server occupy a thread for as long as it likes."""

# Without channel binding, and the same in base64 as client-final repeats it.
_GS2_HEADER = "n,,"
_CHANNEL_BINDING = b64encode(_GS2_HEADER.encode()).decode()

_BASE64 = r"[A-Za-z0-9+/]+={0,2}"
# Printable ASCII without the comma (RFC 5802, section 7).
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = r"(?:,[A-Za-z]+=[^,\0]+)*"
_CLIENT_FIRST = re.compile(
    rf"n,(?:a=(?P<authorization>[^,\0]*))?,(?P<bare>n=(?P<name>[^,\0]+),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_SERVER_FIRST = re.compile(rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,10}}){_EXTENSIONS}")
_CLIENT_FINAL = re.compile(
    rf"(?P<without_proof>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL = re.compile(rf"(?:e=(?P<error>[^,\0]+)|v=(?P<signature>{_BASE64})){_EXTENSIONS}")


class MalformedMessageError(ValueError):
    """A SCRAM message is malformed; the text does not contain it."""


class ClientFirst(NamedTuple):
    """The client's name and nonce."""

    username: str
    nonce: str
    is_token: bool = False

    @property
    def bare(self) -> str:
        """The message without its header, as it is signed."""
        token = ",tokenauth=true" if self.is_token else ""
        return f"n={_escape(self.username)},r={self.nonce}{token}"

    def encode(self) -> bytes:
        return f"{_GS2_HEADER}{self.bare}".encode()

    @classmethod
    def decode(cls, data: bytes) -> ClientFirst:
        """
        Raises:
            MalformedMessageError: it is not a client's first message, or demands channel binding.
        """
        found = _match(_CLIENT_FIRST, data, "client's first")
        return cls(_unescape(found["name"]), found["nonce"], "tokenauth=true" in found["extensions"].split(","))


class ServerFirst(NamedTuple):
    """Both nonces, the client's first, and the parameters of the stored keys."""

    nonce: str
    salt: bytes
    iterations: int

    def encode(self) -> bytes:
        return f"r={self.nonce},s={b64encode(self.salt).decode()},i={self.iterations}".encode()

    @classmethod
    def decode(cls, data: bytes) -> ServerFirst:
        """
        Raises:
            MalformedMessageError: it is not a server's first message.
        """
        found = _match(_SERVER_FIRST, data, "server's first")
        return cls(found["nonce"], _decode_base64(found["salt"]), int(found["iterations"]))


class ClientFinal(NamedTuple):
    """The client's proof; ``without_proof`` is the rest of the message, as it is signed."""

    without_proof: str
    nonce: str
    proof: bytes

    def encode(self) -> bytes:
        return f"{self.without_proof},p={b64encode(self.proof).decode()}".encode()

    @classmethod
    def decode(cls, data: bytes) -> ClientFinal:
        """
        Raises:
            MalformedMessageError: it is not a client's final message, or demands channel binding.
        """
        found = _match(_CLIENT_FINAL, data, "client's final")
        if found["binding"] != _CHANNEL_BINDING:
            raise MalformedMessageError("the client demands channel binding, which Kafka does not have")
        return cls(found["without_proof"], found["nonce"], _decode_base64(found["proof"]))


class ServerFinal(NamedTuple):
    """The server's signature, or the reason why the client is not authenticated."""

    signature: bytes = b""
    error: str = ""

    def encode(self) -> bytes:
        return (f"e={self.error}" if self.error else f"v={b64encode(self.signature).decode()}").encode()

    @classmethod
    def decode(cls, data: bytes) -> ServerFinal:
        """
        Raises:
            MalformedMessageError: it is not a server's final message.
        """
        found = _match(_SERVER_FINAL, data, "server's final")
        if found["error"] is not None:
            return cls(error=found["error"])
        return cls(_decode_base64(found["signature"]))


class ScramKeys(NamedTuple):
    """The keys that both sides derive from a password, or a server stores instead of it."""

    client_key: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "ScramKeys(hidden)"

    @classmethod
    def derive(cls, mechanism: str, password: str, salt: bytes, iterations: int) -> ScramKeys:
        """Derive the keys; takes from milliseconds to a second, without the GIL."""
        name = MECHANISMS[mechanism]
        salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", name)
        return cls(client_key, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name))


def client_proof(mechanism: str, keys: ScramKeys, signed: bytes) -> bytes:
    """Return the proof that the client knows the password."""
    signature = hmac.digest(keys.stored_key, signed, MECHANISMS[mechanism])
    return _xor(keys.client_key, signature)


def server_signature(mechanism: str, keys: ScramKeys, signed: bytes) -> bytes:
    """Return the signature that proves that the server knows the keys."""
    return hmac.digest(keys.server_key, signed, MECHANISMS[mechanism])


def is_proof_valid(mechanism: str, stored_key: bytes, proof: bytes, signed: bytes) -> bool:
    """Return whether a client's proof fits the stored key."""
    name = MECHANISMS[mechanism]
    signature = hmac.digest(stored_key, signed, name)
    if len(proof) != len(signature):
        return False
    client_key = _xor(proof, signature)
    return hmac.compare_digest(hashlib.new(name, client_key).digest(), stored_key)


class ScramClient(PasswordClient):
    """Authenticates one connection by user name and password, or by a delegation token's id and its HMAC.

    Args:
        is_token: ``username`` and ``password`` are those of a delegation token.
        make_nonce: returns a new nonce of printable ASCII characters without a comma.

    Raises:
        ValueError: the mechanism is unknown; user name or password is empty or has no UTF-8 form.
    """

    def __init__(
        self,
        mechanism: str,
        username: str,
        password: str,
        *,
        is_token: bool = False,
        make_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        if mechanism not in MECHANISMS:
            raise ValueError(f"unknown SCRAM mechanism {mechanism!r}: use one of {', '.join(MECHANISMS)}")
        super().__init__(mechanism, username, password)
        self._first = ClientFirst(username, make_nonce(), is_token)
        self._step: Callable[[bytes], bytes | None] = self._begin
        self._expected_signature = b""

    @property
    def step_blocks(self) -> bool:
        """Whether the next step computes for long, and belongs into a thread."""
        return self._step == self._prove

    def step(self, challenge: bytes | None) -> bytes | None:
        """Return the next message to the broker, or None when both sides are authenticated.

        Raises:
            SaslAuthenticationError: the broker's message is malformed, or does not fit the exchange; or this machine
                cannot compute the keys.
        """
        try:
            return self._step(challenge or b"")
        except MalformedMessageError as error:
            raise SaslAuthenticationError(f"The broker broke the rules of SASL {self.mechanism}: {error}.") from None

    def _begin(self, challenge: bytes) -> bytes:
        self._step = self._prove
        return self._first.encode()

    def _prove(self, challenge: bytes) -> bytes:
        server_first = ServerFirst.decode(challenge)
        if not server_first.nonce.startswith(self._first.nonce) or server_first.nonce == self._first.nonce:
            raise MalformedMessageError("its nonce does not continue the client's")
        if not MIN_ITERATIONS <= server_first.iterations <= MAX_ITERATIONS:
            raise MalformedMessageError(
                f"it demands {server_first.iterations} iterations (allowed: {MIN_ITERATIONS} to {MAX_ITERATIONS})"
            )
        try:
            return self._proof(server_first, challenge)
        # hashlib and hmac raise errors of several classes, e.g. in OpenSSL's FIPS mode.
        except Exception as error:
            reason = described(error, (self._password,))
        # Raised here, its traceback and context have no frame with the password or a key among its variables.
        raise SaslAuthenticationError(
            f"This machine cannot compute the keys of SASL {self.mechanism} ({reason}): check whether its OpenSSL has "
            "this hash and allows passwords and salts of this length (FIPS mode does not allow all), or choose another "
            "sasl_mechanism."
        )

    def _proof(self, server_first: ServerFirst, challenge: bytes) -> bytes:
        keys = ScramKeys.derive(self.mechanism, self._password, server_first.salt, server_first.iterations)
        without_proof = f"c={_CHANNEL_BINDING},r={server_first.nonce}"
        signed = b",".join([self._first.bare.encode(), challenge, without_proof.encode()])
        self._expected_signature = server_signature(self.mechanism, keys, signed)
        self._step = self._verify
        return ClientFinal(without_proof, server_first.nonce, client_proof(self.mechanism, keys, signed)).encode()

    def _verify(self, challenge: bytes) -> None:
        server_final = ServerFinal.decode(challenge)
        if server_final.error:
            raise self.rejection(server_final.error)
        if not hmac.compare_digest(server_final.signature, self._expected_signature):
            raise SaslAuthenticationError(
                f"The broker's SASL {self.mechanism} signature is wrong: it does not know this password, and may be "
                "another server than it claims."
            )
        self._step = self._finished

    def _finished(self, challenge: bytes) -> None:
        raise MalformedMessageError("the exchange is over")


def _match(pattern: re.Pattern[str], data: bytes, what: str) -> re.Match[str]:
    try:
        found = pattern.fullmatch(data.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise MalformedMessageError(f"the {what} message is malformed")
    return found


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error:
        raise MalformedMessageError("base64 data is malformed") from None


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    """
    Raises:
        MalformedMessageError: an equals sign begins neither ``=2C`` nor ``=3D``.
    """
    if re.search(r"=(?!2C|3D)", name):
        raise MalformedMessageError("the user name has an equals sign that is not escaped")
    return name.replace("=2C", ",").replace("=3D", "=")
