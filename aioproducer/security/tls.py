"""An SSL context from the ``ssl`` keys of the configuration, read as Kafka's DefaultSslEngineFactory does (KIP-651)."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioproducer.errors import ConfigurationError

if TYPE_CHECKING:
    from aioproducer.config import Password, ProducerConfig

_PEM_MARK = b"-----BEGIN "
_JKS_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE = b"\x30"

_TLS_VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


@dataclass(frozen=True, slots=True, repr=False)
class StoreFiles:
    """Contents of the files in ``ssl.keystore.location`` and ``ssl.truststore.location``; ``None`` if not given."""

    keystore: bytes | None
    truststore: bytes | None

    def digest(self) -> bytes:
        """Return a hash that differs if a content does, and that does not reveal the private key."""
        contents = (self.keystore, self.truststore)
        return b"|".join([b"" if content is None else hashlib.sha256(content).digest() for content in contents])


@dataclass(frozen=True, slots=True, repr=False)
class TrustedCertificates:
    """Trusted certificates; PEM bytes."""

    source: str
    """The key that they came from, for messages."""
    pem: bytes


@dataclass(frozen=True, slots=True, repr=False)
class ClientCertificate:
    """A client's certificate with its issuers, and its private key; PEM bytes."""

    source: str
    """The keys that it came from, for messages."""
    chain: bytes
    key: bytes
    password: str | None


@dataclass(frozen=True, slots=True, repr=False)
class TlsStores:
    """Contents of the key store and the trust store, read from their files or given inline."""

    trusted: TrustedCertificates | None
    """``None``: the system's are trusted."""
    client: ClientCertificate | None
    """``None``: the client has no certificate."""


def ssl_context_from(config: ProducerConfig) -> ssl.SSLContext | None:
    """The context for connections of ``config``; ``None`` where ``security_protocol`` is without TLS.

    It is the one in ``ssl_context``, else made by ``ssl_engine_factory_class``, else made from the other ``ssl`` keys.
    Reads files, so it may block for as long as these take.

    Raises:
        ConfigurationError: the ``ssl`` keys are wrong, or the files that they name.
    """
    if not config.uses_tls:
        return None
    if config.ssl_context is not None:
        return config.ssl_context
    if config.ssl_engine_factory_class is None:
        return client_context(config)
    context = config.ssl_engine_factory_class(config)
    if not isinstance(context, ssl.SSLContext):
        raise ConfigurationError(f"ssl.engine.factory.class must return an ssl.SSLContext, not {context!r}")
    return context


