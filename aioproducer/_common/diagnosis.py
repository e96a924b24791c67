"""Errors that name their probable cause and the remedy: those that new users and operators see first.

Each function takes the facts known at the failure and returns the error to raise; none raises. Sizes are bytes, times
are milliseconds, addresses are ``host:port`` as connected to.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from aioproducer._common.texts import counted, printable, were
from aioproducer.error_codes import ILLEGAL_SASL_STATE, UNSUPPORTED_SASL_MECHANISM
from aioproducer.errors import (
    AuthenticationError,
    BootstrapResolutionError,
    BufferExhaustedError,
    ConnectionFailedError,
    DeliveryTimeoutError,
    KafkaError,
    KafkaTimeoutError,
    MetadataTimeoutError,
    NetworkError,
    ProtocolError,
    RecordTooLargeError,
    TlsError,
    error_class,
)

_ADVERTISED = (
    " The cluster's metadata has this address for broker {broker} (advertised.listeners of that broker), and a "
    "bootstrap server was reached: set advertised.listeners to an address that this machine can reach, or correct the "
    "network."
)
_UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})
_TLS_RECORD_TYPES = frozenset({0x14, 0x15, 0x16, 0x17})
_RDMA_HANDSHAKE = b"\x8baio"

# OpenSSL's verify codes, X509_V_ERR_*, in ssl.SSLCertVerificationError.verify_code.
_CERTIFICATE_HINTS = {
    9: "the certificate is not valid yet: compare the clocks",
    10: "the certificate has expired: renew it on the broker",
    18: "the certificate is self-signed: put it into the trust store (ssl_truststore_location)",
    19: "its chain ends in a certificate that is not trusted: put that into the trust store (ssl_truststore_location)",
    20: "its issuer is not trusted: put the issuer's certificate into the trust store (ssl_truststore_location)",
    21: "its issuer is not trusted: put the issuer's certificate into the trust store (ssl_truststore_location)",
    62: "it was issued for another name: connect by a name in the certificate, or issue one for this name; "
    "ssl_endpoint_identification_algorithm='' disables the check",
    64: "it was issued for another address: connect by a name in the certificate, or issue one for this address; "
    "ssl_endpoint_identification_algorithm='' disables the check",
}

# Parts of ssl.SSLError.reason, in the order of the search.
_TLS_HINTS = (
    (
        ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH"),
        "The server does not speak TLS: use the broker's TLS listener, or a security_protocol without TLS (PLAINTEXT, "
        "SASL_PLAINTEXT).",
    ),
    (
        ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "ALERT_UNKNOWN_CA", "CERTIFICATE_UNKNOWN"),
        "The broker did not accept this client's certificate, or requires one (ssl.client.auth=required): set "
        "ssl_keystore_location, or ssl_keystore_certificate_chain and ssl_keystore_key, to a certificate that the "
        "broker trusts.",
    ),
    (
        ("PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE", "UNSUPPORTED_PROTOCOL"),
        "The two sides share no TLS version: compare ssl_enabled_protocols with the broker's ssl.enabled.protocols.",
    ),
    (
        ("HANDSHAKE_FAILURE", "NO_SHARED_CIPHER", "NO_CIPHERS_AVAILABLE"),
        "The two sides share no cipher suite, or the broker requires a client certificate: compare ssl_cipher_suites "
        "with the broker's, and check the broker's log.",
    ),
)


def connection_failed(
    address: str, error: OSError, *, uses_tls: bool = False, broker: int | None = None
) -> ConnectionFailedError:
    """Return the error for a connection to ``address`` that failed with ``error``.

    ``broker`` is the broker's id if the address came from the cluster's metadata, ``None`` for a bootstrap server.
    """
    advertised = "" if broker is None or broker < 0 else _ADVERTISED.format(broker=broker)
    import socket
    import ssl

    if isinstance(error, socket.gaierror):
        return ConnectionFailedError(_resolution_text(address, error) + advertised)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return tls_handshake_ended(address)
    if isinstance(error, ssl.SSLError):
        return tls_failed(address, error)
    if uses_tls and isinstance(error, ConnectionResetError | BrokenPipeError):
        return tls_handshake_ended(address)
    if isinstance(error, ConnectionRefusedError):
        check = advertised or " Check that the broker runs and that bootstrap_servers names its host and port."
        return ConnectionFailedError(f"Nothing listens at {address} (connection refused).{check}")
    if isinstance(error, TimeoutError):
        check = advertised or " Check the address in bootstrap_servers, routes and firewalls."
        return ConnectionFailedError(
            f"{address} did not respond within socket_connection_setup_timeout_ms: packets seem to be dropped.{check}"
        )
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno in _UNREACHABLE:
        check = advertised or " Check the address in bootstrap_servers and the network."
        return ConnectionFailedError(f"{address} cannot be reached from here ({reason}).{check}")
    return ConnectionFailedError(
        f"The connection to {address} failed ({reason}).{advertised or ' Check the broker and the network.'}"
    )


def _resolution_text(address: str, error: OSError) -> str:
    host = address.rpartition(":")[0] or address
    reason = error.strerror or str(error)
    return f"The host name {host!r} could not be resolved ({reason}): check its spelling and this machine's DNS."


def bootstrap_resolution_failed(errors: Mapping[str, OSError]) -> BootstrapResolutionError:
    """Return the error for ``bootstrap_servers`` without a name that resolves; ``errors`` has each address's reason."""
    reasons = "; ".join(f"{address}: {error.strerror or error}" for address, error in errors.items())
    return BootstrapResolutionError(
        f"No host name in bootstrap_servers could be resolved ({reasons}): check their spelling and this machine's DNS."
    )


