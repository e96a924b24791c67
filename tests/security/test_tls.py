"""TLS contexts from configuration keys, tested with handshakes in memory."""

from __future__ import annotations

import builtins
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from aioproducer._common import diagnosis
from aioproducer.config import ProducerConfig
from aioproducer.errors import ConfigurationError
from aioproducer.security import ssl_context_from
from tests.security.authority import HOST, handshake

PASSWORD = b"geheim"


class Files:
    """A certificate authority, a broker's and a client's certificate, in each form that Kafka takes."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.broker = self.authority.issue_cert(HOST)
        client = self.authority.issue_cert("client.example")
        self.authority_pem = self.authority.cert_pem.bytes()
        self.chain = b"".join(blob.bytes() for blob in client.cert_chain_pems)
        self.other_chain = b"".join(blob.bytes() for blob in self.broker.cert_chain_pems)
        key = load_pem_private_key(client.private_key_pem.bytes(), None)
        assert not isinstance(key, str)
        self.key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.encrypted_key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSWORD))
        certificates = x509.load_pem_x509_certificates(self.chain)
        authority_certificate = x509.load_pem_x509_certificate(self.authority_pem)
        key_store = pkcs12.serialize_key_and_certificates(
            b"client",
            key,
            certificates[0],
            certificates[1:],
            BestAvailableEncryption(PASSWORD),
        )
        trust_store = pkcs12.serialize_key_and_certificates(
            None, None, None, [authority_certificate], BestAvailableEncryption(PASSWORD)
        )
        self.paths: dict[str, str] = {}
        for name, content in (
            ("trust.pem", self.authority_pem),
            ("client.pem", self.encrypted_key + self.chain),
            ("client.p12", key_store),
            ("trust.p12", trust_store),
            ("trust.jks", b"\xfe\xed\xfe\xed\x00\x00\x00\x02"),
            ("noise", b"noise"),
            ("list.pem", self._revocation_list()),
            (
                "damaged.p12",
                b"0damaged",
            ),
        ):
            path = folder / name
            path.write_bytes(content)
            self.paths[name] = str(path)

    def _revocation_list(self) -> bytes:
        key = load_pem_private_key(self.authority.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        now = datetime(2020, 1, 1, tzinfo=UTC)
        builder = x509.CertificateRevocationListBuilder(x509.Name([]), now, now)
        return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def broker_context(self, *, client_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.broker.configure_cert(context)
        if client_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
            self.authority.configure_trust(context)
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


def context_of(**given: object) -> ssl.SSLContext:
    context = ssl_context_from(
        ProducerConfig.from_mapping({"bootstrap_servers": "a:1", "security_protocol": "SSL", **given})
    )
    assert context is not None
    return context


def test_plaintext_has_no_context() -> None:
    assert ssl_context_from(ProducerConfig.from_kwargs(bootstrap_servers="a:1")) is None


def test_a_given_ssl_context_is_used_unchanged() -> None:
    own = ssl.create_default_context()
    assert context_of(ssl_context=own) is own


def test_an_engine_factory_creates_the_context() -> None:
    own = ssl.create_default_context()
    assert context_of(ssl_engine_factory_class=lambda config: own if config.ssl_enabled_protocols else None) is own
    with pytest.raises(ConfigurationError, match=r"must return an ssl\.SSLContext, not None"):
        context_of(ssl_engine_factory_class=lambda config: None)


def test_system_certificates_are_trusted_unless_others_are_given(files: Files) -> None:
    system = context_of()
    assert system.verify_mode is ssl.CERT_REQUIRED
    assert system.check_hostname
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(system, files.broker_context())
    given = context_of(ssl_truststore_location=files.paths["trust.pem"])
    assert len(given.get_ca_certs()) == 1


@pytest.mark.parametrize(
    "trust",
    [
        lambda files: {"ssl_truststore_location": files.paths["trust.pem"]},
        lambda files: {"ssl_truststore_location": files.paths["trust.pem"], "ssl_truststore_type": "pem"},
        lambda files: {"ssl_truststore_location": files.paths["trust.p12"], "ssl_truststore_password": "geheim"},
        lambda files: {
            "ssl_truststore_location": files.paths["trust.p12"],
            "ssl_truststore_password": "geheim",
            "ssl_truststore_type": "JKS",
        },
        lambda files: {"ssl_truststore_certificates": files.authority_pem.decode()},
    ],
    ids=["pem", "pem by type", "pkcs12", "pkcs12 called jks", "inline"],
)
def test_trust_stores_are_read_in_every_form(files: Files, trust: Callable[[Files], Mapping[str, object]]) -> None:
    client, _ = handshake(context_of(**trust(files)), files.broker_context())
    assert client.version() == "TLSv1.3"


@pytest.mark.parametrize(
    "key",
    [
        lambda files: {"ssl_keystore_location": files.paths["client.pem"], "ssl_key_password": "geheim"},
        lambda files: {"ssl_keystore_location": files.paths["client.p12"], "ssl_keystore_password": "geheim"},
        lambda files: {
            "ssl_keystore_certificate_chain": files.chain.decode(),
            "ssl_keystore_key": files.key.decode(),
        },
        lambda files: {
            "ssl_keystore_certificate_chain": files.chain.decode(),
            "ssl_keystore_key": files.encrypted_key.decode(),
            "ssl_key_password": "geheim",
            "ssl_keystore_type": "PEM",
        },
    ],
    ids=["pem", "pkcs12", "inline", "inline encrypted"],
)
@pytest.mark.parametrize("memory_file", [True, False])
def test_client_certificates_are_read_in_every_form(
    files: Files,
    key: Callable[[Files], Mapping[str, object]],
    memory_file: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if not memory_file:
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    context = context_of(ssl_truststore_location=files.paths["trust.pem"], **key(files))
    _, server = handshake(context, files.broker_context(client_certificate=True))
    certificate = server.getpeercert()
    assert certificate is not None
    assert ("DNS", "client.example") in certificate["subjectAltName"]
    assert list(tmp_path.iterdir()) == []
    assert sys.platform != "linux" or len(os.listdir("/proc/self/fd")) == before


def test_a_temporary_key_file_is_private_and_removed_even_after_a_failure(
    files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    modes: list[int] = []
    load = ssl.SSLContext.load_cert_chain

    def watched(context: ssl.SSLContext, certificate: str, key: str, password: Callable[[], str]) -> None:
        modes.extend(os.stat(path).st_mode & 0o777 for path in (certificate, key))
        load(context, certificate, key, password)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    with pytest.raises(ConfigurationError):
        context_of(ssl_keystore_certificate_chain=files.other_chain.decode(), ssl_keystore_key=files.key.decode())
    assert modes == [0o600, 0o600]
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_requires_a_certificate_rejects_a_client_without_one(files: Files) -> None:
    context = context_of(ssl_truststore_location=files.paths["trust.pem"])
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(context, files.broker_context(client_certificate=True))


def test_a_failed_handshake_is_explained(files: Files) -> None:
    trust = {"ssl_truststore_location": files.paths["trust.pem"]}
    old_broker = files.broker_context()
    old_broker.minimum_version = ssl.TLSVersion.TLSv1_3
    for client, broker, host, advice in (
        (context_of(), files.broker_context(), HOST, "put the issuer's certificate into the trust store"),
        (context_of(**trust), files.broker_context(), "other.example", "it was issued for another name"),
        (context_of(**trust, ssl_enabled_protocols="TLSv1.2"), old_broker, HOST, "ssl.enabled.protocols"),
    ):
        with pytest.raises(ssl.SSLError) as caught:
            handshake(client, broker, host)
        # If the broker refused, its side raises first; the client's error has the same reason.
        assert advice in str(diagnosis.connection_failed(f"{host}:9093", caught.value, uses_tls=True))


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak TLS"),
        (b"\x00\x00\x00\x10" + b"\x00" * 16, "does not speak TLS"),
        (b"\x15\x03\x03\x00\x02\x02\x74", "requires one (ssl.client.auth=required)"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "share no TLS version"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "share no cipher suite"),
        (b"", "this listener does not speak TLS"),
    ],
    ids=["http", "kafka", "certificate required", "protocol version", "handshake failure", "end"],
)
def test_a_non_tls_reply_to_a_client_hello_is_explained(files: Files, answer: bytes, advice: str) -> None:
    incoming = ssl.MemoryBIO()
    client = context_of(ssl_truststore_location=files.paths["trust.pem"]).wrap_bio(
        incoming, ssl.MemoryBIO(), server_hostname=HOST
    )
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    incoming.write(answer)
    if not answer:
        incoming.write_eof()
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    assert advice in str(diagnosis.connection_failed("kafka.example:9092", caught.value, uses_tls=True))


def test_the_host_name_is_checked_unless_disabled(files: Files) -> None:
    trust = {"ssl_truststore_location": files.paths["trust.pem"]}
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(context_of(**trust), files.broker_context(), "other.example")
    unchecked = context_of(**trust, ssl_endpoint_identification_algorithm="")
    assert unchecked.verify_mode is ssl.CERT_REQUIRED
    handshake(unchecked, files.broker_context(), "other.example")


def test_enabled_protocols_limit_the_tls_version(files: Files) -> None:
    trust = {"ssl_truststore_location": files.paths["trust.pem"]}
    old = context_of(**trust, ssl_enabled_protocols="TLSv1.2")
    assert handshake(old, files.broker_context())[0].version() == "TLSv1.2"
    both = context_of(**trust)
    assert (both.minimum_version, both.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    assert handshake(context_of(**trust, ssl_enabled_protocols=""), files.broker_context())[0].version() == "TLSv1.3"
    with pytest.raises(ConfigurationError, match="leaves out a version between others"):
        context_of(ssl_enabled_protocols="TLSv1.1,TLSv1.3")


@pytest.mark.parametrize(
    ("iana", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
        ("TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", "DHE-RSA-AES128-GCM-SHA256"),
        ("TLS_RSA_WITH_AES_256_CBC_SHA256", "AES256-SHA256"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_cipher_suites_are_configured_by_their_iana_names(iana: str, openssl: str) -> None:
    context = context_of(ssl_cipher_suites=iana, ssl_enabled_protocols="TLSv1.2")
    names = {suite["name"] for suite in context.get_ciphers() if suite["protocol"] != "TLSv1.3"}
    assert names == {openssl}


def test_a_chosen_cipher_suite_is_used(files: Files) -> None:
    suites = ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]
    context = context_of(
        ssl_truststore_location=files.paths["trust.pem"], ssl_cipher_suites=suites, ssl_enabled_protocols="TLSv1.2"
    )
    cipher = handshake(context, files.broker_context())[0].cipher()
    assert cipher is not None
    assert cipher[0].endswith("AES256-GCM-SHA384")


def test_tls13_suites_cannot_be_chosen_and_stay_enabled() -> None:
    context = context_of(ssl_cipher_suites="TLS_AES_256_GCM_SHA384")
    assert {"TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"} <= {suite["name"] for suite in context.get_ciphers()}


def test_an_unknown_cipher_suite_is_named_in_the_error() -> None:
    with pytest.raises(
        ConfigurationError, match=r"ssl\.cipher\.suites: TLS_NO_WITH_SUCH_SUITE is not known to OpenSSL"
    ):
        context_of(ssl_cipher_suites="TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_NO_WITH_SUCH_SUITE")


def test_any_trusted_certificate_ends_a_chain_as_in_java() -> None:
    """The trusted certificate may be an intermediate authority, or the broker's own certificate."""
    root = trustme.CA()
    between = root.create_child_ca()
    broker = between.issue_cert(HOST)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    broker.configure_cert(server)
    for trusted in (root.cert_pem, between.cert_pem, broker.cert_chain_pems[0]):
        handshake(context_of(ssl_truststore_certificates=trusted.bytes().decode()), server)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(context_of(ssl_truststore_certificates=trustme.CA().cert_pem.bytes().decode()), server)


