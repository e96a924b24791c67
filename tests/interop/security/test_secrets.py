"""No login writes a secret into a log at DEBUG, an error, a repr, a metric or a pickle."""

from __future__ import annotations

import base64
import logging
import pickle
import time
import traceback
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from aioproducer import Producer
from aioproducer.config import ProducerConfig
from aioproducer.errors import KafkaError
from tests.kafka.security import PASSWORD, SASL, SASL_TLS, SCRAM_512, SHORT, USERNAME, SecureCluster
from tests.kafka.token_server import TokenServer

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

WRONG = "Wr0ng-of-this-test"


class Writings:
    """Everything that logins write."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self._parts: list[str] = []

    def add(self, thing: object) -> None:
        """Return all representations of an object, for users and for other processes."""
        self.add_texts(thing)
        try:
            pickled = pickle.dumps(thing)
        except (TypeError, pickle.PicklingError, AttributeError) as error:
            self._parts.append(str(error))
        else:
            self._parts.append(pickled.decode("latin-1"))

    def add_texts(self, thing: object) -> None:
        """Return the representations of an object that users may see."""
        self._parts += [repr(thing), str(thing)]
        if isinstance(thing, BaseException):
            self._parts.append("".join(traceback.format_exception(thing)))

    @property
    def text(self) -> str:
        for record in self._caplog.records:
            self._parts.append(self._caplog.handler.format(record))
            self._parts.extend(repr(value) for value in vars(record).values() if not callable(value))
        return "\n".join(self._parts)


@pytest.fixture
def writings(caplog: pytest.LogCaptureFixture) -> Writings:
    caplog.set_level(logging.DEBUG)
    return Writings(caplog)


async def _log_in(writings: Writings, **configuration: Any) -> bool:
    """Return whether a record was stored."""
    writings.add(ProducerConfig.from_kwargs(**configuration))
    producer = Producer(max_block_ms=1500, **configuration)
    await producer.start()
    try:
        writings.add(producer)
        await producer.send("secrets", b"v")
    except KafkaError as error:
        writings.add(error)
        return False
    finally:
        writings.add(dict(producer.metrics()))
        writings.add(producer.connection_error)
        await producer.close(0)
    return True


def _check_hidden(writings: Writings, *secrets: str) -> None:
    text = writings.text
    # The search works: a text that is not secret is found.
    assert USERNAME in text or "OAUTHBEARER" in text
    for secret in secrets:
        forms = {
            secret,
            base64.b64encode(secret.encode()).decode().rstrip("="),
            urllib.parse.quote_plus(secret),
            repr(secret.encode())[2:-1],
        }
        for form in forms:
            assert form not in text, f"{form} is written: ...{text[max(0, text.find(form) - 300) :][:600]}"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_passwords_are_not_written(secure: SecureCluster, writings: Writings, mechanism: str) -> None:
    jaas = (
        f"org.apache.kafka.common.security.{'plain.Plain' if mechanism == 'PLAIN' else 'scram.Scram'}LoginModule "
        f'required username="{USERNAME}" password="{WRONG}";'
    )
    by_jaas = {"sasl_username": None, "sasl_password": None, "sasl_jaas_config": jaas}
    assert await _log_in(writings, **secure.configuration(SASL, mechanism))
    assert await _log_in(writings, **secure.configuration(SHORT, mechanism, sasl_password=lambda: PASSWORD))
    assert not await _log_in(writings, **secure.configuration(SASL_TLS, mechanism, sasl_password=WRONG))
    assert not await _log_in(writings, **secure.configuration(SASL, mechanism, **by_jaas))
    address = secure.sasl_bootstrap_servers(SCRAM_512)
    await _log_in(writings, **secure.configuration(SASL, mechanism, bootstrap_servers=address))
    assert not await _log_in(
        writings, **secure.configuration(SASL, mechanism, bootstrap_servers=secure.bootstrap_servers)
    )
    _check_hidden(writings, PASSWORD, WRONG)


async def test_tokens_are_not_written(secure: SecureCluster, tokens: TokenServer, writings: Writings) -> None:
    sent = [tokens.token(), tokens.token(aud="another"), "an-0paque-token"]
    for token, is_right in zip(sent, [True, False, False], strict=True):
        provider = (lambda given: lambda: (given, time.time() + 300))(token)
        assert is_right == await _log_in(
            writings, **secure.configuration(SASL, "OAUTHBEARER", sasl_token_provider=provider)
        )

    def leaking() -> tuple[str, float]:
        raise RuntimeError(f"cannot parse {sent[0]}")

    assert not await _log_in(writings, **secure.configuration(SASL, "OAUTHBEARER", sasl_token_provider=leaking))
    _check_hidden(writings, *sent, *(token.rpartition(".")[2] for token in sent))


async def test_client_secrets_are_not_written(secure: SecureCluster, tokens: TokenServer, writings: Writings) -> None:
    oidc = {
        "sasl_token_provider": None,
        "sasl_oauthbearer_token_endpoint_url": tokens.token_url,
        "sasl_oauthbearer_client_credentials_client_id": tokens.client_id,
    }
    secret = "sasl_oauthbearer_client_credentials_client_secret"
    tokens.issued.clear()
    for given, is_right in [(tokens.client_secret, True), (WRONG, False)]:
        assert is_right == await _log_in(
            writings, **secure.configuration(SASL, "OAUTHBEARER", **oidc, **{secret: given})
        )
    jaas = (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'clientId="{tokens.client_id}" clientSecret="{WRONG}";'
    )
    oidc["sasl_oauthbearer_client_credentials_client_id"] = None
    assert not await _log_in(writings, **secure.configuration(SASL, "OAUTHBEARER", **oidc, sasl_jaas_config=jaas))
    credentials = [f"{tokens.client_id}:{each}" for each in (tokens.client_secret, WRONG)]
    _check_hidden(writings, tokens.client_secret, WRONG, *credentials, *tokens.issued)


async def test_assertions_and_private_keys_are_not_written(
    secure: SecureCluster, tokens: TokenServer, writings: Writings, tmp_path: Path
) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(tokens.assertion_key.pem)
    tokens.issued.clear()
    tokens.requests.clear()
    assert await _log_in(
        writings,
        **secure.configuration(
            SASL,
            "OAUTHBEARER",
            sasl_token_provider=None,
            sasl_oauthbearer_jwt_retriever_class=("org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"),
            sasl_oauthbearer_token_endpoint_url=tokens.token_url,
            sasl_oauthbearer_assertion_algorithm="RS256",
            sasl_oauthbearer_assertion_private_key_file=str(key),
            sasl_oauthbearer_assertion_claim_aud=tokens.token_url,
            sasl_oauthbearer_assertion_claim_iss="https://service.example.org",
            sasl_oauthbearer_assertion_claim_sub="billing-service",
        ),
    )
    lines = tokens.assertion_key.pem.decode().splitlines()[1:-1]
    _check_hidden(writings, *tokens.issued, *(request.form["assertion"] for request in tokens.requests), *lines)
