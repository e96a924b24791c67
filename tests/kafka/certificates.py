"""TLS keys and certificates for brokers and clients, as PEM files, from an authority made for one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files. The brokers' certificate is only for ``localhost``: 127.0.0.1 is a host name mismatch."""

    authority: Path
    broker: Path
    client_certificate: Path
    client_key: Path
    client_keystore: Path
    other_authority: Path

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        """Write a fresh set into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        paths = cls(
            authority=folder / "authority.pem",
            broker=folder / "broker.pem",
            client_certificate=folder / "client-certificate.pem",
            client_key=folder / "client-key.pem",
            client_keystore=folder / "client-keystore.pem",
            other_authority=folder / "other-authority.pem",
        )
        authority.cert_pem.write_to_path(str(paths.authority))
        trustme.CA().cert_pem.write_to_path(str(paths.other_authority))
        broker = authority.issue_cert("localhost")
        paths.broker.write_bytes(_pkcs8(broker) + _chain(broker))
        client = authority.issue_cert("client@example.org")
        paths.client_certificate.write_bytes(_chain(client))
        paths.client_key.write_bytes(_pkcs8(client))
        paths.client_keystore.write_bytes(_pkcs8(client) + _chain(client))
        return paths


def _chain(certificate: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in certificate.cert_chain_pems)


def _pkcs8(certificate: trustme.LeafCert) -> bytes:
    """Return the private key in the only form that Kafka's PEM key stores accept (KIP-651)."""
    key = load_pem_private_key(certificate.private_key_pem.bytes(), password=None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
