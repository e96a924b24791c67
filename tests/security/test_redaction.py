"""Texts of foreign exceptions, without secrets."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.security import redaction
from aioproducer.security.redaction import MAX_SEARCHED, described, redacted, without_secrets


@pytest.mark.parametrize(
    "text",
    [
        "no route to host idp.example.com:443",
        "[Errno 2] No such file or directory: '/var/run/secrets/kubernetes.io/serviceaccount/ca'",
        "Connection refused (10.0.0.1)",
        "größer",
        "invalid_client",
        "404 Not Found",
    ],
)
def test_texts_without_secrets_stay(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc", "Authorization: [hidden] [hidden]"),
        ("with Bearer abc.def, sent", "with Bearer [hidden], sent"),
        ("basic dXNlcjpw failed", "basic [hidden] failed"),
        ("https://user:tiger@idp/path", "https://[hidden]@idp/path"),
        ("https://user:ti@ger@idp/path", "https://[hidden]@idp/path"),
        ("POST grant=x&client_secret=tiger&scope=a", "POST grant=x&client_secret=[hidden]&scope=a"),
        ("{'password': 'ti ger', 'user': 'scott'}", "{'password': [hidden], 'user': 'scott'}"),
        ('{"access_token":"tiger","expires_in":3}', '{"access_token":[hidden],"expires_in":3}'),
        ("refresh_token = b'tiger'", "refresh_token = [hidden]"),
        (r'{"password":"ti\"ger","a":"b"}', '{"password":[hidden],"a":"b"}'),
        ("url='https://idp/?client_secret=tiger'", "url='https://idp/?client_secret=[hidden]'"),
        ("x" * 60 + "_secret=tiger", "x" * 60 + "_secret=[hidden]"),
        ("secret_" + "x" * 60 + "=tiger", "secret_" + "x" * 60 + "=[hidden]"),
        ("X-Amz-Signature=abc&X-Amz-Date=2026", "X-Amz-Signature=[hidden]&X-Amz-Date=2026"),
        ("got eyJh.eyJz.c2ln!", "got [hidden]!"),
        ("got eyJh", "got [hidden]"),
        ("key 0123456789abcdef0123 is", "key [hidden] is"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
    ],
)
def test_texts_that_look_like_secrets_are_hidden(text: str, shown: str) -> None:
    assert redacted(text) == shown


TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSIsInNlY3JldCI6MX0.c2lnbmF0dXJl"


@pytest.mark.parametrize("function", [redacted, without_secrets])
@pytest.mark.parametrize(
    ("text", "secret", "shown"),
    [
        ("x hunter2hunter2, y", "hunter2hunter2", "x [hidden], y"),
        ("x hunter2hunter, y", "hunter2hunter2", "x [hidden], y"),
        ("x unter2hunter2, y", "hunter2hunter2", "x [hidden], y"),
        ("x hunter2h, y", "hunter2hunter2", "x [hidden], y"),
        ("x pa$$w0 d!, y", "pa$$w0 d!", "x [hidden], y"),
        ("password=hunter2hunter2", "hunter2hunter2", "password=[hidden]"),
        (f"invalid {TOKEN[:60]}...", TOKEN, "invalid [hidden]..."),
        (f"invalid ...{TOKEN[5:]}", TOKEN, "invalid ...[hidden]"),
        (f"invalid {TOKEN[1:-1]}", TOKEN, "invalid [hidden]"),
        ("nothing of it", TOKEN, "nothing of it"),
        ("nothing", "", "nothing"),
    ],
)
def test_a_secret_and_its_long_parts_are_hidden(
    function: Callable[[str, list[str]], str], text: str, secret: str, shown: str
) -> None:
    assert function(text, [secret, ""]) == shown


@pytest.mark.parametrize("function", [redacted, without_secrets])
@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("the user is unknown here", "e"),
        ("a tiger, tigers", "tiger"),
        ("the tiger is gone", "tigers"),
        ("invalid user name or password", "password"),
        ("invalid user name or password", "password1"),
        ("invalid user name or password", "user name"),
        ("wrong user-name", "user-name"),
    ],
)
def test_a_text_with_a_secret_that_may_be_a_word_is_hidden_as_a_whole(
    function: Callable[[str, list[str]], str], text: str, secret: str
) -> None:
    """``us[hidden]r`` would reveal the password ``e``."""
    assert function(text, [secret]) == "[hidden]"


def test_reasons_beside_known_secrets_stay_readable() -> None:
    assert without_secrets("invalid bearer token: expired", [TOKEN]) == "invalid bearer token: expired"
    assert without_secrets("key 0123456789abcdef0123 is", [TOKEN]) == "key [hidden] is"


WORST_KINDS = [
    "a", "a.", "a-", "x-", "secret", "secret-", "password ", "password=", "password='", 'password="\\', "secret:\n ",
    "eyJ", "eyJ.", "://", "://a", "://@", "Bearer ", "bearer", "1", "1.", "=", "a=", " ", "\n", "'", '"', "\\",
    "token token ", "a" * 19 + ".", "a" * 19 + "/", "\u0661",
]  # fmt: skip


@pytest.mark.parametrize("kind", WORST_KINDS)
def test_the_time_of_a_search_is_proportional_to_the_text(kind: str) -> None:
    """Without the limit on the text. With quadratic time the test would take an hour, and exceed its time limit."""
    text = kind * (100_000 // len(kind))
    for end in ("", "!", "\n"):
        redaction._without_patterns(text + end)
    redaction._without_known(text, [kind * 10, TOKEN])


@pytest.mark.parametrize("kind", WORST_KINDS)
def test_only_the_beginning_of_a_long_text_is_searched(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def noting(search: Callable[..., str]) -> Callable[..., str]:
        def note(text: str, *others: object) -> str:
            searched.append(len(text))
            return search(text, *others)

        return note

    for name in ("_without_known", "_without_patterns"):
        monkeypatch.setattr(redaction, name, noting(getattr(redaction, name)))
    redacted(kind * (100_000 // len(kind)), ["tiger"])
    assert len(searched) == 2
    assert max(searched) <= MAX_SEARCHED + len(" ...")


@given(st.binary(min_size=24, max_size=200), st.text(max_size=50), st.text(max_size=50))
def test_no_token_survives(data: bytes, before: str, after: str) -> None:
    token = "eyJ" + urlsafe_b64encode(data).decode()
    shown = redacted(f"{before} {token} {after}")
    assert token[3:20] not in shown


@given(st.integers(0, 4000), st.integers(20, 3000))
def test_a_long_text_is_cut_without_the_beginning_of_a_secret(words: int, length: int) -> None:
    secret = b64encode(bytes(range(256)) * 12).decode()[:length]
    shown = redacted("x " * words + secret, [secret])
    assert secret[:5] not in shown
    shown = redacted("password=tiger " * words + "Bearer " + secret)
    assert secret[:5] not in shown
    assert len(shown) <= 200


def test_an_exception_is_described_by_type_and_text() -> None:
    assert described(ValueError("Bearer abc")) == "ValueError: Bearer [hidden]"
    assert described(ValueError()) == "ValueError"
    assert described(OSError("tiger"), ["tiger"]) == "OSError: [hidden]"
