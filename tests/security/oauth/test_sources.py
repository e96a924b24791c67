"""URLs, token files, unsecured tokens, and the choice of the provider by the configuration."""

from __future__ import annotations

import json
import os
import time
import traceback
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.config import Password
from aioproducer.config.urls import file_path, http_url, shown
from aioproducer.errors import ConfigurationError, TokenProviderError
from aioproducer.security.oauth.choice import provider_from
from aioproducer.security.oauth.client_credentials import ClientCredentials
from aioproducer.security.oauth.files import MAX_FILE_BYTES
from aioproducer.security.oauth.jwt import claims_of, not_before, payload_of
from aioproducer.security.oauth.jwt_bearer import JwtBearer
from aioproducer.security.oauth.token_file import TokenFile
from aioproducer.security.oauth.unsecured import UnsecuredTokens
from aioproducer.security.oauth.urls import redirected
from aioproducer.security.sasl.oauthbearer import BearerToken
from tests.security.oauth.identity_provider import jwt
from tests.security.settings import Entry, Settings

KEY = "sasl.oauthbearer.token.endpoint.url"
KAFKA = "org.apache.kafka.common.security.oauthbearer."
MODULE = f"{KAFKA}OAuthBearerLoginModule"


class TestUrls:
    @pytest.mark.parametrize(
        "url",
        [
            "https://idp.example/token",
            " HTTPS://idp.example:8443/a%20b?tenant=1 ",
            "http://localhost:8080/token",
            "http://127.0.0.1/token",
            "http://127.9.9.9/token",
            "http://[::1]:8080/token",
        ],
    )
    def test_https_and_this_machine_are_allowed(self, url: str) -> None:
        assert http_url(KEY, url) == url.strip()

    @pytest.mark.parametrize(
        ("url", "text"),
        [
            ("http://idp.example/token", "would send secrets in clear text: allowed are https URLs"),
            ("http://localhost.evil.example/", "would send secrets in clear text"),
            ("http://127.0.0.1.evil.example/", "would send secrets in clear text"),
            ("http://2130706433/", "would send secrets in clear text"),
            ("http://0.0.0.0/", "would send secrets in clear text"),
            ("http://[fe80::1]/", "would send secrets in clear text"),
            ("ftp://idp.example/", "the scheme 'ftp' cannot be used: allowed are https URLs"),
            ("ldap://idp.example/", "the scheme 'ldap' cannot be used"),
            ("jar:file:///x", "the scheme 'jar' cannot be used"),
            ("idp.example/token", "the scheme is missing: allowed"),
            ("https:///token", "has no host"),
            ("https://user:tiger@idp.example/", "has a user name or password in the URL"),
            ("https://@idp.example/", "has a user name or password in the URL"),
            ("https://idp.example/#tiger", "has a fragment"),
            ("https://idp.example:99999/", "is no URL"),
            ("https://idp.example:x/", "is no URL"),
            ("https://[idp/", "is no URL"),
            ("https://idp.example/a b", "has characters that no URL has"),
            ("https://idp.example\\@evil/", "has characters that no URL has"),
            ("https://idp.example/\r\nX: tiger", "has characters that no URL has"),
            ("https://\u0131dp.example/", "has characters that no URL has"),
            ("", "the scheme is missing: allowed"),
        ],
    )
    def test_other_urls_are_rejected_with_the_allowed_ones(self, url: str, text: str) -> None:
        with pytest.raises(ConfigurationError, match=r"sasl\.oauthbearer") as caught:
            http_url(KEY, url)
        assert text in str(caught.value)
        assert "tiger" not in str(caught.value)

    def test_a_file_is_rejected_where_only_the_token_may_be_one(self) -> None:
        with pytest.raises(ConfigurationError, match=f"only {KEY} may name a file"):
            http_url("another.url", "file:///etc/passwd")

    @pytest.mark.parametrize(
        ("url", "path"),
        [
            ("file:///var/run/token", "/var/run/token"),
            ("file:/var/run/token", "/var/run/token"),
            ("FILE://localhost/var/a%20b", "/var/a b"),
        ],
    )
    def test_file_urls_are_paths(self, url: str, path: str) -> None:
        assert file_path(KEY, url) == Path(path)

    @pytest.mark.parametrize(
        "url",
        ["file://host/share", "file:relative", "file:", "file:///a?b", "file:///a#b", "https://a/b", "file:///a%00b"],
    )
    def test_file_urls_of_other_machines_and_relative_ones_are_rejected(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="file:///absolute/path"):
            file_path(KEY, url)

    @pytest.mark.parametrize(
        ("location", "target"),
        [
            ("/v2", "https://idp/v2"),
            ("https://IDP:443/v2?a=b#c", "https://IDP:443/v2?a=b"),
            ("http://idp/v2", None),
            ("https://idp:8443/v2", None),
            ("https://idp.evil/v2", None),
            ("https://idp@evil/v2", None),
            ("https://user@idp/v2", None),
            ("//evil/v2", None),
            ("v2", None),
            ("", None),
            ("javascript:x", None),
            ("https://idp:x/", None),
        ],
    )
    def test_redirects_stay_with_scheme_host_and_port(self, location: str, target: str | None) -> None:
        assert redirected("https://idp/token", location) == target

    @given(st.text())
    def test_any_text_is_a_url_or_an_error_and_can_be_shown(self, text: str) -> None:
        """Any exception but ``ConfigurationError`` fails the test."""
        shown(text)
        redirected("https://idp/token", text)
        for check in (http_url, file_path):
            try:
                check(KEY, text)
            except ConfigurationError:
                continue

    def test_shown_urls_have_neither_user_nor_query(self) -> None:
        assert shown("https://user:tiger@idp:1/a?tiger=1#tiger") == "https://idp:1/a"
        assert shown("https:user:tiger@idp") == "[malformed URL]"
        assert shown("file:///run/token") == "file:///run/token"
        assert shown("https://[") == "[malformed URL]"
        assert shown("tiger") == "[URL without a scheme]"