def tls_failed(address: str, error: OSError) -> TlsError:
    """Return the error for a TLS handshake with ``address`` that failed with ``error``, an ``ssl.SSLError``."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        hint = _CERTIFICATE_HINTS.get(error.verify_code, "check the certificate and the trust store")
        return TlsError(f"The certificate of {address} was rejected ({printable(error.verify_message)}): {hint}.")
    reason = printable((isinstance(error, ssl.SSLError) and error.reason) or str(error))
    for parts, hint in _TLS_HINTS:
        if any(part in reason for part in parts):
            return TlsError(f"The TLS handshake with {address} failed ({reason}). {hint}")
    return TlsError(f"The TLS handshake with {address} failed ({reason}). Check the broker's log.")


def tls_handshake_ended(address: str) -> ConnectionFailedError:
    """Return the error for a peer that ends the TLS handshake, as Kafka does on a listener without TLS."""
    return ConnectionFailedError(
        f"{address} ended the connection during the TLS handshake. Either this listener does not speak TLS: use the "
        "broker's TLS listener, or a security_protocol without TLS (PLAINTEXT, SASL_PLAINTEXT); or the broker has just "
        "stopped."
    )


def ended_before_first_answer(
    address: str, *, uses_tls: bool, exception: Exception | None = None
) -> ConnectionFailedError:
    """Return the error for a peer that ends the connection before its first response, as TLS listeners do."""
    because = f" ({exception})" if exception is not None else ""
    if uses_tls:
        return ConnectionFailedError(
            f"{address} ended the connection before it answered the first request{because}. The listener may require a "
            "client certificate (ssl.client.auth=required): check the broker's listeners and its log."
        )
    return ConnectionFailedError(
        f"{address} ended the connection before it answered the first request{because}. Often this listener speaks "
        "TLS, and the client's security_protocol is one without TLS (PLAINTEXT, SASL_PLAINTEXT): check listeners in "
        "the broker's configuration. Otherwise the broker has just stopped."
    )


def ended_before_first_service(
    address: str, request: str, *, uses_tls: bool, exception: Exception | None = None
) -> NetworkError:
    """Return the error for a peer that tells its versions and ends the connection at the first ``request``."""
    because = f" ({exception})" if exception is not None else ""
    return NetworkError(
        f"{address} ended the connection before it answered {request}, the first request after ApiVersions{because}. "
        f"Often this listener requires SASL, and the client's security_protocol is {_protocol(False, uses_tls)}. "
        "Otherwise the broker has just stopped."
    )


def sasl_required(address: str, mechanisms: Sequence[str], *, uses_tls: bool) -> AuthenticationError:
    """Return the error for a listener that requires SASL, for a client that does not use it."""
    return _authentication_error(
        ILLEGAL_SASL_STATE,
        f"The listener {address} requires SASL, but the client's security_protocol is {_protocol(False, uses_tls)}: "
        f"set it to {_protocol(True, uses_tls)}, and set sasl_mechanism to one that the listener offers "
        f"({_listed(mechanisms)}).",
    )


def sasl_not_offered(address: str, *, uses_tls: bool) -> AuthenticationError:
    """Return the error for a listener without SASL, for a client that uses it."""
    return _authentication_error(
        ILLEGAL_SASL_STATE,
        f"The listener {address} does not use SASL, but the client's security_protocol is {_protocol(True, uses_tls)}: "
        f"set it to {_protocol(False, uses_tls)}, or use a listener with SASL.",
    )


def mechanism_not_offered(address: str, mechanism: str, mechanisms: Sequence[str]) -> AuthenticationError:
    """Return the error for a listener that has other SASL ``mechanisms`` than the client's."""
    return _authentication_error(
        UNSUPPORTED_SASL_MECHANISM,
        f"The broker {address} does not accept the SASL mechanism {mechanism}; it offers: {_listed(mechanisms)}. Set "
        "sasl_mechanism to one of these.",
    )


