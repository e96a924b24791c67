"""Tokens for Amazon MSK, with made-up credentials: presigned URLs of kafka-cluster:Connect."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from aioproducer.errors import ConfigurationError, TokenProviderError
from aioproducer.security import msk_iam_provider
from aioproducer.security.login import login_from
from aioproducer.security.oauth.msk import region_of
from aioproducer.security.tokens import OAuthBearerToken, TokenLogin
from tests.security.settings import Settings

KEY_ID, SECRET_KEY, SESSION = (
    "AKIDMADEUP0000000001",
    "mAdEuPsEcReT0123456789abcdefghijklmnopqr",
    "mAdEuPsEsSiOn0123456789",
)
ROLE_SECRET, ROLE_SESSION = "rOlEsEcReT0123456789abcdefghijklmnopqrst", "rOlEsEsSiOn0123456789"
BROKER = "b-1.mycluster.abc123.c2.kafka.eu-central-1.amazonaws.com"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "AWS_PROFILE",
        "AWS_DEFAULT_REGION",
        "AWS_REGION",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "http_proxy",
        "https_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """At DEBUG, and without a secret."""
    with caplog.at_level(logging.DEBUG):
        yield
    written = "".join(f"{record.getMessage()} {record.args} {record.exc_text}" for record in caplog.get_records("call"))
    for secret in (SECRET_KEY, SESSION, ROLE_SECRET, ROLE_SESSION, "X-Amz-Signature"):
        assert secret not in written


def presigned(token: OAuthBearerToken) -> tuple[str, dict[str, list[str]]]:
    """Host and query of the URL in a token."""
    assert "=" not in token.token
    parts = urlsplit(urlsafe_b64decode(token.token + "=" * (-len(token.token) % 4)).decode())
    assert (parts.scheme, parts.path) == ("https", "/")
    return parts.netloc, parse_qs(parts.query, strict_parsing=True)


def check(token: OAuthBearerToken, region: str, key_id: str = KEY_ID, session: str | None = SESSION) -> None:
    host, query = presigned(token)
    assert host == f"kafka.{region}.amazonaws.com"
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    assert query["X-Amz-Expires"] == ["900"]
    assert query.get("X-Amz-Security-Token") == ([session] if session else None)
    credential = query["X-Amz-Credential"][0].split("/")
    assert [credential[0], *credential[2:]] == [key_id, region, "kafka-cluster", "aws4_request"]
    assert len(query["X-Amz-Signature"][0]) == 64
    assert 880 < token.expires_at - time.time() <= 900


def test_a_token_is_a_presigned_url_of_connect() -> None:
    """``check`` asserts the parts of the URL."""
    check(msk_iam_provider("us-west-2")(), "us-west-2")


def test_the_region_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """``check`` asserts the region in the URL."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    check(msk_iam_provider()(), "eu-west-1")
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    check(msk_iam_provider()(), "eu-west-2")
    check(msk_iam_provider("eu-west-3")(), "eu-west-3")


def test_a_profile_has_credentials_of_its_own(tmp_path: Path) -> None:
    content = f"[analytics]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = {SECRET_KEY}\n"
    (tmp_path / "credentials").write_text(content)
    token = msk_iam_provider("us-west-2", profile="analytics")()
    check(token, "us-west-2", "AKIDPROFILE", None)
    assert token.principal == "analytics"
    with pytest.raises(
        TokenProviderError, match=r"AWS gave no token for Amazon MSK IAM: ProfileNotFound: .*\(missing\)"
    ):
        msk_iam_provider("us-west-2", profile="missing")()


class SecurityTokenService(BaseHTTPRequestHandler):
    forms: list[dict[str, list[str]]] = []  # noqa: RUF012 - one server a test
    authorization = ""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.forms.append(parse_qs(body))
        SecurityTokenService.authorization = self.headers["Authorization"]
        answer = f"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<Credentials><AccessKeyId>AKIDROLE</AccessKeyId><SecretAccessKey>{ROLE_SECRET}</SecretAccessKey>
