"""Connection: driven by a scripted broker."""

from __future__ import annotations

import math
import struct
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer import __version__
from aioproducer.core.requests.broker_versions import VersionRange
from aioproducer.core.requests.connection import (
    LARGEST_CORRELATION_ID,
    Completed,
    Connection,
    InFlight,
)
from aioproducer.core.requests.connection_state import ConnectionState
from aioproducer.errors import (
    AuthenticationError,
    ConnectionFailedError,
    KafkaError,
    NetworkError,
    ProtocolError,
    RequestTimedOutError,
    SaslAuthenticationError,
    TlsError,
    UnsupportedVersionError,
    broker_error,
)
from aioproducer.protocol import (
    ApiKey,
    Buffer,
    Request,
    RequestHeader,
    Response,
    decode_request,
    decode_request_header,
    encode_response,
)
from aioproducer.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from aioproducer.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from aioproducer.protocol.messages.produce import ProduceRequest, ProduceResponse
from aioproducer.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from aioproducer.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

OFFERED = {
    ApiKey.PRODUCE: (0, 13),
    ApiKey.METADATA: (0, 12),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.API_VERSIONS: (0, 5),
    ApiKey.INIT_PRODUCER_ID: (0, 99),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
}


def versions_response(error_code: int = 0, offered: dict[ApiKey, tuple[int, int]] = OFFERED) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            ApiVersion(api_key=key, min_version=lowest, max_version=highest)
            for key, (lowest, highest) in offered.items()
        ],
    )


def sent(buffers: Sequence[Buffer]) -> tuple[RequestHeader, Request[Response]]:
    """Return the single request in ``buffers``."""
    data = b"".join(buffers)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return decode_request(data[4:])


def frame(response: Response, version: int, correlation_id: int) -> bytes:
    return b"".join(encode_response(response, version, correlation_id))