def _authentication_error(code: int, text: str) -> AuthenticationError:
    error = error_class(code)(text)
    assert isinstance(error, AuthenticationError)
    return error


def _listed(mechanisms: Sequence[str]) -> str:
    return printable(", ".join(mechanisms)) or "none"


def _protocol(uses_sasl: bool, uses_tls: bool) -> str:
    """Return the ``security_protocol``."""
    if uses_sasl:
        return "SASL_SSL" if uses_tls else "SASL_PLAINTEXT"
    return "SSL" if uses_tls else "PLAINTEXT"


def unexpected_frame(address: str, start: bytes, limit: int) -> ProtocolError | TlsError:
    """Return the error for a ``start`` of four bytes that is no size of a Kafka response of at most ``limit`` bytes."""
    if start[:4] == b"HTTP":
        return ProtocolError(
            f"{address} answered in HTTP, so it is no Kafka listener: check host and port in bootstrap_servers."
        )
    if len(start) >= 2 and start[0] in _TLS_RECORD_TYPES and start[1] == 3:
        return TlsError(
            f"{address} speaks TLS, but this client does not: set security_protocol to SSL (SASL_SSL with SASL), or "
            "use a listener without TLS."
        )
    if start[:4] == _RDMA_HANDSHAKE:
        return ProtocolError(
            f"{address} is an RDMA listener, but this client speaks TCP: use the port of a TCP listener, or set "
            "transport='rdma'."
        )
    size = int.from_bytes(start[:4], "big", signed=True)
    return ProtocolError(
        f"{address} announced a response of {size} bytes, but 0 to {limit} are possible: the server is no Kafka "
        "listener, or a device on the way alters the bytes."
    )


def topic_unknown(
    topic: str, waited_ms: float, *, metadata_seen: bool, throttling: str = "", cause: KafkaError | None = None
) -> MetadataTimeoutError:
    """Return the error for a send that waited ``max_block_ms`` for the partitions of ``topic``.

    Args:
        metadata_seen: the cluster has answered, so only the topic is missing. Otherwise no broker was reached, and
            ``cause`` is the last error.
        throttling: the text of ``throttled`` if all brokers throttle the client.
    """
    because = f" The last error was: {cause}" if cause is not None else ""
    if metadata_seen:
        error = MetadataTimeoutError(
            f"Topic {topic!r} was not found in the cluster within {waited_ms:.0f} ms (max_block_ms): check "
            f"the spelling, create it, or set auto.create.topics.enable on the brokers.{throttling}{because}"
        )
    else:
        error = MetadataTimeoutError(
            f"No broker returned the partitions of topic {topic!r} within {waited_ms:.0f} ms (max_block_ms): check "
            f"that the cluster can be reached.{throttling}{because}"
        )
    error.__cause__ = cause
    return error


def partition_unknown(topic: str, partition: int, count: int, waited_ms: float) -> MetadataTimeoutError:
    """Return the error for a send that waited for ``partition`` of a ``topic`` that has only ``count``."""
    return MetadataTimeoutError(
        f"Topic {topic!r} has no partition {partition}: after {waited_ms:.0f} ms (max_block_ms) it has {count}, "
        "numbered from 0. Choose one of them, or add partitions."
    )


def serializer_late(topic: str, waited_ms: float) -> KafkaTimeoutError:
    """Return the error for a send that waited ``max_block_ms`` for its async serializer."""
    return KafkaTimeoutError(
        f"A serializer did not finish a record for topic {topic!r} within {waited_ms:.0f} ms (max_block_ms): make the "
        "serializer faster, or raise max_block_ms."
    )


