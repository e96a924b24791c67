"""PLAIN: the message, and a client that sends it once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.errors import SaslAuthenticationError
from aioproducer.security.sasl.plain import PlainClient, PlainCredentials

PARTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


def test_credentials_are_sent_first_and_an_empty_response_ends_the_exchange() -> None:
    client = PlainClient("tim", "tanstaaftanstaaf")
    assert client.mechanism == "PLAIN"
    # RFC 4616, section 4.
    assert client.step(None) == b"\0tim\0tanstaaftanstaaf"
    assert client.step(b"") is None


def test_a_challenge_of_the_broker_is_an_error() -> None:
    client = PlainClient("tim", "secret")
    client.step(None)
    with pytest.raises(SaslAuthenticationError, match="answered SASL PLAIN with a challenge"):
        client.step(b"?")


@given(PARTS, PARTS)
def test_credentials_are_decoded_as_they_were_encoded(username: str, password: str) -> None:
    message = PlainCredentials("", username, password)
    assert PlainCredentials.decode(message.encode()) == message


@given(st.binary(max_size=40))
def test_malformed_credentials_raise_one_error_that_does_not_contain_them(data: bytes) -> None:
    if data.count(b"\0") == 2 and b"\0\0" not in data and not data.endswith(b"\0"):
        return
    with pytest.raises(ValueError, match="a SASL PLAIN message must") as caught:
        PlainCredentials.decode(data)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("wrong", ["se\0cret", "se\ud800cret", ""])
def test_a_password_that_cannot_be_sent_is_rejected_without_its_text(wrong: str) -> None:
    with pytest.raises(ValueError, match="password") as caught:
        PlainClient("tim", wrong)
    assert "cret" not in str(caught.value)
    assert "secret" not in repr(PlainCredentials("", "tim", "secret"))


def test_a_text_for_the_user_has_no_part_of_the_password() -> None:
    client = PlainClient("tim", "hunter2-hunter2")
    assert client.hidden(None) is None
    assert client.hidden("bad login tim/hunter2-hunter") == "bad login tim/[hidden]"
    text = str(client.rejection("bad login tim/hunter2-hunter2"))
    assert text.startswith(
        'The broker rejected user tim with SASL PLAIN. The broker\'s message: "bad login tim/[hidden]". Check user'
    )
    assert "message" not in str(client.rejection(None)) + str(client.rejection(""))


def test_a_short_password_hides_the_whole_message_that_contains_it() -> None:
    """``us[hidden]r`` would reveal it."""
    text = str(PlainClient("alice", "e").rejection("the user is unknown here"))
    assert 'The broker\'s message: "[hidden]".' in text


@pytest.mark.parametrize("part", ["se\ud800cret", "\ud800"])
def test_no_exception_in_the_chain_contains_a_password_that_cannot_be_encoded(part: str) -> None:
    """A UnicodeEncodeError has the text as an attribute, and ``from None`` leaves it as the context."""
    for username, password in (("tim", part), (part, "secret")):
        with pytest.raises(ValueError, match="has no UTF-8 form") as caught:
            PlainClient(username, password)
        assert caught.value.__context__ is None
    with pytest.raises(ValueError, match="must be UTF-8") as caught:
        PlainCredentials.decode(b"\0tim\0secret\xff")
    assert caught.value.__context__ is None
