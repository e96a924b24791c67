"""The SASL keys: valid and contradicting combinations, and errors that show no secret."""

from __future__ import annotations

import logging
import pickle
import ssl
import sys
from functools import partial
from pathlib import Path

import pytest

from aioproducer.config import CONFIG_DEF, Password, ProducerConfig, Type
from aioproducer.config.sasl import MECHANISMS, SaslCredentials
from aioproducer.errors import ConfigurationError

SECRET = "made-up-secret-7f"
KAFKA = "org.apache.kafka.common.security."
PLAIN = f"{KAFKA}plain.PlainLoginModule"
SCRAM = f"{KAFKA}scram.ScramLoginModule"
OAUTH = f"{KAFKA}oauthbearer.OAuthBearerLoginModule"
IAM = "software.amazon.msk.auth.iam.IAMLoginModule"
URL = "https://login.example.com/token"
PROVIDERS = "org.apache.kafka.common.config.provider."


def config(**given: object) -> ProducerConfig:
    """A configuration with SASL_SSL; ``mechanism`` and ``jaas`` are short for their keys."""
    short = {"mechanism": "sasl_mechanism", "jaas": "sasl_jaas_config"}
    given = {short.get(name, name): value for name, value in given.items()}
    return ProducerConfig.from_mapping(
        {"bootstrap_servers": "broker.example.com:9092", "security_protocol": "SASL_SSL", **given}
    )


