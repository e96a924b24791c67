"""The keys that Kafka's producer does not have."""

from __future__ import annotations

from aioproducer.config.definition import ConfigKey, Importance, Type, at_least

OWN_KEYS = (
    ConfigKey(
        "sasl.oauthbearer.extensions",
        Type.STRING,
        None,
        Importance.LOW,
        (
            'SASL extensions sent beside the token (RFC 7628), as "name=value,name=value"; instead of the options '
            "extension_NAME in sasl.jaas.config. The name is librdkafka's."
        ),
    ),
    ConfigKey(
        "sasl.password",
        Type.PASSWORD,
        None,
        Importance.MEDIUM,
        (
            "Password for PLAIN and SCRAM; with sasl.username, instead of sasl.jaas.config. A placeholder of a config "
            "provider is read again for each authentication, so that a changed password needs no restart."
        ),
        reason="In Python also a function, plain or async, that returns the password; it is called each time.",
        takes_callables=True,
    ),
    ConfigKey(
        "sasl.token.provider",
        Type.CLASS,
        None,
        Importance.MEDIUM,
        (
            'A function, plain or async, or "module:attribute", that returns the token for OAUTHBEARER as (token, '
            "expires_at), with expires_at in seconds since 1970; principal and extensions may follow."
        ),
    ),
    ConfigKey(
        "sasl.username",
        Type.STRING,
        None,
        Importance.MEDIUM,
        "User name for PLAIN and SCRAM; with sasl.password, instead of sasl.jaas.config.",
    ),
    ConfigKey(
        "ssl.certificate.poll.interval.ms",
        Type.LONG,
        60000,
        Importance.LOW,
        (
            "Milliseconds between checks of the files of ssl.keystore.location and ssl.truststore.location: new "
            "connections use renewed ones. 0: they are never read again."
        ),
        validator=at_least(0),
    ),
    ConfigKey(
        "transaction.abort.grace.ms",
        Type.LONG,
        1000,
        Importance.LOW,
        (
            "Milliseconds that `async with producer.transaction()` waits for an abort when an exception or a "
            "cancellation ends the block; the abort goes on in the background after that."
        ),
        validator=at_least(0),
    ),
)
