"""Error messages that explain why something does not work."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from aioproducer._common import diagnosis
from aioproducer.errors import (
    BootstrapResolutionError,
    BufferExhaustedError,
    ConnectionFailedError,
    DeliveryTimeoutError,
    KafkaError,
    MetadataTimeoutError,
    NetworkError,
    ProtocolError,
    RecordTooLargeError,
    TlsError,
    error_class,
)

ADDRESS = "kafka.example:9092"


def ssl_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


def verify_error(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    error.verify_message = message
    return error


def test_a_refused_connection_names_the_address() -> None:
    error = diagnosis.connection_failed(ADDRESS, ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
    assert type(error) is ConnectionFailedError
    assert str(error) == (
        "Nothing listens at kafka.example:9092 (connection refused). Check that the broker runs and that "
        "bootstrap_servers names its host and port."
    )


@pytest.mark.parametrize(
    "cause",
    [
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        TimeoutError(),
        OSError(errno.EHOSTUNREACH, "No route to host"),
        OSError(errno.EPERM, "Operation not permitted"),
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_an_unreachable_advertised_listener_is_identified_as_such(cause: OSError) -> None:
    error = diagnosis.connection_failed("10.0.0.7:9092", cause, broker=3)
    assert "broker 3 (advertised.listeners of that broker)" in str(error)
    assert "10.0.0.7" in str(error)
    assert "bootstrap_servers" not in str(error)
    for bootstrap in (None, -1):
        assert "advertised" not in str(diagnosis.connection_failed("10.0.0.7:9092", cause, broker=bootstrap))


def test_a_connect_timeout_and_a_missing_route_are_explained() -> None:
    assert "packets seem to be dropped" in str(diagnosis.connection_failed(ADDRESS, TimeoutError()))
    text = str(diagnosis.connection_failed(ADDRESS, OSError(errno.ENETUNREACH, "Network is unreachable")))
    assert "cannot be reached from here (Network is unreachable)" in text
    text = str(diagnosis.connection_failed(ADDRESS, OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")))
    assert "(Cannot assign requested address). Check the broker and the network." in text
    assert "(OSError)" in str(diagnosis.connection_failed(ADDRESS, OSError()))


def test_a_name_that_does_not_resolve_is_explained() -> None:
    failure = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert str(diagnosis.connection_failed("kafak.example:9092", failure)) == (
        "The host name 'kafak.example' could not be resolved (Name or service not known): check its spelling and this "
        "machine's DNS."
    )
    error = diagnosis.bootstrap_resolution_failed({"a:9092": failure, "b:9092": OSError("strange")})
    assert isinstance(error, BootstrapResolutionError)
    assert error.fatal
    assert "(a:9092: Name or service not known; b:9092: strange)" in str(error)


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        (ssl_error("WRONG_VERSION_NUMBER"), "does not speak TLS"),
        (ssl_error("RECORD_LAYER_FAILURE"), "does not speak TLS"),
        (ssl_error("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "ssl_keystore_location"),
        (ssl_error("SSLV3_ALERT_BAD_CERTIFICATE"), "did not accept this client's certificate"),
        (ssl_error("TLSV1_ALERT_PROTOCOL_VERSION"), "ssl_enabled_protocols"),
        (ssl_error("SSLV3_ALERT_HANDSHAKE_FAILURE"), "ssl_cipher_suites"),
        (ssl_error("SOMETHING_NEW"), "(SOMETHING_NEW). Check the broker's log"),
        (verify_error(62, "Hostname mismatch"), "issued for another name"),
        (verify_error(20, "unable to get local issuer certificate"), "ssl_truststore_location"),
        (verify_error(10, "certificate has expired"), "renew it"),
        (verify_error(7, "certificate signature failure"), "check the certificate"),
    ],
    ids=str,
)
def test_a_failed_tls_handshake_is_explained(failure: ssl.SSLError, advice: str) -> None:
    error = diagnosis.connection_failed(ADDRESS, failure, uses_tls=True)
    assert type(error) is TlsError
    assert not error.retriable
    assert advice in str(error)
    assert ADDRESS in str(error)


@pytest.mark.parametrize(
    "failure",
    [ssl.SSLEOFError(8, "EOF"), ssl.SSLZeroReturnError(6, "closed"), ConnectionResetError(), BrokenPipeError()],
)
def test_a_tls_client_on_a_plaintext_listener_is_explained(failure: OSError) -> None:
    error = diagnosis.connection_failed(ADDRESS, failure, uses_tls=True)
    assert error.retriable
    assert "this listener does not speak TLS" in str(error)
    assert "security_protocol without TLS (PLAINTEXT, SASL_PLAINTEXT)" in str(error)


def test_a_plaintext_client_on_a_tls_listener_is_explained() -> None:
    assert "Often this listener speaks TLS" in str(diagnosis.ended_before_first_answer(ADDRESS, uses_tls=False))
    assert "ssl.client.auth=required" in str(diagnosis.ended_before_first_answer(ADDRESS, uses_tls=True))
    alert = diagnosis.unexpected_frame(ADDRESS, b"\x15\x03\x03\x00\x02\x02\x46", 1000)
    assert type(alert) is TlsError
    assert "set security_protocol to SSL (SASL_SSL with SASL)" in str(alert)


@pytest.mark.parametrize(
    ("uses_tls", "plain", "sasl"), [(False, "PLAINTEXT", "SASL_PLAINTEXT"), (True, "SSL", "SASL_SSL")]
)
def test_a_client_and_a_listener_that_differ_in_sasl_are_explained(uses_tls: bool, plain: str, sasl: str) -> None:
    required = diagnosis.sasl_required(ADDRESS, ["PLAIN"], uses_tls=uses_tls)
    assert f"security_protocol is {plain}: set it to {sasl}" in str(required)
    refused = diagnosis.sasl_not_offered(ADDRESS, uses_tls=uses_tls)
    assert f"security_protocol is {sasl}: set it to {plain}" in str(refused)
    ended = diagnosis.ended_before_first_service(ADDRESS, "METADATA", uses_tls=uses_tls)
    assert f"requires SASL, and the client's security_protocol is {plain}" in str(ended)
    assert {type(required), type(refused)} == {error_class(34)}
    assert (required.fatal, required.retriable) == (False, False)
    assert ended.retriable


def test_a_listener_that_is_not_kafka_is_explained() -> None:
    http = diagnosis.unexpected_frame(ADDRESS, b"HTTP/1.1 400 Bad Request", 1000)
    assert isinstance(http, ProtocolError)
    assert "answered in HTTP" in str(http)
    negative = diagnosis.unexpected_frame(ADDRESS, b"\xff\xff\xff\xff", 1000)
    assert isinstance(negative, ProtocolError)
    assert "a response of -1 bytes, but 0 to 1000 are possible" in str(negative)


def test_a_missing_topic_is_explained() -> None:
    error = diagnosis.topic_unknown("clikcs", 60000.0, metadata_seen=True)
    assert isinstance(error, MetadataTimeoutError)
    assert "Topic 'clikcs' was not found in the cluster within 60000 ms (max_block_ms): check the spelling" in str(
        error
    )
    assert error.__cause__ is None


def test_an_unresponsive_cluster_is_distinguished_from_a_missing_topic() -> None:
    cause = diagnosis.connection_failed(ADDRESS, ConnectionRefusedError())
    error = diagnosis.topic_unknown("clicks", 500, metadata_seen=False, cause=cause)
    assert "No broker returned the partitions of topic 'clicks'" in str(error)
    assert "Nothing listens at kafka.example:9092" in str(error)
    assert error.__cause__ is cause


def test_a_missing_partition_is_explained() -> None:
    assert "has no partition 7" in str(diagnosis.partition_unknown("clicks", 7, 3, 100))
    assert "it has 3, numbered from 0" in str(diagnosis.partition_unknown("clicks", 7, 3, 100))


def test_a_record_that_is_too_large_names_the_excess_and_the_limiting_key() -> None:
    error = diagnosis.record_too_large("clicks", 1048600, 1048576, "max_request_size")
    assert isinstance(error, RecordTooLargeError)
    assert error.code == 10
    assert "takes 1048600 bytes uncompressed, 24 more than max_request_size allows (1048576)" in str(error)


def test_a_full_buffer_states_the_wait_and_the_number_of_waiting_records() -> None:
    error = diagnosis.buffer_full(100, 33554432, 60000, 12)
    assert isinstance(error, BufferExhaustedError)
    assert "(33554432 bytes) within 60000 ms (max_block_ms), with 12 sends waiting" in str(error)
    error = diagnosis.line_full(100, 33554400, 33554432, 12)
    assert isinstance(error, BufferExhaustedError)
    assert "12 sends with 33554400 bytes already wait" in str(error)


@pytest.mark.parametrize(
    ("sent", "unknown", "fate"),
    [
        (True, True, "may be in the log nevertheless"),
        (True, False, "were sent, and rejected every time before anything was written"),
        (False, False, "were never sent"),
        # A part of a batch that was sent as a whole.
        (False, True, "may be in the log nevertheless"),
    ],
)
def test_a_delivery_timeout_states_whether_the_record_was_sent(sent: bool, unknown: bool, fate: str) -> None:
    last: KafkaError = NetworkError()
    error = diagnosis.delivery_timed_out(
        "clicks-3", 17, 120000, sent=sent, may_have_been_written=unknown, last_error=last
    )
    assert error.may_have_been_written is unknown
    assert isinstance(error, DeliveryTimeoutError)
    assert "17 records for clicks-3 were not acknowledged within 120000 ms (delivery_timeout_ms)" in str(error)
    assert fate in str(error)
    assert str(last) in str(error)
    assert error.__cause__ is last
    assert diagnosis.delivery_timed_out("clicks-3", 1, 1, sent=sent, may_have_been_written=unknown).__cause__ is None


@pytest.mark.parametrize(
    ("sent", "unknown", "fate"),
    [
        (True, True, "They were sent before."),
        (True, False, "rejected every time before anything was written."),
        (False, False, "They were never sent."),
    ],
)
def test_a_delivery_timeout_states_that_the_partition_is_gone(sent: bool, unknown: bool, fate: str) -> None:
    error = diagnosis.delivery_timed_out("clicks-3", 17, 120000, sent=sent, may_have_been_written=unknown, gone=True)
    assert "no longer has this partition: the topic was deleted, or created again with fewer" in str(error)
    assert fate in str(error)


def test_the_nearest_name_is_suggested() -> None:
    assert diagnosis.nearest("liner_ms", ["linger_ms", "acks"]) == "did you mean 'linger_ms'?"
    assert diagnosis.nearest("xyzzy", ["linger_ms", "acks"]) == ""