def refusal(**given: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        config(**given)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


def token() -> tuple[str, float]:
    return "made-up-token", 2e9


PROVIDER = partial(print, SECRET)
USER = {"sasl_username": "anna", "sasl_password": SECRET}
LOGIN = f'username="anna" password="{SECRET}";'


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_user_name_and_password(mechanism: str) -> None:
    made = config(mechanism=mechanism, **USER)
    assert made.sasl_mechanism == mechanism
    assert made.sasl_credentials() == SaslCredentials("anna", Password(SECRET), False)
    assert (made.sasl_jaas, made.sasl_msk_iam, dict(made.sasl_extensions)) == (None, None, {})
    assert (made.uses_sasl, made.uses_tls) == (True, True)


@pytest.mark.parametrize(
    ("mechanism", "module"), [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", f"kafkashaded.{SCRAM}")]
)
def test_user_name_and_password_in_a_jaas_entry(mechanism: str, module: str) -> None:
    made = config(mechanism=mechanism, jaas=f"{module} required {LOGIN}")
    assert made.sasl_credentials() == SaslCredentials("anna", Password(SECRET), False)
    assert made.sasl_jaas is not None
    assert made.sasl_jaas.options["username"] == "anna"


@pytest.mark.parametrize(("tokenauth", "is_token"), [("true", True), ("TRUE", True), ("false", False), ("yes", False)])
def test_the_option_tokenauth_marks_a_delegation_token(tokenauth: str, is_token: bool) -> None:
    made = config(mechanism="SCRAM-SHA-256", jaas=f'{SCRAM} required tokenauth="{tokenauth}" {LOGIN}')
    assert made.sasl_credentials().is_token is is_token


def test_tokenauth_is_for_scram_alone(caplog: pytest.LogCaptureFixture) -> None:
    made = config(mechanism="PLAIN", jaas=f'{PLAIN} required tokenauth="true" {LOGIN}')
    assert made.sasl_credentials().is_token is False
    assert "sasl.jaas.config: PlainLoginModule does not know 1 of the options; they have no effect" in caplog.text


def test_names_of_unknown_options_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    config(mechanism="PLAIN", jaas=f"{PLAIN} required username=a password=my {SECRET}=x;")
    assert "PlainLoginModule does not know 1 of the options" in caplog.text
    assert SECRET not in caplog.text


def test_a_password_may_be_a_function() -> None:
    made = config(mechanism="PLAIN", sasl_username="anna", sasl_password=str)
    assert made.sasl_password is str
    with pytest.raises(ConfigurationError, match=r"sasl\.password is a function: call it"):
        made.sasl_credentials()


def test_only_plain_and_scram_have_credentials() -> None:
    for made in (config(mechanism="OAUTHBEARER", sasl_token_provider=token), config(security_protocol="SSL")):
        with pytest.raises(ConfigurationError, match="has no user name and password"):
            made.sasl_credentials()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, f"sasl.mechanism is missing: set it to {' or '.join(MECHANISMS)}, as the broker has it"),
        (USER, "sasl.mechanism is missing: set it to PLAIN or SCRAM-SHA-256 or SCRAM-SHA-512, as the broker"),
        ({"jaas": f"{PLAIN} required {LOGIN}"}, "sasl.mechanism is missing: set it to PLAIN, as the broker has it"),
        ({"sasl_token_provider": token}, "sasl.mechanism is missing: set it to OAUTHBEARER, as"),
        ({"mechanism": "GSSAPI"}, "Kerberos (GSSAPI) comes in a later release: use PLAIN, SCRAM-SHA-256, SCRAM-SHA-5"),
        (
            {"mechanism": "plain", **USER},
            "must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM",
        ),
        ({"mechanism": "plain", **USER}, "not 'plain': did you mean 'PLAIN'?"),
        ({"mechanism": "SCRAM-SHA-1", **USER}, "did you mean 'SCRAM-SHA-"),
        ({"mechanism": "DIGEST-MD5", **USER}, "not 'DIGEST-MD5'"),
        (
            {"mechanism": "SCRAM-SHA-512", "jaas": f"{PLAIN} required {LOGIN}"},
            "sasl.mechanism SCRAM-SHA-512 does not fit PlainLoginModule in sasl.jaas.config: set it to PLAIN, or",
        ),
        ({"mechanism": "PLAIN", "jaas": f"{OAUTH} required;"}, "does not fit OAuthBearerLoginModule"),
        ({"mechanism": "OAUTHBEARER", "jaas": f"{IAM} required;"}, "does not fit IAMLoginModule"),
        ({"mechanism": "PLAIN", "jaas": f"{SECRET} required;"}, "the login module has no equivalent"),
        (
            {"mechanism": "PLAIN", "jaas": f"{PLAIN} required {LOGIN}", **USER},
            "sasl.username and sasl.password are both",
        ),
        (
            {"mechanism": "PLAIN", "jaas": f"{PLAIN} required {LOGIN}", "sasl_username": "a"},
            "and sasl.username are both",
        ),
        ({"mechanism": "PLAIN"}, "sasl.username and sasl.password are missing or empty"),
        ({"mechanism": "PLAIN", "sasl_username": "a"}, "or sasl.jaas.config: sasl.password is missing or empty"),
        ({"mechanism": "PLAIN", "sasl_password": SECRET}, "sasl.username is missing or empty"),
        ({"mechanism": "PLAIN", "sasl_username": "a", "sasl_password": ""}, "sasl.password is missing or empty"),
        ({"mechanism": "PLAIN", "sasl_password": token}, "sasl.username is missing or empty"),
        ({"mechanism": "PLAIN", "jaas": f"{PLAIN} required;"}, "the option username and the option password must be"),
        (
            {"mechanism": "PLAIN", "jaas": f"{PLAIN} required username='' password='{SECRET}';"},
            "the option username must",
        ),
        (
            {"mechanism": "PLAIN", **USER, "sasl_token_provider": token},
            "sasl.token.provider is for OAUTHBEARER, not for",
        ),
        (
            {"mechanism": "PLAIN", **USER, "sasl_oauthbearer_extensions": "a=b"},
            "sasl.oauthbearer.extensions is for OAUTHB",
        ),
        (
            {"mechanism": "PLAIN", "sasl_username": "a", "sasl_password": f"{SECRET}\ud800"},
            "the SASL password has no UTF-8",
        ),
        (
            {"mechanism": "PLAIN", "sasl_username": f"{SECRET}\ud800", "sasl_password": "b"},
            "the SASL user name has no UTF",
        ),
    ],
)
def test_errors_of_contradictions_of_plain_and_scram_name_the_remedy(given: dict[str, object], says: str) -> None:
    assert says in refusal(**given)