def held_up(topic: str, waited_ms: float) -> KafkaTimeoutError:
    """Return the error for a complete record that waited for earlier records: a topic's records keep their order."""
    return KafkaTimeoutError(
        f"A record for topic {topic!r} waited {waited_ms:.0f} ms (max_block_ms) for earlier records of the topic, "
        "which wait for a serializer: records of a topic keep their order. Make the serializer faster, or raise "
        "max_block_ms."
    )


def record_too_large(topic: str, size: int, limit: int, limit_key: str) -> RecordTooLargeError:
    """Return the error for a record of ``size`` bytes in its batch; ``limit`` is the value of ``limit_key``."""
    return RecordTooLargeError(
        f"The record for topic {topic!r} takes {size} bytes uncompressed, {size - limit} more than {limit_key} allows "
        f"({limit}): send smaller records, or raise {limit_key} and also the topic's max.message.bytes."
    )


def buffer_full(
    size: int, buffer_memory: int, waited_ms: float, waiters: int, throttling: str = ""
) -> BufferExhaustedError:
    """Return the error for a send that waited ``max_block_ms`` for ``size`` bytes, with ``waiters`` sends queued.

    ``throttling`` is the text of ``throttled`` if a broker throttles the client.
    """
    return BufferExhaustedError(
        f"No room for {counted(size, 'byte')} in buffer_memory ({buffer_memory} bytes) within {waited_ms:.0f} ms "
        f"(max_block_ms), with {counted(waiters, 'send')} waiting: records arrive faster than the brokers accept them. "
        "Call `await producer.drain()` between sends, raise buffer_memory, or check the brokers."
        f"{throttling}"
    )


def line_full(size: int, waiting_bytes: int, buffer_memory: int, waiters: int) -> BufferExhaustedError:
    """Return the error for a send of ``size`` bytes that cannot be queued: waiting sends hold ``waiting_bytes``."""
    return BufferExhaustedError(
        f"The queue of waiting records has no room for {counted(size, 'byte')}: {counted(waiters, 'send')} with "
        f"{waiting_bytes} bytes already {'waits' if waiters == 1 else 'wait'} for memory or for metadata "
        f"(buffer_memory: {buffer_memory} bytes). Await the sends, or call `await producer.drain()` between them."
    )


def throttled(broker: object, left_ms: float) -> str:
    """Return a sentence, with a leading space: the broker throttles the client for ``left_ms`` more (KIP-219)."""
    return (
        f" Broker {broker} throttles this client for another {left_ms:.0f} ms: send less, or raise the quota of this "
        "client or user (producer_byte_rate, request_percentage)."
    )


def delivery_timed_out(
    topic_partition: object,
    count: int,
    elapsed_ms: float,
    *,
    sent: bool,
    may_have_been_written: bool,
    gone: bool = False,
    throttling: str = "",
    last_error: KafkaError | None = None,
) -> DeliveryTimeoutError:
    """Return the error for ``count`` records of one batch that were not acknowledged in time.

    Args:
        sent: they were sent at least once.
        may_have_been_written: the outcome of an attempt is unknown.
        gone: the cluster no longer has the partition.
        throttling: the text of ``throttled`` if the partition's leader throttles the client.
    """
    if may_have_been_written:
        attempts, was_sent = "They were sent, so they may be in the log nevertheless.", "They were sent before."
    elif sent:
        attempts = was_sent = "They were sent, and rejected every time before anything was written."
    else:
        attempts, was_sent = (
            "They were never sent: the partition's leader could not be reached, earlier batches blocked them, or no "
            "broker assigned a producer id (INIT_PRODUCER_ID).",
            "They were never sent.",
        )
    if gone:
        fate = (
            "The cluster no longer has this partition: the topic was deleted, or created again with fewer partitions. "
            f"{was_sent}"
        )
    elif throttling and not sent:
        fate = was_sent
    else:
        fate = attempts
    because = f" The last error was: {last_error}" if last_error is not None else ""
    error = DeliveryTimeoutError(
        f"{counted(count, 'record')} for {topic_partition} {were(count)} not acknowledged within {elapsed_ms:.0f} ms "
        f"(delivery_timeout_ms). {fate}{throttling}{because}"
    )
    error.__cause__ = last_error
    error.may_have_been_written = may_have_been_written
    return error


def nearest(name: str, known: Sequence[str]) -> str:
    """Return ``did you mean ...?`` for the most similar name in ``known``, or an empty string."""
    import difflib

    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {found[0]!r}?" if found else ""
