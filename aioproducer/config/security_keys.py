"""The security keys of Kafka's producer: names, types, defaults and rules of Kafka 4.4."""

from __future__ import annotations

from aioproducer.config.definition import (
    ConfigKey,
    Importance,
    Status,
    Type,
    Validator,
    Value,
    between,
    list_without_empty_items,
    one_of_ignoring_case,
)

_KERBEROS_REASON = "Kerberos (GSSAPI) comes in a later release."
_CLASS_REASON = "Kafka's own and MSK's classes mean what is built in; Python cannot load others."
_VALIDATOR_REASON = "Only brokers validate tokens. The client reads nothing of a token but its expiry."


def _kerberos(name: str, type_: Type, default: Value, importance: Importance, doc: str) -> ConfigKey:
    return ConfigKey(name, type_, default, importance, doc, status=Status.WITHOUT_EFFECT, reason=_KERBEROS_REASON)


def _validating(
    name: str, type_: Type, default: Value, importance: Importance, doc: str, validator: Validator | None = None
) -> ConfigKey:
    return ConfigKey(
        name, type_, default, importance, doc, validator, status=Status.WITHOUT_EFFECT, reason=_VALIDATOR_REASON
    )


SSL_KEYS = (
    ConfigKey(
        "security.protocol",
        Type.STRING,
        "PLAINTEXT",
        Importance.MEDIUM,
        "Protocol of connections to brokers: PLAINTEXT, SSL (TLS), SASL_PLAINTEXT or SASL_SSL.",
        validator=one_of_ignoring_case("SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT"),
    ),
    ConfigKey(
        "security.providers",
        Type.STRING,
        None,
        Importance.LOW,
        "Classes that create Java security providers.",
        status=Status.WITHOUT_EFFECT,
        reason="It names a mechanism of the Java virtual machine; here TLS is OpenSSL.",
    ),
    ConfigKey(
        "ssl.cipher.suites",
        Type.LIST,
        (),
        Importance.LOW,
        "Cipher suites allowed for TLS 1.2 and older, by IANA or OpenSSL name; empty: OpenSSL's choice.",
        validator=list_without_empty_items(may_be_empty=True),
        reason=("Python cannot select suites of TLS 1.3: their names are accepted, but all of them stay allowed."),
    ),
    ConfigKey(
        "ssl.enabled.protocols",
        Type.LIST,
        ("TLSv1.2", "TLSv1.3"),
        Importance.MEDIUM,
        "TLS versions allowed.",
        validator=list_without_empty_items(may_be_empty=True),
    ),
    ConfigKey(
        "ssl.endpoint.identification.algorithm",
        Type.STRING,
        "https",
        Importance.LOW,
        "https: the broker's certificate must be valid for the host name; empty: the name is not checked.",
    ),
    ConfigKey(
        "ssl.engine.factory.class",
        Type.CLASS,
        None,
        Importance.LOW,
        (
            'A callable of the ProducerConfig that returns an ssl.SSLContext, or "module:attribute", or an entry '
            "point of the group aioproducer.ssl_engine_factories; it replaces all other ssl keys."
        ),
        reason="Java classes cannot be loaded.",
    ),
    ConfigKey(
        "ssl.key.password",
        Type.PASSWORD,
        None,
        Importance.HIGH,
        "Password of the private key.",
    ),
    ConfigKey(
        "ssl.keymanager.algorithm",
        Type.STRING,
        "SunX509",
        Importance.LOW,
        "Java KeyManager algorithm.",
        status=Status.WITHOUT_EFFECT,
        reason="It names a mechanism of the Java virtual machine; here TLS is OpenSSL.",
    ),
    ConfigKey(
        "ssl.keystore.certificate.chain",
        Type.PASSWORD,
        None,
        Importance.HIGH,
        "This client's certificate and its issuers as PEM text (KIP-651).",
    ),
    ConfigKey(
        "ssl.keystore.key",
        Type.PASSWORD,
        None,
        Importance.HIGH,
        "This client's private key as PEM text; an encrypted key needs ssl.key.password (KIP-651).",
    ),
    ConfigKey(
        "ssl.keystore.location",
        Type.STRING,
        None,
        Importance.HIGH,
        "File with this client's certificate and private key.",
    ),
    ConfigKey(
        "ssl.keystore.password",
        Type.PASSWORD,
        None,
        Importance.HIGH,
        "Password of the key store file.",
    ),
    ConfigKey(
        "ssl.keystore.type",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "PEM or PKCS12; if not given: detected from the content.",
        reason=(
            "Java's default is JKS, which Python cannot read: the error contains the keytool command that converts it."
        ),
    ),
    ConfigKey(
        "ssl.protocol",
        Type.STRING,
        "TLSv1.3",
        Importance.MEDIUM,
        "Protocol name for Java's SSLContext.",
        status=Status.WITHOUT_EFFECT,
        reason="Only ssl.enabled.protocols selects the versions.",
    ),
    ConfigKey(
        "ssl.provider",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "Java security provider for TLS.",
        status=Status.WITHOUT_EFFECT,
        reason="It names a mechanism of the Java virtual machine; here TLS is OpenSSL.",
    ),
    ConfigKey(
        "ssl.secure.random.implementation",
        Type.STRING,
        None,
        Importance.LOW,
        "SecureRandom algorithm.",
        status=Status.WITHOUT_EFFECT,
        reason="It names a mechanism of the Java virtual machine; here TLS is OpenSSL.",
    ),
    ConfigKey(
        "ssl.trustmanager.algorithm",
        Type.STRING,
        "PKIX",
        Importance.LOW,
        "Java TrustManager algorithm.",
        status=Status.WITHOUT_EFFECT,
        reason="It names a mechanism of the Java virtual machine; here TLS is OpenSSL.",
    ),
    ConfigKey(
        "ssl.truststore.certificates",
        Type.PASSWORD,
        None,
        Importance.HIGH,
        "Trusted certificates as PEM text (KIP-651).",
    ),
    ConfigKey(
        "ssl.truststore.location",
        Type.STRING,
        None,
        Importance.HIGH,
        "File with the trusted certificates; if not given: the system's.",
    ),
    ConfigKey(
        "ssl.truststore.password",
        Type.PASSWORD,
        None,
        Importance.HIGH,
        "Password of the trust store file.",
    ),
    ConfigKey(
        "ssl.truststore.type",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "PEM or PKCS12; if not given: detected from the content.",
        reason=(
            "Java's default is JKS, which Python cannot read: the error contains the keytool command that converts it."
        ),
    ),
)