def test_a_token_provider_is_a_function_or_its_name() -> None:
    assert config(mechanism="OAUTHBEARER", sasl_token_provider=token).sasl_token_provider is token
    named = config(mechanism="OAUTHBEARER", sasl_token_provider="builtins:tuple")
    assert named.sasl_token_provider is tuple
    unused = config(security_protocol="PLAINTEXT", sasl_token_provider="builtins:tuple")
    assert unused.sasl_token_provider is tuple


@pytest.mark.parametrize("value", [SECRET, "correct horse battery", "hunter2", "HUNTER2-HUNTER2-HUNTER2", "a$b"])
def test_a_mechanism_that_is_no_name_of_one_is_not_shown(value: str) -> None:
    """It may be the password, in the wrong place. A name has at most 20 upper-case letters, digits, - and _."""
    says = refusal(mechanism=value, **USER)
    assert value not in says
    assert says.endswith("AWS_MSK_IAM, not the given value")


@pytest.mark.parametrize("key", ["sasl_login_class", "sasl_login_callback_handler_class"])
def test_a_java_class_that_is_no_name_of_one_is_not_shown(key: str) -> None:
    assert "the given value has no equivalent" in refusal(mechanism="PLAIN", **USER, **{key: SECRET})
    says = refusal(**ENDPOINT, **CREDENTIALS, sasl_oauthbearer_jwt_retriever_class=SECRET)
    assert "sasl.oauthbearer.jwt.retriever.class: the given value has no equivalent" in says


@pytest.mark.parametrize("value", [SECRET, SECRET.encode(), f"Bearer: {SECRET}", {"token": SECRET}, f"{SECRET}:a", ""])
def test_a_token_in_place_of_its_provider_is_not_shown(value: object) -> None:
    says = refusal(mechanism="OAUTHBEARER", sasl_token_provider=value)
    assert says.startswith(
        "sasl.token.provider must be a function that returns a token, or its 'module:attribute', not"
    )


def test_a_provider_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"sasl\.token\.provider: no_such_module:f cannot be loaded"):
        config(mechanism="OAUTHBEARER", sasl_token_provider="no_such_module:f")


CREDENTIALS = {
    "sasl_oauthbearer_client_credentials_client_id": "an-id",
    "sasl_oauthbearer_client_credentials_client_secret": SECRET,
}
ENDPOINT = {"mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": URL}


def test_client_credentials_come_from_keys_or_from_the_jaas_entry() -> None:
    made = config(**ENDPOINT, **CREDENTIALS, sasl_oauthbearer_scope="a")
    assert made.sasl_oauthbearer_client_credentials_client_secret == Password(SECRET)
    jaas = f"{OAUTH} required clientId=other clientSecret='{SECRET}' scope='b c' extension_traceId='1 2';"
    made = config(**ENDPOINT, jaas=jaas)
    assert made.sasl_oauthbearer_client_credentials_client_id == "other"
    assert made.sasl_oauthbearer_client_credentials_client_secret == Password(SECRET)
    assert made.sasl_oauthbearer_scope == "b c"
    assert made.sasl_extensions == {"traceId": "1 2"}
    assert SECRET not in repr(made)


def test_keys_precede_the_options_of_the_jaas_entry() -> None:
    made = config(**ENDPOINT, **CREDENTIALS, jaas=f"{OAUTH} required clientId=other clientSecret=x scope=b;")
    assert made.sasl_oauthbearer_client_credentials_client_id == "an-id"
    assert made.sasl_oauthbearer_client_credentials_client_secret == Password(SECRET)
    assert made.sasl_oauthbearer_scope == "b"


def test_extensions_are_parsed() -> None:
    made = config(mechanism="OAUTHBEARER", sasl_token_provider=token, sasl_oauthbearer_extensions="a=b, traceId = 1=2 ")
    assert made.sasl_extensions == {"a": "b", "traceId": "1=2"}


RETRIEVERS = ("Default", "ClientCredentials", "JwtBearer", "File")