def sized(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def make_connection(
    *, max_in_flight: int = 5, first_correlation_id: int = 0, uses_tls: bool = False, max_frame_bytes: int = 2**20
) -> Connection:
    return Connection(
        peer="broker:9092",
        client_id="test",
        max_in_flight=max_in_flight,
        first_correlation_id=first_correlation_id,
        uses_tls=uses_tls,
        max_frame_bytes=max_frame_bytes,
    )


def make_ready(connection: Connection | None = None, offered: dict[ApiKey, tuple[int, int]] = OFFERED) -> Connection:
    connection = connection or make_connection()
    header, _ = sent(connection.start(0.0))
    response = versions_response(offered=offered)
    assert connection.receive_data(frame(response, header.request_api_version, header.correlation_id), 0.0) == []
    assert connection.state is ConnectionState.READY
    assert connection.data_to_send() == []
    return connection


def metadata_response(marker: int, throttle_time_ms: int = 0) -> MetadataResponse:
    """Return a response that ``marker`` identifies."""
    return MetadataResponse(
        throttle_time_ms=throttle_time_ms,
        brokers=[MetadataResponseBroker(node_id=marker, host="h" * (marker % 50), port=9092)],
    )


def send(connection: Connection, context: object, now: float = 0.0, **options: float) -> int:
    """Send a Metadata request and return its correlation id."""
    timeout = options.get("timeout")
    header, _ = sent(connection.send(MetadataRequest(topics=[]), now, context=context, timeout=timeout))
    return header.correlation_id


def test_start_requests_api_versions_with_the_client_software_name() -> None:
    connection = make_connection()
    assert connection.state is ConnectionState.CONNECTING
    header, request = sent(connection.start(0.0))
    assert connection.state is ConnectionState.CHECKING_API_VERSIONS
    assert (header.request_api_key, header.request_api_version, header.client_id) == (18, 5, "test")
    assert request == ApiVersionsRequest(client_software_name="aioproducer", client_software_version=__version__)
    assert connection.in_flight == 1
    assert not connection.can_send(0.0)


def test_kip_1242_the_expected_node_is_sent_only_if_cluster_and_node_are_known() -> None:
    for cluster_id, node_id, expected in [("c", 3, ("c", 3)), (None, 3, (None, -1)), ("c", None, (None, -1))]:
        connection = Connection(peer="broker:9092", client_id=None, cluster_id=cluster_id, node_id=node_id)
        _, request = sent(connection.start(0.0))
        assert isinstance(request, ApiVersionsRequest)
        assert (request.cluster_id, request.node_id) == expected
    connection = Connection(peer="broker:9092", client_id=None, cluster_id="c", node_id=-1)
    _, request = sent(connection.start(0.0))
    assert isinstance(request, ApiVersionsRequest)
    assert request.cluster_id is None


def test_the_brokers_api_versions_are_kept() -> None:
    connection = make_connection()
    header, _ = sent(connection.start(0.0))
    response = versions_response()
    response.supported_features = [SupportedFeatureKey(name="kraft.version", min_version=0, max_version=1)]
    response.finalized_features_epoch = 77
    response.finalized_features = [
        FinalizedFeatureKey(name="transaction.version", min_version_level=2, max_version_level=2)
    ]
    connection.receive_data(frame(response, 5, header.correlation_id), 0.0)
    assert connection.versions.apis[ApiKey.METADATA] == VersionRange(0, 12)
    assert connection.versions.supported_features == {"kraft.version": (0, 1)}
    assert connection.versions.finalized_features == {"transaction.version": (2, 2)}
    assert connection.versions.finalized_features_epoch == 77


@pytest.mark.parametrize(
    ("offered", "expected"),
    [({ApiKey.API_VERSIONS: (0, 3)}, 3), ({}, 0), ({ApiKey.API_VERSIONS: (0, 9)}, 4)],
    ids=["named", "before KIP-511", "contradicts itself"],
)
def test_a_rejected_api_versions_request_is_repeated_in_a_common_version(
    offered: dict[ApiKey, tuple[int, int]], expected: int
) -> None:
    connection = make_connection()
    header, _ = sent(connection.start(0.0))
    assert connection.receive_data(frame(versions_response(35, offered), 0, header.correlation_id), 0.0) == []
    assert connection.state is ConnectionState.CHECKING_API_VERSIONS
    header, request = sent(connection.data_to_send())
    assert isinstance(request, ApiVersionsRequest)
    assert header.request_api_version == expected
    connection.receive_data(frame(versions_response(), expected, header.correlation_id), 0.0)
    assert connection.state is ConnectionState.READY
    assert connection.data_to_send() == []


def test_a_broker_that_rejects_every_version_poisons_the_connection() -> None:
    connection = make_connection()
    buffers = connection.start(0.0)
    for _ in range(7):
        if not buffers:
            break
        header, _ = sent(buffers)
        connection.receive_data(
            frame(versions_response(35, {ApiKey.API_VERSIONS: (0, 9)}), 0, header.correlation_id), 0.0
        )
        buffers = connection.data_to_send()
    assert connection.state is ConnectionState.CLOSED
    assert isinstance(connection.error, UnsupportedVersionError)


def test_an_unexpected_broker_poisons_the_connection_with_rebootstrap_required() -> None:
    connection = make_connection()
    header, _ = sent(connection.start(0.0))
    connection.receive_data(frame(versions_response(129), 5, header.correlation_id), 0.0)
    assert connection.state is ConnectionState.CLOSED
    assert isinstance(connection.error, type(broker_error(129)))
    assert connection.poison(NetworkError("later")) == []


def test_start_can_be_called_only_once() -> None:
    connection = make_connection()
    connection.start(0.0)
    with pytest.raises(RuntimeError, match="checking API versions"):
        connection.start(0.0)


class Script:
    """A mechanism that returns scripted messages and keeps the received ones."""

    mechanism = "SCRIPT"
    step_blocks = False

    def __init__(self, *answers: bytes | KafkaError | None) -> None:
        self.answers = list(answers)
        self.received: list[bytes | None] = []

    def step(self, challenge: bytes | None) -> bytes | None:
        self.received.append(challenge)
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def rejection(self, message: str | None) -> AuthenticationError:
        return SaslAuthenticationError(f"rejected: {message}")

    def hidden(self, text: str | None) -> str | None:
        return text and text.replace("secret", "[hidden]")


def start_authentication(script: Script, offered: dict[ApiKey, tuple[int, int]] = OFFERED) -> Connection:
    connection = Connection(peer="broker:9092", client_id="test", authenticator=script)
    header, _ = sent(connection.start(0.0))
    connection.receive_data(frame(versions_response(offered=offered), 5, header.correlation_id), 0.0)
    return connection


def answer_own(connection: Connection, response: Response) -> Request[Response]:
    """Answer the request that the connection wants to send, and return it."""
    header, request = sent(connection.data_to_send())
    assert connection.receive_data(frame(response, header.request_api_version, header.correlation_id), 1.0) == []
    return request


def test_authentication_runs_the_steps_of_the_mechanism() -> None:
    script = Script(b"first", b"final", None)
    connection = start_authentication(script)
    assert connection.state is ConnectionState.AUTHENTICATING
    assert answer_own(connection, SaslHandshakeResponse(mechanisms=["SCRIPT"])) == SaslHandshakeRequest(
        mechanism="SCRIPT"
    )
    request = answer_own(connection, SaslAuthenticateResponse(auth_bytes=b"challenge"))
    assert request == SaslAuthenticateRequest(auth_bytes=b"first")
    assert not connection.can_send(1.0)
    request = answer_own(connection, SaslAuthenticateResponse(auth_bytes=b"proof", session_lifetime_ms=5000))
    assert request == SaslAuthenticateRequest(auth_bytes=b"final")
    assert connection.state is ConnectionState.READY
    assert connection.data_to_send() == []
    assert script.received == [None, b"challenge", b"proof"]
    assert connection.session_lifetime_ms == 5000
    assert connection.can_send(1.0)


def test_an_unsupported_mechanism_poisons_the_connection_and_the_error_names_the_supported_ones() -> None:
    connection = start_authentication(Script())
    answer_own(connection, SaslHandshakeResponse(error_code=33, mechanisms=["PLAIN", "SCRAM-SHA-256", "\x1b[2J"]))
    assert connection.state is ConnectionState.CLOSED
    assert isinstance(connection.error, type(broker_error(33)))
    assert str(connection.error) == (
        "The broker broker:9092 does not accept the SASL mechanism SCRIPT; it offers: PLAIN, SCRAM-SHA-256, \\x1b[2J. "
        "Set sasl_mechanism to one of these."
    )


def test_a_listener_without_sasl_poisons_the_connection_with_its_error() -> None:
    connection = start_authentication(Script())
    answer_own(connection, SaslHandshakeResponse(error_code=34))
    assert isinstance(connection.error, type(broker_error(34)))


def test_wrong_credentials_poison_the_connection_with_the_brokers_message() -> None:
    connection = start_authentication(Script(b"first"))
    answer_own(connection, SaslHandshakeResponse(mechanisms=["SCRIPT"]))
    answer_own(connection, SaslAuthenticateResponse(error_code=58, error_message="Authentication failed: no such user"))
    assert isinstance(connection.error, SaslAuthenticationError)
    assert str(connection.error) == "rejected: Authentication failed: no such user"
    assert connection.data_to_send() == []


def test_a_broker_that_the_mechanism_rejects_poisons_the_connection() -> None:
    disbelief = SaslAuthenticationError("The broker does not know the password.")
    connection = start_authentication(Script(b"first", disbelief))
    answer_own(connection, SaslHandshakeResponse(mechanisms=["SCRIPT"]))
    answer_own(connection, SaslAuthenticateResponse(auth_bytes=b"nonsense"))
    assert connection.error is disbelief


@pytest.mark.parametrize(
    ("offered", "error", "text"),
    [
        ({ApiKey.SASL_HANDSHAKE: (0, 0)}, UnsupportedVersionError, "version 1 is needed"),
        ({ApiKey.METADATA: (0, 12)}, AuthenticationError, "does not use SASL"),
        ({ApiKey.SASL_HANDSHAKE: (0, 1)}, UnsupportedVersionError, "does not offer SASL_AUTHENTICATE"),
    ],
    ids=["before Kafka 1.0", "no SASL", "contradicts itself"],
)
def test_a_broker_without_the_requests_of_sasl_poisons_the_connection(
    offered: dict[ApiKey, tuple[int, int]], error: type[KafkaError], text: str
) -> None:
    connection = start_authentication(Script(b"first"), offered=offered)
    if connection.error is None:
        answer_own(connection, SaslHandshakeResponse(mechanisms=["SCRIPT"]))
    assert isinstance(connection.error, error)
    assert text in str(connection.error)
    assert connection.data_to_send() == []


class Blocking(Script):
    """A mechanism with steps that block, except for the first."""

    @property
    def step_blocks(self) -> bool:  # type: ignore[override]
        return bool(self.received)


def test_a_step_that_blocks_waits_for_the_driver() -> None:
    script = Blocking(b"first", b"final", None)
    connection = start_authentication(script)
    answer_own(connection, SaslHandshakeResponse())
    answer_own(connection, SaslAuthenticateResponse(auth_bytes=b"challenge"))
    assert connection.data_to_send() == []
    assert script.received == [None]
    step = connection.blocking_step
    assert step is not None
    message = step()
    assert script.received == [None, b"challenge"]
    header, request = sent(connection.step_ended(message, 1.0))
    assert request == SaslAuthenticateRequest(auth_bytes=b"final")
    assert connection.blocking_step is None
    connection.receive_data(
        frame(SaslAuthenticateResponse(auth_bytes=b"proof"), header.request_api_version, header.correlation_id), 1.0
    )
    last = connection.blocking_step
    assert last is not None
    assert connection.state is ConnectionState.AUTHENTICATING
    assert connection.step_ended(last(), 1.0) == []
    assert connection.state is ConnectionState.READY


def test_the_result_of_a_step_that_ends_after_the_connection_is_ignored() -> None:
    connection = start_authentication(Blocking(b"first", b"final"))
    answer_own(connection, SaslHandshakeResponse())
    answer_own(connection, SaslAuthenticateResponse(auth_bytes=b"challenge"))
    step = connection.blocking_step
    assert step is not None
    connection.eof()
    assert connection.step_ended(step(), 1.0) == []
    assert connection.state is ConnectionState.CLOSED


def test_a_connection_authenticates_again_behind_the_requests_in_flight() -> None:
    connection = make_ready()
    first = send(connection, "first")
    again = Script(b"credentials", None)
    header, request = sent(connection.reauthenticate(again, 1.0))
    assert request == SaslHandshakeRequest(mechanism="SCRIPT")
    assert connection.state is ConnectionState.REAUTHENTICATING
    assert not connection.can_send(1.0)
    with pytest.raises(RuntimeError, match="authenticating again"):
        send(connection, "later")
    completed = connection.receive_data(frame(metadata_response(1), 12, first), 2.0)
    assert [each.context for each in completed] == ["first"]
    assert connection.receive_data(frame(SaslHandshakeResponse(), 1, header.correlation_id), 2.0) == []
    answer_own(connection, SaslAuthenticateResponse(session_lifetime_ms=700))
    assert connection.state is ConnectionState.READY
    assert connection.session_lifetime_ms == 700
    assert connection.can_send(2.0)
    second = send(connection, "second")
    completed = connection.receive_data(frame(metadata_response(2), 12, second), 3.0)
    assert [each.context for each in completed] == ["second"]


def test_a_renewal_that_the_broker_refuses_is_no_rejection_of_the_client() -> None:
    connection = make_ready()
    header, _ = sent(connection.reauthenticate(Script(b"credentials"), 1.0))
    connection.receive_data(frame(SaslHandshakeResponse(error_code=34), 1, header.correlation_id), 1.0)
    assert type(connection.error) is NetworkError
    assert "refused to renew the session" in str(connection.error)


def test_the_message_beside_any_error_code_hides_secrets() -> None:
    connection = start_authentication(Script(b"first"))
    answer_own(connection, SaslHandshakeResponse())
    answer_own(connection, SaslAuthenticateResponse(error_code=34, error_message="no state for secret"))
    assert "no state for [hidden]" in str(connection.error)


def test_an_unexpected_error_of_a_step_poisons_the_connection_and_its_text_is_not_shown() -> None:
    class Faulty(Script):
        def step(self, challenge: bytes | None) -> bytes | None:
            raise ValueError("secret")

    connection = start_authentication(Faulty())
    answer_own(connection, SaslHandshakeResponse())
    assert str(connection.error) == "A step of SASL SCRIPT with broker:9092 failed: ValueError"
    assert connection.error is not None
    assert connection.error.__context__ is None or connection.error.__suppress_context__


def test_nothing_is_sent_after_the_end_of_a_session() -> None:
    connection = start_authentication(Script(b"credentials", None))
    answer_own(connection, SaslHandshakeResponse())
    answer_own(connection, SaslAuthenticateResponse(session_lifetime_ms=10_000))
    assert connection.session_end == pytest.approx(10.95)
    assert connection.can_send(10.9)
    assert not connection.can_send(10.96)
    with pytest.raises(RuntimeError, match="the session has ended"):
        send(connection, "late", 10.96)


def test_a_rejected_reauthentication_poisons_the_connection() -> None:
    connection = make_ready()
    header, _ = sent(connection.reauthenticate(Script(b"credentials"), 1.0))
    connection.receive_data(frame(SaslHandshakeResponse(), 1, header.correlation_id), 1.0)
    answer_own(connection, SaslAuthenticateResponse(error_code=58))
    assert isinstance(connection.error, SaslAuthenticationError)
    assert connection.poison(NetworkError("later")) == []


@pytest.mark.parametrize("state", ["connecting", "authenticating", "authenticating again", "closed"])
def test_only_a_ready_connection_authenticates_again(state: str) -> None:
    connection = make_connection() if state == "connecting" else start_authentication(Script())
    if state == "authenticating again":
        connection = make_ready()
        connection.reauthenticate(Script(), 1.0)
    elif state == "closed":
        connection.eof()
    assert connection.state.value == state
    with pytest.raises(RuntimeError, match=f"is {state}: it cannot be session ending now"):
        connection.reauthenticate(Script(), 1.0)


def ask_for_sasl(offered: dict[ApiKey, tuple[int, int]] = OFFERED) -> Connection:
    connection = Connection(peer="broker:9092", client_id="test", asks_for_sasl=True)
    header, _ = sent(connection.start(0.0))
    connection.receive_data(frame(versions_response(offered=offered), 5, header.correlation_id), 0.0)
    return connection


def test_a_listener_that_requires_sasl_is_detected_by_a_request() -> None:
    connection = ask_for_sasl()
    asked = answer_own(connection, SaslHandshakeResponse(error_code=33, mechanisms=["PLAIN", "OAUTHBEARER"]))
    assert asked == SaslHandshakeRequest(mechanism="")
    assert isinstance(connection.error, AuthenticationError)
    assert str(connection.error) == (
        "The listener broker:9092 requires SASL, but the client's security_protocol is PLAINTEXT: set it to "
        "SASL_PLAINTEXT, and set sasl_mechanism to one that the listener offers (PLAIN, OAUTHBEARER)."
    )


@pytest.mark.parametrize("code", [34, 42, 0])
def test_a_listener_that_does_not_require_sasl_serves_the_client_after_the_request(code: int) -> None:
    connection = ask_for_sasl()
    answer_own(connection, SaslHandshakeResponse(error_code=code))
    assert connection.state is ConnectionState.READY


def test_a_broker_without_sasl_receives_no_such_request() -> None:
    connection = ask_for_sasl({ApiKey.METADATA: (0, 12)})
    assert connection.state is ConnectionState.READY


def test_the_end_before_the_first_answer_after_api_versions_is_reported_as_probably_sasl() -> None:
    connection = make_ready()
    send(connection, "first")
    connection.eof()
    assert "requires SASL" in str(connection.error)
    assert "METADATA" in str(connection.error)
    served = make_ready()
    served.receive_data(frame(metadata_response(1), 12, send(served, "first")), 1.0)
    send(served, "second")
    served.eof()
    assert "SASL" not in str(served.error)


def test_a_connection_lost_during_authentication_is_reported_as_such() -> None:
    connection = start_authentication(Script())
    assert connection.eof() == []
    assert "while authenticating" in str(connection.error)


def test_the_highest_common_version_is_chosen() -> None:
    connection = make_ready()
    assert connection.negotiate(ApiKey.PRODUCE) == 13
    assert connection.negotiate(ApiKey.METADATA) == 12
    assert connection.negotiate(ApiKey.INIT_PRODUCER_ID) == 5
    assert connection.negotiate(ApiKey.PRODUCE, highest=11) == 11
    assert connection.negotiate(ApiKey.PRODUCE, lowest=12) == 13


@pytest.mark.parametrize(
    ("offered", "text"),
    [
        ((0, 2), "supports PRODUCE version 0 to 2, but version 3 to 13 is needed: upgrade the broker"),
        ((99, 99), "supports PRODUCE version 99, but version 3 to 13 is needed: upgrade aioproducer"),
        (None, "does not offer PRODUCE requests, of which version 3 to 13 is needed"),
    ],
)
def test_without_a_common_version_only_that_request_fails(offered: tuple[int, int] | None, text: str) -> None:
    ranges = {ApiKey.METADATA: (0, 1)} | ({} if offered is None else {ApiKey.PRODUCE: offered})
    connection = make_ready(offered=ranges)
    with pytest.raises(UnsupportedVersionError, match=text):
        connection.send(ProduceRequest(acks=1), 0.0, context="a")
    assert (connection.in_flight, connection.state) == (0, ConnectionState.READY)
    assert send(connection, "b") == 1


@given(st.tuples(st.integers(0, 20), st.integers(0, 20)), st.integers(0, 15), st.integers(0, 15))
def test_the_chosen_version_is_the_maximum_of_the_intersection(
    theirs: tuple[int, int], lowest: int, highest: int
) -> None:
    connection = make_ready(offered={ApiKey.PRODUCE: theirs})
    common = set(range(3, 14)) & set(range(theirs[0], theirs[1] + 1)) & set(range(lowest, highest + 1))
    if common:
        assert connection.negotiate(ApiKey.PRODUCE, lowest=lowest, highest=highest) == max(common)
    else:
        with pytest.raises(UnsupportedVersionError):
            connection.negotiate(ApiKey.PRODUCE, lowest=lowest, highest=highest)


def test_a_negotiation_before_api_versions_arrived_is_not_cached() -> None:
    connection = make_connection()
    with pytest.raises(UnsupportedVersionError):
        connection.negotiate(ApiKey.PRODUCE)
    make_ready(connection)
    assert connection.negotiate(ApiKey.PRODUCE) == 13
    assert connection.negotiate(ApiKey.PRODUCE, highest=9) == 9
    assert connection.negotiate(ApiKey.PRODUCE) == 13


def test_a_request_that_cannot_be_encoded_leaves_no_state() -> None:
    connection = make_ready()
    with pytest.raises(UnsupportedVersionError):
        connection.send(MetadataRequest(topics=[], allow_auto_topic_creation=False), 0.0, version=2)
    assert connection.in_flight == 0
    assert send(connection, "next") == 1


def test_a_response_completes_its_request() -> None:
    connection = make_ready()
    correlation_id = send(connection, "context", 10.0, timeout=5.0)
    assert connection.next_deadline() == 15.0
    data = frame(metadata_response(7), 12, correlation_id)
    (completed,) = connection.receive_data(data, 10.25)
    assert completed.context == "context"
    assert completed.response == metadata_response(7)
    assert (completed.api_key, completed.version) == (ApiKey.METADATA, 12)
    assert completed.correlation_id == correlation_id
    assert (completed.received_at, completed.latency) == (10.25, 0.25)
    assert completed.size == len(data)
    assert connection.in_flight == 0
    assert connection.next_deadline() == math.inf


def test_records_are_passed_by_reference() -> None:
    from aioproducer.protocol.messages.produce import PartitionProduceData, TopicProduceData

    records = memoryview(bytearray(b"records of a batch"))
    request = ProduceRequest(
        acks=1,
        topic_data=[
            TopicProduceData(topic_id=bytes(16), partition_data=[PartitionProduceData(index=0, records=[records])])
        ],
    )
    buffers = make_ready().send(request, 0.0, context=None)
    assert any(buffer is records for buffer in buffers)


def test_a_request_with_acks_0_is_never_in_flight() -> None:
    """Such a request uses a correlation id and nothing else."""
    connection = make_ready(make_connection(max_in_flight=1))
    for _ in range(3):
        assert connection.send(ProduceRequest(acks=0), 0.0, context="a", expect_response=False)
        assert connection.in_flight == 0
    correlation_id = send(connection, "b")
    assert correlation_id == 4
    (completed,) = connection.receive_data(frame(metadata_response(1), 12, correlation_id), 0.0)
    assert completed.context == "b"


@pytest.mark.parametrize("first", [0, LARGEST_CORRELATION_ID - 2, LARGEST_CORRELATION_ID - 1])
def test_acks_0_response_is_not_expected(first: int) -> None:
    """librdkafka's mock cluster sends such responses; they once closed the connection and lost unread records."""
    connection = make_ready(make_connection(first_correlation_id=first))
    connection.send(ProduceRequest(acks=0), 0.0, expect_response=False)
    unanswerable = (first + 2) % (LARGEST_CORRELATION_ID + 1)
    connection.send(ProduceRequest(acks=0), 0.0, expect_response=False)
    correlation_id = send(connection, "b")
    answer = sized(struct.pack(">i", unanswerable) + b"whatever it says")
    assert connection.receive_data(answer, 0.0) == []
    (completed,) = connection.receive_data(frame(metadata_response(1), 12, correlation_id), 0.0)
    assert completed.context == "b"
    connection.send(ProduceRequest(acks=0), 0.0, expect_response=False)
    answer = sized(struct.pack(">i", (correlation_id + 1) % (LARGEST_CORRELATION_ID + 1)))
    assert connection.receive_data(answer, 0.0) == []
    assert connection.error is None
    connection.receive_data(answer, 0.0)
    assert "a response without a request" in str(connection.error)


def test_requests_in_flight_are_limited() -> None:
    connection = make_ready(make_connection(max_in_flight=2))
    first = send(connection, "a")
    send(connection, "b")
    assert not connection.can_send(0.0)
    with pytest.raises(RuntimeError, match="2 of 2 requests are in flight"):
        send(connection, "c")
    connection.receive_data(frame(metadata_response(1), 12, first), 0.0)
    assert connection.can_send(0.0)


def test_nothing_is_sent_before_ready() -> None:
    with pytest.raises(RuntimeError, match="connecting"):
        send(make_connection(), "a")


def test_correlation_ids_wrap_around() -> None:
    connection = make_ready(make_connection(first_correlation_id=LARGEST_CORRELATION_ID - 1))
    ids = [send(connection, index) for index in range(3)]
    assert ids == [LARGEST_CORRELATION_ID, 0, 1]
    data = b"".join(frame(metadata_response(index), 12, correlation_id) for index, correlation_id in enumerate(ids))
    assert [completed.context for completed in connection.receive_data(data, 0.0)] == [0, 1, 2]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), max_size=40), st.integers(LARGEST_CORRELATION_ID - 20, LARGEST_CORRELATION_ID))
