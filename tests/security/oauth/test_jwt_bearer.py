"""The grant jwt-bearer: assertions that are signed here or ready in a file, and the files that change."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from joserfc import jwk
from joserfc import jwt as joserfc_jwt

from aioproducer.config import Password
from aioproducer.errors import ConfigurationError, TokenProviderError
from aioproducer.security.oauth.jwt_bearer import GRANT_TYPE, JwtBearer
from tests.security.oauth.identity_provider import Response, identity_provider, jwt, token_response
from tests.security.settings import Settings

NOW = 1_800_000_000
TOKEN = jwt(sub="alice", exp=time.time() + 3600, iat=1)
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
PASSPHRASE = "tiger"


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, passphrase: str | None = None) -> bytes:
    encryption = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def verified(assertion: str, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, algorithm: str) -> Any:
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    imported: Any = (jwk.RSAKey if algorithm == "RS256" else jwk.ECKey).import_key(public)
    return joserfc_jwt.decode(assertion, imported, algorithms=[algorithm])


class Bench:
    """Settings with files in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.key_file = folder / "key.pem"
        self.template_file = folder / "template.json"
        self.assertion_file = folder / "assertion.jwt"

    def settings(self, url: str = "https://idp/token", **others: Any) -> Settings:
        return Settings(
            **{
                "sasl_oauthbearer_token_endpoint_url": url,
                "sasl_oauthbearer_assertion_private_key_file": str(self.key_file),
                "sasl_login_retry_backoff_max_ms": 0,
                **others,
            }
        )

    async def problem(self, error: type[Exception] = ConfigurationError, **others: Any) -> str:
        """The text of the error, which contains no secret."""
        with pytest.raises(error) as caught:
            await JwtBearer(self.settings(**others))()
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        assert PASSPHRASE not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(("algorithm", "key"), [("RS256", RSA_KEY), ("es256", EC_KEY)])
async def test_an_assertion_is_signed_and_exchanged_for_a_token(algorithm: str, key: Any, bench: Bench) -> None:
    bench.key_file.write_bytes(pem(key, PASSPHRASE))
    async with identity_provider(token_response(TOKEN)) as provider:
        settings = bench.settings(
            provider.url,
            sasl_oauthbearer_assertion_algorithm=algorithm,
            sasl_oauthbearer_assertion_private_key_passphrase=Password(PASSPHRASE),
            sasl_oauthbearer_assertion_claim_aud="kafka",
            sasl_oauthbearer_assertion_claim_iss="client-1",
            sasl_oauthbearer_assertion_claim_sub="alice",
            sasl_oauthbearer_assertion_claim_jti_include=True,
            sasl_oauthbearer_scope="produce",
        )
        bearer = JwtBearer(settings, lambda: NOW + 0.7)
        assert (await bearer()).token == TOKEN
        await bearer()
    forms = [request.form for request in provider.requests]
    assert [form["grant_type"] for form in forms] == [[GRANT_TYPE]] * 2
    assert forms[0]["scope"] == ["produce"]
    assert "authorization" not in provider.requests[0].headers
    first, second = (verified(form["assertion"][0], key, algorithm.upper()) for form in forms)
    assert first.header == {"alg": algorithm.upper(), "typ": "JWT"}
    assert first.claims.pop("jti") != second.claims.pop("jti")
    assert first.claims == {
        "aud": "kafka",
        "iss": "client-1",
        "sub": "alice",
        "iat": NOW,
        "exp": NOW + 300,
        "nbf": NOW - 60,
    }


async def test_the_template_gives_claims_which_keys_and_times_override(bench: Bench) -> None:
    bench.key_file.write_bytes(pem(RSA_KEY))
    template = {
        "header": {"kid": "k1", "alg": "none"},
        "payload": {"aud": ["a", "b"], "sub": "bob", "exp": 1, "tier": {}},
    }
    bench.template_file.write_text(json.dumps(template))
    async with identity_provider(token_response(TOKEN)) as provider:
        settings = bench.settings(
            provider.url,
            sasl_oauthbearer_assertion_template_file=str(bench.template_file),
            sasl_oauthbearer_assertion_claim_sub="alice",
            sasl_oauthbearer_assertion_claim_exp_seconds=10,
            sasl_oauthbearer_assertion_claim_nbf_seconds=0,
        )
        await JwtBearer(settings, lambda: NOW)()
    assertion = verified(provider.requests[0].form["assertion"][0], RSA_KEY, "RS256")
    assert assertion.header == {"kid": "k1", "alg": "RS256", "typ": "JWT"}
    assert assertion.claims == {
        "aud": ["a", "b"],
        "sub": "alice",
        "tier": {},
        "iat": NOW,
        "exp": NOW + 10,
        "nbf": NOW,
    }


