"""Logins and token providers of configurations as they are, the files of cloud providers among them."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from random import Random

import pytest

from aioproducer.config import ProducerConfig
from aioproducer.security.login import PasswordLogin, login_from
from aioproducer.security.oauth.choice import provider_from
from aioproducer.security.oauth.client_credentials import ClientCredentials
from aioproducer.security.oauth.msk import _MskTokens
from aioproducer.security.oauth.unsecured import UnsecuredTokens
from aioproducer.security.sasl.plain import PlainClient
from aioproducer.security.sasl.scram import ScramClient
from aioproducer.security.tokens import OAuthBearerToken, TokenLogin

FILES = Path(__file__).parent.parent / "data" / "security"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def provider_file(name: str) -> ProducerConfig:
    return ProducerConfig.from_properties(FILES / f"{name}.properties")


def login(config: ProducerConfig) -> PasswordLogin | TokenLogin:
    return login_from(config, asyncio.get_running_loop(), Random(1), logging.getLogger("aioproducer"))


@pytest.mark.parametrize(
    ("name", "client", "first_bytes"),
    [
        ("confluent_cloud", PlainClient, b"\0MADEUPKEY1234567\0Made/Up+Secret/"),
        ("confluent_cloud_python", PlainClient, b"\0MADEUPKEY1234567\0Made/Up+Secret/"),
        ("event_hubs", PlainClient, b"\0$ConnectionString\0Endpoint=sb://made-up.servicebus.windows.net/;Shared"),
        ("msk_scram", ScramClient, b"n,,n=alice,r="),
        ("aiven", ScramClient, b"n,,n=avnadmin,r="),
    ],
)
async def test_files_with_a_password_log_in_by_it(name: str, client: type, first_bytes: bytes) -> None:
    passwords = login(provider_file(name))
    authenticator = await passwords.authenticator()
    assert isinstance(passwords, PasswordLogin)
    assert type(authenticator) is client
    message = authenticator.step(None)
    assert message is not None
    assert message.startswith(first_bytes)
    await passwords.close()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("confluent_cloud_oauth", ClientCredentials), ("msk_iam", _MskTokens), ("msk_oauthbearer", _MskTokens)],
)
async def test_files_with_tokens_choose_their_provider(name: str, kind: type) -> None:
    config = provider_file(name)
    assert type(provider_from(config, time.time)) is kind
    tokens = login(config)
    assert isinstance(tokens, TokenLogin)
    assert tokens.mechanism == "OAUTHBEARER"
    await tokens.close()


def test_unsecured_claims_of_a_jaas_entry_make_tokens() -> None:
    config = ProducerConfig.from_kwargs(
        bootstrap_servers="localhost:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=f'{OAUTH} required unsecuredLoginStringClaim_sub="anna";',
    )
    provider = provider_from(config, time.time)
    assert isinstance(provider, UnsecuredTokens)
    token = provider()
    assert isinstance(token, OAuthBearerToken)
    assert token.principal == "anna"


async def test_a_function_for_the_password_is_called_for_each_login() -> None:
    words = iter(["first", "second"])
    config = ProducerConfig.from_kwargs(
        bootstrap_servers="localhost:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="anna",
        sasl_password=lambda: next(words),
    )
    passwords = login(config)
    for word in (b"first", b"second"):
        assert (await passwords.authenticator()).step(None) == b"\0anna\0" + word
    await passwords.close()