<SessionToken>{ROLE_SESSION}</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>
</AssumeRoleResult><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></AssumeRoleResponse>""".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@pytest.fixture
def security_token_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, list[str]]]]:
    SecurityTokenService.forms = []
    server = HTTPServer(("127.0.0.1", 0), SecurityTokenService)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_port}")
    yield SecurityTokenService.forms
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_a_role_is_assumed_for_each_token(security_token_service: list[dict[str, list[str]]]) -> None:
    role = "arn:aws:iam::123456789012:role/producer"
    provider = msk_iam_provider("us-west-2", role_arn=role, role_session_name="orders")
    for _ in range(2):
        token = provider()
        check(token, "us-west-2", "AKIDROLE", ROLE_SESSION)
        assert token.principal == role
    assert [form["RoleSessionName"] for form in security_token_service] == [["orders"]] * 2
    assert security_token_service[0]["RoleArn"] == [role]


@pytest.mark.filterwarnings("default::DeprecationWarning")
@pytest.mark.parametrize(("sts_region", "expected"), [(None, "us-west-2"), ("eu-west-1", "eu-west-1")])
def test_a_role_is_assumed_in_its_region_or_that_of_the_cluster(
    security_token_service: list[dict[str, list[str]]], sts_region: str | None, expected: str
) -> None:
    role = "arn:aws:iam::123456789012:role/producer"
    check(msk_iam_provider("us-west-2", role_arn=role, sts_region=sts_region)(), "us-west-2", "AKIDROLE", ROLE_SESSION)
    assert f"/{expected}/sts/" in SecurityTokenService.authorization


def test_missing_credentials_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    with pytest.raises(TokenProviderError, match="AWS has no credentials for Amazon MSK IAM: set AWS_ACCESS_KEY_ID"):
        msk_iam_provider("us-west-2")()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "needs the cluster's region: set AWS_REGION"),
        ({"region": "us-west-2/../evil"}, "'us-west-2/../evil' is not an AWS region"),
        ({"region": "us-west-2", "profile": "a", "role_arn": "b"}, "takes a profile or a role, not both"),
        ({"region": "us-west-2", "role_session_name": "a"}, "a session name needs a role"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        msk_iam_provider(**arguments)
    assert text in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(ConfigurationError, match=r"aws-msk-iam-sasl-signer-python: pip install 'aioproducer\[msk\]'"):
        msk_iam_provider("us-west-2")


@pytest.mark.parametrize(
    ("host", "region"),
    [
        (BROKER, "eu-central-1"),
        ("boot-abc.c1.kafka-serverless.us-east-1.amazonaws.com", "us-east-1"),
        ("b-1.x.kafka.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("B-1.X.KAFKA.EU-WEST-1.AMAZONAWS.COM.", "eu-west-1"),
        ("kafka.example.com", None),
        ("b-1.x.kafka.eu-west-1.amazonaws.com.evil.example", None),
    ],
)
def test_the_region_is_read_from_names_of_brokers(host: str, region: str | None) -> None:
    assert region_of(["other", host]) == region


@pytest.mark.parametrize("options", [{}, {"awsDebugCreds": "true"}])
async def test_a_client_of_msk_signs_for_its_brokers_region(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """AWS_REGION is where the program runs, which may be another one."""
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    settings = Settings(bootstrap_addresses=((BROKER, 9098),), sasl_msk_iam=options)
    login = login_from(settings, asyncio.get_running_loop(), Random(1), logging.getLogger("aioproducer"))
    assert isinstance(login, TokenLogin)
    assert login.mechanism == "OAUTHBEARER"
    check((await login.authenticator()).source, "eu-central-1")
    await login.close()


def test_options_of_the_login_module_choose_the_credentials(tmp_path: Path) -> None:
    from aioproducer.security.oauth.choice import provider_from

    content = f"[analytics]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = {SECRET_KEY}\n"
    (tmp_path / "credentials").write_text(content)
    settings = Settings(bootstrap_addresses=((BROKER, 9098),), sasl_msk_iam={"awsProfileName": "analytics"})
    token = provider_from(settings, time.time)()
    assert isinstance(token, OAuthBearerToken)
    check(token, "eu-central-1", "AKIDPROFILE", None)