def test_the_next_response_completes_the_oldest_request(turns: list[bool], first: int) -> None:
    connection = make_ready(make_connection(first_correlation_id=first))
    waiting: list[int] = []
    markers = 0
    for is_request in turns:
        if is_request and connection.can_send(0.0):
            correlation_id = send(connection, markers)
            assert correlation_id not in waiting
            waiting.append(correlation_id)
            markers += 1
        elif waiting:
            marker = markers - len(waiting)
            (completed,) = connection.receive_data(frame(metadata_response(marker), 12, waiting.pop(0)), 0.0)
            assert completed.context == marker
            assert completed.response == metadata_response(marker)
        assert connection.in_flight == len(waiting)


def test_an_unknown_correlation_id_poisons_the_connection() -> None:
    connection = make_ready()
    send(connection, "a")
    assert connection.receive_data(frame(metadata_response(1), 12, 99), 0.0) == []
    assert isinstance(connection.error, ProtocolError)
    assert str(connection.error) == (
        "broker:9092 answered with correlation id 99, but the oldest request in flight is 1 (METADATA): "
        "no request in flight has that id."
    )


def test_an_out_of_order_response_poisons_the_connection() -> None:
    connection = make_ready()
    send(connection, "a")
    second = send(connection, "b")
    connection.receive_data(frame(metadata_response(1), 12, second), 0.0)
    assert "a later request was answered before it" in str(connection.error)
    assert [request.context for request in connection.poison(NetworkError("gone"))] == ["a", "b"]


