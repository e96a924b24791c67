"""The login by password, and the choice of the login."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import traceback
from random import Random
from typing import Any

import pytest

from aioproducer import security
from aioproducer.config import Password
from aioproducer.errors import ConfigurationError, ProducerClosedError, TokenProviderError
from aioproducer.security.login import PasswordLogin, login_from
from aioproducer.security.sasl.plain import PlainClient
from aioproducer.security.sasl.scram import ScramClient
from aioproducer.security.tokens import TokenLogin
from tests.security.settings import Settings, UserAndPassword

LOGGER = logging.getLogger("aioproducer")


def login(settings: Settings) -> PasswordLogin:
    made = login_from(settings, asyncio.get_running_loop(), Random(1), LOGGER)
    assert isinstance(made, PasswordLogin)
    return made


def configured(password: str = "tiger", **others: Any) -> Settings:
    is_token = others.pop("is_token", False)
    credentials = UserAndPassword("scott", Password(password), is_token)
    return Settings(**{"sasl_mechanism": "PLAIN", "credentials": lambda: credentials, **others})


async def test_plain_sends_the_configured_credentials() -> None:
    passwords = login(configured())
    assert passwords.mechanism == "PLAIN"
    authenticator = await passwords.authenticator()
    assert isinstance(authenticator, PlainClient)
    assert authenticator.step(None) == b"\0scott\0tiger"
    await passwords.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_scram_authenticates_by_password_or_delegation_token(mechanism: str) -> None:
    for is_token in (False, True):
        passwords = login(configured(sasl_mechanism=mechanism, is_token=is_token))
        authenticator = await passwords.authenticator()
        assert isinstance(authenticator, ScramClient)
        assert authenticator.mechanism == passwords.mechanism == mechanism
        message = authenticator.step(None)
        assert message is not None
        assert message.startswith(b"n,,n=scott,r=")
        assert message.endswith(b",tokenauth=true") == is_token
        await passwords.close()


async def test_a_delegation_token_needs_scram() -> None:
    passwords = login(configured(is_token=True))
    with pytest.raises(ConfigurationError, match=r"a delegation token needs sasl.mechanism SCRAM"):
        await passwords.authenticator()
    await passwords.close()


async def test_credentials_are_read_in_a_thread_for_each_authentication() -> None:
    threads: list[threading.Thread] = []

    def read() -> UserAndPassword:
        threads.append(threading.current_thread())
        return UserAndPassword("scott", Password(f"tiger-{len(threads)}"))

    passwords = login(configured(credentials=read))
    for number in (1, 2):
        authenticator = await passwords.authenticator()
        passwords.rejected(authenticator)
        assert authenticator.step(None) == f"\0scott\0tiger-{number}".encode()
    assert threading.current_thread() not in threads
    await passwords.close()


async def test_the_callable_for_the_password_is_called_for_each_authentication() -> None:
    count = 0

    async def password() -> str:
        nonlocal count
        count += 1
        return f"tiger-{count}"

    for callable_ in (password, lambda: Password("tiger-3")):
        passwords = login(configured(sasl_username="king", sasl_password=callable_))
        messages = [(await passwords.authenticator()).step(None) for _ in range(2)]
        await passwords.close()
        assert messages in ([b"\0king\0tiger-1", b"\0king\0tiger-2"], [b"\0king\0tiger-3"] * 2)
    assert count == 2


async def test_a_callable_that_hangs_fails_at_its_deadline() -> None:
    release = threading.Event()
    for hanging in (release.wait, asyncio.Event().wait):
        passwords = login(configured(sasl_username="king", sasl_password=hanging, request_timeout_ms=50))
        with pytest.raises(TokenProviderError, match=r"sasl.password took longer than 0.05 s \(request_timeout_ms\)"):
            await passwords.authenticator()
        await passwords.close()
    release.set()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"sasl_password": lambda: 7}, ConfigurationError, "must return a str, but returned int"),
        ({"sasl_password": lambda: b"tiger"}, ConfigurationError, "must return a str, but returned bytes"),
        ({"sasl_password": lambda: ""}, ConfigurationError, "needs a user name and a password"),
        ({"sasl_password": lambda: "tiger\0"}, ConfigurationError, "must not contain NUL"),
        ({"sasl_password": lambda: "tiger\ud800"}, ConfigurationError, "has no UTF-8 form"),
        ({"sasl_username": None, "sasl_password": lambda: "tiger"}, ConfigurationError, "needs a user name"),
        (
            {"sasl_password": lambda: {}["password=tiger"]},
            TokenProviderError,
            "The callable in sasl.password failed with KeyError: 'password=[hidden]",
        ),
        ({"credentials": lambda: {}["password=tiger"]}, TokenProviderError, "Reading the SASL credentials failed with"),
    ],
)
async def test_problems_are_named_without_the_password(
    settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    passwords = login(configured(**{"sasl_username": "king", **settings}))
    with pytest.raises(error) as caught:
        await passwords.authenticator()
    assert text in str(caught.value)
    assert "tiger" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    await passwords.close()


async def test_credentials_that_are_missing_for_a_moment_are_tried_again() -> None:
    def read() -> UserAndPassword:
        raise ConfigurationError("sasl.password: the file is gone") from KeyError("tiger")

    passwords = login(configured(credentials=read))
    with pytest.raises(TokenProviderError, match=r"sasl.password: the file is gone") as caught:
        await passwords.authenticator()
    assert caught.value.__cause__ is None
    await passwords.close()


async def test_a_closed_login_makes_no_authenticator() -> None:
    began = asyncio.Event()

    async def password() -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    passwords = login(configured(sasl_username="king", sasl_password=password))
    caller = asyncio.ensure_future(passwords.authenticator())
    await began.wait()
    await passwords.close()
    await passwords.close()
    with pytest.raises(ProducerClosedError):
        await caller
    with pytest.raises(ProducerClosedError):
        await passwords.authenticator()


async def test_stopping_ends_the_calls_in_progress_at_once() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def password() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    passwords = login(configured(sasl_username="king", sasl_password=password))
    caller = asyncio.ensure_future(passwords.authenticator())
    await began.wait()
    closing = asyncio.ensure_future(passwords.close())
    passwords.stop()
    passwords.stop()
    closing.cancel()
    with pytest.raises(ProducerClosedError):
        await caller
    assert ended.is_set()
    with pytest.raises(ProducerClosedError):
        await passwords.authenticator()
    await passwords.close()


@pytest.mark.parametrize("settings", [configured(), Settings(sasl_token_provider=lambda: ("abc", 4e9))])
async def test_a_login_has_daemon_threads_for_blocking_steps(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    made = login_from(settings, loop, Random(1), LOGGER)
    assert made.executor is made.executor
    thread = await loop.run_in_executor(made.executor, threading.current_thread)
    assert thread.daemon
    assert thread.name == "aioproducer-login"
    await made.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"sasl_password": lambda: "tiger\ud800"},
        {"sasl_password": lambda: "tiger\0"},
        {"sasl_password": lambda: b"tiger"},
        {"credentials": lambda: UserAndPassword("king", Password("tiger\ud800"))},
        {"credentials": lambda: UserAndPassword("king", Password("tiger"), is_token=True)},
        {"sasl_mechanism": "SCRAM-SHA-256", "sasl_password": lambda: "tiger\ud800"},
    ],
)
async def test_neither_chain_nor_frames_of_an_error_have_the_password(settings: dict[str, Any]) -> None:
    """Error trackers save the variables of the frames."""
    passwords = login(configured(**{"sasl_username": "king", **settings}))
    # Not the frame of this test, which has the settings.
    caller = asyncio.ensure_future(passwords.authenticator())
    await asyncio.wait([caller])
    error = caller.exception()
    assert isinstance(error, ConfigurationError)
    assert error.__cause__ is None
    assert error.__context__ is None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        assert "tiger" not in repr(frame.f_locals)
    await passwords.close()


async def test_the_error_for_an_unsupported_mechanism_lists_the_supported_ones() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'GSSAPI' is not supported: use one of PLAIN, SCRAM-SHA-256, .*OAUTH"
    ):
        login(configured(sasl_mechanism="GSSAPI"))


async def test_settings_of_the_token_login_are_those_of_the_configuration() -> None:
    settings = Settings(
        sasl_token_provider=lambda: ("abc", 4e9),
        request_timeout_ms=1234,
        sasl_login_refresh_window_factor=0.5,
        sasl_login_refresh_window_jitter=0.0,
        sasl_login_refresh_min_period_seconds=0,
        sasl_login_refresh_buffer_seconds=0,
        sasl_extensions={"pool": "p1"},
    )
    loop = asyncio.get_running_loop()
    tokens = login_from(settings, loop, Random(1), LOGGER, lambda: 4e9 - 100)
    assert isinstance(tokens, TokenLogin)
    assert tokens.mechanism == "OAUTHBEARER"
    message = (await tokens.authenticator()).step(None)
    assert message == b"n,,\x01auth=Bearer abc\x01pool=p1\x01\x01"
    timer = tokens._timer
    assert timer is not None
    assert timer.when() - loop.time() == pytest.approx(50, abs=5)
    await tokens.close()


def test_a_login_by_password_imports_nothing_of_tokens_or_tls() -> None:
    program = """
import asyncio, logging, random, sys
from aioproducer.security.login import login_from
class Settings:
    sasl_mechanism = "PLAIN"
    request_timeout_ms = 1
login_from(Settings, asyncio.new_event_loop(), random.Random(1), logging.getLogger())
print(*sorted(name for name in sys.modules if name.startswith("aioproducer.security")))
print(sorted({"httpx", "joserfc", "boto3", "json"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules, others = done.stdout.splitlines()
    names = {name.removeprefix("aioproducer.security").removeprefix(".") for name in modules.split()}
    assert names == {
        "",
        "calls",
        "login",
        "redaction",
        "sasl",
        "sasl.credentials",
        "sasl.plain",
        "sasl.scram",
    }
    assert others == "[]"


def test_every_public_name_of_the_package_exists() -> None:
    for name in security.__all__:
        assert getattr(security, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        security.__getattr__("NoSuchName")