@pytest.mark.parametrize("name", RETRIEVERS)
def test_kafkas_retrievers_are_known(name: str) -> None:
    full = f"{KAFKA}oauthbearer.{name}JwtRetriever"
    given = {"sasl_oauthbearer_jwt_retriever_class": f"shaded.{full}"}
    if name == "File":
        given["sasl_oauthbearer_token_endpoint_url"] = "file:///run/token"
    elif name == "JwtBearer":
        given["sasl_oauthbearer_assertion_private_key_file"] = "key.pem"
    else:
        given.update(CREDENTIALS)
    assert config(**{**ENDPOINT, **given}).sasl_oauthbearer_jwt_retriever_class == full


def test_unsecured_claims_are_a_source_of_tokens() -> None:
    handler = f"{KAFKA}oauthbearer.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
    jaas = f"{OAUTH} required unsecuredLoginStringClaim_sub=anna;"
    made = config(mechanism="OAUTHBEARER", jaas=jaas, sasl_login_callback_handler_class=handler)
    assert made.sasl_jaas is not None
    assert made.sasl_jaas.options == {"unsecuredLoginStringClaim_sub": "anna"}


def test_a_token_of_a_file_needs_no_credentials() -> None:
    made = config(mechanism="OAUTHBEARER", sasl_oauthbearer_token_endpoint_url="file:///run/token")
    assert made.sasl_oauthbearer_token_endpoint_url == "file:///run/token"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mechanism": "OAUTHBEARER"}, "has no source of tokens: set sasl.oauthbearer.token.endpoint.url, or "),
        ({"mechanism": "OAUTHBEARER", "jaas": f"{OAUTH} required;"}, "has no source of tokens: set"),
        ({"mechanism": "OAUTHBEARER", **USER}, "sasl.username is for PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, not for "),
        (
            {**ENDPOINT, "sasl_token_provider": token},
            "sasl.token.provider and sasl.oauthbearer.token.endpoint.url are both given: remove one of them",
        ),
        (ENDPOINT, "needs client credentials: sasl.oauthbearer.client.credentials.client.id and sasl.oauth"),
        (
            {**ENDPOINT, "jaas": f"{OAUTH} required clientId='' clientSecret='{SECRET}';"},
            "sasl.oauthbearer.client.credentials.client.id is missing or empty, also as clientId and clientSecret in",
        ),
        (
            {**ENDPOINT, "sasl_oauthbearer_assertion_file": "x"},
            "for an assertion set sasl.oauthbearer.jwt.retriever.class to org.apache.kafka.common.security.oauthbearer",
        ),
        (
            {**ENDPOINT, "sasl_oauthbearer_jwt_retriever_class": f"{KAFKA}oauthbearer.JwtBearerJwtRetriever"},
            "needs sasl.oauthbearer.assertion.file or sasl.oauthbearer.assertion.private.key.file",
        ),
        (
            {**ENDPOINT, "sasl_oauthbearer_jwt_retriever_class": f"{KAFKA}oauthbearer.FileJwtRetriever"},
            "FileJwtRetriever needs a file: URL in sasl.oauthbearer.token.endpoint.url",
        ),
        (
            {**ENDPOINT, "sasl_oauthbearer_jwt_retriever_class": "com.example.Own"},
            "sasl.oauthbearer.jwt.retriever.class: 'com.example.Own' has no equivalent: use one of org.apache",
        ),
        (
            {**ENDPOINT, **CREDENTIALS, "sasl_oauthbearer_extensions": SECRET},
            'sasl.oauthbearer.extensions must have the form "name=value,name=value"',
        ),
        (
            {**ENDPOINT, **CREDENTIALS, "sasl_oauthbearer_extensions": f"auth={SECRET}"},
            "the name of a SASL extension must be letters other than 'auth'",
        ),
        (
            {**ENDPOINT, **CREDENTIALS, "sasl_oauthbearer_extensions": f"a=b,{SECRET}=c"},
            "the name of a SASL extension must be letters other than 'auth'",
        ),
        (
            {**ENDPOINT, **CREDENTIALS, "jaas": f"{OAUTH} required extension_a='{SECRET}\x01';"},
            "sasl.jaas.config: the value of the SASL extension a must be printable ASCII",
        ),
        (
            {
                "mechanism": "OAUTHBEARER", "sasl_token_provider": token, "sasl_oauthbearer_extensions": "a=b",
                "jaas": f"{OAUTH} required extension_a=b;",
            },
            "sasl.oauthbearer.extensions and the options extension_... in sasl.jaas.config are both given",
        ),
    ],
)  # fmt: skip
def test_errors_of_contradictions_of_oauthbearer_name_the_remedy(given: dict[str, object], says: str) -> None:
    assert says in refusal(**given)