async def test_files_are_read_for_each_token(bench: Bench) -> None:
    bench.key_file.write_bytes(pem(RSA_KEY))
    bench.assertion_file.write_text("first.ready.assertion\n")
    async with identity_provider(token_response(TOKEN)) as provider:
        signed = JwtBearer(bench.settings(provider.url))
        ready = JwtBearer(
            bench.settings(
                provider.url,
                sasl_oauthbearer_assertion_private_key_file=None,
                sasl_oauthbearer_assertion_file=str(bench.assertion_file),
            )
        )
        await signed()
        await ready()
        new_key = rsa.generate_private_key(65537, 2048)
        bench.key_file.write_bytes(pem(new_key))
        bench.assertion_file.write_text("second.ready.assertion")
        await signed()
        await ready()
    assertions = [request.form["assertion"][0] for request in provider.requests]
    verified(assertions[0], RSA_KEY, "RS256")
    verified(assertions[2], new_key, "RS256")
    assert (assertions[1], assertions[3]) == ("first.ready.assertion", "second.ready.assertion")


async def test_a_rejected_assertion_is_named_without_it(bench: Bench) -> None:
    bench.assertion_file.write_text("ready")

    def echo(request: Any) -> Response:
        return Response(400, json.dumps({"error": "invalid_grant", "error_description": str(request.form)}).encode())

    async with identity_provider(echo) as provider:
        text = await bench.problem(
            TokenProviderError,
            url=provider.url,
            sasl_oauthbearer_assertion_private_key_file=None,
            sasl_oauthbearer_assertion_file=str(bench.assertion_file),
        )
    assert "returned status 400 (invalid_grant; " in text
    assert "check the assertion's key and claims, and scope" in text
    assert "ready" not in text


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ({"sasl_oauthbearer_assertion_private_key_file": None}, "private.key.file is missing"),
        ({"sasl_oauthbearer_assertion_file": "/assertion"}, "not both"),
        ({"sasl_oauthbearer_assertion_algorithm": "HS256"}, "algorithm must be one of RS256, ES256"),
        ({"sasl_oauthbearer_token_endpoint_url": "ftp://idp"}, "the scheme 'ftp' cannot be used"),
    ],
)
async def test_keys_that_contradict_are_named(bench: Bench, others: dict[str, Any], text: str) -> None:
    assert text in await bench.problem(**others)


@pytest.mark.parametrize(
    ("content", "passphrase", "text"),
    [
        (b"noise", None, "holds no private key as PEM"),
        (b"-----BEGIN PRIVATE KEY-----\nnoise\n-----END PRIVATE KEY-----", None, "cannot be read (ValueError)"),
        (pem(EC_KEY), None, "it is no RSA key, which RS256 needs"),
        (pem(RSA_KEY, PASSPHRASE), None, "is encrypted: set sasl.oauthbearer.assertion.private.key.passphrase"),
        (pem(RSA_KEY, PASSPHRASE), "lion", "passphrase is wrong, or it is no RSA key"),
    ],
)
async def test_a_key_that_cannot_be_used_is_named(
    bench: Bench, content: bytes, passphrase: str | None, text: str
) -> None:
    bench.key_file.write_bytes(content)
    given = Password(passphrase) if passphrase else None
    assert text in await bench.problem(sasl_oauthbearer_assertion_private_key_passphrase=given)


@pytest.mark.parametrize("template", ["noise", "[]", '{"header": 1}', '{"payload": []}', "[" * 100_000])
async def test_a_template_that_cannot_be_used_is_named(bench: Bench, template: str) -> None:
    bench.key_file.write_bytes(pem(RSA_KEY))
    bench.template_file.write_text(template)
    text = await bench.problem(sasl_oauthbearer_assertion_template_file=str(bench.template_file))
    assert "must be a JSON object with the objects header and payload" in text


async def test_a_header_that_cannot_be_signed_is_named(bench: Bench) -> None:
    bench.key_file.write_bytes(pem(RSA_KEY))
    bench.template_file.write_text('{"header": {"crit": ["b64"], "kid": 7}}')
    text = await bench.problem(sasl_oauthbearer_assertion_template_file=str(bench.template_file))
    assert "the assertion cannot be signed" in text


async def test_a_file_that_is_not_there_yet_may_come(bench: Bench) -> None:
    text = await bench.problem(TokenProviderError)
    assert "(sasl.oauthbearer.assertion.private.key.file) cannot be read: No such file or directory." in text


def test_a_missing_package_is_named_with_the_extra(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(ConfigurationError, match=r"need the package joserfc: pip install 'aioproducer\[oidc\]'"):
        JwtBearer(bench.settings())
