"""Certificates with chosen subjects and ends of validity, and TLS handshakes in memory."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

HOST = "kafka.example"
LATER = datetime(2090, 1, 1, tzinfo=UTC)


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Pair:
    """A certificate and its private key."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, authority: Authority) -> None:
        self.certificate = certificate
        self.private_key = key
        self.pem = certificate.public_bytes(Encoding.PEM)
        self.key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.authority = authority

    def encrypted_key(self, password: bytes) -> bytes:
        return self.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password))

    @property
    def store(self) -> bytes:
        """As ``ssl.keystore.location`` holds it: PEM of the key, the certificate and its issuer."""
        return self.key + self.pem + self.authority.pem

    def pkcs12(self, password: bytes) -> bytes:
        return pkcs12.serialize_key_and_certificates(
            b"client",
            self.private_key,
            self.certificate,
            [self.authority.certificate],
            BestAvailableEncryption(password),
        )


class Authority:
    """Issues certificates that are valid until ``not_after``."""

    def __init__(self, name: str = "authority", not_after: datetime = LATER) -> None:
        self.private_key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign(named(name), self.private_key, named(name), not_after, is_authority=True)
        self.pem = self.certificate.public_bytes(Encoding.PEM)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        issuer: x509.Name,
        not_after: datetime,
        *,
        is_authority: bool = False,
        host: str | None = None,
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(datetime(2020, 1, 1, tzinfo=UTC), not_after - timedelta(days=1)))
            .not_valid_after(not_after)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if host is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self.private_key, hashes.SHA256())

    def issue(
        self, subject: str | x509.Name, not_after: datetime = LATER, key: ec.EllipticCurvePrivateKey | None = None
    ) -> Pair:
        """Issue a certificate; ``subject`` is also its host name, if it is a string."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        name = named(subject) if isinstance(subject, str) else subject
        host = subject if isinstance(subject, str) else None
        return Pair(self._sign(name, key, self.certificate.subject, not_after, host=host), key, self)

    def broker_context(self, folder: Path, trusted: Authority | None = None) -> ssl.SSLContext:
        """The server's side of ``HOST``, which demands a client certificate of ``trusted``, if that is given."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        file = folder / "broker.pem"
        file.write_bytes(self.issue(HOST).store)
        context.load_cert_chain(file)
        if trusted is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=trusted.pem.decode())
        return context


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str = HOST) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after a handshake through memory and one message each way, so that refusals in TLS 1.3 show."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )

    def run(steps: list[Callable[[], object]]) -> None:
        for _ in range(10):
            for step in tuple(steps):
                try:
                    step()
                except ssl.SSLWantReadError:
                    continue
                steps.remove(step)
        assert not steps

    run([end.do_handshake for end in ends])
    ends[0].write(b"ping")
    ends[1].write(b"pong")
    run([lambda end=end: end.read(4) for end in ends])
    return ends


def presented(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    """The common name in the certificate that the client presents to a server that demands one."""
    return common_name(handshake(client, server)[1].getpeercert())


def common_name(certificate: object) -> str:
    """Return the common name in a result of ``getpeercert``."""
    assert isinstance(certificate, dict)
    (name,) = [value for part in certificate["subject"] for key, value in part if key == "commonName"]
    return str(name)