def client_context(config: ProducerConfig, stores: TlsStores | None = None) -> ssl.SSLContext:
    """A client's context out of the ``ssl`` keys of ``config``, with ``stores`` if these were read already.

    Reads files, so it may block for as long as these take.

    Raises:
        ConfigurationError: a file is missing or invalid, a password is wrong, key and certificate do not
            belong together, or a version or cipher suite is not there.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Any trusted certificate ends a chain, as in Java: also an intermediate one, or the broker's own certificate.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
    _set_versions(context, config.ssl_enabled_protocols)
    _set_cipher_suites(context, config.ssl_cipher_suites)
    if stores is None:
        stores = open_stores(config, read_store_files(config))
    if stores.trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_trusted(context, stores.trusted)
    if stores.client is not None:
        _load_key(context, stores.client)
    return context


def read_store_files(config: ProducerConfig) -> StoreFiles:
    """Read the files in ``ssl.keystore.location`` and ``ssl.truststore.location``.

    Raises:
        ConfigurationError: one of them cannot be read.
    """
    trust, key = config.ssl_truststore_location, config.ssl_keystore_location
    truststore = None if trust is None else _read(trust, "ssl.truststore.location")
    return StoreFiles(None if key is None else _read(key, "ssl.keystore.location"), truststore)


def open_stores(config: ProducerConfig, files: StoreFiles) -> TlsStores:
    """Find the certificates and the key in ``files``, or in the keys that hold them inline.

    Raises:
        ConfigurationError: a file is invalid, a password is wrong, or keys contradict each other.
    """
    return TlsStores(_trusted_certificates(config, files.truststore), _client_certificate(config, files.keystore))


def _set_versions(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    if not names:
        return
    chosen = sorted(_TLS_VERSIONS[name] for name in names)
    between = [version for version in _TLS_VERSIONS.values() if chosen[0] <= version <= chosen[-1]]
    if between != chosen:
        raise ConfigurationError(f"ssl.enabled.protocols {','.join(names)} leaves out a version between others")
    context.minimum_version, context.maximum_version = chosen[0], chosen[-1]


def _set_cipher_suites(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    """Allow the TLS 1.2 suites in ``names``; the ``ssl`` module has no way to choose among those of TLS 1.3."""
    openssl_names = [_openssl_name(name) for name in names if not _is_tls13_suite(name)]
    if not openssl_names:
        return
    for given, name in zip((name for name in names if not _is_tls13_suite(name)), openssl_names, strict=True):
        try:
            context.set_ciphers(name)
        except ssl.SSLError as error:
            raise ConfigurationError(f"ssl.cipher.suites: {given} is not known to {ssl.OPENSSL_VERSION}") from error
    context.set_ciphers(":".join(openssl_names))


def _is_tls13_suite(name: str) -> bool:
    return name.startswith("TLS_") and "_WITH_" not in name


def _openssl_name(name: str) -> str:
    """OpenSSL's name of a cipher suite given by its IANA name, as Java uses it; other names stay.

    Examples: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256, TLS_RSA_WITH_AES_256_CBC_SHA256 is
    AES256-SHA256, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 is ECDHE-RSA-CHACHA20-POLY1305.
    """
    if "_WITH_" not in name:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").removeprefix("SSL_").partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    cipher = cipher.replace("CAMELLIA_128", "CAMELLIA128").replace("CAMELLIA_256", "CAMELLIA256")
    cipher = cipher.replace("ARIA_128", "ARIA128").replace("ARIA_256", "ARIA256")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    prefix = "" if exchange == "RSA" else exchange + "_"
    return (prefix + cipher).replace("_", "-")


def _trusted_certificates(config: ProducerConfig, content: bytes | None) -> TrustedCertificates | None:
    inline, location = config.ssl_truststore_certificates, config.ssl_truststore_location
    if inline is not None:
        if location is not None:
            raise ConfigurationError("give ssl.truststore.certificates or ssl.truststore.location, not both")
        _check_type("ssl.truststore.type", config.ssl_truststore_type, "PEM", "ssl.truststore.certificates")
        return TrustedCertificates("ssl.truststore.certificates", _inline_pem(inline.value))
    if location is None or content is None:
        return None
    source = f"ssl.truststore.location {location}"
    if _store_type(content, config.ssl_truststore_type, "ssl.truststore.type", location) == "PEM":
        return TrustedCertificates(source, content)
    _, _, others = _open_pkcs12(content, config.ssl_truststore_password, source, "ssl.truststore.password")
    if not others:
        raise ConfigurationError(f"{source} holds no trusted certificates")
    return TrustedCertificates(source, b"".join(others))


def _inline_pem(text: str) -> bytes:
    """PEM with its line ends, which lines that are continued in a properties file lose: Kafka takes blanks for them."""
    ascii_text = text.encode("ascii", "ignore")
    return re.sub(
        rb"(-----BEGIN [A-Z0-9 ]+-----)([^-]*)(-----END [A-Z0-9 ]+-----)",
        lambda block: b"\n".join([block[1], *block[2].split(), block[3], b""]),
        ascii_text,
    )


def _load_trusted(context: ssl.SSLContext, trusted: TrustedCertificates) -> None:
    """Trust the certificates, from a file: parsing a hundred takes 50 ms, in which ``cadata`` would hold the GIL."""
    try:
        with _private_file(trusted.pem) as path:
            context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigurationError(f"{trusted.source} holds no readable PEM certificates: {error}") from error
    # OpenSSL also accepts a file that contains only a revocation list.
    if b"CERTIFICATE-----" not in trusted.pem:
        raise ConfigurationError(f"{trusted.source} holds no certificates")


def _client_certificate(config: ProducerConfig, content: bytes | None) -> ClientCertificate | None:
    """The client's certificate and key, from ``content`` of the key store or inline; ``None`` if there are none."""
    chain, key, location = (
        config.ssl_keystore_certificate_chain,
        config.ssl_keystore_key,
        config.ssl_keystore_location,
    )
    key_password = config.ssl_key_password.value if config.ssl_key_password is not None else None
    if chain is not None or key is not None:
        if location is not None:
            raise ConfigurationError("give ssl.keystore.key and .certificate.chain or ssl.keystore.location, not both")
        if chain is None or key is None:
            missing = "ssl.keystore.certificate.chain" if chain is None else "ssl.keystore.key"
            raise ConfigurationError(f"{missing} is missing: a client certificate needs its chain and its key")
        source = "ssl.keystore.key and ssl.keystore.certificate.chain"
        _check_type("ssl.keystore.type", config.ssl_keystore_type, "PEM", source)
        return ClientCertificate(source, _inline_pem(chain.value), _inline_pem(key.value), key_password)
    if location is None or content is None:
        return None
    source = f"ssl.keystore.location {location}"
    if _store_type(content, config.ssl_keystore_type, "ssl.keystore.type", location) == "PEM":
        return ClientCertificate(source, content, content, key_password)
    private_key, certificate, others = _open_pkcs12(
        content, config.ssl_keystore_password, source, "ssl.keystore.password"
    )
    if private_key is None or certificate is None:
        raise ConfigurationError(f"{source} holds no private key with its certificate")
    return ClientCertificate(source, b"".join([certificate, *others]), private_key, None)


