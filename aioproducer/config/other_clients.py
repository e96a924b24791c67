"""The names of Kafka's keys in other clients, for the hint in an error about an unknown key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OTHER_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    # librdkafka and the clients built on it.
    "compression.codec": ("compression.type", ""),
    "compression.level": ("compression.zstd.level", "each codec has its own"),
    "max.in.flight": ("max.in.flight.requests.per.connection", ""),
    "message.max.bytes": ("max.request.size", ""),
    "message.send.max.retries": ("retries", ""),
    "message.timeout.ms": ("delivery.timeout.ms", ""),
    "metadata.broker.list": ("bootstrap.servers", ""),
    "partitioner": ("partitioner.class", ""),
    "queue.buffering.max.kbytes": ("buffer.memory", "in bytes"),
    "queue.buffering.max.ms": ("linger.ms", ""),
    "request.required.acks": ("acks", ""),
    "sasl.mechanisms": ("sasl.mechanism", ""),
    "enable.sasl.oauthbearer.unsecure.jwt": ("sasl.token.provider", "a function that returns the token"),
    "oauth.cb": ("sasl.token.provider", "also for an async function"),
    "oauthbearer.token.refresh.cb": ("sasl.token.provider", "a function that returns the token"),
    "sasl.oauthbearer.assertion.jwt.template.file": ("sasl.oauthbearer.assertion.template.file", ""),
    "sasl.oauthbearer.assertion.private.key.pem": ("sasl.oauthbearer.assertion.private.key.file", "a file"),
    "sasl.oauthbearer.client.id": ("sasl.oauthbearer.client.credentials.client.id", ""),
    "sasl.oauthbearer.client.secret": ("sasl.oauthbearer.client.credentials.client.secret", ""),
    "sasl.oauthbearer.config": ("sasl.token.provider", "a function that returns the token"),
    "sasl.oauthbearer.grant.type": ("sasl.oauthbearer.jwt.retriever.class", "by the name of a class"),
    "sasl.oauthbearer.method": ("sasl.oauthbearer.token.endpoint.url", "which alone means OIDC"),
    "socket.receive.buffer.bytes": ("receive.buffer.bytes", ""),
    "socket.send.buffer.bytes": ("send.buffer.bytes", ""),
    "socket.timeout.ms": ("request.timeout.ms", ""),
    "ssl.ca.location": ("ssl.truststore.location", ""),
    "ssl.ca.pem": ("ssl.truststore.certificates", ""),
    "ssl.certificate.location": ("ssl.keystore.location", "one file with the key and the certificates"),
    "ssl.certificate.pem": ("ssl.keystore.certificate.chain", ""),
    "ssl.key.location": ("ssl.keystore.location", "one file with the key and the certificates"),
    "ssl.key.pem": ("ssl.keystore.key", ""),
    "topic.metadata.refresh.interval.ms": ("metadata.max.age.ms", ""),
    # kafka-python and aiokafka, where they differ from the above.
    "max.batch.size": ("batch.size", ""),
    "sasl.oauth.token.provider": ("sasl.token.provider", "a function that returns the token and its expiry"),
    "sasl.plain.password": ("sasl.password", ""),
    "sasl.plain.username": ("sasl.username", ""),
    "ssl.cafile": ("ssl.truststore.location", ""),
    "ssl.certfile": ("ssl.keystore.location", "one file with the key and the certificates"),
    "ssl.check.hostname": ("ssl.endpoint.identification.algorithm", "empty for no check"),
    "ssl.ciphers": ("ssl.cipher.suites", ""),
    "ssl.keyfile": ("ssl.keystore.location", "one file with the key and the certificates"),
    "ssl.password": ("ssl.key.password", ""),
}
"""The dotted name in another client -> Kafka's name, and a remark about another difference, if any."""