def test_an_unrequested_response_poisons_the_connection() -> None:
    connection = make_ready()
    correlation_id = send(connection, "a")
    data = frame(metadata_response(1), 12, correlation_id)
    assert [completed.context for completed in connection.receive_data(data + data, 0.0)] == ["a"]
    assert connection.state is ConnectionState.CLOSED
    assert "a response without a request" in str(connection.error)


def test_a_malformed_body_poisons_the_connection() -> None:
    connection = make_ready()
    correlation_id = send(connection, "a")
    assert connection.receive_data(sized(struct.pack(">i", correlation_id) + b"\xff\xff"), 0.0) == []
    assert isinstance(connection.error, ProtocolError)
    assert str(connection.error).startswith("broker:9092 sent a malformed response to METADATA version 12: ")
    assert [request.context for request in connection.poison(NetworkError("gone"))] == ["a"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_stream_gives_the_same_responses_wherever_it_is_split(data: st.DataObject) -> None:
    markers = data.draw(st.lists(st.integers(0, 10_000), min_size=1, max_size=5))
    connection = make_ready()
    stream = b"".join(frame(metadata_response(marker), 12, send(connection, marker)) for marker in markers)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    completed: list[Completed] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        # Transports reuse one buffer: data kept from it must be copied.
        chunk = bytearray(stream[begin:end])
        completed += connection.receive_data(memoryview(chunk), 0.0)
        chunk[:] = b"\xaa" * len(chunk)
    assert [each.context for each in completed] == markers
    assert [each.response for each in completed] == [metadata_response(marker) for marker in markers]
    assert connection.error is None


def test_one_read_can_hold_several_frames_and_the_start_of_another() -> None:
    """Complete frames are read in place and partial ones are copied; the reader may reuse its buffer at once."""
    connection = make_ready()
    frames = [frame(metadata_response(marker), 12, send(connection, marker)) for marker in range(1, 5)]
    for cut in range(len(frames[3])):
        again = make_ready()
        for marker in range(1, 5):
            send(again, marker)
        data = bytearray(b"".join(frames[:3]) + frames[3][:cut])
        first = again.receive_data(memoryview(data), 0.0)
        data[:] = bytes(len(data))
        rest = again.receive_data(frames[3][cut:], 0.0)
        assert [each.context for each in (*first, *rest)] == [1, 2, 3, 4]
        assert [len(first), len(rest)] == [3, 1]
        assert [each.response for each in (*first, *rest)] == [metadata_response(marker) for marker in range(1, 5)]
        assert [each.size for each in (*first, *rest)] == [len(each) for each in frames]


def test_a_response_can_arrive_byte_by_byte() -> None:
    connection = make_ready()
    stream = frame(metadata_response(3), 12, send(connection, "a"))
    for byte in stream[:-1]:
        assert connection.receive_data(bytes([byte]), 0.0) == []
    assert len(connection.receive_data(stream[-1:], 0.0)) == 1


@pytest.mark.parametrize("size", [-1, -(2**31), 2**20 + 1, 2**31 - 1])
def test_an_impossible_size_poisons_the_connection(size: int) -> None:
    connection = make_ready()
    send(connection, "a")
    assert connection.receive_data(struct.pack(">i", size) + b"rest", 0.0) == []
    assert isinstance(connection.error, ProtocolError)
    assert str(size) in str(connection.error)


@pytest.mark.parametrize("size", [0, 3])
def test_a_frame_too_short_for_a_correlation_id_poisons_the_connection(size: int) -> None:
    connection = make_ready()
    send(connection, "a")
    connection.receive_data(sized(bytes(size)), 0.0)
    assert f"a response of {size} bytes" in str(connection.error)


def test_a_tls_alert_or_http_instead_of_a_response_is_reported() -> None:
    connection = make_connection()
    connection.start(0.0)
    connection.receive_data(bytes.fromhex("15030300020228"), 0.0)
    assert isinstance(connection.error, TlsError)
    assert "security_protocol to SSL" in str(connection.error)
    connection = make_connection()
    connection.start(0.0)
    connection.receive_data(b"HTTP/1.1 400 Bad Request\r\n", 0.0)
    assert "HTTP" in str(connection.error)


def test_memory_use_follows_the_bytes_received_and_not_the_claimed_size() -> None:
    connection = make_ready(make_connection(max_frame_bytes=2**31 - 1))
    send(connection, "a")
    tracemalloc.start()
    try:
        connection.receive_data(struct.pack(">i", 2**31 - 1), 0.0)
        for _ in range(100):
            connection.receive_data(bytes(1000), 0.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert connection.error is None
    # The first room, and nothing of what the size field claims.
    assert peak < 1_500_000


def test_a_large_response_can_arrive_in_many_pieces() -> None:
    connection = make_ready(make_connection(max_frame_bytes=2**24))
    response = MetadataResponse(cluster_id="x" * 30_000, brokers=[metadata_response(5).brokers[0]] * 50_000)
    stream = frame(response, 12, send(connection, "a"))
    completed: list[Completed] = []
    for begin in range(0, len(stream), 1500):
        completed += connection.receive_data(memoryview(stream)[begin : begin + 1500], 0.0)
    assert [each.size for each in completed] == [len(stream)]
    assert completed[0].response == response


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans(), st.booleans())
def test_hostile_bytes_only_poison_the_connection(chunks: list[bytes], framed: bool, ready: bool) -> None:
    connection = make_ready() if ready else make_connection()
    if ready:
        send(connection, "a")
    else:
        connection.start(0.0)
    for chunk in chunks:
        connection.receive_data(sized(chunk) if framed else chunk, 0.0)
    assert (connection.error is None) == (connection.state is not ConnectionState.CLOSED)
    assert len(connection.poison(NetworkError("end"))) == ready


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_hostile_responses_only_poison_the_connection(data: st.DataObject) -> None:
    """An almost valid response either completes its request or poisons the connection."""
    connection = make_ready()
    correlation_id = send(connection, "a")
    body = bytearray(frame(metadata_response(300), 12, correlation_id)[8:])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    completed = connection.receive_data(sized(struct.pack(">i", correlation_id) + body), 0.0)
    failed = connection.poison(NetworkError("end"))
    assert [each.context for each in completed] + [each.context for each in failed] == ["a"]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80))
