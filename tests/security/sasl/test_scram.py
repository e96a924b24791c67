"""SCRAM: the messages, the vectors of RFC 7677, and exchanges with honest and hostile servers."""

from __future__ import annotations

import hashlib
import hmac
import traceback
from base64 import b64decode
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.errors import SaslAuthenticationError
from aioproducer.security.sasl.scram import (
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    ClientFinal,
    ClientFirst,
    MalformedMessageError,
    ScramClient,
    ScramKeys,
    ServerFinal,
    ServerFirst,
    is_proof_valid,
    server_signature,
)

CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def rfc_client() -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", make_nonce=lambda: CLIENT_NONCE)


def test_the_exchange_of_rfc_7677() -> None:
    client = rfc_client()
    assert client.step(None) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.step(SERVER_FIRST) == CLIENT_FINAL
    assert client.step(SERVER_FINAL) is None


def test_only_the_step_that_derives_keys_blocks() -> None:
    client = rfc_client()
    blocking = [client.step_blocks]
    for challenge in (None, SERVER_FIRST, SERVER_FINAL):
        client.step(challenge)
        blocking.append(client.step_blocks)
    assert blocking == [False, True, False, False]


class Server:
    """A server that stores keys for one user."""

    def __init__(self, mechanism: str, password: str) -> None:
        self.mechanism = mechanism
        self.salt = b"0123456789"
        self.keys = ScramKeys.derive(mechanism, password, self.salt, MIN_ITERATIONS)
        self.signed: list[bytes] = []
        self.first: ClientFirst | None = None

    def challenge(self, data: bytes) -> bytes:
        self.first = ClientFirst.decode(data)
        answer = ServerFirst(self.first.nonce + "server", self.salt, MIN_ITERATIONS).encode()
        self.signed = [self.first.bare.encode(), answer]
        return answer

    def finish(self, data: bytes) -> bytes:
        final = ClientFinal.decode(data)
        signed = b",".join([*self.signed, final.without_proof.encode()])
        if not is_proof_valid(self.mechanism, self.keys.stored_key, final.proof, signed):
            return ServerFinal(error="invalid-proof").encode()
        return ServerFinal(server_signature(self.mechanism, self.keys, signed)).encode()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("is_token", [False, True])
@pytest.mark.parametrize(("username", "password"), [("user", "pencil"), ("a=b,c", "=,="), ("Jürgen", "pässwörd ")])
def test_client_and_server_authenticate_each_other(
    mechanism: str, is_token: bool, username: str, password: str
) -> None:
    client, server = ScramClient(mechanism, username, password, is_token=is_token), Server(mechanism, password)
    assert client.step(server.finish(client.step(server.challenge(client.step(None) or b"")) or b"")) is None
    assert server.first is not None
    assert (server.first.username, server.first.is_token) == (username, is_token)


def test_a_wrong_password_is_an_error_that_says_what_to_check() -> None:
    client, server = ScramClient("SCRAM-SHA-256", "user", "wrong"), Server("SCRAM-SHA-256", "pencil")
    final = server.finish(client.step(server.challenge(client.step(None) or b"")) or b"")
    with pytest.raises(SaslAuthenticationError, match=r"rejected user user with SASL SCRAM.*invalid-proof.*Check user"):
        client.step(final)


def test_a_server_that_does_not_know_the_password_is_rejected() -> None:
    client = rfc_client()
    client.step(None)
    client.step(SERVER_FIRST)
    with pytest.raises(SaslAuthenticationError, match="may be another server than it claims"):
        client.step(ServerFinal(b"0" * 32).encode())


@pytest.mark.parametrize(
    ("server_first", "error"),
    [
        (b"", "the server's first message is malformed"),
        (b"\xff" + SERVER_FIRST, "the server's first message is malformed"),
        (SERVER_FIRST + b"\0", "the server's first message is malformed"),
        (b"m=must," + SERVER_FIRST, "the server's first message is malformed"),
        (SERVER_FIRST.replace(b"gQ==", b"gQ"), "base64 data is malformed"),
        (SERVER_FIRST.replace(b"rOpr", b"xxxx"), "its nonce does not continue the client's"),
        (b"r=%b,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096" % CLIENT_NONCE.encode(), "its nonce does not continue the client's"),
        (SERVER_FIRST.replace(b"4096", b"4095"), r"it demands 4095 iterations \(allowed: 4096 to 1000000\)"),
        (SERVER_FIRST.replace(b"4096", b"1000001"), "it demands 1000001 iterations"),
        (SERVER_FIRST.replace(b"4096", b"9" * 11), "the server's first message is malformed"),
    ],
)
def test_a_hostile_first_message_is_rejected_before_keys_are_derived(server_first: bytes, error: str) -> None:
    client = rfc_client()
    client.step(None)
    with pytest.raises(SaslAuthenticationError, match=error) as caught:
        client.step(server_first)
    assert "pencil" not in str(caught.value)