def test_pem_can_span_continued_lines_of_a_properties_file(files: Files) -> None:
    """The PEM text is then one line with spaces instead of line ends; Kafka accepts it. A failed handshake raises."""

    def one_line(pem: bytes) -> str:
        return " ".join(pem.decode().split("\n"))

    context = context_of(
        ssl_truststore_certificates=one_line(files.authority_pem),
        ssl_keystore_certificate_chain=one_line(files.chain),
        ssl_keystore_key=one_line(files.key),
    )
    handshake(context, files.broker_context(client_certificate=True))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"ssl_truststore_location": "/no/such.pem"},
            r"ssl\.truststore\.location /no/such\.pem cannot be read: No such",
        ),
        ({"ssl_keystore_location": "/no/such.pem"}, r"ssl\.keystore\.location /no/such\.pem cannot be read"),
        (
            {"ssl_truststore_location": "trust.jks"},
            r"Java key store \(JKS\).*keytool -importkeystore -srckeystore .*p12",
        ),
        ({"ssl_truststore_location": "noise"}, "is neither PEM nor PKCS12"),
        ({"ssl_truststore_location": "client.pem", "ssl_truststore_type": "PKCS12"}, "is PEM, but .* is PKCS12"),
        ({"ssl_truststore_location": "trust.p12", "ssl_truststore_type": "PEM"}, "is PKCS12, but .* is PEM"),
        ({"ssl_truststore_location": "trust.pem", "ssl_truststore_type": "BCFKS"}, "must be PEM or PKCS12, not BCFKS"),
        (
            {"ssl_truststore_location": "trust.p12", "ssl_truststore_password": "wrong"},
            r"cannot be opened: ssl\.truststore\.password is wrong",
        ),
        ({"ssl_truststore_location": "trust.p12"}, r"cannot be opened: ssl\.truststore\.password is missing"),
        ({"ssl_truststore_location": "damaged.p12"}, "or the file is damaged"),
        ({"ssl_keystore_location": "trust.p12", "ssl_keystore_password": "geheim"}, "holds no private key"),
        ({"ssl_truststore_certificates": "nothing"}, r"ssl\.truststore\.certificates holds no readable PEM"),
        ({"ssl_truststore_location": "list.pem"}, r"list\.pem holds no certificates"),
        ({"ssl_truststore_certificates": "x", "ssl_truststore_type": "PKCS12"}, "is always PEM, but"),
        ({"ssl_truststore_certificates": "x", "ssl_truststore_location": "trust.pem"}, "not both"),
        ({"ssl_keystore_key": "x"}, r"ssl\.keystore\.certificate\.chain is missing"),
        ({"ssl_keystore_certificate_chain": "x"}, r"ssl\.keystore\.key is missing"),
        ({"ssl_keystore_key": "x", "ssl_keystore_location": "client.pem"}, "not both"),
        ({"ssl_keystore_location": "client.pem"}, r"is encrypted: set ssl\.key\.password"),
        ({"ssl_keystore_location": "client.pem", "ssl_key_password": "wrong"}, r"ssl\.key\.password seems to be wrong"),
        ({"ssl_keystore_location": "trust.pem"}, "there is no PEM private key in it"),
    ],
)
def test_invalid_tls_settings_are_explained(files: Files, given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        context_of(**{name: files.paths.get(value, value) for name, value in given.items()})


def test_invalid_inline_keys_are_rejected(files: Files) -> None:
    for chain, key, says in (
        (files.other_chain, files.key, "the private key does not belong to the certificate"),
        (b"nothing", files.key, "there is no PEM certificate in it"),
        (files.chain, files.key.replace(b"M", b"!"), "the private key or certificate cannot be read"),
    ):
        with pytest.raises(ConfigurationError, match=says) as caught:
            context_of(ssl_keystore_certificate_chain=chain.decode(), ssl_keystore_key=key.decode())
        assert files.key.decode()[40:80] not in str(caught.value)


def test_the_error_for_pkcs12_without_cryptography_names_the_package(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def without_cryptography(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("cryptography"):
            raise ImportError("No module named 'cryptography'")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_cryptography)
    with pytest.raises(ConfigurationError, match=r"pip install 'aioproducer\[tls\]'"):
        context_of(ssl_truststore_location=files.paths["trust.p12"], ssl_truststore_password="geheim")


def test_importing_does_not_need_cryptography() -> None:
    program = "import sys, aioproducer.security; print('cryptography' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown == "False\n"