def test_hostile_handshake_responses_only_poison_the_connection(body: bytes) -> None:
    connection = make_connection()
    header, _ = sent(connection.start(0.0))
    connection.receive_data(sized(struct.pack(">i", header.correlation_id) + body), 0.0)
    assert connection.poison(NetworkError("end")) == []
    assert connection.state is ConnectionState.CLOSED


def contexts(failed: list[InFlight]) -> list[object]:
    return [request.context for request in failed]


def test_poisoning_returns_the_requests_in_flight_once_and_oldest_first() -> None:
    connection = make_ready()
    for context in "abc":
        send(connection, context)
    first = NetworkError("first")
    assert contexts(connection.poison(first)) == ["a", "b", "c"]
    assert connection.state is ConnectionState.CLOSED
    assert connection.in_flight == 0
    assert connection.poison(NetworkError("second")) == []
    assert connection.eof() == []
    assert connection.expire(1e9) == []
    assert connection.error is first


def test_a_poisoned_connection_neither_sends_nor_receives() -> None:
    connection = make_ready()
    correlation_id = send(connection, "a")
    error = NetworkError("gone")
    connection.poison(error)
    assert not connection.can_send(0.0)
    with pytest.raises(NetworkError, match="gone") as raised:
        send(connection, "b")
    assert raised.value is not error
    with pytest.raises(NetworkError, match="gone"):
        connection.start(0.0)
    assert connection.receive_data(frame(metadata_response(1), 12, correlation_id), 0.0) == []
    assert connection.data_to_send() == []