def test_msk_iam_needs_nothing_but_the_mechanism() -> None:
    made = config(mechanism="AWS_MSK_IAM")
    assert (made.sasl_mechanism, made.sasl_msk_iam, made.sasl_jaas) == ("OAUTHBEARER", {}, None)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sasl_token_provider": token}, "sasl.token.provider does not go with AWS_MSK_IAM, which makes its own token"),
        (USER, "sasl.username is for PLAIN"),
        ({"jaas": f"{PLAIN} required {LOGIN}"}, "does not fit PlainLoginModule"),
        (
            {"jaas": f"{IAM} required awsRoleAccessKeyId=a awsRoleSecretAccessKey='{SECRET}';"},
            "awsRoleAccessKeyId, awsRoleSecretAccessKey: credentials do not belong here. Put them into a profile",
        ),
    ],
)
def test_errors_of_contradictions_of_msk_iam_name_the_remedy(given: dict[str, object], says: str) -> None:
    assert says in refusal(mechanism="AWS_MSK_IAM", **given)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("sasl_login_callback_handler_class", f"{KAFKA}oauthbearer.OAuthBearerLoginCallbackHandler"),
        ("sasl_login_callback_handler_class", f"{KAFKA}oauthbearer.secured.OAuthBearerLoginCallbackHandler"),
        ("sasl_client_callback_handler_class", f"{KAFKA}oauthbearer.internals.OAuthBearerSaslClientCallbackHandler"),
        ("sasl_client_callback_handler_class", f"shaded.{KAFKA}authenticator.SaslClientCallbackHandler"),
        ("sasl_login_class", f"{KAFKA}oauthbearer.internals.OAuthBearerRefreshingLogin"),
    ],
)
def test_java_classes_that_are_built_in_are_accepted(key: str, name: str) -> None:
    made = config(**ENDPOINT, **CREDENTIALS, **{key: name})
    assert getattr(made, key) is None
    assert made.originals()[key.replace("_", ".")] == name


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (
            "sasl_login_callback_handler_class",
            "com.example.Own",
            "'com.example.Own' has no equivalent, and Python loads no",
        ),
        (
            "sasl_client_callback_handler_class",
            partial(print, SECRET),
            "sasl.client.callback.handler.class: a partial has no equivalent, and Python loads no Java class. For",
        ),
        ("sasl_login_class", "com.example.Own", "sasl.login.class: 'com.example.Own' has no equivalent"),
        (
            "sasl_client_callback_handler_class",
            "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
            "is for AWS_MSK_IAM, not for sasl.mechanism PLAIN",
        ),
        (
            "sasl_login_callback_handler_class",
            f"{KAFKA}oauthbearer.OAuthBearerLoginCallbackHandler",
            "is for OAUTHBEARER, not for sasl.mechanism PLAIN",
        ),
    ],
)
def test_other_java_classes_are_rejected(key: str, value: object, says: str) -> None:
    assert says in refusal(mechanism="PLAIN", **USER, **{key: value})


def test_sasl_keys_without_sasl_log_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    made = config(security_protocol="SSL", mechanism="NONE", jaas=f"broken {SECRET}", sasl_username=None)
    assert (made.uses_sasl, made.uses_tls, made.sasl_jaas) == (False, True, None)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "security.protocol is SSL: connections are not authenticated by SASL, and these keys have no effect: "
        "sasl.jaas.config, sasl.mechanism. security.protocol SASL_SSL uses them"
    )


