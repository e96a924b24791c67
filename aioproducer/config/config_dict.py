"""The types of all keys as keyword arguments, for type checkers and editors.

This file is generated from the definition of the keys, and tests/config/test_config_dict.py compares the two:

    python -m aioproducer.config.config_dict_source > aioproducer/config/config_dict.py

The types are those of Python: a number is no ``str``, so that ``linger_ms="five"`` is found. At run time a ``str`` with
a number or a placeholder is accepted too; mappings and properties files have such values.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Literal, TypedDict

from aioproducer.config.definition import Password
from aioproducer.config.value_types import (
    DeserializerValue,
    EngineFactoryValue,
    InterceptorValue,
    PartitionerValue,
    PasswordValue,
    SerializerValue,
    TokenProviderValue,
)


class ClientConfigDict(TypedDict, total=False):
    """The keys about connections that every client has."""

    bootstrap_resolve_timeout_ms: int
    """Without effect. Milliseconds for which names in bootstrap.servers that do not resolve are retried; 0: only one
    attempt (KIP-909). Java resolves names in the constructor; here names are resolved with every attempt to connect.
    Calls that wait for a name that does not resolve fail after max.block.ms, with that error. Default: `0`.
    """

    bootstrap_servers: str | Sequence[str]
    """Some brokers of the cluster, as host:port separated by commas; they return the others. IPv6 addresses need
    brackets; every address needs a port. Required.
    """

    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"]
    """use_all_dns_ips: every address of a host name is tried in turn; resolve_canonical_bootstrap_servers_only:
    bootstrap names are replaced by their canonical names first. Default: `use_all_dns_ips`.
    """

    client_id: str
    """Name of this producer in requests, for the brokers' quotas, logs and metrics. If not given: producer-1,
    producer-2, ... within the process. Default: "".
    """

    config_providers: str | Sequence[str]
    """Aliases of the providers that replace ${alias:path:key} in values. Each has its class in
    config.providers.ALIAS.class: Kafka's EnvVarConfigProvider, FileConfigProvider or DirectoryConfigProvider. A
    placeholder that cannot be resolved is an error; Java leaves it unchanged. Default: empty.
    """

    connections_max_idle_ms: int
    """Milliseconds without traffic after which a connection is closed; negative: never. Default: `540000`."""

    metadata_cluster_check_enable: bool
    """Send the expected cluster id and node id with ApiVersions, so that a broker can reject a misrouted connection
    (KIP-1242). Default: `true`.
    """

    metadata_max_age_ms: int
    """Milliseconds after which metadata is refreshed even without any sign of a change. Default: `300000`."""

    metadata_recovery_rebootstrap_trigger_ms: int
    """Milliseconds without fresh metadata after which the producer starts again from bootstrap.servers (KIP-1102).
    Default: `300000`.
    """

    metadata_recovery_strategy: Literal["REBOOTSTRAP", "NONE", "rebootstrap", "none"]
    """rebootstrap: start again from bootstrap.servers if no known broker can be reached; none: keep trying the known
    brokers (KIP-899). Default: `rebootstrap`.
    """

    reconnect_backoff_max_ms: int
    """Maximum wait between attempts to connect to one broker, in milliseconds. If only reconnect.backoff.ms is given:
    the same value, so that the wait does not grow. Default: `1000`.
    """

    reconnect_backoff_ms: int
    """First wait between attempts to connect to one broker, in milliseconds; it doubles, with jitter, up to
    reconnect.backoff.max.ms. Default: `50`.
    """

    request_timeout_ms: int
    """Milliseconds to wait for a response; after that the connection is closed and the request sent again. Default:
    `30000`.
    """

    retry_backoff_max_ms: int
    """Maximum wait before a request is sent again, in milliseconds (KIP-580). Default: `1000`."""

    retry_backoff_ms: int
    """First wait before a request is sent again, in milliseconds; it doubles, with jitter, up to retry.backoff.max.ms.
    Default: `100`.
    """

    sasl_client_callback_handler_class: str | None
    """Java class that answers the SASL client's questions. Kafka's own and MSK's classes mean what is built in; Python
    cannot load others. Default: none.
    """

    sasl_jaas_config: str | Password | None
    """Login module and its options, as LOGIN_MODULE required name="value" ...; with the semicolon. Or set sasl.username
    and sasl.password. PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule and MSK's IAMLoginModule, also under
    the names of libraries that contain them; Kerberos comes in a later release. Default: none.
    """

    sasl_kerberos_kinit_cmd: str
    """Without effect. Kinit path. Kerberos (GSSAPI) comes in a later release. Default: `/usr/bin/kinit`."""

    sasl_kerberos_min_time_before_relogin: int
    """Without effect. Pause of the Kerberos login thread between refreshes. Kerberos (GSSAPI) comes in a later release.
    Default: `60000`.
    """

    sasl_kerberos_service_name: str | None
    """Without effect. Kerberos service name of the brokers. Kerberos (GSSAPI) comes in a later release. Default: none.
    """

    sasl_kerberos_ticket_renew_jitter: float
    """Without effect. Random share added to ticket renewal time. Kerberos (GSSAPI) comes in a later release. Default:
    `0.05`.
    """

    sasl_kerberos_ticket_renew_window_factor: float
    """Without effect. Fraction of ticket life before renewal. Kerberos (GSSAPI) comes in a later release. Default:
    `0.8`.
    """

    sasl_login_callback_handler_class: str | None
    """Java class that fetches the credentials. Kafka's own and MSK's classes mean what is built in; Python cannot load
    others. Default: none.
    """

    sasl_login_class: str | None
    """Java class that keeps the credentials. Kafka's own and MSK's classes mean what is built in; Python cannot load
    others. Default: none.
    """

    sasl_login_connect_timeout_ms: int | None
    """Milliseconds to connect to the token endpoint. Default: none."""

    sasl_login_read_timeout_ms: int | None
    """Milliseconds to read from the token endpoint. Default: none."""

    sasl_login_refresh_buffer_seconds: int
    """Seconds before its expiry in which a token is refreshed at the latest. Default: `300`."""

    sasl_login_refresh_min_period_seconds: int
    """Seconds between two refreshes of a token, at least. Default: `60`."""

    sasl_login_refresh_window_factor: float
    """Share of its life after which a token is refreshed. Default: `0.8`."""

    sasl_login_refresh_window_jitter: float
    """Greatest random share of its life that is added to that. Default: `0.05`."""

    sasl_login_retry_backoff_max_ms: int
    """Greatest pause between attempts at the token endpoint. Default: `10000`."""

    sasl_login_retry_backoff_ms: int
    """First pause between attempts at the token endpoint; it doubles. Default: `100`."""

    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM. It must be given with SASL: GSSAPI (Kerberos)
    comes in a later release. AWS_MSK_IAM is OAUTHBEARER with tokens of the package aws-msk-iam-sasl-signer-python.
    Default: `GSSAPI`.
    """

    sasl_oauthbearer_allow_unverified_audience: bool
    """Without effect. Let the JWT validator pass when no expected audience is configured. Only brokers validate tokens.
    The client reads nothing of a token but its expiry. Default: `false`.
    """

    sasl_oauthbearer_allow_unverified_issuer: bool
    """Without effect. Let the JWT validator pass when no expected issuer is configured. Only brokers validate tokens.
    The client reads nothing of a token but its expiry. Default: `false`.
    """

    sasl_oauthbearer_assertion_algorithm: Literal["ES256", "RS256", "es256", "rs256"]
    """JWS algorithm that signs the client assertion (KIP-1139). Default: `RS256`."""

    sasl_oauthbearer_assertion_claim_aud: str | None
    """Aud claim of the assertion (KIP-1139). Default: none."""

    sasl_oauthbearer_assertion_claim_exp_seconds: int
    """Seconds ahead for exp (KIP-1139). Default: `300`."""

    sasl_oauthbearer_assertion_claim_iss: str | None
    """Iss claim (KIP-1139). Default: none."""

    sasl_oauthbearer_assertion_claim_jti_include: bool
    """Add a unique jti (KIP-1139). Default: `false`."""

    sasl_oauthbearer_assertion_claim_nbf_seconds: int
    """Seconds back for nbf (KIP-1139). Default: `60`."""

    sasl_oauthbearer_assertion_claim_sub: str | None
    """Sub claim (KIP-1139). Default: none."""

    sasl_oauthbearer_assertion_file: str | None
    """Ready-made assertion file, reloaded when it changes (KIP-1139). Default: none."""

    sasl_oauthbearer_assertion_private_key_file: str | None
    """PEM key that signs, reloaded when it changes (KIP-1139). Default: none."""

    sasl_oauthbearer_assertion_private_key_passphrase: str | Password | None
    """Passphrase of that key (KIP-1139). Default: none."""

    sasl_oauthbearer_assertion_template_file: str | None
    """JSON with static header/payload claims (KIP-1139). Default: none."""

    sasl_oauthbearer_client_credentials_client_id: str | None
    """Client id for the client_credentials grant; if not given: clientId in sasl.jaas.config. Default: none."""

    sasl_oauthbearer_client_credentials_client_secret: str | Password | None
    """Client secret for the client_credentials grant; if not given: clientSecret in sasl.jaas.config. Default: none."""

    sasl_oauthbearer_clock_skew_seconds: int
    """Without effect. Clock skew tolerated on exp/nbf. Only brokers validate tokens. The client reads nothing of a
    token but its expiry. Default: `30`.
    """

    sasl_oauthbearer_expected_audience: str | Sequence[str]
    """Without effect. Accepted aud values (validator side). Only brokers validate tokens. The client reads nothing of a
    token but its expiry. Default: empty.
    """

    sasl_oauthbearer_expected_issuer: str | None
    """Without effect. Accepted iss value (validator side). Only brokers validate tokens. The client reads nothing of a
    token but its expiry. Default: none.
    """

    sasl_oauthbearer_extensions: str | None
    """SASL extensions sent beside the token (RFC 7628), as "name=value,name=value"; instead of the options
    extension_NAME in sasl.jaas.config. The name is librdkafka's. Default: none.
    """

    sasl_oauthbearer_header_urlencode: bool
    """URL-encode id and secret in the Authorization header (KIP-1025). Default: `false`."""

    sasl_oauthbearer_jwks_endpoint_refresh_ms: int
    """Without effect. JWKS cache refresh. Only brokers validate tokens. The client reads nothing of a token but its
    expiry. Default: `3600000`.
    """

    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int
    """Without effect. Ceiling of JWKS retry backoff. Only brokers validate tokens. The client reads nothing of a token
    but its expiry. Default: `10000`.
    """

    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int
    """Without effect. First JWKS retry backoff. Only brokers validate tokens. The client reads nothing of a token but
    its expiry. Default: `100`.
    """

    sasl_oauthbearer_jwks_endpoint_url: str | None
    """Without effect. Where signing keys are found. Only brokers validate tokens. The client reads nothing of a token
    but its expiry. Default: none.
    """

    sasl_oauthbearer_jwt_retriever_class: str
    """How tokens are fetched: by client credentials, by an assertion (jwt-bearer), or from a file (KIP-1139). Kafka's
    four retrievers by their class names; for others set sasl.token.provider. Default:
    `org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever`.
    """

    sasl_oauthbearer_jwt_validator_class: str
    """Without effect. JwtValidator plug-in (KIP-1139). Only brokers validate tokens. The client reads nothing of a
    token but its expiry. Default: `org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator`.
    """

    sasl_oauthbearer_scope: str | None
    """Scope asked of the token endpoint; if not given: scope in sasl.jaas.config. Default: none."""

    sasl_oauthbearer_scope_claim_name: str
    """Claim of a token with the scope. Default: `scope`."""

    sasl_oauthbearer_sub_claim_name: str
    """Claim of a token with the principal. Default: `sub`."""

    sasl_oauthbearer_token_endpoint_url: str | None
    """URL of the OAuth/OIDC token endpoint, or file: with the path of a file that contains a token. https only, unless
    the host is this machine. Java has a system property with the allowed URLs. Default: none.
    """

    sasl_password: PasswordValue | None
    """Password for PLAIN and SCRAM; with sasl.username, instead of sasl.jaas.config. A placeholder of a config provider
    is read again for each authentication, so that a changed password needs no restart. In Python also a function, plain
    or async, that returns the password; it is called each time. Default: none.
    """

    sasl_token_provider: TokenProviderValue | None
    """A function, plain or async, or "module:attribute", that returns the token for OAUTHBEARER as (token, expires_at),
    with expires_at in seconds since 1970; principal and extensions may follow. Default: none.
    """

    sasl_username: str | None
    """User name for PLAIN and SCRAM; with sasl.password, instead of sasl.jaas.config. Default: none."""

    security_protocol: Literal[
        "SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "sasl_ssl", "plaintext", "ssl", "sasl_plaintext"
    ]
    """Protocol of connections to brokers: PLAINTEXT, SSL (TLS), SASL_PLAINTEXT or SASL_SSL. Default: `PLAINTEXT`."""

    security_providers: str | None
    """Without effect. Classes that create Java security providers. It names a mechanism of the Java virtual machine;
    here TLS is OpenSSL. Default: none.
    """

    send_buffer_bytes: int
    """Bytes of the socket's send buffer (SO_SNDBUF); -1: the system's choice. Default: `131072`."""

    socket_connection_setup_timeout_max_ms: int
    """Maximum timeout of an attempt to connect, in milliseconds (KIP-601). Default: `30000`."""

    socket_connection_setup_timeout_ms: int
    """First timeout of an attempt to connect, in milliseconds; it doubles, with jitter, with each consecutive failure
    (KIP-601). Default: `10000`.
    """

    ssl_certificate_poll_interval_ms: int
    """Milliseconds between checks of the files of ssl.keystore.location and ssl.truststore.location: new connections
    use renewed ones. 0: they are never read again. Default: `60000`.
    """

    ssl_cipher_suites: str | Sequence[str]
    """Cipher suites allowed for TLS 1.2 and older, by IANA or OpenSSL name; empty: OpenSSL's choice. Python cannot
    select suites of TLS 1.3: their names are accepted, but all of them stay allowed. Default: empty.
    """

    ssl_enabled_protocols: str | Sequence[str]
    """TLS versions allowed. Default: `TLSv1.2,TLSv1.3`."""

    ssl_endpoint_identification_algorithm: str
    """https: the broker's certificate must be valid for the host name; empty: the name is not checked. Default:
    `https`.
    """

    ssl_engine_factory_class: EngineFactoryValue | None
    """A callable of the ProducerConfig that returns an ssl.SSLContext, or "module:attribute", or an entry point of the
    group aioproducer.ssl_engine_factories; it replaces all other ssl keys. Java classes cannot be loaded. Default:
    none.
    """

    ssl_key_password: str | Password | None
    """Password of the private key. Default: none."""

    ssl_keymanager_algorithm: str
    """Without effect. Java KeyManager algorithm. It names a mechanism of the Java virtual machine; here TLS is OpenSSL.
    Default: `SunX509`.
    """

    ssl_keystore_certificate_chain: str | Password | None
    """This client's certificate and its issuers as PEM text (KIP-651). Default: none."""

    ssl_keystore_key: str | Password | None
    """This client's private key as PEM text; an encrypted key needs ssl.key.password (KIP-651). Default: none."""

    ssl_keystore_location: str | None
    """File with this client's certificate and private key. Default: none."""

    ssl_keystore_password: str | Password | None
    """Password of the key store file. Default: none."""

    ssl_keystore_type: str | None
    """PEM or PKCS12; if not given: detected from the content. Java's default is JKS, which Python cannot read: the
    error contains the keytool command that converts it. Default: none.
    """

    ssl_protocol: str
    """Without effect. Protocol name for Java's SSLContext. Only ssl.enabled.protocols selects the versions. Default:
    `TLSv1.3`.
    """

    ssl_provider: str | None
    """Without effect. Java security provider for TLS. It names a mechanism of the Java virtual machine; here TLS is
    OpenSSL. Default: none.
    """

    ssl_secure_random_implementation: str | None
    """Without effect. SecureRandom algorithm. It names a mechanism of the Java virtual machine; here TLS is OpenSSL.
    Default: none.
    """

    ssl_trustmanager_algorithm: str
    """Without effect. Java TrustManager algorithm. It names a mechanism of the Java virtual machine; here TLS is
    OpenSSL. Default: `PKIX`.
    """

    ssl_truststore_certificates: str | Password | None
    """Trusted certificates as PEM text (KIP-651). Default: none."""

    ssl_truststore_location: str | None
    """File with the trusted certificates; if not given: the system's. Default: none."""

    ssl_truststore_password: str | Password | None
    """Password of the trust store file. Default: none."""

    ssl_truststore_type: str | None
    """PEM or PKCS12; if not given: detected from the content. Java's default is JKS, which Python cannot read: the
    error contains the keytool command that converts it. Default: none.
    """

    ssl_context: ssl.SSLContext | None
    """An ``ssl.SSLContext`` that replaces all ``ssl`` keys. With it, ``security_protocol`` is SSL unless given.

    Default: none.
    """