def test_a_connection_can_be_poisoned_before_it_starts() -> None:
    connection = make_connection()
    assert connection.poison(NetworkError("closed")) == []
    with pytest.raises(NetworkError, match="closed"):
        connection.start(0.0)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(["send", "answer", "half", "surplus", "wrong id", "poison", "eof", "expire"]), max_size=30)
)
def test_every_request_ends_exactly_once(actions: list[str]) -> None:
    connection = make_ready()
    ended: list[object] = []
    sent_contexts: list[int] = []
    waiting: list[int] = []
    now = 0.0
    for action in actions:
        now += 1
        match action:
            case "send" if connection.can_send(now):
                sent_contexts.append(len(sent_contexts))
                waiting.append(send(connection, sent_contexts[-1], now))
            case "answer" if waiting:
                data = frame(metadata_response(1), 12, waiting.pop(0))
                ended += [each.context for each in connection.receive_data(data, now)]
            case "half" if waiting:
                data = frame(metadata_response(1), 12, waiting[0])[:9]
                ended += [each.context for each in connection.receive_data(data, now)]
            case "surplus":
                ended += [each.context for each in connection.receive_data(sized(bytes(20)), now)]
            case "wrong id":
                ended += [
                    each.context for each in connection.receive_data(frame(metadata_response(1), 12, 77_777), now)
                ]
            case "poison":
                ended += contexts(connection.poison(NetworkError("poison")))
            case "eof":
                ended += contexts(connection.eof())
            case "expire":
                ended += contexts(connection.expire(now + 100))
            case _:
                pass
    ended += contexts(connection.poison(NetworkError("end")))
    assert ended == sent_contexts