def test_an_ssl_context_may_be_used_with_sasl_ssl() -> None:
    context = ssl.create_default_context()
    assert config(mechanism="PLAIN", **USER, ssl_context=context).ssl_context is context
    assert "ssl_context needs security.protocol SSL or SASL_SSL, not SASL_PLAINTEXT" in refusal(
        mechanism="PLAIN", **USER, ssl_context=context, security_protocol="SASL_PLAINTEXT"
    )


def test_ssl_keys_count_for_sasl_ssl_alone(caplog: pytest.LogCaptureFixture) -> None:
    config(mechanism="PLAIN", **USER, ssl_truststore_location="x")
    assert not caplog.records
    config(
        mechanism="PLAIN", **USER, ssl_truststore_location="x", security_protocol="sasl_plaintext",
        bootstrap_servers="localhost:1",
    )  # fmt: skip
    assert "security.protocol is SASL_PLAINTEXT: connections are not encrypted" in caplog.text


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"mechanism": "PLAIN", **USER}, "password for PLAIN"),
        ({"mechanism": "OAUTHBEARER", "sasl_token_provider": token}, "token for OAUTHBEARER"),
    ],
)
def test_a_secret_that_is_sent_unencrypted_to_another_machine_is_logged(
    given: dict[str, object], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    servers = "localhost:1,127.8.8.8:1,[::1]:1,a.localhost:1,b.example.com:1,10.0.0.1:1"
    config(**given, security_protocol="SASL_PLAINTEXT", bootstrap_servers=servers)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"the {what} is sent unencrypted to b.example.com, 10.0.0.1: use SASL_SSL" in record.getMessage()


def test_nothing_is_warned_of_where_nothing_is_readable(caplog: pytest.LogCaptureFixture) -> None:
    config(mechanism="SCRAM-SHA-256", **USER, security_protocol="SASL_PLAINTEXT")
    config(mechanism="PLAIN", **USER, security_protocol="SASL_PLAINTEXT", bootstrap_servers="localhost:1,[::1]:1")
    config(mechanism="PLAIN", **USER)
    assert not caplog.records


def rotating(folder: Path, **given: str) -> ProducerConfig:
    return ProducerConfig.from_mapping(
        {
            "bootstrap.servers": "a:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "config.providers": "file,directory",
            "config.providers.file.class": f"{PROVIDERS}FileConfigProvider",
            "config.providers.directory.class": f"{PROVIDERS}DirectoryConfigProvider",
            "config.providers.directory.param.allowed.paths": str(folder),
            **given,
        }
    )


def test_placeholders_of_credentials_are_read_again_each_time(tmp_path: Path) -> None:
    file = tmp_path / "login.properties"
    file.write_text("user=anna\npassword=first\n")
    own = rotating(
        tmp_path, **{"sasl.username": f"${{file:{file}:user}}", "sasl.password": f"${{file:{file}:password}}"}
    )
    jaas = rotating(
        tmp_path,
        **{"sasl.jaas.config": f'{SCRAM} required username="x" password="${{file:{file}:password}}";'},
    )
    assert own.sasl_credentials() == ("anna", Password("first"), False)
    assert jaas.sasl_credentials() == ("x", Password("first"), False)
    file.write_text("user=berta\npassword=second\n")
    assert own.sasl_credentials() == ("berta", Password("second"), False)
    assert jaas.sasl_credentials() == ("x", Password("second"), False)
    assert pickle.loads(pickle.dumps(jaas)).sasl_credentials() == ("x", Password("second"), False)


def test_a_mounted_secret_counts_without_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "word").write_text(f"{SECRET}\n")
    made = rotating(tmp_path, **{"sasl.username": "anna", "sasl.password": f"${{directory:{tmp_path}:word}}"})
    assert made.sasl_credentials().password == made.sasl_password == Password(SECRET)


