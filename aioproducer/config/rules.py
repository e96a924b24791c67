"""The rules between keys, from ``ProducerConfig.postProcessParsedConfig`` and ``KafkaProducer`` of Kafka 4.4.

Each function takes the parsed ``values`` by dotted name and changes them in place. ``explicit`` contains the names that
the user gave. All of them raise ``ConfigurationError``.
"""

from __future__ import annotations

import re
from collections.abc import Container, MutableMapping

from aioproducer.config.definition import Status, Value, logger
from aioproducer.config.own_keys import OWN_KEYS
from aioproducer.config.plugins import (
    INTERCEPTOR,
    PARTITIONER,
    SERIALIZER,
    SSL_ENGINE_FACTORY,
    load_plugin,
    load_token_provider,
)
from aioproducer.config.security_keys import SASL_KEYS
from aioproducer.errors import ConfigurationError

Values = MutableMapping[str, Value]

JMX_REPORTER = "org.apache.kafka.common.metrics.JmxReporter"
_MAX_INT = 2**31 - 1
# Kafka encodes the length of a string in two bytes.
_MAX_STRING = 2**15 - 1
_ALL_REPLICAS = -1
_MAX_IN_FLIGHT_WITH_IDEMPOTENCE = 5
_TLS_VERSIONS = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
_SSL_STORE_KEYS = (
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.engine.factory.class",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
)
# Keys without effect have a line of their own in the log.
_SASL_NAMES = tuple(
    key.name
    for key in (*SASL_KEYS, *OWN_KEYS)
    if key.name.startswith("sasl.") and key.status is not Status.WITHOUT_EFFECT
)


def integer(values: Values, name: str) -> int:
    """Return the parsed value of ``name``, a key of a whole-number type."""
    value = values[name]
    assert isinstance(value, int)
    return value


def strings(values: Values, name: str) -> tuple[str, ...]:
    """Return the parsed value of ``name``, a list of strings."""
    items = values[name]
    assert isinstance(items, tuple)
    for item in items:
        if not isinstance(item, str):
            raise ConfigurationError(f"{name} must contain only strings, not {item!r}")
    return items


def refuse_unsupported(values: Values) -> None:
    """Reject what Kafka's producer supports and this one does not: two-phase commits and metric reporters."""
    if values["transaction.two.phase.commit.enable"]:
        raise ConfigurationError(
            "transaction.two.phase.commit.enable: two-phase commits are not supported, as Kafka 4.4 itself does not "
            "enable them; remove the key"
        )
    others = [reporter for reporter in strings(values, "metric.reporters") if reporter != JMX_REPORTER]
    if others:
        raise ConfigurationError(
            f"metric.reporters: Python cannot load {', '.join(others)}; read metrics(), or use hooks"
        )


def resolve_security(values: Values, explicit: Container[str], context: object) -> None:
    """Convert ``security.protocol`` to upper case; with an ``ssl_context`` it is SSL unless given."""
    protocol = str(values["security.protocol"]).upper()
    stores = ", ".join(name for name in _SSL_STORE_KEYS if name in explicit)
    if context is not None:
        import ssl

        if not isinstance(context, ssl.SSLContext):
            raise ConfigurationError(f"ssl_context must be an ssl.SSLContext, not {context!r}")
        if "security.protocol" not in explicit:
            protocol = "SSL"
        elif not protocol.endswith("SSL"):
            raise ConfigurationError(f"ssl_context needs security.protocol SSL or SASL_SSL, not {protocol}")
        if stores:
            raise ConfigurationError(f"ssl_context replaces {stores}: set only one of them")
    elif not protocol.endswith("SSL") and stores:
        # No error: a file that several clients share may have such keys.
        logger.warning(
            "security.protocol is %s: connections are not encrypted, and these keys have no effect: %s",
            protocol,
            stores,
        )
    logins = ", ".join(name for name in _SASL_NAMES if name in explicit and values[name] is not None)
    if logins and not protocol.startswith("SASL"):
        logger.warning(
            "security.protocol is %s: connections are not authenticated by SASL, and these keys have no effect: %s. "
            "security.protocol SASL_SSL uses them",
            protocol,
            logins,
        )
    values["security.protocol"] = protocol
    unknown = [version for version in strings(values, "ssl.enabled.protocols") if version not in _TLS_VERSIONS]
    if unknown:
        raise ConfigurationError(
            f"ssl.enabled.protocols must contain only {', '.join(_TLS_VERSIONS)}, not {', '.join(unknown)}"
        )
    algorithm = str(values["ssl.endpoint.identification.algorithm"]).lower()
    if algorithm not in ("", "https"):
        raise ConfigurationError(f"ssl.endpoint.identification.algorithm must be https or empty, not {algorithm!r}")
    values["ssl.endpoint.identification.algorithm"] = algorithm


def resolve_backoffs(values: Values, explicit: Container[str]) -> None:
    """Keep a given ``reconnect.backoff.ms`` constant unless ``reconnect.backoff.max.ms`` is given; warn of maxima."""
    if "reconnect.backoff.ms" in explicit and "reconnect.backoff.max.ms" not in explicit:
        values["reconnect.backoff.max.ms"] = values["reconnect.backoff.ms"]
    for first, greatest in (
        ("retry.backoff.ms", "retry.backoff.max.ms"),
        ("socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms"),
    ):
        if integer(values, first) > integer(values, greatest):
            logger.warning(
                "%s (%s) is greater than %s (%s): %s is always used",
                first,
                values[first],
                greatest,
                values[greatest],
                values[greatest],
            )


