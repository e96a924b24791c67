"""OAUTHBEARER: the message with its extensions, and a client that sends it once."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.errors import SaslAuthenticationError
from aioproducer.security.sasl.oauthbearer import BearerToken, OAuthBearerClient

EXTENSIONS = {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}


def test_the_token_is_sent_first_and_an_empty_response_ends_the_exchange() -> None:
    client = OAuthBearerClient("abc.def", EXTENSIONS)
    assert client.mechanism == "OAUTHBEARER"
    expected = b"n,,\x01auth=Bearer abc.def\x01logicalCluster=lkc-1\x01identityPoolId=pool-2\x01\x01"
    assert client.step(None) == expected
    assert client.step(b"") is None


def test_the_brokers_error_is_acknowledged() -> None:
    """RFC 7628, section 3.2.3: the broker ends the exchange after that; Kafka by error code 58."""
    client = OAuthBearerClient("abc")
    client.step(None)
    assert client.step(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(SaslAuthenticationError, match=r"rejected the bearer token.*invalid_token"):
        client.step(b"")


@pytest.mark.parametrize(
    ("reported", "text"),
    [
        (
            b'{"status":"invalid_token"}',
            "The broker rejected the bearer token (invalid_token); it is valid until noon.",
        ),
        (
            b'{"status":"insufficient_scope","scope":"x"}',
            "(insufficient_scope); it is valid until noon. Set sasl.oauthb",
        ),
        (b"no JSON \xff", "(no JSON \N{REPLACEMENT CHARACTER}); it is valid until noon."),
        (b'{"status": 7, "token": "abc.d3f.ghi"}', '({"status": 7, "token": "[hidden]"})'),
    ],
)
def test_a_rejection_names_reason_validity_and_what_to_check(reported: bytes, text: str) -> None:
    client = OAuthBearerClient("abc.d3f.ghi", validity=lambda: "it is valid until noon")
    client.step(None)
    client.step(reported)
    # Kafka's message beside the error code repeats the status.
    error = client.rejection("ignored")
    assert isinstance(error, SaslAuthenticationError)
    assert text in str(error)
    if b"scope" not in reported:
        assert "Check that issuer and audience" in str(error)
        assert "the clocks of both machines" in str(error)
    assert "abc" not in str(error)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (None, "The broker rejected the bearer token. Check that"),
        ("Authentication failed", "The broker rejected the bearer token (Authentication failed). Check that"),
        ("x" * 500, "x..."),
        ("bad token abc.d3f.ghi", "(bad token [hidden])"),
        ("bad token bc.d3f.ghi", "(bad token [hidden])"),
        ("bad token abc.d3f.gh...", "(bad token [hidden]...)"),
        ("bad bearer token: expired", "(bad bearer token: expired)"),
    ],
)
def test_a_rejection_by_error_code_alone_is_reported_with_its_message(message: str | None, text: str) -> None:
    client = OAuthBearerClient("abc.d3f.ghi")
    client.step(None)
    assert text in str(client.rejection(message))


def test_a_text_for_the_user_has_no_part_of_the_token() -> None:
    client = OAuthBearerClient("abc.d3f.ghi")
    assert client.hidden(None) is None
    assert client.hidden("") == ""
    assert client.hidden("illegal state after abc.d3f.gh\n") == "illegal state after [hidden]\\n"


@given(
    st.from_regex(r"[-A-Za-z0-9._~+/]{1,40}={0,2}", fullmatch=True),
    st.dictionaries(
        st.from_regex(r"[A-Za-z]{1,8}", fullmatch=True).filter(lambda name: name.lower() != "auth"),
        st.from_regex(r"[ -~]{0,20}", fullmatch=True),
        max_size=3,
    ),
)
def test_a_token_is_decoded_as_it_was_encoded(token: str, extensions: dict[str, str]) -> None:
    assert BearerToken.decode(BearerToken(token, extensions).encode()) == BearerToken(token, extensions)


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=60), st.from_regex(rb"n,,\x01[a-zB =\x01.]{0,40}\x01\x01", fullmatch=True)))
def test_malformed_messages_raise_only_value_errors(data: bytes) -> None:
    """Any other exception fails the test."""
    with suppress(ValueError):
        BearerToken.decode(data)


@pytest.mark.parametrize(
    ("token", "extensions", "error"),
    [
        ("", {}, "the bearer token is empty"),
        ("sec ret", {}, "characters that no token has"),
        ("sec\x01ret", {}, "characters that no token has"),
        ("abc", {"auth": "secret"}, "other than 'auth'"),
        ("abc", {"a-b": "secret"}, "a name of letters"),
        ("abc", {"a": "sec\x01ret"}, "must be printable ASCII"),
    ],
)
def test_a_token_that_cannot_be_sent_is_rejected_without_its_text(
    token: str, extensions: dict[str, str], error: str
) -> None:
    with pytest.raises(ValueError, match=error) as caught:
        OAuthBearerClient(token, extensions)
    assert "ret" not in str(caught.value)
    assert "secret" not in repr(BearerToken("secret", EXTENSIONS))
