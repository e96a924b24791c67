"""The URL of the token endpoint: which ones the configuration accepts, and that it shows no secret in one."""

from __future__ import annotations

import pytest

from aioproducer.config import ProducerConfig
from aioproducer.errors import ConfigurationError

SECRET = "made-up-secret-7f"
PACKAGE = "org.apache.kafka.common.security.oauthbearer."
URL = "https://login.example.com/token"


def config(url: str, retriever: str = "Default", protocol: str = "SASL_SSL") -> ProducerConfig:
    return ProducerConfig.from_kwargs(
        bootstrap_servers="broker.example.com:9092",
        security_protocol=protocol,
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url=url,
        sasl_oauthbearer_jwt_retriever_class=f"{PACKAGE}{retriever}JwtRetriever",
        sasl_oauthbearer_client_credentials_client_id="an-id",
        sasl_oauthbearer_client_credentials_client_secret=SECRET,
        sasl_oauthbearer_assertion_file="assertion",
    )


def refusal(url: str, retriever: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        config(url, retriever)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"https://anna:{SECRET}@login.example.com/token", "has a user name or password in the URL: set sasl.oauthb"),
        (f"http://login.example.com/token?code={SECRET}", "http://login.example.com/token would send secrets in clear"),
        (f"https://login.example.com/token#{SECRET}", "has a fragment"),
        (f"{SECRET}", "the scheme is missing: allowed are https URLs"),
        ("ftp://login.example.com/token", "the scheme 'ftp' cannot be used"),
        (f"https:{SECRET}", "has no host"),
        (f"https://login.example.com/ {SECRET}", "has characters that no URL has"),
        (f"https://login.example.com:{SECRET}/", "is no URL"),
        (f"file:{SECRET}", "must name an absolute path: file:///absolute/path"),
        (f"file:///run/token?{SECRET}", "must have the form file:///absolute/path"),
    ],
)
def test_a_url_that_is_not_allowed_is_rejected_by_the_configuration(url: str, says: str) -> None:
    """CVE-2025-27817's class; a wrong URL was an error of the first connection once."""
    for retriever in ("Default", "ClientCredentials", "JwtBearer", "File"):
        if retriever == "Default" or (retriever == "File") == url.startswith("file:"):
            text = refusal(url, retriever)
            assert text.startswith("sasl.oauthbearer.token.endpoint.url ") or "endpoint.url: the scheme" in text
            assert says in text


@pytest.mark.parametrize("retriever", ["ClientCredentials", "JwtBearer"])
def test_a_retriever_that_calls_a_server_accepts_no_file(retriever: str) -> None:
    assert "the scheme 'file' cannot be used" in refusal("file:///run/token", retriever)


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SSL"])
def test_a_url_is_shown_without_its_query(protocol: str) -> None:
    url = f"  {URL}?code={SECRET}  "
    made = config(url, protocol=protocol)
    assert made.sasl_oauthbearer_token_endpoint_url == url.strip()
    assert SECRET not in repr(made)
    assert f"sasl_oauthbearer_token_endpoint_url='{URL}'" in repr(made)


def test_an_unused_url_with_a_password_is_not_shown_either() -> None:
    for url in (f"https://anna:{SECRET}@h/", f"https:anna:{SECRET}@h", SECRET, f"https://[{SECRET}"):
        assert SECRET not in repr(config(url, protocol="SSL"))