@pytest.mark.parametrize("module", [hashlib, hmac])
def test_a_failure_to_compute_keys_leaves_no_secret_in_the_variables_of_its_frames(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in OpenSSL's FIPS mode, which allows neither all hashes nor short passwords."""

    def fail(*_: object) -> bytes:
        raise ValueError("[digital envelope routines] unsupported: 'pencil-and-rubber'")

    client = ScramClient("SCRAM-SHA-256", "user", "pencil-and-rubber", make_nonce=lambda: "nonce")
    client.step(None)
    monkeypatch.setattr(module, "pbkdf2_hmac" if module is hashlib else "digest", fail)
    with pytest.raises(SaslAuthenticationError, match="cannot compute the keys of SASL SCRAM-SHA-256") as caught:
        client.step(b"r=nonce1,s=c2FsdA==,i=4096")
    assert "(ValueError: [hidden])" in str(caught.value)
    assert caught.value.__context__ is None
    _of_this_test, *frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert [frame.f_code.co_name for frame in frames] == ["step", "_prove"]
    for frame in frames:
        assert "pencil" not in repr(frame.f_locals)
        assert not any(isinstance(value, ScramKeys) for value in frame.f_locals.values())


def test_a_text_for_the_user_has_no_part_of_the_password() -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil-7-rubber")
    assert client.hidden(None) is None
    assert client.hidden("other-error: pencil-7-rubbe") == "other-error: [hidden]"
    client = ScramClient("SCRAM-SHA-256", "user", "pencil-7-rubber", make_nonce=lambda: "nonce")
    for challenge in (None, b"r=nonce1,s=c2FsdA==,i=4096"):
        client.step(challenge)
    with pytest.raises(SaslAuthenticationError, match=r'message: "not .hidden."') as caught:
        client.step(b"e=not pencil-7-rubber")
    assert "pencil" not in str(caught.value)


def test_a_message_after_the_end_is_an_error() -> None:
    client = rfc_client()
    for challenge in (None, SERVER_FIRST, SERVER_FINAL):
        client.step(challenge)
    with pytest.raises(SaslAuthenticationError, match="the exchange is over"):
        client.step(SERVER_FINAL)


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=80), st.from_regex(rb"[rsivenpc=,0-9A-Za-z+/]{0,60}", fullmatch=True)))
def test_malformed_messages_raise_only_malformed_message_errors(data: bytes) -> None:
    """Any other exception fails the test."""
    for message in (ClientFirst, ServerFirst, ClientFinal, ServerFinal):
        try:
            message.decode(data)
        except MalformedMessageError:
            continue


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20), st.booleans())
def test_the_first_message_is_decoded_as_it_was_encoded(username: str, is_token: bool) -> None:
    message = ClientFirst(username, "nonce", is_token)
    assert ClientFirst.decode(message.encode()) == message


def test_a_client_that_demands_channel_binding_is_rejected() -> None:
    with pytest.raises(MalformedMessageError, match="demands channel binding"):
        ClientFinal.decode(CLIENT_FINAL.replace(b"biws", b"cD10bHM="))
    with pytest.raises(MalformedMessageError, match="malformed"):
        ClientFirst.decode(b"p=tls-unique,,n=user,r=nonce")


def test_a_proof_of_another_length_is_invalid() -> None:
    keys = ScramKeys.derive("SCRAM-SHA-256", "pencil", b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), MIN_ITERATIONS)
    assert not is_proof_valid("SCRAM-SHA-256", keys.stored_key, b"short", b"signed")
    assert repr(keys) == "ScramKeys(hidden)"
    assert MAX_ITERATIONS == 1_000_000


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("SCRAM-SHA-1", "user", "secret"), "unknown SCRAM mechanism 'SCRAM-SHA-1': use one of SCRAM-SHA-256"),
        (("SCRAM-SHA-256", "", "secret"), "needs a user name and a password"),
        (("SCRAM-SHA-256", "user", "sec\ud800ret"), "the SASL password has no UTF-8 form"),
    ],
)
def test_credentials_that_cannot_be_used_are_rejected_at_once(arguments: tuple[str, str, str], error: str) -> None:
    with pytest.raises(ValueError, match=error) as caught:
        ScramClient(*arguments)
    assert "ret" not in str(caught.value).replace("secret", "")