def test_a_connection_closed_before_the_first_response_hints_at_no_kafka_listener_or_tls() -> None:
    connection = make_connection()
    connection.start(0.0)
    assert connection.eof() == []
    assert isinstance(connection.error, ConnectionFailedError)
    assert "TLS" in str(connection.error)
    connection = make_connection(uses_tls=True)
    connection.start(0.0)
    connection.eof(ConnectionResetError("reset"))
    assert isinstance(connection.error, ConnectionFailedError)
    assert "client certificate" in str(connection.error)


def test_the_connection_can_end_between_or_inside_frames() -> None:
    connection = make_ready()
    connection.receive_data(frame(metadata_response(1), 12, send(connection, "served")), 0.0)
    send(connection, "a")
    assert contexts(connection.eof()) == ["a"]
    assert isinstance(connection.error, NetworkError)
    assert str(connection.error) == "broker:9092 ended the connection."

    connection = make_ready()
    data = frame(metadata_response(1), 12, send(connection, "a"))
    connection.receive_data(data[:3], 0.0)
    connection.eof()
    assert "in a response, after 3 bytes of it" in str(connection.error)

    connection = make_ready()
    data = frame(metadata_response(1), 12, send(connection, "a"))
    connection.receive_data(data[:10], 0.0)
    connection.eof(ConnectionResetError("reset by peer"))
    assert "(reset by peer) in a response, after 10 bytes of it" in str(connection.error)