class ConnectionConfigDict(ClientConfigDict, total=False):
    """The keys about connections: those of ``Admin`` and ``Reader``."""

    max_in_flight_requests_per_connection: int
    """Unanswered produce requests per broker; at most 5 with idempotence. As in Java, values above 5 are rejected
    unless enable.idempotence is false. Default: `5`.
    """

    metadata_max_idle_ms: int
    """Milliseconds without a send after which a topic's metadata is dropped (KIP-526). Default: `300000`."""

    receive_buffer_bytes: int
    """Bytes of the socket's receive buffer (SO_RCVBUF); -1: the system's choice. Default: `32768`."""

    transaction_abort_grace_ms: int
    """Milliseconds that `async with producer.transaction()` waits for an abort when an exception or a cancellation ends
    the block; the abort goes on in the background after that. Default: `1000`.
    """


class ProducerConfigDict(ConnectionConfigDict, total=False):
    """The keys of ``Producer``, except those that are rejected."""

    acks: Literal["all", "-1", "0", "1", -1, 0, 1]
    """Acknowledgements that a batch needs: 0 none (offsets stay unknown), 1 the leader's, all (or -1) those of all
    in-sync replicas. Idempotence needs all. Whole numbers are accepted too. Default: `all`.
    """

    batch_size: int
    """Bytes at which a batch for one partition is full; also the bytes after which the built-in partitioner switches to
    another partition. Memory is allocated as records arrive, not for a whole batch in advance. Default: `16384`.
    """

    buffer_memory: int
    """Bytes that unacknowledged records may occupy. If they are full, sends wait for at most max.block.ms. Default:
    `33554432`.
    """

    buffer_memory_allocation_strategy: Literal["FULL", "INCREMENTAL", "full", "incremental"]
    """Without effect. full: each batch allocates batch.size from buffer.memory; incremental: batches allocate as
    records arrive (KIP-1332). Memory is always allocated as records arrive. Default: `full`.
    """

    client_rack: str
    """The rack, or zone, in which this client runs, as in broker.rack (KIP-1123). Default: ""."""

    compression_gzip_level: int
    """Gzip level, -1 for the library default (KIP-390). Default: `-1`."""

    compression_lz4_level: int
    """LZ4 level (HC modes above 9 are slow) (KIP-390). Default: `9`."""

    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    """The codec for whole batches. Default: `none`."""

    compression_zstd_level: int
    """Zstd level, negatives are the fast modes (KIP-390). Default: `3`."""

    delivery_timeout_ms: int
    """Milliseconds from send() to the outcome, including the linger, all retries and the acknowledgement. At least
    linger.ms + request.timeout.ms (KIP-91). Default: `120000`.
    """

    enable_idempotence: bool
    """Each record is written exactly once and in order per partition, despite retries. Needs acks=all, retries above 0
    and at most 5 requests in flight. Default: `true`.
    """

    enable_metrics_push: bool
    """Without effect. Push this client's metrics to the brokers on request (KIP-714). Metrics are not pushed to brokers
    yet; metrics() returns them. Default: `true`.
    """

    interceptor_classes: str | Sequence[InterceptorValue]
    """Interceptors with on_send, on_headers or on_acknowledgement, called in this order. Default: empty."""

    key_serializer: SerializerValue | None
    """Serializer of keys: an object with serialize(topic, value, headers), a callable of the key, "module:attribute",
    an entry point of the group aioproducer.serializers, or one of Kafka's class names. Java requires one; here bytes
    pass unchanged if none is given. Default: none.
    """

    linger_ms: int
    """Milliseconds that a batch may wait for more records. Default: `5`."""

    max_block_ms: int
    """Milliseconds for which a record may wait for metadata or memory. Default: `60000`."""

    max_request_size: int
    """Maximum bytes of a produce request, and of a single record before compression. Default: `1048576`."""

    metric_reporters: str | Sequence[str]
    """Without effect. Plug-ins that receive every metric. There is no JMX here: read metrics(), or use hooks. Any class
    except Kafka's JmxReporter is rejected. Default: `org.apache.kafka.common.metrics.JmxReporter`.
    """

    metrics_num_samples: int
    """Number of windows over which rates and averages are computed. Default: `2`."""

    metrics_recording_level: Literal["INFO", "DEBUG", "TRACE"]
    """The lowest level of metrics that is recorded. Default: `INFO`."""

    metrics_sample_window_ms: int
    """Length of one window of the metrics, in milliseconds. Default: `30000`."""

    partitioner_adaptive_partitioning_enable: bool
    """Send records without a key more often to partitions on faster brokers (KIP-794). Default: `true`."""

    partitioner_availability_timeout_ms: int
    """Milliseconds without progress after which records without a key avoid the partitions of a broker; 0: never
    (KIP-794). Default: `0`.
    """

    partitioner_class: PartitionerValue | None
    """A partitioner with partition(topic, key, value, cluster), a callable of the same, "module:attribute", or an entry
    point of the group aioproducer.partitioners. None: the key's hash, or sticky without a key. Kafka's class names
    RoundRobinPartitioner and DefaultPartitioner are accepted. Default: none.
    """

    partitioner_ignore_keys: bool
    """Distribute records with a key like those without a key. Default: `false`."""

    partitioner_rack_aware: bool
    """Send records without a key to partitions with a leader in client.rack, or to all if there are none (KIP-1123).
    Needs client.rack. Java accepts it without client.rack, but then it has no effect. Default: `false`.
    """

    retries: int
    """Maximum number of retries of a batch; delivery.timeout.ms is the better limit. Default: `2147483647`."""

    transaction_timeout_ms: int
    """Milliseconds after which the coordinator aborts an open transaction; at most the broker's
    transaction.max.timeout.ms. Only with transactional.id. Default: `60000`.
    """

    transactional_id: str | None
    """Identity of a transactional producer, the same after a restart: all records are sent in transactions, and a newer
    producer of the same id fences the older one (KIP-98). Default: none.
    """

    value_serializer: SerializerValue | None
    """Serializer of values; as key.serializer. Java requires one; here bytes pass unchanged if none is given. Default:
    none.
    """