SASL_KEYS = (
    ConfigKey(
        "sasl.client.callback.handler.class",
        Type.CLASS,
        None,
        Importance.MEDIUM,
        "Java class that answers the SASL client's questions.",
        reason=_CLASS_REASON,
    ),
    ConfigKey(
        "sasl.jaas.config",
        Type.PASSWORD,
        None,
        Importance.MEDIUM,
        (
            'Login module and its options, as LOGIN_MODULE required name="value" ...; with the semicolon. Or set '
            "sasl.username and sasl.password."
        ),
        reason=(
            "PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule and MSK's IAMLoginModule, also under the names "
            "of libraries that contain them; Kerberos comes in a later release."
        ),
    ),
    _kerberos(
        "sasl.kerberos.kinit.cmd",
        Type.STRING,
        "/usr/bin/kinit",
        Importance.LOW,
        "Kinit path.",
    ),
    _kerberos(
        "sasl.kerberos.min.time.before.relogin",
        Type.LONG,
        60000,
        Importance.LOW,
        "Pause of the Kerberos login thread between refreshes.",
    ),
    _kerberos(
        "sasl.kerberos.service.name",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "Kerberos service name of the brokers.",
    ),
    _kerberos(
        "sasl.kerberos.ticket.renew.jitter",
        Type.DOUBLE,
        0.05,
        Importance.LOW,
        "Random share added to ticket renewal time.",
    ),
    _kerberos(
        "sasl.kerberos.ticket.renew.window.factor",
        Type.DOUBLE,
        0.8,
        Importance.LOW,
        "Fraction of ticket life before renewal.",
    ),
    ConfigKey(
        "sasl.login.callback.handler.class",
        Type.CLASS,
        None,
        Importance.MEDIUM,
        "Java class that fetches the credentials.",
        reason=_CLASS_REASON,
    ),
    ConfigKey(
        "sasl.login.class",
        Type.CLASS,
        None,
        Importance.MEDIUM,
        "Java class that keeps the credentials.",
        reason=_CLASS_REASON,
    ),
    ConfigKey(
        "sasl.login.connect.timeout.ms",
        Type.INT,
        None,
        Importance.LOW,
        "Milliseconds to connect to the token endpoint.",
    ),
    ConfigKey(
        "sasl.login.read.timeout.ms",
        Type.INT,
        None,
        Importance.LOW,
        "Milliseconds to read from the token endpoint.",
    ),
    ConfigKey(
        "sasl.login.refresh.buffer.seconds",
        Type.SHORT,
        300,
        Importance.LOW,
        "Seconds before its expiry in which a token is refreshed at the latest.",
        validator=between(0, 3600),
    ),
    ConfigKey(
        "sasl.login.refresh.min.period.seconds",
        Type.SHORT,
        60,
        Importance.LOW,
        "Seconds between two refreshes of a token, at least.",
        validator=between(0, 900),
    ),
    ConfigKey(
        "sasl.login.refresh.window.factor",
        Type.DOUBLE,
        0.8,
        Importance.LOW,
        "Share of its life after which a token is refreshed.",
        validator=between(0.5, 1.0),
    ),
    ConfigKey(
        "sasl.login.refresh.window.jitter",
        Type.DOUBLE,
        0.05,
        Importance.LOW,
        "Greatest random share of its life that is added to that.",
        validator=between(0.0, 0.25),
    ),
    ConfigKey(
        "sasl.login.retry.backoff.max.ms",
        Type.LONG,
        10000,
        Importance.LOW,
        "Greatest pause between attempts at the token endpoint.",
    ),
    ConfigKey(
        "sasl.login.retry.backoff.ms",
        Type.LONG,
        100,
        Importance.LOW,
        "First pause between attempts at the token endpoint; it doubles.",
    ),
    ConfigKey(
        "sasl.mechanism",
        Type.STRING,
        "GSSAPI",
        Importance.MEDIUM,
        "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM.",
        reason=(
            "It must be given with SASL: GSSAPI (Kerberos) comes in a later release. AWS_MSK_IAM is OAUTHBEARER with "
            "tokens of the package aws-msk-iam-sasl-signer-python."
        ),
    ),
    _validating(
        "sasl.oauthbearer.allow.unverified.audience",
        Type.BOOLEAN,
        False,
        Importance.MEDIUM,
        "Let the JWT validator pass when no expected audience is configured.",
    ),
    _validating(
        "sasl.oauthbearer.allow.unverified.issuer",
        Type.BOOLEAN,
        False,
        Importance.MEDIUM,
        "Let the JWT validator pass when no expected issuer is configured.",
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.algorithm",
        Type.STRING,
        "RS256",
        Importance.MEDIUM,
        "JWS algorithm that signs the client assertion (KIP-1139).",
        validator=one_of_ignoring_case("ES256", "RS256"),
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.aud",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "Aud claim of the assertion (KIP-1139).",
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        Type.INT,
        300,
        Importance.LOW,
        "Seconds ahead for exp (KIP-1139).",
        validator=between(0, 86400),
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.iss",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "Iss claim (KIP-1139).",
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.jti.include",
        Type.BOOLEAN,
        False,
        Importance.MEDIUM,
        "Add a unique jti (KIP-1139).",
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        Type.INT,
        60,
        Importance.LOW,
        "Seconds back for nbf (KIP-1139).",
        validator=between(0, 3600),
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.claim.sub",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "Sub claim (KIP-1139).",
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.file",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "Ready-made assertion file, reloaded when it changes (KIP-1139).",
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.private.key.file",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "PEM key that signs, reloaded when it changes (KIP-1139).",
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.private.key.passphrase",
        Type.PASSWORD,
        None,
        Importance.MEDIUM,
        "Passphrase of that key (KIP-1139).",
    ),
    ConfigKey(
        "sasl.oauthbearer.assertion.template.file",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "JSON with static header/payload claims (KIP-1139).",
    ),
    ConfigKey(
        "sasl.oauthbearer.client.credentials.client.id",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "Client id for the client_credentials grant; if not given: clientId in sasl.jaas.config.",
    ),
    ConfigKey(
        "sasl.oauthbearer.client.credentials.client.secret",
        Type.PASSWORD,
        None,
        Importance.MEDIUM,
        "Client secret for the client_credentials grant; if not given: clientSecret in sasl.jaas.config.",
    ),
    _validating(
        "sasl.oauthbearer.clock.skew.seconds",
        Type.INT,
        30,
        Importance.LOW,
        "Clock skew tolerated on exp/nbf.",
    ),
    _validating(
        "sasl.oauthbearer.expected.audience",
        Type.LIST,
        (),
        Importance.HIGH,
        "Accepted aud values (validator side).",
        validator=list_without_empty_items(may_be_empty=True),
    ),
    _validating(
        "sasl.oauthbearer.expected.issuer",
        Type.STRING,
        None,
        Importance.HIGH,
        "Accepted iss value (validator side).",
    ),
    ConfigKey(
        "sasl.oauthbearer.header.urlencode",
        Type.BOOLEAN,
        False,
        Importance.LOW,
        "URL-encode id and secret in the Authorization header (KIP-1025).",
    ),
    _validating(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        Type.LONG,
        3600000,
        Importance.LOW,
        "JWKS cache refresh.",
    ),
    _validating(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        Type.LONG,
        10000,
        Importance.LOW,
        "Ceiling of JWKS retry backoff.",
    ),
    _validating(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        Type.LONG,
        100,
        Importance.LOW,
        "First JWKS retry backoff.",
    ),
    _validating(
        "sasl.oauthbearer.jwks.endpoint.url",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "Where signing keys are found.",
    ),
    ConfigKey(
        "sasl.oauthbearer.jwt.retriever.class",
        Type.CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        Importance.MEDIUM,
        "How tokens are fetched: by client credentials, by an assertion (jwt-bearer), or from a file (KIP-1139).",
        reason="Kafka's four retrievers by their class names; for others set sasl.token.provider.",
    ),
    _validating(
        "sasl.oauthbearer.jwt.validator.class",
        Type.CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        Importance.MEDIUM,
        "JwtValidator plug-in (KIP-1139).",
    ),
    ConfigKey(
        "sasl.oauthbearer.scope",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "Scope asked of the token endpoint; if not given: scope in sasl.jaas.config.",
    ),
    ConfigKey(
        "sasl.oauthbearer.scope.claim.name",
        Type.STRING,
        "scope",
        Importance.LOW,
        "Claim of a token with the scope.",
    ),
    ConfigKey(
        "sasl.oauthbearer.sub.claim.name",
        Type.STRING,
        "sub",
        Importance.LOW,
        "Claim of a token with the principal.",
    ),
    ConfigKey(
        "sasl.oauthbearer.token.endpoint.url",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "URL of the OAuth/OIDC token endpoint, or file: with the path of a file that contains a token.",
        reason="https only, unless the host is this machine. Java has a system property with the allowed URLs.",
    ),
)