def test_the_error_passed_to_eof_is_kept() -> None:
    connection = make_ready()
    error = TlsError("certificate expired")
    connection.eof(error)
    assert connection.error is error


def test_one_overdue_response_ends_the_whole_connection() -> None:
    connection = make_ready()
    send(connection, "a", 0.0, timeout=30.0)
    send(connection, "b", 1.0, timeout=10.0)
    assert connection.next_deadline() == 11.0
    assert not connection.timed_out(10.9)
    assert connection.expire(10.9) == []
    assert connection.state is ConnectionState.READY
    assert connection.timed_out(11.0)
    assert contexts(connection.expire(11.0)) == ["a", "b"]
    assert isinstance(connection.error, RequestTimedOutError)
    assert "did not answer METADATA (correlation id 2) within 10000 ms" in str(connection.error)
    assert not connection.timed_out(1e9)


def test_the_handshake_has_a_timeout() -> None:
    connection = make_connection()
    connection.start(5.0)
    assert connection.next_deadline() == 35.0
    assert connection.expire(35.0) == []
    assert connection.state is ConnectionState.CLOSED


def test_nothing_is_sent_while_throttled_and_the_throttle_end_never_decreases() -> None:
    connection = make_ready()
    ids = [send(connection, context) for context in "abc"]
    assert connection.throttled_until == -math.inf
    connection.receive_data(frame(metadata_response(1, 2000), 12, ids[0]), 10.0)
    assert connection.throttled_until == 12.0
    assert not connection.can_send(11.9)
    with pytest.raises(RuntimeError, match="throttled for"):
        send(connection, "d", 11.0)
    assert connection.can_send(12.0)
    connection.receive_data(frame(metadata_response(1, 100), 12, ids[1]), 10.5)
    assert connection.throttled_until == 12.0
    connection.receive_data(frame(metadata_response(1), 12, ids[2]), 11.0)
    assert connection.throttled_until == 12.0


@pytest.mark.parametrize(
    ("request_", "response", "first_version"),
    [
        (MetadataRequest(topics=[]), metadata_response(1, 1000), 6),
        (ProduceRequest(acks=1), ProduceResponse(throttle_time_ms=1000), 6),
        (InitProducerIdRequest(transaction_timeout_ms=1), InitProducerIdResponse(throttle_time_ms=1000), 1),
    ],
    ids=["Metadata", "Produce", "InitProducerId"],
)
def test_kip_219_throttling_applies_only_to_versions_in_which_the_broker_does_not_wait(
    request_: Request[Response], response: Response, first_version: int
) -> None:
    for version in (first_version - 1, first_version):
        connection = make_ready()
        header, _ = sent(connection.send(request_, 0.0, version=version))
        connection.receive_data(frame(response, version, header.correlation_id), 0.0)
        assert connection.can_send(0.5) == (version < first_version)


def test_a_throttled_handshake_delays_requests() -> None:
    connection = make_connection()
    header, _ = sent(connection.start(0.0))
    response = versions_response()
    response.throttle_time_ms = 1000
    connection.receive_data(frame(response, 5, header.correlation_id), 0.0)
    assert connection.state is ConnectionState.READY
    assert not connection.can_send(0.5)
    assert connection.can_send(1.0)


def test_the_client_id_may_be_none() -> None:
    connection = Connection(peer="broker:9092", client_id=None)
    header, _ = decode_request_header(b"".join(connection.start(0.0))[4:])
    assert header.client_id is None