class ConsumerConfigDict(ClientConfigDict, total=False):
    """The keys of ``Consumer``, except those that are rejected."""

    allow_auto_create_topics: bool
    """Let brokers create an assigned topic that does not exist, if auto.create.topics.enable permits it. Default:
    `true`.
    """

    auto_commit_interval_ms: int
    """Milliseconds between automatic commits, with enable.auto.commit. At least 10 ms pass between two commits.
    Default: `5000`.
    """

    auto_offset_reset: str
    """Where to begin without a valid offset. earliest: the first record; latest: behind the last one; none: raise
    NoOffsetForPartitionError; by_duration:PnDTnHnMn.nS: the first record of that last time (KIP-1106). With by_duration
    and no record that young, reading begins behind the last record; Java waits for one. In a re-created topic reading
    begins at its first record, unless none. Default: `latest`.
    """

    check_crcs: bool
    """Check the checksum of each batch before it is decoded. Default: `true`."""

    client_rack: str
    """The rack, or zone, in which this client runs, as in broker.rack (KIP-1123). Default: ""."""

    default_api_timeout_ms: int
    """Milliseconds that a call without a timeout argument may take. Default: `60000`."""

    enable_auto_commit: bool
    """Commit offsets automatically: every auto.commit.interval.ms, before partitions are revoked, and by close. Without
    group.id nothing is committed. Only records behind which the next one was requested are committed; Java commits all
    returned ones. Default: `true`.
    """

    enable_metrics_push: bool
    """Without effect. Push this client's metrics to the brokers on request (KIP-714). Metrics are not pushed to brokers
    yet; metrics() returns them. Default: `true`.
    """

    exclude_internal_topics: bool
    """Let a subscription by pattern match no internal topics, such as __consumer_offsets. Default: `true`."""

    fetch_buffer_bytes: int
    """Bytes of fetched records in memory, over all partitions and brokers. A reader that is slower than the brokers
    stops the fetches. One batch that is larger than the limits still arrives (KIP-74). Kafka does not have this key.
    Default: `67108864`.
    """

    fetch_max_bytes: int
    """Bytes of records in one response; a first batch that is larger still arrives (KIP-74). At most
    fetch.buffer.bytes, divided by the number of brokers that are fetched from. Default: `52428800`.
    """

    fetch_max_wait_ms: int
    """Milliseconds that a broker waits for fetch.min.bytes. Default: `500`."""

    fetch_min_bytes: int
    """Bytes that a broker waits for before it responds, for at most fetch.max.wait.ms. Default: `1`."""

    group_id: str | None
    """The consumer group: needed for subscribe, commit and committed. Default: none."""

    group_instance_id: str | None
    """The name of a static member (KIP-345): it keeps its partitions while it restarts, for at most session.timeout.ms.
    No two members of a group may have the same one. Default: none.
    """

    group_protocol: Literal["CLASSIC", "CONSUMER", "classic", "consumer"]
    """The protocol of groups: classic. The consumer protocol (KIP-848) is refused. The consumer joins groups by the
    classic protocol. Default: `classic`.
    """

    group_remote_assignor: str | None
    """Without effect. The assignor of the broker (KIP-848). The consumer joins groups by the classic protocol. Default:
    none.
    """

    heartbeat_interval_ms: int
    """Milliseconds between heartbeats to the group's coordinator; at most a third of session.timeout.ms is good.
    Default: `3000`.
    """

    internal_throw_on_fetch_stable_offset_unsupported: bool
    """Without effect. Fail instead of waiting for stable committed offsets. Brokers before Kafka 2.5 return the offsets
    that they have. Default: `false`.
    """

    isolation_level: Literal["read_committed", "read_uncommitted"]
    """read_uncommitted: every record; read_committed: no records of aborted transactions, and none behind the first
    open transaction (KIP-98). Default: `read_uncommitted`.
    """

    key_deserializer: DeserializerValue | None
    """Deserializer of keys: an object with deserialize(topic, data, headers), a callable of the bytes,
    "module:attribute", an entry point of the group aioproducer.deserializers, or one of Kafka's class names. Java
    requires one; here bytes pass unchanged if none is given. Default: none.
    """

    max_partition_fetch_bytes: int
    """Bytes of records of one partition in a response; a first batch that is larger still arrives. Default: `1048576`.
    """

    max_poll_interval_ms: int
    """Milliseconds between two requests for records, after which the member leaves the group; also the time that the
    group waits for this member in a rebalance. Waiting for records counts as requesting them. Default: `300000`.
    """

    max_poll_records: int
    """Records that poll returns unless its max_records says otherwise. Default: `500`."""

    metric_reporters: str | Sequence[str]
    """Without effect. Plug-ins that receive every metric. There is no JMX here: read metrics(), or use hooks. Any class
    except Kafka's JmxReporter is rejected. Default: `org.apache.kafka.common.metrics.JmxReporter`.
    """

    metrics_num_samples: int
    """Number of windows over which rates and averages are computed. Default: `2`."""

    metrics_recording_level: Literal["INFO", "DEBUG", "TRACE"]
    """The lowest level of metrics that is recorded. Default: `INFO`."""

    metrics_sample_window_ms: int
    """Length of one window of the metrics, in milliseconds. Default: `30000`."""

    partition_assignment_strategy: str | Sequence[str]
    """The assignors in the order of preference: range, roundrobin, sticky, cooperative-sticky, or Kafka's class names.
    The group uses one that all members have. Rebalances are incremental (KIP-429) if all of them can do so, which is
    cooperative-sticky alone. Assignors of other classes cannot be loaded. Default:
    `org.apache.kafka.clients.consumer.RangeAssignor,org.apache.kafka.clients.consumer.CooperativeStickyAssignor`.
    """

    receive_buffer_bytes: int
    """Size of the socket's receive buffer (SO_RCVBUF); -1 for the system's default. Default: `65536`."""

    session_timeout_ms: int
    """Milliseconds without a heartbeat after which the group removes the member. Brokers limit it by
    group.min.session.timeout.ms and group.max.session.timeout.ms. Default: `45000`.
    """

    share_acknowledgement_mode: str
    """Without effect. About share groups (KIP-932). The consumer joins no share groups. Default: `implicit`."""

    share_acquire_mode: str
    """Without effect. About share groups (KIP-932). The consumer joins no share groups. Default: `BATCH_OPTIMIZED`."""

    value_deserializer: DeserializerValue | None
    """Deserializer of values, as key.deserializer. Java requires one; here bytes pass unchanged if none is given.
    Default: none.
    """
