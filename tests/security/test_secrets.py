"""No log line at DEBUG, no error and no text of an object contains a secret, whether a login succeeds or fails."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from aioproducer.config import Password
from aioproducer.errors import KafkaError
from aioproducer.security.login import login_from
from tests.security.oauth.identity_provider import Request, Response, identity_provider, jwt, token_response
from tests.security.settings import Settings, UserAndPassword

PASSWORD, CLIENT_SECRET, PASSPHRASE = "tiger-Passw0rd", "tiger-Cl1ent", "tiger-Phr4se"
TOKEN = jwt(sub="alice", exp=time.time() + 3600, iat=1)
KEY_TEXT = (
    rsa.generate_private_key(65537, 2048)
    .private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSPHRASE.encode()))
    .decode()
)
SECRETS = [PASSWORD, CLIENT_SECRET, PASSPHRASE, *TOKEN.split(".")[1:], KEY_TEXT.splitlines()[1], "tiger"]


def raises(text: str) -> Callable[[], Any]:
    def fail() -> None:
        raise ValueError(text)

    return fail


def raises_later(text: str) -> Callable[[], Any]:
    async def fail() -> None:
        await asyncio.sleep(0)
        try:
            raise KeyError(text)
        except KeyError as error:
            raise ValueError(text) from error

    return fail


async def token_later() -> tuple[str, float]:
    await asyncio.sleep(0)
    return TOKEN, time.time() + 3600


async def password_later() -> str:
    await asyncio.sleep(0)
    return PASSWORD


def echo(request: Request) -> Response:
    """As identity providers do that show the request."""
    shown = f"rejected {request.headers} {request.form}"
    return Response(401, json.dumps({"error": "invalid_client", "error_description": shown}).encode())


CREDENTIALS = {
    "sasl_oauthbearer_client_credentials_client_id": "client",
    "sasl_oauthbearer_client_credentials_client_secret": Password(CLIENT_SECRET),
}
BEARER = {
    "sasl_oauthbearer_jwt_retriever_class": "JwtBearerJwtRetriever",
    "sasl_oauthbearer_assertion_private_key_passphrase": Password(PASSPHRASE),
}
PLAIN = {"sasl_mechanism": "PLAIN", "sasl_username": "scott"}


@pytest.mark.parametrize(
    ("settings", "response"),
    [
        ({**PLAIN, "credentials": lambda: UserAndPassword("scott", Password(PASSWORD))}, None),
        ({**PLAIN, "sasl_mechanism": "SCRAM-SHA-256", "sasl_password": lambda: PASSWORD}, None),
        ({**PLAIN, "sasl_password": password_later}, None),
        ({**PLAIN, "sasl_password": lambda: PASSWORD + "\0"}, None),
        ({**PLAIN, "sasl_password": raises(f"password={PASSWORD}")}, None),
        ({"sasl_token_provider": lambda: (TOKEN, time.time() + 3600, "alice")}, None),
        ({"sasl_token_provider": token_later}, None),
        ({"sasl_token_provider": lambda: (TOKEN, 3600)}, None),
        ({"sasl_token_provider": lambda: (TOKEN, time.time() - 3600)}, None),
        ({"sasl_token_provider": lambda: TOKEN}, None),
        ({"sasl_token_provider": raises(f"got {TOKEN}")}, None),
        ({"sasl_token_provider": raises_later(f"sent {{'Authorization': 'Bearer {TOKEN}'}}")}, None),
        (CREDENTIALS, token_response(TOKEN, refresh_token="tiger-Refr3sh")),
        (CREDENTIALS, token_response(TOKEN[:-12])),
        (CREDENTIALS, echo),
        ({**CREDENTIALS, "request_timeout_ms": 50}, "hangs"),
        (BEARER, token_response(TOKEN)),
        (BEARER, echo),
        ({**BEARER, "sasl_oauthbearer_assertion_private_key_passphrase": Password(PASSPHRASE + "!")}, echo),
    ],
)
async def test_no_secret_is_in_logs_errors_or_texts_of_objects(
    settings: dict[str, Any], response: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key_file = tmp_path / "key.pem"
    key_file.write_text(KEY_TEXT)
    loop = asyncio.get_running_loop()
    written: list[str] = []
    # In debug mode the loop logs each callback that it runs, with the results of its tasks and futures.
    loop.set_debug(True)
    loop.slow_callback_duration = 0.0
    with caplog.at_level(logging.DEBUG):
        async with identity_provider(None if response in (None, "hangs") else response) as provider:
            if "sasl_token_provider" not in settings and "sasl_mechanism" not in settings:
                settings = {**settings, "sasl_oauthbearer_token_endpoint_url": provider.url}
            given = {"sasl_oauthbearer_assertion_private_key_file": str(key_file), **settings}
            login = login_from(Settings(**given), loop, Random(1), logging.getLogger("aioproducer"))
            try:
                authenticator = await login.authenticator()
            except KafkaError as error:
                written += [repr(error), *traceback.format_exception(error), repr(error.args), repr(error.__dict__)]
            else:
                login.rejected(authenticator)
                written += [repr(authenticator), str(getattr(authenticator, "source", "")), repr(login)]
            await login.close()
    loop.set_debug(False)
    assert caplog.records, "the debug mode must have logged something"
    written += [f"{record.getMessage()} {record.exc_text}" for record in caplog.records]
    sent = [assertion for request in provider.requests for assertion in request.form.get("assertion", [])]
    sent += [
        request.headers["authorization"].split()[1] for request in provider.requests if "assertion" not in request.form
    ]
    text = "\n".join(written)
    for secret in [*SECRETS, *sent]:
        assert secret not in text