def resolve_idempotence(values: Values, explicit: Container[str]) -> None:
    """Convert ``acks`` to a number, and disable idempotence if other keys exclude it: an error if it is requested."""
    acks = _ALL_REPLICAS if values["acks"] == "all" else int(str(values["acks"]))
    values["acks"] = acks
    if not values["enable.idempotence"]:
        return
    asked_for = "enable.idempotence" in explicit
    if values["retries"] == 0:
        if asked_for:
            raise ConfigurationError("enable.idempotence needs retries above 0, not 0: remove retries")
        logger.info("idempotence is off because retries is 0")
        values["enable.idempotence"] = False
    if acks != _ALL_REPLICAS:
        if asked_for:
            raise ConfigurationError(f"enable.idempotence needs acks=all, not {acks}: remove acks")
        logger.info("idempotence is off because acks is %s, not all", acks)
        values["enable.idempotence"] = False
    in_flight = integer(values, "max.in.flight.requests.per.connection")
    if in_flight > _MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
        raise ConfigurationError(
            f"max.in.flight.requests.per.connection must be at most {_MAX_IN_FLIGHT_WITH_IDEMPOTENCE} with "
            f"idempotence, not {in_flight}: lower it, or set enable.idempotence to false"
        )


def require_idempotence_for_transactions(values: Values) -> None:
    """Reject a transactional id without idempotence, which ``resolve_idempotence`` has decided on."""
    if values["transactional.id"] is None or values["enable.idempotence"]:
        return
    raise ConfigurationError(
        "transactional.id needs idempotence: remove enable.idempotence, acks and retries, or set them to true, all and "
        "a number above 0"
    )


def resolve_delivery_timeout(values: Values, explicit: Container[str]) -> None:
    """Ensure that ``delivery.timeout.ms`` covers at least a full linger and one request (KIP-91)."""
    linger, request = integer(values, "linger.ms"), integer(values, "request.timeout.ms")
    least = min(min(linger, _MAX_INT) + request, _MAX_INT)
    if integer(values, "delivery.timeout.ms") >= least:
        return
    if "delivery.timeout.ms" in explicit:
        raise ConfigurationError(
            f"delivery.timeout.ms must be at least linger.ms + request.timeout.ms ({linger} + {request} = {least}), "
            f"not {values['delivery.timeout.ms']}"
        )
    logger.warning("delivery.timeout.ms is raised to linger.ms + request.timeout.ms = %s", least)
    values["delivery.timeout.ms"] = least


def resolve_plugins(values: Values) -> None:
    """Load the objects of the class-name keys."""
    for name, kind in (
        ("key.serializer", SERIALIZER),
        ("value.serializer", SERIALIZER),
        ("partitioner.class", PARTITIONER),
        ("ssl.engine.factory.class", SSL_ENGINE_FACTORY),
    ):
        if values[name] is not None:
            values[name] = load_plugin(name, values[name], kind)
    if values["sasl.token.provider"] is not None:
        values["sasl.token.provider"] = load_token_provider(values["sasl.token.provider"])
    interceptors = values["interceptor.classes"]
    assert isinstance(interceptors, tuple)
    values["interceptor.classes"] = tuple(
        load_plugin("interceptor.classes", interceptor, INTERCEPTOR) for interceptor in interceptors
    )


def require_memory(values: Values) -> None:
    """Reject a buffer of 0 bytes (Java accepts it, and then every record is too large)."""
    if not integer(values, "buffer.memory"):
        raise ConfigurationError("buffer.memory must be at least 1 byte, not 0: no record would fit")


def require_time_to_connect(values: Values) -> None:
    """Reject setup timeouts of 0 and less (Java accepts them, and then never connects)."""
    for name in ("socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms"):
        if integer(values, name) < 1:
            raise ConfigurationError(f"{name} must be at least 1 ms, not {values[name]}: every connection would fail")


def check_client_id(values: Values) -> None:
    """Check that the client id, which every request contains, has at most 32,767 bytes of UTF-8."""
    client_id = str(values["client.id"])
    try:
        size = len(client_id.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"client.id cannot be encoded in UTF-8: {error}") from None
    if size > _MAX_STRING:
        raise ConfigurationError(f"client.id must have at most {_MAX_STRING} bytes, not {size}")


def require_rack(values: Values) -> None:
    """Reject rack-aware partitioning without a rack."""
    if values["partitioner.rack.aware"] and not values["client.rack"]:
        raise ConfigurationError("partitioner.rack.aware needs client.rack: set it to the zone this client runs in")


_ADDRESS = r"(?:[0-9a-zA-Z\-%._]*://)?(?:\[([0-9a-zA-Z\-%._:]+)\]|([0-9a-zA-Z\-%._]+)):([0-9]+)"
_GREATEST_PORT = 65535


def bootstrap_address(server: str) -> tuple[str, int]:
    """Return host and port of one entry of ``bootstrap.servers``; as in Java, a scheme is ignored."""
    match = re.fullmatch(_ADDRESS, server, re.ASCII)
    if match is None:
        host = server.rpartition("://")[2]
        if host.count(":") > 1 and "[" not in host:
            hint = "put an IPv6 address in brackets: [::1]:9092"
        elif host and ":" not in host.rpartition("]")[2]:
            hint = f"the port is missing; with Kafka's default port it is {server}:9092"
        else:
            hint = "use host:port"
        raise ConfigurationError(f"bootstrap.servers: {server!r} is no address: {hint}")
    port = int(match[3])
    if not 0 < port <= _GREATEST_PORT:
        raise ConfigurationError(f"bootstrap.servers: the port in {server!r} must be between 1 and {_GREATEST_PORT}")
    return match[1] or match[2], port