def _load_key(context: ssl.SSLContext, material: ClientCertificate) -> None:
    """Give the key to ``context``, which takes it from files only: these live in memory where the system can do it."""

    def password() -> str:
        if material.password is None:
            raise ConfigurationError(f"the private key of {material.source} is encrypted: set ssl.key.password")
        return material.password

    try:
        with _private_file(material.chain) as chain_path, _private_file(material.key) as key_path:
            context.load_cert_chain(chain_path, key_path, password)
    except ssl.SSLError as error:
        raise ConfigurationError(f"{material.source}: {_key_problem(error, material)}") from error


def _key_problem(error: ssl.SSLError, material: ClientCertificate) -> str:
    reason = error.reason or ""
    if "MISMATCH" in reason:
        return "the private key does not belong to the certificate"
    if _PEM_MARK not in material.chain or b"CERTIFICATE-----" not in material.chain:
        return "there is no PEM certificate in it"
    if b"PRIVATE KEY-----" not in material.key:
        return "there is no PEM private key in it"
    if material.password is not None and b"ENCRYPTED" in material.key:
        return f"the private key cannot be read; ssl.key.password seems to be wrong ({reason or error})"
    return f"the private key or certificate cannot be read ({reason or error})"


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """A path that reads as ``content``, for this process alone and only within the block."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("aioproducer-tls", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        descriptor, path = tempfile.mkstemp(prefix="aioproducer-tls-")  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            yield path
        finally:
            os.unlink(path)


def _read(location: str, key: str) -> bytes:
    try:
        with open(location, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"{key} {location} cannot be read: {error.strerror}") from error


def _check_type(key: str, given: str | None, wanted: str, source: str) -> None:
    if given is not None and given.upper() != wanted:
        raise ConfigurationError(f"{source} is always {wanted}, but {key} is {given}: leave that out")


def _store_type(content: bytes, given: str | None, type_key: str, location: str) -> str:
    """PEM or PKCS12, as ``given`` or recognized by ``content``."""
    if content.startswith(_JKS_MAGIC):
        raise ConfigurationError(
            f"{location} is a Java key store (JKS), which Python cannot read: convert it with keytool -importkeystore "
            f"-srckeystore {location} -destkeystore {location}.p12 -deststoretype PKCS12, and use that file"
        )
    found = "PEM" if _PEM_MARK in content else "PKCS12" if content.startswith(_DER_SEQUENCE) else None
    wanted = given.upper() if given is not None else None
    # Java also reads a PKCS12 file with the type JKS, its default.
    if wanted not in (None, "PEM", "PKCS12", "JKS"):
        raise ConfigurationError(f"{type_key} must be PEM or PKCS12, not {given}")
    if found is None:
        raise ConfigurationError(f"{location} is neither PEM nor PKCS12: convert it to one of them")
    if wanted is not None and wanted != found and not (wanted == "JKS" and found == "PKCS12"):
        raise ConfigurationError(f"{location} is {found}, but {type_key} is {given}: set it to {found}")
    return found


def _open_pkcs12(
    content: bytes, password: Password | None, source: str, password_key: str
) -> tuple[bytes | None, bytes | None, list[bytes]]:
    """Private key, its certificate, and the other certificates of a PKCS12 store, all as PEM."""
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError as error:
        raise ConfigurationError(
            f"{source} is PKCS12, which needs the package cryptography: pip install 'aioproducer[tls]'"
        ) from error
    secret = password.value.encode() if password is not None else None
    try:
        store = pkcs12.load_pkcs12(content, secret)
    except ValueError as error:
        hint = f"{password_key} is wrong" if secret is not None else f"{password_key} is missing"
        raise ConfigurationError(f"{source} cannot be opened: {hint}, or the file is damaged ({error})") from error
    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) if store.key is not None else None
    certificate = store.cert.certificate.public_bytes(Encoding.PEM) if store.cert is not None else None
    others = [entry.certificate.public_bytes(Encoding.PEM) for entry in store.additional_certs]
    return key, certificate, others
