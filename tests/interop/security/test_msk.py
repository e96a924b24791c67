"""Amazon MSK's IAM mechanism with invented credentials, against a listener that checks the token as AWS would."""

from __future__ import annotations

import ssl
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from aioproducer import Producer
from aioproducer.errors import SaslAuthenticationError
from aioproducer.security.sasl.oauthbearer import BearerToken
from tests.interop.security.aws import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, UNSET, check_token, environment
from tests.interop.security.provider_files import adapted
from tests.kafka.certificates import Certificates
from tests.kafka.process import Startable
from tests.kafka.sasl_listener import SaslListener

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates.make(tmp_path / "certificates")


@pytest.fixture
async def listener(certificates: Certificates) -> AsyncIterator[SaslListener]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.broker)
    async with SaslListener(["OAUTHBEARER"], context=context) as started:
        yield started


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)


async def _send_token(listener: SaslListener, producer: Producer) -> str:
    """Return the token that the producer sends. The listener refuses it, as it is no broker."""
    async with producer:
        with pytest.raises(SaslAuthenticationError) as refusal:
            await producer.send("any", b"v")
    (mechanism, message), *_ = listener.received
    assert mechanism == "OAUTHBEARER"
    token = BearerToken.decode(message).token
    for secret in (token, SECRET_ACCESS_KEY):
        assert secret not in str(refusal.value)
    return token


def _adapted(file: str, listener: SaslListener, certificates: Certificates, tmp_path: Path) -> Producer:
    return Producer.from_properties(
        adapted(
            file,
            tmp_path,
            bootstrap_servers=listener.address,
            ssl_truststore_location=str(certificates.authority),
            max_block_ms="5000",
        )
    )


def _tls(listener: SaslListener, certificates: Certificates) -> dict[str, Any]:
    return {"bootstrap_servers": listener.address, "ssl_truststore_location": str(certificates.authority)}


async def test_the_signers_token_provider_is_accepted(listener: SaslListener, certificates: Certificates) -> None:
    """The example of docs/security.md."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    def msk_token() -> tuple[str, float]:
        token, expires_at_ms = MSKAuthTokenProvider.generate_auth_token(REGION)
        return token, expires_at_ms / 1000

    producer = Producer(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_token_provider=msk_token,
        **_tls(listener, certificates),
    )
    check_token(await _send_token(listener, producer))


async def test_a_file_for_amazons_library_is_accepted(
    listener: SaslListener, certificates: Certificates, tmp_path: Path
) -> None:
    """The file is written for Java clients with ``aws-msk-iam-auth``."""
    path = tmp_path / "client.properties"
    path.write_text(
        f"bootstrap.servers={listener.address}\n"
        f"ssl.truststore.location={certificates.authority}\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=AWS_MSK_IAM\n"
        "sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;\n"
        "sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler\n"
    )
    check_token(await _send_token(listener, Producer.from_properties(path)))


async def test_a_profile_selects_the_credentials(
    listener: SaslListener, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text(
        f"[shop]\naws_access_key_id={ACCESS_KEY_ID}\naws_secret_access_key={SECRET_ACCESS_KEY}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    producer = _adapted("msk_oauthbearer.properties", listener, certificates, tmp_path)
    check_token(await _send_token(listener, producer))


async def test_the_credentials_of_a_role_are_used(
    listener: SaslListener, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service in this process replaces AWS's, which issues the credentials of a role."""
    with _TokenService() as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", service.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWITHOUTANYRIGHTS")
        producer = _adapted("msk_iam.properties", listener, certificates, tmp_path)
        token = await _send_token(listener, producer)
    check_token(token, session_token="made-up-session-token")
    (form,) = service.forms
    assert form["Action"] == "AssumeRole"
    assert form["RoleArn"] == "arn:aws:iam::123456789012:role/producer"
    assert form["RoleSessionName"] == "shop"


class _TokenService(Startable):
    """AWS's security token service, which answers AssumeRole."""

    def __init__(self) -> None:
        self.forms: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_TokenServiceHandler,), {"service": self})
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"


class _TokenServiceHandler(BaseHTTPRequestHandler):
    service: _TokenService

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.service.forms.append(dict(urllib.parse.parse_qsl(body)))
        expiration = datetime.fromtimestamp(time.time() + 3600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        answer = (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
            f"<AccessKeyId>{ACCESS_KEY_ID}</AccessKeyId><SecretAccessKey>{SECRET_ACCESS_KEY}</SecretAccessKey>"
            f"<SessionToken>made-up-session-token</SessionToken><Expiration>{expiration}</Expiration>"
            "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: the requests are kept for the test."""