class TestJwt:
    @given(st.text(alphabet="abeyJ.=-_é \x00", max_size=60))
    def test_any_text_is_a_jwt_or_a_value_error(self, text: str) -> None:
        """Any exception but ``ValueError`` fails the test."""
        not_before(text)
        try:
            payload_of(text)
        except ValueError:
            return

    @pytest.mark.parametrize("claim", [True, "1", [1], -1, 1e300, None])
    def test_times_must_be_seconds(self, claim: object) -> None:
        assert not_before(jwt(nbf=claim)) is None
        if claim is not None:
            with pytest.raises(ValueError, match="has a claim exp that is no number of seconds since the epoch"):
                claims_of(jwt(sub="a", exp=claim))

    def test_json_of_infinities_is_rejected(self) -> None:
        with pytest.raises(ValueError, match="is no JWT"):
            claims_of(jwt(sub="a", exp=float("inf")))

    @pytest.mark.parametrize("scope", ["a", ["a", "b"], [], None])
    def test_scopes_are_texts(self, scope: object) -> None:
        assert claims_of(jwt(sub=" alice ", exp=5, scope=scope)) == (5.0, "alice")

    @pytest.mark.parametrize("scope", [7, "", ["a", "a"], [["a"]], {"a": 1}])
    def test_other_scopes_are_rejected(self, scope: object) -> None:
        with pytest.raises(ValueError, match="has a claim scope that is neither"):
            claims_of(jwt(sub="a", exp=5, scope=scope))


class TestTokenFile:
    def test_the_file_is_read_for_each_token(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        tokens = TokenFile(file)
        for number in (1, 2):
            token = jwt(sub="system:serviceaccount:a:b", exp=number, iat=0)
            file.write_text(f"{token}\n")
            assert tokens() == (token, number, "system:serviceaccount:a:b", {})

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (None, "cannot be read: No such file or directory"),
            (b" \n", "is empty"),
            (b"x" * (MAX_FILE_BYTES + 1), "is too large (maximum 1048576 bytes)"),
            (b"tiger\xff", "contains other characters than ASCII"),
            (b"tiger", "is no JWT"),
            (b"tiger.dGlnZXI.x", "is no JWT: its payload is no base64 of a JSON object"),
            (b"tiger.WyJ0aWdlciJd.x", "is no JWT: its payload is no base64 of a JSON object"),
            (jwt(exp=5).encode(), "has no claim sub"),
        ],
    )
    def test_a_file_without_a_token_is_named_without_its_content(
        self, tmp_path: Path, content: bytes | None, text: str
    ) -> None:
        file = tmp_path / "token"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(TokenProviderError) as caught:
            TokenFile(file)()
        assert text in str(caught.value)
        assert str(file) in str(caught.value)
        assert "tiger" not in str(caught.value)
        # Exceptions of decoders have the content as an attribute.
        assert caught.value.__context__ is None or isinstance(caught.value.__context__, OSError)
        frames = list(traceback.walk_tb(caught.value.__traceback__))[1:]
        assert "tiger" not in repr([frame.f_locals for frame, _ in frames])

    def test_a_folder_and_an_endless_file_are_no_token(self, tmp_path: Path) -> None:
        with pytest.raises(TokenProviderError, match="Is a directory"):
            TokenFile(tmp_path)()
        if os.path.exists("/dev/zero"):
            with pytest.raises(TokenProviderError, match="too large"):
                TokenFile(Path("/dev/zero"))()