def test_credentials_that_have_become_wrong_are_errors_without_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "login.properties"
    file.write_text(f"password={SECRET}\n")
    placeholder = f"${{file:{file}:password}}"
    own = rotating(tmp_path, **{"sasl.username": "anna", "sasl.password": placeholder})
    jaas = rotating(tmp_path, **{"sasl.jaas.config": f"{SCRAM} required username='x' password='{placeholder}';"})
    for text, own_says, jaas_says in (
        ("password=\n", "the SASL password is empty", "the option password must be given, and not empty"),
        ("other=\n", "sasl.password: config provider 'file' has no value", "sasl.jaas.config: config provider 'file'"),
        (f"password={SECRET}'{SECRET}\n", "", "after the value of the option password, at character"),
    ):
        file.write_text(text)
        for made, says in ((own, own_says), (jaas, jaas_says)):
            if says:
                with pytest.raises(ConfigurationError) as caught:
                    made.sasl_credentials()
                assert says in str(caught.value)
                assert SECRET not in str(caught.value)
    file.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        own.sasl_credentials()


PASSWORDS = sorted(name for name, key in CONFIG_DEF.keys.items() if key.type is Type.PASSWORD)


@pytest.mark.parametrize("name", PASSWORDS)
def test_no_secret_shows_in_errors_and_representations(name: str, caplog: pytest.LogCaptureFixture) -> None:
    for value in (SECRET.encode(), [SECRET], {SECRET: 1}):
        with pytest.raises(ConfigurationError) as caught:
            ProducerConfig.from_mapping({"bootstrap.servers": "a:1", name: value})
        assert str(caught.value) == f"{name} must be a string, not [hidden]"
    with pytest.raises(ConfigurationError, match="did you mean") as caught:
        ProducerConfig.from_mapping({"bootstrap.servers": "a:1", name: SECRET, "linger.mss": 1})
    assert SECRET not in str(caught.value)
    with caplog.at_level(logging.DEBUG):
        made = ProducerConfig.from_mapping({"bootstrap.servers": "a:1", name: SECRET})
    assert SECRET not in repr(made)
    assert SECRET not in caplog.text
    assert made.originals()[name] == SECRET


@pytest.mark.parametrize(
    "given",
    [
        {"mechanism": "PLAIN", **USER},
        {"mechanism": "SCRAM-SHA-512", "jaas": f"{SCRAM} required {LOGIN}"},
        {"mechanism": "OAUTHBEARER", "sasl_token_provider": PROVIDER},
        {"mechanism": "PLAIN", "sasl_username": "anna", "sasl_password": PROVIDER},
        {**ENDPOINT, "jaas": f"{OAUTH} required clientId=a clientSecret='{SECRET}' extension_a='{SECRET}';"},
        {"mechanism": "AWS_MSK_IAM", "jaas": f"{IAM} required awsProfileName='{SECRET}';"},
    ],
)
def test_configurations_compare_hash_and_hide(given: dict[str, object]) -> None:
    made, same = config(**given, client_id="x"), config(**given, client_id="x")
    assert made == same
    if "jaas" in given or isinstance(given.get("sasl_password"), str):
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)) as caught:
            pickle.dumps(made)
        assert SECRET not in str(caught.value)
    assert hash(made) == hash(same)
    assert made != config(**given, client_id="y")
    assert SECRET not in repr(made)


def test_no_exception_in_the_chain_contains_a_credential_that_cannot_be_encoded() -> None:
    """A UnicodeEncodeError has the text as an attribute, and ``from None`` leaves it as the context."""
    for given in ({**USER, "sasl_password": f"{SECRET}\ud800"}, {**USER, "sasl_username": f"{SECRET}\ud800"}):
        with pytest.raises(ConfigurationError, match="has no UTF-8 form") as caught:
            config(mechanism="PLAIN", **given)
        assert caught.value.__context__ is None


def test_credentials_hide_the_password() -> None:
    shown = repr(config(mechanism="PLAIN", **USER).sasl_credentials())
    assert shown == "SaslCredentials(username='anna', password=[hidden], is_token=False)"


def test_a_configuration_without_sasl_does_not_import_its_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("aioproducer.config.sasl", "aioproducer.config.jaas", "aioproducer.config.client_files"):
        monkeypatch.setitem(sys.modules, name, None)
    made = config(security_protocol="PLAINTEXT")
    assert (made.sasl_jaas, made.sasl_msk_iam, dict(made.sasl_extensions)) == (None, None, {})
    assert made.ssl_certificate_poll_interval_ms == 60000