class TestUnsecured:
    OPTIONS = {  # noqa: RUF012 - not changed
        "unsecuredLoginStringClaim_sub": 'al"ice',
        "unsecuredLoginNumberClaim_level": "7",
        "unsecuredLoginListClaim_scope": "|a|b",
        "unsecuredLoginListClaim_none": "|",
        "unsecuredLoginLifetimeSeconds": "60",
        "unsecuredLoginExtension_traceId": "123",
        "unsecuredLoginScopeClaimName": "scope",
        "username": "not ours",
    }

    def test_claims_are_those_of_the_options(self) -> None:
        token = UnsecuredTokens(self.OPTIONS, lambda: 1000.5)()
        assert (token.expires_at, token.principal, token.extensions) == (1060.5, 'al"ice', {"traceId": "123"})
        header, payload, signature = token.token.split(".")
        assert signature == ""
        assert json.loads(urlsafe_b64decode(header + "==")) == {"alg": "none"}
        assert json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4))) == {
            "exp": 1060.5,
            "iat": 1000.5,
            "sub": 'al"ice',
            "level": 7.0,
            "scope": ["a", "b"],
            "none": [],
        }
        BearerToken(token.token).encode()

    def test_the_principal_claim_is_configurable(self) -> None:
        options = {"unsecuredLoginPrincipalClaimName": "user", "unsecuredLoginStringClaim_user": "bob"}
        assert UnsecuredTokens(options, lambda: 0.0)().principal == "bob"

    @pytest.mark.parametrize(
        ("option", "value", "text"),
        [
            ("unsecuredLoginStringClaim_sub", " ", "needs the principal"),
            ("unsecuredLoginPrincipalClaimName", "user", 'unsecuredLoginStringClaim_user="NAME"'),
            ("unsecuredLoginStringClaim_exp", "5", "cannot set a claim"),
            ("unsecuredLoginNumberClaim_iat", "5", "cannot set a claim"),
            ("unsecuredLoginListClaim_", "5", "cannot set a claim"),
            ("unsecuredLoginNumberClaim_n", "many", "must be a number"),
            ("unsecuredLoginNumberClaim_n", "nan", "must be a number"),
            ("unsecuredLoginLifetimeSeconds", "0", "from 1 to"),
            ("unsecuredLoginLifetimeSeconds", "-5", "from 1 to"),
            ("unsecuredLoginLifetimeSeconds", "9" * 30, "from 1 to"),
            ("unsecuredLoginLifetimeSeconds", "²", "from 1 to"),
            ("unsecuredLoginTypo", "x", "unknown option unsecuredLoginTypo"),
        ],
    )
    def test_wrong_options_are_named(self, option: str, value: str, text: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            UnsecuredTokens({**self.OPTIONS, option: value})
        assert text in str(caught.value)


def user_provider() -> tuple[str, float]:
    return "abc", time.time() + 60


@pytest.mark.parametrize(
    ("others", "kind"),
    [
        ({"sasl_oauthbearer_token_endpoint_url": "https://idp/token"}, ClientCredentials),
        ({"sasl_oauthbearer_token_endpoint_url": "file:///var/token"}, TokenFile),
        ({"sasl_oauthbearer_jwt_retriever_class": None}, ClientCredentials),
        ({"sasl_oauthbearer_jwt_retriever_class": f"{KAFKA}ClientCredentialsJwtRetriever"}, ClientCredentials),
        ({"sasl_oauthbearer_jwt_retriever_class": "JwtBearerJwtRetriever"}, JwtBearer),
        (
            {
                "sasl_oauthbearer_jwt_retriever_class": f"{KAFKA}FileJwtRetriever",
                "sasl_oauthbearer_token_endpoint_url": "file:///var/token",
            },
            TokenFile,
        ),
        (
            {
                "sasl_oauthbearer_token_endpoint_url": None,
                "sasl_jaas": Entry(MODULE, {"unsecuredLoginStringClaim_sub": "alice"}),
            },
            UnsecuredTokens,
        ),
    ],
)
def test_kafkas_keys_choose_the_provider(others: dict[str, Any], kind: type) -> None:
    given = {
        "sasl_oauthbearer_token_endpoint_url": "https://idp/token",
        "sasl_oauthbearer_client_credentials_client_id": "id",
        "sasl_oauthbearer_client_credentials_client_secret": Password("tiger"),
        "sasl_oauthbearer_assertion_private_key_file": "/key",
        **others,
    }
    assert type(provider_from(Settings(**given), time.time)) is kind


def test_the_users_provider_precedes_all_others() -> None:
    settings = Settings(sasl_token_provider=user_provider, sasl_oauthbearer_token_endpoint_url="file:///var/token")
    assert provider_from(settings, time.time) is user_provider
    settings = Settings(sasl_oauthbearer_jwt_retriever_class=user_provider)
    assert provider_from(settings, time.time) is user_provider


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ({}, "has no source of tokens: set sasl_token_provider to a callable, or sasl.oauthbearer.token.endpoint.url"),
        ({"sasl_oauthbearer_jwt_retriever_class": "com.example.Mine"}, "'com.example.Mine' is unknown: use one of"),
        ({"sasl_oauthbearer_jwt_retriever_class": 7}, "must be a name or a callable, not int"),
        ({"sasl_oauthbearer_token_endpoint_url": "file://host/x"}, "must have the form file:///absolute/path"),
        (
            {
                "sasl_oauthbearer_jwt_retriever_class": "FileJwtRetriever",
                "sasl_oauthbearer_token_endpoint_url": "https://idp/token",
            },
            "must have the form file:///absolute/path",
        ),
    ],
)
def test_a_configuration_without_a_provider_is_reported(others: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        provider_from(Settings(**others), time.time)
    assert text in str(caught.value)
